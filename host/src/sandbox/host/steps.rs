//! `onemark:workflow/steps`.

use std::sync::PoisonError;

use wasmtime::StoreContextMut;
use wasmtime::component::Resource;

use crate::ids::IdempotencyKey;
use crate::journal::{self, Failure, FailureKind, Limits, StepOptions, StepOverrides};
use crate::sandbox::bindings::onemark::workflow::steps::{Begun, Host};
use crate::sandbox::closure::Finished;
use crate::sandbox::guest::{Guest, PromiseHandle, Role, WorkflowGuest};
use crate::sandbox::limits::MemoryLimit;
use crate::sandbox::manifest::StepManifest;
use crate::sandbox::trap::Refused;

/// The idempotency key of a call that can be made: as given, or made from the input. Depends on nothing but the
/// call, the component and what entry 0 pinned, so that a replay says the same.
fn checked(
    step: Option<&StepManifest>,
    given: Option<&str>,
    input: &str,
    limits: &Limits,
) -> Result<Option<String>, Failure> {
    let bytes = input.len() as u64;
    if bytes > limits.body_bytes {
        let text = format!("the input has {bytes} bytes; the limit is {}", limits.body_bytes);
        return Err(Failure::new(FailureKind::TooLarge, text));
    }
    let invalid = |text: String| Failure::new(FailureKind::Invalid, text);
    let key = match (given, step.and_then(|step| step.key.as_ref())) {
        (Some(key), _) => key.to_owned(),
        (None, Some(template)) => {
            let input = serde_json::from_str(input)
                .map_err(|error| invalid(format!("the input is no JSON: {error}")))?;
            template
                .render(&input)
                .map_err(|error| invalid(error.to_string()))?
        }
        (None, None) => return Ok(None),
    };
    IdempotencyKey::new(&key).map_err(|error| invalid(error.to_string()))?;
    Ok(Some(key))
}

/// Longest name of a closure step, in bytes: as of steps that the manifest declares.
const MAX_STEP_NAME: usize = 128;

fn checked_step_name(name: &str) -> Result<(), Failure> {
    if name.is_empty() || name.len() > MAX_STEP_NAME || name.chars().any(char::is_control) {
        let text =
            format!("a closure step has a name of 1 to {MAX_STEP_NAME} bytes without control characters");
        return Err(Failure::new(FailureKind::Invalid, text));
    }
    Ok(())
}

impl Host for Guest {
    fn call(
        &mut self,
        name: String,
        input: String,
        options: String,
    ) -> wasmtime::Result<Resource<PromiseHandle>> {
        let WorkflowGuest { replay, manifest, .. } = self.workflow("steps.call")?;
        let overrides: StepOverrides = serde_json::from_str(&options)
            .map_err(|error| Refused(format!("the options of step `{name}`: {error}")))?;
        let step = manifest.steps.get(&name);
        let key = match checked(step, overrides.key.as_deref(), &input, &replay.started().limits) {
            Ok(key) => key,
            Err(failure) => {
                let promise = replay.refuse(&failure);
                self.ask(failure.message.len() as u64)?;
                return Ok(Resource::new_own(promise));
            }
        };
        let pinned = || -> Result<StepOptions, String> {
            let Some(step) = step else {
                return Err(format!("the component has no step `{name}`"));
            };
            Ok(StepOptions {
                key,
                ..step.options.with(&overrides)
            })
        };
        let promise = replay.step(&name, &input, pinned)?;
        self.ask((name.len() + input.len() + options.len()) as u64)?;
        self.workflow("steps.call")?.go_ahead()?;
        Ok(Resource::new_own(promise))
    }

    fn begin(&mut self, name: String, options: String) -> wasmtime::Result<Begun> {
        match self.announce(&name, &options)? {
            journal::Begun::Elsewhere(promise) => Ok(Begun::Elsewhere(Resource::new_own(promise))),
            // Only replicas come here, and they have [`begin`] instead of this.
            journal::Begun::Here => Ok(Begun::Here),
        }
    }

    fn finish(&mut self, outcome: Result<String, String>) -> wasmtime::Result<()> {
        match &self.role {
            Role::Workflow(workflow) if workflow.replica.as_ref().is_some_and(|r| r.attempt.is_some()) => {
                Err(Finished(outcome).into())
            }
            _ => Err(Refused("`steps.finish` ends a closure step, and none is running".into()).into()),
        }
    }
}

impl Guest {
    fn announce(&mut self, name: &str, options: &str) -> wasmtime::Result<journal::Begun> {
        let replay = &mut self.workflow("steps.begin")?.replay;
        let overrides: StepOverrides = serde_json::from_str(options)
            .map_err(|error| Refused(format!("the options of closure step `{name}`: {error}")))?;
        let named = checked_step_name(name);
        let key = checked(None, overrides.key.as_deref(), "", &replay.started().limits);
        let key = match named.and(key) {
            Ok(key) => key,
            Err(failure) => {
                let promise = replay.refuse(&failure);
                self.ask(failure.message.len() as u64)?;
                return Ok(journal::Begun::Elsewhere(promise));
            }
        };
        let pinned = || StepOptions {
            key,
            ..StepOptions::default().with(&overrides)
        };
        let begun = replay.closure(name, pinned)?;
        self.ask((name.len() + options.len()) as u64)?;
        Ok(begun)
    }
}

/// `begin` in a replica: at the closure that it was made for, the guest becomes a step.
pub fn begin(mut store: StoreContextMut<'_, Guest>, name: &str, options: &str) -> wasmtime::Result<Begun> {
    let guest = store.data_mut();
    match guest.announce(name, options)? {
        journal::Begun::Elsewhere(promise) => return Ok(Begun::Elsewhere(Resource::new_own(promise))),
        journal::Begun::Here => {}
    }
    let workflow = guest.workflow("steps.begin")?;
    let limits = workflow.replay.started().limits.clone();
    workflow.time.turn_real();
    if let Some(replica) = &mut workflow.replica {
        let mut given = replica.given.lock().unwrap_or_else(PoisonError::into_inner);
        replica.attempt = given.take();
    }
    guest.logs.set_silent(false);
    // What the workflow has taken stays taken.
    guest.memory = MemoryLimit::new(limits.workflow_memory.max(limits.step_memory));
    store.set_fuel(limits.step_fuel)?;
    Ok(Begun::Here)
}

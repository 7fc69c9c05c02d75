//! `onemark:workflow/steps`.

use wasmtime::component::Resource;

use crate::ids::IdempotencyKey;
use crate::journal::{Failure, FailureKind, Limits, StepOptions, StepOverrides};
use crate::sandbox::bindings::onemark::workflow::steps::{Begun, Host};
use crate::sandbox::guest::{Guest, PromiseHandle, WorkflowGuest};
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
        Ok(Resource::new_own(promise))
    }

    fn begin(&mut self, name: String, _options: String) -> wasmtime::Result<Begun> {
        self.workflow("steps.begin")?;
        Err(Refused(format!(
            "closure step `{name}`: this host does not run closure steps yet; use a `#[step]`"
        ))
        .into())
    }

    fn finish(&mut self, _outcome: Result<String, String>) -> wasmtime::Result<()> {
        Err(Refused("`steps.finish` ends a closure step, and none is running".into()).into())
    }
}

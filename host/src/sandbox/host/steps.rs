//! `onemark:workflow/steps`.

use wasmtime::StoreContextMut;
use wasmtime::component::Resource;

use crate::journal::{self, StepOptions, StepOverrides};
use crate::sandbox::bindings::onemark::workflow::steps::{Begun, Host};
use crate::sandbox::closure::Finished;
use crate::sandbox::guest::{Guest, PromiseHandle, Role, WorkflowGuest};
use crate::sandbox::limits::MemoryLimit;
use crate::sandbox::trap::Refused;

impl Host for Guest {
    fn call(
        &mut self,
        name: String,
        input: String,
        options: String,
    ) -> wasmtime::Result<Resource<PromiseHandle>> {
        let limit = self.workflow("steps.call")?.replay.started().limits.body_bytes;
        // An input over the limit is not kept.
        let kept = Some(input.len()).filter(|bytes| *bytes as u64 <= limit);
        let asked = (name.len() + kept.unwrap_or_default() + options.len()) as u64;
        self.ask(asked)?;
        let WorkflowGuest { replay, manifest, .. } = self.workflow("steps.call")?;
        let pinned = || -> Result<StepOptions, String> {
            let Some(step) = manifest.steps.get(&name) else {
                return Err(format!("the component has no step `{name}`"));
            };
            let overrides: StepOverrides = serde_json::from_str(&options)
                .map_err(|error| format!("the options of step `{name}`: {error}"))?;
            let mut options = step.options.with(&overrides);
            if let (None, Some(template)) = (overrides.key, &step.key) {
                let input = serde_json::from_str(&input)
                    .map_err(|error| format!("the input of step `{name}` is no JSON: {error}"))?;
                let key = template.render(&input);
                options.key = Some(key.map_err(|e| format!("the key of step `{name}`: {e}"))?);
            }
            Ok(options)
        };
        Ok(Resource::new_own(replay.step(&name, &input, pinned)?))
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
            Role::Workflow(workflow) if workflow.replica.as_ref().is_some_and(|r| r.in_closure) => {
                Err(Finished(outcome).into())
            }
            _ => Err(Refused("`steps.finish` ends a closure step, and none is running".into()).into()),
        }
    }
}

impl Guest {
    fn announce(&mut self, name: &str, options: &str) -> wasmtime::Result<journal::Begun> {
        self.ask((name.len() + options.len()) as u64)?;
        let replay = &mut self.workflow("steps.begin")?.replay;
        let pinned = || {
            let overrides: StepOverrides = serde_json::from_str(options)
                .map_err(|error| format!("the options of closure step `{name}`: {error}"))?;
            Ok(StepOptions::default().with(&overrides))
        };
        Ok(replay.closure(name, pinned)?)
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
        replica.in_closure = true;
    }
    // What the workflow has taken stays taken.
    guest.memory = MemoryLimit::new(limits.workflow_memory.max(limits.step_memory));
    store.set_fuel(limits.step_fuel)?;
    Ok(Begun::Here)
}

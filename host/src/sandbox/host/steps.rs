//! `onemark:workflow/steps`.

use wasmtime::component::Resource;

use crate::journal::{StepOptions, StepOverrides};
use crate::sandbox::bindings::onemark::workflow::steps::{Begun, Host};
use crate::sandbox::guest::{Guest, PromiseHandle, WorkflowGuest};
use crate::sandbox::trap::Refused;

impl Host for Guest {
    fn call(
        &mut self,
        name: String,
        input: String,
        options: String,
    ) -> wasmtime::Result<Resource<PromiseHandle>> {
        let limit = self.workflow("steps.call")?.replay.started().limits.body_bytes;
        if input.len() as u64 > limit {
            return Err(Refused(format!(
                "the input of step `{name}` has {} bytes; the limit is {limit}",
                input.len()
            ))
            .into());
        }
        let asked = (name.len() + input.len() + options.len()) as u64;
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

//! `onemark:workflow/children`.

use wasmtime::component::Resource;

use crate::journal::ChildOptions;
use crate::sandbox::bindings::onemark::workflow::children::{Host, HostChild};
use crate::sandbox::guest::{ChildHandle, Guest, PromiseHandle};
use crate::sandbox::trap::Refused;

impl Host for Guest {}

impl HostChild for Guest {
    fn start(
        &mut self,
        workflow: String,
        input: String,
        options: String,
    ) -> wasmtime::Result<Resource<ChildHandle>> {
        let replay = &mut self.workflow("child.start")?.replay;
        let asked: ChildOptions = serde_json::from_str(&options)
            .map_err(|error| Refused(format!("the options of child `{workflow}`: {error}")))?;
        let child = replay.start_child(&workflow, &input, asked)?;
        self.ask((workflow.len() + input.len() + options.len()) as u64)?;
        Ok(Resource::new_own(child))
    }

    fn started(&mut self, child: Resource<ChildHandle>) -> wasmtime::Result<Resource<PromiseHandle>> {
        let replay = &mut self.workflow("child.started")?.replay;
        Ok(Resource::new_own(replay.child_started(child.rep())))
    }

    fn outcome(&mut self, child: Resource<ChildHandle>) -> wasmtime::Result<Resource<PromiseHandle>> {
        let replay = &mut self.workflow("child.outcome")?.replay;
        Ok(Resource::new_own(replay.child_outcome(child.rep())))
    }

    fn drop(&mut self, _child: Resource<ChildHandle>) -> wasmtime::Result<()> {
        // The child goes on; dropping the handle changes nothing.
        Ok(())
    }
}

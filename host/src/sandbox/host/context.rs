//! `onemark:workflow/context`.

use rand_core::Rng as _;
use wasmtime::component::Resource;

use crate::ids::HookToken;
use crate::sandbox::bindings::onemark::workflow::context::Host;
use crate::sandbox::guest::{Guest, PromiseHandle};

impl Host for Guest {
    fn run_id(&mut self) -> wasmtime::Result<String> {
        let workflow = Guest::workflow(self, "context.run-id")?;
        Ok(workflow.replay.run_id(&workflow.run).to_string())
    }

    fn workflow(&mut self) -> wasmtime::Result<String> {
        let replay = &Guest::workflow(self, "context.workflow")?.replay;
        Ok(replay.started().workflow.clone())
    }

    fn now(&mut self) -> wasmtime::Result<u64> {
        Ok(Guest::workflow(self, "context.now")?.replay.now())
    }

    fn random(&mut self) -> wasmtime::Result<u64> {
        Ok(Guest::workflow(self, "context.random")?.random.next_u64())
    }

    fn start_tokens(&mut self) -> wasmtime::Result<Vec<String>> {
        let replay = &Guest::workflow(self, "context.start-tokens")?.replay;
        Ok(replay.start_tokens().map(HookToken::to_string).collect())
    }

    fn cancellation(&mut self) -> wasmtime::Result<Resource<PromiseHandle>> {
        let replay = &mut Guest::workflow(self, "context.cancellation")?.replay;
        Ok(Resource::new_own(replay.cancellation()))
    }

    fn is_cancel_requested(&mut self) -> wasmtime::Result<bool> {
        let replay = &Guest::workflow(self, "context.is-cancel-requested")?.replay;
        Ok(replay.is_cancel_requested())
    }

    fn is_cancel_heard(&mut self) -> wasmtime::Result<bool> {
        let replay = &Guest::workflow(self, "context.is-cancel-heard")?.replay;
        Ok(replay.is_cancel_heard())
    }

    fn shield(&mut self, on: bool) -> wasmtime::Result<()> {
        Guest::workflow(self, "context.shield")?.replay.shield(on);
        Ok(())
    }

    fn set_tag(&mut self, name: String, value: String) -> wasmtime::Result<Result<(), String>> {
        let replay = &mut Guest::workflow(self, "context.set-tag")?.replay;
        let set = replay.set_tag(&name, &value)?;
        self.ask((name.len() + value.len()) as u64)?;
        Ok(set.map_err(|failure| failure.to_json()))
    }
}

//! `onemark:workflow/events`.

use wasmtime::component::Resource;

use crate::sandbox::bindings::onemark::workflow::events::Host;
use crate::sandbox::guest::{Guest, PromiseHandle};

impl Host for Guest {
    fn emit(&mut self, name: String, payload: String) -> wasmtime::Result<Resource<PromiseHandle>> {
        let replay = &mut self.workflow("events.emit")?.replay;
        let promise = replay.emit(&name, &payload)?;
        self.ask((name.len() + payload.len()) as u64)?;
        Ok(Resource::new_own(promise))
    }
}

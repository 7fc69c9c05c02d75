//! `onemark:workflow/timers`.

use wasmtime::component::Resource;

use crate::sandbox::bindings::onemark::workflow::timers::Host;
use crate::sandbox::guest::{Guest, PromiseHandle};

impl Host for Guest {
    fn sleep(&mut self, length: u64) -> wasmtime::Result<Resource<PromiseHandle>> {
        let replay = &mut self.workflow("timers.sleep")?.replay;
        Ok(Resource::new_own(replay.sleep(length)?))
    }

    fn sleep_until(&mut self, at: u64) -> wasmtime::Result<Resource<PromiseHandle>> {
        let replay = &mut self.workflow("timers.sleep-until")?.replay;
        Ok(Resource::new_own(replay.sleep_until(at)?))
    }

    fn limit(&mut self, length: u64) -> wasmtime::Result<Resource<PromiseHandle>> {
        let replay = &mut self.workflow("timers.limit")?.replay;
        Ok(Resource::new_own(replay.limit(length)?))
    }
}

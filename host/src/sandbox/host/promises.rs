//! `onemark:workflow/promises`.

use wasmtime::StoreContextMut;
use wasmtime::component::Resource;

use crate::journal::Waited;
use crate::sandbox::bindings::onemark::workflow::promises::{Host, HostPromise};
use crate::sandbox::guest::{Guest, PromiseHandle};
use crate::sandbox::workflow::Stopped;

impl HostPromise for Guest {
    fn id(&mut self, promise: Resource<PromiseHandle>) -> wasmtime::Result<u32> {
        Ok(promise.rep())
    }

    fn take(&mut self, promise: Resource<PromiseHandle>) -> wasmtime::Result<Result<String, String>> {
        let replay = &mut self.workflow("promise.take")?.replay;
        let outcome = replay.take(promise.rep())?;
        Ok(outcome
            .map(|value| value.to_string())
            .map_err(|failure| failure.to_string()))
    }

    fn abandon(&mut self, promise: Resource<PromiseHandle>) -> wasmtime::Result<()> {
        let replay = &mut self.workflow("promise.abandon")?.replay;
        replay.abandon(promise.rep());
        Ok(())
    }

    fn drop(&mut self, promise: Resource<PromiseHandle>) -> wasmtime::Result<()> {
        self.workflow("promise.drop")?.replay.release(promise.rep());
        Ok(())
    }
}

impl Host for Guest {
    /// Replaced in the linker by [`wait`], which needs the whole store.
    async fn wait(&mut self) -> wasmtime::Result<u32> {
        self.workflow("wait")?;
        unreachable!("the linker answers `wait` with another function")
    }
}

/// Answers from the journal as far as it goes, then asks the owner. Gives fuel again when the guest observed
/// something or asked for something since it last waited, so that a loop that does neither runs out.
pub async fn wait(mut store: StoreContextMut<'_, Guest>) -> wasmtime::Result<u32> {
    let workflow = store.data_mut().workflow("wait")?;
    let promise = loop {
        match workflow.replay.wait()? {
            Waited::Ready(promise) => break promise,
            Waited::Suspended => {
                let advanced = workflow.owner.advance(&mut workflow.replay).await;
                advanced.map_err(Stopped)?;
            }
        }
    };
    let silent = workflow.replica.is_some() || workflow.replay.is_replaying();
    workflow.asked = 0;
    workflow.time.set(workflow.replay.now());
    let progress = workflow.replay.progress();
    if std::mem::replace(&mut workflow.progress, progress) != progress {
        let fuel = workflow.fuel;
        let left = store.get_fuel()?;
        store.data_mut().workflow("wait")?.burnt += fuel.saturating_sub(left);
        store.set_fuel(fuel)?;
    }
    let logs = store.data().logs.clone();
    logs.set_silent(silent);
    logs.set_position(store.data_mut().workflow("wait")?.replay.horizon());
    Ok(promise)
}

//! `onemark:workflow/events`.

use wasmtime::component::Resource;

use crate::ids::{Digest, EventName, IdempotencyKey};
use crate::journal::{Failure, FailureKind};
use crate::sandbox::bindings::onemark::workflow::events::Host;
use crate::sandbox::guest::{Guest, PromiseHandle, StepGuest};
use crate::sandbox::workflow::Stopped;

impl Host for Guest {
    fn emit(&mut self, name: String, payload: String) -> wasmtime::Result<Resource<PromiseHandle>> {
        let replay = &mut self.workflow("events.emit")?.replay;
        let promise = replay.emit(&name, &payload)?;
        self.ask((name.len() + payload.len()) as u64)?;
        Ok(Resource::new_own(promise))
    }

    async fn emit_from_step(
        &mut self,
        name: String,
        payload: String,
    ) -> wasmtime::Result<Result<String, String>> {
        let step = self.step("events.emit_from_step")?;
        let emitted = match next_event(step, name) {
            Ok((event, id)) => {
                let emitted = step.effects.emit(&event, id, payload.into()).await;
                emitted.map_err(Stopped)?.inspect(|_| {
                    *step.emitted.entry(event).or_default() += 1;
                })
            }
            Err(failure) => Err(failure),
        };
        Ok(emitted.map_err(|failure| failure.to_json()))
    }
}

/// The event and its id, the same in every attempt that emits the same events in the same order.
fn next_event(step: &StepGuest, name: String) -> Result<(EventName, IdempotencyKey), Failure> {
    let invalid = |error: String| Failure::new(FailureKind::Invalid, error);
    let event = EventName::new(name).map_err(|error| invalid(error.to_string()))?;
    let number = step.emitted.get(&event).copied().unwrap_or(0);
    // A digest, since a key may be as long as an id.
    let key = Digest::of(&*step.idempotency_key);
    let id = IdempotencyKey::new(format!("step:{key}:{number}"));
    Ok((event, id.map_err(|error| invalid(error.to_string()))?))
}

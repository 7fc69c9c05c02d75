//! `onemark:workflow/attempt`.

use crate::sandbox::bindings::onemark::workflow::attempt::Host;
use crate::sandbox::guest::Guest;

impl Host for Guest {
    fn number(&mut self) -> wasmtime::Result<u32> {
        Ok(self.step("attempt.number")?.attempt)
    }

    fn idempotency_key(&mut self) -> wasmtime::Result<String> {
        Ok(self.step("attempt.idempotency-key")?.idempotency_key.clone())
    }
}

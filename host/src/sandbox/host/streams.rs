//! `onemark:workflow/streams`.

use crate::journal::check_chunk;
use crate::sandbox::bindings::onemark::workflow::streams::Host;
use crate::sandbox::guest::Guest;
use crate::sandbox::workflow::Stopped;

impl Host for Guest {
    async fn write(&mut self, name: String, chunk: String) -> wasmtime::Result<Result<(), String>> {
        let written = match self.attempt() {
            Some(step) => match check_chunk(&name, &chunk) {
                Ok(stream) => {
                    let number = step.written.get(&stream).copied().unwrap_or(0);
                    let written = step.effects.write(&stream, number, chunk.into()).await;
                    let written = written.map_err(Stopped)?;
                    if written.is_ok() {
                        step.written.insert(stream, number + 1);
                    }
                    written
                }
                Err(failure) => Err(failure),
            },
            None => {
                let written = self.workflow("streams.write")?.replay.write(&name, &chunk);
                self.ask((name.len() + chunk.len()) as u64)?;
                written
            }
        };
        Ok(written.map_err(|failure| failure.to_json()))
    }
}

//! `onemark:workflow/logs`.

use crate::sandbox::bindings::onemark::workflow::logs::{Host, Level};
use crate::sandbox::guest::Guest;
use crate::sandbox::logs::LogLevel;

/// As much of a panic's message is kept as the reason of what it ended; the log has all of it.
const MAX_PANIC_BYTES: usize = 16 << 10;

impl Host for Guest {
    fn log(&mut self, level: Level, message: String) -> wasmtime::Result<()> {
        let level = match level {
            Level::Debug => LogLevel::Debug,
            Level::Info => LogLevel::Info,
            Level::Warn => LogLevel::Warn,
            Level::Error => LogLevel::Error,
        };
        if message.starts_with("panicked at ") {
            let end = message.floor_char_boundary(MAX_PANIC_BYTES);
            self.panic = Some(message[..end].to_owned());
        }
        if !self.silent() {
            self.logs.log(level, &message);
        }
        Ok(())
    }
}

//! `onemark:workflow/logs`.

use crate::journal::LogLevel;
use crate::sandbox::bindings::onemark::workflow::logs::{Host, Level};
use crate::sandbox::guest::Guest;

impl Host for Guest {
    fn log(&mut self, level: Level, message: String) -> wasmtime::Result<()> {
        let level = match level {
            Level::Debug => LogLevel::Debug,
            Level::Info => LogLevel::Info,
            Level::Warn => LogLevel::Warn,
            Level::Error => LogLevel::Error,
        };
        self.logs.write(level, &message);
        Ok(())
    }
}

//! Lines for the run's log, in workflows and in steps. While a journal is replayed they are silent.
//! The log is for people, not for data: lines are cut after 8 KiB, and of more than 10,000 lines or 4 MiB that
//! an activation or an attempt writes the rest is dropped and counted.
//!
//! ```
//! use onemark_sdk::log;
//!
//! log::info!("charged {} cents", 1_200);
//! log::log(log::Level::Warn, "the bank is slow");
//! ```

#[doc(inline)]
pub use crate::{__debug as debug, __error as error, __info as info, __warn as warn};

/// How important a line is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// Writes a line. In a native unit test it goes to stderr.
#[cfg(target_family = "wasm")]
pub fn log(level: Level, message: impl std::fmt::Display) {
    use crate::bindings::onemark::workflow::logs;
    let level = match level {
        Level::Debug => logs::Level::Debug,
        Level::Info => logs::Level::Info,
        Level::Warn => logs::Level::Warn,
        Level::Error => logs::Level::Error,
    };
    logs::log(level, &message.to_string());
}

/// Writes a line. In a native unit test it goes to stderr.
#[cfg(not(target_family = "wasm"))]
pub fn log(level: Level, message: impl std::fmt::Display) {
    eprintln!("{level:?}: {message}");
}

/// Logs a line for whoever debugs this workflow; takes what `format!` takes.
#[doc(hidden)]
#[macro_export]
macro_rules! __debug {
    ($($message:tt)*) => { $crate::log::log($crate::log::Level::Debug, ::std::format_args!($($message)*)) };
}

/// Logs what happened; takes what `format!` takes.
#[doc(hidden)]
#[macro_export]
macro_rules! __info {
    ($($message:tt)*) => { $crate::log::log($crate::log::Level::Info, ::std::format_args!($($message)*)) };
}

/// Logs what somebody should look at; takes what `format!` takes.
#[doc(hidden)]
#[macro_export]
macro_rules! __warn {
    ($($message:tt)*) => { $crate::log::log($crate::log::Level::Warn, ::std::format_args!($($message)*)) };
}

/// Logs what went wrong; takes what `format!` takes.
#[doc(hidden)]
#[macro_export]
macro_rules! __error {
    ($($message:tt)*) => { $crate::log::log($crate::log::Level::Error, ::std::format_args!($($message)*)) };
}

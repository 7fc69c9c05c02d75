//! A run's log: what its guests say of themselves, in rows beside the journal. A replay reads nothing of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::entry::{CallNo, Seq, Timestamp};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

impl LogLevel {
    /// The least first.
    pub const ALL: [Self; 4] = [Self::Debug, Self::Info, Self::Warn, Self::Error];

    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

impl std::fmt::Display for LogLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for LogLevel {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        let level = Self::ALL.into_iter().find(|level| level.name() == text);
        level.ok_or(UnknownLevel)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a level is `debug`, `info`, `warn` or `error`")]
pub struct UnknownLevel;

/// A line of a run's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    pub at: Timestamp,
    pub level: LogLevel,
    /// The call of the step that wrote it; `None` for workflow code.
    pub call: Option<CallNo>,
    /// The step's attempt, from 1; 0 for workflow code.
    pub attempt: u32,
    /// Where the run was: of workflow code the entry that its guest had observed last, of a step the run's last entry.
    pub seq: Seq,
    /// Tells apart what was written at one `seq` by workflow code, and in one attempt by a step. With what is above it
    /// names the line, which is kept once.
    pub number: u64,
    pub text: Arc<str>,
}

/// Lines on their way to the store, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogBatch {
    pub lines: Vec<LogLine>,
    /// How many more there were that did not get this far.
    pub dropped: u64,
    /// How far workflow code has come in writing, also what was dropped.
    pub mark: Option<LogMark>,
}

/// A line of workflow code: its `seq`, and its number there.
pub type LogMark = (Seq, u64);

impl LogBatch {
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.dropped == 0
    }
}

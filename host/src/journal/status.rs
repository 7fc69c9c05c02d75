//! The one place that makes a status from an entry.

use serde::{Deserialize, Serialize};

use super::entry::Event;

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Admitted; no guest code has left an entry yet.
    Pending,
    /// Has something to do.
    Running,
    /// The guest has observed everything and waits for a timer, a retry or a payload. A mark that is set
    /// with the owner's commit and falls with the next entry.
    Suspended,
    /// Cannot go on without a person. A mark beside the journal, which stays as it is.
    Blocked,
    Completed,
    Failed,
    Cancelled,
    Continued,
}

/// An entry that cannot follow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry `{event}` cannot follow when the run is {}", .status.map_or("not started", RunStatus::as_str))]
pub struct IllegalTransition {
    pub status: Option<RunStatus>,
    pub event: &'static str,
}

impl RunStatus {
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Running,
        Self::Suspended,
        Self::Blocked,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Continued,
    ];

    /// The status after `event`. `before` is `None` for entry 0.
    pub fn next(before: Option<Self>, event: &Event) -> Result<Self, IllegalTransition> {
        let illegal = || IllegalTransition {
            status: before,
            event: event.name(),
        };
        match (before, event) {
            (None, Event::Started(_)) => Ok(Self::Pending),
            (None, _) | (Some(_), Event::Started(_)) => Err(illegal()),
            // A token can be freed after the end; nothing else may follow it.
            (Some(ended), Event::HookDisposed { call: None, .. }) if ended.is_terminal() => Ok(ended),
            (Some(ended), _) if ended.is_terminal() => Err(illegal()),
            (Some(_), Event::Continued { .. }) => Ok(Self::Continued),
            (Some(_), Event::Completed) => Ok(Self::Completed),
            (Some(_), Event::Failed) => Ok(Self::Failed),
            (Some(_), Event::Cancelled | Event::Terminated) => Ok(Self::Cancelled),
            // What comes from outside does not mean that the guest ran.
            (
                Some(Self::Pending),
                Event::PayloadReceived { .. }
                | Event::HookClosed { call: None, .. }
                | Event::HookDisposed { call: None, .. }
                | Event::CancelRequested { .. }
                | Event::ChildEnded { .. }
                | Event::PredecessorsEnded
                | Event::Upgraded { .. }
                | Event::Forked(_),
            ) => Ok(Self::Pending),
            (Some(_), _) => Ok(Self::Running),
        }
    }

    /// Ended: no entry but freed tokens follows.
    pub fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Failed | Self::Cancelled | Self::Continued
        )
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::Blocked => "blocked",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Continued => "continued",
        }
    }
}

impl std::fmt::Display for RunStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// A word that is no status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a status; use pending, running, suspended, blocked, completed, failed, cancelled or continued"
)]
pub struct UnknownStatus(String);

impl std::str::FromStr for RunStatus {
    type Err = UnknownStatus;
    fn from_str(text: &str) -> Result<Self, UnknownStatus> {
        Self::ALL
            .into_iter()
            .find(|status| status.as_str() == text)
            .ok_or_else(|| UnknownStatus(text.to_owned()))
    }
}

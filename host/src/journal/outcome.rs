//! The documents in which attempts and runs report that something went wrong.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Why a promise or a run failed; the failure document of the WIT.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub kind: FailureKind,
    pub message: String,
    /// Attempts made, for a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The serialised error value that the guest returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
    /// What lies behind it, nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// Nobody knows whether the step took effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outcome_unknown: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Guest code returned an error.
    Error,
    /// The attempt took longer than its step allows.
    Timeout,
    /// The attempt panicked or trapped.
    Trap,
    OutOfFuel,
    OutOfMemory,
    /// The attempt was cut off with its host.
    Interrupted,
    /// An input or result is over the limit.
    TooLarge,
    /// Another run owns the token.
    HookConflict,
    Cancelled,
    /// A kind that a newer guest or host wrote.
    #[serde(other)]
    Other,
}

impl Failure {
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            attempts: None,
            error: None,
            causes: Vec::new(),
            outcome_unknown: false,
        }
    }

    /// The document as it crosses the boundary and stands in bodies.
    pub fn to_json(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

/// What `run-step` reports when it fails.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct AttemptError {
    pub message: String,
    #[serde(default)]
    pub error: Option<Value>,
    #[serde(default)]
    pub causes: Vec<String>,
    /// Whether another attempt may help.
    #[serde(default = "yes")]
    pub retry: bool,
    /// How long to wait before it, instead of the backoff.
    #[serde(default)]
    pub retry_after_ms: Option<u64>,
    /// Nobody knows whether the attempt took effect; no other attempt follows by itself.
    #[serde(default)]
    pub outcome_unknown: bool,
}

fn yes() -> bool {
    true
}

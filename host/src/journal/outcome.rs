//! The documents in which attempts and runs report that something went wrong.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::options::Limits;

/// Longest message that a guest's end leaves behind, in bytes. The rest of it helps nobody, and every attempt leaves
/// one.
pub const MAX_MESSAGE_BYTES: usize = 4 << 10;

/// The text, or the first `limit` bytes of it and a note of what was cut.
pub fn shortened(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit {
        return text.into();
    }
    let kept = &text[..text.floor_char_boundary(limit)];
    format!("{kept}… ({} bytes more)", text.len() - kept.len()).into()
}

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
    /// What was asked for cannot be: a name that is none, an option over its limit.
    Invalid,
    /// A stream or its run holds as much output as it may.
    StreamFull,
    /// No blob has this digest.
    UnknownBlob,
    /// A blob is not as it was written.
    CorruptBlob,
    /// The host's disk does not take or give a blob.
    StorageFailed,
    /// Another run owns the token.
    HookConflict,
    /// The id of a child was used for another run.
    RunIdConflict,
    /// No such workflow is deployed.
    UnknownWorkflow,
    /// A child belongs to the run that this one was forked from.
    NotForked,
    Cancelled,
    /// A kind that a newer guest or host wrote.
    #[serde(other)]
    Other,
}

impl Failure {
    /// A failure with this message, shortened to [`MAX_MESSAGE_BYTES`].
    pub fn new(kind: FailureKind, message: impl AsRef<str>) -> Self {
        Self {
            kind,
            message: shortened(message.as_ref(), MAX_MESSAGE_BYTES).into_owned(),
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

/// What a run keeps of what its workflow returned: that, or a failure that says why it cannot be kept. Live and in
/// replay, so that both come to the same.
///
/// # Errors
/// A failure is kept as one.
pub fn kept(outcome: Result<String, String>, limits: &Limits) -> Result<String, String> {
    let refused = |kind, text: String| Err(Failure::new(kind, text).to_json());
    let (Ok(text) | Err(text)) = &outcome;
    if text.len() as u64 > limits.body_bytes {
        let text = format!(
            "the workflow returned {} bytes; the limit is {}",
            text.len(),
            limits.body_bytes
        );
        return refused(FailureKind::TooLarge, text);
    }
    match outcome {
        Ok(value) => match checked_json(&value) {
            Ok(()) => Ok(value),
            Err(error) => {
                let text = format!("the workflow returned what is no JSON: {error}");
                refused(FailureKind::Error, text)
            }
        },
        Err(document) => match serde_json::from_str::<Value>(&document) {
            Ok(_) => Err(document),
            Err(_) => refused(FailureKind::Error, document),
        },
    }
}

/// Whether a failure document is of that kind.
pub fn is_of_kind(document: &str, kind: FailureKind) -> bool {
    #[derive(Deserialize)]
    struct Document {
        kind: FailureKind,
    }
    serde_json::from_str::<Document>(document).is_ok_and(|document| document.kind == kind)
}

/// The input with which a workflow wants to go on as another run, when its error document says that.
pub fn continued_with(document: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Document {
        kind: String,
        input: Option<Box<RawValue>>,
    }
    let document: Document = serde_json::from_str(document).ok()?;
    let input = document.input.filter(|_| document.kind == "continue_as_new")?;
    Some(input.get().to_owned())
}

/// A failure that says why a run could not go on as another one with this input.
pub fn not_continued(input: &str, why: impl std::fmt::Display) -> Failure {
    let input: Value = serde_json::from_str(input).unwrap_or_default();
    Failure {
        error: Some(serde_json::json!({ "continue_as_new": input })),
        ..Failure::new(
            FailureKind::Invalid,
            format!("the run cannot go on as another one: {why}"),
        )
    }
}

/// Whether this is the outcome of a run that could not go on with that input.
pub fn is_not_continued(outcome: &str, input: &str) -> bool {
    let read = |text| serde_json::from_str::<Value>(text).unwrap_or_default();
    read(outcome)["error"].get("continue_as_new") == Some(&read(input))
}

/// Deepest nesting that JSON from guests may have: what readers of JSON accept by default.
const MAX_DEPTH: usize = 127;

/// Whether text is JSON that everybody can read.
///
/// # Errors
/// When it is no JSON, or is nested too deep.
pub fn checked_json(text: &str) -> Result<(), String> {
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| error.to_string())?;
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth -= 1,
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} deep"));
        }
    }
    Ok(())
}

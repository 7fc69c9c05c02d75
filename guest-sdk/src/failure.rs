//! Why a durable operation failed.

use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::ops::Deref;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::step_error::Retry;

/// What kind of failure it was. `#[non_exhaustive]`: hosts learn new kinds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureKind {
    /// An attempt was cut off at the step's timeout, or [`timeout`](crate::timeout) passed.
    Timeout,
    /// The step panicked, or trapped otherwise.
    Trap,
    /// The step computed more than its fuel allows.
    OutOfFuel,
    /// The step asked for more memory than it may have.
    OutOfMemory,
    /// The attempt was cut off with its host, and the step says to run at most once.
    Interrupted,
    /// The input or the result is larger than the host stores.
    TooLarge,
    /// What was asked for cannot be, such as an idempotency key of more than 255 bytes.
    Invalid,
    /// The run has written as much output as it may.
    StreamFull,
    /// The host has no blob of this digest.
    UnknownBlob,
    /// A blob is not as it was written.
    CorruptBlob,
    /// The host's disk does not take or give a blob.
    StorageFailed,
    /// Another run owns the hook's token.
    HookConflict,
    /// The id of a child was used for another run.
    RunIdConflict,
    /// No such workflow is deployed.
    UnknownWorkflow,
    /// The run is a fork, and the child belongs to the run that it was forked from.
    NotForked,
    /// The run was asked to cancel.
    Cancelled,
    /// A durable call outside of workflow code.
    NotInStep,
    /// What only steps can do, in workflow code.
    NotInWorkflow,
    /// A value that JSON cannot hold, such as a float that is not a number.
    NotJson,
    /// JSON that does not fit the type it is read into.
    TypeMismatch,
    /// The step returned an error, or a kind that this version does not know.
    #[serde(other)]
    Error,
}

impl FailureKind {
    /// The kind's name in journals and failure documents, e.g. `out_of_fuel`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Trap => "trap",
            Self::OutOfFuel => "out_of_fuel",
            Self::OutOfMemory => "out_of_memory",
            Self::Interrupted => "interrupted",
            Self::TooLarge => "too_large",
            Self::Invalid => "invalid",
            Self::StreamFull => "stream_full",
            Self::UnknownBlob => "unknown_blob",
            Self::CorruptBlob => "corrupt_blob",
            Self::StorageFailed => "storage_failed",
            Self::HookConflict => "hook_conflict",
            Self::RunIdConflict => "run_id_conflict",
            Self::UnknownWorkflow => "unknown_workflow",
            Self::NotForked => "not_forked",
            Self::Cancelled => "cancelled",
            Self::NotInStep => "not_in_step",
            Self::NotInWorkflow => "not_in_workflow",
            Self::NotJson => "not_json",
            Self::TypeMismatch => "type_mismatch",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a step, a sleep or a wait did not succeed.
///
/// For a step, `E` is its error type, and [`error`](Self::error) holds the value that its last attempt
/// returned. Everything else is in [`FailureInfo`], to which this dereferences: `failure.kind`,
/// `failure.message`, `failure.attempts`, `failure.causes`, `failure.outcome_unknown`.
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # #[derive(Serialize, Deserialize, StepError)]
/// # enum ChargeError { #[fatal] Declined(String), #[retry] Busy }
/// # #[step] async fn charge(order: &str) -> Result<String, ChargeError> { Ok(order.into()) }
/// # async fn example(order: &str) -> WorkflowResult<()> {
/// match charge(order).await {
///     Ok(charge_id) => log::info!("charged: {charge_id}"),
///     Err(Failure { error: Some(ChargeError::Declined(why)), .. }) => log::warn!("declined: {why}"),
///     Err(failure) if failure.kind == FailureKind::Timeout => log::warn!("the bank is slow"),
///     Err(failure) => return Err(failure.into()),
/// }
/// # Ok(()) }
/// ```
pub struct Failure<E = Infallible> {
    /// The error that the step returned. `None` for every kind but [`FailureKind::Error`], and when the
    /// saved error does not fit `E` any more.
    pub error: Option<E>,
    info: Box<FailureInfo>,
}

/// A [`Failure`] without the type of its error.
///
/// It is the [`source`](Error::source) of every `Failure`, which is how a
/// [`WorkflowError`](crate::WorkflowError) keeps kind and error value of a failure that passed through
/// other error types.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FailureInfo {
    /// What failed: the name of the step, or of the durable call.
    pub operation: String,
    pub kind: FailureKind,
    /// What the error said.
    pub message: String,
    /// How many attempts were made, where attempts are made.
    pub attempts: Option<u32>,
    /// The error value as it is in the journal.
    pub value: Option<serde_json::Value>,
    /// What led to it, nearest first.
    pub causes: Vec<String>,
    /// Nobody knows whether the step took effect.
    pub outcome_unknown: bool,
    /// What a step says that fails because of this.
    pub(crate) retry: Retry,
}

/// The failure document of the host interface.
#[derive(Deserialize)]
struct Document {
    kind: FailureKind,
    #[serde(default)]
    message: String,
    attempts: Option<u32>,
    error: Option<serde_json::Value>,
    #[serde(default)]
    causes: Vec<String>,
    #[serde(default)]
    outcome_unknown: bool,
}

impl<E> Failure<E> {
    /// A failure that the host did not report: the SDK found it.
    pub(crate) fn local(operation: &str, kind: FailureKind, message: impl Into<String>) -> Self {
        let info = FailureInfo {
            operation: operation.into(),
            kind,
            message: message.into(),
            attempts: None,
            value: None,
            causes: Vec::new(),
            outcome_unknown: false,
            // Trying again does not mend a mistake in the program.
            retry: Retry::Never,
        };
        Self {
            error: None,
            info: Box::new(info),
        }
    }

    /// The failure of a step that was called as a plain function.
    pub(crate) fn returned(operation: &str, error: E, message: String, retry: Retry) -> Self {
        let mut failure = Self::local(operation, FailureKind::Error, message);
        failure.info.attempts = Some(1);
        failure.info.outcome_unknown = retry == Retry::Unknown;
        failure.info.retry = retry;
        failure.error = Some(error);
        failure
    }

    pub(crate) fn from_document(
        operation: &str,
        document: &str,
        decode: impl FnOnce(&serde_json::Value) -> Option<E>,
    ) -> Self {
        match serde_json::from_str::<Document>(document) {
            Ok(document) => {
                let info = FailureInfo {
                    operation: operation.into(),
                    kind: document.kind,
                    message: document.message,
                    attempts: document.attempts,
                    value: document.error,
                    causes: document.causes,
                    outcome_unknown: document.outcome_unknown,
                    retry: Retry::Backoff,
                };
                Self {
                    error: info.value.as_ref().and_then(decode),
                    info: Box::new(info),
                }
            }
            Err(error) => Self::local(
                operation,
                FailureKind::Error,
                format!("the host reported a failure that this SDK cannot read ({error}): {document}"),
            ),
        }
    }
}

impl Failure {
    pub(crate) fn untyped(operation: &str, document: &str) -> Self {
        Self::from_document(operation, document, |_| None)
    }
}

/// Reads a saved error value into the step's error type.
pub(crate) fn decode_error<E: DeserializeOwned>(value: &serde_json::Value) -> Option<E> {
    E::deserialize(value).ok()
}

impl<E> Deref for Failure<E> {
    type Target = FailureInfo;

    fn deref(&self) -> &FailureInfo {
        &self.info
    }
}

impl<E> fmt::Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` failed", self.operation)?;
        if let Some(attempts) = self.attempts.filter(|&n| n > 1) {
            write!(f, " after {attempts} attempts")?;
        }
        write!(f, ": {}", self.message)
    }
}

// By hand, since `E` need not be `Debug`: its value is in `info`.
impl<E> fmt::Debug for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.info, f)
    }
}

impl<E> Error for Failure<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.info)
    }
}

impl fmt::Display for FailureInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for FailureInfo {}

/// The failure behind an error, wherever in its chain it is.
pub(crate) fn failure_in<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a FailureInfo> {
    chain(error).find_map(|error| error.downcast_ref())
}

/// An error and its sources, outermost first.
pub(crate) fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_becomes_a_typed_failure() {
        let document =
            r#"{"kind":"error","message":"declined","attempts":4,"error":"no funds","causes":["a"],"new":1}"#;
        let failure = Failure::<String>::from_document("charge", document, decode_error);
        assert_eq!(failure.error.as_deref(), Some("no funds"));
        assert_eq!(failure.kind, FailureKind::Error);
        assert_eq!(failure.attempts, Some(4));
        assert_eq!(failure.causes, ["a"]);
        assert!(!failure.outcome_unknown);
        assert_eq!(failure.to_string(), "`charge` failed after 4 attempts: declined");
    }

    #[test]
    fn unknown_kinds_and_error_values_that_do_not_fit_are_kept() {
        let document = r#"{"kind":"of_tomorrow","message":"m","error":{"a":1}}"#;
        let failure = Failure::<String>::from_document("charge", document, decode_error);
        assert_eq!(failure.kind, FailureKind::Error);
        assert!(failure.error.is_none());
        assert_eq!(failure.value, Some(serde_json::json!({"a": 1})));
    }

    #[test]
    fn a_document_that_cannot_be_read_is_still_a_failure() {
        let failure = Failure::untyped("sleep", "nonsense");
        assert!(failure.message.contains("nonsense"), "{failure}");
    }
}

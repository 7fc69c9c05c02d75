//! What a workflow returns, and what it knows of its run.

use std::error::Error;
use std::fmt;

use serde::Serialize;

use crate::bindings::onemark::workflow::context;
use crate::failure::{Failure, FailureKind, chain, failure_in};
use crate::json::to_json;
use crate::sandbox::{self, Sandbox};

/// What a workflow function returns.
pub type WorkflowResult<T> = Result<T, WorkflowError>;

/// Why a workflow failed. `?` makes one from any error, and from text.
///
/// It keeps the error, so kind and error value of a [`Failure`](crate::Failure) in its chain reach the
/// run's outcome: a workflow that passes the failure `cancelled` on ends as `cancelled`.
///
/// ```
/// # use onemark_sdk::prelude::*;
/// fn check(amount: &str) -> WorkflowResult<u64> {
///     let amount: u64 = amount.parse()?;
///     if amount == 0 {
///         return Err(WorkflowError::new("nothing to pay"));
///     }
///     Ok(amount)
/// }
/// assert_eq!(check("0").unwrap_err().to_string(), "nothing to pay");
/// ```
pub struct WorkflowError(Box<dyn Error + Send + Sync>);

impl WorkflowError {
    /// An error with this message.
    pub fn new(message: impl fmt::Display) -> Self {
        Self(message.to_string().into())
    }

    /// Whether it is no failure but the run's wish to go on as another one.
    pub(crate) fn is_continuation(&self) -> bool {
        self.0.is::<ContinueAsNew>()
    }

    /// The kind of the failure that caused it, if one did.
    pub fn kind(&self) -> Option<FailureKind> {
        failure_in(&*self.0).map(|failure| failure.kind)
    }

    /// The error that `?` took, if it was an `E`.
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }

    /// The error document of the host interface.
    pub(crate) fn document(&self) -> String {
        #[derive(Serialize)]
        struct Document<'a> {
            message: String,
            #[serde(skip_serializing_if = "Option::is_none")]
            kind: Option<&'static str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            error: Option<&'a serde_json::Value>,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            causes: Vec<String>,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            outcome_unknown: bool,
        }
        if let Some(ContinueAsNew { input }) = self.0.downcast_ref() {
            return format!(r#"{{"kind":"continue_as_new","message":"{CONTINUES}","input":{input}}}"#);
        }
        let failure = failure_in(&*self.0);
        let document = Document {
            message: self.to_string(),
            kind: failure.map(|failure| failure.kind.as_str()),
            error: failure.and_then(|failure| failure.value.as_ref()),
            causes: self.causes(),
            outcome_unknown: failure.is_some_and(|failure| failure.outcome_unknown),
        };
        serde_json::to_string(&document).expect("strings and JSON values are JSON")
    }

    fn causes(&self) -> Vec<String> {
        let mut causes = Vec::new();
        for cause in chain(&*self.0).skip(1) {
            match cause.downcast_ref::<crate::FailureInfo>() {
                // Its message is part of the message of the `Failure` before it.
                Some(failure) => causes.extend(failure.causes.iter().cloned()),
                None => causes.push(cause.to_string()),
            }
        }
        causes
    }
}

const CONTINUES: &str = "the run goes on as a new one";

#[derive(Debug)]
struct ContinueAsNew {
    /// JSON.
    input: String,
}

impl fmt::Display for ContinueAsNew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CONTINUES)
    }
}

impl Error for ContinueAsNew {}

/// Ends this run and goes on as a new one of the same workflow, with an empty journal and this input: for workflows
/// that never end. Return it as the error.
///
/// In one step the new run is there, with the tokens of this one and how long they stay taken, what was delivered and
/// not read, a request to cancel that this run has not seen, and whoever awaits this run as a child or by its result.
/// Hooks that are closed stay behind. Steps that are at work are given up; children are treated as at any end.
///
/// A run that has done nothing cannot go on as another one: it would do so for ever. It fails.
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # use onemark_sdk::continue_as_new;
/// #[workflow(token = "counter:{name}", hook = u64)]
/// async fn counter(name: String, total: u64) -> WorkflowResult<u64> {
///     let mut counts = start_hook::<u64>()?;
///     let mut total = total;
///     for _ in 0..1_000 {
///         match counts.next().await? {
///             Some(count) => total += count,
///             None => return Ok(total),
///         }
///     }
///     Err(continue_as_new(serde_json::json!({ "name": name, "total": total })))
/// }
/// # fn main() {}
/// ```
pub fn continue_as_new(input: impl Serialize) -> WorkflowError {
    match to_json(&input) {
        Ok(input) => ContinueAsNew { input }.into(),
        Err(error) => WorkflowError::new(format!("the input to go on with is not JSON: {error}")),
    }
}

// `WorkflowError` is no `std::error::Error`, or this would overlap with `From<T> for T`.
impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for WorkflowError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl fmt::Display for WorkflowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The message and its causes, as `unwrap` in a test shows them.
impl fmt::Debug for WorkflowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        for cause in self.causes() {
            write!(f, "\n  caused by: {cause}")?;
        }
        Ok(())
    }
}

/// What a `#[workflow]` function returns: `Result<T, E>`, where [`WorkflowError`] can be made from `E`.
#[diagnostic::on_unimplemented(
    message = "a workflow cannot return `{Self}`",
    note = "it returns `WorkflowResult<T>`, where `T` is `Serialize`"
)]
pub trait WorkflowOutput {
    type Value: Serialize;

    fn into_result(self) -> WorkflowResult<Self::Value>;
}

impl<T: Serialize, E: Into<WorkflowError>> WorkflowOutput for Result<T, E> {
    type Value = T;

    fn into_result(self) -> WorkflowResult<T> {
        self.map_err(Into::into)
    }
}

/// The id of this run. In a fork, up to where it goes on by itself: that of the run whose journal it shares.
///
/// # Panics
///
/// Outside of workflow code. Hand the id to a step as an argument.
#[track_caller]
pub fn run_id() -> String {
    assert_in_workflow("run_id");
    context::run_id()
}

/// The name of this workflow.
///
/// # Panics
///
/// As [`run_id`].
#[track_caller]
pub fn workflow_name() -> String {
    assert_in_workflow("workflow_name");
    context::workflow()
}

/// Gives this run a tag, by which lists of runs find it, or changes its value. It is saved with the workflow's next
/// commit, which comes when the workflow waits. Setting the value that the run has does nothing.
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # async fn example() -> WorkflowResult<()> {
/// set_tag("state", "paid")?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// `invalid` when name or value is empty, longer than 255 bytes or holds a control character, when the name holds a
/// `=`, or when the run would have more than 32 tags; `not_in_step` in a step.
pub fn set_tag(name: &str, value: &str) -> Result<(), Failure> {
    sandbox::require_workflow("set_tag", "set it in the workflow, around the step")?;
    context::set_tag(name, value).map_err(|document| Failure::untyped("set_tag", &document))
}

#[track_caller]
fn assert_in_workflow(call: &str) {
    assert!(
        sandbox::current() == Sandbox::Workflow,
        "`{call}` works in workflow code only; hand its value to a step as an argument"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Failure, decode_error};
    use serde_json::{Value, json};

    fn document(error: &WorkflowError) -> Value {
        serde_json::from_str(&error.document()).unwrap()
    }

    fn declined() -> Failure<String> {
        let document = json!({
            "kind": "error", "message": "declined", "attempts": 4, "error": "no funds", "causes": ["bank"]
        });
        Failure::from_document("charge", &document.to_string(), decode_error)
    }

    #[test]
    fn a_failure_keeps_kind_value_and_causes() {
        assert_eq!(
            document(&declined().into()),
            json!({
                "message": "`charge` failed after 4 attempts: declined",
                "kind": "error", "error": "no funds", "causes": ["bank"]
            })
        );
    }

    #[test]
    fn a_failure_inside_another_error_keeps_them_too() {
        #[derive(Debug)]
        struct Outer(Failure<String>);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("cannot pay")
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let error = WorkflowError::from(Outer(declined()));
        assert!(error.downcast_ref::<Outer>().is_some());
        assert_eq!(
            document(&error),
            json!({
                "message": "cannot pay", "kind": "error", "error": "no funds",
                "causes": ["`charge` failed after 4 attempts: declined", "bank"]
            })
        );
    }

    #[test]
    fn cancellation_passes_through() {
        let error = WorkflowError::from(Failure::untyped("sleep", r#"{"kind":"cancelled"}"#));
        assert_eq!(error.kind(), Some(FailureKind::Cancelled));
        assert_eq!(document(&error)["kind"], "cancelled");
    }

    #[test]
    fn that_the_outcome_is_unknown_passes_through() {
        let error = WorkflowError::from(Failure::untyped(
            "charge",
            r#"{"kind":"trap","outcome_unknown":true}"#,
        ));
        assert_eq!(document(&error)["outcome_unknown"], true);
    }

    #[test]
    fn text_is_an_error_too() {
        let fail = || -> WorkflowResult<()> { Err("no such order")? };
        assert_eq!(
            document(&fail().unwrap_err()),
            json!({"message": "no such order"})
        );
    }
}

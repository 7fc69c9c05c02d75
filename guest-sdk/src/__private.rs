//! What the code that the macros generate uses. Not public: it changes without notice.

pub use std::borrow::Cow;
use std::fmt::Display;

pub use futures::future::LocalBoxFuture;
pub use inventory;
pub use serde;
use serde::{Serialize, de::DeserializeOwned};
pub use serde_json::Error as JsonError;
use serde_json::json;

use crate::json::{NotJson, to_json};
pub use crate::manifest::{
    Concurrency, HasNoSchema, HasSchema, InputSchema, Outcome, Probe, Schedule, StepDefinition, Webhook,
    WorkflowDefinition, schema_of,
};
use crate::step::{StepBody, StepCall, StepOutput};
pub use crate::step::{StepOptions, Then};
use crate::step_error::{Retry, StepError};
use crate::time::milliseconds;
use crate::workflow::{WorkflowOutput, WorkflowResult};

/// The input of a step: a JSON object keyed by parameter name.
pub struct Input(Result<String, NotJson>);

impl Input {
    #[expect(clippy::new_without_default, reason = "only macros make one")]
    pub fn new() -> Self {
        Self(Ok(String::new()))
    }

    pub fn with<T: Serialize + ?Sized>(self, name: &str, value: &T) -> Self {
        Self(self.0.and_then(|mut object| {
            let value = to_json(value).map_err(|error| error.within(name))?;
            object.push(if object.is_empty() { '{' } else { ',' });
            // A Rust identifier needs no escapes.
            object.extend(["\"", name, "\":", &value]);
            Ok(object)
        }))
    }

    pub fn call<R: StepOutput>(self, name: &'static str, body: StepBody<R>) -> StepCall<R> {
        let input = self.0.map(|mut object| {
            object.push_str(if object.is_empty() { "{}" } else { "}" });
            object
        });
        StepCall::new(name, body, input)
    }
}

pub fn parse<T: DeserializeOwned>(input: &str) -> Result<T, serde_json::Error> {
    serde_json::from_str(input)
}

/// Runs a workflow's body on its input.
pub fn run_workflow<R: WorkflowOutput + 'static>(
    body: Result<LocalBoxFuture<'static, R>, serde_json::Error>,
) -> LocalBoxFuture<'static, Outcome> {
    Box::pin(async {
        let result: WorkflowResult<String> = match body {
            Ok(body) => body.await.into_result().and_then(|value| {
                to_json(&value).map_err(|error| format!("the workflow's result is not JSON: {error}").into())
            }),
            Err(error) => Err(format!("the input does not fit the workflow's parameters: {error}").into()),
        };
        result.map_err(|error| error.document())
    })
}

/// Runs a step's body on its input.
pub fn run_step<R: StepOutput>(
    body: Result<LocalBoxFuture<'static, R>, serde_json::Error>,
) -> LocalBoxFuture<'static, Outcome> {
    Box::pin(async {
        let body = body.map_err(|error| {
            fatal_document(&format!("the input does not fit the step's parameters: {error}"))
        })?;
        step_outcome(body.await.into_result())
    })
}

/// A step's result as it goes to the host.
pub(crate) fn step_outcome<T: Serialize, E: StepError>(result: Result<T, E>) -> Outcome {
    match result {
        Ok(value) => to_json(&value)
            .map_err(|error| fatal_document(&format!("the step's result is not JSON: {error}"))),
        Err(error) => Err(step_error_document(&error)),
    }
}

fn step_error_document<E: StepError>(error: &E) -> String {
    let mut document = json!({ "message": error.message() });
    match error.retry() {
        Retry::Backoff => {}
        Retry::After(wait) => document["retry_after_ms"] = milliseconds(wait).into(),
        Retry::Never => document["retry"] = false.into(),
        Retry::Unknown => document["outcome_unknown"] = true.into(),
    }
    // Checked before it becomes a `Value`, which would turn a float that is no number into `null`.
    match to_json(error).map(|error| serde_json::from_str(&error)) {
        Ok(Ok(value)) => document["error"] = value,
        Ok(Err(error)) => unreadable(&mut document, &error),
        Err(error) => unreadable(&mut document, &error),
    }
    document.to_string()
}

fn unreadable(document: &mut serde_json::Value, error: &dyn std::error::Error) {
    let message = document["message"].as_str().unwrap_or_default();
    document["message"] = format!("{message} (its value is not JSON: {error})").into();
}

/// An error document of a step for which another attempt cannot help.
pub(crate) fn fatal_document(message: &str) -> String {
    json!({ "message": message, "retry": false }).to_string()
}

/// The message of an error: `(&Message(&error)).text()` is its `Display`, or its JSON if it has none (see
/// [`Probe`] for how).
pub struct Message<'a, T>(pub &'a T);

pub trait Displayed {
    fn text(&self) -> String;
}

impl<T: Display> Displayed for Message<'_, T> {
    fn text(&self) -> String {
        self.0.to_string()
    }
}

pub trait Undisplayed {
    fn text(&self) -> String;
}

impl<T: Serialize> Undisplayed for &Message<'_, T> {
    fn text(&self) -> String {
        match serde_json::to_value(self.0) {
            Ok(value) => plain_text(&value),
            Err(error) => format!("an error whose value is not JSON: {error}"),
        }
    }
}

/// JSON as people say it, as far as errors go: `Busy`, `Declined: no funds`.
fn plain_text(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Object(fields) if fields.len() == 1 => fields
            .iter()
            .map(|(name, value)| format!("{name}: {}", plain_text(value)))
            .collect(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StepFailed;
    use std::time::Duration;

    #[test]
    fn inputs_are_objects_by_parameter_name() {
        let input = Input::new().with("a", "x\"y").with("b", &Some(1)).0.unwrap();
        assert_eq!(input, r#"{"a":"x\"y","b":1"#);
        let error = Input::new().with("a", &1).with("b", &f64::NAN).0.unwrap_err();
        assert_eq!(error.to_string(), "b: JSON cannot hold the number NaN");
    }

    #[test]
    fn errors_say_whether_to_try_again() {
        let document = |error: StepFailed| step_error_document(&error);
        assert_eq!(
            document(StepFailed::retry("a")),
            r#"{"error":{"message":"a"},"message":"a"}"#
        );
        assert_eq!(
            document(StepFailed::fatal("a")),
            r#"{"error":{"message":"a"},"message":"a","retry":false}"#
        );
        assert_eq!(
            document(StepFailed::unknown("a")),
            r#"{"error":{"message":"a"},"message":"a","outcome_unknown":true}"#
        );
        assert_eq!(
            document(StepFailed::retry_after("a", Duration::from_secs(2))),
            r#"{"error":{"message":"a"},"message":"a","retry_after_ms":2000}"#
        );
    }

    #[test]
    fn errors_without_display_read_well() {
        assert_eq!(plain_text(&json!("Busy")), "Busy");
        assert_eq!(plain_text(&json!({"Declined": "no funds"})), "Declined: no funds");
        assert_eq!(
            plain_text(&json!({"Refused": {"status": 400, "why": "x"}})),
            r#"Refused: {"status":400,"why":"x"}"#
        );
    }
}

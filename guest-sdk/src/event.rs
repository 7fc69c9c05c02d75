//! Events: what this workflow tells others.

use serde::{Deserialize, Serialize};

use crate::bindings::onemark::workflow::events;
use crate::failure::{Failure, FailureKind};
use crate::json::to_json;
use crate::operation::{Operation, WhenDropped};
use crate::sandbox::{self, Sandbox};

/// Says that something happened: every deployed workflow with `#[workflow(on = "…")]` of this name starts.
///
/// In **workflow code** the event is emitted once, whatever happens to this run: no step around it is needed. In a
/// **step**, also in a closure, it is emitted at once, and once for all attempts: the n-th event of a name stands for the
/// n-th that an earlier attempt emitted, so emit the same in every attempt. In a native unit test it starts nothing.
///
/// `payload` becomes the input of
/// what starts: as it is for a workflow whose sole parameter is named `event`, and else an object keyed by parameter
/// name. Returns what it came to at each workflow, once their runs are admitted; nobody waits for those to end.
///
/// # Errors
///
/// [`FailureKind::Invalid`] when the name is no good (1 to 255 bytes without control characters) or the payload fits
/// none of several workflows, or when an earlier attempt of the step emitted another payload; [`FailureKind::TooLarge`].
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # use onemark_sdk::emit;
/// # async fn example() -> WorkflowResult<()> {
/// emit("order.paid", &serde_json::json!({ "id": "42" })).await?;
/// # Ok(()) }
/// ```
pub async fn emit(name: &str, payload: &impl Serialize) -> Result<Vec<EmittedRun>, Failure> {
    let payload = to_json(payload).map_err(|error| {
        let message = format!("its payload is not JSON: {error}");
        Failure::local(name, FailureKind::NotJson, message)
    })?;
    let emitted = match sandbox::current() {
        Sandbox::None => return Ok(Vec::new()),
        Sandbox::Workflow => Operation::new(events::emit(name, &payload), WhenDropped::Release).await,
        Sandbox::Step => events::emit_from_step(name, &payload),
    };
    let emitted = emitted.map_err(|document| Failure::untyped(name, &document))?;
    let emitted: Emitted = serde_json::from_str(&emitted)
        .map_err(|error| Failure::local(name, FailureKind::TypeMismatch, error.to_string()))?;
    Ok(emitted.parts.into_iter().map(EmittedRun::from).collect())
}

/// What an event came to at one workflow; see [`emit`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EmittedRun {
    /// As `deployment/workflow`.
    pub workflow: String,
    /// The run that was started.
    pub started: Option<String>,
    /// The run that holds the workflow's token, when none was started for that.
    pub owner: Option<String>,
    /// Why the payload does not fit the workflow, when none was started for that.
    pub refused: Option<String>,
}

#[derive(Deserialize)]
struct Emitted {
    parts: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    workflow: String,
    started: Option<Run>,
    conflict: Option<Conflict>,
    refused: Option<Refused>,
}

#[derive(Deserialize)]
struct Run {
    run: String,
}

#[derive(Deserialize)]
struct Conflict {
    owner: Run,
}

#[derive(Deserialize)]
struct Refused {
    message: String,
}

impl From<Part> for EmittedRun {
    fn from(part: Part) -> Self {
        Self {
            workflow: part.workflow,
            started: part.started.map(|run| run.run),
            owner: part.conflict.map(|conflict| conflict.owner.run),
            refused: part.refused.map(|refused| refused.message),
        }
    }
}

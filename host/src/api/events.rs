//! Events: emit.

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::error::Result;
use super::extract::{JsonText, Key, Path};
use crate::engine::{EmitReceipt, EmitRequest, Engine};
use crate::ids::{EventName, HookToken, RunId};
use crate::store::{Owner, Part, PartOutcome};

#[derive(Serialize)]
pub struct EmitView {
    event: EventName,
    /// One for each workflow that waits for the event.
    runs: Vec<PartView>,
}

/// What the event came to at one workflow: exactly one of `run_id`, `conflict` and `refused` tells.
#[derive(Serialize)]
pub struct PartView {
    workflow: String,
    started: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<RunId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    conflict: Option<ConflictView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

#[derive(Serialize)]
struct ConflictView {
    token: HookToken,
    #[serde(flatten)]
    owner: Owner,
}

impl From<EmitReceipt> for EmitView {
    fn from(EmitReceipt { event, parts }: EmitReceipt) -> Self {
        let runs = parts.into_iter().map(PartView::from).collect();
        Self { event, runs }
    }
}

impl From<Part> for PartView {
    fn from(Part { workflow, outcome }: Part) -> Self {
        let started = matches!(outcome, PartOutcome::Started { .. });
        let (run_id, conflict, refused) = match outcome {
            PartOutcome::Started { run } => (Some(run), None, None),
            PartOutcome::Conflict { token, owner } => (None, Some(ConflictView { token, owner }), None),
            PartOutcome::Refused { message } => (None, None, Some(message)),
        };
        Self {
            workflow,
            started,
            run_id,
            conflict,
            refused,
        }
    }
}

/// `POST /v1/events/{name}`: the body is the payload, `Idempotency-Key` the event's id. Answers after the commit.
pub async fn emit(
    State(engine): State<Engine>,
    Path(name): Path,
    Key(id): Key,
    JsonText(payload): JsonText,
) -> Result<Json<EmitView>> {
    let request = EmitRequest {
        event: EventName::new(name)?,
        payload: payload.into(),
        id,
    };
    Ok(Json(engine.emit(request).await?.into()))
}

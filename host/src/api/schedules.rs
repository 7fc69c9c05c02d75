//! Schedules: look, backfill.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::error::{ApiError, Result};
use super::events::PartView;
use super::extract::{Json as JsonBody, Path};
use super::runs::moment;
use crate::engine::{BackfilledSlot, Engine, ScheduleInfo};
use crate::journal::Timestamp;

#[derive(Serialize)]
pub struct Schedules {
    schedules: Vec<ScheduleInfo>,
}

/// `GET /v1/schedules`
pub async fn list(State(engine): State<Engine>) -> Result<Json<Schedules>> {
    let schedules = engine.schedules().await?;
    Ok(Json(Schedules { schedules }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackfillBody {
    #[serde(default, deserialize_with = "moment")]
    from: Option<Timestamp>,
    #[serde(default, deserialize_with = "moment")]
    to: Option<Timestamp>,
}

#[derive(Serialize)]
pub struct BackfillView {
    slots: Vec<SlotView>,
}

#[derive(Serialize)]
struct SlotView {
    slot: Timestamp,
    /// The slot had its run before this request.
    existing: bool,
    #[serde(flatten)]
    part: PartView,
}

impl From<BackfilledSlot> for SlotView {
    fn from(BackfilledSlot { slot, fresh, part }: BackfilledSlot) -> Self {
        Self {
            slot,
            existing: !fresh,
            part: part.into(),
        }
    }
}

/// `POST /v1/schedules/{name}/backfill`: `{"from", "to"}`, both included.
pub async fn backfill(
    State(engine): State<Engine>,
    Path(name): Path,
    JsonBody(body): JsonBody<BackfillBody>,
) -> Result<Json<BackfillView>> {
    let (Some(from), Some(to)) = (body.from, body.to) else {
        return Err(ApiError::invalid_request("`from` and `to` are needed"));
    };
    let receipt = engine.backfill(&name, from, to).await?;
    let slots = receipt.slots.into_iter().map(SlotView::from).collect();
    Ok(Json(BackfillView { slots }))
}

//! Hooks by their token: look up, deliver, dispose.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::error::Result;
use super::extract::{JsonText, Key, Path, Query};
use super::runs::page_size;
use crate::engine::{DeliverRequest, Engine};
use crate::ids::HookToken;
use crate::journal::{Seq, Timestamp};
use crate::store::{DeliveryReceipt, HookInfo, ReceivedPayload};

/// `GET /v1/hooks/{token}`
pub async fn show(State(engine): State<Engine>, Path(token): Path) -> Result<Json<HookInfo>> {
    Ok(Json(engine.hook(&HookToken::new(token)?).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PayloadsQuery {
    #[serde(default)]
    from: u64,
    limit: Option<usize>,
}

#[derive(Serialize)]
pub struct PayloadPage {
    payloads: Vec<PayloadView>,
    /// Where the next page begins; `null` when there is no payload after these.
    next: Option<u64>,
}

#[derive(Serialize)]
struct PayloadView {
    number: u64,
    seq: Seq,
    at: Timestamp,
    read: bool,
    payload: Option<Box<RawValue>>,
}

impl From<ReceivedPayload> for PayloadView {
    fn from(received: ReceivedPayload) -> Self {
        let ReceivedPayload {
            number,
            seq,
            at,
            read,
            body,
        } = received;
        let payload = RawValue::from_string(body.text_or_null().to_owned()).ok();
        Self {
            number,
            seq,
            at,
            read,
            payload,
        }
    }
}

/// `GET /v1/hooks/{token}/payloads?from=0`: what the hook was given, read or not, in order.
pub async fn payloads(
    State(engine): State<Engine>,
    Path(token): Path,
    Query(query): Query<PayloadsQuery>,
) -> Result<Json<PayloadPage>> {
    let limit = page_size(query.limit)?;
    let mut payloads = engine
        .payloads(&HookToken::new(token)?, query.from, limit + 1)
        .await?;
    let next = payloads.get(limit).map(|payload| payload.number);
    payloads.truncate(limit);
    let payloads = payloads.into_iter().map(PayloadView::from).collect();
    Ok(Json(PayloadPage { payloads, next }))
}

/// `POST /v1/hooks/{token}`: the body is the payload. Answers after the commit; the run reads it in its time.
pub async fn deliver(
    State(engine): State<Engine>,
    Path(token): Path,
    Key(key): Key,
    JsonText(payload): JsonText,
) -> Result<(StatusCode, Json<DeliveryReceipt>)> {
    let token = HookToken::new(token)?;
    let request = DeliverRequest {
        token,
        payload: payload.into(),
        key,
    };
    Ok((StatusCode::ACCEPTED, Json(engine.deliver(request).await?)))
}

/// `DELETE /v1/hooks/{token}`: closes the hook and frees its token at once.
pub async fn dispose(State(engine): State<Engine>, Path(token): Path) -> Result<Json<HookInfo>> {
    Ok(Json(engine.dispose(&HookToken::new(token)?).await?))
}

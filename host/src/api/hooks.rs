//! Hooks by their token: look up, deliver, dispose; and by their URL.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::error::{ApiError, Result};
use super::extract::{JsonText, Key, Path, Query, Submitted};
use super::runs::page_size;
use crate::engine::{DeliverRequest, Engine, Error, Followed, Following};
use crate::ids::{HookToken, RunId, StreamName};
use crate::journal::{HookResponse, RESPONSES, Seq, Timestamp};
use crate::store::{Chunk, DeliveryReceipt, HookInfo, ReceivedPayload};

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

/// How long a caller of a hook's URL waits for the run's answer: less than most of them would.
const RESPONSE_WAIT: Duration = Duration::from_secs(20);

/// What callers of a hook's URL are told. Nothing of the run: they know the URL and no more.
#[derive(Serialize)]
struct Accepted {
    accepted: bool,
}

/// What a run answers to a payload, as it writes it to [`RESPONSES`].
#[derive(Deserialize)]
struct RunResponse {
    seq: Seq,
    status: u16,
    body: Box<RawValue>,
}

/// `POST /hooks/{token}`, the URL of a hook that takes requests: delivers the body, JSON or a form. Answers once the
/// payload is kept, or as the run says where that answers itself; with 202 when it does not in time.
pub async fn receive(
    State(engine): State<Engine>,
    Path(token): Path,
    Key(key): Key,
    submitted: Submitted,
) -> Result<Response> {
    let unknown = |_| ApiError::unknown_hook_url();
    let token = HookToken::new(token).map_err(unknown)?;
    let hook = match engine.hook(&token).await {
        Err(Error::HookNotFound(_)) => return Err(ApiError::unknown_hook_url()),
        found => found?,
    };
    // Other hooks have tokens that can be guessed.
    let webhook = hook.webhook.clone().ok_or_else(ApiError::unknown_hook_url)?;
    let (payload, is_form) = match submitted {
        Submitted::Json(text) => (text, false),
        Submitted::Form(form) => (engine.payload_of(&hook, &form).await?, true),
    };
    let repeated = key.is_some();
    let responses = match webhook.response {
        HookResponse::Manual => Some(responses_of(&engine, &hook.run_id, repeated).await?),
        HookResponse::Automatic => None,
    };
    let request = DeliverRequest {
        token,
        payload: payload.into(),
        key,
    };
    let receipt = match engine.deliver(request).await {
        Ok(receipt) => receipt,
        Err(Error::HookNotFound(_)) => return Err(ApiError::unknown_hook_url()),
        Err(Error::HookEnded { .. }) => return Err(ApiError::hook_url_ended()),
        Err(Error::HookFull { .. }) => return Err(ApiError::hook_url_full()),
        Err(Error::InvalidPayload { what, .. }) if is_form => return Err(ApiError::unfit_form(&what)),
        Err(Error::InvalidPayload { what, .. }) => return Err(ApiError::unfit_payload(what)),
        Err(error) => return Err(error.into()),
    };
    let responded = match responses {
        Some(mut following) => {
            // The one that holds the URL now may be another than was given this.
            if receipt.run_id != hook.run_id {
                following = responses_of(&engine, &receipt.run_id, true).await?;
            }
            let responded = tokio::time::timeout(RESPONSE_WAIT, response_to(receipt.seq, following));
            responded.await.unwrap_or(Ok(None))?
        }
        None => None,
    };
    let Some(RunResponse { status, body, .. }) = responded else {
        let accepted = Json(Accepted { accepted: true });
        return Ok((StatusCode::ACCEPTED, accepted).into_response());
    };
    let status = StatusCode::from_u16(status).ok();
    match status.filter(|status| (200..=599).contains(&status.as_u16())) {
        Some(status) => Ok((status, Json(body)).into_response()),
        None => Err(ApiError::bad_run_response()),
    }
}

/// What the run answers from now on, and to a repeated request what it answered before.
async fn responses_of(engine: &Engine, run: &RunId, repeated: bool) -> Result<Following> {
    let stream = StreamName::new(RESPONSES)?;
    let from = match repeated {
        true => 0,
        false => {
            let streams = engine.streams_of(run).await?;
            let written = streams.into_iter().find(|it| it.name == stream);
            written.map_or(0, |it| it.chunks)
        }
    };
    Ok(engine.follow(run.clone(), stream, from).await?)
}

/// `None` when the run ends without an answer, or this host stops.
async fn response_to(seq: Seq, mut responses: Following) -> Result<Option<RunResponse>> {
    loop {
        let Followed::Chunks(chunks) = responses.next().await? else {
            return Ok(None);
        };
        let read = |chunk: &Chunk| serde_json::from_str::<RunResponse>(&chunk.chunk).ok();
        if let Some(response) = chunks.iter().filter_map(read).find(|it| it.seq == seq) {
            return Ok(Some(response));
        }
    }
}

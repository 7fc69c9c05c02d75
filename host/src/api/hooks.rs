//! Hooks by their token: look up, deliver, dispose.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::error::Result;
use super::extract::{JsonText, Key, Path};
use crate::engine::{DeliverRequest, Engine};
use crate::ids::HookToken;
use crate::store::{DeliveryReceipt, HookInfo};

/// `GET /v1/hooks/{token}`
pub async fn show(State(engine): State<Engine>, Path(token): Path) -> Result<Json<HookInfo>> {
    Ok(Json(engine.hook(&HookToken::new(token)?).await?))
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

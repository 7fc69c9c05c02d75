//! Whether the host lives, and whether it can work.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::error::{ApiError, Result};
use crate::engine::Engine;
use crate::store::RunFilter;

/// `GET /healthz`: the process answers.
pub async fn healthz() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// `GET /readyz`: the database can be read, and nothing has ended the engine.
pub async fn readyz(State(engine): State<Engine>) -> Result<Json<Value>> {
    if let Ok(failure) = tokio::time::timeout(Duration::ZERO, engine.failed()).await {
        return Err(ApiError::not_ready(&failure));
    }
    engine
        .runs(RunFilter {
            limit: 1,
            ..Default::default()
        })
        .await?;
    Ok(Json(json!({ "status": "ok" })))
}

//! The whole route table.

use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef};
use axum::http::{Method, Uri};
use axum::routing::{get, post, put};

use super::error::ApiError;
use super::extract::BodyTimeout;
use super::webhooks::Secrets;
use super::{blobs, components, events, health, hooks, logs, runs, schedules, streams, webhooks};
use crate::engine::Engine;
use crate::sandbox::MAX_COMPONENT_BYTES;

/// Largest JSON body taken, in bytes: an input and a payload at their limits, and what is said around them.
const MAX_JSON_BYTES: usize = 3 << 20;

/// What requests are answered with.
#[derive(Clone)]
struct Shared {
    engine: Engine,
    body_timeout: BodyTimeout,
    secrets: Secrets,
}

impl FromRef<Shared> for Engine {
    fn from_ref(shared: &Shared) -> Self {
        shared.engine.clone()
    }
}

impl FromRef<Shared> for Secrets {
    fn from_ref(shared: &Shared) -> Self {
        shared.secrets.clone()
    }
}

impl FromRef<Shared> for BodyTimeout {
    fn from_ref(shared: &Shared) -> Self {
        shared.body_timeout
    }
}

/// Every route of one engine. A body must have arrived within `body_timeout`.
pub fn router(engine: Engine, body_timeout: Duration, secrets: Secrets) -> Router {
    let json = Router::new()
        .route("/v1/components", get(components::list))
        .route("/v1/workflows", get(components::workflows))
        .route("/v1/runs", get(runs::list).post(runs::start))
        .route("/v1/runs/retry", post(runs::retry_all))
        .route("/v1/runs/{id}", get(runs::show))
        .route("/v1/runs/{id}/journal", get(runs::journal))
        .route("/v1/runs/{id}/result", get(runs::result))
        .route("/v1/runs/{id}/rerun", post(runs::rerun))
        .route("/v1/runs/{id}/fork", post(runs::fork))
        .route("/v1/runs/{id}/cancel", post(runs::cancel))
        .route("/v1/runs/{id}/terminate", post(runs::terminate))
        .route("/v1/runs/{id}/resolve", post(runs::resolve))
        .route("/v1/runs/{id}/retry", post(runs::retry))
        .route("/v1/runs/{id}/logs", get(logs::read))
        .route("/v1/runs/{id}/streams", get(streams::list))
        .route("/v1/runs/{id}/streams/{name}", get(streams::read))
        .route("/v1/runs/{id}/upgrade", post(runs::upgrade))
        .route(
            "/v1/hooks/{token}",
            get(hooks::show).post(hooks::deliver).delete(hooks::dispose),
        )
        .route("/v1/events/{name}", post(events::emit))
        .route("/v1/blobs/{digest}", get(blobs::get))
        .route("/v1/schedules", get(schedules::list))
        .route("/v1/schedules/{name}/backfill", post(schedules::backfill))
        .route("/v1/hooks/{token}/payloads", get(hooks::payloads))
        .route("/hooks/{token}", post(hooks::receive))
        .route("/webhooks/{*path}", post(webhooks::receive))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .layer(DefaultBodyLimit::max(MAX_JSON_BYTES));

    let components = Router::new()
        .route(
            "/v1/components/{name}",
            put(components::deploy).delete(components::remove),
        )
        .route("/v1/runs/{id}/replay", post(runs::replay))
        .layer(DefaultBodyLimit::max(MAX_COMPONENT_BYTES));

    json.merge(components)
        .fallback(async |uri: Uri| ApiError::unknown_route(&uri))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| ApiError::wrong_method(&method, &uri))
        .with_state(Shared {
            engine,
            body_timeout: BodyTimeout(body_timeout),
            secrets,
        })
}

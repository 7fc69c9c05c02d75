//! Webhooks: what other services call.

use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Serialize;
use serde_json::Value;

use super::error::{ApiError, Result};
use super::extract::{Path, RawBody, only_header};
use super::signature::is_signed;
use crate::engine::{Engine, Error, StartReceipt};
use crate::ids::RunId;
use crate::journal::Seq;
use crate::sandbox::{SignatureForm, Webhook};

/// Where secrets are looked up by name: in the host's environment unless told otherwise. Prints none of them.
#[derive(Clone)]
pub struct Secrets(Arc<LookUp>);

type LookUp = dyn Fn(&str) -> Option<String> + Send + Sync;

impl Secrets {
    /// From elsewhere.
    pub fn new(look_up: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(look_up))
    }
}

impl Secrets {
    /// An empty one is none.
    fn get(&self, name: &str) -> Option<String> {
        self.0(name).filter(|secret| !secret.is_empty())
    }
}

impl Default for Secrets {
    fn default() -> Self {
        Self::new(|name| std::env::var(name).ok())
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

#[derive(Serialize)]
pub struct ReceivedView {
    /// The run that was started, or that holds the token.
    run_id: RunId,
    started: bool,
    /// Position of the payload in the run's journal, where it was delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    delivered: Option<Seq>,
    /// The run that holds the token takes no more; nothing was written.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    ended: bool,
}

/// `POST /webhooks/{path}`: checks the signature, then starts the workflow or delivers to the run that holds its token.
/// Any 2xx means that there is no need to send it again.
pub async fn receive(
    State(engine): State<Engine>,
    State(secrets): State<Secrets>,
    Path(path): Path,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Result<Json<ReceivedView>> {
    let route = engine.webhook(&path).await?;
    let route = route.ok_or_else(|| ApiError::unknown_webhook(&path))?;
    let (form, name) = (route.webhook.signature, &route.webhook.secret_env);
    let Some(secret) = secrets.get(name) else {
        tracing::error!(
            path,
            variable = name,
            "a webhook was called and its secret is not set"
        );
        return Err(ApiError::no_secret());
    };
    if !is_signed(form, secret.as_bytes(), &headers, &body, engine.now()) {
        return Err(ApiError::bad_signature());
    }
    let payload =
        String::from_utf8(body.into()).map_err(|_| ApiError::invalid_request("the body is not UTF-8"))?;
    let delivery = delivery_id(form, &headers, &payload)?;
    let received = engine
        .receive_webhook(&route, delivery.as_deref(), payload.into())
        .await;
    Ok(Json(match received {
        Ok(StartReceipt {
            run_id,
            started,
            delivered,
            ..
        }) => ReceivedView {
            run_id,
            started,
            delivered,
            ended: false,
        },
        // Sent again it would find the same.
        Err(Error::HookEnded { owner, .. }) => ReceivedView {
            run_id: owner.run,
            started: false,
            delivered: None,
            ended: true,
        },
        Err(error) => return Err(error.into()),
    }))
}

/// Says in the log, and to the caller, which webhooks of a deployment, or of all, refuse every request as long as their
/// secrets are not set.
///
/// # Errors
/// When the store cannot be read.
pub async fn warn_of_secrets(
    engine: &Engine,
    secrets: &Secrets,
    deployment: Option<&str>,
) -> std::result::Result<Vec<String>, Error> {
    let mut warnings = Vec::new();
    for (name, Webhook { path, secret_env, .. }) in engine.webhooks().await? {
        if deployment.is_none_or(|wanted| wanted == name) && secrets.get(&secret_env).is_none() {
            tracing::warn!(
                path,
                variable = secret_env,
                deployment = name,
                "the secret of a webhook is not set"
            );
            warnings.push(format!(
                "webhook `{path}` refuses every request: `{secret_env}` is not set where the host runs; start the host \
                 with it"
            ));
        }
    }
    Ok(warnings)
}

/// By what the sender knows a request that it repeats, if it says so. An empty id says as little as none: requests that
/// have nothing else in common are not the same.
///
/// # Errors
/// When it cannot be told what the id is: a repeated request would be carried out twice.
fn delivery_id(form: SignatureForm, headers: &HeaderMap, payload: &str) -> Result<Option<String>> {
    let id = match form {
        SignatureForm::Github => only_header(headers, "X-GitHub-Delivery")?.map(str::to_owned),
        SignatureForm::Hmac => only_header(headers, "Idempotency-Key")?.map(str::to_owned),
        SignatureForm::Stripe => serde_json::from_str::<Value>(payload)
            .ok()
            .and_then(|event| Some(event.get("id")?.as_str()?.to_owned())),
    };
    Ok(id.filter(|id| !id.is_empty()))
}

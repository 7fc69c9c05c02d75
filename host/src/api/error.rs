//! What callers are told when something goes wrong: every code, status and hint is chosen here.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::engine::{BlobError, Error};
use crate::ids::{NameError, TagError};
use crate::sandbox::LoadError;
use crate::store::{BlockReason, StoreError};

pub type Result<T> = std::result::Result<T, ApiError>;

/// An answer that is no success: `{"error": {"code", "message", "hint", …}}`.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    /// For programs; never changes its meaning.
    code: &'static str,
    message: String,
    hint: Option<&'static str>,
    /// Further fields beside `code` and `message`.
    details: Map<String, Value>,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            hint: None,
            details: Map::new(),
        }
    }

    fn hint(self, hint: &'static str) -> Self {
        Self {
            hint: Some(hint),
            ..self
        }
    }

    fn detail(mut self, name: &str, value: impl serde::Serialize) -> Self {
        self.details.insert(name.to_owned(), json!(value));
        self
    }

    // ---- what the rim refuses by itself ------------------------------------------------------------

    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request", message)
    }

    pub fn unknown_route(uri: &Uri) -> Self {
        let message = format!("there is nothing at `{}`", uri.path());
        let error = Self::new(StatusCode::NOT_FOUND, "unknown_route", message);
        if uri.path().starts_with("/v1/hooks/") {
            error.hint("percent-encode the token: `/` in it is written `%2F`")
        } else if uri.path().starts_with("/v1/events/") {
            error.hint("percent-encode the event's name: `/` in it is written `%2F`")
        } else {
            error
        }
    }

    pub fn wrong_method(method: &Method, uri: &Uri) -> Self {
        let message = format!("`{}` does not take {method}", uri.path());
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    pub fn expects_json() -> Self {
        let message = "the body must be JSON and say so";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong_content_type", message)
            .hint("send the header `Content-Type: application/json`")
    }

    pub fn expects_component() -> Self {
        let message = "the body must be the bytes of a component";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong_content_type", message)
            .hint("send the header `Content-Type: application/wasm`")
    }

    pub fn body_timeout(limit: Duration) -> Self {
        let message = format!("the body did not arrive within {limit:?}");
        Self::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
    }

    pub fn unknown_hook_url() -> Self {
        let message = "no hook takes requests at this URL";
        Self::new(StatusCode::NOT_FOUND, "hook_not_found", message)
    }

    /// Whoever knows the URL of a hook need not know whose it is.
    pub fn hook_url_ended() -> Self {
        let message = "this URL takes no more requests";
        Self::new(StatusCode::GONE, "hook_ended", message)
    }

    pub fn hook_url_full() -> Self {
        let message = "too many requests to this URL wait to be read";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "hook_full", message)
            .hint("nothing was written; send the same request again later")
    }

    pub fn unfit_payload(what: String) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_payload", what)
    }

    /// As [`Self::unfit_payload`]. Whoever sends JSON may not know that they say it is a form.
    pub fn unfit_form(what: &str) -> Self {
        Self::unfit_payload(format!(
            "the body was read as a form, as its content type says: {what}"
        ))
        .hint(SAY_JSON)
    }

    pub fn json_sent_as_form() -> Self {
        let message = "the body is JSON, and its content type says that it is a form";
        Self::unfit_payload(message.to_owned()).hint(SAY_JSON)
    }

    pub fn bad_run_response() -> Self {
        let message = "the request was kept, and the run's answer to it has no status that can be sent";
        Self::new(StatusCode::BAD_GATEWAY, "bad_response", message)
    }

    pub fn unknown_webhook(path: &str) -> Self {
        let message = format!("no webhook has the path `{path}`");
        Self::new(StatusCode::NOT_FOUND, "unknown_webhook", message)
    }

    /// Says nothing of why: whoever asks is not known.
    pub fn bad_signature() -> Self {
        let message = "the signature is missing, wrong or too old";
        Self::new(StatusCode::UNAUTHORIZED, "bad_signature", message)
    }

    pub fn no_secret() -> Self {
        let message = "this webhook has no secret yet";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "webhook_not_ready", message)
    }

    pub fn not_ready(error: &StoreError) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", error.to_string())
    }
}

const SAY_JSON: &str = "to send JSON, say so with the header `Content-Type: application/json`: `curl -d` says \
                        `application/x-www-form-urlencoded` unless told otherwise";

const DEPLOY_FIRST: &str = "deploy it with `PUT /v1/components/{name}` or `onemark deploy`; \
                            `GET /v1/components` lists what is there";

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        use StatusCode as S;
        let message = error.to_string();
        let new = |status, code| Self::new(status, code, message);
        match error {
            Error::UnknownWorkflow(workflow) => new(S::NOT_FOUND, "unknown_workflow")
                .detail("workflow", workflow)
                .hint("`GET /v1/workflows` lists what is deployed; `onemark deploy` adds to it"),
            Error::AmbiguousWorkflow { candidates, .. } => new(S::CONFLICT, "workflow_ambiguous")
                .detail("candidates", candidates)
                .hint("name the workflow as `deployment/workflow`"),
            Error::InvalidInput { workflow, .. } => new(S::UNPROCESSABLE_ENTITY, "invalid_input")
                .detail("workflow", workflow)
                .hint("`GET /v1/workflows` has the schema of the input"),
            Error::InvalidEvent { event, .. } => new(S::UNPROCESSABLE_ENTITY, "invalid_event")
                .detail("event", event)
                .hint("`GET /v1/workflows` has the schemas of the inputs"),
            Error::InvalidRequest(_) => new(S::BAD_REQUEST, "invalid_request"),
            Error::Name(error) => error.into(),
            Error::RetentionTooLong { limit_ms, .. } => {
                new(S::UNPROCESSABLE_ENTITY, "retention_too_long").detail("limit_ms", limit_ms)
            }
            Error::TooLarge { limit, .. } => new(S::PAYLOAD_TOO_LARGE, "too_large").detail("limit", limit),

            Error::HookConflict { token, owner } => new(S::CONFLICT, "hook_conflict")
                .detail("token", token)
                .detail("conflicting_run_id", owner.run)
                .detail("status", owner.status)
                .detail("workflow", owner.workflow)
                .hint("deliver to the run that holds it: `POST /v1/hooks/{token}`, `onemark deliver`"),
            Error::RunIdConflict(run) => new(S::CONFLICT, "run_id_conflict").detail("run_id", run),
            Error::KeyConflict => new(S::CONFLICT, "key_conflict")
                .hint("a key belongs to one request; use a new one for another"),

            Error::UnkeyedSteps { run, steps } => new(S::CONFLICT, "unkeyed_steps")
                .detail("run_id", run)
                .detail("steps", steps)
                .hint("say `repeat_unkeyed: true` when that is what you want, or give the steps keys"),

            Error::RerunNeedsHook { workflow } => new(S::UNPROCESSABLE_ENTITY, "hook_needed")
                .detail("workflow", workflow)
                .hint(
                    "name the token that the new run is to have: `onemark runs rerun RUN --hook TOKEN`, \
                     `\"hooks\": [{ \"token\": \"…\" }]`; it may be any that is free",
                ),

            Error::Blob(BlobError::NotFound(digest)) => {
                new(S::NOT_FOUND, "blob_not_found").detail("digest", digest)
            }
            Error::Blob(BlobError::Corrupt(digest)) => {
                new(S::INTERNAL_SERVER_ERROR, "corrupt_blob").detail("digest", digest)
            }
            Error::Blob(BlobError::Storage(_)) => new(S::INTERNAL_SERVER_ERROR, "storage_failed"),
            Error::EntryNotFound { run, seq, last } => new(S::NOT_FOUND, "entry_not_found")
                .detail("run_id", run)
                .detail("seq", seq)
                .detail("last", last)
                .hint("`GET /v1/runs/{id}/journal` and `onemark journal` list the entries"),
            Error::EndsThere { run, seq, last } => new(S::CONFLICT, "run_ends_there")
                .detail("run_id", run)
                .detail("seq", seq)
                .detail("last", last),
            Error::DoesNotReplay {
                run,
                component,
                verdict,
                ..
            } => new(S::CONFLICT, "does_not_replay")
                .detail("run_id", run)
                .detail("component", component)
                .detail("verdict", verdict)
                .hint("mend the component, fork the run at an earlier entry, or say `force: true`"),

            Error::RunNotFound(run) => new(S::NOT_FOUND, "run_not_found").detail("run_id", run),
            Error::ScheduleNotFound(name) => new(S::NOT_FOUND, "schedule_not_found")
                .detail("schedule", name)
                .hint("`GET /v1/schedules` lists them; the name is `deployment/workflow`, `/` written `%2F`"),
            Error::HookNotFound(token) => new(S::NOT_FOUND, "hook_not_found").detail("token", token),
            Error::HookEnded { token, owner } => new(S::GONE, "hook_ended")
                .detail("token", token)
                .detail("run_id", owner.run)
                .detail("status", owner.status)
                .detail("workflow", owner.workflow),
            Error::HookFull { token, owner, cap } => new(S::TOO_MANY_REQUESTS, "hook_full")
                .detail("token", token)
                .detail("run_id", owner.run)
                .detail("status", owner.status)
                .detail("limit", cap.payloads)
                .detail("limit_bytes", cap.bytes)
                .hint("nothing was written; send the same request again when the run has read some"),
            Error::InvalidPayload { token, .. } => {
                new(S::UNPROCESSABLE_ENTITY, "invalid_payload").detail("token", token)
            }
            Error::InvalidResult { run, step, call, .. } => new(S::UNPROCESSABLE_ENTITY, "invalid_result")
                .detail("run_id", run)
                .detail("step", step)
                .detail("call", call)
                .hint(
                    "nothing was written; say what the step returns, as JSON: a text has quotes of its own",
                ),
            Error::RunEnded { run, status } => new(S::CONFLICT, "run_ended")
                .detail("run_id", run)
                .detail("status", status),

            Error::NotBlocked { run, status } => new(S::CONFLICT, "not_blocked")
                .detail("run_id", run)
                .detail("status", status),
            Error::BlockedOtherwise { run, reason } => {
                let error = new(S::CONFLICT, "blocked_otherwise")
                    .detail("run_id", run)
                    .detail("reason", reason);
                match reason {
                    BlockReason::UnknownOutcome => error.hint(
                        "find out whether the step took effect, then `onemark runs resolve` or \
                         `POST /v1/runs/{id}/resolve`",
                    ),
                    _ => error.hint("`onemark runs show` says what to do"),
                }
            }
            Error::BlockedElsewhere { run, call } => new(S::CONFLICT, "blocked_elsewhere")
                .detail("run_id", run)
                .detail("call", call),

            Error::DamagedComponent(_) => new(S::INTERNAL_SERVER_ERROR, "damaged_component"),
            Error::UnknownDeployment(_) => new(S::NOT_FOUND, "unknown_component").hint(DEPLOY_FIRST),
            Error::UnknownComponent(digest) => new(S::NOT_FOUND, "unknown_component")
                .detail("component", digest)
                .hint(DEPLOY_FIRST),
            Error::Component(error) => error.into(),
            Error::Store(error) => error.into(),
        }
    }
}

impl From<NameError> for ApiError {
    fn from(error: NameError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_name", error.to_string())
    }
}

impl From<TagError> for ApiError {
    fn from(error: TagError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_tag", error.to_string())
    }
}

impl From<LoadError> for ApiError {
    fn from(error: LoadError) -> Self {
        let message = error.to_string();
        let code = match error {
            LoadError::TooLarge { limit, .. } => {
                return Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).detail("limit", limit);
            }
            LoadError::CoreModule => "core_module",
            LoadError::NotWasm(_) => "not_a_component",
            LoadError::Interface(_) => "missing_exports",
            LoadError::Describe(_) => "describe_failed",
            LoadError::Manifest(_) => "invalid_manifest",
        };
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, message)
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        let new = |status, code| Self::new(status, code, message);
        match error {
            StoreError::Unavailable(_) => new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable")
                .hint("nothing was written; send the same request again later"),
            StoreError::Full(_) => new(StatusCode::INSUFFICIENT_STORAGE, "store_full")
                .hint("nothing was written; make room on the disk and send the same request again"),
            StoreError::Fenced => new(StatusCode::SERVICE_UNAVAILABLE, "fenced"),
            StoreError::Fatal(_) => new(StatusCode::INTERNAL_SERVER_ERROR, "store_failed")
                .hint("whether it was written is unknown; ask again with the same key or id"),
            StoreError::Corrupt { run, .. } => {
                new(StatusCode::INTERNAL_SERVER_ERROR, "corrupt_journal").detail("run_id", run)
            }
            StoreError::Invalid(_) => new(StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        }
    }
}

// ---- what axum refuses ------------------------------------------------------------------------------

impl From<BytesRejection> for ApiError {
    fn from(rejection: BytesRejection) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let message = "the body is larger than this route takes";
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
            }
            _ => Self::invalid_request(rejection.body_text()),
        }
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::invalid_request(rejection.body_text())
    }
}

impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::invalid_request(rejection.body_text())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::error!(code = self.code, "{}", self.message);
        }
        let mut error = Map::new();
        error.insert("code".into(), self.code.into());
        error.insert("message".into(), self.message.into());
        if let Some(hint) = self.hint {
            error.insert("hint".into(), hint.into());
        }
        error.extend(self.details);
        (self.status, Json(json!({ "error": error }))).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No test can fill a disk.
    #[test]
    fn a_full_disk_is_told_from_a_busy_database() {
        for (error, status, code) in [
            (StoreError::Full("x".into()), 507, "store_full"),
            (StoreError::Unavailable("x".into()), 503, "store_unavailable"),
        ] {
            let error = ApiError::from(error);
            assert_eq!((error.status.as_u16(), error.code), (status, code));
        }
    }
}

//! The way to the outside service: JSON over HTTP.

use std::fmt;

use onemark_sdk::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::Value;
use wstd::http::{Body, Client, Request};

/// What can go wrong outside, and whether another attempt can help.
#[derive(Serialize, Deserialize, StepError, Debug)]
pub enum OutsideError {
    #[retry]
    Unreachable(String),
    #[retry]
    Unavailable { status: u16, body: String },
    #[fatal]
    Refused { status: u16, body: String },
    #[fatal]
    Malformed(String),
}

/// Sends a request that carries the key and the number of this attempt, and reads the answer.
pub async fn post<T: DeserializeOwned>(outside: &str, path: &str, body: &Value) -> Result<T, OutsideError> {
    let info = step_info();
    let body = body.to_string();
    let request = Request::post(format!("{outside}/{path}"))
        .header("content-type", "application/json")
        // Without it the body is sent in chunks, which simple servers do not read.
        .header("content-length", body.len())
        .header("idempotency-key", info.idempotency_key)
        .header("onemark-attempt", info.attempt)
        .body(Body::from(body))
        .map_err(|error| OutsideError::Malformed(error.to_string()))?;

    let response = Client::new().send(request).await.map_err(unreachable)?;
    let status = response.status();
    let mut body = response.into_body();
    let body = body.str_contents().await.map_err(unreachable)?;
    match status.as_u16() {
        200..=299 => serde_json::from_str(body).map_err(|error| OutsideError::Malformed(error.to_string())),
        status @ (429 | 500..) => Err(OutsideError::Unavailable {
            status,
            body: body.into(),
        }),
        status => Err(OutsideError::Refused {
            status,
            body: body.into(),
        }),
    }
}

fn unreachable(error: impl fmt::Display) -> OutsideError {
    OutsideError::Unreachable(format!("{error:#}"))
}

impl fmt::Display for OutsideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => write!(f, "the service cannot be reached: {why}"),
            Self::Unavailable { status, body } => {
                write!(f, "the service is not available: {status} {body}")
            }
            Self::Refused { status, body } => write!(f, "the service refused: {status} {body}"),
            Self::Malformed(why) => write!(f, "the request or its answer is malformed: {why}"),
        }
    }
}

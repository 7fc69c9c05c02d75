//! Blobs, as they were written.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt as _};

use super::error::{ApiError, Result};
use super::extract::Path;
use crate::engine::{BlobError, Engine, Error};
use crate::ids::Digest;

/// Bytes that are read at a time.
const AT_ONCE: usize = 256 << 10;

/// `GET /v1/blobs/{digest}`: its bytes. One that is damaged is an error, or breaks off before its last bytes where that
/// shows only after the first.
pub async fn get(State(engine): State<Engine>, Path(digest): Path) -> Result<Response> {
    let digest: Digest = digest
        .parse()
        .map_err(|error| ApiError::invalid_request(format!("a blob is named by its digest: {error}")))?;
    let mut reading = engine.blob(digest).await?;
    let bytes = reading.left();
    // Of an empty file no server would send more than the head.
    let first = reading.next(AT_ONCE).await.map_err(Error::from)?;
    let rest = stream::unfold(Some(reading), async |reading| {
        let mut reading = reading?;
        match reading.next(AT_ONCE).await {
            Ok(chunk) if chunk.is_empty() => None,
            Ok(chunk) => Some((Ok(chunk), Some(reading))),
            Err(error) => {
                tracing::error!(%error, "a blob breaks off");
                Some((Err(error), None))
            }
        }
    });
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, bytes.to_string()),
    ];
    let first = stream::once(async { Ok::<_, BlobError>(first) });
    Ok((headers, Body::from_stream(first.chain(rest))).into_response())
}

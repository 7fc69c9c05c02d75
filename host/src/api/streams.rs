//! Output streams of runs: read from an index, or followed as server-sent events.

use std::convert::Infallible;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt as _};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::error::{ApiError, Result};
use super::extract::{Path, Query};
use super::runs::page_size;
use crate::engine::{Engine, Followed, Following};
use crate::ids::{RunId, StreamName};
use crate::journal::{CallNo, Timestamp};
use crate::store::{Chunk, StreamInfo};

#[derive(Serialize)]
pub struct StreamList {
    streams: Vec<StreamInfo>,
}

/// `GET /v1/runs/{id}/streams`: by name.
pub async fn list(State(engine): State<Engine>, Path(id): Path) -> Result<Json<StreamList>> {
    let streams = engine.streams_of(&RunId::new(id)?).await?;
    Ok(Json(StreamList { streams }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamQuery {
    #[serde(default)]
    from: u64,
    limit: Option<usize>,
    #[serde(default)]
    follow: bool,
}

#[derive(Serialize)]
struct StreamPage {
    chunks: Vec<ChunkView>,
    /// Where the next page begins; `null` when there is no chunk after these yet.
    next: Option<u64>,
}

#[derive(Serialize)]
struct ChunkView {
    index: u64,
    at: Timestamp,
    /// The step that wrote it; `null` for workflow code.
    call: Option<CallNo>,
    attempt: u32,
    chunk: Option<Box<RawValue>>,
}

impl From<Chunk> for ChunkView {
    fn from(chunk: Chunk) -> Self {
        Self {
            index: chunk.index,
            at: chunk.at,
            call: chunk.call,
            attempt: chunk.attempt,
            chunk: RawValue::from_string(chunk.chunk.to_string()).ok(),
        }
    }
}

/// `GET /v1/runs/{id}/streams/{name}`: a page of chunks from `from` on; with `follow=true` all of them as server-sent
/// events, and those that come, until the run has ended. The id of an event is the chunk's index: who reconnects
/// sends the last one as `Last-Event-ID` and goes on after it.
pub async fn read(
    State(engine): State<Engine>,
    Path((id, name)): Path<(String, String)>,
    Query(query): Query<StreamQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let (run, name) = (RunId::new(id)?, StreamName::new(name)?);
    if query.follow {
        if query.limit.is_some() {
            let text = "`limit` is for pages; a stream that is followed has none";
            return Err(ApiError::invalid_request(text));
        }
        let from = after_last_event(&headers)?.unwrap_or(query.from);
        let following = engine.follow(run, name, from).await?;
        let events = Sse::new(events(following)).keep_alive(KeepAlive::default());
        return Ok(events.into_response());
    }
    let limit = page_size(query.limit)?;
    let mut chunks = engine.chunks(&run, &name, query.from, limit + 1).await?;
    let next = chunks.get(limit).map(|chunk| chunk.index);
    chunks.truncate(limit);
    let chunks = chunks.into_iter().map(ChunkView::from).collect();
    Ok(Json(StreamPage { chunks, next }).into_response())
}

pub fn after_last_event(headers: &HeaderMap) -> Result<Option<u64>> {
    let Some(id) = headers.get("last-event-id") else {
        return Ok(None);
    };
    let index = id.to_str().ok().and_then(|id| id.parse::<u64>().ok());
    let after = index.and_then(|index| index.checked_add(1));
    match after {
        Some(after) => Ok(Some(after)),
        None => Err(ApiError::invalid_request("Last-Event-ID is no index")),
    }
}

/// A chunk each; after the last of a run that ended, `end` with how it did.
fn events(following: Following) -> impl Stream<Item = std::result::Result<Event, Infallible>> {
    let batches = stream::unfold(Some(following), async |following| {
        let mut following = following?;
        match following.next().await {
            Ok(Followed::Chunks(chunks)) => {
                let events = chunks.into_iter().map(event).collect();
                Some((events, Some(following)))
            }
            Ok(Followed::Ended(status)) => {
                let end = Event::default().event("end");
                let end = end.data(json!({ "status": status }).to_string());
                Some((vec![end], None))
            }
            // Whoever reads connects again, and hears then what is wrong.
            Ok(Followed::Stopping) | Err(_) => None,
        }
    });
    batches.flat_map(|events: Vec<Event>| stream::iter(events.into_iter().map(Ok)))
}

fn event(chunk: Chunk) -> Event {
    let index = chunk.index.to_string();
    // Numbers and JSON texts are JSON.
    let data = serde_json::to_string(&ChunkView::from(chunk)).unwrap_or_default();
    Event::default().id(index).data(data)
}

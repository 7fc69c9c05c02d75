//! Logs of runs: read from an index, or followed as server-sent events.

use std::convert::Infallible;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt as _};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::error::{ApiError, Result};
use super::extract::{Path, Query};
use super::runs::page_size;
use super::streams::after_last_event;
use crate::engine::{Engine, FollowedLogs, FollowingLogs};
use crate::ids::RunId;
use crate::journal::{CallNo, LogLevel, LogLine, Seq, Timestamp};
use crate::store::LogFilter;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogQuery {
    #[serde(default)]
    from: u64,
    limit: Option<usize>,
    level: Option<LogLevel>,
    #[serde(default)]
    follow: bool,
}

#[derive(Serialize)]
struct Page {
    lines: Vec<LineView>,
    /// Where the next page begins; `null` when there is no line after these yet.
    next: Option<u64>,
    /// Lines of the run, of any level, that were not kept.
    dropped: u64,
}

#[derive(Serialize)]
struct LineView {
    index: u64,
    at: Timestamp,
    level: LogLevel,
    /// The step that wrote it; `null` for workflow code.
    call: Option<CallNo>,
    attempt: u32,
    /// Where the run's journal was.
    seq: Seq,
    text: String,
}

impl From<(u64, LogLine)> for LineView {
    fn from((index, line): (u64, LogLine)) -> Self {
        Self {
            index,
            at: line.at,
            level: line.level,
            call: line.call,
            attempt: line.attempt,
            seq: line.seq,
            text: line.text.to_string(),
        }
    }
}

/// `GET /v1/runs/{id}/logs`: a page of lines from `from` on, of `level` or above; with `follow=true` or
/// `Accept: text/event-stream` all of them as server-sent events, and those that come, until the run has ended. The id
/// of an event is the line's index: who reconnects sends the last one as `Last-Event-ID` and goes on after it.
pub async fn read(
    State(engine): State<Engine>,
    Path(id): Path,
    Query(query): Query<LogQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let run = RunId::new(id)?;
    let level = query.level.unwrap_or(LogLevel::Debug);
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    if query.follow || accept.is_some_and(|accept| accept.starts_with("text/event-stream")) {
        if query.limit.is_some() {
            let text = "`limit` is for pages; a log that is followed has none";
            return Err(ApiError::invalid_request(text));
        }
        let from = after_last_event(&headers)?.unwrap_or(query.from);
        let following = engine.follow_logs(run, from, level).await?;
        let events = Sse::new(events(following)).keep_alive(KeepAlive::default());
        return Ok(events.into_response());
    }
    let limit = page_size(query.limit)?;
    let filter = LogFilter {
        from: query.from,
        limit: limit + 1,
        level,
    };
    let mut page = engine.logs(&run, filter).await?;
    let next = page.lines.get(limit).map(|(index, _)| *index);
    page.lines.truncate(limit);
    let lines = page.lines.into_iter().map(LineView::from).collect();
    let dropped = page.dropped;
    Ok(Json(Page { lines, next, dropped }).into_response())
}

/// A line each; after the last of a run that ended, `end` with how it did.
fn events(following: FollowingLogs) -> impl Stream<Item = std::result::Result<Event, Infallible>> {
    let batches = stream::unfold(Some(following), async |following| {
        let mut following = following?;
        match following.next().await {
            Ok(FollowedLogs::Lines(lines)) => {
                let events = lines.into_iter().map(event).collect();
                Some((events, Some(following)))
            }
            Ok(FollowedLogs::Ended { status, dropped }) => {
                let data = json!({ "status": status, "dropped": dropped });
                let end = Event::default().event("end").data(data.to_string());
                Some((vec![end], None))
            }
            // Whoever reads connects again, and hears then what is wrong.
            Ok(FollowedLogs::Stopping) | Err(_) => None,
        }
    });
    batches.flat_map(|events: Vec<Event>| stream::iter(events.into_iter().map(Ok)))
}

fn event(line: (u64, LogLine)) -> Event {
    let index = line.0.to_string();
    // Numbers and texts are JSON.
    let data = serde_json::to_string(&LineView::from(line)).unwrap_or_default();
    Event::default().id(index).data(data)
}

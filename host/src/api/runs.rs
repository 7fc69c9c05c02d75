//! Runs: start, look, wait, decide, upgrade, replay.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::error::{ApiError, Result};
use super::extract::{ComponentBytes, Json as JsonBody, Key, Path, Query};
use crate::engine::{
    ConflictPolicy, Engine, ForkHook, ForkRequest, Replaced, ReplayReport, RerunRequest, Resolution,
    RetryReceipt, RetryRequest, RunResult, StartHook, StartPayload, StartReceipt, StartRequest,
};
use crate::ids::{HookToken, RunId, Tags};
use crate::journal::{CallNo, Entry, Event, HookNo, RunStatus, Seq, Timestamp};
use crate::store::{BlockReason, HookInfo, RunFilter, RunInfo};

// ---- start ------------------------------------------------------------------------------------------

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartBody {
    workflow: String,
    input: Box<RawValue>,
    id: Option<String>,
    #[serde(default)]
    hooks: Vec<StartHookBody>,
    /// Of every token that the start claims, also the one that the workflow declares.
    #[serde(default, deserialize_with = "duration")]
    min_retention: Duration,
    #[serde(default)]
    on_conflict: OnConflictBody,
    deliver: Option<DeliverBody>,
    #[serde(default, deserialize_with = "moment")]
    start_at: Option<Timestamp>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

#[derive(Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OnConflictBody {
    #[default]
    Fail,
    Attach,
    Deliver,
    Replace,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeliverBody {
    token: Option<String>,
    payload: Box<RawValue>,
    #[serde(default)]
    when: DeliverWhen,
}

#[derive(Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DeliverWhen {
    #[default]
    Conflict,
    Always,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StartHookBody {
    token: String,
    /// `24h`, `7days`, `1h 30m`.
    #[serde(default, deserialize_with = "duration")]
    min_retention: Duration,
    metadata: Option<Value>,
}

impl StartHookBody {
    fn into_hook(self) -> Result<StartHook> {
        Ok(StartHook {
            token: HookToken::new(self.token)?,
            min_retention_ms: as_ms(self.min_retention),
            metadata: self.metadata,
        })
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text).map_err(|error| {
        let text = format!("`{text}` is no duration ({error}); write for example `24h` or `7days`");
        serde::de::Error::custom(text)
    })
}

/// Milliseconds since the Unix epoch, or a date in UTC: `2030-01-31T08:00:00Z`.
pub(super) fn moment<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Timestamp>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "expected milliseconds since 1970, or a date such as `2030-01-31T08:00:00Z`"
    )]
    enum Moment {
        Ms(Timestamp),
        Text(String),
    }
    match Option::deserialize(deserializer)? {
        None => Ok(None),
        Some(Moment::Ms(at)) => Ok(Some(at)),
        Some(Moment::Text(text)) => parse_moment(&text).map(Some).map_err(serde::de::Error::custom),
    }
}

fn parse_moment(text: &str) -> std::result::Result<Timestamp, String> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let since = humantime::parse_rfc3339_weak(text)
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map(as_ms).ok_or_else(|| {
        format!("`{text}` is no time; write milliseconds since 1970, or for example `2030-01-31T08:00:00Z`")
    })
}

fn as_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl StartBody {
    fn into_request(self, Key(key): Key) -> Result<StartRequest> {
        let on_conflict = match (self.on_conflict, self.deliver) {
            (OnConflictBody::Fail, None) => ConflictPolicy::Fail,
            (OnConflictBody::Attach, None) => ConflictPolicy::Attach,
            (OnConflictBody::Replace, None) => ConflictPolicy::Replace,
            (OnConflictBody::Deliver, Some(deliver)) => ConflictPolicy::Deliver(StartPayload {
                token: deliver.token.map(HookToken::new).transpose()?,
                payload: deliver.payload.get().into(),
                always: deliver.when == DeliverWhen::Always,
            }),
            (OnConflictBody::Deliver, None) => {
                let text = "`on_conflict` is `deliver`, and `deliver` has no payload";
                return Err(ApiError::invalid_request(text));
            }
            (_, Some(_)) => {
                let text = "`deliver` has a payload; it goes with `\"on_conflict\": \"deliver\"`";
                return Err(ApiError::invalid_request(text));
            }
        };
        Ok(StartRequest {
            workflow: self.workflow,
            input: self.input.get().into(),
            id: self.id.map(RunId::new).transpose()?,
            hooks: self
                .hooks
                .into_iter()
                .map(StartHookBody::into_hook)
                .collect::<Result<_>>()?,
            min_retention_ms: as_ms(self.min_retention),
            on_conflict,
            start_at: self.start_at,
            tags: Tags::new(self.tags)?,
            key,
        })
    }
}

/// `POST /v1/runs`: 201 when the run was started, 200 when its id or a token led to the run that exists.
pub async fn start(
    State(engine): State<Engine>,
    key: Key,
    JsonBody(body): JsonBody<StartBody>,
) -> Result<(StatusCode, Json<StartReceipt>)> {
    Ok(started(engine.start(body.into_request(key)?).await?))
}

fn started(receipt: StartReceipt) -> (StatusCode, Json<StartReceipt>) {
    let status = match receipt.started {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    (status, Json(receipt))
}

// ---- look -------------------------------------------------------------------------------------------

/// How much a page holds unless asked otherwise, and at most.
const PAGE: usize = 100;
const MAX_PAGE: usize = 1_000;

pub fn page_size(asked: Option<usize>) -> Result<usize> {
    match asked.unwrap_or(PAGE) {
        limit @ 1..=MAX_PAGE => Ok(limit),
        limit => Err(ApiError::invalid_request(format!(
            "limit is {limit}; use 1 to {MAX_PAGE}"
        ))),
    }
}

/// Which runs to list: `status`, `workflow`, `parent`, `tag=NAME=VALUE` (again for further tags), `created_after`,
/// `created_before`, `limit`, `cursor`. All of them must hold. `workflow` may be `DEPLOYMENT/NAME` as for a start; a run
/// does not keep the deployment's name, so it is looked for by `NAME`.
fn filter(query: Vec<(String, String)>) -> Result<RunFilter> {
    let mut tags = BTreeMap::new();
    let mut given: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, value) in &query {
        if name == "tag" {
            let (name, value) = value.split_once('=').ok_or_else(|| {
                ApiError::invalid_request(format!("`{value}` is no tag; write `tag=NAME=VALUE`"))
            })?;
            if tags.insert(name.to_owned(), value.to_owned()).is_some() {
                let text = format!("tag `{name}` is asked for twice; a run has one value of it");
                return Err(ApiError::invalid_request(text));
            }
        } else if given.insert(name, value).is_some() {
            return Err(ApiError::invalid_request(format!("`{name}` is given twice")));
        }
    }
    let mut take = |name| given.remove(name);
    let invalid =
        |name: &str, error: &dyn std::fmt::Display| ApiError::invalid_request(format!("{name}: {error}"));
    let time = |name: &str, text: Option<&str>| {
        let at = text.map(parse_moment).transpose();
        at.map_err(|error| invalid(name, &error))
    };
    let filter = RunFilter {
        status: take("status")
            .map(str::parse::<RunStatus>)
            .transpose()
            .map_err(|error| invalid("status", &error))?,
        workflow: take("workflow").map(|name| name.rsplit('/').next().unwrap_or_default().to_owned()),
        parent: take("parent").map(RunId::new).transpose()?,
        tags: Tags::new(tags)?,
        created_after: time("created_after", take("created_after"))?,
        created_before: time("created_before", take("created_before"))?,
        after: take("cursor").map(RunId::new).transpose()?,
        limit: page_size(
            take("limit")
                .map(str::parse::<usize>)
                .transpose()
                .map_err(|error| invalid("limit", &error))?,
        )?,
    };
    match given.keys().next() {
        None => Ok(filter),
        Some(name) => Err(ApiError::invalid_request(format!(
            "unknown field `{name}`, expected one of `status`, `workflow`, `parent`, `tag`, \
             `created_after`, `created_before`, `limit`, `cursor`"
        ))),
    }
}

#[derive(Serialize)]
pub struct RunList {
    runs: Vec<RunInfo>,
    /// Gives the next page; `null` at the end.
    next_cursor: Option<RunId>,
}

/// `GET /v1/runs`: newest first.
pub async fn list(
    State(engine): State<Engine>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Json<RunList>> {
    let mut filter = filter(query)?;
    let limit = filter.limit;
    filter.limit += 1;
    let mut runs = engine.runs(filter).await?;
    let more = runs.len() > limit;
    runs.truncate(limit);
    let next_cursor = runs.last().filter(|_| more).map(|run| run.id.clone());
    Ok(Json(RunList { runs, next_cursor }))
}

#[derive(Serialize)]
pub struct RunDetails {
    #[serde(flatten)]
    run: RunInfo,
    hooks: Vec<HookInfo>,
}

/// `GET /v1/runs/{id}`
pub async fn show(State(engine): State<Engine>, Path(id): Path) -> Result<Json<RunDetails>> {
    let id = RunId::new(id)?;
    let run = engine.run(&id).await?;
    let hooks = engine.hooks_of(&id).await?;
    Ok(Json(RunDetails { run, hooks }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalQuery {
    #[serde(default)]
    from: Seq,
    limit: Option<usize>,
}

#[derive(Serialize)]
pub struct JournalPage {
    entries: Vec<EntryView>,
    /// Where the next page begins; `null` when there is no entry after these.
    next: Option<Seq>,
}

#[derive(Serialize)]
struct EntryView {
    seq: Seq,
    at: Timestamp,
    event: &'static str,
    fields: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<Box<RawValue>>,
}

impl From<Entry> for EntryView {
    fn from(entry: Entry) -> Self {
        let body = entry
            .body
            .and_then(|body| RawValue::from_string(body.text_or_null().to_owned()).ok());
        let event = entry.event.name();
        Self {
            seq: entry.seq,
            at: entry.at,
            event,
            fields: fields(&entry.event),
            body,
        }
    }
}

/// An event's fields, without its name.
fn fields(event: &Event) -> Map<String, Value> {
    match serde_json::to_value(event) {
        Ok(Value::Object(mut named)) => match named.remove(event.name()) {
            Some(Value::Object(fields)) => fields,
            _ => Map::new(),
        },
        // Events without fields are bare names.
        _ => Map::new(),
    }
}

/// `GET /v1/runs/{id}/journal`
pub async fn journal(
    State(engine): State<Engine>,
    Path(id): Path,
    Query(query): Query<JournalQuery>,
) -> Result<Json<JournalPage>> {
    let limit = page_size(query.limit)?;
    let mut entries = engine.journal(&RunId::new(id)?, query.from, limit + 1).await?;
    let next = entries.get(limit).map(|entry| entry.seq);
    entries.truncate(limit);
    let entries = entries.into_iter().map(EntryView::from).collect();
    Ok(Json(JournalPage { entries, next }))
}

/// The longest wait for a result; whoever wants to wait longer asks again.
const MAX_WAIT: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResultQuery {
    #[serde(default, deserialize_with = "duration")]
    wait: Duration,
}

/// `GET /v1/runs/{id}/result?wait=30s`: how the run stands, as soon as it has ended or is blocked.
pub async fn result(
    State(engine): State<Engine>,
    Path(id): Path,
    Query(query): Query<ResultQuery>,
) -> Result<Json<RunResult>> {
    if query.wait > MAX_WAIT {
        let text = format!(
            "wait is at most {} s; ask again to wait longer",
            MAX_WAIT.as_secs()
        );
        return Err(ApiError::invalid_request(text));
    }
    Ok(Json(engine.result(&RunId::new(id)?, query.wait).await?))
}

// ---- act --------------------------------------------------------------------------------------------

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpgradeBody {
    /// A digest, or the name of a deployment.
    component: String,
    /// Also where it does not replay the run.
    #[serde(default)]
    force: bool,
}

/// `POST /v1/runs/{id}/upgrade`
pub async fn upgrade(
    State(engine): State<Engine>,
    Path(id): Path,
    JsonBody(body): JsonBody<UpgradeBody>,
) -> Result<Json<RunInfo>> {
    let digest = engine.component_named(&body.component).await?;
    Ok(Json(engine.upgrade(&RunId::new(id)?, digest, body.force).await?))
}

/// `POST /v1/runs/{id}/cancel`: its workflow is told, and ends in its time. 202 until it has.
pub async fn cancel(
    State(engine): State<Engine>,
    Path(id): Path,
    JsonBody(EmptyBody {}): JsonBody<EmptyBody>,
) -> Result<(StatusCode, Json<RunInfo>)> {
    let run = engine.cancel(&RunId::new(id)?).await?;
    let status = match run.status.is_terminal() {
        true => StatusCode::OK,
        false => StatusCode::ACCEPTED,
    };
    Ok((status, Json(run)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RerunBody {
    id: Option<String>,
    #[serde(default)]
    hooks: Vec<StartHookBody>,
    #[serde(default)]
    repeat_unkeyed: bool,
}

/// `POST /v1/runs/{id}/rerun`: a new run of the same workflow with the same input.
pub async fn rerun(
    State(engine): State<Engine>,
    Path(of): Path,
    Key(key): Key,
    JsonBody(body): JsonBody<RerunBody>,
) -> Result<(StatusCode, Json<StartReceipt>)> {
    let request = RerunRequest {
        of: RunId::new(of)?,
        id: body.id.map(RunId::new).transpose()?,
        hooks: body
            .hooks
            .into_iter()
            .map(StartHookBody::into_hook)
            .collect::<Result<_>>()?,
        repeat_unkeyed: body.repeat_unkeyed,
        key,
    };
    Ok(started(engine.rerun(request).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkBody {
    /// Position of the last entry that both runs share.
    at: Seq,
    id: Option<String>,
    /// A digest, or the name of a deployment.
    component: Option<String>,
    #[serde(default)]
    hooks: Vec<ForkHookBody>,
    #[serde(default)]
    repeat_unkeyed: bool,
    #[serde(default)]
    force: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForkHookBody {
    token: String,
    /// The number of the hook that gets the token, or the token that the run has for it.
    #[serde(rename = "for")]
    replaces: Option<ReplacedBody>,
    #[serde(default, deserialize_with = "duration")]
    min_retention: Duration,
    metadata: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected the number of a hook, or its token")]
enum ReplacedBody {
    Number(HookNo),
    Token(String),
}

impl ForkHookBody {
    fn into_hook(self) -> Result<ForkHook> {
        let replaces = match self.replaces {
            None => None,
            Some(ReplacedBody::Number(number)) => Some(Replaced::Number(number)),
            Some(ReplacedBody::Token(token)) => Some(Replaced::Token(HookToken::new(token)?)),
        };
        let hook = StartHookBody {
            token: self.token,
            min_retention: self.min_retention,
            metadata: self.metadata,
        };
        Ok(ForkHook {
            hook: hook.into_hook()?,
            replaces,
        })
    }
}

/// `POST /v1/runs/{id}/fork`: a new run that goes on from an entry of this one's journal.
pub async fn fork(
    State(engine): State<Engine>,
    Path(of): Path,
    Key(key): Key,
    JsonBody(body): JsonBody<ForkBody>,
) -> Result<(StatusCode, Json<StartReceipt>)> {
    let hooks = body.hooks.into_iter().map(ForkHookBody::into_hook);
    let request = ForkRequest {
        of: RunId::new(of)?,
        at: body.at,
        id: body.id.map(RunId::new).transpose()?,
        component: body.component,
        hooks: hooks.collect::<Result<_>>()?,
        repeat_unkeyed: body.repeat_unkeyed,
        force: body.force,
        key,
    };
    Ok(started(engine.fork(request).await?))
}

/// `POST /v1/runs/{id}/terminate`: at once, and without its workflow.
pub async fn terminate(
    State(engine): State<Engine>,
    Path(id): Path,
    JsonBody(EmptyBody {}): JsonBody<EmptyBody>,
) -> Result<Json<RunInfo>> {
    Ok(Json(engine.terminate(&RunId::new(id)?).await?))
}

/// Exactly one of `result`, `error` and `retry`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolveBody {
    call: Option<CallNo>,
    /// `null` is a result.
    #[serde(default, deserialize_with = "present")]
    result: Option<Box<RawValue>>,
    error: Option<ErrorBody>,
    #[serde(default)]
    retry: bool,
}

fn present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// A message, or one with the value of the step's error type.
#[derive(Deserialize)]
#[serde(untagged)]
enum ErrorBody {
    Message(String),
    Typed(TypedError),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypedError {
    message: String,
    error: Option<Value>,
}

impl ResolveBody {
    fn into_resolution(self) -> Result<Resolution> {
        match (self.result, self.error, self.retry) {
            (Some(value), None, false) => Ok(Resolution::Result(value.get().into())),
            (None, Some(ErrorBody::Message(message)), false) => {
                Ok(Resolution::Error { message, error: None })
            }
            (None, Some(ErrorBody::Typed(TypedError { message, error })), false) => {
                Ok(Resolution::Error { message, error })
            }
            (None, None, true) => Ok(Resolution::Retry),
            _ => Err(ApiError::invalid_request(
                "say exactly one of `result`, `error` and `retry: true`",
            )),
        }
    }
}

/// `POST /v1/runs/{id}/resolve`
pub async fn resolve(
    State(engine): State<Engine>,
    Path(id): Path,
    JsonBody(body): JsonBody<ResolveBody>,
) -> Result<Json<RunInfo>> {
    let call = body.call;
    let resolution = body.into_resolution()?;
    Ok(Json(
        engine.resolve_step(&RunId::new(id)?, call, resolution).await?,
    ))
}

/// Says nothing, but in JSON; see [`JsonBody`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmptyBody {}

/// `POST /v1/runs/{id}/retry`
pub async fn retry(
    State(engine): State<Engine>,
    Path(id): Path,
    JsonBody(EmptyBody {}): JsonBody<EmptyBody>,
) -> Result<Json<RunInfo>> {
    Ok(Json(engine.retry(&RunId::new(id)?).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryBody {
    workflow: Option<String>,
    #[serde(default = "step_failed")]
    reason: BlockReason,
}

fn step_failed() -> BlockReason {
    BlockReason::StepFailed
}

/// `POST /v1/runs/retry`: every run that is blocked for this reason.
pub async fn retry_all(
    State(engine): State<Engine>,
    JsonBody(body): JsonBody<RetryBody>,
) -> Result<Json<RetryReceipt>> {
    let request = RetryRequest {
        workflow: body.workflow,
        reason: body.reason,
    };
    Ok(Json(engine.retry_all(request).await?))
}

/// `POST /v1/runs/{id}/replay`: against the component in the body, or the run's own when there is none.
pub async fn replay(
    State(engine): State<Engine>,
    Path(id): Path,
    ComponentBytes(bytes): ComponentBytes,
) -> Result<Json<ReplayReport>> {
    let id = RunId::new(id)?;
    let component = match bytes.is_empty() {
        true => None,
        false => Some(engine.load(bytes.as_ref().into()).await?),
    };
    Ok(Json(engine.replay(&id, component).await?))
}

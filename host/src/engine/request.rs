//! What callers ask of the engine, and what they are told.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::ids::{Digest, EventName, HookToken, IdempotencyKey, RunId, Tags};
use crate::journal::{Divergence, HookNo, RunStatus, Seq, Timestamp};
use crate::sandbox::Trap;
use crate::store::{BlockReason, Blocked, Part};

/// A run to be started.
#[derive(Debug, Clone)]
pub struct StartRequest {
    /// `workflow`, or `deployment/workflow` where several deployments have one of that name.
    pub workflow: String,
    /// JSON: an object keyed by parameter name.
    pub input: Arc<str>,
    /// Made by the host when absent.
    pub id: Option<RunId>,
    /// Claimed beside the token that the workflow declares.
    pub hooks: Vec<StartHook>,
    /// Least retention of every token that the start claims, in milliseconds; 0 asks for none. The longest of what
    /// is asked for and declared counts.
    pub min_retention_ms: u64,
    pub on_conflict: ConflictPolicy,
    /// The run is admitted now and begins then.
    pub start_at: Option<Timestamp>,
    pub tags: Tags,
    pub key: Option<IdempotencyKey>,
}

/// A run to be run again as a new one.
#[derive(Debug, Clone)]
pub struct RerunRequest {
    pub of: RunId,
    /// Made by the host when absent.
    pub id: Option<RunId>,
    /// All that the new run claims.
    pub hooks: Vec<StartHook>,
    /// Also the steps may run again whose second time nobody can tell from the first.
    pub repeat_unkeyed: bool,
    pub key: Option<IdempotencyKey>,
}

/// A run to be forked: a new one that goes on from an entry of its journal.
#[derive(Debug, Clone)]
pub struct ForkRequest {
    pub of: RunId,
    /// Position of the last entry that the fork shares.
    pub at: Seq,
    /// Made by the host when absent.
    pub id: Option<RunId>,
    /// What carries the fork, a digest or the name of a deployment; the run's own when absent.
    pub component: Option<String>,
    /// All that the fork claims: each for a hook that is open at that entry. Others are closed for it.
    pub hooks: Vec<ForkHook>,
    /// Also the steps may run again whose second time nobody can tell from the first, or that run at most once.
    pub repeat_unkeyed: bool,
    /// Also a component that does something else than the shared entries hold.
    pub force: bool,
    pub key: Option<IdempotencyKey>,
}

/// What a fork claims instead of a token that it does not get.
#[derive(Debug, Clone)]
pub struct ForkHook {
    pub hook: StartHook,
    /// The hook that gets it; the first open one that no other names when absent.
    pub replaces: Option<Replaced>,
}

/// A hook of a run, as people name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Replaced {
    Number(HookNo),
    Token(HookToken),
}

/// What a start does when one of its tokens is held.
#[derive(Debug, Clone, Default)]
pub enum ConflictPolicy {
    /// It fails with [`Error::HookConflict`](super::Error::HookConflict).
    #[default]
    Fail,
    /// It is given the run that holds the tokens, where that is of the same workflow.
    Attach,
    /// It delivers a payload to the run that holds the tokens.
    Deliver(StartPayload),
    /// It takes the tokens: the runs that hold them are asked to cancel, and the new one begins when they have ended.
    Replace,
}

/// The payload that a start brings.
#[derive(Debug, Clone)]
pub struct StartPayload {
    /// One of the start's tokens; its first when absent.
    pub token: Option<HookToken>,
    /// JSON.
    pub payload: Arc<str>,
    /// The payload is the first of the run that is started as well, not only of one that is there.
    pub always: bool,
}

#[derive(Debug, Clone)]
pub struct StartHook {
    pub token: HookToken,
    /// Milliseconds, counted from admission.
    pub min_retention_ms: u64,
    pub metadata: Option<Value>,
}

/// A start that was carried out, now or by the same request before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StartReceipt {
    pub run_id: RunId,
    /// False when the id or a token led to a run that exists.
    pub started: bool,
    /// Position in that run's journal of the payload that the start brought, where it was delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivered: Option<Seq>,
    /// The runs that held its tokens before, for a start that replaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<RunId>,
    /// How the run stands that was there, for a start that attaches.
    #[serde(flatten)]
    pub attached: Option<Attached>,
}

/// The run that held the token of a start, as it was then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attached {
    pub status: RunStatus,
    /// It was started with the same input.
    pub input_matches: bool,
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What a run came to, once it has ended.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Outcome {
    /// What the workflow returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<RawValue>>,
}

impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        let texts = |it: &Self| {
            let text = |value: &Option<Box<RawValue>>| value.as_ref().map(|value| value.get().to_owned());
            (text(&it.output), text(&it.error))
        };
        texts(self) == texts(other)
    }
}

impl Eq for Outcome {}

/// A payload to be delivered.
#[derive(Debug, Clone)]
pub struct DeliverRequest {
    pub token: HookToken,
    /// JSON.
    pub payload: Arc<str>,
    pub key: Option<IdempotencyKey>,
}

/// An event: every workflow that waits for it starts.
#[derive(Debug, Clone)]
pub struct EmitRequest {
    pub event: EventName,
    /// JSON. Becomes the input of what starts; see `host/docs/events.md`.
    pub payload: Arc<str>,
    /// The same id again, with an event of this name, starts nothing and is answered as the first time.
    pub id: Option<IdempotencyKey>,
}

/// An event that was carried out, now or when it was first sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmitReceipt {
    pub event: EventName,
    pub parts: Vec<Part>,
}

/// What a person makes of a step that blocks its run.
#[derive(Debug, Clone, PartialEq)]
pub enum Resolution {
    /// It took effect, and this is its result, JSON.
    Result(Arc<str>),
    /// It failed. `error` is the value of the step's error type, where the workflow looks at it.
    Error { message: String, error: Option<Value> },
    /// It is run again.
    Retry,
}

/// Which blocked runs to let go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryRequest {
    /// Only those of this workflow.
    pub workflow: Option<String>,
    pub reason: BlockReason,
}

/// The runs that go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RetryReceipt {
    pub retried: u64,
    pub runs: Vec<RunId>,
}

/// A component that was given a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeployReceipt {
    pub name: String,
    pub digest: Digest,
    pub manifest: Value,
}

/// A name that was taken away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RemovalReceipt {
    pub name: String,
    /// What it stood for.
    pub digest: Digest,
}

/// A workflow that can be started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkflowInfo {
    pub name: String,
    pub deployment: String,
    pub component: Digest,
    pub description: Option<String>,
    /// As the manifest has it.
    pub manifest: Value,
}

/// How a run stands, with its outcome once it has one.
#[derive(Debug, Clone, Serialize)]
pub struct RunResult {
    pub run_id: RunId,
    pub status: RunStatus,
    /// What the workflow returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<RawValue>>,
    /// Payloads that the run had not read when it ended, of all its hooks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
}

/// What a replay found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplayReport {
    pub run_id: RunId,
    pub component: Digest,
    /// Every recorded call, in order.
    pub calls: Vec<ReplayedCall>,
    pub verdict: Verdict,
    /// Time that the replay took, in microseconds, without loading the journal.
    pub took_us: u64,
    /// Wasm instructions (roughly) that the workflow ran.
    pub fuel: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplayedCall {
    pub call: u32,
    /// Position of the entry that it made.
    pub seq: u64,
    /// For people: `step charge {"order":…}`.
    pub text: String,
    /// The component made the same call again.
    pub matched: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every call matched, and the outcome, if the run has one.
    Agrees,
    Diverged(DivergenceReport),
    Trapped(Trap),
    /// The journal contradicts itself.
    Corrupt(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DivergenceReport {
    #[serde(flatten)]
    pub divergence: Divergence,
    pub message: String,
    /// Recorded and requested call, line by line.
    pub diff: String,
}

impl From<Divergence> for DivergenceReport {
    fn from(divergence: Divergence) -> Self {
        Self {
            message: divergence.to_string(),
            diff: divergence.diff(),
            divergence,
        }
    }
}

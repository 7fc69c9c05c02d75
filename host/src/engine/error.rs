//! What can go wrong with a request, for callers to decide on.

use super::blobs::BlobError;
use super::request::Verdict;
use crate::ids::{Digest, EventName, HookToken, NameError, RunId};
use crate::journal::{CallNo, RunStatus, Seq};
use crate::sandbox::LoadError;
use crate::store::{BlockReason, Cap, Owner, StoreError};

/// Why the engine did not do what was asked. Nothing was written, unless a variant says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no workflow `{0}` is deployed")]
    UnknownWorkflow(String),
    #[error("workflow `{name}` is deployed under several names; say which: {}", .candidates.join(", "))]
    AmbiguousWorkflow { name: String, candidates: Vec<String> },
    /// The input does not fit the workflow's schema, or lacks what its token is made of.
    #[error("the input does not fit workflow `{workflow}`: {what}")]
    InvalidInput { workflow: String, what: String },
    /// No workflow that waits for the event can start with its payload.
    #[error("the payload of event `{event}` fits no workflow that waits for it: {what}")]
    InvalidEvent { event: EventName, what: String },
    /// The request contradicts itself or a rule that needs no database to check.
    #[error("{0}")]
    InvalidRequest(String),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("a retention of {asked_ms} ms is over the limit of {limit_ms} ms")]
    RetentionTooLong { asked_ms: u64, limit_ms: u64 },
    #[error("{what} has {bytes} bytes; the limit is {limit}")]
    TooLarge {
        what: &'static str,
        bytes: u64,
        limit: u64,
    },

    #[error("hook token `{token}` is held by run {} ({})", .owner.run, .owner.status)]
    HookConflict { token: HookToken, owner: Owner },
    #[error("run id `{0}` was used for another request")]
    RunIdConflict(RunId),
    #[error("this idempotency key was used for another request")]
    KeyConflict,

    /// Without a key made from data; for a fork also those that run at most once.
    #[error("run {run} has steps without a key made from data, which would take effect once more: {}", .steps.join(", "))]
    UnkeyedSteps { run: RunId, steps: Vec<String> },

    /// The workflow reads the hook that its declared token makes, and a rerun claims only what it names.
    #[error(
        "workflow `{workflow}` reads the hook of its token, which a rerun does not claim: it claims what the request \
         names, and this one names nothing"
    )]
    RerunNeedsHook { workflow: String },

    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error("run {run} has no entry {seq}: its last is {last}")]
    EntryNotFound { run: RunId, seq: Seq, last: Seq },
    #[error("run {run} has ended at entry {seq}: a fork can go on from entry {last} at the latest")]
    EndsThere { run: RunId, seq: Seq, last: Seq },
    /// A component does something else than a journal holds.
    #[error("component {} does not do what run {run} did: {what}", .component.short())]
    DoesNotReplay {
        run: RunId,
        component: Digest,
        what: String,
        verdict: Box<Verdict>,
    },

    #[error("no run `{0}`")]
    RunNotFound(RunId),
    #[error("no schedule `{0}`")]
    ScheduleNotFound(String),
    #[error("no hook `{0}`")]
    HookNotFound(HookToken),
    #[error("hook `{token}` takes no more payloads: run {} is {}", .owner.run, .owner.status)]
    HookEnded { token: HookToken, owner: Owner },
    #[error(
        "hook `{token}` holds as many payloads as it may that run {} has not read ({}, {} bytes)",
        .owner.run, .cap.payloads, .cap.bytes
    )]
    HookFull {
        token: HookToken,
        owner: Owner,
        cap: Cap,
    },
    #[error("the payload does not fit hook `{token}`: {what}")]
    InvalidPayload { token: HookToken, what: String },
    /// A person said what a step came to, and that is not what the step returns.
    #[error("the result does not fit step `{step}` of run {run} (call {call}): {what}")]
    InvalidResult {
        run: RunId,
        step: String,
        call: CallNo,
        what: String,
    },
    #[error("run {run} has ended ({status})")]
    RunEnded { run: RunId, status: RunStatus },

    #[error("run {run} is {status}: it waits for nobody's decision")]
    NotBlocked { run: RunId, status: RunStatus },
    /// What blocks the run is not mended by what was asked.
    #[error("run {run} is blocked for another reason: {reason}")]
    BlockedOtherwise { run: RunId, reason: BlockReason },
    #[error("run {run} is blocked at call {call}, not at the one named")]
    BlockedElsewhere { run: RunId, call: CallNo },

    #[error("no component {0} is deployed")]
    UnknownComponent(Digest),
    #[error("no component is deployed as `{0}`")]
    UnknownDeployment(String),
    #[error("the stored component {0} is not as it was deployed; deploy it again")]
    DamagedComponent(Digest),
    #[error(transparent)]
    Component(#[from] LoadError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub type Result<T> = std::result::Result<T, Error>;

//! Where journals live: few methods, each one transaction, each saying what survives once it returned.
//!
//! The in-memory model is the specification; SQLite must agree with it under random operations. Times come
//! in with the requests. Nothing here assumes that there is only one host.

mod decide;
mod memory;
mod sqlite;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::{ConcurrencyGroup, Digest, EventName, HookToken, IdempotencyKey, RunId, StreamName, Tags};
use crate::journal::{
    Body, CallNo, CancelReason, Concurrency, Entry, Forked, HookNo, HookSpec, Lineage, LogBatch, LogLevel,
    LogLine, LogMark, NewEntry, RunStatus, Seq, Started, StreamWrite, Timestamp,
};

pub use memory::MemoryStore;
pub use sqlite::{AfterCommit, OpenError, SqliteOptions, SqliteStore};

/// Which life of which host owns a run. A host that was replaced holds an old fence, and its writes are
/// refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fence(pub u64);

/// Why the store could not do what was asked. Rules of the product (a conflict, a closed hook) are
/// outcomes, not errors.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Nothing was written; the same request may succeed later.
    #[error("the database cannot be written now: {0}")]
    Unavailable(String),
    /// Nothing was written; the same request may succeed once there is room.
    #[error("there is no room for the database to grow: {0}")]
    Full(String),
    /// Another host took over; this one must stop.
    #[error("another host has taken over this database")]
    Fenced,
    /// What was written is unknown; the process must end and recovery must read what is there.
    #[error("the database failed: {0}; restart the host")]
    Fatal(String),
    /// What is stored contradicts itself. Only the run named is affected.
    #[error("the journal of run {run} is damaged: {what}")]
    Corrupt { run: RunId, what: String },
    /// The request breaks a rule that its sender must keep (a bug in the host): nothing was written.
    #[error("request refused by the store: {0}")]
    Invalid(String),
}

impl StoreError {
    /// Whether the same request may succeed later.
    pub fn may_retry(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Full(_))
    }
}

pub type Result<T> = std::result::Result<T, StoreError>;

/// How long receipts, ids and tokens of ended runs are remembered, in milliseconds.
pub const TOMBSTONE_MS: u64 = 30 * 24 * 60 * 60 * 1000;

// ---- requests and outcomes -------------------------------------------------------------------------

/// A run to be admitted.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRun {
    pub id: RunId,
    /// Pins workflow, component, limits and hooks; becomes entry 0.
    pub started: Started,
    pub input: Body,
    /// Over what the caller asked for (workflow, input, hooks), so that "the same request again" is known.
    pub request: Digest,
    pub key: Option<IdempotencyKey>,
    pub on_conflict: OnConflict,
    pub now: Timestamp,
}

/// A run to be admitted with the beginning of another one's journal.
#[derive(Debug, Clone, PartialEq)]
pub struct NewFork {
    pub id: RunId,
    /// Becomes the entry after the copied ones.
    pub forked: Forked,
    /// Over what the caller asked for, so that "the same request again" is known.
    pub request: Digest,
    pub key: Option<IdempotencyKey>,
    pub now: Timestamp,
}

impl NewFork {
    /// What the fork claims.
    pub fn specs(&self) -> Vec<HookSpec> {
        self.forked.hooks.iter().map(|(_, spec)| spec.clone()).collect()
    }

    /// Where the run comes from.
    pub fn lineage(&self) -> Lineage {
        Lineage::Fork {
            of: self.forked.of.clone(),
            upto: self.forked.upto,
        }
    }
}

/// What a start does when one of its tokens is held.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum OnConflict {
    /// It is told who holds it.
    #[default]
    Fail,
    /// It is given the run that holds it, where that is of the same workflow.
    Attach,
    /// It gives its payload to the run that holds it.
    Deliver(StartDelivery),
    /// It takes the token: the run that holds it is asked to cancel, and the new one begins when that has ended.
    Replace,
}

/// The payload that a start brings.
#[derive(Debug, Clone, PartialEq)]
pub struct StartDelivery {
    /// One of the start's own tokens.
    pub token: HookToken,
    pub payload: Body,
    /// The payload is the first of the new run as well, when there is one.
    pub always: bool,
    /// The hook that the payload was checked against; the outcome is `Moved` when it would go to another.
    pub checked: Option<HookRef>,
    pub cap: Cap,
}

/// How much a hook keeps that was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cap {
    pub payloads: u64,
    pub bytes: u64,
}

impl Default for Cap {
    fn default() -> Self {
        Self {
            payloads: 10_000,
            bytes: 64 << 20,
        }
    }
}

/// The answer to a start. With a key it is the receipt and given again as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Admission {
    /// Run, entry 0, claims, receipt and wake are there, all of them. `replaced` are the runs that held its tokens.
    /// `fresh`: since this request; not in its receipt, as little as `woken`, the other runs that have something to do
    /// because of it.
    Started {
        run: RunId,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        replaced: Vec<RunId>,
        #[serde(skip)]
        fresh: bool,
        #[serde(skip)]
        woken: Vec<RunId>,
    },
    /// The id was used before for the same request.
    Existing { run: RunId },
    /// One of the tokens is held.
    HookConflict { token: HookToken, owner: Owner },
    /// The run that holds the token was there before. `input_matches`: it was started with the same input.
    Attached { owner: Owner, input_matches: bool },
    /// The payload is in the journal of the run that holds the token. `entry` as in [`Delivered::Accepted`].
    Delivered {
        receipt: DeliveryReceipt,
        #[serde(skip)]
        entry: Option<Box<Entry>>,
    },
    /// The run that holds the token takes no more payloads.
    HookEnded { token: HookToken, owner: Owner },
    /// The hook holds as much as it may that was not read. Never stored.
    HookFull { token: HookToken, owner: Owner },
    /// The payload would go to another hook than it was checked against. Never stored.
    Moved,
    /// The id was used before for another request.
    IdConflict { run: RunId },
    /// The key was used before for another request. Never stored.
    KeyConflict,
}

impl Admission {
    /// The run that a start was answered with, its own or another.
    pub fn run(&self) -> Option<&RunId> {
        match self {
            Self::Started { run, .. } | Self::Existing { run } | Self::IdConflict { run } => Some(run),
            Self::HookConflict { owner, .. }
            | Self::Attached { owner, .. }
            | Self::HookEnded { owner, .. }
            | Self::HookFull { owner, .. } => Some(&owner.run),
            Self::Delivered { receipt, .. } => Some(&receipt.run_id),
            Self::Moved | Self::KeyConflict => None,
        }
    }

    /// What the same request is answered with for as long as receipts are kept; `None` when it is to be tried anew.
    pub fn receipt(&self) -> Option<Self> {
        match self {
            Self::HookFull { .. } | Self::Moved | Self::KeyConflict => None,
            Self::Started { run, replaced, .. } => Some(Self::Started {
                run: run.clone(),
                replaced: replaced.clone(),
                fresh: false,
                woken: Vec::new(),
            }),
            Self::Delivered { receipt, .. } => Some(Self::Delivered {
                receipt: receipt.clone(),
                entry: None,
            }),
            _ => Some(self.clone()),
        }
    }
}

/// Who holds a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub run: RunId,
    pub workflow: String,
    pub status: RunStatus,
}

/// Runs to be admitted together, since one thing happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Emission {
    pub source: Source,
    /// Keeps the same event from being carried out twice; among those of its source.
    pub id: Option<IdempotencyKey>,
    /// Over the event's payload, so that "the same event again" is known.
    pub request: Digest,
    pub parts: Vec<NewPart>,
    pub now: Timestamp,
}

/// Where an event comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Somebody said so.
    Event(EventName),
    /// The clock.
    Schedule {
        name: ScheduleName,
        /// The schedule has dealt with everything up to here, with this. A schedule that is no longer there, or has come
        /// as far already, starts nothing. `None` leaves the schedule as it is.
        done_until: Option<Timestamp>,
    },
}

impl Source {
    /// Among which an id is one. No token holds a control character, so that no delivery has such a scope.
    fn scope(&self) -> String {
        match self {
            Self::Event(name) => format!("\n{name}"),
            Self::Schedule { name, .. } => format!("\n\n{name}"),
        }
    }
}

/// A scheduled workflow of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScheduleName {
    pub deployment: String,
    pub workflow: String,
}

impl std::fmt::Display for ScheduleName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.deployment, self.workflow)
    }
}

/// A schedule that a component declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSchedule {
    pub workflow: String,
    /// When it fires; JSON that the store does not look into.
    pub spec: String,
}

/// A schedule that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSchedule {
    pub name: ScheduleName,
    pub spec: String,
    /// Everything up to here was dealt with.
    pub done_until: Timestamp,
}

/// What an event is to one workflow.
#[derive(Debug, Clone, PartialEq)]
pub struct NewPart {
    /// As callers name it.
    pub workflow: String,
    /// The run to be admitted, or why there can be none. A run that meets a held token is a conflict, whatever its
    /// `on_conflict` says; its key is not looked at.
    pub start: std::result::Result<Box<NewRun>, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Emitted {
    /// What became of every part, in order. `fresh`: since this request; else this is the receipt.
    Done { parts: Vec<Part>, fresh: bool },
    /// The id was used before for another payload.
    KeyConflict,
}

/// What an event came to at one workflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub workflow: String,
    #[serde(flatten)]
    pub outcome: PartOutcome,
}

/// What an event came to, as guests are told.
pub fn parts_document(parts: &[Part]) -> String {
    serde_json::json!({ "parts": parts }).to_string()
}

impl Part {
    /// The run that holds its token.
    pub fn owner(&self) -> Option<&Owner> {
        match &self.outcome {
            PartOutcome::Conflict { owner, .. } => Some(owner),
            PartOutcome::Started { .. } | PartOutcome::Refused { .. } => None,
        }
    }

    /// The run that was started.
    pub fn run(&self) -> Option<&RunId> {
        match &self.outcome {
            PartOutcome::Started { run } => Some(run),
            PartOutcome::Conflict { .. } | PartOutcome::Refused { .. } => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartOutcome {
    /// Run, entry 0, claims and wake are there.
    Started { run: RunId },
    /// One of its tokens is held.
    Conflict { token: HookToken, owner: Owner },
    /// It cannot be started with this payload; why, in words.
    Refused { message: String },
}

/// Entries that a run's owner wants appended, and whether the run can rest after them.
#[derive(Debug, Clone, PartialEq)]
pub struct Append {
    pub run: RunId,
    pub fence: Fence,
    /// The last seq that the owner has applied.
    pub seen: Seq,
    pub entries: Vec<NewEntry>,
    /// The guest has observed everything up to its own entries and waits. Has no effect when others wrote
    /// after `seen`.
    pub park: Option<Park>,
    /// Lines for the run's log, written when its entries are. Lines that are there are not added again; those over the
    /// bounds of a run are counted.
    pub logs: LogBatch,
    pub now: Timestamp,
}

/// When a resting run becomes due by itself; a delivery makes it due at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Park {
    pub wake_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// Every entry after `seen`, whoever wrote it, without gaps.
    pub entries: Vec<Entry>,
    pub parked: bool,
    pub status: RunStatus,
    /// Other runs that have something to do because of this: children that were started, the family of a run that
    /// ended, and who waited for it to end.
    pub woken: Vec<RunId>,
}

/// A payload for whoever holds a token.
#[derive(Debug, Clone, PartialEq)]
pub struct Delivery {
    pub token: HookToken,
    pub payload: Body,
    /// Over the payload's canonical form, so that "the same request again" is known however it is spelled.
    pub request: Digest,
    pub key: Option<IdempotencyKey>,
    /// The hook that the payload was checked against; the outcome is `Moved` when the token now leads to
    /// another.
    pub hook: Option<HookRef>,
    pub cap: Cap,
    pub now: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookRef {
    pub run: RunId,
    pub hook: HookNo,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivered {
    /// The payload is in the journal. `entry` is what was written, when the run is due with it; absent when the
    /// run waits for something else or is blocked, and when this is the receipt of an earlier request with the
    /// same key.
    Accepted {
        receipt: DeliveryReceipt,
        entry: Option<Box<Entry>>,
    },
    /// Nobody holds the token and its tombstone is over.
    NotFound,
    /// The owner ended or the hook was closed.
    Ended {
        owner: Owner,
    },
    /// The hook holds as much as it may that was not read.
    Full {
        owner: Owner,
    },
    /// The key was used before on this token for another payload.
    KeyConflict,
    Moved,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryReceipt {
    pub run_id: RunId,
    /// Position in the run's journal.
    pub seq: Seq,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disposed {
    /// The hook is closed and its token free.
    Freed {
        run: RunId,
    },
    /// The token was free already; nothing was written.
    Free {
        run: RunId,
    },
    NotFound,
}

/// A hook as whoever looks it up sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HookInfo {
    pub token: HookToken,
    pub run_id: RunId,
    pub hook: HookNo,
    pub state: HookState,
    pub owner: Owner,
    pub metadata: Option<Value>,
    /// Delivered and not yet known to be taken by the guest.
    pub unread: u64,
    pub claimed_at: Timestamp,
    /// When retention ends; the token is held at least until the run ends.
    pub retained_until: Timestamp,
    /// Where and how it takes requests of whoever knows its URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<crate::journal::HookUrl>,
    #[serde(skip)]
    pub payload: crate::journal::PayloadType,
    #[serde(skip)]
    pub component: Digest,
}

/// A payload that a hook was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedPayload {
    /// Its place among the payloads of its hook; from 0.
    pub number: u64,
    /// Position in the run's journal.
    pub seq: Seq,
    pub at: Timestamp,
    /// The guest is known to have taken it.
    pub read: bool,
    pub body: Body,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookState {
    /// Takes deliveries.
    Open,
    /// Takes no more; its run is live and holds the token.
    Closed,
    /// The run ended; retention holds the token.
    Retained,
    /// Anybody may claim the token; this is its tombstone.
    Freed,
}

/// Why a run cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    pub reason: BlockReason,
    /// For people: what happened and what to do.
    pub message: String,
    /// The step that waits for a person, where it is one that blocks the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<HeldStep>,
    /// For programs; its form depends on the reason.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub detail: Value,
}

/// A step that is not attempted before a person says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldStep {
    pub call: CallNo,
    pub name: String,
    /// The last that began.
    pub attempt: u32,
    /// The same in every attempt.
    pub key: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockReason {
    Nondeterminism,
    Trap,
    CorruptJournal,
    /// Nobody knows whether a step took effect.
    UnknownOutcome,
    /// A step has no retries left.
    StepFailed,
    /// A step's key may be forgotten where it was used.
    KeyExpired,
    /// The component cannot be loaded.
    Component,
    /// The host asked its store for what breaks a rule, or panicked while it carried the run on.
    HostFault,
}

impl std::fmt::Display for BlockReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Nondeterminism => "nondeterminism",
            Self::Trap => "trap",
            Self::CorruptJournal => "corrupt_journal",
            Self::UnknownOutcome => "unknown_outcome",
            Self::StepFailed => "step_failed",
            Self::KeyExpired => "key_expired",
            Self::Component => "component",
            Self::HostFault => "host_fault",
        })
    }
}

/// What a person decides about the step that blocks a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Settlement {
    pub run: RunId,
    /// The step that is meant; whichever blocks the run when absent.
    pub call: Option<CallNo>,
    /// For which the decision is meant.
    pub reasons: &'static [BlockReason],
    pub decision: Decision,
    pub now: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// The step's outcome is this result, JSON.
    Result(Body),
    /// The step's outcome is this failure.
    Failure(Body),
    /// It is tried again.
    Retry,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// The decision is in the journal and the run is due.
    Done,
    NotFound,
    Ended {
        status: RunStatus,
    },
    NotBlocked {
        status: RunStatus,
    },
    /// The run is blocked for a reason that this decision does not mend.
    OtherReason {
        reason: BlockReason,
    },
    /// Another step blocks it.
    OtherCall {
        call: CallNo,
    },
}

/// Why a run that was admitted has not begun. Nothing that comes from outside lets it begin before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Waits {
    /// Its start named a time.
    StartAt { until: Timestamp },
    /// Its start replaced runs, and these have not ended. Where it named a time too, the run begins not before that.
    Predecessors {
        runs: Vec<RunId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// As many runs of its group are at work as may be. Said by the engine, which counts them; a store does not know.
    Concurrency {
        /// Made from the input; absent when all runs of the workflow are counted together.
        key: Option<String>,
        limit: NonZeroU32,
        /// Runs that began to wait earlier; absent when so many wait that this one does so in the store alone.
        ahead: Option<u64>,
    },
}

impl Waits {
    /// What a run waits for that is admitted at `now` and replaces nobody.
    pub fn of(started: &Started, now: Timestamp) -> Option<Self> {
        let until = started.start_at?.min(decide::LATEST);
        (until > now).then_some(Self::StartAt { until })
    }

    /// When the run begins by itself.
    pub fn wake_at(&self) -> Option<Timestamp> {
        match self {
            Self::StartAt { until } => Some(*until),
            Self::Predecessors { .. } | Self::Concurrency { .. } => None,
        }
    }
}

/// A run with something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueRun {
    pub run: RunId,
    pub concurrency: Option<Concurrency>,
}

/// A run as lists and lookups show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunInfo {
    pub id: RunId,
    pub workflow: String,
    /// What carries the run now: entry 0's component, or that of the last upgrade.
    pub component: Digest,
    pub status: RunStatus,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// When a run that is suspended or has not begun becomes due by itself.
    pub wake_at: Option<Timestamp>,
    /// Why the run is to end, since it was asked to.
    pub cancel_requested: Option<CancelReason>,
    pub waits: Option<Waits>,
    /// The runs whose place it took, and whoever else had to end before it began, or still has to. Of one that went on
    /// as another, that other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub predecessors: Vec<RunId>,
    /// What limits how many runs such as this one are at work at once.
    pub concurrency: Option<Concurrency>,
    pub blocked: Option<Blocked>,
    /// The run that started it.
    pub parent: Option<RunId>,
    /// Where it comes from, unless somebody just started it.
    pub lineage: Option<Lineage>,
    /// Tokens claimed at start.
    pub tokens: Vec<HookToken>,
    pub tags: Tags,
    /// Starts that met this run: by token, or by the same id or key again. Kept beside the journal; a crash may
    /// lose the last.
    pub duplicates: u64,
    /// Entries in the journal.
    pub entries: u64,
}

/// A run with a piece of its journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    pub run: RunInfo,
    pub entries: Vec<Entry>,
    /// How many chunks of output workflow code has written, by stream.
    pub written: BTreeMap<StreamName, u64>,
    /// How far workflow code has come in writing to the log.
    pub logged: Option<LogMark>,
}

/// Which runs to list, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunFilter {
    pub status: Option<RunStatus>,
    pub workflow: Option<String>,
    /// Started by this run, or going on for one that was.
    pub parent: Option<RunId>,
    /// All of these.
    pub tags: Tags,
    /// Admitted then or later.
    pub created_after: Option<Timestamp>,
    /// Admitted earlier.
    pub created_before: Option<Timestamp>,
    /// Continue after this run of an earlier page.
    pub after: Option<RunId>,
    pub limit: usize,
}

/// How a run is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Its guest is told and may tidy up. A run of which no guest code ran (`executing` says that some does now),
    /// or that is blocked, ends at once.
    Ask { reason: CancelReason, executing: bool },
    /// Without its guest.
    Terminate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The request is in the journal, now or from before, and the run is due.
    Requested,
    /// The run has ended with this.
    Ended,
    NotFound,
    /// The run had ended before.
    Over {
        status: RunStatus,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upgraded {
    /// The run is due with its new component.
    Done,
    NotFound,
    /// The run has ended.
    Ended {
        status: RunStatus,
    },
}

/// A component as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredComponent {
    pub digest: Digest,
    pub bytes: Arc<[u8]>,
    /// What `describe` answered.
    pub manifest: Arc<str>,
}

/// A name given to a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    pub name: String,
    pub digest: Digest,
    pub manifest: Arc<str>,
    pub deployed_at: Timestamp,
}

/// Which lines of a run's log to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFilter {
    /// Index of the first.
    pub from: u64,
    pub limit: usize,
    /// Of this level or above.
    pub level: LogLevel,
}

/// A piece of a run's log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogPage {
    /// Each with its place in the log, from 0, in order.
    pub lines: Vec<(u64, LogLine)>,
    /// Lines of this run, whatever their place and level, that were not kept.
    pub dropped: u64,
}

/// A chunk that a step writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkWrite {
    pub run: RunId,
    pub fence: Fence,
    pub write: StreamWrite,
    pub now: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The writer's chunk of this number is there, now or from before.
    Done,
    /// Bounds of a stream or a run are reached; says which.
    Full(&'static str),
    /// The run has ended.
    Ended,
}

/// An output stream of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamInfo {
    pub name: StreamName,
    pub chunks: u64,
    pub bytes: u64,
}

/// A chunk of an output stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Its place in the stream; dense, from 0.
    pub index: u64,
    pub at: Timestamp,
    /// The call of the step that wrote it; `None` for workflow code.
    pub call: Option<CallNo>,
    /// The step's attempt, from 1; 0 for workflow code.
    pub attempt: u32,
    /// JSON.
    pub chunk: Arc<str>,
}

// ---- the trait -------------------------------------------------------------------------------------

/// The database of one deployment of Onemark. Shared by every task of the host.
#[async_trait]
pub trait Store: Send + Sync {
    /// Makes this process the owner of every run. Once it returns, writes with older fences are refused,
    /// also after a crash.
    async fn take_over(&self, now: Timestamp) -> Result<Fence>;

    /// Keeps a component and gives it a name. Once it returns, both survive; the component stays as long
    /// as a run needs it. The same bytes again change only the name. `schedules` are those of this name from now on:
    /// one that was there with the same spec goes on where it was, others begin now or end.
    async fn deploy(
        &self,
        name: &str,
        component: StoredComponent,
        schedules: Vec<NewSchedule>,
        now: Timestamp,
    ) -> Result<()>;

    /// Takes a name away, and the schedules of it; false when nothing has it. The component stays, and so does all that
    /// its runs left.
    async fn remove_deployment(&self, name: &str) -> Result<bool>;

    /// Every schedule, by name.
    async fn schedules(&self) -> Result<Vec<StoredSchedule>>;

    /// What each name stands for, by name.
    async fn deployments(&self) -> Result<Vec<Deployment>>;

    async fn component(&self, digest: Digest) -> Result<Option<StoredComponent>>;

    /// Admits a run: run, entry 0, every claim, receipt and wake, or nothing of it. Checks key, then id,
    /// then tokens in order. A held token belongs to a run that has not ended or whose retention has not
    /// passed. What happens then is in `on_conflict`; a run that takes the tokens of others waits from its admission on
    /// for them to end, and the end of the last is told to it in the transaction of that end; a payload that is delivered instead is there once this
    /// returns, in the same transaction in which the token was found held.
    async fn admit(&self, run: NewRun) -> Result<Admission>;

    /// What [`Store::admit`] would say of the key, or else the id, before it looks at anything else; `None` when
    /// neither was used. So a request that was answered before gets its answer also when it could no longer be
    /// admitted.
    async fn recall(
        &self,
        id: Option<&RunId>,
        key: Option<&IdempotencyKey>,
        request: Digest,
        now: Timestamp,
    ) -> Result<Option<Admission>>;

    /// Admits a run whose journal begins with the entries of another one, up to the one named, as they stand there: same
    /// bytes, same checksums. What follows from them is as if they had been written here, but no token is claimed, no
    /// run is started and no chunk is written again; what the run does not own of it, the entries after the copied
    /// ones tell its guest. Key, id and tokens are checked as by [`Store::admit`], with the same receipts; all in one
    /// transaction. Refuses an entry that is not there, or at which the run has ended.
    async fn fork(&self, fork: NewFork) -> Result<Admission>;

    /// Admits every run of an event that can be, and keeps its receipt: all in one transaction. Once it returns,
    /// all of them survive. A part that meets a held token, or that cannot start, keeps no other from starting. The
    /// same id again is answered with the receipt, whatever is deployed by then. Where every part is refused there is
    /// no receipt.
    async fn emit(&self, emission: Emission) -> Result<Emitted>;

    /// Live runs that have something to do at `now` and may begin, longest due first. Reads; the same run is named
    /// again until it parks, ends or is blocked. Leaves out the runs of the groups in `but`.
    async fn due(&self, now: Timestamp, limit: usize, but: &[ConcurrencyGroup]) -> Result<Vec<DueRun>>;

    /// When the next run that rests or has not begun becomes due by itself, if that is after `now`.
    async fn next_due(&self, now: Timestamp) -> Result<Option<Timestamp>>;

    /// A run and its entries from `from` on. Verifies the checksums of what it reads; damage is
    /// [`StoreError::Corrupt`]. `None` when there is no such run.
    async fn load(&self, run: &RunId, from: Seq) -> Result<Option<Loaded>>;

    /// At most `limit` entries from `from` on, for people to look at.
    async fn journal(&self, run: &RunId, from: Seq, limit: usize) -> Result<Option<Vec<Entry>>>;

    /// Appends entries to a live run; of one that ended meanwhile it writes nothing and answers with how it ended.
    /// Once it returns the entries survive. Seq, times and the outcome of
    /// `OpenHook` are settled inside the transaction. Entries that the journal already holds after `seen`
    /// (same call, attempt and kind) are not added again, so that an append whose answer was lost can be
    /// sent again.
    ///
    /// A child is admitted, as by [`Store::admit`], in the transaction of its entry, and so are the runs of an event, as
    /// by [`Store::emit`]. The end of a run is told to its
    /// parent, and its children are asked to cancel where that was agreed, in the transaction of the end.
    async fn append(&self, append: Append) -> Result<Appended>;

    /// Appends a step's chunk to a stream of its run, or says why not. Once it answers `Done` the chunk survives. A
    /// number that the writer has used is not written again. (Chunks of workflow code come with [`Store::append`].)
    async fn write_chunk(&self, write: ChunkWrite) -> Result<Written>;

    /// The streams of a run, by name; `None` when there is no such run.
    async fn streams_of(&self, run: &RunId) -> Result<Option<Vec<StreamInfo>>>;

    /// At most `limit` chunks of a stream from index `from` on; none when nothing was written to it. `None` when there
    /// is no such run.
    async fn chunks(
        &self,
        run: &RunId,
        stream: &StreamName,
        from: u64,
        limit: usize,
    ) -> Result<Option<Vec<Chunk>>>;

    /// A piece of a run's log; `None` when there is no such run.
    async fn logs(&self, run: &RunId, filter: LogFilter) -> Result<Option<LogPage>>;

    /// Marks a live run as blocked. Its journal stays as it is.
    async fn block(&self, run: &RunId, fence: Fence, blocked: Blocked) -> Result<()>;

    /// Moves a live run to another component, which must be stored, and clears what blocked it.
    async fn upgrade(&self, run: &RunId, component: Digest, now: Timestamp) -> Result<Upgraded>;

    /// Asks a live run to cancel, or ends it. Names the other runs that have something to do because of it.
    async fn cancel(&self, run: &RunId, ending: Ending, now: Timestamp) -> Result<(Cancelled, Vec<RunId>)>;

    /// Puts a person's decision about a step into the journal and clears the block, or says why not. Once it
    /// answers `Done` the decision survives and the run is due.
    async fn settle_step(&self, settlement: Settlement) -> Result<Settled>;

    /// Puts a payload into the journal of the token's owner, or says why not. Once it answers `Accepted`
    /// the payload survives and the run is due.
    async fn deliver(&self, delivery: Delivery) -> Result<Delivered>;

    /// Closes the hook that holds a token and frees it, whatever the retention.
    async fn dispose(&self, token: &HookToken, now: Timestamp) -> Result<Disposed>;

    /// The hook that holds a token, or else the last one that did, until its tombstone is over.
    async fn hook(&self, token: &HookToken, now: Timestamp) -> Result<Option<HookInfo>>;

    /// The payloads of the hook that [`Store::hook`] finds, in order of delivery: at most `limit`, from number
    /// `from` on, read or not.
    async fn payloads(
        &self,
        token: &HookToken,
        from: u64,
        limit: usize,
        now: Timestamp,
    ) -> Result<Option<Vec<ReceivedPayload>>>;

    /// The hooks of a run, in order of claiming.
    async fn hooks_of(&self, run: &RunId, now: Timestamp) -> Result<Vec<HookInfo>>;

    async fn run(&self, run: &RunId) -> Result<Option<RunInfo>>;

    /// By time of admission, the newest first; of one time, the one admitted last.
    async fn runs(&self, filter: RunFilter) -> Result<Vec<RunInfo>>;
}

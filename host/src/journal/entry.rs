//! What a journal holds.

use std::num::NonZeroU32;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::options::{Limits, StepOptions};
use super::outcome::Failure;
use super::status::RunStatus;
use super::stream::StreamWrite;
use crate::ids::{ConcurrencyGroup, Digest, HookToken, RunId, Tags};

/// Position of an entry in its run's journal; dense, from 0.
pub type Seq = u64;
/// Milliseconds since the Unix epoch.
pub type Timestamp = u64;
/// Position of a call in the guest's program order; from 0.
pub type CallNo = u32;
/// Position of a claim among the claims of its run: start's tokens first, then in order of claiming.
pub type HookNo = u32;

/// JSON text that an entry carries beside the chain: the chain holds its length and digest only, so the
/// text can be erased while the journal still verifies.
#[derive(Clone, PartialEq, Eq)]
pub struct Body {
    pub len: u64,
    pub digest: Digest,
    /// `None` once erased.
    pub text: Option<Arc<str>>,
}

impl Body {
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        Self {
            len: text.len() as u64,
            digest: Digest::of(text.as_bytes()),
            text: Some(text),
        }
    }

    /// The text of a body that may be absent or erased; JSON `null` then.
    pub fn shared_text(body: Option<&Self>) -> Arc<str> {
        let text = body.and_then(|body| body.text.clone());
        text.unwrap_or_else(|| "null".into())
    }

    /// The text, shared; JSON `null` when it was erased.
    pub fn shared(&self) -> Arc<str> {
        Self::shared_text(Some(self))
    }

    /// The text, or JSON `null` when it was erased.
    pub fn text_or_null(&self) -> &str {
        self.text.as_deref().unwrap_or("null")
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.text {
            Some(text) => f.write_str(text),
            None => write!(f, "<erased, {} bytes>", self.len),
        }
    }
}

/// One thing that happened in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub seq: Seq,
    /// Never less than that of the entry before, whatever the wall clock does.
    pub at: Timestamp,
    pub event: Event,
    /// What the event says it is; `None` where the event says nothing of a body.
    pub body: Option<Body>,
}

/// What happened. Variants and fields are only ever added, with a default: journals of every released
/// version stay readable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Entry 0. Body: the input.
    Started(Box<Started>),

    /// The guest called a step. Body: its input, unless it is a closure. Of an input over the limit only length
    /// and digest are kept, and the step fails.
    StepScheduled {
        call: CallNo,
        step: String,
        /// A closure of the workflow; its input is what it captured.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        closure: bool,
        /// Pinned here; never compared in replay.
        #[serde(default, skip_serializing_if = "StepOptions::is_default")]
        options: StepOptions,
    },
    /// An attempt began; from 1.
    AttemptStarted {
        call: CallNo,
        attempt: u32,
    },
    /// An attempt failed, and that is not the step's outcome. Body: the failure.
    AttemptFailed {
        call: CallNo,
        attempt: u32,
        /// When the next may begin: backoff with its jitter, or what the error asked for. Absent when none
        /// begins before a person says so; the run is blocked until then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_at: Option<Timestamp>,
        /// Nobody knows whether the attempt took effect.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        outcome_unknown: bool,
    },
    /// A person lets a step be tried again: its retries and the time that its key lives count anew.
    StepRetried {
        call: CallNo,
    },
    /// The step's result is saved; it never runs again. Body: the result.
    StepCompleted {
        call: CallNo,
        attempt: u32,
        /// A person supplied the result.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        resolved: bool,
    },
    /// The step failed for good. Body: the failure. Attempt 0: it was refused before the first.
    StepFailed {
        call: CallNo,
        attempt: u32,
        /// A person supplied the failure.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        resolved: bool,
    },

    /// The guest asked to sleep.
    TimerSet {
        call: CallNo,
        due: Timestamp,
        /// What was asked for, unless it was a date.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        length: Option<u64>,
    },
    TimerFired {
        call: CallNo,
    },

    /// The guest gave a step or timer up. Not numbered, not compared.
    Abandoned {
        call: CallNo,
    },

    /// The guest claimed a token.
    HookClaimed {
        call: CallNo,
        hook: HookNo,
        #[serde(flatten)]
        spec: HookSpec,
        /// The guest named no token; the host made this one.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        generated: bool,
    },
    /// The guest wanted a token that another run owns. Body: the conflict as the guest sees it.
    HookConflicted {
        call: CallNo,
        token: HookToken,
    },
    /// No more deliveries; the token stays claimed. `call` is absent when it came from outside.
    HookClosed {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<CallNo>,
        hook: HookNo,
    },
    /// Closed, and the token freed. `call` is absent when it came from outside; the one event that may
    /// follow a run's end.
    HookDisposed {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<CallNo>,
        hook: HookNo,
        /// The token is now that of a run which takes this one's place.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        replaced: bool,
    },
    /// A delivery. Body: the payload.
    PayloadReceived {
        hook: HookNo,
    },
    /// The guest took this many payloads more. Not numbered, not compared.
    PayloadsTaken {
        hook: HookNo,
        count: u32,
    },

    /// The guest started a run.
    ChildStarted {
        call: CallNo,
        run: RunId,
        /// As asked for.
        workflow: String,
        /// Over the input's canonical form.
        input: Digest,
        #[serde(default, skip_serializing_if = "ParentEnd::is_cancel")]
        on_parent_end: ParentEnd,
    },
    /// The guest wanted a run that cannot be started. Body: the failure.
    ChildRefused {
        call: CallNo,
        workflow: String,
        input: Digest,
    },
    /// A run that the guest started has ended. Body: its value or its failure.
    ChildEnded {
        call: CallNo,
        status: RunStatus,
    },

    /// The guest gave its run a tag.
    Tagged {
        call: CallNo,
        name: String,
        value: String,
    },
    /// The guest emitted an event. Body: what it came to at every workflow that waits for it.
    Emitted {
        call: CallNo,
        name: String,
        /// Over the payload's canonical form.
        payload: Digest,
        /// Those that were started.
        runs: Vec<RunId>,
    },
    /// The guest wanted to emit an event that cannot be. Body: the failure.
    EmitRefused {
        call: CallNo,
        name: String,
        payload: Digest,
    },

    /// The run is to end. What its guest waits for when it observes this completes with the failure `cancelled`;
    /// what it calls afterwards works as ever, so that it can tidy up.
    CancelRequested {
        reason: CancelReason,
    },

    /// Every run that had to end before this one begins has ended. Comes before anything of the guest.
    PredecessorsEnded,

    /// From here on the run is carried by another component.
    Upgraded {
        component: Digest,
    },

    /// What is before was copied from another run's journal. From here on the run is one of its own.
    Forked(Box<Forked>),

    /// The workflow ended, and goes on as another run. Body: that one's input.
    Continued {
        run: RunId,
    },
    /// The workflow returned a value. Body: the value.
    Completed,
    /// The workflow returned an error. Body: the failure.
    Failed,
    /// The run was asked to cancel, and its guest gave up. Body: the failure.
    Cancelled,
    /// The run was ended without its guest, wherever that was; it is cancelled. Body: the failure.
    Terminated,
}

/// What becomes of a child when its parent ends before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParentEnd {
    /// It is asked to cancel.
    #[default]
    Cancel,
    /// It goes on.
    Leave,
}

impl ParentEnd {
    fn is_cancel(&self) -> bool {
        *self == Self::Cancel
    }
}

/// A run that a guest wants to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildStart {
    pub call: CallNo,
    /// As asked for.
    pub workflow: String,
    pub input: Body,
    /// Over the input's canonical form.
    pub input_digest: Digest,
    pub options: ChildOptions,
    /// What the host makes of it before it writes: the run to be admitted, or why none can be.
    pub admission: Option<Result<Box<ChildAdmission>, Failure>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildAdmission {
    pub run: RunId,
    pub started: Started,
}

/// A run that ends and goes on as another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continuation {
    pub input: Body,
    /// Without hooks: it gets those that this run has open.
    pub admission: ChildAdmission,
    /// This run's guest has not observed that it is to cancel, if it is.
    pub carries_cancel: bool,
}

/// The options of `child.start`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChildOptions {
    pub id: Option<String>,
    #[serde(default)]
    pub hooks: Vec<ChildHook>,
    #[serde(default)]
    pub on_parent_end: ParentEnd,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChildHook {
    pub token: String,
    #[serde(default)]
    pub min_retention_ms: u64,
    pub metadata: Option<serde_json::Value>,
}

/// An event that a guest wants to emit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEmit {
    pub call: CallNo,
    /// As asked for.
    pub name: String,
    pub payload: Body,
    /// Over the payload's canonical form.
    pub payload_digest: Digest,
    /// What the host makes of it before it writes: what it is to every workflow, or why it cannot be emitted.
    pub parts: Option<Result<Vec<EmitPart>, Failure>>,
}

/// What an event is to one workflow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmitPart {
    pub workflow: String,
    /// The run to be admitted, or why there can be none.
    pub start: Result<EmitAdmission, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmitAdmission {
    pub run: RunId,
    pub started: Started,
    pub input: Body,
}

/// Why a run is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    /// Somebody asked for it.
    Requested,
    /// The run took longer than it may.
    Timeout,
    /// The run that started it has ended.
    Parent,
    /// Another run takes its place.
    Replaced,
}

impl CancelReason {
    /// What people and guests are told.
    pub fn text(self) -> &'static str {
        match self {
            Self::Requested => "the run was asked to cancel",
            Self::Parent => "the run that started it has ended",
            Self::Replaced => "another run takes its place",
            Self::Timeout => "the run took longer than its timeout allows",
        }
    }
}

/// What a run was admitted with, and everything pinned for its whole life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub workflow: String,
    pub component: Digest,
    /// Seeds every random stream of the workflow.
    pub seed: u64,
    pub limits: Limits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<RunTimeout>,
    /// Claimed with the run; hook 0, 1, …
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    /// Before this time the run does not begin. Its tokens are claimed from admission on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_at: Option<Timestamp>,
    /// Before these, which have not ended, the run does not begin; [`Event::PredecessorsEnded`] says when they have. Set
    /// by the store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub predecessors: Vec<RunId>,
    #[serde(default, skip_serializing_if = "Tags::is_empty")]
    pub tags: Tags,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
}

/// Which runs a run is counted with, and how many of them are at work at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concurrency {
    pub group: ConcurrencyGroup,
    /// As declared when the run was admitted. While the workflow is deployed, the newest deployment's counts.
    pub limit: NonZeroU32,
}

/// Where the journal of a fork parts from the one that it was copied from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forked {
    /// Whose entries are copied: what the guest sees up to here is that run.
    pub of: RunId,
    /// The last of them.
    pub upto: Seq,
    /// Seeds every random stream of the workflow from here on.
    pub seed: u64,
    /// What carries the run from here on.
    pub component: Digest,
    /// Hooks of the copied part that stay, each with the claim that the fork makes for it instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<(HookNo, HookSpec)>,
}

/// How long a run may take, in milliseconds from when it may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTimeout {
    /// After this long it is asked to cancel.
    pub after_ms: u64,
    /// This long after that it ends, whatever its guest does.
    pub grace_ms: u64,
}

/// Where a run comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lineage {
    Child { parent: RunId, call: CallNo },
    Rerun { of: RunId },
    Fork { of: RunId, upto: Seq },
    Continued { from: RunId },
}

/// Largest metadata of a claim, as JSON, in bytes. Not a setting: a guest that asks for more must be told so in
/// every replay.
pub const MAX_METADATA_BYTES: usize = 16 << 10;

/// What a claim is made with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookSpec {
    pub token: HookToken,
    /// Milliseconds, counted from the claim (for start's tokens: from admission). The token stays taken
    /// until this has passed and the run has ended. 0: until the run ends.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retain_ms: u64,
    /// Any JSON, shown to whoever looks the hook up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "PayloadType::is_any")]
    pub payload: PayloadType,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<HookUrl>,
}

/// Makes a hook take requests from whoever knows its URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookUrl {
    /// As it was when the hook was opened, wherever the host is reached now.
    pub url: String,
    pub response: HookResponse,
}

/// Who answers a request to the URL of a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookResponse {
    /// The host, once the payload is kept.
    Automatic,
    /// The run, in its output stream [`RESPONSES`].
    Manual,
}

/// The output stream in which a run answers requests to its hooks.
pub const RESPONSES: &str = "webhook.responses";

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// What payloads a hook accepts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PayloadType {
    /// Any JSON.
    #[default]
    Any,
    /// What the run's workflow declares as its hook's type.
    Declared,
    /// This JSON Schema.
    Schema(serde_json::Value),
}

impl PayloadType {
    fn is_any(&self) -> bool {
        *self == Self::Any
    }
}

/// What a run's owner wants appended. Seq and time are given inside the writing transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewEntry {
    Event {
        event: Event,
        body: Option<Body>,
    },
    /// Becomes `Continued`: the run that goes on is admitted in the same transaction.
    Continue(Box<Continuation>),
    /// Becomes `ChildStarted` or `ChildRefused`, decided inside the transaction.
    StartChild(Box<ChildStart>),
    /// Becomes `Emitted` or `EmitRefused`, decided inside the transaction.
    Emit(Box<NewEmit>),
    /// Becomes `HookClaimed` or `HookConflicted`, decided inside the transaction.
    OpenHook {
        call: CallNo,
        /// The number that the claim gets when it succeeds.
        hook: HookNo,
        spec: HookSpec,
        generated: bool,
    },
    /// Becomes a chunk of an output stream: a row beside the journal, and no entry.
    Write(StreamWrite),
}

impl NewEntry {
    pub fn event(event: Event) -> Self {
        Self::Event { event, body: None }
    }

    pub fn with_body(event: Event, body: Body) -> Self {
        Self::Event {
            event,
            body: Some(body),
        }
    }

    /// Whether this schedules a step.
    pub fn is_step(&self) -> bool {
        matches!(
            self,
            Self::Event {
                event: Event::StepScheduled { .. },
                ..
            }
        )
    }

    /// The call that this completes once it is written, where that follows from what it is.
    pub fn completes_call(&self) -> Option<CallNo> {
        match self {
            Self::Event { event, .. } => event.completes_call(),
            _ => None,
        }
    }
}

impl Event {
    /// The guest disposed its hook.
    pub fn hook_disposed(call: CallNo, hook: HookNo) -> Self {
        Self::HookDisposed {
            call: Some(call),
            hook,
            replaced: false,
        }
    }

    /// Somebody else freed the token of a hook.
    pub fn hook_freed(hook: HookNo) -> Self {
        Self::HookDisposed {
            call: None,
            hook,
            replaced: false,
        }
    }

    /// A run that takes this one's place took the token of a hook.
    pub fn hook_replaced(hook: HookNo) -> Self {
        Self::HookDisposed {
            call: None,
            hook,
            replaced: true,
        }
    }

    /// What the guest's end came to.
    pub fn is_outcome(&self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Failed | Self::Cancelled | Self::Continued { .. }
        )
    }

    /// The number of the call that made this entry, for the events that the guest's calls make.
    pub fn made_by_call(&self) -> Option<CallNo> {
        match self {
            Self::StepScheduled { call, .. }
            | Self::TimerSet { call, .. }
            | Self::HookClaimed { call, .. }
            | Self::HookConflicted { call, .. }
            | Self::ChildStarted { call, .. }
            | Self::ChildRefused { call, .. }
            | Self::Tagged { call, .. }
            | Self::Emitted { call, .. }
            | Self::EmitRefused { call, .. } => Some(*call),
            Self::HookClosed { call, .. } | Self::HookDisposed { call, .. } => *call,
            _ => None,
        }
    }

    /// Whether it tells the guest something when it waits, other than what its own call said at once.
    pub fn is_news(&self) -> bool {
        self.completes_call().is_some()
            || matches!(
                self,
                Self::PayloadReceived { .. }
                    | Self::HookClosed { call: None, .. }
                    | Self::HookDisposed { call: None, .. }
                    | Self::ChildEnded { .. }
                    | Self::CancelRequested { .. }
            )
    }

    /// The call that this entry completes.
    pub fn completes_call(&self) -> Option<CallNo> {
        match self {
            Self::StepCompleted { call, .. }
            | Self::StepFailed { call, .. }
            | Self::TimerFired { call }
            | Self::Emitted { call, .. }
            | Self::EmitRefused { call, .. } => Some(*call),
            _ => None,
        }
    }

    /// What a person decided about a step that had blocked the run.
    pub fn is_decision(&self) -> bool {
        matches!(
            self,
            Self::StepRetried { .. }
                | Self::StepCompleted { resolved: true, .. }
                | Self::StepFailed { resolved: true, .. }
        )
    }

    /// The event's name as it stands in JSON, tables and the UI.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Started(_) => "started",
            Self::StepScheduled { .. } => "step_scheduled",
            Self::AttemptStarted { .. } => "attempt_started",
            Self::AttemptFailed { .. } => "attempt_failed",
            Self::StepRetried { .. } => "step_retried",
            Self::StepCompleted { .. } => "step_completed",
            Self::StepFailed { .. } => "step_failed",
            Self::TimerSet { .. } => "timer_set",
            Self::TimerFired { .. } => "timer_fired",
            Self::Abandoned { .. } => "abandoned",
            Self::HookClaimed { .. } => "hook_claimed",
            Self::HookConflicted { .. } => "hook_conflicted",
            Self::HookClosed { .. } => "hook_closed",
            Self::HookDisposed { .. } => "hook_disposed",
            Self::PayloadReceived { .. } => "payload_received",
            Self::PayloadsTaken { .. } => "payloads_taken",
            Self::ChildStarted { .. } => "child_started",
            Self::ChildRefused { .. } => "child_refused",
            Self::ChildEnded { .. } => "child_ended",
            Self::Tagged { .. } => "tagged",
            Self::Emitted { .. } => "emitted",
            Self::EmitRefused { .. } => "emit_refused",
            Self::CancelRequested { .. } => "cancel_requested",
            Self::PredecessorsEnded => "predecessors_ended",
            Self::Upgraded { .. } => "upgraded",
            Self::Forked(_) => "forked",
            Self::Continued { .. } => "continued",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Terminated => "terminated",
        }
    }
}

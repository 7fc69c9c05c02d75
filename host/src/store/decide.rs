//! What the store decides, as pure functions: both backends fetch the facts, ask here, and write what
//! follows. No SQL decides anything.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{
    Admission, Blocked, Cancelled, Cap, Decision, Delivered, Delivery, Disposed, Emitted, Ending, HookRef,
    HookState, NewFork, NewPart, NewRun, OnConflict, Owner, Park, Part, PartOutcome, Result, Settled,
    Settlement, StartDelivery, StoreError, TOMBSTONE_MS, Waits, Written, parts_document,
};
use crate::ids::{ConcurrencyGroup, Digest, HookToken, RunId, Tags};
use crate::journal::{
    Body, CallNo, CancelReason, ChildAdmission, ChildStart, Concurrency, Continuation, Copied, EmitPart,
    Entry, Event, Failure, FailureKind, HookNo, HookSpec, IllegalTransition, LogLine, NewEmit, NewEntry,
    ParentEnd, RunStatus, Started, StreamWrite, Timestamp,
};

/// The latest time that a store keeps: databases have signed integers. Later ones mean "never".
pub const LATEST: Timestamp = i64::MAX as Timestamp;

impl From<IllegalTransition> for StoreError {
    fn from(illegal: IllegalTransition) -> Self {
        Self::Invalid(illegal.to_string())
    }
}

pub fn no_run(run: &RunId) -> StoreError {
    StoreError::Invalid(format!("there is no run {run}"))
}

pub fn no_component(digest: Digest) -> StoreError {
    StoreError::Invalid(format!("component {digest} is not stored"))
}

/// Whether a run has none of these groups.
pub fn in_none_of(concurrency: Option<&Concurrency>, groups: &[ConcurrencyGroup]) -> bool {
    concurrency.is_none_or(|concurrency| !groups.contains(&concurrency.group))
}

/// The time of an entry after one of time `before`: run time never goes back.
pub fn entry_time(before: Timestamp, now: Timestamp) -> Timestamp {
    now.max(before).min(LATEST)
}

// ---- a run's standing ------------------------------------------------------------------------------

/// Where a run stands: the status that its entries make, and the marks beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// By entries alone: pending, running or ended.
    pub folded: RunStatus,
    pub activity: Activity,
    /// Why the run was asked to cancel, the first time that it was.
    pub cancel_requested: Option<CancelReason>,
    /// How many runs such as it are at work at once is limited, so that it may wait before it goes on.
    pub limited: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Has something to do, whatever the clock says.
    Ready {
        since: Timestamp,
    },
    /// As `Ready`, of a limited run that rested: it does so until its owner writes, which shows that it goes on.
    Woken {
        since: Timestamp,
    },
    /// Rests until somebody writes, or until then.
    Parked {
        wake_at: Option<Timestamp>,
    },
    /// Has not begun and may not yet.
    Waiting(Wait),
    Blocked,
    Ended {
        at: Timestamp,
    },
}

/// What a run waits for that may not begin yet. [`Waits`] says it with the names of the runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Wait {
    StartAt {
        until: Timestamp,
    },
    /// For runs to end, and then until its time has come.
    Predecessors {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
}

impl Wait {
    /// The time that a start named, as long as it has not come.
    fn time(until: Option<Timestamp>, now: Timestamp) -> Option<Self> {
        let until = until?.min(LATEST);
        (until > now).then_some(Self::StartAt { until })
    }

    /// As shown. `live` are the predecessors that have not ended.
    pub fn shown(self, live: Vec<RunId>) -> Waits {
        match self {
            Self::StartAt { until } => Waits::StartAt { until },
            Self::Predecessors { until } => Waits::Predecessors { runs: live, until },
        }
    }
}

/// The activity of a run that waits for nothing but its time.
fn begins(start_at: Option<Timestamp>, now: Timestamp) -> Activity {
    match Wait::time(start_at, now) {
        Some(wait) => Activity::Waiting(wait),
        None => Activity::Ready { since: now },
    }
}

impl Standing {
    /// After entry 0.
    pub fn admitted(event: &Event, at: Timestamp) -> Result<Self> {
        let activity = match event {
            Event::Started(started) if !started.predecessors.is_empty() => {
                let until = started.start_at.map(|until| until.min(LATEST));
                Activity::Waiting(Wait::Predecessors { until })
            }
            Event::Started(started) => begins(started.start_at, at),
            _ => Activity::Ready { since: at },
        };
        let limited = matches!(event, Event::Started(started) if started.concurrency.is_some());
        Ok(Self {
            folded: RunStatus::next(None, event)?,
            activity,
            cancel_requested: None,
            limited,
        })
    }

    /// After one more entry. Whoever wrote it, a resting run has something to do; one that is blocked
    /// stays so until it is upgraded, a person decides about the step that blocked it, or it ends, one that has not
    /// begun until its guest leaves an entry.
    pub fn after(self, event: &Event, at: Timestamp) -> Result<Self> {
        let folded = RunStatus::next(Some(self.folded), event)?;
        let activity = match self.activity {
            Activity::Ended { .. } => self.activity,
            _ if folded.is_terminal() => Activity::Ended { at },
            Activity::Ready { .. } | Activity::Woken { .. } => self.activity,
            Activity::Parked { .. } if self.limited => Activity::Woken { since: at },
            // A fork goes on for itself: it has no predecessors.
            Activity::Waiting(Wait::Predecessors { until })
                if matches!(event, Event::PredecessorsEnded | Event::Forked(_)) =>
            {
                begins(until, at)
            }
            Activity::Waiting(_) if folded == RunStatus::Pending => self.activity,
            Activity::Blocked if !matches!(event, Event::Upgraded { .. }) && !event.is_decision() => {
                self.activity
            }
            Activity::Blocked | Activity::Parked { .. } | Activity::Waiting(_) => {
                Activity::Ready { since: at }
            }
        };
        let cancel_requested = match event {
            Event::CancelRequested { reason } => self.cancel_requested.or(Some(*reason)),
            _ => self.cancel_requested,
        };
        Ok(Self {
            folded,
            activity,
            cancel_requested,
            ..self
        })
    }

    /// Its owner writes: it is at work.
    pub fn at_work(self) -> Self {
        let activity = match self.activity {
            Activity::Woken { since } => Activity::Ready { since },
            activity => activity,
        };
        Self { activity, ..self }
    }

    /// At rest, where it has nothing else to do than what its owner knows. Also when it rests already: its
    /// owner was woken for nothing, or sends the same again.
    pub fn parked(self, park: Park) -> Option<Self> {
        let wake_at = park.wake_at.map(|at| at.min(LATEST));
        let live = !matches!(self.activity, Activity::Blocked | Activity::Ended { .. });
        live.then_some(Self {
            activity: Activity::Parked { wake_at },
            ..self
        })
    }

    pub fn blocked(self) -> Result<Self> {
        if self.folded.is_terminal() {
            let message = format!("a run that is {} cannot be blocked", self.folded);
            return Err(StoreError::Invalid(message));
        }
        Ok(Self {
            activity: Activity::Blocked,
            ..self
        })
    }

    /// Whether these are the entries, all of them, that it was made from.
    pub fn fits(self, entries: &[Entry]) -> bool {
        let folded = entries.iter().try_fold(None, |before, entry| {
            RunStatus::next(before, &entry.event).map(Some)
        });
        folded == Ok(Some(self.folded))
    }

    /// The status as shown.
    pub fn status(self) -> RunStatus {
        match self.activity {
            Activity::Parked { .. } | Activity::Woken { .. } => RunStatus::Suspended,
            Activity::Blocked => RunStatus::Blocked,
            Activity::Ready { .. } | Activity::Waiting(_) | Activity::Ended { .. } => self.folded,
        }
    }

    pub fn ready_since(self) -> Option<Timestamp> {
        match self.activity {
            Activity::Ready { since } | Activity::Woken { since } => Some(since),
            _ => None,
        }
    }

    pub fn wake_at(self) -> Option<Timestamp> {
        match self.activity {
            Activity::Parked { wake_at } => wake_at,
            Activity::Waiting(Wait::StartAt { until }) => Some(until),
            _ => None,
        }
    }

    pub fn waits(self) -> Option<Wait> {
        match self.activity {
            Activity::Waiting(wait) => Some(wait),
            _ => None,
        }
    }

    /// It may not begin before others have ended.
    pub fn awaits_predecessors(self) -> bool {
        matches!(self.waits(), Some(Wait::Predecessors { .. }))
    }

    /// Since when the run has something to do that it may do at `now`.
    pub fn due_since(self, now: Timestamp) -> Option<Timestamp> {
        self.ready_since().or(self.wake_at().filter(|at| *at <= now))
    }

    pub fn ended_at(self) -> Option<Timestamp> {
        match self.activity {
            Activity::Ended { at } => Some(at),
            _ => None,
        }
    }
}

/// The entry of a payload, when the run is due with it.
pub fn news(entry: Entry, standing: Standing, now: Timestamp) -> Option<Box<Entry>> {
    standing.due_since(now).map(|_| Box::new(entry))
}

// ---- claims ----------------------------------------------------------------------------------------

/// The last claim of a token, with what its fate depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub address: HookRef,
    pub owner: Owner,
    pub owner_ended_at: Option<Timestamp>,
    pub closed: bool,
    pub disposed_at: Option<Timestamp>,
    pub retained_until: Timestamp,
    /// Payloads that are not known to be taken.
    pub unread: Unread,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unread {
    pub payloads: u64,
    pub bytes: u64,
}

impl Unread {
    /// With one more payload.
    pub fn with(self, bytes: u64) -> Self {
        Self {
            payloads: self.payloads + 1,
            bytes: self.bytes + bytes,
        }
    }

    /// Whether `body` would be more than is kept.
    fn is_full_for(self, body: &Body, cap: Cap) -> bool {
        self.payloads >= cap.payloads || self.bytes.saturating_add(body.len) > cap.bytes
    }
}

/// When the retention of a claim ends.
pub fn retained_until(claimed_at: Timestamp, spec: &HookSpec) -> Timestamp {
    claimed_at.saturating_add(spec.retain_ms).min(LATEST)
}

impl Claim {
    pub fn state(&self, now: Timestamp) -> HookState {
        if self.disposed_at.is_some() {
            return HookState::Freed;
        }
        match (self.owner_ended_at, self.closed) {
            (None, false) => HookState::Open,
            (None, true) => HookState::Closed,
            // A request may have been made before the owner ended, and have waited since.
            (Some(ended), _) if now.max(ended) < self.retained_until => HookState::Retained,
            (Some(_), _) => HookState::Freed,
        }
    }

    /// Nobody else can have the token.
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.state(now) != HookState::Freed
    }

    /// Free for so long that nobody is told about the last owner any more.
    pub fn is_forgotten(&self, now: Timestamp) -> bool {
        let freed_at = self
            .disposed_at
            .or(self.owner_ended_at.map(|ended| ended.max(self.retained_until)));
        freed_at.is_some_and(|at| at.saturating_add(TOMBSTONE_MS) <= now)
    }
}

/// The conflict as the guest sees it.
#[derive(Serialize)]
struct Conflict<'a> {
    token: &'a HookToken,
    run_id: &'a RunId,
    workflow: &'a str,
    status: RunStatus,
}

/// The run that wants a token.
pub struct Opener<'a> {
    pub run: &'a RunId,
    pub standing: Standing,
    /// How many claims it has made.
    pub claims: HookNo,
}

/// A guest's wish for a token, as a request carries it.
pub struct Opening {
    pub call: CallNo,
    pub hook: HookNo,
    pub spec: HookSpec,
    pub generated: bool,
}

/// What the wish becomes. `last` is the token's last claim.
pub fn open_hook(
    opener: &Opener<'_>,
    opening: Opening,
    last: Option<&Claim>,
    now: Timestamp,
) -> Result<(Event, Option<Body>)> {
    let Opening {
        call,
        hook,
        spec,
        generated,
    } = opening;
    let status = opener.standing.folded;
    if status.is_terminal() {
        let message = format!("a run that is {status} opens no hook");
        return Err(StoreError::Invalid(message));
    }
    let Some(held) = last.filter(|claim| claim.is_held(now)) else {
        let claims = opener.claims;
        if hook != claims {
            let message = format!("the next claim of the run is number {claims}, not {hook}");
            return Err(StoreError::Invalid(message));
        }
        return Ok((
            Event::HookClaimed {
                call,
                hook,
                spec,
                generated,
            },
            None,
        ));
    };
    let owner = &held.owner;
    if owner.run == *opener.run {
        let message = format!("the run holds token {} already", spec.token);
        return Err(StoreError::Invalid(message));
    }
    let conflict = Conflict {
        token: &spec.token,
        run_id: &owner.run,
        workflow: &owner.workflow,
        status: owner.status,
    };
    let conflict =
        serde_json::to_string(&conflict).map_err(|error| StoreError::Invalid(error.to_string()))?;
    let token = spec.token;
    Ok((Event::HookConflicted { call, token }, Some(Body::new(conflict))))
}

// ---- what an owner appends -------------------------------------------------------------------------

/// What makes two entries of a run's owner the same one, sent twice.
#[derive(PartialEq, Eq, Hash)]
enum Identity {
    Call(&'static str, CallNo, u32),
    Taken(HookNo, u32),
    Cancel(CancelReason),
    End,
}

/// `None` for what never comes from the run's owner.
fn identity(event: &Event) -> Option<Identity> {
    Some(match event {
        Event::Started(_)
        | Event::PayloadReceived { .. }
        | Event::ChildEnded { .. }
        | Event::PredecessorsEnded
        | Event::Upgraded { .. }
        | Event::Forked(_)
        | Event::StepRetried { .. }
        | Event::StepCompleted { resolved: true, .. }
        | Event::StepFailed { resolved: true, .. }
        | Event::HookClosed { call: None, .. }
        | Event::HookDisposed { call: None, .. } => return None,
        Event::HookClaimed { call, .. } | Event::HookConflicted { call, .. } => open_identity(*call),
        Event::ChildStarted { call, .. } | Event::ChildRefused { call, .. } => child_identity(*call),
        Event::Emitted { call, .. } | Event::EmitRefused { call, .. } => emit_identity(*call),
        Event::AttemptStarted { call, attempt }
        | Event::AttemptFailed { call, attempt, .. }
        | Event::StepCompleted { call, attempt, .. }
        | Event::StepFailed { call, attempt, .. } => Identity::Call(event.name(), *call, *attempt),
        Event::StepScheduled { call, .. }
        | Event::TimerSet { call, .. }
        | Event::TimerFired { call }
        | Event::Abandoned { call }
        | Event::Tagged { call, .. }
        | Event::HookClosed { call: Some(call), .. }
        | Event::HookDisposed { call: Some(call), .. } => Identity::Call(event.name(), *call, 0),
        Event::PayloadsTaken { hook, count } => Identity::Taken(*hook, *count),
        Event::CancelRequested { reason } => Identity::Cancel(*reason),
        Event::Completed | Event::Failed | Event::Cancelled | Event::Terminated | Event::Continued { .. } => {
            Identity::End
        }
    })
}

fn open_identity(call: CallNo) -> Identity {
    Identity::Call("open_hook", call, 0)
}

fn child_identity(call: CallNo) -> Identity {
    Identity::Call("start_child", call, 0)
}

fn emit_identity(call: CallNo) -> Identity {
    Identity::Call("emit", call, 0)
}

/// What is left to write of an append.
#[derive(Debug, PartialEq, Eq)]
pub struct Unwritten {
    pub entries: Vec<NewEntry>,
    /// The journal has entries after `seen` that this append did not bring.
    pub others_wrote: bool,
}

/// Leaves out what the journal holds already: an append whose answer was lost may be sent again. And what a component
/// asked for from which the run was taken meanwhile. `tail` is the journal after `seen`.
pub fn unwritten(tail: &[Entry], mut entries: Vec<NewEntry>) -> Unwritten {
    let mut written: HashMap<Identity, usize> = HashMap::new();
    for identity in tail.iter().filter_map(|entry| identity(&entry.event)) {
        *written.entry(identity).or_default() += 1;
    }
    let before = entries.len();
    // What was begun goes on being true; what the component before asked for since, nobody asked the new one.
    if tail
        .iter()
        .any(|entry| matches!(entry.event, Event::Upgraded { .. }))
    {
        entries.retain(|entry| matches!(entry, NewEntry::Event { event, .. } if is_of_attempt(event)));
    }
    if !written.is_empty() {
        entries.retain(|entry| {
            let identity = match entry {
                NewEntry::Event { event, .. } => identity(event),
                NewEntry::OpenHook { call, .. } => Some(open_identity(*call)),
                NewEntry::StartChild(child) => Some(child_identity(child.call)),
                NewEntry::Continue(_) => Some(Identity::End),
                // Known by its number.
                NewEntry::Write(_) => None,
                NewEntry::Emit(emit) => Some(emit_identity(emit.call)),
            };
            match identity.and_then(|identity| written.get_mut(&identity)) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    false
                }
                _ => true,
            }
        });
    }
    Unwritten {
        others_wrote: tail.len() > before - entries.len(),
        entries,
    }
}

fn is_of_attempt(event: &Event) -> bool {
    matches!(
        event,
        Event::AttemptStarted { .. }
            | Event::AttemptFailed { .. }
            | Event::StepCompleted { .. }
            | Event::StepFailed { .. }
    )
}

/// Refuses events that a run's owner may not append as they are.
pub fn check_owner_event(event: &Event) -> Result<()> {
    let name = event.name();
    let settled = matches!(
        event,
        Event::HookClaimed { .. }
            | Event::HookConflicted { .. }
            | Event::ChildStarted { .. }
            | Event::ChildRefused { .. }
            | Event::Continued { .. }
            | Event::Emitted { .. }
            | Event::EmitRefused { .. }
    );
    if settled {
        let message = format!("`{name}` is what the store makes of a hook, a child or an event");
        return Err(StoreError::Invalid(message));
    }
    if identity(event).is_none() {
        let message = format!("`{name}` does not come from the owner of a run");
        return Err(StoreError::Invalid(message));
    }
    Ok(())
}

/// A run's tags with one that its guest has set.
pub fn tagged(tags: &Tags, name: &str, value: &str) -> Result<Tags> {
    let tags = tags.with(name, value);
    tags.map_err(|error| StoreError::Invalid(error.to_string()))
}

/// What streams of a run hold before a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Streamed {
    /// Streams of the run.
    pub streams: u64,
    /// Bytes in all of them.
    pub bytes: u64,
    /// Chunks in the stream that is written to; `None` when it is new.
    pub chunks: Option<u64>,
    /// The number of the writer's next chunk in it.
    pub next: u64,
}

// Bounds of what one run keeps. Workflow code has smaller ones of its own, and is not refused here.
const MAX_STREAM_CHUNKS: u64 = 100_000;
const MAX_RUN_BYTES: u64 = 64 << 20;
const MAX_STREAMS: u64 = 64;

/// Whether a chunk is to be added; or the answer, when it is there or cannot be.
pub fn write_chunk(
    standing: Standing,
    held: Streamed,
    write: &StreamWrite,
) -> Result<std::result::Result<(), Written>> {
    if standing.folded.is_terminal() {
        return Ok(Err(Written::Ended));
    }
    if write.number < held.next {
        return Ok(Err(Written::Done));
    }
    if write.number > held.next {
        let message = format!("chunk {} of a writer whose next is {}", write.number, held.next);
        return Err(StoreError::Invalid(message));
    }
    if write.call.is_none() {
        return Ok(Ok(()));
    }
    if held.chunks.is_some_and(|chunks| chunks >= MAX_STREAM_CHUNKS) {
        return Ok(Err(Written::Full("the stream has 100,000 chunks, its limit")));
    }
    if held.bytes + write.chunk.len() as u64 > MAX_RUN_BYTES {
        let text = "the streams of the run would have more than 64 MiB, their limit";
        return Ok(Err(Written::Full(text)));
    }
    if held.chunks.is_none() && held.streams >= MAX_STREAMS {
        return Ok(Err(Written::Full("the run has 64 streams, its limit")));
    }
    Ok(Ok(()))
}

/// What one run's log keeps. The first lines stay; what comes then is counted.
const MAX_LOG_LINES: u64 = 100_000;
const MAX_LOG_BYTES: u64 = 16 << 20;

/// Whether a log of so many lines and bytes takes this line too.
pub fn takes_line(lines: u64, bytes: u64, line: &LogLine) -> bool {
    lines < MAX_LOG_LINES && bytes + line.text.len() as u64 <= MAX_LOG_BYTES
}

/// Refuses an append whose sender has applied more than there is. `last` is the journal's last position.
pub fn check_seen(seen: u64, last: u64) -> Result<()> {
    if seen > last {
        let message = format!("entry {seen} was seen, but the journal ends at {last}");
        return Err(StoreError::Invalid(message));
    }
    Ok(())
}

/// The payloads left when the guest took `count` of `unread`, which have so many bytes.
pub fn unread_after_take(unread: Unread, count: u32, bytes: u64) -> Result<Unread> {
    let left = unread.payloads.checked_sub(count.into()).ok_or_else(|| {
        StoreError::Invalid(format!(
            "{count} payloads taken of {} that are unread",
            unread.payloads
        ))
    })?;
    Ok(Unread {
        payloads: left,
        bytes: unread.bytes.saturating_sub(bytes),
    })
}

pub fn no_hook(hook: HookNo) -> StoreError {
    StoreError::Invalid(format!("the run has no hook {hook}"))
}

/// What an event came to at one workflow: the answer to its start, or why there was none.
pub fn part(workflow: String, admission: std::result::Result<Admission, String>) -> Part {
    let outcome = match admission {
        Ok(Admission::Started { run, .. }) => PartOutcome::Started { run },
        Ok(Admission::HookConflict { token, owner }) => PartOutcome::Conflict { token, owner },
        Ok(Admission::Existing { run } | Admission::IdConflict { run }) => PartOutcome::Refused {
            message: format!("run id `{run}` was used before"),
        },
        // A part that fails on conflict has no other answer.
        Ok(other) => PartOutcome::Refused {
            message: format!("{other:?}"),
        },
        Err(message) => PartOutcome::Refused { message },
    };
    Part { workflow, outcome }
}

/// What an event that a run emits is to every workflow, or why it cannot be emitted.
pub fn emitted_parts(
    by: &RunId,
    emit: &NewEmit,
    now: Timestamp,
) -> Result<std::result::Result<Vec<NewPart>, Failure>> {
    let part = |part: &EmitPart| NewPart {
        workflow: part.workflow.clone(),
        start: part.start.as_ref().map_err(String::clone).map(|admission| {
            Box::new(NewRun {
                id: admission.run.clone(),
                started: admission.started.clone(),
                input: admission.input.clone(),
                request: Digest::of(format!("{by}/{}/{}", emit.call, part.workflow)),
                key: None,
                on_conflict: OnConflict::Fail,
                now,
            })
        }),
    };
    match &emit.parts {
        None => {
            let message = format!("call {} emits an event that was not prepared", emit.call);
            Err(StoreError::Invalid(message))
        }
        Some(Err(failure)) => Ok(Err(failure.clone())),
        Some(Ok(parts)) => Ok(Ok(parts.iter().map(part).collect())),
    }
}

/// The entry of an event that was or was not emitted.
pub fn emit_entry(emit: NewEmit, parts: std::result::Result<Vec<Part>, Failure>) -> (Event, Option<Body>) {
    let NewEmit {
        call,
        name,
        payload_digest: payload,
        ..
    } = emit;
    let parts = parts.and_then(|parts| match was_emitted(&parts) {
        true => Ok(parts),
        false => {
            let text = format!("the payload of event `{name}` fits no workflow that waits for it");
            Err(Failure::new(FailureKind::Invalid, text))
        }
    });
    match parts {
        Ok(parts) => {
            let runs = parts.iter().filter_map(Part::run).cloned().collect();
            let body = parts_document(&parts);
            (
                Event::Emitted {
                    call,
                    name,
                    payload,
                    runs,
                },
                Some(Body::new(body)),
            )
        }
        Err(failure) => {
            let body = Body::new(failure.to_json());
            (Event::EmitRefused { call, name, payload }, Some(body))
        }
    }
}

/// The answer to a schedule that is no longer there, or has come as far already.
pub fn nothing_to_fire() -> Emitted {
    Emitted::Done {
        parts: Vec::new(),
        fresh: false,
    }
}

/// Whether an event was carried out: there was nobody for it, or somebody whom it fits. What fits nobody is to be tried
/// anew, as if it had not come.
pub fn was_emitted(parts: &[Part]) -> bool {
    let refused = |part: &Part| matches!(part.outcome, PartOutcome::Refused { .. });
    parts.is_empty() || !parts.iter().all(refused)
}

// ---- children ------------------------------------------------------------------------------------

/// What a run that is wanted as a child is to be admitted as. `None` where the host found that it cannot be: the
/// other value is what is written then.
pub fn child(
    parent: &RunId,
    child: &ChildStart,
    now: Timestamp,
) -> Result<std::result::Result<NewRun, Failure>> {
    match &child.admission {
        None => {
            let message = format!("call {} starts a child that was not prepared", child.call);
            Err(StoreError::Invalid(message))
        }
        Some(Err(failure)) => Ok(Err(failure.clone())),
        Some(Ok(admission)) => Ok(Ok(NewRun {
            id: admission.run.clone(),
            started: admission.started.clone(),
            input: child.input.clone(),
            request: Digest::of(format!("{parent}/{}", child.call)),
            key: None,
            on_conflict: OnConflict::Fail,
            now,
        })),
    }
}

/// Why a child is not admitted, from what it meets.
pub fn child_meets(meeting: Meeting) -> Option<Failure> {
    let refused = match meeting {
        Meeting::Free { .. } => return None,
        Meeting::Refuse(refused) => refused,
        Meeting::Deliver { .. } | Meeting::Attach(_) | Meeting::Replace(_) => {
            return Some(Failure::new(FailureKind::Other, "a child goes to no other run"));
        }
    };
    Some(match refused {
        Admission::HookConflict { token, owner } => {
            let text = format!(
                "hook token `{token}` is held by run {} ({})",
                owner.run, owner.status
            );
            Failure {
                error: Some(serde_json::json!({
                    "token": token,
                    "run_id": owner.run,
                    "workflow": owner.workflow,
                    "status": owner.status,
                })),
                ..Failure::new(FailureKind::HookConflict, text)
            }
        }
        Admission::Existing { run } | Admission::IdConflict { run } => {
            let text = format!("run id `{run}` was used for another request");
            Failure::new(FailureKind::RunIdConflict, text)
        }
        other => Failure::new(FailureKind::Other, format!("{other:?}")),
    })
}

/// The entry of a wish for a child that was or was not admitted.
pub fn child_entry(
    child: ChildStart,
    admitted: std::result::Result<RunId, Failure>,
) -> (Event, Option<Body>) {
    let ChildStart {
        call,
        workflow,
        input_digest: input,
        options,
        ..
    } = child;
    match admitted {
        Ok(run) => {
            let on_parent_end = options.on_parent_end;
            let started = Event::ChildStarted {
                call,
                run,
                workflow,
                input,
                on_parent_end,
            };
            (started, None)
        }
        Err(failure) => {
            let body = Body::new(failure.to_json());
            (
                Event::ChildRefused {
                    call,
                    workflow,
                    input,
                },
                Some(body),
            )
        }
    }
}

/// What a parent is told of the end of its child.
pub fn child_ended(call: CallNo, child: &RunId, status: RunStatus, outcome: Option<&Body>) -> (Event, Body) {
    let event = Event::ChildEnded { call, status };
    let text = Body::shared_text(outcome);
    if status == RunStatus::Completed {
        return (event, Body::new(text));
    }
    // What the child's own failure was about; not its kind, which would say that the parent is to cancel.
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Outcome {
        message: Option<String>,
        error: Option<serde_json::Value>,
        causes: Vec<String>,
    }
    let outcome: Outcome = serde_json::from_str(&text).unwrap_or_default();
    let message = match outcome.message {
        Some(message) => format!("child run {child} is {status}: {message}"),
        None => format!("child run {child} is {status}"),
    };
    let failure = Failure {
        causes: outcome.causes,
        error: outcome.error,
        ..Failure::new(FailureKind::Error, message)
    };
    (event, Body::new(failure.to_json()))
}

// ---- continuation --------------------------------------------------------------------------------

/// The run that goes on for one that ends: with the hooks that it has open, of which every token stays taken for as
/// long as before.
pub fn continued(
    run: &RunId,
    continuation: &Continuation,
    hooks: impl IntoIterator<Item = (HookSpec, Timestamp)>,
    now: Timestamp,
) -> NewRun {
    let retained = |(spec, until): (HookSpec, Timestamp)| HookSpec {
        retain_ms: until.saturating_sub(now),
        ..spec
    };
    let ChildAdmission { run: id, started } = continuation.admission.clone();
    NewRun {
        request: Digest::of(format!("{run} goes on as {id}")),
        id,
        started: Started {
            hooks: hooks.into_iter().map(retained).collect(),
            ..started
        },
        input: continuation.input.clone(),
        key: None,
        on_conflict: OnConflict::Fail,
        now,
    }
}

/// What goes on with the run: the request to cancel that its guest has not observed. `awaited`: another run waits for
/// this one to end, and now for the one that goes on, which is asked as well.
pub fn carried(continuation: &Continuation, standing: Standing, awaited: bool) -> Option<Event> {
    let unobserved = standing.cancel_requested.filter(|_| continuation.carries_cancel);
    let reason = unobserved.or(awaited.then_some(CancelReason::Replaced))?;
    Some(Event::CancelRequested { reason })
}

// ---- forks -----------------------------------------------------------------------------------------

/// What the entries that a fork copies come to.
#[derive(Debug, PartialEq, Eq)]
pub struct Forking {
    /// After them, admitted at the time of the fork.
    pub standing: Standing,
    /// What is written after them.
    pub entries: Vec<(Event, Option<Body>)>,
}

/// What is made of a fork that may be admitted at `now`. `copied` is what the journal of the other run holds, up to the
/// entry that the fork names.
pub fn fork(fork: &NewFork, copied: &[Entry], now: Timestamp) -> Result<Forking> {
    let NewFork { forked, .. } = fork;
    let refused = |what: &str| {
        let message = format!("run {} is not forked at entry {}: {what}", forked.of, forked.upto);
        Err(StoreError::Invalid(message))
    };
    let Some((first, rest)) = copied.split_first() else {
        return refused("there is no such run");
    };
    if copied.last().is_none_or(|last| last.seq != forked.upto) {
        return refused("its journal does not reach so far");
    }
    let admitted = Standing::admitted(&first.event, now)?;
    let folded = rest
        .iter()
        .try_fold(admitted, |standing, entry| standing.after(&entry.event, now))?;
    if folded.folded.is_terminal() {
        return refused("it has ended there");
    }
    let stands = Copied::of(copied);
    let open = |hook: HookNo| stands.open_hooks().any(|(number, _)| number == hook);
    if forked.hooks.iter().any(|(hook, _)| !open(*hook)) {
        return refused("a hook that it is to keep is not open there");
    }
    Ok(Forking {
        standing: folded,
        entries: stands.followed_by(forked.clone()),
    })
}

/// The answer to a fork that meets another owner of one of its tokens.
pub fn fork_meets(fork: &NewFork, last: &[Option<Claim>]) -> Option<Admission> {
    let mut claims = fork.forked.hooks.iter().zip(last);
    claims.find_map(|((_, spec), last)| {
        let held = last.as_ref().filter(|claim| claim.is_held(fork.now))?;
        Some(Admission::HookConflict {
            token: spec.token.clone(),
            owner: held.owner.clone(),
        })
    })
}

// ---- cancellation ----------------------------------------------------------------------------------

/// What a wish to end a run comes to.
#[derive(Debug, PartialEq, Eq)]
pub enum Cancellation {
    /// This entry is to be written.
    Write(Event, Option<Body>),
    /// Nothing is.
    Answer(Cancelled),
}

pub fn cancel(standing: Standing, ending: Ending) -> Cancellation {
    if standing.folded.is_terminal() {
        let status = standing.folded;
        return Cancellation::Answer(Cancelled::Over { status });
    }
    let (reason, at_once) = match ending {
        Ending::Terminate => ("the run was terminated", true),
        Ending::Ask { reason, executing } => {
            // One that rests has run, though its guest has left no entry.
            let rests = matches!(standing.activity, Activity::Parked { .. });
            let never_ran = standing.folded == RunStatus::Pending && !rests && !executing;
            let idle = matches!(standing.activity, Activity::Blocked | Activity::Waiting(_));
            (reason.text(), never_ran || idle)
        }
    };
    match ending {
        _ if at_once => {
            let failure = Failure::new(FailureKind::Cancelled, reason);
            Cancellation::Write(Event::Terminated, Some(Body::new(failure.to_json())))
        }
        Ending::Ask { reason, .. } if standing.cancel_requested.is_none() => {
            Cancellation::Write(Event::CancelRequested { reason }, None)
        }
        _ => Cancellation::Answer(Cancelled::Requested),
    }
}

/// What is written for a live child when its parent has ended.
pub fn after_parent(standing: Standing, on_parent_end: ParentEnd) -> Option<(Event, Option<Body>)> {
    let ending = match on_parent_end {
        ParentEnd::Leave => return None,
        ParentEnd::Cancel => Ending::Ask {
            reason: CancelReason::Parent,
            // Some guest code of it may run now.
            executing: true,
        },
    };
    match cancel(standing, ending) {
        Cancellation::Write(event, body) => Some((event, body)),
        Cancellation::Answer(_) => None,
    }
}

/// What is written for a run whose token moves to another; `None` when it has ended, or was asked before.
pub fn cancel_replaced(standing: Standing) -> Option<(Event, Option<Body>)> {
    let ending = Ending::Ask {
        reason: CancelReason::Replaced,
        // Some guest code of it may run now, and the other is to begin only after that.
        executing: true,
    };
    match cancel(standing, ending) {
        Cancellation::Write(event, body) => Some((event, body)),
        Cancellation::Answer(_) => None,
    }
}

/// The answer when the entry is written.
pub fn cancelled(after: Standing) -> Cancelled {
    match after.folded.is_terminal() {
        true => Cancelled::Ended,
        false => Cancelled::Requested,
    }
}

// ---- admission, delivery, disposal -----------------------------------------------------------------

/// Refuses a start that names a token twice.
pub fn check_tokens(hooks: &[HookSpec]) -> Result<()> {
    for (i, spec) in hooks.iter().enumerate() {
        if hooks[..i].iter().any(|other| other.token == spec.token) {
            let message = format!("the start names token {} twice", spec.token);
            return Err(StoreError::Invalid(message));
        }
    }
    Ok(())
}

/// What becomes of a start whose key and id are new.
pub enum Meeting {
    /// Every token is free: the run is admitted, with this payload for one of its hooks if there is one.
    Free { first: Option<(HookNo, Body)> },
    /// The owner gets the start's payload.
    Deliver { hook: HookRef, payload: Body },
    /// The start is given the owner; see [`attached`].
    Attach(Owner),
    /// The run takes the tokens, whoever has them.
    Replace(Replacement),
    /// The start is answered with this, and nothing is admitted.
    Refuse(Admission),
}

/// What a start replaces.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replacement {
    /// The runs that hold its tokens, each with the hooks by which it does.
    pub owners: Vec<(RunId, Vec<HookNo>)>,
    /// The last claimants of all its tokens. Those that have not ended once the owners were asked to cancel, and those
    /// that they wait for themselves, must end before the run begins.
    pub claimants: Vec<RunId>,
}

fn replacement<'a>(last: impl Iterator<Item = &'a Claim>, now: Timestamp) -> Replacement {
    let mut found = Replacement::default();
    // Who was made to give a token up has nothing to do with it any more.
    for claim in last.filter(|claim| claim.disposed_at.is_none()) {
        let HookRef { run, hook } = &claim.address;
        if !found.claimants.contains(run) {
            found.claimants.push(run.clone());
        }
        if !claim.is_held(now) {
            continue;
        }
        match found.owners.iter_mut().find(|(owner, _)| owner == run) {
            Some((_, hooks)) => hooks.push(*hook),
            None => found.owners.push((run.clone(), vec![*hook])),
        }
    }
    found
}

/// `last` holds the last claim of each of the start's tokens, in order.
pub fn meet(new: &NewRun, last: &[Option<Claim>]) -> Result<Meeting> {
    if new.on_conflict == OnConflict::Replace {
        return Ok(Meeting::Replace(replacement(last.iter().flatten(), new.now)));
    }
    let mut held = (new.started.hooks.iter().zip(last))
        .filter_map(|(spec, last)| Some((&spec.token, last.as_ref()?)))
        .filter(|(_, claim)| claim.is_held(new.now));
    let conflict = |(token, claim): (&HookToken, &Claim)| {
        let (token, owner) = (token.clone(), claim.owner.clone());
        Ok(Meeting::Refuse(Admission::HookConflict { token, owner }))
    };
    let Some(first) = held.next() else {
        let first = match &new.on_conflict {
            OnConflict::Deliver(delivery) if delivery.always => {
                let hook = hook_of(&new.started.hooks, &delivery.token)?;
                Some((hook, delivery.payload.clone()))
            }
            _ => None,
        };
        return Ok(Meeting::Free { first });
    };
    if new.on_conflict == OnConflict::Fail {
        return conflict(first);
    }
    // One run can stand for this start only if it has every token that others hold.
    let mut others = held.clone();
    if let Some(other) = others.find(|(_, claim)| claim.owner.run != first.1.owner.run) {
        return conflict(other);
    }
    match &new.on_conflict {
        OnConflict::Attach if first.1.owner.workflow == new.started.workflow => {
            Ok(Meeting::Attach(first.1.owner.clone()))
        }
        OnConflict::Fail | OnConflict::Attach | OnConflict::Replace => conflict(first),
        OnConflict::Deliver(delivery) => {
            match std::iter::once(first)
                .chain(held)
                .find(|(token, _)| **token == delivery.token)
            {
                Some((_, claim)) => Ok(hand_over(delivery, claim, new.now)),
                // The payload's own token is free, so nobody can take it.
                None => conflict(first),
            }
        }
    }
}

/// Where the payload of a start goes that met `claim`.
fn hand_over(delivery: &StartDelivery, claim: &Claim, now: Timestamp) -> Meeting {
    let (token, owner) = (delivery.token.clone(), claim.owner.clone());
    if claim.state(now) != HookState::Open {
        return Meeting::Refuse(Admission::HookEnded { token, owner });
    }
    if delivery.checked.as_ref() != Some(&claim.address) {
        return Meeting::Refuse(Admission::Moved);
    }
    if claim.unread.is_full_for(&delivery.payload, delivery.cap) {
        return Meeting::Refuse(Admission::HookFull { token, owner });
    }
    Meeting::Deliver {
        hook: claim.address.clone(),
        payload: delivery.payload.clone(),
    }
}

/// The answer to a start that is given the run which holds its token. `started_with` is that run's input.
pub fn attached(owner: Owner, input: &Body, started_with: &Body) -> Admission {
    let value = |body: &Body| {
        let text = body.text.as_deref()?;
        serde_json::from_str::<serde_json::Value>(text).ok()
    };
    // What is spelled the same need not be read; what was erased cannot be.
    let input_matches = input.digest == started_with.digest
        || value(input).is_some_and(|input| Some(input) == value(started_with));
    Admission::Attached { owner, input_matches }
}

/// The number of the hook that a start claims with this token.
fn hook_of(hooks: &[HookSpec], token: &HookToken) -> Result<HookNo> {
    (0..)
        .zip(hooks)
        .find(|(_, spec)| spec.token == *token)
        .map(|(hook, _)| hook)
        .ok_or_else(|| {
            StoreError::Invalid(format!(
                "the start has a payload for token {token}, which it does not claim"
            ))
        })
}

/// The answer to a start whose id a run has already.
pub fn same_id(run: RunId, admitted_for: Digest, request: Digest) -> Admission {
    if admitted_for == request {
        Admission::Existing { run }
    } else {
        Admission::IdConflict { run }
    }
}

/// Where a delivery goes, or why it is refused. `last` is the token's last claim.
pub fn deliver(delivery: &Delivery, last: Option<&Claim>) -> std::result::Result<HookRef, Delivered> {
    let Some(claim) = last.filter(|claim| !claim.is_forgotten(delivery.now)) else {
        return Err(Delivered::NotFound);
    };
    if delivery
        .hook
        .as_ref()
        .is_some_and(|checked| *checked != claim.address)
    {
        return Err(Delivered::Moved);
    }
    match claim.state(delivery.now) {
        HookState::Open if claim.unread.is_full_for(&delivery.payload, delivery.cap) => {
            Err(Delivered::Full {
                owner: claim.owner.clone(),
            })
        }
        HookState::Open => Ok(claim.address.clone()),
        HookState::Closed | HookState::Retained | HookState::Freed => Err(Delivered::Ended {
            owner: claim.owner.clone(),
        }),
    }
}

/// Which hook gets disposed, or why none is. `last` is the token's last claim.
pub fn dispose(last: Option<&Claim>, now: Timestamp) -> std::result::Result<HookRef, Disposed> {
    let Some(claim) = last.filter(|claim| !claim.is_forgotten(now)) else {
        return Err(Disposed::NotFound);
    };
    if claim.is_held(now) {
        Ok(claim.address.clone())
    } else {
        Err(Disposed::Free {
            run: claim.owner.run.clone(),
        })
    }
}

/// What becomes of a person's decision, or why nothing does.
pub fn settle_step(
    settlement: Settlement,
    status: RunStatus,
    blocked: Option<&Blocked>,
) -> std::result::Result<(Event, Option<Body>), Settled> {
    if status.is_terminal() {
        return Err(Settled::Ended { status });
    }
    let Some(blocked) = blocked else {
        return Err(Settled::NotBlocked { status });
    };
    let reason = blocked.reason;
    let Some(step) = &blocked.step else {
        return Err(Settled::OtherReason { reason });
    };
    let call = step.call;
    if settlement.call.is_some_and(|asked| asked != call) {
        return Err(Settled::OtherCall { call });
    }
    if !settlement.reasons.contains(&reason) {
        return Err(Settled::OtherReason { reason });
    }
    let (attempt, resolved) = (step.attempt, true);
    Ok(match settlement.decision {
        Decision::Result(value) => (
            Event::StepCompleted {
                call,
                attempt,
                resolved,
            },
            Some(value),
        ),
        Decision::Failure(failure) => (
            Event::StepFailed {
                call,
                attempt,
                resolved,
            },
            Some(failure),
        ),
        Decision::Retry => (Event::StepRetried { call }, None),
    })
}

// ---- receipts --------------------------------------------------------------------------------------

/// The answer to a keyed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt<T> {
    /// Over what was asked.
    pub request: Digest,
    pub answer: T,
    pub at: Timestamp,
}

/// What a key means now.
#[derive(Debug, PartialEq, Eq)]
pub enum Recall<T> {
    /// Nothing was asked with it, or too long ago.
    Fresh,
    /// The same was asked.
    Again(T),
    /// Something else was asked.
    Conflict,
}

pub fn recall<T>(receipt: Option<Receipt<T>>, request: Digest, now: Timestamp) -> Recall<T> {
    match receipt.filter(|receipt| now < receipt_ends(receipt.at)) {
        None => Recall::Fresh,
        Some(receipt) if receipt.request == request => Recall::Again(receipt.answer),
        Some(_) => Recall::Conflict,
    }
}

fn receipt_ends(at: Timestamp) -> Timestamp {
    at.saturating_add(TOMBSTONE_MS)
}

/// Receipts of this time and before may be removed: a day late, so that a clock which is set back a little
/// never asks for one that is gone.
pub fn receipts_over(now: Timestamp) -> Option<Timestamp> {
    const DAY_MS: u64 = 24 * 60 * 60 * 1000;
    now.checked_sub(TOMBSTONE_MS + DAY_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StreamName;
    use crate::journal::{Limits, PayloadType, Started};
    use crate::store::{BlockReason, HeldStep};

    const ENDED: Timestamp = 50;

    fn claim(ended: bool, closed: bool, disposed_at: Option<Timestamp>, until: Timestamp) -> Claim {
        let run = RunId::new("owner").unwrap();
        let status = if ended {
            RunStatus::Completed
        } else {
            RunStatus::Running
        };
        Claim {
            address: HookRef {
                run: run.clone(),
                hook: 0,
            },
            owner: Owner {
                run,
                workflow: "w".into(),
                status,
            },
            owner_ended_at: ended.then_some(ENDED),
            closed,
            disposed_at,
            retained_until: until,
            unread: Unread::default(),
        }
    }

    #[test]
    fn a_token_frees_at_the_later_of_end_and_retention() {
        assert_eq!(claim(false, false, None, 10).state(99), HookState::Open);
        assert_eq!(claim(false, true, None, 10).state(99), HookState::Closed);
        assert_eq!(claim(true, false, None, 100).state(99), HookState::Retained);
        assert_eq!(claim(true, false, None, 100).state(100), HookState::Freed);
        assert_eq!(claim(true, true, Some(60), 100).state(61), HookState::Freed);
        assert_eq!(claim(true, false, None, ENDED).state(10), HookState::Freed);
    }

    #[test]
    fn a_tombstone_counts_from_when_the_token_was_freed() {
        for (claim, freed) in [
            (claim(true, false, None, 0), ENDED),
            (claim(true, false, None, 100), 100),
            (claim(true, false, Some(60), 100), 60),
        ] {
            assert!(!claim.is_forgotten(freed + TOMBSTONE_MS - 1));
            assert!(claim.is_forgotten(freed + TOMBSTONE_MS));
        }
        assert!(!claim(false, true, None, 0).is_forgotten(LATEST));
    }

    #[test]
    fn what_is_sent_twice_is_written_once() {
        let done = |call| Event::StepCompleted {
            call,
            attempt: 1,
            resolved: false,
        };
        let took = Event::PayloadsTaken { hook: 0, count: 1 };
        let tail: Vec<_> = [done(0), Event::PayloadReceived { hook: 0 }, took.clone()]
            .into_iter()
            .zip(1..)
            .map(|(event, seq)| Entry {
                seq,
                at: 0,
                event,
                body: None,
            })
            .collect();
        let sent = [done(0), done(1), took.clone(), took.clone()];
        let left = unwritten(&tail, sent.map(NewEntry::event).into());
        assert_eq!(left.entries, [done(1), took].map(NewEntry::event));
        assert!(left.others_wrote);
        let left = unwritten(&tail[..1], vec![NewEntry::event(done(0))]);
        assert_eq!(
            left,
            Unwritten {
                entries: vec![],
                others_wrote: false
            }
        );
    }

    #[test]
    fn a_run_that_rests_can_be_told_so_again() {
        let ready = Standing {
            folded: RunStatus::Running,
            activity: Activity::Ready { since: 1 },
            cancel_requested: None,
            limited: false,
        };
        let parked = ready.parked(Park { wake_at: Some(5) }).unwrap();
        assert_eq!(parked.parked(Park { wake_at: Some(5) }), Some(parked));
        let later = parked.parked(Park { wake_at: None }).unwrap();
        assert_eq!(later.activity, Activity::Parked { wake_at: None });
    }

    fn new_run(start_at: Option<Timestamp>, tokens: &[&str], on_conflict: OnConflict) -> NewRun {
        let hooks = tokens.iter().map(|token| HookSpec {
            token: HookToken::new(token).unwrap(),
            retain_ms: 0,
            metadata: None,
            payload: PayloadType::Any,
            webhook: None,
        });
        let started = Started {
            timeout: None,
            workflow: "w".into(),
            component: Digest::of("c"),
            seed: 0,
            limits: Limits::default(),
            hooks: hooks.collect(),
            lineage: None,
            start_at,
            predecessors: Vec::new(),
            tags: Tags::default(),
            concurrency: None,
        };
        NewRun {
            id: RunId::new("new").unwrap(),
            started,
            input: Body::new("{}"),
            request: Digest::of("r"),
            key: None,
            on_conflict,
            now: 70,
        }
    }

    #[test]
    fn a_run_that_waits_to_begin_is_not_begun_from_outside() {
        let started = new_run(Some(9), &[], OnConflict::Fail).started;
        let admitted = |at| Standing::admitted(&Event::Started(Box::new(started.clone())), at).unwrap();
        assert_eq!(admitted(9).due_since(9), Some(9));
        let waits = admitted(1);
        let delivered = waits.after(&Event::PayloadReceived { hook: 0 }, 2).unwrap();
        let upgraded = delivered
            .after(
                &Event::Upgraded {
                    component: Digest::of("c"),
                },
                3,
            )
            .unwrap();
        assert_eq!(upgraded, waits);
        assert_eq!((waits.status(), waits.due_since(8)), (RunStatus::Pending, None));
        assert_eq!(waits.due_since(9), Some(9));
        let begun = waits.after(&Event::TimerFired { call: 0 }, 9).unwrap();
        assert_eq!((begun.waits(), begun.ready_since()), (None, Some(9)));
        let rests = waits.parked(Park { wake_at: None }).unwrap();
        assert_eq!((rests.status(), rests.waits()), (RunStatus::Suspended, None));
        let ended = waits.after(&Event::Cancelled, 4).unwrap();
        assert_eq!((ended.ended_at(), ended.due_since(99)), (Some(4), None));
    }

    #[test]
    fn a_start_hands_its_payload_to_the_checked_and_open_hook_only() {
        let open = claim(false, false, None, 0);
        let meets = |last: Option<Claim>, checked: Option<HookRef>, payload: &str| {
            let cap = Cap {
                payloads: 1,
                bytes: 3,
            };
            let delivery = StartDelivery {
                token: HookToken::new("t").unwrap(),
                payload: Body::new(payload),
                always: true,
                checked,
                cap,
            };
            let new = new_run(None, &["t"], OnConflict::Deliver(delivery));
            match meet(&new, &[last]).unwrap() {
                Meeting::Free { first } => format!("first {}", first.unwrap().0),
                Meeting::Deliver { hook, .. } => format!("to {}", hook.run),
                Meeting::Attach(_) => "attach".to_owned(),
                Meeting::Replace(_) => "replace".to_owned(),
                Meeting::Refuse(Admission::HookEnded { .. }) => "ended".to_owned(),
                Meeting::Refuse(Admission::HookFull { .. }) => "full".to_owned(),
                Meeting::Refuse(Admission::Moved) => "moved".to_owned(),
                Meeting::Refuse(answer) => panic!("{answer:?}"),
            }
        };
        let checked = Some(open.address.clone());
        let unread = Unread {
            payloads: 1,
            bytes: 1,
        };
        let full = Claim {
            unread,
            ..open.clone()
        };
        assert_eq!(meets(None, None, "1"), "first 0");
        assert_eq!(meets(Some(claim(true, false, None, 0)), None, "1"), "first 0");
        assert_eq!(meets(Some(open.clone()), checked.clone(), "1"), "to owner");
        assert_eq!(meets(Some(open.clone()), None, "1"), "moved");
        assert_eq!(meets(Some(open), checked.clone(), "1234"), "full");
        assert_eq!(meets(Some(full), checked.clone(), "1"), "full");
        assert_eq!(
            meets(Some(claim(false, true, None, 0)), checked.clone(), "1"),
            "ended"
        );
        assert_eq!(meets(Some(claim(true, false, None, 99)), checked, "1"), "ended");
    }

    #[test]
    fn a_start_replaces_who_holds_its_tokens_and_comes_after_who_had_them() {
        let new = new_run(None, &["a", "b", "c"], OnConflict::Replace);
        let of = |run: &str, hook, claim: Claim| {
            let run = RunId::new(run).unwrap();
            Some(Claim {
                address: HookRef {
                    run: run.clone(),
                    hook,
                },
                owner: Owner { run, ..claim.owner },
                ..claim
            })
        };
        let replaces = |last: [Option<Claim>; 3]| match meet(&new, &last).unwrap() {
            Meeting::Replace(Replacement { owners, claimants }) => {
                let owners = owners.iter().map(|(run, hooks)| format!("{run} {hooks:?}"));
                let claimants = claimants.iter().map(RunId::to_string);
                (owners.collect::<Vec<_>>(), claimants.collect::<Vec<_>>())
            }
            _ => panic!("it replaces"),
        };
        let open = || claim(false, false, None, 0);
        let (owners, claimants) = replaces([None, None, None]);
        assert_eq!((owners.len(), claimants.len()), (0, 0));
        let (owners, claimants) = replaces([of("x", 1, open()), of("y", 0, open()), of("x", 4, open())]);
        assert_eq!(
            (owners, claimants),
            (
                vec!["x [1, 4]".into(), "y [0]".into()],
                vec!["x".into(), "y".into()]
            )
        );
        let retained = claim(true, false, None, 99);
        let (free, disposed) = (claim(true, false, None, 0), claim(false, true, Some(60), 0));
        let (owners, claimants) = replaces([of("x", 0, retained), of("y", 0, free), of("z", 0, disposed)]);
        assert_eq!(
            (owners, claimants),
            (vec!["x [0]".into()], vec!["x".into(), "y".into()])
        );
    }

    #[test]
    fn a_run_that_comes_after_others_begins_when_they_have_ended_and_its_time_has_come() {
        for (start_at, due_at) in [(None, 5), (Some(3), 5), (Some(9), 9)] {
            let mut started = new_run(start_at, &[], OnConflict::Replace).started;
            started.predecessors = vec![RunId::new("before").unwrap()];
            let waits = Standing::admitted(&Event::Started(Box::new(started)), 1).unwrap();
            assert!(waits.awaits_predecessors());
            assert_eq!((waits.due_since(99), waits.wake_at()), (None, None));
            let delivered = waits.after(&Event::PayloadReceived { hook: 0 }, 4).unwrap();
            assert_eq!(delivered, waits);
            let ended = waits.after(&Event::PredecessorsEnded, 5).unwrap();
            assert_eq!(
                (ended.status(), ended.awaits_predecessors()),
                (RunStatus::Pending, false)
            );
            assert_eq!(ended.due_since(99), Some(due_at));
            // It never executed.
            let (event, _) = cancel_replaced(waits).unwrap();
            assert_eq!(event, Event::Terminated);
        }
    }

    #[test]
    fn a_decision_is_for_the_step_that_blocks_the_run() {
        let run = RunId::new("r").unwrap();
        let settle = |call, reasons, status, blocked| {
            let settlement = Settlement {
                run: run.clone(),
                call,
                reasons,
                decision: Decision::Retry,
                now: 1,
            };
            settle_step(settlement, status, blocked).map(|(event, _)| event)
        };
        let unknown = &[BlockReason::UnknownOutcome];
        let blocked = Blocked {
            reason: BlockReason::UnknownOutcome,
            message: "m".into(),
            step: Some(HeldStep {
                call: 3,
                name: "charge".into(),
                attempt: 1,
                key: "k".into(),
            }),
            detail: serde_json::Value::Null,
        };
        let status = RunStatus::Blocked;
        for call in [None, Some(3)] {
            let event = settle(call, unknown, status, Some(&blocked)).unwrap();
            assert_eq!(event, Event::StepRetried { call: 3 });
            assert!(event.is_decision());
        }
        let other = settle(Some(2), unknown, status, Some(&blocked));
        assert_eq!(other, Err(Settled::OtherCall { call: 3 }));
        let reason = BlockReason::UnknownOutcome;
        let refused = settle(None, &[BlockReason::StepFailed], status, Some(&blocked));
        assert_eq!(refused, Err(Settled::OtherReason { reason }));
        let no_step = Blocked {
            step: None,
            ..blocked.clone()
        };
        let refused = settle(None, unknown, status, Some(&no_step));
        assert_eq!(refused, Err(Settled::OtherReason { reason }));
        let status = RunStatus::Suspended;
        assert_eq!(
            settle(None, unknown, status, None),
            Err(Settled::NotBlocked { status })
        );
        let status = RunStatus::Failed;
        assert_eq!(
            settle(None, unknown, status, None),
            Err(Settled::Ended { status })
        );
    }

    #[test]
    fn a_decision_clears_the_block() {
        let blocked = Standing {
            cancel_requested: None,
            limited: false,
            folded: RunStatus::Running,
            activity: Activity::Blocked,
        };
        let (call, attempt) = (0, 1);
        let outcomes = |resolved| {
            [
                Event::StepCompleted {
                    call,
                    attempt,
                    resolved,
                },
                Event::StepFailed {
                    call,
                    attempt,
                    resolved,
                },
            ]
        };
        for event in outcomes(true).into_iter().chain([Event::StepRetried { call }]) {
            let after = blocked.after(&event, 5).unwrap();
            assert_eq!(after.activity, Activity::Ready { since: 5 });
            assert!(check_owner_event(&event).is_err(), "{event:?}");
        }
        // What was at work when the run was blocked still ends.
        for event in outcomes(false) {
            assert_eq!(blocked.after(&event, 5).unwrap().activity, Activity::Blocked);
            check_owner_event(&event).unwrap();
        }
    }

    #[test]
    fn a_blocked_run_stays_blocked_until_upgraded() {
        let started = Standing {
            folded: RunStatus::Running,
            activity: Activity::Ready { since: 1 },
            cancel_requested: None,
            limited: false,
        };
        let blocked = started.blocked().unwrap();
        let delivered = blocked.after(&Event::PayloadReceived { hook: 0 }, 2).unwrap();
        assert_eq!(delivered.status(), RunStatus::Blocked);
        assert_eq!(delivered.parked(Park { wake_at: None }), None);
        let component = Digest::of("c");
        let upgraded = delivered.after(&Event::Upgraded { component }, 3).unwrap();
        assert_eq!(upgraded.activity, Activity::Ready { since: 3 });
        let ended = blocked.after(&Event::Cancelled, 4).unwrap();
        assert_eq!(ended.status(), RunStatus::Cancelled);
        assert!(ended.blocked().is_err());
    }

    #[test]
    fn e15_steps_write_up_to_the_bounds_and_each_chunk_once() {
        let started = Standing {
            folded: RunStatus::Running,
            activity: Activity::Ready { since: 0 },
            cancel_requested: None,
            limited: false,
        };
        let write = |call, number| StreamWrite {
            stream: StreamName::new("s").unwrap(),
            call,
            attempt: 1,
            number,
            chunk: "1".into(),
        };
        let held = Streamed {
            streams: MAX_STREAMS,
            bytes: MAX_RUN_BYTES - 1,
            chunks: Some(MAX_STREAM_CHUNKS - 1),
            next: 7,
        };
        let answer = |held, call, number| write_chunk(started, held, &write(call, number)).unwrap();
        let step = Some(0);
        assert_eq!(answer(held, step, 7), Ok(()));
        assert_eq!(answer(held, step, 6), Err(Written::Done));
        assert!(write_chunk(started, held, &write(step, 8)).is_err());
        for full in [
            Streamed {
                bytes: MAX_RUN_BYTES,
                ..held
            },
            Streamed {
                chunks: Some(MAX_STREAM_CHUNKS),
                ..held
            },
            Streamed { chunks: None, ..held },
        ] {
            assert!(matches!(answer(full, step, 7), Err(Written::Full(_))), "{full:?}");
            // There before, or of workflow code, which has bounds of its own.
            assert_eq!(answer(full, step, 6), Err(Written::Done));
            assert_eq!(answer(full, None, 7), Ok(()));
        }
        let ended = Standing {
            folded: RunStatus::Completed,
            activity: Activity::Ended { at: 0 },
            cancel_requested: None,
            limited: false,
        };
        let answer = write_chunk(ended, held, &write(step, 7)).unwrap();
        assert_eq!(answer, Err(Written::Ended));
    }
}

//! What the store decides, as pure functions: both backends fetch the facts, ask here, and write what
//! follows. No SQL decides anything.

use std::collections::HashMap;

use serde::Serialize;

use super::{
    Admission, Cancelled, Delivered, Delivery, Disposed, Ending, HookRef, HookState, Owner, Park, Result,
    StoreError, TOMBSTONE_MS,
};
use crate::ids::{Digest, HookToken, RunId};
use crate::journal::{
    Body, CallNo, CancelReason, Entry, Event, Failure, FailureKind, HookNo, HookSpec, IllegalTransition,
    NewEntry, RunStatus, Timestamp,
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Has something to do, whatever the clock says.
    Ready {
        since: Timestamp,
    },
    /// Rests until somebody writes, or until then.
    Parked {
        wake_at: Option<Timestamp>,
    },
    Blocked,
    Ended {
        at: Timestamp,
    },
}

impl Standing {
    /// After entry 0.
    pub fn admitted(event: &Event, at: Timestamp) -> Result<Self> {
        Ok(Self {
            folded: RunStatus::next(None, event)?,
            activity: Activity::Ready { since: at },
            cancel_requested: None,
        })
    }

    /// After one more entry. Whoever wrote it, a resting run has something to do; one that is blocked
    /// stays so until it is upgraded or ends.
    pub fn after(self, event: &Event, at: Timestamp) -> Result<Self> {
        let folded = RunStatus::next(Some(self.folded), event)?;
        let activity = match self.activity {
            Activity::Ended { .. } => self.activity,
            _ if folded.is_terminal() => Activity::Ended { at },
            Activity::Ready { .. } => self.activity,
            Activity::Blocked if !matches!(event, Event::Upgraded { .. }) => self.activity,
            Activity::Blocked | Activity::Parked { .. } => Activity::Ready { since: at },
        };
        let cancel_requested = match event {
            Event::CancelRequested { reason } => self.cancel_requested.or(Some(*reason)),
            _ => self.cancel_requested,
        };
        Ok(Self {
            folded,
            activity,
            cancel_requested,
        })
    }

    /// At rest, where it has nothing else to do than what its owner knows. Also when it rests already: its
    /// owner was woken for nothing, or sends the same again.
    pub fn parked(self, park: Park) -> Option<Self> {
        let wake_at = park.wake_at.map(|at| at.min(LATEST));
        let live = matches!(self.activity, Activity::Ready { .. } | Activity::Parked { .. });
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
            Activity::Parked { .. } => RunStatus::Suspended,
            Activity::Blocked => RunStatus::Blocked,
            Activity::Ready { .. } | Activity::Ended { .. } => self.folded,
        }
    }

    pub fn ready_since(self) -> Option<Timestamp> {
        match self.activity {
            Activity::Ready { since } => Some(since),
            _ => None,
        }
    }

    pub fn wake_at(self) -> Option<Timestamp> {
        match self.activity {
            Activity::Parked { wake_at } => wake_at,
            _ => None,
        }
    }

    pub fn ended_at(self) -> Option<Timestamp> {
        match self.activity {
            Activity::Ended { at } => Some(at),
            _ => None,
        }
    }
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
            (Some(_), _) if now < self.retained_until => HookState::Retained,
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
        | Event::Upgraded { .. }
        | Event::HookClosed { call: None, .. }
        | Event::HookDisposed { call: None, .. } => return None,
        Event::HookClaimed { call, .. } | Event::HookConflicted { call, .. } => open_identity(*call),
        Event::AttemptStarted { call, attempt }
        | Event::AttemptFailed { call, attempt, .. }
        | Event::StepCompleted { call, attempt }
        | Event::StepFailed { call, attempt } => Identity::Call(event.name(), *call, *attempt),
        Event::StepScheduled { call, .. }
        | Event::TimerSet { call, .. }
        | Event::TimerFired { call }
        | Event::Abandoned { call }
        | Event::HookClosed { call: Some(call), .. }
        | Event::HookDisposed { call: Some(call), .. } => Identity::Call(event.name(), *call, 0),
        Event::PayloadsTaken { hook, count } => Identity::Taken(*hook, *count),
        Event::CancelRequested { reason } => Identity::Cancel(*reason),
        Event::Completed | Event::Failed | Event::Cancelled | Event::Terminated => Identity::End,
    })
}

fn open_identity(call: CallNo) -> Identity {
    Identity::Call("open_hook", call, 0)
}

/// What is left to write of an append.
#[derive(Debug, PartialEq, Eq)]
pub struct Unwritten {
    pub entries: Vec<NewEntry>,
    /// The journal has entries after `seen` that this append did not bring.
    pub others_wrote: bool,
}

/// Leaves out what the journal holds already: an append whose answer was lost may be sent again. `tail` is
/// the journal after `seen`.
pub fn unwritten(tail: &[Entry], mut entries: Vec<NewEntry>) -> Unwritten {
    let mut written: HashMap<Identity, usize> = HashMap::new();
    for identity in tail.iter().filter_map(|entry| identity(&entry.event)) {
        *written.entry(identity).or_default() += 1;
    }
    let before = entries.len();
    if !written.is_empty() {
        entries.retain(|entry| {
            let identity = match entry {
                NewEntry::Event { event, .. } => identity(event),
                NewEntry::OpenHook { call, .. } => Some(open_identity(*call)),
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

/// Refuses events that a run's owner may not append as they are.
pub fn check_owner_event(event: &Event) -> Result<()> {
    let name = event.name();
    let claim = matches!(event, Event::HookClaimed { .. } | Event::HookConflicted { .. });
    if claim {
        let message = format!("`{name}` is what the store makes of opening a hook");
        return Err(StoreError::Invalid(message));
    }
    if identity(event).is_none() {
        let message = format!("`{name}` does not come from the owner of a run");
        return Err(StoreError::Invalid(message));
    }
    Ok(())
}

/// Refuses an append whose sender has applied more than there is. `last` is the journal's last position.
pub fn check_seen(seen: u64, last: u64) -> Result<()> {
    if seen > last {
        let message = format!("entry {seen} was seen, but the journal ends at {last}");
        return Err(StoreError::Invalid(message));
    }
    Ok(())
}

/// The payloads left when the guest took `count` of `unread`.
pub fn unread_after_take(unread: u64, count: u32) -> Result<u64> {
    unread
        .checked_sub(count.into())
        .ok_or_else(|| StoreError::Invalid(format!("{count} payloads taken of {unread} that are unread")))
}

pub fn no_hook(hook: HookNo) -> StoreError {
    StoreError::Invalid(format!("the run has no hook {hook}"))
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
            (reason.text(), never_ran || standing.activity == Activity::Blocked)
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
        }
    }

    #[test]
    fn a_token_frees_at_the_later_of_end_and_retention() {
        assert_eq!(claim(false, false, None, 10).state(99), HookState::Open);
        assert_eq!(claim(false, true, None, 10).state(99), HookState::Closed);
        assert_eq!(claim(true, false, None, 100).state(99), HookState::Retained);
        assert_eq!(claim(true, false, None, 100).state(100), HookState::Freed);
        assert_eq!(claim(true, true, Some(60), 100).state(61), HookState::Freed);
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
        let done = |call| Event::StepCompleted { call, attempt: 1 };
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
        };
        let parked = ready.parked(Park { wake_at: Some(5) }).unwrap();
        assert_eq!(parked.parked(Park { wake_at: Some(5) }), Some(parked));
        let later = parked.parked(Park { wake_at: None }).unwrap();
        assert_eq!(later.activity, Activity::Parked { wake_at: None });
    }

    #[test]
    fn a_blocked_run_stays_blocked_until_upgraded() {
        let started = Standing {
            folded: RunStatus::Running,
            activity: Activity::Ready { since: 1 },
            cancel_requested: None,
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
}

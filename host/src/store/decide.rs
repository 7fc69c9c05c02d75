//! What the store decides, as pure functions: both backends fetch the facts, ask here, and write what
//! follows. No SQL decides anything.

use std::collections::HashMap;

use serde::Serialize;

use super::{
    Admission, Cap, Delivered, Delivery, Disposed, HookRef, HookState, NewRun, OnConflict, Owner, Park,
    Result, StartDelivery, StoreError, TOMBSTONE_MS, Waits,
};
use crate::ids::{Digest, HookToken, RunId};
use crate::journal::{
    Body, CallNo, Entry, Event, HookNo, HookSpec, IllegalTransition, NewEntry, RunStatus, Timestamp,
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
    /// Has not begun and may not yet.
    Waiting(Waits),
    Blocked,
    Ended {
        at: Timestamp,
    },
}

impl Standing {
    /// After entry 0.
    pub fn admitted(event: &Event, at: Timestamp) -> Result<Self> {
        let waits = match event {
            Event::Started(started) => Waits::of(started, at),
            _ => None,
        };
        let activity = match waits {
            Some(waits) => Activity::Waiting(waits),
            None => Activity::Ready { since: at },
        };
        Ok(Self {
            folded: RunStatus::next(None, event)?,
            activity,
        })
    }

    /// After one more entry. Whoever wrote it, a resting run has something to do; one that is blocked
    /// stays so until it is upgraded or ends, one that has not begun until its guest leaves an entry.
    pub fn after(self, event: &Event, at: Timestamp) -> Result<Self> {
        let folded = RunStatus::next(Some(self.folded), event)?;
        let activity = match self.activity {
            Activity::Ended { .. } => self.activity,
            _ if folded.is_terminal() => Activity::Ended { at },
            Activity::Ready { .. } => self.activity,
            Activity::Waiting(_) if folded == RunStatus::Pending => self.activity,
            Activity::Blocked if !matches!(event, Event::Upgraded { .. }) => self.activity,
            Activity::Blocked | Activity::Parked { .. } | Activity::Waiting(_) => {
                Activity::Ready { since: at }
            }
        };
        Ok(Self { folded, activity })
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
            Activity::Parked { .. } => RunStatus::Suspended,
            Activity::Blocked => RunStatus::Blocked,
            Activity::Ready { .. } | Activity::Waiting(_) | Activity::Ended { .. } => self.folded,
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
            Activity::Waiting(waits) => waits.wake_at(),
            _ => None,
        }
    }

    pub fn waits(self) -> Option<Waits> {
        match self.activity {
            Activity::Waiting(waits) => Some(waits),
            _ => None,
        }
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
        Event::Completed | Event::Failed | Event::Cancelled => Identity::End,
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
    /// The start is answered with this, and nothing is admitted.
    Refuse(Admission),
}

/// `last` holds the last claim of each of the start's tokens, in order.
pub fn meet(new: &NewRun, last: &[Option<Claim>]) -> Result<Meeting> {
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
        OnConflict::Fail | OnConflict::Attach => conflict(first),
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
    use crate::ids::Tags;
    use crate::journal::{Limits, PayloadType, Started};

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
        });
        let started = Started {
            workflow: "w".into(),
            component: Digest::of("c"),
            seed: 0,
            limits: Limits::default(),
            hooks: hooks.collect(),
            lineage: None,
            start_at,
            tags: Tags::default(),
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
    fn a_blocked_run_stays_blocked_until_upgraded() {
        let started = Standing {
            folded: RunStatus::Running,
            activity: Activity::Ready { since: 1 },
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

//! The replay state machine: holds a journal, answers what the guest asks, and says where the two part.
//!
//! The same code runs a guest live. A call that the journal holds is answered from it; a call past its end
//! becomes a new entry, which the owner commits and feeds back through [`Replay::extend`]. So starting is
//! resuming from a journal that holds entry 0 alone, and what a live guest saw is what a replay sees.
//!
//! Two views of one journal: [`Work`] covers all of it and tells the owner what is outstanding; the guest
//! sees entries only up to its *horizon*, which moves in [`Replay::wait`] and nowhere else.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::divergence::{Call, Divergence};
use super::entry::{Body, CallNo, Entry, Event, HookNo, HookSpec, NewEntry, Seq, Started, Timestamp};
use super::options::StepOptions;
use super::outcome::{Failure, FailureKind};
use super::status::RunStatus;
use super::work::Work;
use crate::ids::HookToken;

/// Position of a promise among those that the guest made, from 0.
pub type PromiseId = u32;

/// Why the guest cannot be answered. Each ends its activation.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GuestError {
    /// The guest asked for something else than its journal holds.
    #[error("{0}")]
    Diverged(Box<Divergence>),
    /// The guest broke a rule of the interface.
    #[error("{0}")]
    Misuse(String),
    /// The journal contradicts itself.
    #[error("journal entry {seq}: {what}")]
    Corrupt { seq: Seq, what: &'static str },
    /// Only when verifying: every recorded call matched, and the guest goes on where the journal ends.
    #[error("the journal ends here")]
    EndOfJournal,
}

type Result<T> = std::result::Result<T, GuestError>;

/// What `wait` found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    /// This promise completed.
    Ready(PromiseId),
    /// Everything in the journal is observed; more entries are needed.
    Suspended,
}

/// What a guest's hook handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HookHandle {
    Own(HookNo),
    /// The call that met another owner.
    Conflict(CallNo),
}

/// The answer to opening a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    Handle(HookHandle),
    /// Commit the new entries, then ask [`Replay::opened`].
    AfterCommit(CallNo),
}

#[derive(Debug)]
enum Awaited {
    Call(CallNo),
    Ready(HookHandle),
    /// A call that could not be made: complete from the beginning, with this failure.
    Refused(Arc<str>),
    /// Completed by the entry that asks the run to cancel.
    Cancellation,
}

#[derive(Debug)]
struct Promise {
    awaited: Awaited,
    held: bool,
    reported: bool,
    taken: bool,
    abandoned: bool,
    /// Index of the entry that completed it.
    completed_by: Option<usize>,
}

/// A claim as the guest sees it.
#[derive(Debug)]
struct Hook {
    token: HookToken,
    /// Entries of payloads up to the horizon that the guest did not take.
    queue: VecDeque<usize>,
    /// Taken by this guest.
    taken: u32,
    /// How many of them were handed to the owner, to be committed.
    told: u32,
    /// Closed, up to the horizon.
    closed: bool,
    /// No longer the run's claim: disposed by this guest, or from outside up to the horizon.
    disposed: bool,
    closed_by_guest: bool,
    /// Promises to be completed by the next payload or the close.
    waiting: Vec<PromiseId>,
}

impl Hook {
    fn new(token: HookToken) -> Self {
        Self {
            token,
            queue: VecDeque::new(),
            taken: 0,
            told: 0,
            closed: false,
            disposed: false,
            closed_by_guest: false,
            waiting: Vec::new(),
        }
    }

    fn is_ready(&self) -> bool {
        self.closed || !self.queue.is_empty()
    }
}

/// What a call found in the journal.
enum Found {
    /// At this index.
    Recorded(usize),
    /// Past the end: the call's number.
    New(CallNo),
}

#[derive(Debug)]
pub struct Replay {
    started: Started,
    entries: Vec<Entry>,
    /// Index of the entry that call 0, 1, … made.
    calls: Vec<usize>,
    work: Work,
    status: RunStatus,
    /// Payloads taken per hook, as far as the journal knows.
    recorded_taken: Vec<u32>,
    /// New calls become entries; when verifying they end the replay.
    verify: bool,
    /// Entries that were there when this activation began.
    resumed: usize,

    // The guest's view.
    horizon: usize,
    next_call: CallNo,
    promises: Vec<Promise>,
    promise_of_call: Vec<Option<PromiseId>>,
    /// Held promises that `wait` has not reported.
    unreported: usize,
    /// Completed up to the horizon, not yet reported.
    due: VecDeque<PromiseId>,
    hooks: Vec<Hook>,
    /// The claim that each token leads to.
    bound: HashMap<HookToken, HookNo>,
    /// Hooks of which payloads were taken since the owner last asked.
    read: BTreeSet<HookNo>,
    new: Vec<NewEntry>,
}

impl Replay {
    /// Replays `entries` and goes on from their end.
    ///
    /// # Errors
    /// When the entries are no journal: not dense from 0, or in an order that cannot be.
    pub fn resume(entries: Vec<Entry>) -> Result<Self> {
        Self::new(entries, false)
    }

    /// Replays `entries` and stops at their end.
    ///
    /// # Errors
    /// As [`Replay::resume`].
    pub fn verify(entries: Vec<Entry>) -> Result<Self> {
        Self::new(entries, true)
    }

    fn new(entries: Vec<Entry>, verify: bool) -> Result<Self> {
        let Some(Entry {
            event: Event::Started(started),
            ..
        }) = entries.first()
        else {
            let what = "the journal does not begin with a start";
            return Err(GuestError::Corrupt { seq: 0, what });
        };
        let started = (**started).clone();
        let hooks = started.hooks.iter().map(|spec| Hook::new(spec.token.clone()));
        let bound = started.hooks.iter().map(|spec| spec.token.clone()).zip(0..);
        let mut replay = Self {
            hooks: hooks.collect(),
            bound: bound.collect(),
            read: BTreeSet::new(),
            started,
            entries: Vec::with_capacity(entries.len()),
            calls: Vec::new(),
            work: Work::default(),
            status: RunStatus::Pending,
            recorded_taken: Vec::new(),
            verify,
            resumed: entries.len(),
            horizon: 0,
            next_call: 0,
            promises: Vec::new(),
            promise_of_call: Vec::new(),
            unreported: 0,
            due: VecDeque::new(),
            new: Vec::new(),
        };
        replay.extend(entries)?;
        Ok(replay)
    }

    // ---- the owner's side ----------------------------------------------------------------------------

    /// Applies further entries, in order and without gaps.
    ///
    /// # Errors
    /// When they do not follow on what is here.
    pub fn extend(&mut self, entries: impl IntoIterator<Item = Entry>) -> Result<()> {
        for entry in entries {
            let seq = entry.seq;
            let corrupt = |what| GuestError::Corrupt { seq, what };
            if seq != self.entries.len() as Seq {
                return Err(corrupt("a gap before this entry"));
            }
            let before = (seq > 0).then_some(self.status);
            self.status = RunStatus::next(before, &entry.event)
                .map_err(|_| corrupt("cannot follow on the entries before"))?;
            if let Some(call) = entry.event.made_by_call() {
                if call as usize != self.calls.len() {
                    return Err(corrupt("a call out of order"));
                }
                self.calls.push(self.entries.len());
            }
            if let Event::PayloadsTaken { hook, count } = entry.event {
                let hook = hook as usize;
                if self.recorded_taken.len() <= hook {
                    self.recorded_taken.resize(hook + 1, 0);
                }
                self.recorded_taken[hook] += count;
            }
            self.work.apply(&entry);
            self.entries.push(entry);
        }
        Ok(())
    }

    /// The last seq that is applied.
    pub fn seen(&self) -> Seq {
        self.entries.len() as Seq - 1
    }

    pub fn started(&self) -> &Started {
        &self.started
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// What is outstanding in the whole journal.
    pub fn work(&self) -> &Work {
        &self.work
    }

    pub fn status(&self) -> RunStatus {
        self.status
    }

    /// How many recorded calls the guest has made again.
    pub fn calls_matched(&self) -> usize {
        (self.next_call as usize).min(self.calls.len())
    }

    /// How many calls the journal holds.
    pub fn calls_recorded(&self) -> usize {
        self.calls.len()
    }

    /// The recorded call of that number.
    pub fn recorded_call(&self, call: CallNo) -> Option<Call> {
        let index = *self.calls.get(call as usize)?;
        self.call_at(index)
    }

    /// Position of the entry that this call made.
    pub fn seq_of_call(&self, call: CallNo) -> Option<Seq> {
        self.calls.get(call as usize).map(|index| *index as Seq)
    }

    /// Whether the guest gave this call up, committed or not.
    pub fn is_abandoned(&self, call: CallNo) -> bool {
        self.promise(call).is_some_and(|promise| promise.abandoned)
    }

    /// Whether a new entry changes something outside this run, so that it must be committed before anything
    /// that may rely on it.
    pub fn has_new_effect(&self) -> bool {
        self.new.iter().any(|new| match new {
            NewEntry::OpenHook { .. } => true,
            NewEntry::Event { event, .. } => {
                matches!(event, Event::HookClosed { .. } | Event::HookDisposed { .. })
            }
        })
    }

    /// Hands over what the next commit must carry. The owner commits it, or keeps it until it can.
    pub fn drain_new(&mut self) -> Vec<NewEntry> {
        let mut new = std::mem::take(&mut self.new);
        for hook in std::mem::take(&mut self.read) {
            let recorded = self.recorded_taken.get(hook as usize).copied().unwrap_or(0);
            let view = &mut self.hooks[hook as usize];
            let count = view.taken.saturating_sub(recorded.max(view.told));
            view.told = view.taken;
            if count > 0 {
                new.push(NewEntry::event(Event::PayloadsTaken { hook, count }));
            }
        }
        new
    }

    /// Grows whenever the guest observes an entry or makes a call.
    pub fn progress(&self) -> (usize, CallNo) {
        (self.horizon, self.next_call)
    }

    /// Whether the guest is still where an earlier activation was: it has not passed the entries that were
    /// there when this one began.
    pub fn is_replaying(&self) -> bool {
        self.horizon + 1 < self.resumed || (self.next_call as usize) < self.calls.len()
    }

    /// The input of the run, JSON.
    pub fn input(&self) -> Arc<str> {
        text_of(&self.entries[0])
    }

    // ---- what the guest asks -------------------------------------------------------------------------

    /// The time of the newest entry that the guest has observed.
    pub fn now(&self) -> Timestamp {
        self.entries[self.horizon].at
    }

    pub fn step(
        &mut self,
        name: &str,
        input: &str,
        options: impl FnOnce() -> std::result::Result<StepOptions, String>,
    ) -> Result<PromiseId> {
        let found = self.find(
            |entry| match &entry.event {
                Event::StepScheduled { step, .. } => step == name && same_json(&entry.body, input),
                _ => false,
            },
            || Call::Step {
                name: name.to_owned(),
                input: input.into(),
            },
        )?;
        if let Found::New(call) = found {
            let event = Event::StepScheduled {
                call,
                step: name.to_owned(),
                options: options().map_err(GuestError::Misuse)?,
            };
            self.new.push(NewEntry::with_body(event, Body::new(input)));
        }
        Ok(self.promise_for_call())
    }

    pub fn sleep(&mut self, length: u64) -> Result<PromiseId> {
        let due = self.now().saturating_add(length);
        self.timer(due, Some(length), || Call::Sleep { length_ms: length })
    }

    pub fn sleep_until(&mut self, at: Timestamp) -> Result<PromiseId> {
        self.timer(at, None, || Call::SleepUntil { at })
    }

    fn timer(
        &mut self,
        due: Timestamp,
        length: Option<u64>,
        asked: impl FnOnce() -> Call,
    ) -> Result<PromiseId> {
        let found = self.find(
            |entry| match &entry.event {
                Event::TimerSet {
                    length: recorded,
                    due: set,
                    ..
                } => *recorded == length && (length.is_some() || *set == due),
                _ => false,
            },
            asked,
        )?;
        if let Found::New(call) = found {
            self.new
                .push(NewEntry::event(Event::TimerSet { call, due, length }));
        }
        Ok(self.promise_for_call())
    }

    /// A promise for a call that cannot be made, complete with that failure. Makes no entry, so what is refused
    /// must follow from the call and the journal alone.
    pub fn refuse(&mut self, failure: &Failure) -> PromiseId {
        let id = self.new_promise(Awaited::Refused(failure.to_json().into()));
        self.due.push_back(id);
        id
    }

    /// Opens a hook. `spec` makes the claim, with a token when the guest names none.
    pub fn open_hook(
        &mut self,
        token: Option<HookToken>,
        spec: impl FnOnce(Option<HookToken>) -> HookSpec,
    ) -> Result<Opened> {
        if let Some(hook) = token.as_ref().and_then(|token| self.bound.get(token)) {
            return Ok(Opened::Handle(HookHandle::Own(*hook)));
        }
        let found = self.find(
            |entry| match &entry.event {
                Event::HookClaimed { spec, generated, .. } => match &token {
                    Some(token) => spec.token == *token && !generated,
                    None => *generated,
                },
                Event::HookConflicted { token: recorded, .. } => token.as_ref() == Some(recorded),
                _ => false,
            },
            || Call::OpenHook { token: token.clone() },
        )?;
        match found {
            Found::Recorded(index) => {
                self.no_promise_for_call();
                Ok(Opened::Handle(self.open_recorded(index)?))
            }
            Found::New(call) => {
                let generated = token.is_none();
                let spec = spec(token);
                let hook = self.hooks.len() as HookNo;
                self.new.push(NewEntry::OpenHook {
                    call,
                    hook,
                    spec,
                    generated,
                });
                self.no_promise_for_call();
                Ok(Opened::AfterCommit(call))
            }
        }
    }

    /// The handle of a hook whose opening is now committed.
    ///
    /// # Errors
    /// When the call's entry is not here.
    pub fn opened(&mut self, call: CallNo) -> Result<HookHandle> {
        let Some(index) = self.calls.get(call as usize).copied() else {
            let seq = self.entries.len() as Seq;
            let what = "the entry of an opened hook is missing";
            return Err(GuestError::Corrupt { seq, what });
        };
        self.open_recorded(index)
    }

    fn open_recorded(&mut self, index: usize) -> Result<HookHandle> {
        let entry = &self.entries[index];
        match &entry.event {
            Event::HookClaimed { hook, spec, .. } if *hook as usize == self.hooks.len() => {
                let (hook, token) = (*hook, spec.token.clone());
                self.bound.insert(token.clone(), hook);
                self.hooks.push(Hook::new(token));
                Ok(HookHandle::Own(hook))
            }
            Event::HookConflicted { call, .. } => Ok(HookHandle::Conflict(*call)),
            _ => {
                let what = "a claim out of order";
                Err(GuestError::Corrupt { seq: entry.seq, what })
            }
        }
    }

    pub fn hook_token(&self, handle: HookHandle) -> Option<HookToken> {
        match handle {
            HookHandle::Own(hook) => Some(self.hooks[hook as usize].token.clone()),
            HookHandle::Conflict(call) => match &self.call_entry(call)?.event {
                Event::HookConflicted { token, .. } => Some(token.clone()),
                _ => None,
            },
        }
    }

    /// The owner as it was when the guest opened the hook.
    pub fn hook_conflict(&self, handle: HookHandle) -> Option<Arc<str>> {
        match handle {
            HookHandle::Own(_) => None,
            HookHandle::Conflict(call) => self.call_entry(call)?.body.as_ref()?.text.clone(),
        }
    }

    pub fn close_hook(&mut self, handle: HookHandle) -> Result<()> {
        let HookHandle::Own(hook) = handle else {
            return Ok(());
        };
        let view = &mut self.hooks[hook as usize];
        if view.disposed || std::mem::replace(&mut view.closed_by_guest, true) {
            return Ok(());
        }
        let token = view.token.clone();
        let found = self.find(
            |entry| matches!(entry.event, Event::HookClosed { call: Some(_), hook: h } if h == hook),
            || Call::CloseHook { token },
        )?;
        if let Found::New(call) = found {
            let call = Some(call);
            self.new.push(NewEntry::event(Event::HookClosed { call, hook }));
        }
        self.no_promise_for_call();
        Ok(())
    }

    pub fn dispose_hook(&mut self, handle: HookHandle) -> Result<()> {
        let HookHandle::Own(hook) = handle else {
            return Ok(());
        };
        let view = &mut self.hooks[hook as usize];
        if std::mem::replace(&mut view.disposed, true) {
            return Ok(());
        }
        let token = view.token.clone();
        self.unbind(hook);
        let found = self.find(
            |entry| matches!(entry.event, Event::HookDisposed { call: Some(_), hook: h } if h == hook),
            || Call::DisposeHook { token },
        )?;
        if let Found::New(call) = found {
            let call = Some(call);
            self.new.push(NewEntry::event(Event::HookDisposed { call, hook }));
        }
        self.no_promise_for_call();
        Ok(())
    }

    /// A promise for the next payload of a hook, or its close.
    pub fn hook_ready(&mut self, handle: HookHandle) -> PromiseId {
        let id = self.new_promise(Awaited::Ready(handle));
        match handle {
            HookHandle::Conflict(_) => self.due.push_back(id),
            HookHandle::Own(hook) => {
                let hook = &mut self.hooks[hook as usize];
                if hook.is_ready() {
                    self.due.push_back(id);
                } else {
                    hook.waiting.push(id);
                }
            }
        }
        id
    }

    /// The oldest unread payload up to the horizon.
    pub fn take_payload(&mut self, handle: HookHandle) -> Option<Arc<str>> {
        let HookHandle::Own(number) = handle else {
            return None;
        };
        let hook = &mut self.hooks[number as usize];
        let index = hook.queue.pop_front()?;
        hook.taken += 1;
        self.read.insert(number);
        Some(text_of(&self.entries[index]))
    }

    /// Closed and empty, up to the horizon.
    pub fn hook_closed(&self, handle: HookHandle) -> bool {
        match handle {
            HookHandle::Own(hook) => {
                let hook = &self.hooks[hook as usize];
                hook.closed && hook.queue.is_empty()
            }
            HookHandle::Conflict(_) => true,
        }
    }

    pub fn cancellation(&mut self) -> PromiseId {
        self.new_promise(Awaited::Cancellation)
    }

    /// The outcome of a promise that `wait` has reported: a value or a failure, both JSON.
    ///
    /// # Errors
    /// [`GuestError::Misuse`] when `wait` has not reported it, or it was taken before.
    pub fn take(&mut self, id: PromiseId) -> Result<std::result::Result<Arc<str>, Arc<str>>> {
        let promise = &mut self.promises[id as usize];
        if !promise.reported {
            let text = format!("promise {id} was taken before `wait` reported it");
            return Err(GuestError::Misuse(text));
        }
        if std::mem::replace(&mut promise.taken, true) {
            return Err(GuestError::Misuse(format!("promise {id} was taken twice")));
        }
        Ok(match (&promise.awaited, promise.completed_by) {
            (Awaited::Call(_), Some(index)) => {
                let entry = &self.entries[index];
                match entry.event {
                    Event::StepCompleted { .. } => Ok(text_of(entry)),
                    Event::StepFailed { .. } => Err(text_of(entry)),
                    _ => Ok("null".into()),
                }
            }
            (Awaited::Refused(failure), _) => Err(failure.clone()),
            (Awaited::Ready(HookHandle::Conflict(_)), _) => {
                let failure = Failure::new(
                    FailureKind::HookConflict,
                    "another run owns this hook's token; look at `conflict()` before awaiting payloads",
                );
                Err(failure.to_json().into())
            }
            _ => Ok("null".into()),
        })
    }

    /// Gives a promise up: no further attempts, the outcome is thrown away.
    pub fn abandon(&mut self, id: PromiseId) {
        let promise = &mut self.promises[id as usize];
        if promise.abandoned || promise.reported {
            return;
        }
        promise.abandoned = true;
        if let Awaited::Call(call) = promise.awaited {
            let uncommitted = call as usize >= self.calls.len();
            let outstanding = self.work.steps.contains_key(&call) || self.work.timers.contains_key(&call);
            if uncommitted || outstanding {
                self.new.push(NewEntry::event(Event::Abandoned { call }));
            }
        }
        self.release(id);
    }

    /// The guest dropped its handle; `wait` will not report the promise.
    pub fn release(&mut self, id: PromiseId) {
        let promise = &mut self.promises[id as usize];
        if std::mem::replace(&mut promise.held, false) && !promise.reported {
            self.unreported -= 1;
        }
    }

    /// The next completion in journal order of a promise that the guest still holds. Moves the horizon.
    ///
    /// # Errors
    /// [`GuestError::Diverged`] when the journal holds a call that the guest should have made before;
    /// [`GuestError::Misuse`] when the guest holds nothing that could complete.
    pub fn wait(&mut self) -> Result<Waited> {
        loop {
            while let Some(id) = self.due.pop_front() {
                if self.report(id) {
                    return Ok(Waited::Ready(id));
                }
            }
            if self.horizon + 1 == self.entries.len() {
                if self.status.is_terminal() {
                    return Err(self.diverged(self.next_call, Some(Call::Wait)));
                }
                if self.unreported == 0 {
                    let text = "the workflow waits, but holds no promise that could complete";
                    return Err(GuestError::Misuse(text.into()));
                }
                return Ok(Waited::Suspended);
            }
            self.observe(self.horizon + 1)?;
        }
    }

    /// Whether this promise, completed at or before the horizon, is to be reported now.
    fn report(&mut self, id: PromiseId) -> bool {
        let promise = &mut self.promises[id as usize];
        if !promise.held {
            return false;
        }
        if let Awaited::Ready(HookHandle::Own(hook)) = promise.awaited {
            let hook = &mut self.hooks[hook as usize];
            if !hook.is_ready() {
                // Another handle took the payload meanwhile.
                hook.waiting.push(id);
                return false;
            }
        }
        promise.reported = true;
        self.unreported -= 1;
        true
    }

    fn observe(&mut self, index: usize) -> Result<()> {
        let entry = &self.entries[index];
        if let Some(call) = entry.event.made_by_call().filter(|call| *call >= self.next_call) {
            return Err(self.diverged(call, Some(Call::Wait)));
        }
        match &entry.event {
            Event::PayloadReceived { hook } => {
                let hook = self.observed_hook(*hook, index)?;
                hook.queue.push_back(index);
                let waiting = std::mem::take(&mut hook.waiting);
                self.due.extend(waiting);
            }
            Event::HookClosed { hook, .. } => {
                let hook = self.observed_hook(*hook, index)?;
                hook.closed = true;
                let waiting = std::mem::take(&mut hook.waiting);
                self.due.extend(waiting);
            }
            Event::HookDisposed { hook, .. } => {
                let number = *hook;
                let hook = self.observed_hook(number, index)?;
                hook.closed = true;
                hook.disposed = true;
                let waiting = std::mem::take(&mut hook.waiting);
                self.due.extend(waiting);
                self.unbind(number);
            }
            event => {
                let id = event
                    .completes_call()
                    .and_then(|call| self.promise_of_call.get(call as usize).copied().flatten());
                if let Some(id) = id {
                    self.promises[id as usize].completed_by = Some(index);
                    self.due.push_back(id);
                }
            }
        }
        self.horizon = index;
        Ok(())
    }

    /// The token no longer leads to this claim.
    fn unbind(&mut self, hook: HookNo) {
        let token = &self.hooks[hook as usize].token;
        if self.bound.get(token) == Some(&hook) {
            self.bound.remove(token);
        }
    }

    fn observed_hook(&mut self, hook: HookNo, index: usize) -> Result<&mut Hook> {
        let what = "names a hook that the run has not claimed";
        let seq = index as Seq;
        self.hooks
            .get_mut(hook as usize)
            .ok_or(GuestError::Corrupt { seq, what })
    }

    /// The guest returned.
    ///
    /// # Errors
    /// [`GuestError::Diverged`] when the journal holds calls that it did not make, or, if the run has
    /// ended, another outcome.
    pub fn finish(&self, outcome: std::result::Result<&str, &str>) -> Result<()> {
        let returned = || match outcome {
            Ok(value) => Call::Return { value: value.into() },
            Err(error) => Call::Fail { error: error.into() },
        };
        if (self.next_call as usize) < self.calls.len() {
            return Err(self.diverged(self.next_call, Some(returned())));
        }
        let end = self
            .entries
            .iter()
            .rev()
            .find(|entry| matches!(entry.event, Event::Completed | Event::Failed | Event::Cancelled));
        let same = match (end.map(|entry| (&entry.event, &entry.body)), outcome) {
            (None, _) => true,
            (Some((Event::Completed, body)), Ok(value)) => same_json(body, value),
            (Some((Event::Failed | Event::Cancelled, body)), Err(error)) => same_json(body, error),
            _ => false,
        };
        if same {
            Ok(())
        } else {
            Err(self.diverged(self.next_call, Some(returned())))
        }
    }

    // ---- calls ---------------------------------------------------------------------------------------

    /// Numbers the guest's next call and compares it with the recorded one, if there is one.
    fn find(&mut self, matches: impl FnOnce(&Entry) -> bool, asked: impl FnOnce() -> Call) -> Result<Found> {
        let call = self.next_call;
        match self.calls.get(call as usize) {
            Some(&index) if matches(&self.entries[index]) => {
                self.next_call += 1;
                Ok(Found::Recorded(index))
            }
            Some(_) => Err(self.diverged(call, Some(asked()))),
            None if self.status.is_terminal() => Err(self.diverged(call, Some(asked()))),
            None if self.verify => Err(GuestError::EndOfJournal),
            None => {
                self.next_call += 1;
                Ok(Found::New(call))
            }
        }
    }

    fn diverged(&self, call: CallNo, requested: Option<Call>) -> GuestError {
        let index = self.calls.get(call as usize).copied().or_else(|| {
            let last = self.entries.iter().rposition(|entry| {
                matches!(entry.event, Event::Completed | Event::Failed | Event::Cancelled)
            });
            last.filter(|_| self.status.is_terminal())
        });
        GuestError::Diverged(Box::new(Divergence {
            call,
            seq: index.map(|index| index as Seq),
            recorded: index.and_then(|index| self.call_at(index)),
            requested,
            source: None,
        }))
    }

    fn call_at(&self, index: usize) -> Option<Call> {
        let entry = &self.entries[index];
        let body = || text_of(entry);
        Some(match &entry.event {
            Event::StepScheduled { step, .. } => Call::Step {
                name: step.clone(),
                input: body(),
            },
            Event::TimerSet {
                length: Some(length), ..
            } => Call::Sleep { length_ms: *length },
            Event::TimerSet { due, .. } => Call::SleepUntil { at: *due },
            Event::HookClaimed { generated: true, .. } => Call::OpenHook { token: None },
            Event::HookClaimed { spec, .. } => Call::OpenHook {
                token: Some(spec.token.clone()),
            },
            Event::HookConflicted { token, .. } => Call::OpenHook {
                token: Some(token.clone()),
            },
            Event::HookClosed { hook, .. } => Call::CloseHook {
                token: self.token_of(*hook)?,
            },
            Event::HookDisposed { hook, .. } => Call::DisposeHook {
                token: self.token_of(*hook)?,
            },
            Event::Completed => Call::Return { value: body() },
            Event::Failed | Event::Cancelled => Call::Fail { error: body() },
            _ => return None,
        })
    }

    /// The token of a claim anywhere in the journal, seen by the guest or not.
    fn token_of(&self, hook: HookNo) -> Option<HookToken> {
        if let Some(spec) = self.started.hooks.get(hook as usize) {
            return Some(spec.token.clone());
        }
        self.entries.iter().find_map(|entry| match &entry.event {
            Event::HookClaimed { hook: h, spec, .. } if *h == hook => Some(spec.token.clone()),
            _ => None,
        })
    }

    fn call_entry(&self, call: CallNo) -> Option<&Entry> {
        Some(&self.entries[*self.calls.get(call as usize)?])
    }

    // ---- promises ------------------------------------------------------------------------------------

    fn promise_for_call(&mut self) -> PromiseId {
        let id = self.new_promise(Awaited::Call(self.next_call - 1));
        self.promise_of_call.push(Some(id));
        id
    }

    fn no_promise_for_call(&mut self) {
        self.promise_of_call.push(None);
    }

    fn new_promise(&mut self, awaited: Awaited) -> PromiseId {
        self.promises.push(Promise {
            awaited,
            held: true,
            reported: false,
            taken: false,
            abandoned: false,
            completed_by: None,
        });
        self.unreported += 1;
        self.promises.len() as PromiseId - 1
    }

    fn promise(&self, call: CallNo) -> Option<&Promise> {
        let id = (*self.promise_of_call.get(call as usize)?)?;
        self.promises.get(id as usize)
    }
}

fn text_of(entry: &Entry) -> Arc<str> {
    Body::shared_text(entry.body.as_ref())
}

/// Whether a recorded body and JSON text say the same, whatever the order of keys and the white space. An
/// erased body is the same only as text with its digest.
fn same_json(recorded: &Option<Body>, asked: &str) -> bool {
    let Some(body) = recorded else {
        return false;
    };
    match &body.text {
        Some(text) if **text == *asked => true,
        Some(text) => match (
            serde_json::from_str::<Value>(text),
            serde_json::from_str::<Value>(asked),
        ) {
            (Ok(recorded), Ok(asked)) => recorded == asked,
            _ => false,
        },
        None => {
            *body
                == Body {
                    text: None,
                    ..Body::new(asked)
                }
        }
    }
}

//! The replay state machine: holds a journal, answers what the guest asks, and says where the two part.
//!
//! The same code runs a guest live. A call that the journal holds is answered from it; a call past its end
//! becomes a new entry, which the owner commits and feeds back through [`Replay::extend`]. So starting is
//! resuming from a journal that holds entry 0 alone, and what a live guest saw is what a replay sees.
//!
//! Two views of one journal: [`Work`] covers all of it and tells the owner what is outstanding; the guest
//! sees entries only up to its *horizon*, which moves in [`Replay::wait`] and nowhere else.

mod calls;
mod cancel;
mod children;
mod forks;
mod hooks;
mod output;
mod promises;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::divergence::{Call, Divergence};
use super::entry::{Body, CallNo, Entry, Event, HookNo, NewEntry, Seq, Started, Timestamp};
use super::outcome::{continued_with, is_not_continued};
use super::status::RunStatus;
use super::work::Work;
use crate::ids::{Digest, HookToken};

use calls::{same_json, text_of};
use children::Child;
use forks::Forks;
use hooks::Hook;
use output::Output;
use promises::{Awaited, Promise};

pub use hooks::{HookHandle, Opened};

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
    /// Only when verifying: every recorded call matched, and the guest goes on where the journal ends, or where its
    /// run was terminated.
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

/// The answer to announcing a closure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// The closure must not run here; this promise stands for it.
    Elsewhere(PromiseId),
    /// This replay was made to run it.
    Here,
}

/// The closure that a replay is made to run.
#[derive(Debug)]
struct Replica {
    call: CallNo,
    closure: String,
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
    /// The replay ends at this call.
    replica: Option<Replica>,
    /// Entries that were there when this activation began.
    resumed: usize,

    // The guest's view.
    horizon: usize,
    next_call: CallNo,
    promises: Vec<Promise>,
    promise_of_call: Vec<Option<PromiseId>>,
    /// Held promises that `wait` has not reported.
    unreported: usize,
    /// The request to cancel that the guest has observed.
    cancel: Option<cancel::Request>,
    /// What the guest calls now takes no notice of that.
    shield: bool,
    /// Completed up to the horizon, not yet reported.
    due: VecDeque<PromiseId>,
    hooks: Vec<Hook>,
    /// By the calls that started them.
    children: BTreeMap<CallNo, Child>,
    /// The claim that each token leads to.
    bound: HashMap<HookToken, HookNo>,
    /// Hooks of which payloads were taken since the owner last asked.
    read: BTreeSet<HookNo>,
    output: Output,
    forks: Forks,
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

    /// Replays `entries` up to call number `call`, which announces the closure of that name.
    ///
    /// Calls before it that the journal does not hold yet are taken as they come: the guest made them since it
    /// last waited, so it makes them again.
    ///
    /// # Errors
    /// As [`Replay::resume`].
    pub fn replica(entries: Vec<Entry>, call: CallNo, closure: String) -> Result<Self> {
        let mut replay = Self::new(entries, false)?;
        replay.end_at(call, closure);
        Ok(replay)
    }

    /// From now on as [`Replay::replica`]: the guest waits, and has not made that call yet.
    pub fn end_at(&mut self, call: CallNo, closure: String) {
        self.replica = Some(Replica { call, closure });
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
        let hooks = started.hooks.iter().map(Hook::new);
        let bound = started.hooks.iter().map(|spec| spec.token.clone()).zip(0..);
        let mut replay = Self {
            hooks: hooks.collect(),
            bound: bound.collect(),
            read: BTreeSet::new(),
            children: BTreeMap::new(),
            output: Output::new(started.tags.clone()),
            forks: Forks::new(started.seed),
            started,
            entries: Vec::with_capacity(entries.len()),
            calls: Vec::new(),
            work: Work::default(),
            status: RunStatus::Pending,
            recorded_taken: Vec::new(),
            verify,
            replica: None,
            resumed: entries.len(),
            horizon: 0,
            next_call: 0,
            promises: Vec::new(),
            promise_of_call: Vec::new(),
            unreported: 0,
            cancel: None,
            shield: false,
            due: VecDeque::new(),
            new: Vec::new(),
        };
        replay.extend(entries)?;
        replay.pass_forks();
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
            self.forks.note(&entry, self.calls.len() as CallNo);
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

    /// What carries the run.
    pub fn component(&self) -> Digest {
        let moved = self.entries.iter().rev().find_map(|entry| match &entry.event {
            Event::Upgraded { component } => Some(*component),
            Event::Forked(forked) => Some(forked.component),
            _ => None,
        });
        moved.unwrap_or(self.started.component)
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

    /// How many calls the guest has made, committed or not.
    pub fn calls_made(&self) -> CallNo {
        self.next_call
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

    /// Whether the guest has done nothing yet: no call, no payload taken.
    pub fn is_untouched(&self) -> bool {
        self.next_call == 0 && self.hooks.iter().all(|hook| hook.taken == 0)
    }

    /// Whether the guest gave this call up, committed or not.
    pub fn is_abandoned(&self, call: CallNo) -> bool {
        self.promise(call).is_some_and(|promise| promise.abandoned)
    }

    /// Whether a new entry changes something outside this run, so that it must be committed before anything
    /// that may rely on it; or is an outcome that the guest can observe once it is committed.
    pub fn has_new_effect(&self) -> bool {
        self.new.iter().any(|new| match new {
            // Output of a step that was called later comes later.
            NewEntry::OpenHook { .. }
            | NewEntry::StartChild(_)
            | NewEntry::Continue(_)
            | NewEntry::Emit(_)
            | NewEntry::Write(_) => true,
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

    /// Whether the guest has made every call that the journal holds and observed every entry.
    pub fn is_at_end(&self) -> bool {
        self.horizon + 1 == self.entries.len() && self.next_call as usize >= self.calls.len()
    }

    /// How many entries [`Self::drain_new`] would hand over, those for payloads apart.
    pub fn new_entries(&self) -> usize {
        self.new.len()
    }

    /// The newest entry that the guest has observed.
    pub fn horizon(&self) -> Seq {
        self.entries[self.horizon].seq
    }

    /// The input of the run, JSON.
    pub fn input(&self) -> Arc<str> {
        text_of(&self.entries[0])
    }

    // ---- what the guest asks -------------------------------------------------------------------------

    /// The time of the newest entry that the guest has observed, and never before the run's own beginning: what
    /// was written while it waited for that is older.
    pub fn now(&self) -> Timestamp {
        self.entries[self.horizon].at.max(self.work.begins)
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
                if self.was_terminated() {
                    return Err(GuestError::EndOfJournal);
                }
                if self.status.is_terminal() || self.replica.is_some() {
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
        if !promise.held || promise.reported {
            return false;
        }
        if let (Awaited::Ready(HookHandle::Own(hook)), None) = (&promise.awaited, promise.completed_by) {
            let hook = *hook;
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
            Event::HookDisposed { hook, replaced, .. } => {
                let (hook, replaced) = (*hook, *replaced);
                self.lose_hook(hook, replaced, index)?;
            }
            Event::CancelRequested { .. } => self.observe_cancel(index),
            Event::ChildStarted { call, .. }
            | Event::ChildRefused { call, .. }
            | Event::ChildEnded { call, .. } => {
                let call = *call;
                self.observe_child(call, index);
            }
            event => {
                let id = event
                    .completes_call()
                    .and_then(|call| self.promise_of_call.get(call as usize).copied().flatten());
                // A timer that was cancelled may have fired all the same.
                if let Some(id) = id.filter(|id| self.promises[*id as usize].completed_by.is_none()) {
                    self.promises[id as usize].completed_by = Some(index);
                    self.due.push_back(id);
                }
            }
        }
        self.horizon = index;
        self.pass_forks();
        Ok(())
    }

    /// Whether the run was ended without its guest, so that nothing is known of what that would have done next.
    fn was_terminated(&self) -> bool {
        self.status == RunStatus::Cancelled
            && self
                .entries
                .iter()
                .rev()
                .any(|entry| entry.event == Event::Terminated)
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
        if (self.next_call as usize) < self.calls.len() || self.replica.is_some() {
            return Err(self.diverged(self.next_call, Some(returned())));
        }
        let end = self.entries.iter().rev().find(|entry| entry.event.is_outcome());
        // Of a run that was terminated no outcome is known.
        let same = match (end.map(|entry| (&entry.event, &entry.body)), outcome) {
            (None, _) => true,
            (Some((Event::Completed, body)), Ok(value)) => same_json(body, value),
            (Some((Event::Continued { .. }, body)), Err(error)) => {
                continued_with(error).is_some_and(|input| same_json(body, &input))
            }
            (Some((Event::Failed | Event::Cancelled, body)), Err(error)) => match continued_with(error) {
                Some(input) => is_not_continued(&Body::shared_text(body.as_ref()), &input),
                None => same_json(body, error),
            },
            _ => false,
        };
        if same {
            Ok(())
        } else {
            Err(self.diverged(self.next_call, Some(returned())))
        }
    }
}

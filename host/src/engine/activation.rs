//! One pass of a guest over its journal, from its owner's side: commits, attempts, timers, rest.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{AcquireError, OwnedSemaphorePermit};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, Sleep};

use super::attempt::{Pending, Unfinished, Verdict, cancelled, cut_off, judge};
use super::backlog::{Backlog, Kept};
use super::carry_on::block;
use super::effects::AttemptEffects;
use super::logs::{RunLog, StepLog};
use super::registry::{Signal, Turn};
use super::sequence::Sequence;
use super::{Engine, held};
use crate::clock;
use crate::ids::RunId;
use crate::journal::{
    Body, CallNo, CancelReason, Deadline, Divergence, Entry, Event, GuestError, LastAttempt, Limits,
    NewEntry, OpenStep, Replay, Timestamp,
};
use crate::sandbox::{AttemptEnd, AttemptRequest, Component, Owner, SpentInstance};
use crate::store::{Append, Appended, Park, StoreError};

/// An attempt that runs this long is made visible in the journal, whatever else happens.
const VISIBLE_AFTER: Duration = Duration::from_millis(50);

/// How long to wait before writing again when the store could not.
pub const WRITE_RETRY: Duration = Duration::from_millis(100);

/// Steps that a commit takes up beyond those that have begun. A commit of many thousands would hold up the attempts
/// that end meanwhile, since only so many outcomes may wait.
const SCHEDULED_PER_COMMIT: usize = 256;

/// Why an activation was ended from this side.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The instance was given up; the run rests until it is woken.
    #[error("evicted")]
    Evicted { wake_at: Option<Timestamp> },
    /// The run was changed from outside, or blocked, so that it must begin again from its journal.
    #[error("reload")]
    Reload,
    /// The run was ended from outside.
    #[error("ended")]
    Ended,
    #[error(transparent)]
    Store(StoreError),
    #[error(transparent)]
    Replay(GuestError),
    /// A closure could not be reached again.
    #[error("{0}")]
    Diverged(Box<Divergence>),
    /// The run had its time, and the grace after it.
    #[error("out of time")]
    OutOfTime,
}

/// Appends, and tries again for as long as the store cannot write: what finished is kept meanwhile, and no attempt
/// of any run begins.
pub async fn save(
    engine: &Engine,
    run: &RunId,
    seen: u64,
    mut entries: Vec<NewEntry>,
    park: Option<Park>,
    logs: &RunLog,
) -> Result<Appended, StoreError> {
    engine.prepare_starts(run, &mut entries).await?;
    let lines = logs.take();
    let mut refused = None;
    loop {
        let append = Append {
            run: run.clone(),
            fence: engine.0.fence,
            seen,
            entries: entries.clone(),
            park,
            logs: lines.batch.clone(),
            now: engine.0.clock.now(),
        };
        match engine.0.store.append(append).await {
            Err(error) if error.may_retry() => {
                tracing::warn!(%run, %error, "not saved yet; trying again");
                refused.get_or_insert_with(|| engine.0.backlog.refused());
                tokio::time::sleep(WRITE_RETRY).await;
            }
            Ok(appended) => {
                engine.wake_all(&appended.woken);
                let chunks = entries.iter().any(|new| matches!(new, NewEntry::Write(_)));
                if chunks || !lines.batch.is_empty() {
                    engine.0.registry.written(run);
                }
                return Ok(appended);
            }
            Err(error) => {
                engine.note_failure(&error);
                return Err(error);
            }
        }
    }
}

/// The owner of a run while its guest is alive.
pub struct Activation {
    engine: Engine,
    run: RunId,
    component: Component,
    signal: Arc<Signal>,
    limits: Limits,
    logs: Arc<RunLog>,
    /// The guest has passed the journal that this activation began with, so that it had its chance to
    /// abandon what was outstanding.
    at_frontier: bool,
    /// Steps that want an attempt now, in order of call.
    ready: VecDeque<CallNo>,
    /// Steps that want one later.
    delayed: BinaryHeap<Reverse<(Timestamp, CallNo)>>,
    /// Every step without an outcome.
    steps: HashMap<CallNo, Pending>,
    /// An attempt that runs within this task, while it is the only one: a sequence of short steps wakes no
    /// other thread.
    alone: Option<(CallNo, AttemptFuture)>,
    sequence: Sequence,
    /// Attempts that begin once it is committed that they do.
    committing: Vec<(CallNo, AttemptFuture)>,
    /// Steps that wait for a person, as far as this activation has met them.
    held: Vec<CallNo>,
    running: HashMap<CallNo, AbortHandle>,
    attempts: JoinSet<(CallNo, Ended)>,
    /// This run's place among those that wait for the common budget of attempts, kept until it is served.
    queued: Option<PermitFuture>,
    /// When attempts that began before the run was asked to cancel are cut off.
    cut_at: Option<Timestamp>,
    /// Something is unsaved that the guest may observe.
    news: bool,
    /// Entries that the next commit carries.
    unsaved: Vec<NewEntry>,
    /// Steps that have not begun, in order of call; commits take them up by and by: see [`SCHEDULED_PER_COMMIT`].
    scheduled: VecDeque<(CallNo, NewEntry)>,
    /// The outcomes among them, for the common bound of their size.
    kept: Vec<Kept>,
    /// When they must be visible.
    flush_at: Option<Instant>,
    /// Wakes this task for that. Set anew only when it has gone off: most commits come long before.
    flush: Pin<Box<Sleep>>,
}

type PermitFuture = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

type AttemptFuture = Pin<Box<dyn Future<Output = Ended> + Send>>;

/// How an attempt ended, counted as kept until that is saved or thrown away.
struct Ended {
    end: AttemptEnd,
    kept: Kept,
    spent: Option<SpentInstance>,
}

impl Ended {
    /// Frees the attempt's place when its outcome is counted, so that one of both always bounds it.
    fn new(
        end: AttemptEnd,
        spent: Option<SpentInstance>,
        backlog: &Backlog,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let bytes = match &end {
            AttemptEnd::Returned(Ok(text) | Err(text)) => text.len() as u64,
            AttemptEnd::Trapped(_) | AttemptEnd::TimedOut | AttemptEnd::Diverged(_) => 0,
        };
        let kept = backlog.outcome(bytes);
        drop(place);
        Self { end, kept, spent }
    }
}

type Outcome<T> = Result<T, Stop>;

#[async_trait]
impl Owner for Activation {
    async fn advance(&mut self, replay: &mut Replay) -> anyhow::Result<()> {
        Ok(self.advance(replay).await?)
    }

    async fn commit(&mut self, replay: &mut Replay) -> anyhow::Result<()> {
        self.absorb(replay);
        self.save(replay, None).await?;
        Ok(())
    }

    fn ahead(&mut self, replay: &mut Replay) -> anyhow::Result<()> {
        if replay.is_at_end() && !replay.has_new_effect() {
            self.absorb(replay);
            self.news |= self.collect(replay)?;
            self.begin_more(replay)?;
        }
        Ok(())
    }

    fn leftover(&mut self) -> Vec<NewEntry> {
        self.take_up(usize::MAX);
        std::mem::take(&mut self.unsaved)
    }
}

impl Activation {
    pub fn new(
        engine: Engine,
        run: RunId,
        component: Component,
        signal: Arc<Signal>,
        limits: Limits,
        logs: Arc<RunLog>,
    ) -> Self {
        Self {
            sequence: Sequence::new(engine.0.ahead.clone()),
            engine,
            run,
            component,
            signal,
            limits,
            logs,
            at_frontier: false,
            ready: VecDeque::new(),
            delayed: BinaryHeap::new(),
            steps: HashMap::new(),
            alone: None,
            committing: Vec::new(),
            held: Vec::new(),
            running: HashMap::new(),
            attempts: JoinSet::new(),
            queued: None,
            cut_at: None,
            news: false,
            unsaved: Vec::new(),
            scheduled: VecDeque::new(),
            kept: Vec::new(),
            flush_at: None,
            flush: Box::pin(tokio::time::sleep(VISIBLE_AFTER)),
        }
    }

    async fn advance(&mut self, replay: &mut Replay) -> Outcome<()> {
        let advanced = self.work_until_news(replay).await;
        if let Err(Stop::Reload) = &advanced {
            self.finish_at_most_once(replay).await?;
        }
        // The guest computes now, for as long as it likes; the attempt goes on elsewhere.
        if let Some((call, attempt)) = self.alone.take() {
            self.spawn(call, attempt);
        }
        advanced
    }

    async fn work_until_news(&mut self, replay: &mut Replay) -> Outcome<()> {
        let before = replay.seen();
        // Effects on the host come before anything that may rely on them.
        let effect = replay.has_new_effect();
        self.absorb(replay);
        if effect {
            self.save(replay, None).await?;
            return Ok(());
        }
        if !std::mem::replace(&mut self.at_frontier, true) {
            self.resume_steps(replay)?;
        }
        while replay.seen() == before {
            self.keep_deadlines(replay)?;
            self.news |= self.fire_timers(replay) | self.collect(replay)?;
            self.promote_delayed();
            self.begin_attempts(replay)?;
            if !self.held.is_empty() {
                return self.wait_for_a_person(replay).await;
            }
            let many = self.scheduled.len() > SCHEDULED_PER_COMMIT;
            if std::mem::take(&mut self.news) || !self.committing.is_empty() || many {
                self.save(replay, None).await?;
                return Ok(());
            }
            if self.attempts_begun() == 0 && self.ready.is_empty() {
                self.rest(replay).await?;
            } else {
                self.wait(replay).await?;
            }
        }
        Ok(())
    }

    /// Takes over what the guest asked for since it last waited.
    fn absorb(&mut self, replay: &mut Replay) {
        let new = replay.drain_new();
        let only_steps = new.iter().all(NewEntry::is_step);
        if !only_steps {
            // Calls are written in the order in which they were made.
            self.take_up(usize::MAX);
        }
        for new in new {
            if let NewEntry::Event { event, body } = &new {
                match event {
                    Event::StepScheduled {
                        call,
                        step,
                        closure,
                        options,
                    } => {
                        let step = Pending {
                            call: *call,
                            step: step.clone(),
                            closure: *closure,
                            options: options.clone(),
                            input: Body::shared_text(body.as_ref()),
                            attempts: 0,
                            forgiven: 0,
                            cancelled: false,
                        };
                        if let Some(traceless) = replay.is_cancelled(*call) {
                            let how = Unfinished::left(traceless);
                            self.unsaved.extend([new, cancelled(&step, how)]);
                            self.news = true;
                            continue;
                        }
                        let call = *call;
                        self.steps.insert(call, step);
                        self.ready.push_back(call);
                        if only_steps {
                            self.scheduled.push_back((call, new));
                            self.flush_soon();
                            continue;
                        }
                    }
                    Event::Abandoned { call } => {
                        self.steps.remove(call);
                        self.held.retain(|held| held != call);
                        self.committing.retain(|(committing, _)| committing != call);
                        self.alone.take_if(|(alone, _)| alone == call);
                        if let Some(attempt) = self.running.remove(call) {
                            attempt.abort();
                        }
                    }
                    _ => {}
                }
            }
            self.unsaved.push(new);
            // Whatever else is at work, a timer that was set must be armed soon.
            self.flush_soon();
        }
    }

    /// The next commit carries the steps up to this call, scheduled before.
    fn take_up_to(&mut self, call: CallNo) {
        let count = self
            .scheduled
            .partition_point(|(scheduled, _)| *scheduled <= call);
        self.take_up(count);
    }

    fn take_up(&mut self, count: usize) {
        let count = count.min(self.scheduled.len());
        self.unsaved
            .extend(self.scheduled.drain(..count).map(|(_, new)| new));
    }

    /// When the first timer that is not yet committed comes due.
    fn unsaved_timer(&self) -> Option<Timestamp> {
        let due = |new: &NewEntry| match new {
            NewEntry::Event {
                event: Event::TimerSet { due, .. },
                ..
            } => Some(*due),
            _ => None,
        };
        self.unsaved.iter().filter_map(due).min()
    }

    /// Steps that an earlier activation left without an outcome.
    fn resume_steps(&mut self, replay: &Replay) -> Outcome<()> {
        let now = self.engine.0.clock.now();
        // A request to cancel that came with the first commit has said already what the steps in that come to.
        let told: HashSet<CallNo> = self.unsaved.iter().filter_map(NewEntry::completes_call).collect();
        for (call, open) in &replay.work().steps {
            if self.steps.contains_key(call) || told.contains(call) || replay.is_abandoned(*call) {
                continue;
            }
            let scheduled = &replay.entries()[open.scheduled as usize];
            let refused = replay.is_cancelled(*call);
            let asked = open.cancelled && !replay.is_shielded(*call);
            let step = Pending {
                call: *call,
                step: open.step.clone(),
                closure: open.closure,
                options: open.options.clone(),
                input: Body::shared_text(scheduled.body.as_ref()),
                attempts: open.attempts,
                forgiven: open.forgiven,
                cancelled: asked || refused.is_some(),
            };
            if step.cancelled {
                let unknown = match open.last {
                    // One may have begun that the journal does not know.
                    LastAttempt::None => asked || refused == Some(true),
                    LastAttempt::Begun => true,
                    LastAttempt::Failed { outcome_unknown, .. } => outcome_unknown,
                };
                self.unsaved.push(cancelled(&step, Unfinished::left(unknown)));
                self.news = true;
                continue;
            }
            let cut_off = cut_off(&step);
            self.steps.insert(*call, step);
            if open.options.at_most_once && open.last == LastAttempt::Begun {
                self.news |= self.judged(*call, cut_off, replay)?;
            } else if open.hold(now).is_some() {
                self.held.push(*call);
            } else {
                match open.retry_at() {
                    Some(at) => self.delayed.push(Reverse((at, *call))),
                    None => self.ready.push_back(*call),
                }
            }
        }
        self.ready.make_contiguous().sort_unstable();
        Ok(())
    }

    /// The run is to end: steps without an attempt get none, those with one get a grace time.
    fn cancel_steps(&mut self, replay: &Replay) {
        self.take_up(usize::MAX);
        let calls = self.steps.keys().copied();
        let mut calls: Vec<_> = calls.filter(|call| !replay.is_shielded(*call)).collect();
        calls.sort_unstable();
        for call in calls {
            if self.is_running(call) {
                if let Some(step) = self.steps.get_mut(&call) {
                    step.cancelled = true;
                }
                let grace = self.engine.0.config.cancel_grace.as_millis() as Timestamp;
                self.cut_at
                    .get_or_insert(self.engine.0.clock.now().saturating_add(grace));
            } else if let Some(step) = self.steps.remove(&call) {
                self.committing.retain(|(committing, _)| *committing != call);
                self.unsaved.push(cancelled(&step, Unfinished::NotAtWork));
                self.news = true;
            }
        }
    }

    fn is_running(&self, call: CallNo) -> bool {
        self.running.contains_key(&call) || self.alone.as_ref().is_some_and(|(alone, _)| *alone == call)
    }

    /// What is over by now: the run's time, and the grace of attempts in a run that was asked to cancel.
    fn keep_deadlines(&mut self, replay: &Replay) -> Outcome<()> {
        let now = self.engine.0.clock.now();
        match replay.work().deadline {
            Some(Deadline::End(at)) if at <= now => return Err(Stop::OutOfTime),
            Some(Deadline::Cancel(at)) if at <= now => {
                let reason = CancelReason::Timeout;
                self.unsaved
                    .push(NewEntry::event(Event::CancelRequested { reason }));
                self.news = true;
            }
            _ => {}
        }
        if self.cut_at.is_some_and(|at| at <= now) {
            self.cut_at = None;
            let cut: Vec<_> = self.steps.extract_if(|_, step| step.cancelled).collect();
            for (call, step) in cut {
                self.alone.take_if(|(alone, _)| *alone == call);
                if let Some(attempt) = self.running.remove(&call) {
                    attempt.abort();
                }
                self.unsaved.push(cancelled(&step, Unfinished::CutOff));
                self.news = true;
            }
        }
        Ok(())
    }

    fn fire_timers(&mut self, replay: &Replay) -> bool {
        let now = self.engine.0.clock.now();
        let due: Vec<_> = replay.work().timers_due(now).collect();
        let fired = due.into_iter().filter(|call| !replay.is_abandoned(*call));
        let before = self.unsaved.len();
        self.unsaved
            .extend(fired.map(|call| NewEntry::event(Event::TimerFired { call })));
        self.unsaved.len() > before
    }

    /// Takes in attempts that have ended; true when the guest may have something to observe.
    fn collect(&mut self, replay: &Replay) -> Outcome<bool> {
        let mut news = false;
        while let Some(ended) = self.attempts.try_join_next() {
            news |= self.ended(ended, replay)?;
        }
        Ok(news)
    }

    /// Takes in the end of an attempt; true when the guest has something to observe.
    fn ended(&mut self, ended: Result<(CallNo, Ended), JoinError>, replay: &Replay) -> Outcome<bool> {
        let (call, Ended { end, kept, spent }) = match ended {
            Ok(ended) => ended,
            Err(error) if error.is_cancelled() => return Ok(false),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        self.running.remove(&call);
        self.alone.take_if(|(alone, _)| *alone == call);
        self.sequence.keep(spent);
        // Abandoned meanwhile: the outcome is thrown away.
        let Some(step) = self.steps.get(&call).filter(|_| !replay.is_abandoned(call)) else {
            return Ok(false);
        };
        self.kept.push(kept);
        let verdict = judge(step, end, &self.limits, self.engine.0.clock.now());
        self.judged(call, verdict, replay)
    }

    /// Takes in what became of an attempt; true when the guest has something to observe.
    fn judged(&mut self, call: CallNo, verdict: Verdict, replay: &Replay) -> Outcome<bool> {
        Ok(match verdict {
            Verdict::Done(entry) => {
                self.steps.remove(&call);
                self.unsaved.push(entry);
                true
            }
            Verdict::Again(entry, at) => {
                self.unsaved.push(entry);
                // Where a key lives for a time, the begin of its first attempt is committed.
                let open = replay.work().steps.get(&call);
                if open.is_some_and(|open| open.key_expired(at)) {
                    self.held.push(call);
                    return Ok(false);
                }
                self.delayed.push(Reverse((at, call)));
                // Nothing for the guest, but it holds the time of the next attempt: saved within the time in
                // which attempts become visible.
                self.flush_soon();
                false
            }
            Verdict::Held(entry) => {
                self.unsaved.push(entry);
                self.held.push(call);
                false
            }
            Verdict::Diverged(divergence) => return Err(Stop::Diverged(divergence)),
        })
    }

    /// Blocks the run at the first step that waits for a person. What is at work comes to its end and is saved,
    /// nothing else begins, and then the run goes on from its journal: if somebody has decided by then.
    async fn wait_for_a_person(&mut self, replay: &mut Replay) -> Outcome<()> {
        self.queued = None;
        self.take_up(usize::MAX);
        self.save(replay, None).await?;
        let now = self.engine.0.clock.now();
        let mut steps = replay.work().steps.iter();
        // One that was cancelled in this commit has an outcome, which the next one saves.
        let held = steps.find_map(|(call, open)| {
            let hold = open.hold(now).filter(|_| self.steps.contains_key(call))?;
            Some((*call, open, hold))
        });
        let Some((call, open, hold)) = held else {
            // Or the clock was set back.
            self.requeue_held(replay);
            return Ok(());
        };
        let why = held::blocked(&self.run, call, open, hold, replay);
        block(&self.engine, &self.run, why).await;
        if let Err(error) = self.engine.end_if_asked_since(&self.run, replay.seen()).await {
            // It stays blocked until somebody decides, or asks once more.
            tracing::warn!(run = %self.run, %error, "a request to cancel may wait for the run that is blocked");
        }
        if let Some((call, attempt)) = self.alone.take() {
            self.spawn(call, attempt);
        }
        while let Some(ended) = self.attempts.join_next().await {
            self.ended(ended, replay)?;
            self.collect(replay)?;
            self.save(replay, None).await?;
        }
        Err(Stop::Reload)
    }

    /// Before this activation ends: what may not be repeated is not cut off, and its outcomes are saved.
    async fn finish_at_most_once(&mut self, replay: &Replay) -> Outcome<()> {
        loop {
            let mut steps = self.running.keys().filter_map(|call| self.steps.get(call));
            if !steps.any(|step| step.options.at_most_once) {
                return Ok(());
            }
            let Some(ended) = self.attempts.join_next().await else {
                return Ok(());
            };
            self.ended(ended, replay)?;
            // What others wrote meanwhile is for the next activation.
            let entries = std::mem::take(&mut self.unsaved);
            let saved = save(&self.engine, &self.run, replay.seen(), entries, None, &self.logs).await;
            saved.map_err(Stop::Store)?;
            self.kept.clear();
        }
    }

    fn requeue_held(&mut self, replay: &Replay) {
        for call in std::mem::take(&mut self.held) {
            match replay.work().steps.get(&call).and_then(OpenStep::retry_at) {
                Some(at) => self.delayed.push(Reverse((at, call))),
                None => self.ready.push_back(call),
            }
        }
    }

    fn promote_delayed(&mut self) {
        let now = self.engine.0.clock.now();
        while let Some(Reverse((at, call))) = self.delayed.peek().copied() {
            let known = self.steps.contains_key(&call);
            if known && at > now {
                break;
            }
            self.delayed.pop();
            if known {
                self.ready.push_back(call);
            }
        }
    }

    fn attempts_begun(&self) -> usize {
        self.running.len() + self.committing.len() + usize::from(self.alone.is_some())
    }

    /// Begins as many attempts as the budgets allow. Where the common one is used up, or the store has to catch up,
    /// the run queues for it.
    fn begin_attempts(&mut self, replay: &Replay) -> Outcome<()> {
        while self.held.is_empty() && self.attempts_begun() < self.engine.0.config.max_attempts_per_run {
            let Some(call) = self.ready.front().copied() else {
                self.queued = None;
                return Ok(());
            };
            if !self.steps.contains_key(&call) {
                self.ready.pop_front();
                continue;
            }
            if self.queued.is_some() {
                return Ok(());
            }
            let (budget, backlog) = (self.engine.0.attempts.clone(), self.engine.0.backlog.clone());
            let permit = match backlog.is_open() {
                true => budget.clone().try_acquire_owned().ok(),
                false => None,
            };
            let Some(permit) = permit else {
                // Those that it waits for may need the room.
                self.sequence.ends();
                self.queued = Some(Box::pin(async move {
                    let permit = budget.acquire_owned().await;
                    backlog.open().await;
                    permit
                }));
                return Ok(());
            };
            self.ready.pop_front();
            self.begin_attempt(call, permit, replay)?;
        }
        Ok(())
    }

    fn begin_attempt(&mut self, call: CallNo, permit: OwnedSemaphorePermit, replay: &Replay) -> Outcome<()> {
        let Some(step) = self.steps.get_mut(&call) else {
            return Ok(());
        };
        let now = self.engine.0.clock.now();
        let open = replay.work().steps.get(&call);
        if open.is_some_and(|open| open.hold(now).is_some()) {
            self.held.push(call);
            return Ok(());
        }
        let (sandbox, component) = (self.engine.0.sandbox.clone(), self.component.clone());
        let backlog = self.engine.0.backlog.clone();
        let effects = Arc::new(AttemptEffects {
            engine: self.engine.clone(),
            run: self.run.clone(),
            call,
            attempt: step.attempts + 1,
        });
        let blobs = self.engine.0.blobs.clone();
        let logs = Arc::new(StepLog {
            log: self.logs.clone(),
            call,
            attempt: step.attempts + 1,
        });
        let attempt = step.attempt(&self.run, logs, effects, blobs);
        let running: AttemptFuture = if step.closure {
            let mut ahead = self.sequence.closure();
            let ahead = ahead.take_if(|ahead| ahead.leads_to(call, &step.step, replay.entries()));
            let replica = match ahead {
                Some(replica) => replica,
                None => {
                    let (run, entries) = (self.run.clone(), replay.entries().to_vec());
                    let replica = sandbox.replica(&component, run, entries, (call, step.step.clone()));
                    replica.map_err(Stop::Replay)?
                }
            };
            Box::pin(async move {
                let end = sandbox.run_closure(replica, attempt).await;
                Ended::new(end, None, &backlog, permit)
            })
        } else {
            let request = AttemptRequest {
                step: step.step.clone(),
                input: step.input.clone(),
                limits: self.limits.clone(),
                attempt,
            };
            let fresh = self.sequence.step();
            Box::pin(async move {
                let (end, spent) = sandbox.run_step_in(fresh, &component, request).await;
                Ended::new(end, Some(spent), &backlog, permit)
            })
        };
        step.attempts += 1;
        let attempt = step.attempts;
        let (closure, begins_committed) = (step.closure, step.options.begins_committed());
        let started = Event::AttemptStarted { call, attempt };
        self.take_up_to(call);
        self.unsaved.push(NewEntry::event(started));
        self.flush_soon();
        if begins_committed {
            self.committing.push((call, running));
        } else if self.attempts_begun() == 0 && self.ready.is_empty() {
            self.sequence.goes_on(closure);
            self.alone = Some((call, running));
        } else {
            self.sequence.ends();
            self.spawn(call, running);
        }
        Ok(())
    }

    fn spawn(&mut self, call: CallNo, attempt: AttemptFuture) {
        let handle = self.attempts.spawn(async move {
            let mut ended = attempt.await;
            ended.spent = None;
            (call, ended)
        });
        self.running.insert(call, handle);
    }

    /// What is unsaved must be visible soon.
    fn flush_soon(&mut self) {
        self.flush_at
            .get_or_insert_with(|| Instant::now() + VISIBLE_AFTER);
    }

    /// When something comes due by itself: a timer, committed or not, or another attempt.
    fn next_due(&self, replay: &Replay) -> Option<Timestamp> {
        let retry = self.delayed.peek().map(|Reverse((at, _))| *at);
        let deadline = replay.work().deadline.map(Deadline::at);
        let due = [
            replay.work().next_timer(),
            self.unsaved_timer(),
            retry,
            deadline,
            self.cut_at,
        ];
        due.into_iter().flatten().min()
    }

    /// Nothing of this run is at work: the commit says so, and the guest's instance may be given up.
    async fn rest(&mut self, replay: &mut Replay) -> Outcome<()> {
        let wake_at = self.next_due(replay);
        if !self.save(replay, Some(Park { wake_at })).await? {
            return Ok(());
        }
        // At rest a run holds its workflow's instance and no other.
        self.sequence.ends();
        self.engine.begin_all(self.engine.0.registry.rests(&self.run));
        let due = clock::reached(&*self.engine.0.clock, wake_at);
        let evicted = tokio::select! {
            () = self.signal.news() => false,
            () = due => false,
            () = self.signal.evicted() => true,
            () = tokio::time::sleep(self.engine.0.config.idle) => true,
        };
        if evicted {
            return Err(Stop::Evicted { wake_at });
        }
        self.turn(replay, wake_at).await?;
        self.fetch(replay).await
    }

    /// Waits until the run may work again, unless its instance is given up before.
    async fn turn(&mut self, replay: &Replay, wake_at: Option<Timestamp>) -> Outcome<()> {
        let registry = &self.engine.0.registry;
        let deadline = replay.work().deadline.map(Deadline::at);
        match registry.wakes(&self.run, replay.started().concurrency.as_ref(), deadline) {
            Turn::Now => Ok(()),
            Turn::Later(_) => Err(Stop::Evicted { wake_at }),
            Turn::Waits => {
                let turn = async {
                    while !registry.take_turn(&self.run) {
                        self.signal.turn().await;
                    }
                };
                let out_of_time = clock::reached(&*self.engine.0.clock, deadline);
                tokio::select! {
                    biased;
                    () = turn => Ok(()),
                    () = self.signal.evicted() => Err(Stop::Evicted { wake_at }),
                    // What follows is written without its guest.
                    () = out_of_time => Err(Stop::Reload),
                    () = tokio::time::sleep(self.engine.0.config.idle) => Err(Stop::Evicted { wake_at }),
                }
            }
        }
    }

    /// Waits for an attempt to end, or for whatever comes first.
    async fn wait(&mut self, replay: &mut Replay) -> Outcome<()> {
        let clock = self.engine.0.clock.clone();
        let next = self.next_due(replay);
        let due = async {
            match next {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let room = async {
            match &mut self.queued {
                Some(permit) => permit.await,
                None => std::future::pending().await,
            }
        };
        let unsaved = !self.unsaved.is_empty() || !self.scheduled.is_empty() || self.logs.is_waiting();
        let flush_at = self.flush_at.filter(|_| unsaved);
        let logs = self.logs.clone();
        let alone = async {
            match &mut self.alone {
                Some((call, attempt)) => (*call, attempt.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            ended = alone => {
                if self.ended(Ok(ended), replay)? {
                    self.save(replay, None).await?;
                }
            }
            Some(ended) = self.attempts.join_next() => {
                if self.ended(ended, replay)? {
                    self.collect(replay)?;
                    // Others take the places of those that ended while these are saved.
                    self.begin_attempts(replay)?;
                    self.save(replay, None).await?;
                }
            }
            () = self.signal.news() => self.fetch(replay).await?,
            () = self.flush.as_mut(), if flush_at.is_some() => {
                match flush_at.filter(|at| *at > Instant::now()) {
                    Some(later) => self.flush.as_mut().reset(later),
                    None => {
                        self.save(replay, None).await?;
                    }
                }
            }
            // Lines of a long attempt become visible as the attempt does.
            () = logs.written(), if flush_at.is_none() => self.flush_soon(),
            permit = room => {
                self.queued = None;
                if let (Ok(permit), Some(call)) = (permit, self.ready.pop_front()) {
                    self.begin_attempt(call, permit, replay)?;
                }
            }
            () = due => {
                // A timer can fire once it is committed.
                if self.unsaved_timer().is_some_and(|due| due <= clock.now()) {
                    self.save(replay, None).await?;
                }
            }
        }
        Ok(())
    }

    /// Entries that others wrote.
    async fn fetch(&mut self, replay: &mut Replay) -> Outcome<()> {
        self.signal.take_in();
        if let Some(entries) = self.signal.entries() {
            let new: Vec<_> = entries
                .into_iter()
                .filter(|entry| entry.seq > replay.seen())
                .collect();
            let mut expected = replay.seen() + 1..;
            if new.iter().all(|entry| expected.next() == Some(entry.seq)) {
                return self.apply(replay, new);
            }
        }
        let loaded = self.engine.0.store.load(&self.run, replay.seen() + 1).await;
        let Some(loaded) = loaded.map_err(Stop::Store)? else {
            return Err(Stop::Reload);
        };
        if loaded.run.status.is_terminal() {
            return Err(Stop::Ended);
        }
        if loaded.run.blocked.is_some() {
            return Err(Stop::Reload);
        }
        self.apply(replay, loaded.entries)
    }

    /// Commits what is unsaved. True when the run now rests.
    async fn save(&mut self, replay: &mut Replay, park: Option<Park>) -> Outcome<bool> {
        self.take_up(match park {
            Some(_) => usize::MAX,
            None => SCHEDULED_PER_COMMIT,
        });
        let entries = std::mem::take(&mut self.unsaved);
        let kept = std::mem::take(&mut self.kept);
        let committing = self.committing.len();
        self.flush_at = None;
        if !self.scheduled.is_empty() {
            self.flush_soon();
        }
        let (engine, run) = (self.engine.clone(), self.run.clone());
        // Sent to the store before anything else is done.
        let logs = self.logs.clone();
        let mut saving = pin!(save(&engine, &run, replay.seen(), entries, park, &logs));
        let saved = tokio::select! {
            biased;
            saved = &mut saving => Some(saved),
            () = self.prepare_next(replay) => None,
        };
        let mut failed = Ok(());
        let saved = match saved {
            Some(saved) => saved,
            None => loop {
                tokio::select! {
                    biased;
                    saved = &mut saving => break saved,
                    Some(ended) = self.attempts.join_next(), if failed.is_ok() => {
                        failed = self.ended(ended, replay).and_then(|news| {
                            self.news |= news;
                            self.begin_more(replay)
                        });
                    }
                }
            },
        };
        let saved = saved.map_err(Stop::Store)?;
        drop(kept);
        let committed: Vec<_> = self.committing.drain(..committing).collect();
        for (call, attempt) in committed {
            self.spawn(call, attempt);
        }
        self.apply(replay, saved.entries)?;
        failed?;
        Ok(saved.parked)
    }

    /// In a sequence of attempts: wipes the last one's instance and makes the next one's.
    async fn prepare_next(&mut self, replay: &Replay) {
        let (sandbox, component, limits) = (&self.engine.0.sandbox, &self.component, &self.limits);
        let step = async || sandbox.step_instance(component, limits).await;
        let closure = || {
            let (entries, calls) = (replay.entries().to_vec(), replay.calls_made());
            let replica = sandbox.replica_ahead(component, self.run.clone(), entries, calls);
            // What is wrong with the journal shows where it is read.
            replica.ok()
        };
        self.sequence.prepare(step, closure).await;
    }

    /// Begins attempts in place of those that ended and are not saved yet, until twice as many outcomes wait as
    /// attempts may run at once: no more than those can be lost.
    fn begin_more(&mut self, replay: &Replay) -> Outcome<()> {
        match self.kept.len() < 2 * self.engine.0.config.max_attempts_per_run {
            true => self.begin_attempts(replay),
            false => Ok(()),
        }
    }

    fn apply(&mut self, replay: &mut Replay, entries: Vec<Entry>) -> Outcome<()> {
        let upgraded = |entry: &Entry| matches!(entry.event, Event::Upgraded { .. });
        if entries.iter().any(upgraded) {
            return Err(Stop::Reload);
        }
        let cancels = |entry: &Entry| matches!(entry.event, Event::CancelRequested { .. });
        // Once it was asked, what it calls is to undo something: that its time is over too cancels nothing.
        let first = replay.work().cancel_requested.is_none();
        let cancelled = first && entries.iter().any(cancels);
        replay.extend(entries).map_err(Stop::Replay)?;
        self.logs.set_position(replay.seen());
        if replay.status().is_terminal() {
            return Err(Stop::Ended);
        }
        if cancelled {
            self.cancel_steps(replay);
        }
        Ok(())
    }
}

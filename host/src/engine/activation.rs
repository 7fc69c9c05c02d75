//! Carrying a run on: passes of its guest over its journal, and the work in between.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::Engine;
use super::attempt::{Pending, Verdict, judge};
use super::error::Error;
use super::registry::Signal;
use super::request::DivergenceReport;
use crate::ids::RunId;
use crate::journal::{
    Body, CallNo, Event, Failure, FailureKind, GuestError, Limits, NewEntry, Replay, Timestamp,
};
use crate::sandbox::{
    AttemptEnd, Component, LogLevel, LogSink, Owner, Pass, Trap, TrapKind, WorkflowEnd,
};
use crate::store::{Append, BlockReason, Blocked, Park, StoreError};

/// An attempt that runs this long is made visible in the journal, whatever else happens.
const VISIBLE_AFTER: Duration = Duration::from_millis(50);

/// How long to wait before writing again when the store could not.
const WRITE_RETRY: Duration = Duration::from_millis(100);

/// Why an activation was ended from this side.
#[derive(Debug, thiserror::Error)]
enum Stop {
    /// The instance was given up; the run rests until it is woken.
    #[error("evicted")]
    Evicted { wake_at: Option<Timestamp> },
    /// The run was changed from outside so that it must begin again from its journal.
    #[error("reload")]
    Reload,
    #[error(transparent)]
    Store(StoreError),
    #[error(transparent)]
    Replay(GuestError),
}

/// What follows when an activation has ended.
enum Next {
    /// The run rests, ended or is blocked.
    Rest { wake_at: Option<Timestamp> },
    /// Once more from the journal.
    Again,
}

/// Frees the run's place in the registry also when its activation dies of a fault of this host.
struct Place<'a> {
    engine: &'a Engine,
    run: &'a RunId,
    left: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.left {
            self.engine.0.registry.drop_slot(self.run);
        }
    }
}

/// Carries one run on until it rests.
pub async fn carry_on(engine: Engine, run: RunId, signal: Arc<Signal>) {
    let mut place = Place { engine: &engine, run: &run, left: false };
    loop {
        let next = match activate(&engine, &run, &signal).await {
            Ok(next) => next,
            Err(error) => {
                engine.note_failure(&error);
                tracing::error!(%run, %error, "the run could not be carried on");
                match error {
                    StoreError::Corrupt { .. } => {
                        let message = error.to_string();
                        block(&engine, &run, BlockReason::CorruptJournal, message, json!(null)).await;
                        Next::Rest { wake_at: None }
                    }
                    error if error.may_retry() => {
                        tokio::time::sleep(WRITE_RETRY).await;
                        Next::Again
                    }
                    _ => Next::Rest { wake_at: None },
                }
            }
        };
        match next {
            Next::Again => {}
            Next::Rest { wake_at } => {
                if engine.0.registry.leave(&run, wake_at) {
                    place.left = true;
                    return;
                }
            }
        }
    }
}

async fn activate(engine: &Engine, run: &RunId, signal: &Arc<Signal>) -> Result<Next, StoreError> {
    signal.take_in();
    let Some(loaded) = engine.0.store.load(run, 0).await? else {
        return Ok(Next::Rest { wake_at: None });
    };
    if loaded.run.status.is_terminal() || loaded.run.blocked.is_some() {
        return Ok(Next::Rest { wake_at: None });
    }
    let component = match engine.component(loaded.run.component).await {
        Ok(component) => component,
        Err(Error::Store(error)) => return Err(error),
        Err(error) => {
            let message = format!("the run's component cannot be loaded: {error}");
            block(engine, run, BlockReason::Component, message, json!(null)).await;
            return Ok(Next::Rest { wake_at: None });
        }
    };
    let replay = match Replay::resume(loaded.entries) {
        Ok(replay) => replay,
        Err(error) => return Err(corrupt(run, &error)),
    };
    let logs: Arc<dyn LogSink> = Arc::new(RunLog { run: run.clone() });
    let owner = Box::new(Activation {
        engine: engine.clone(),
        run: run.clone(),
        component: component.clone(),
        signal: signal.clone(),
        limits: replay.started().limits.clone(),
        logs: logs.clone(),
        at_frontier: false,
        ready: VecDeque::new(),
        delayed: BinaryHeap::new(),
        steps: HashMap::new(),
        running: HashMap::new(),
        attempts: JoinSet::new(),
        unsaved: Vec::new(),
        flush_at: None,
    });
    let sandbox = engine.0.sandbox.clone();
    let ended = sandbox.run_workflow(&component, run.clone(), replay, owner, logs).await;
    let Pass { replay, owner, end, .. } = ended;
    // Ends attempts that nobody waits for any more.
    drop(owner);
    settle(engine, run, replay, end).await
}

fn corrupt(run: &RunId, error: &GuestError) -> StoreError {
    StoreError::Corrupt {
        run: run.clone(),
        what: error.to_string(),
    }
}

/// Writes down how an activation ended.
async fn settle(
    engine: &Engine,
    run: &RunId,
    mut replay: Replay,
    end: WorkflowEnd,
) -> Result<Next, StoreError> {
    let rest = Ok(Next::Rest { wake_at: None });
    match end {
        WorkflowEnd::Returned(outcome) => {
            let outcome = outcome_entry(outcome, &replay.started().limits);
            let mut entries = replay.drain_new();
            entries.push(outcome);
            save(engine, run, replay.seen(), entries, None).await?;
            engine.0.registry.changed(run);
            rest
        }
        WorkflowEnd::Diverged(divergence) => {
            let report = DivergenceReport::from(*divergence);
            let message = format!(
                "{}. The component does not do what the journal holds. Move the run to one that does: \
                 `onemark runs upgrade {run} --component DIGEST`",
                report.message
            );
            block(engine, run, BlockReason::Nondeterminism, message, json!(report)).await;
            rest
        }
        WorkflowEnd::Trapped(trap) => {
            let message = format!(
                "the workflow was stopped: {}. Mend it, deploy it, and move the run to the new component: \
                 `onemark runs upgrade {run} --component DIGEST`",
                describe(&trap)
            );
            block(engine, run, BlockReason::Trap, message, json!(trap)).await;
            rest
        }
        WorkflowEnd::Corrupt { seq, what } => Err(corrupt(run, &GuestError::Corrupt { seq, what })),
        WorkflowEnd::EndOfJournal => Ok(Next::Again),
        WorkflowEnd::Stopped(error) => match error.downcast::<Stop>() {
            Ok(Stop::Evicted { wake_at }) => Ok(Next::Rest { wake_at }),
            Ok(Stop::Reload) => Ok(Next::Again),
            Ok(Stop::Store(error)) => Err(error),
            Ok(Stop::Replay(error)) => Err(corrupt(run, &error)),
            Err(error) => Err(StoreError::Invalid(format!("{error:#}"))),
        },
    }
}

fn describe(trap: &Trap) -> String {
    let kind = match trap.kind {
        TrapKind::Trap | TrapKind::Refused => "",
        TrapKind::OutOfFuel | TrapKind::OutOfMemory | TrapKind::StackOverflow => "limit: ",
    };
    match trap.frames.first() {
        Some(frame) => format!("{kind}{} in {frame}", trap.message),
        None => format!("{kind}{}", trap.message),
    }
}

/// The entry that ends a run. An outcome that cannot be kept is a failure that says so.
fn outcome_entry(outcome: Result<String, String>, limits: &Limits) -> NewEntry {
    let refused = |kind, text: String| {
        let body = Body::new(Failure::new(kind, text).to_json());
        NewEntry::with_body(Event::Failed, body)
    };
    let text = match &outcome {
        Ok(text) | Err(text) => text,
    };
    if text.len() as u64 > limits.body_bytes {
        let text = format!(
            "the workflow returned {} bytes; the limit is {}",
            text.len(),
            limits.body_bytes
        );
        return refused(FailureKind::TooLarge, text);
    }
    match outcome {
        Ok(value) => match serde_json::from_str::<serde::de::IgnoredAny>(&value) {
            Ok(_) => NewEntry::with_body(Event::Completed, Body::new(value)),
            Err(error) => {
                let text = format!("the workflow returned what is no JSON: {error}");
                refused(FailureKind::Error, text)
            }
        },
        Err(document) => match serde_json::from_str::<serde_json::Value>(&document) {
            Ok(error) if error["kind"] == "cancelled" => {
                NewEntry::with_body(Event::Cancelled, Body::new(document))
            }
            Ok(_) => NewEntry::with_body(Event::Failed, Body::new(document)),
            Err(_) => refused(FailureKind::Error, document),
        },
    }
}

/// Appends, and tries again for as long as the store cannot write: what finished is kept meanwhile.
async fn save(
    engine: &Engine,
    run: &RunId,
    seen: u64,
    entries: Vec<NewEntry>,
    park: Option<Park>,
) -> Result<crate::store::Appended, StoreError> {
    loop {
        let append = Append {
            run: run.clone(),
            fence: engine.0.fence,
            seen,
            entries: entries.clone(),
            park,
            now: engine.0.clock.now(),
        };
        match engine.0.store.append(append).await {
            Err(error) if error.may_retry() => {
                tracing::warn!(%run, %error, "not saved yet; trying again");
                tokio::time::sleep(WRITE_RETRY).await;
            }
            result => return result.inspect_err(|error| engine.note_failure(error)),
        }
    }
}

async fn block(
    engine: &Engine,
    run: &RunId,
    reason: BlockReason,
    message: String,
    detail: serde_json::Value,
) {
    tracing::warn!(%run, ?reason, message, "run blocked");
    let blocked = Blocked {
        reason,
        message,
        detail,
    };
    loop {
        match engine.0.store.block(run, engine.0.fence, blocked.clone()).await {
            Err(error) if error.may_retry() => tokio::time::sleep(WRITE_RETRY).await,
            result => {
                if let Err(error) = result {
                    engine.note_failure(&error);
                    tracing::error!(%run, %error, "the run could not be marked as blocked");
                }
                break;
            }
        }
    }
    engine.0.registry.changed(run);
}

/// Where a run's log lines go.
struct RunLog {
    run: RunId,
}

impl LogSink for RunLog {
    fn log(&self, level: LogLevel, line: &str) {
        let run = &self.run;
        match level {
            LogLevel::Debug => tracing::debug!(target: "onemark::guest", %run, "{line}"),
            LogLevel::Info => tracing::info!(target: "onemark::guest", %run, "{line}"),
            LogLevel::Warn => tracing::warn!(target: "onemark::guest", %run, "{line}"),
            LogLevel::Error => tracing::error!(target: "onemark::guest", %run, "{line}"),
        }
    }
}

/// The owner of a run while its guest is alive.
struct Activation {
    engine: Engine,
    run: RunId,
    component: Component,
    signal: Arc<Signal>,
    limits: Limits,
    logs: Arc<dyn LogSink>,
    /// The guest has passed the journal that this activation began with, so that it had its chance to
    /// abandon what was outstanding.
    at_frontier: bool,
    /// Steps that want an attempt now, in order of call.
    ready: VecDeque<CallNo>,
    /// Steps that want one later.
    delayed: BinaryHeap<Reverse<(Timestamp, CallNo)>>,
    /// Every step without an outcome.
    steps: HashMap<CallNo, Pending>,
    running: HashMap<CallNo, AbortHandle>,
    attempts: JoinSet<(CallNo, AttemptEnd)>,
    /// Entries that the next commit carries.
    unsaved: Vec<NewEntry>,
    /// When attempts that began must be visible.
    flush_at: Option<Instant>,
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
}

impl Activation {
    async fn advance(&mut self, replay: &mut Replay) -> Outcome<()> {
        let before = replay.seen();
        // Effects on the host come before anything that may rely on them.
        let effect = replay.has_new_effect();
        self.absorb(replay);
        if effect {
            self.save(replay, None).await?;
            return Ok(());
        }
        if !std::mem::replace(&mut self.at_frontier, true) {
            self.resume_steps(replay);
        }
        while replay.seen() == before {
            let news = self.fire_timers(replay) | self.collect(replay);
            if news {
                self.save(replay, None).await?;
                return Ok(());
            }
            self.promote_delayed();
            let permit = self.begin_attempts();
            if self.running.is_empty() && self.ready.is_empty() {
                self.rest(replay).await?;
            } else {
                self.wait(replay, permit).await?;
            }
        }
        Ok(())
    }

    /// Takes over what the guest asked for since it last waited.
    fn absorb(&mut self, replay: &mut Replay) {
        for new in replay.drain_new() {
            if let NewEntry::Event { event, body } = &new {
                match event {
                    Event::StepScheduled { call, step, options } => {
                        let input = body.as_ref().and_then(|body| body.text.clone());
                        self.steps.insert(
                            *call,
                            Pending {
                                call: *call,
                                step: step.clone(),
                                options: options.clone(),
                                input: input.unwrap_or_else(|| "null".into()),
                                attempts: 0,
                            },
                        );
                        self.ready.push_back(*call);
                    }
                    Event::Abandoned { call } => {
                        self.steps.remove(call);
                        if let Some(attempt) = self.running.remove(call) {
                            attempt.abort();
                        }
                    }
                    _ => {}
                }
            }
            self.unsaved.push(new);
        }
    }

    /// Steps that an earlier activation left without an outcome.
    fn resume_steps(&mut self, replay: &Replay) {
        for (call, open) in &replay.work().steps {
            if self.steps.contains_key(call) || replay.is_abandoned(*call) {
                continue;
            }
            let scheduled = &replay.entries()[open.scheduled as usize];
            let input = scheduled.body.as_ref().and_then(|body| body.text.clone());
            self.steps.insert(
                *call,
                Pending {
                    call: *call,
                    step: open.step.clone(),
                    options: open.options.clone(),
                    input: input.unwrap_or_else(|| "null".into()),
                    attempts: open.attempts,
                },
            );
            match open.retry_at {
                Some(at) => self.delayed.push(Reverse((at, *call))),
                None => self.ready.push_back(*call),
            }
        }
        self.ready.make_contiguous().sort_unstable();
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
    fn collect(&mut self, replay: &Replay) -> bool {
        let mut news = false;
        while let Some(ended) = self.attempts.try_join_next() {
            news |= self.ended(ended, replay);
        }
        news
    }

    fn ended(
        &mut self,
        ended: Result<(CallNo, AttemptEnd), tokio::task::JoinError>,
        replay: &Replay,
    ) -> bool {
        let (call, end) = match ended {
            Ok(ended) => ended,
            Err(error) if error.is_cancelled() => return false,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        self.running.remove(&call);
        // Abandoned meanwhile: the outcome is thrown away.
        let Some(step) = self.steps.get(&call).filter(|_| !replay.is_abandoned(call)) else {
            return false;
        };
        match judge(step, end, &self.limits, self.engine.0.clock.now()) {
            Verdict::Done(entry) => {
                self.steps.remove(&call);
                self.unsaved.push(entry);
                true
            }
            Verdict::Again(entry, at) => {
                self.unsaved.push(entry);
                self.delayed.push(Reverse((at, call)));
                // Not for the guest, but to be saved soon: it holds the time of the next attempt.
                self.flush_at = Some(Instant::now());
                false
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

    /// Begins as many attempts as the budgets allow. Returns true when the common budget is used up.
    fn begin_attempts(&mut self) -> bool {
        while self.running.len() < self.engine.0.config.max_attempts_per_run {
            let Some(call) = self.ready.front().copied() else {
                return false;
            };
            if !self.steps.contains_key(&call) {
                self.ready.pop_front();
                continue;
            }
            let Ok(permit) = self.engine.0.attempts.clone().try_acquire_owned() else {
                return true;
            };
            self.ready.pop_front();
            self.begin_attempt(call, permit);
        }
        false
    }

    fn begin_attempt(&mut self, call: CallNo, permit: OwnedSemaphorePermit) {
        let Some(step) = self.steps.get_mut(&call) else {
            return;
        };
        let request = step.request(&self.run, self.limits.clone(), self.logs.clone());
        step.attempts += 1;
        let attempt = step.attempts;
        let started = Event::AttemptStarted { call, attempt };
        self.unsaved.push(NewEntry::event(started));
        self.flush_at
            .get_or_insert_with(|| Instant::now() + VISIBLE_AFTER);
        let (sandbox, component) = (self.engine.0.sandbox.clone(), self.component.clone());
        let handle = self.attempts.spawn(async move {
            let end = sandbox.run_step(&component, request).await;
            drop(permit);
            (call, end)
        });
        self.running.insert(call, handle);
    }

    /// Nothing of this run is at work: the commit says so, and the guest's instance may be given up.
    async fn rest(&mut self, replay: &mut Replay) -> Outcome<()> {
        let retry = self.delayed.peek().map(|Reverse((at, _))| *at);
        let committed = replay.work().next_timer();
        let unsaved = self.unsaved.iter().filter_map(|new| match new {
            NewEntry::Event { event: Event::TimerSet { due, .. }, .. } => Some(*due),
            _ => None,
        });
        let wake_at = unsaved.chain(committed).chain(retry).min();
        if !self.save(replay, Some(Park { wake_at })).await? {
            return Ok(());
        }
        self.engine.0.registry.set_idle(&self.run, true);
        let clock = self.engine.0.clock.clone();
        let due = async {
            match wake_at {
                Some(at) => {
                    while clock.now() < at {
                        clock.sleep_until(at).await;
                    }
                }
                None => std::future::pending().await,
            }
        };
        let evicted = tokio::select! {
            () = self.signal.news() => false,
            () = due => false,
            () = self.signal.evicted() => true,
            () = tokio::time::sleep(self.engine.0.config.idle) => true,
        };
        self.engine.0.registry.set_idle(&self.run, false);
        if evicted {
            return Err(Stop::Evicted { wake_at });
        }
        self.fetch(replay).await
    }

    /// Waits for an attempt to end, or for whatever comes first.
    async fn wait(&mut self, replay: &mut Replay, wants_permit: bool) -> Outcome<()> {
        let clock = self.engine.0.clock.clone();
        let budget = self.engine.0.attempts.clone();
        let retry = self.delayed.peek().map(|Reverse((at, _))| *at);
        let next = replay.work().next_timer().into_iter().chain(retry).min();
        let due = async {
            match next {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let room = async {
            match wants_permit {
                true => budget.acquire_owned().await.ok(),
                false => std::future::pending().await,
            }
        };
        let flush = async {
            match self.flush_at.filter(|_| !self.unsaved.is_empty()) {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(ended) = self.attempts.join_next() => {
                if self.ended(ended, replay) {
                    self.collect(replay);
                    self.save(replay, None).await?;
                }
            }
            () = self.signal.news() => self.fetch(replay).await?,
            () = flush => {
                self.save(replay, None).await?;
            }
            permit = room => {
                if let (Some(permit), Some(call)) = (permit, self.ready.pop_front()) {
                    self.begin_attempt(call, permit);
                }
            }
            () = due => {}
        }
        Ok(())
    }

    /// Entries that others wrote.
    async fn fetch(&mut self, replay: &mut Replay) -> Outcome<()> {
        self.signal.take_in();
        let loaded = self.engine.0.store.load(&self.run, replay.seen() + 1).await;
        let Some(loaded) = loaded.map_err(Stop::Store)? else {
            return Err(Stop::Reload);
        };
        if loaded.run.status.is_terminal() || loaded.run.blocked.is_some() {
            return Err(Stop::Reload);
        }
        self.apply(replay, loaded.entries)
    }

    /// Commits what is unsaved. True when the run now rests.
    async fn save(&mut self, replay: &mut Replay, park: Option<Park>) -> Outcome<bool> {
        let entries = std::mem::take(&mut self.unsaved);
        self.flush_at = None;
        let saved = save(&self.engine, &self.run, replay.seen(), entries, park).await;
        let saved = saved.map_err(Stop::Store)?;
        self.apply(replay, saved.entries)?;
        Ok(saved.parked)
    }

    fn apply(&mut self, replay: &mut Replay, entries: Vec<crate::journal::Entry>) -> Outcome<()> {
        let upgraded = |entry: &crate::journal::Entry| matches!(entry.event, Event::Upgraded { .. });
        if entries.iter().any(upgraded) {
            return Err(Stop::Reload);
        }
        replay.extend(entries).map_err(Stop::Replay)
    }
}

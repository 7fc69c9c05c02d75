//! Carrying a run on: activations until it rests, and what is written down when one ends.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use serde_json::json;

use super::Engine;
use super::activation::{Activation, Stop, WRITE_RETRY, save};
use super::error::Error;
use super::logs::RunLog;
use super::registry::{Due, Left, Place, Signal, Turn};
use super::request::DivergenceReport;
use super::scheduler::deadline_of;
use crate::ids::RunId;
use crate::journal::{
    Body, CancelReason, Deadline, Divergence, Event, Failure, FailureKind, GuestError, Lineage,
    MAX_MESSAGE_BYTES, NewEntry, Replay, RunStatus, Timestamp, continued_with, shortened,
};
use crate::sandbox::{Pass, Trap, TrapKind, WorkflowEnd};
use crate::store::{BlockReason, Blocked, Loaded, StoreError};

/// What follows when an activation has ended.
enum Next {
    /// The run rests, ended or is blocked.
    Rest { wake_at: Option<Timestamp> },
    /// Once more from the journal.
    Again,
    /// The run waits for its turn, without a place.
    Left(Vec<Place>),
}

/// Frees the run's place in the registry whatever ends the task.
struct Held<'a> {
    engine: &'a Engine,
    run: &'a RunId,
    left: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.left {
            self.engine.begin_all(self.engine.0.registry.drop_slot(self.run));
        }
    }
}

/// Carries one run on until it rests.
pub async fn carry_on(engine: Engine, place: Place) {
    let Place {
        due: Due { run, mut loaded, .. },
        signal,
    } = place;
    let mut held = Held {
        engine: &engine,
        run: &run,
        left: false,
    };
    let mut untouched = true;
    loop {
        let untouched = std::mem::take(&mut untouched);
        // Boxed at once: it is large, and a task is moved several times before it runs.
        let activation = Box::pin(activate(&engine, &run, &signal, loaded.take(), untouched));
        let next = match without_panic(activation).await {
            Ok(Ok(next)) => next,
            Ok(Err(error)) => failed(&engine, &run, error).await,
            Err(panic) => host_fault(&engine, &run, format!("it panicked: {panic}")).await,
        };
        match next {
            Next::Again => {}
            Next::Rest { wake_at } => {
                if let Left::Gone(next) = engine.0.registry.leave(&run, wake_at) {
                    held.left = true;
                    engine.begin_all(next);
                    return;
                }
            }
            Next::Left(next) => {
                held.left = true;
                engine.begin_all(next);
                return;
            }
        }
    }
}

/// What follows when the store could not do what an activation asked.
async fn failed(engine: &Engine, run: &RunId, error: StoreError) -> Next {
    engine.note_failure(&error);
    tracing::error!(%run, %error, "the run could not be carried on");
    match error {
        StoreError::Corrupt { .. } => {
            let message = error.to_string();
            block_for(engine, run, BlockReason::CorruptJournal, message, json!(null)).await;
            Next::Rest { wake_at: None }
        }
        StoreError::Invalid(_) => host_fault(engine, run, error.to_string()).await,
        error if error.may_retry() => {
            tokio::time::sleep(WRITE_RETRY).await;
            Next::Again
        }
        _ => Next::Rest { wake_at: None },
    }
}

async fn host_fault(engine: &Engine, run: &RunId, what: String) -> Next {
    let message = format!(
        "a fault of this host, please report it: {what}. The run can go on once the host is mended: `onemark runs \
         upgrade {run} --component DIGEST`, also with the component that it has"
    );
    block_for(engine, run, BlockReason::HostFault, message, json!(null)).await;
    Next::Rest { wake_at: None }
}

/// A panic, of the activation or of one of its attempts, stays with its run: its message is an error.
async fn without_panic<T>(mut activation: impl Future<Output = T> + Unpin) -> Result<T, String> {
    poll_fn(|context| {
        // After a panic the future is only dropped.
        match catch_unwind(AssertUnwindSafe(|| Pin::new(&mut activation).poll(context))) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().copied();
                let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                let text = shortened(text.unwrap_or("without a message"), MAX_MESSAGE_BYTES);
                Poll::Ready(Err(text.into_owned()))
            }
        }
    })
    .await
}

/// `untouched`: nothing of the run was executed in this place yet.
async fn activate(
    engine: &Engine,
    run: &RunId,
    signal: &Arc<Signal>,
    loaded: Option<Loaded>,
    untouched: bool,
) -> Result<Next, StoreError> {
    let loaded = match loaded {
        Some(loaded) => Some(loaded),
        None => {
            signal.take_in();
            engine.0.store.load(run, 0).await?
        }
    };
    let Some(loaded) = loaded else {
        return Ok(Next::Rest { wake_at: None });
    };
    if loaded.run.status.is_terminal() || loaded.run.blocked.is_some() {
        // Who was ended with others may wait for its turn.
        engine.0.registry.withdraw(run);
        return Ok(Next::Rest { wake_at: None });
    }
    if loaded.run.waits.is_some() && loaded.run.wake_at.is_none_or(|at| at > engine.0.clock.now()) {
        // Woken by what came from outside.
        let wake_at = loaded.run.wake_at;
        return Ok(Next::Rest { wake_at });
    }
    if let Some(event) = without_guest(&loaded, untouched, engine.0.clock.now()) {
        let seen = loaded.entries.last().map_or(0, |entry| entry.seq);
        let logs = RunLog::new(engine, run.clone(), seen, loaded.logged);
        let saved = save(engine, run, seen, vec![event], None, &logs).await?;
        if saved.status.is_terminal() {
            engine.0.registry.withdraw(run);
            engine.0.registry.changed(run);
        }
        return Ok(Next::Again);
    }
    for predecessor in &loaded.run.predecessors {
        // It has ended, but what was at work for it may not have heard yet.
        engine.0.registry.gone(predecessor).await;
    }
    if let Some(concurrency) = &loaded.run.concurrency
        && let Turn::Later(next) =
            engine
                .0
                .registry
                .begins(run, concurrency, deadline_of(&loaded.entries).map(Deadline::at))
    {
        return Ok(Next::Left(next));
    }
    let component = match engine.component(loaded.run.component).await {
        Ok(component) => component,
        Err(Error::Store(error)) => return Err(error),
        Err(error) => {
            let message = format!("the run's component cannot be loaded: {error}");
            block_for(engine, run, BlockReason::Component, message, json!(null)).await;
            return Ok(Next::Rest { wake_at: None });
        }
    };
    let mut replay = match Replay::resume(loaded.entries) {
        Ok(replay) => replay,
        Err(error) => return Err(corrupt(run, &error)),
    };
    replay.set_stored_chunks(loaded.written);
    let logs = RunLog::new(engine, run.clone(), replay.seen(), loaded.logged);
    let owner = Activation::new(
        engine.clone(),
        run.clone(),
        component.clone(),
        signal.clone(),
        replay.started().limits.clone(),
        logs.clone(),
    );
    let sandbox = engine.0.sandbox.clone();
    let ended = sandbox
        .run_workflow(&component, run.clone(), replay, Box::new(owner), logs.clone())
        .await;
    let Pass {
        replay,
        mut owner,
        end,
        ..
    } = ended;
    let leftover = owner.leftover();
    // Ends attempts that nobody waits for any more.
    drop(owner);
    settle(engine, run, replay, leftover, end, &logs).await
}

/// What is to be written before the guest begins, and, of a run with a limit, whether its turn has come or not. Of one
/// that has executed nothing, the guest would only learn that it is to end at its first wait; and what that waits for
/// may come to a good end.
fn without_guest(loaded: &Loaded, untouched: bool, now: Timestamp) -> Option<NewEntry> {
    let Event::Started(started) = &loaded.entries.first()?.event else {
        return None;
    };
    let ended = |text: &str| {
        let failure = Failure::new(FailureKind::Cancelled, text);
        NewEntry::with_body(Event::Terminated, Body::new(failure.to_json()))
    };
    // What goes on for another was at work as that.
    let goes_on = matches!(started.lineage, Some(Lineage::Continued { .. }));
    let never_ran = untouched && loaded.run.status == RunStatus::Pending && !goes_on;
    // Of those without a limit some rested, and had left no entry.
    let limited = loaded.run.concurrency.is_some();
    let for_nothing = |reason: &CancelReason| never_ran && (limited || *reason == CancelReason::Replaced);
    if let Some(reason) = loaded.run.cancel_requested.filter(for_nothing) {
        return Some(ended(reason.text()));
    }
    if !limited {
        return None;
    }
    let reason = CancelReason::Timeout;
    match deadline_of(&loaded.entries).filter(|deadline| deadline.at() <= now)? {
        Deadline::Cancel(_) if never_ran => Some(ended(reason.text())),
        Deadline::Cancel(_) => Some(NewEntry::event(Event::CancelRequested { reason })),
        Deadline::End(_) => Some(ended(OUT_OF_TIME)),
    }
}

/// Of a run that did not use its grace.
const OUT_OF_TIME: &str = "the run took longer than its timeout allows, and did not end when it was asked to";

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
    leftover: Vec<NewEntry>,
    end: WorkflowEnd,
    logs: &RunLog,
) -> Result<Next, StoreError> {
    // What its guests said belongs before what is made of it.
    let saved_below = match &end {
        WorkflowEnd::Returned(_) => true,
        WorkflowEnd::Stopped(error) => matches!(error.downcast_ref(), Some(Stop::OutOfTime)),
        _ => false,
    };
    if !saved_below && logs.is_waiting() {
        save(engine, run, replay.seen(), Vec::new(), None, logs).await?;
    }
    let rest = Ok(Next::Rest { wake_at: None });
    match end {
        WorkflowEnd::Returned(outcome) => {
            let mut entries = leftover;
            entries.extend(replay.drain_new());
            let input = outcome
                .as_ref()
                .err()
                .and_then(|document| continued_with(document));
            entries.push(match input {
                Some(input) => Box::pin(engine.continuation(run, &replay, input)).await?,
                None => outcome_entry(outcome, &replay),
            });
            let saved = save(engine, run, replay.seen(), entries, None, logs).await?;
            if !saved.status.is_terminal() {
                // It was moved to another component meanwhile: that one decides how it ends.
                return Ok(Next::Again);
            }
            engine.0.registry.changed(run);
            rest
        }
        WorkflowEnd::Diverged(divergence) => {
            block_as_diverged(engine, run, *divergence).await;
            rest
        }
        WorkflowEnd::Trapped(trap) => {
            let message = format!(
                "the workflow was stopped: {}. Mend it, deploy it, and move the run to the new component: \
                 `onemark runs upgrade {run} --component DIGEST`",
                describe(&trap)
            );
            block_for(engine, run, BlockReason::Trap, message, json!(trap)).await;
            rest
        }
        WorkflowEnd::Corrupt { seq, what } => Err(corrupt(run, &GuestError::Corrupt { seq, what })),
        WorkflowEnd::EndOfJournal => Ok(Next::Again),
        WorkflowEnd::Stopped(error) => match error.downcast::<Stop>() {
            Ok(Stop::Evicted { wake_at }) => Ok(Next::Rest { wake_at }),
            Ok(Stop::Reload | Stop::Ended) => Ok(Next::Again),
            Ok(Stop::Store(error)) => Err(error),
            Ok(Stop::Replay(error)) => Err(corrupt(run, &error)),
            Ok(Stop::OutOfTime) => {
                let failure = Failure::new(FailureKind::Cancelled, OUT_OF_TIME);
                let mut entries = leftover;
                let body = Body::new(failure.to_json());
                entries.push(NewEntry::with_body(Event::Terminated, body));
                save(engine, run, replay.seen(), entries, None, logs).await?;
                engine.0.registry.changed(run);
                rest
            }
            Ok(Stop::Diverged(divergence)) => {
                block_as_diverged(engine, run, *divergence).await;
                rest
            }
            Err(error) => Err(StoreError::Invalid(format!("{error:#}"))),
        },
    }
}

async fn block_as_diverged(engine: &Engine, run: &RunId, divergence: Divergence) {
    let report = DivergenceReport::from(divergence);
    let message = format!(
        "{}. The component does not do what the journal holds. Move the run to one that does: \
         `onemark runs upgrade {run} --component DIGEST`",
        report.message
    );
    block_for(engine, run, BlockReason::Nondeterminism, message, json!(report)).await;
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

/// The entry that ends a run.
fn outcome_entry(outcome: Result<String, String>, replay: &Replay) -> NewEntry {
    let cancel_requested = replay.work().cancel_requested.is_some();
    let (event, text) = match outcome {
        Ok(value) => (Event::Completed, value),
        Err(document) => match serde_json::from_str::<serde_json::Value>(&document) {
            // Without a request it is what somebody else's cancellation came to.
            Ok(error) if error["kind"] == "cancelled" && cancel_requested => (Event::Cancelled, document),
            _ => (Event::Failed, document),
        },
    };
    NewEntry::with_body(event, Body::new(text))
}

async fn block_for(
    engine: &Engine,
    run: &RunId,
    reason: BlockReason,
    message: String,
    detail: serde_json::Value,
) {
    let blocked = Blocked {
        reason,
        message,
        step: None,
        detail,
    };
    block(engine, run, blocked).await;
}

/// Marks the run as blocked, as soon as the store can write.
pub async fn block(engine: &Engine, run: &RunId, blocked: Blocked) {
    tracing::warn!(%run, reason = ?blocked.reason, message = blocked.message, "run blocked");
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

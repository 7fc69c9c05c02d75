//! One attempt of a closure step, in a replica of its workflow.
//!
//! The workflow's own instance must stay what a replay makes of it, so it never runs a closure. Each attempt gets
//! an instance that replays the journal up to the closure, runs it there as a step, and is thrown away. In a row of
//! closures the next one's replica is made ahead, while the last one's outcome is saved.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::component::Component;
use super::guest::{ReplicaGuest, StepGuest, WorkflowGuest};
use super::logs::{GuestLog, NoLogs};
use super::runtime::Sandbox;
use super::step::{Attempt, AttemptEnd};
use super::trap::{Trap, TrapKind};
use super::workflow::{Owner, WorkflowEnd, end_of};
use crate::ids::RunId;
use crate::journal::{CallNo, Entry, GuestError, NewEntry, Replay};

/// The closure's outcome, carried through the guest's stack: `finish` does not return.
#[derive(Debug, thiserror::Error)]
#[error("the closure has finished")]
pub(super) struct Finished(pub Result<String, String>);

/// An instance that is, or will be, at its closure. Does nothing unless it is waited for.
pub struct Replica {
    running: Pin<Box<dyn Future<Output = AttemptEnd> + Send>>,
    has_room: oneshot::Receiver<()>,
    logs: Arc<GuestLog>,
    /// Where the guest finds its attempt once it is at its closure.
    attempt: Arc<Mutex<Option<StepGuest>>>,
    ahead: Option<Ahead>,
}

/// Of a replica that was made before its closure was called.
struct Ahead {
    /// Entries that it knows.
    known: usize,
    /// The calls that the workflow had made when the replica was made; so it makes them too before it waits.
    calls: CallNo,
    /// Until it is where it waits for the rest.
    waits: Option<oneshot::Receiver<()>>,
    rest: oneshot::Sender<Rest>,
}

/// What such a replica did not know.
struct Rest {
    entries: Vec<Entry>,
    call: CallNo,
    closure: String,
}

/// Nothing is committed for a replica: it only repeats what the journal holds. One that was made ahead is told the rest
/// of it, once.
struct Follower {
    rest: Option<(oneshot::Sender<()>, oneshot::Receiver<Rest>)>,
}

#[async_trait]
impl Owner for Follower {
    async fn advance(&mut self, replay: &mut Replay) -> anyhow::Result<()> {
        let Some((waits, rest)) = self.rest.take() else {
            anyhow::bail!("a replica waits for nothing that its journal does not hold");
        };
        // Whoever made it may not listen: it is told the rest all the same.
        let _ = waits.send(());
        let Rest {
            entries,
            call,
            closure,
        } = rest.await?;
        replay.extend(entries)?;
        replay.end_at(call, closure);
        Ok(())
    }

    async fn commit(&mut self, _: &mut Replay) -> anyhow::Result<()> {
        anyhow::bail!("a replica commits nothing")
    }

    fn leftover(&mut self) -> Vec<NewEntry> {
        Vec::new()
    }
}

impl Replica {
    /// Lets a replica that was made ahead come to where it waits for the rest; false when it ended before.
    pub async fn gets_ready(&mut self) -> bool {
        let Some(waits) = self.ahead.as_mut().and_then(|ahead| ahead.waits.as_mut()) else {
            return true;
        };
        let ready = tokio::select! {
            biased;
            _ = waits => true,
            _ = &mut self.running => false,
        };
        if let Some(ahead) = &mut self.ahead {
            ahead.waits = None;
        }
        ready
    }

    /// Tells a replica that was made ahead that its closure is this call, of a run with these entries. False when the
    /// call is none that it has yet to make.
    pub fn leads_to(&mut self, call: CallNo, closure: &str, entries: &[Entry]) -> bool {
        let usable = |ahead: &Ahead| ahead.calls <= call && ahead.known <= entries.len();
        let Some(ahead) = self.ahead.take_if(|ahead| usable(ahead)) else {
            return false;
        };
        let rest = Rest {
            entries: entries[ahead.known..].to_vec(),
            call,
            closure: closure.to_owned(),
        };
        // One that has ended tells its end instead.
        ahead.rest.send(rest).is_ok()
    }
}

fn unreached(why: &str) -> AttemptEnd {
    AttemptEnd::Trapped(Trap {
        kind: TrapKind::Refused,
        message: format!("the replica did not reach its closure: {why}"),
        frames: Vec::new(),
    })
}

impl Sandbox {
    /// A replica for this call of a run with these entries.
    ///
    /// # Errors
    /// When the entries are no journal.
    pub fn replica(
        &self,
        component: &Component,
        run: RunId,
        entries: Vec<Entry>,
        (call, closure): (CallNo, String),
    ) -> Result<Replica, GuestError> {
        let replay = Replay::replica(entries, call, closure)?;
        Ok(self.follow(component, run, replay, Follower { rest: None }, None))
    }

    /// A replica for a closure that the workflow may call next; it has made `calls` calls up to now.
    ///
    /// # Errors
    /// When the entries are no journal.
    pub fn replica_ahead(
        &self,
        component: &Component,
        run: RunId,
        entries: Vec<Entry>,
        calls: CallNo,
    ) -> Result<Replica, GuestError> {
        let known = entries.len();
        let replay = Replay::resume(entries)?;
        let (ready, waits) = oneshot::channel();
        let (rest, told) = oneshot::channel();
        let follower = Follower {
            rest: Some((ready, told)),
        };
        let ahead = Ahead {
            known,
            calls,
            waits: Some(waits),
            rest,
        };
        Ok(self.follow(component, run, replay, follower, Some(ahead)))
    }

    fn follow(
        &self,
        component: &Component,
        run: RunId,
        replay: Replay,
        follower: Follower,
        ahead: Option<Ahead>,
    ) -> Replica {
        let attempt = Arc::new(Mutex::new(None));
        let logs = GuestLog::new(Arc::new(NoLogs));
        // Up to the closure it says what the workflow's own instance said.
        logs.set_silent(true);
        let public_url = self.config.public_url.clone();
        let mut guest = WorkflowGuest::new(run, component, replay, Box::new(follower), public_url);
        guest.replica = Some(ReplicaGuest {
            given: attempt.clone(),
            attempt: None,
        });
        let (has, has_room) = oneshot::channel();
        let running = follow_to_end(self.clone(), component.clone(), guest, logs.clone(), has);
        Replica {
            running: Box::pin(running),
            has_room,
            logs,
            attempt,
            ahead,
        }
    }

    /// Runs one attempt to its end or its deadline, whichever comes first. Dropping the future ends it too.
    pub async fn run_closure(&self, mut replica: Replica, attempt: Attempt) -> AttemptEnd {
        replica.logs.set_sink(attempt.logs.clone());
        let timeout = attempt.timeout;
        *replica.attempt.lock().unwrap_or_else(PoisonError::into_inner) = Some(StepGuest::new(attempt));
        // Its time begins when there is room.
        tokio::select! {
            biased;
            _ = replica.has_room => {}
            ended = &mut replica.running => return ended,
        }
        let ended = tokio::time::timeout(timeout, replica.running).await;
        ended.unwrap_or(AttemptEnd::TimedOut)
    }
}

/// Runs a replica up to its closure, and that to its end.
async fn follow_to_end(
    sandbox: Sandbox,
    component: Component,
    guest: WorkflowGuest,
    logs: Arc<GuestLog>,
    has_room: oneshot::Sender<()>,
) -> AttemptEnd {
    let started = guest.replay.started();
    let (name, fuel) = (started.workflow.clone(), started.limits.workflow_fuel);
    let input = guest.replay.input().to_string();
    let room = sandbox.room().await;
    // Whoever made it may not listen.
    let _ = has_room.send(());
    let mut store = sandbox.workflow_store(guest, logs, sandbox.egress(), room);
    let ended = async {
        store.set_fuel(fuel)?;
        let instance = component.replica.instantiate_async(&mut store).await?;
        let guest = instance.onemark_workflow_guest();
        guest.call_run_workflow(&mut store, &name, &input).await
    };
    let ended = ended.await;
    let ended = ended.and_then(|outcome| {
        let outcome = outcome.as_ref().map(String::as_str).map_err(String::as_str);
        let finished = store.data().replay().map(|replay| replay.finish(outcome));
        Ok(finished.transpose()?)
    });
    let error = match ended.map_err(wasmtime::Error::downcast::<Finished>) {
        Ok(_) => return unreached("the workflow returned"),
        Err(Ok(Finished(outcome))) => return AttemptEnd::Returned(outcome),
        Err(Err(error)) => error,
    };
    let words = store.data().logs.last_words();
    match end_of(error, words, &component.sources) {
        WorkflowEnd::Diverged(divergence) => AttemptEnd::Diverged(divergence),
        WorkflowEnd::Trapped(trap) => AttemptEnd::Trapped(trap),
        other => unreached(&format!("{other:?}")),
    }
}

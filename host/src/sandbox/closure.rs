//! One attempt of a closure step, in a replica of its workflow.
//!
//! The workflow's own instance must stay what a replay makes of it, so it never runs a closure. Each attempt gets
//! an instance that replays the journal up to the closure, runs it there as a step, and is thrown away.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::blobs::BlobStore;
use super::component::Component;
use super::effects::StepEffects;
use super::guest::{ReplicaGuest, StepGuest, WorkflowGuest};
use super::logs::{GuestLog, LogSink};
use super::runtime::Sandbox;
use super::step::AttemptEnd;
use super::trap::{Trap, TrapKind};
use super::workflow::{Owner, WorkflowEnd, end_of};
use crate::ids::RunId;
use crate::journal::{NewEntry, Replay};

/// What an attempt of a closure is made with.
pub struct ClosureRequest {
    pub run: RunId,
    /// Made by [`Replay::replica`].
    pub replay: Replay,
    /// From 1.
    pub attempt: u32,
    pub idempotency_key: String,
    pub timeout: Duration,
    pub logs: Arc<dyn LogSink>,
    pub effects: Arc<dyn StepEffects>,
    pub blobs: Arc<dyn BlobStore>,
}

/// The closure's outcome, carried through the guest's stack: `finish` does not return.
#[derive(Debug, thiserror::Error)]
#[error("the closure has finished")]
pub(super) struct Finished(pub Result<String, String>);

/// Nothing is committed for a replica: it only repeats what the journal holds.
struct Nobody;

#[async_trait]
impl Owner for Nobody {
    async fn advance(&mut self, _: &mut Replay) -> anyhow::Result<()> {
        anyhow::bail!("a replica waits for nothing that its journal does not hold")
    }

    async fn commit(&mut self, _: &mut Replay) -> anyhow::Result<()> {
        anyhow::bail!("a replica commits nothing")
    }

    fn leftover(&mut self) -> Vec<NewEntry> {
        Vec::new()
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
    /// Runs one attempt to its end or its deadline, whichever comes first. Dropping the future ends it too.
    pub async fn run_closure(&self, component: &Component, request: ClosureRequest) -> AttemptEnd {
        let ClosureRequest {
            run,
            replay,
            attempt,
            idempotency_key,
            timeout,
            logs,
            effects,
            blobs,
        } = request;
        let started = replay.started();
        let (name, fuel) = (started.workflow.clone(), started.limits.workflow_fuel);
        let input = replay.input().to_string();
        let public_url = self.config.public_url.clone();
        let mut guest = WorkflowGuest::new(run, component, replay, Box::new(Nobody), public_url);
        guest.replica = Some(ReplicaGuest {
            attempt: StepGuest {
                attempt,
                idempotency_key,
                effects,
                written: HashMap::new(),
                emitted: HashMap::new(),
                blobs,
                blobs_open: 0,
                blob_bytes: 0,
            },
            in_closure: false,
        });
        let logs = GuestLog::new(logs);
        // Up to the closure it says what the workflow's own instance said.
        logs.set_silent(true);
        // Its time begins when there is room.
        let room = self.room().await;
        let mut store = self.workflow_store(guest, logs, self.egress(), room);
        let ended = async {
            store.set_fuel(fuel)?;
            let instance = component.replica.instantiate_async(&mut store).await?;
            let guest = instance.onemark_workflow_guest();
            guest.call_run_workflow(&mut store, &name, &input).await
        };
        let Ok(ended) = tokio::time::timeout(timeout, ended).await else {
            return AttemptEnd::TimedOut;
        };
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
}

//! One pass of a workflow over its journal.

use std::sync::Arc;

use async_trait::async_trait;
use wasmtime::Store;

use super::component::Component;
use super::guest::{Guest, GuestRandom, GuestTime, Role, WorkflowGuest, wasi_with_logs};
use super::host::http::HttpEgress;
use super::logs::{GuestLog, LastWords, LogSink};
use super::runtime::{Room, Sandbox};
use super::sources::Sources;
use super::trap::{Refused, Trap, source_of};
use crate::ids::RunId;
use crate::journal::{Divergence, GuestError, NewEntry, Replay, Seq, Started, kept};

/// What a workflow needs beyond its journal. An error ends the activation and comes back in
/// [`WorkflowEnd::Stopped`].
#[async_trait]
pub trait Owner: Send {
    /// Everything is observed and the guest waits. Commits what is new, does the work that is
    /// outstanding, and returns once `replay` holds entries that it did not hold before.
    async fn advance(&mut self, replay: &mut Replay) -> anyhow::Result<()>;

    /// The guest has asked for many steps and goes on without waiting. Begins some of them, where nothing speaks
    /// against it.
    fn ahead(&mut self, _replay: &mut Replay) -> anyhow::Result<()> {
        Ok(())
    }

    /// Commits what is new, so that the guest can be told how it went.
    async fn commit(&mut self, replay: &mut Replay) -> anyhow::Result<()>;

    /// What was taken over from the replay and is not committed, in order. Belongs before whatever the guest's
    /// end adds.
    fn leftover(&mut self) -> Vec<NewEntry>;
}

/// How an activation ended.
#[derive(Debug)]
pub enum WorkflowEnd {
    /// The workflow returned: what the run keeps of its value or its error document, both JSON.
    Returned(Result<String, String>),
    Diverged(Box<Divergence>),
    Trapped(Trap),
    /// The journal contradicts itself.
    Corrupt {
        seq: Seq,
        what: &'static str,
    },
    /// The guest goes on where a journal that is only verified ends.
    EndOfJournal,
    /// The owner ended it.
    Stopped(anyhow::Error),
}

/// A pass that has ended.
pub struct Pass {
    /// As the guest left it.
    pub replay: Replay,
    pub owner: Box<dyn Owner>,
    pub end: WorkflowEnd,
    /// Wasm instructions (roughly) that the guest ran.
    pub fuel: u64,
}

/// What the owner said, carried through the guest's stack.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Stopped(pub anyhow::Error);

impl Sandbox {
    /// Runs the workflow of `replay` from its beginning: answered from the journal as far as that goes, then
    /// from its owner.
    pub async fn run_workflow(
        &self,
        component: &Component,
        run: RunId,
        replay: Replay,
        owner: Box<dyn Owner>,
        logs: Arc<dyn LogSink>,
    ) -> Pass {
        let started = replay.started();
        let name = started.workflow.clone();
        let limits = started.limits.clone();
        let input = replay.input().to_string();
        let guest = WorkflowGuest::new(run, component, replay, owner, self.config.public_url.clone());
        let logs = GuestLog::new(logs);
        logs.set_silent(guest.replay.is_replaying());
        let room = self.room().await;
        let mut store = self.workflow_store(guest, logs, HttpEgress::default(), room);
        let returned = async {
            store.set_fuel(limits.workflow_fuel)?;
            let instance = component.workflow.instantiate_async(&mut store).await?;
            let guest = instance.onemark_workflow_guest();
            guest.call_run_workflow(&mut store, &name, &input).await
        };
        let returned = returned.await;

        let left = store.get_fuel().unwrap_or(0);
        let guest = store.into_data();
        let words = guest.logs.last_words();
        let Role::Workflow(workflow) = guest.role else {
            unreachable!("the role does not change");
        };
        let end = match returned {
            Err(error) => end_of(error, words, &component.sources),
            Ok(outcome) => {
                let outcome = kept(outcome, &workflow.replay.started().limits);
                let as_str = outcome.as_ref().map(String::as_str).map_err(String::as_str);
                match workflow.replay.finish(as_str) {
                    Ok(()) => WorkflowEnd::Returned(outcome),
                    Err(error) => end_of(error.into(), None, &component.sources),
                }
            }
        };
        Pass {
            fuel: workflow.burnt + workflow.fuel.saturating_sub(left),
            replay: workflow.replay,
            owner: workflow.owner,
            end,
        }
    }
}

/// So many calls after one another, and the owner begins with those that it can.
const MANY_CALLS: usize = 64;

impl WorkflowGuest {
    /// The guest made a call and does not wait yet.
    pub(super) fn go_ahead(&mut self) -> wasmtime::Result<()> {
        match self.replay.new_entries() {
            0 => Ok(()),
            new if new % MANY_CALLS == 0 => {
                let ahead = self.owner.ahead(&mut self.replay);
                ahead.map_err(|error| Stopped(error).into())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn new(
        run: RunId,
        component: &Component,
        replay: Replay,
        owner: Box<dyn Owner>,
        public_url: Arc<str>,
    ) -> Self {
        let time = GuestTime::default();
        time.set(replay.now());
        let started = replay.started();
        Self {
            run,
            manifest: component.manifest.clone(),
            public_url,
            hooks: Vec::new(),
            random: GuestRandom::new(replay.seed(), 3, time.clone()),
            time,
            asked: 0,
            fuel: started.limits.workflow_fuel,
            burnt: 0,
            progress: (0, 0),
            replica: None,
            replay,
            owner,
        }
    }
}

impl Sandbox {
    /// For a workflow at its beginning, or a replica of one.
    pub(super) fn workflow_store(
        &self,
        guest: WorkflowGuest,
        logs: Arc<GuestLog>,
        egress: HttpEgress,
        room: Room,
    ) -> Store<Guest> {
        let Started { seed, limits, .. } = guest.replay.started();
        let (seed, memory) = (*seed, limits.workflow_memory);
        let time = guest.time.clone();
        let drawn = guest.replay.seed();
        let random = |number| GuestRandom::new(drawn.clone(), number, time.clone());
        let mut wasi = wasi_with_logs(&logs);
        wasi.wall_clock(time.clone());
        wasi.monotonic_clock(time.clone());
        // Three streams of one seed; the numbers tell them apart. What hash maps are seeded with stays that of the start.
        wasi.secure_random(random(1));
        wasi.insecure_random(random(2));
        wasi.insecure_random_seed(u128::from(seed) << 64 | u128::from(!seed));
        self.store(
            Role::Workflow(Box::new(guest)),
            logs,
            memory,
            wasi.build(),
            egress,
            room,
        )
    }
}

pub(super) fn end_of(error: wasmtime::Error, words: Option<LastWords>, sources: &Sources) -> WorkflowEnd {
    let error = match error.downcast::<Stopped>() {
        Ok(Stopped(error)) => return WorkflowEnd::Stopped(error),
        Err(error) => error,
    };
    match error.downcast_ref::<GuestError>() {
        Some(GuestError::Diverged(divergence)) => WorkflowEnd::Diverged(Box::new(Divergence {
            source: source_of(&error, sources),
            ..(**divergence).clone()
        })),
        Some(GuestError::Corrupt { seq, what }) => WorkflowEnd::Corrupt { seq: *seq, what },
        Some(GuestError::EndOfJournal) => WorkflowEnd::EndOfJournal,
        Some(GuestError::Misuse(text)) => {
            let refused = wasmtime::Error::from(Refused(text.clone()));
            WorkflowEnd::Trapped(Trap {
                frames: Trap::from_error(&error, None, sources).frames,
                ..Trap::from_error(&refused, None, sources)
            })
        }
        None => WorkflowEnd::Trapped(Trap::from_error(&error, words, sources)),
    }
}

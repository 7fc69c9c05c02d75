//! One attempt of a step, in an instance of its own.

use std::sync::Arc;
use std::time::Duration;

use wasmtime::Store;

use super::bindings::Workflow;
use super::blobs::BlobStore;
use super::component::Component;
use super::effects::StepEffects;
use super::guest::{Guest, Role, StepGuest, wasi_with_logs};
use super::host::http::HttpEgress;
use super::logs::{GuestLog, LogSink, NoLogs};
use super::runtime::{Room, Sandbox};
use super::trap::Trap;
use crate::journal::{Divergence, Limits};

/// An attempt of a step or of a closure: what it is told, and whom its guest reaches.
pub struct Attempt {
    /// From 1.
    pub number: u32,
    pub idempotency_key: String,
    pub timeout: Duration,
    pub logs: Arc<dyn LogSink>,
    pub effects: Arc<dyn StepEffects>,
    pub blobs: Arc<dyn BlobStore>,
}

/// What an attempt of a step is made with.
pub struct AttemptRequest {
    pub step: String,
    /// JSON.
    pub input: Arc<str>,
    pub limits: Limits,
    pub attempt: Attempt,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The step returned: its value, or its error document, both JSON.
    Returned(Result<String, String>),
    Trapped(Trap),
    TimedOut,
    /// A closure could not be reached: the workflow did something else than it did before.
    Diverged(Box<Divergence>),
}

/// A fresh instance that waits for its attempt.
pub struct StepInstance {
    store: Store<Guest>,
    guest: Workflow,
}

/// An instance that has had its attempt. Dropping it wipes its memory, which takes nearly as long as a short attempt.
pub struct SpentInstance {
    _store: Store<Guest>,
}

impl Sandbox {
    /// What steps may reach.
    pub(super) fn egress(&self) -> HttpEgress {
        HttpEgress {
            grants: self.config.http.as_slice().into(),
            clients: Some(self.clients.clone()),
        }
    }

    /// An instance made before its attempt is known.
    ///
    /// # Errors
    /// When there is no room, or the guest cannot be instantiated: an attempt that makes its own waits, or says why.
    pub async fn step_instance(
        &self,
        component: &Component,
        limits: &Limits,
    ) -> wasmtime::Result<StepInstance> {
        let Some(room) = self.room_now() else {
            return Err(wasmtime::Error::msg("there is no room for another instance now"));
        };
        let mut store = self.step_store(limits, Arc::new(NoLogs), Some(room));
        let guest = instantiate(component, limits, &mut store).await?;
        Ok(StepInstance { store, guest })
    }

    fn step_store(&self, limits: &Limits, logs: Arc<dyn LogSink>, room: Room) -> Store<Guest> {
        let logs = GuestLog::new(logs);
        let wasi = wasi_with_logs(&logs).build();
        self.store(Role::Waiting, logs, limits.step_memory, wasi, self.egress(), room)
    }

    /// Runs one attempt to its end or its deadline, whichever comes first. Dropping the future ends it too.
    pub async fn run_step(&self, component: &Component, request: AttemptRequest) -> AttemptEnd {
        self.run_step_in(None, component, request).await.0
    }

    /// As [`Self::run_step`], in an instance that was made before. The one that was used is the caller's to drop.
    pub async fn run_step_in(
        &self,
        fresh: Option<StepInstance>,
        component: &Component,
        request: AttemptRequest,
    ) -> (AttemptEnd, SpentInstance) {
        let AttemptRequest {
            step,
            input,
            limits,
            attempt,
        } = request;
        let timeout = attempt.timeout;
        let (mut store, made) = match fresh {
            Some(StepInstance { store, guest }) => {
                store.data().logs.set_sink(attempt.logs.clone());
                (store, Some(guest))
            }
            None => {
                // Its time begins when there is room.
                let room = self.room().await;
                (self.step_store(&limits, attempt.logs.clone(), room), None)
            }
        };
        store.data_mut().role = Role::Step(StepGuest::new(attempt));
        let returned = async {
            let instance = match made {
                Some(instance) => instance,
                None => instantiate(component, &limits, &mut store).await?,
            };
            let guest = instance.onemark_workflow_guest();
            let input = input.to_string();
            guest.call_run_step(&mut store, &step, &input).await
        };
        let end = match tokio::time::timeout(timeout, returned).await {
            Err(_) => AttemptEnd::TimedOut,
            Ok(Ok(outcome)) => AttemptEnd::Returned(outcome),
            Ok(Err(error)) => AttemptEnd::Trapped(Trap::from_error(
                &error,
                store.data().logs.last_words(),
                &component.sources,
            )),
        };
        (end, SpentInstance { _store: store })
    }
}

async fn instantiate(
    component: &Component,
    limits: &Limits,
    store: &mut Store<Guest>,
) -> wasmtime::Result<Workflow> {
    store.set_fuel(limits.step_fuel)?;
    component.step.instantiate_async(store).await
}

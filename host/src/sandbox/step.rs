//! One attempt of a step, in an instance of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::component::Component;
use super::guest::{Role, StepGuest, wasi_with_logs};
use super::host::http::HttpEgress;
use super::logs::{GuestLog, LogSink};
use super::runtime::Sandbox;
use super::streams::StreamSink;
use super::trap::Trap;
use crate::journal::{Divergence, Limits};

/// What an attempt is made with.
pub struct AttemptRequest {
    pub step: String,
    /// JSON.
    pub input: Arc<str>,
    /// From 1.
    pub attempt: u32,
    pub idempotency_key: String,
    pub timeout: Duration,
    pub limits: Limits,
    pub logs: Arc<dyn LogSink>,
    pub streams: Arc<dyn StreamSink>,
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

impl Sandbox {
    /// What steps may reach.
    pub(super) fn egress(&self) -> HttpEgress {
        HttpEgress {
            grants: self.config.http.as_slice().into(),
        }
    }

    /// Runs one attempt to its end or its deadline, whichever comes first. Dropping the future ends it too.
    pub async fn run_step(&self, component: &Component, request: AttemptRequest) -> AttemptEnd {
        let limits = &request.limits;
        let logs = GuestLog::new(request.logs);
        let wasi = wasi_with_logs(&logs).build();
        let egress = self.egress();
        let role = Role::Step(StepGuest {
            attempt: request.attempt,
            idempotency_key: request.idempotency_key,
            streams: request.streams,
            written: HashMap::new(),
        });
        let mut store = self.store(role, logs, limits.step_memory, wasi, egress);
        let returned = async {
            store.set_fuel(limits.step_fuel)?;
            let instance = component.step.instantiate_async(&mut store).await?;
            let guest = instance.onemark_workflow_guest();
            guest
                .call_run_step(&mut store, &request.step, &request.input.to_string())
                .await
        };
        match tokio::time::timeout(request.timeout, returned).await {
            Err(_) => AttemptEnd::TimedOut,
            Ok(Ok(outcome)) => AttemptEnd::Returned(outcome),
            Ok(Err(error)) => AttemptEnd::Trapped(Trap::from_error(
                &error,
                store.data().logs.last_words(),
                &component.sources,
            )),
        }
    }
}

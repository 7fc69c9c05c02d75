//! Verifying a journal against a component, with no effects.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;

use super::Engine;
use super::error::{Error, Result};
use super::request::{ReplayReport, ReplayedCall, Verdict};
use crate::ids::RunId;
use crate::journal::{CallNo, Entry, GuestError, NewEntry, Replay};
use crate::sandbox::{Component, NoLogs, Owner, Pass, Sandbox, WorkflowEnd};

/// Stops the guest where the journal ends.
struct Verifier;

#[async_trait]
impl Owner for Verifier {
    async fn advance(&mut self, _: &mut Replay) -> anyhow::Result<()> {
        Err(GuestError::EndOfJournal.into())
    }

    async fn commit(&mut self, _: &mut Replay) -> anyhow::Result<()> {
        Err(GuestError::EndOfJournal.into())
    }

    fn leftover(&mut self) -> Vec<NewEntry> {
        Vec::new()
    }
}

impl Engine {
    /// Runs a component over the journal of a run: the run's own, unless another is given.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::InvalidRequest`] when the component lacks the run's workflow. What the
    /// replay finds is no error.
    pub async fn replay(&self, run: &RunId, component: Option<Component>) -> Result<ReplayReport> {
        let loaded = self.0.store.load(run, 0).await?;
        let loaded = loaded.ok_or_else(|| Error::RunNotFound(run.clone()))?;
        let component = match component {
            Some(component) => component,
            None => self.component(loaded.run.component).await?,
        };
        if !component.manifest.workflows.contains_key(&loaded.run.workflow) {
            let text = format!("the component has no workflow `{}`", loaded.run.workflow);
            return Err(Error::InvalidRequest(text));
        }
        Ok(verify(&self.0.sandbox, &component, run, loaded.entries).await)
    }
}

/// Replays entries against a component.
pub async fn verify(
    sandbox: &Sandbox,
    component: &Component,
    run: &RunId,
    entries: Vec<Entry>,
) -> ReplayReport {
    let replay = match Replay::verify(entries) {
        Ok(replay) => replay,
        Err(error) => {
            return ReplayReport {
                run_id: run.clone(),
                component: component.digest,
                calls: Vec::new(),
                verdict: Verdict::Corrupt(error.to_string()),
                took_us: 0,
                fuel: 0,
            };
        }
    };
    let began = Instant::now();
    let Pass {
        replay, end, fuel, ..
    } = sandbox
        .run_workflow(
            component,
            run.clone(),
            replay,
            Box::new(Verifier),
            Arc::new(NoLogs),
        )
        .await;
    let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    let verdict = match end {
        WorkflowEnd::Returned(_) | WorkflowEnd::EndOfJournal => Verdict::Agrees,
        WorkflowEnd::Diverged(divergence) => Verdict::Diverged((*divergence).into()),
        WorkflowEnd::Trapped(trap) => Verdict::Trapped(trap),
        WorkflowEnd::Corrupt { seq, what } => Verdict::Corrupt(GuestError::Corrupt { seq, what }.to_string()),
        WorkflowEnd::Stopped(error) => match error.downcast_ref::<GuestError>() {
            Some(GuestError::EndOfJournal) => Verdict::Agrees,
            _ => Verdict::Corrupt(format!("{error:#}")),
        },
    };
    let matched = replay.calls_matched();
    let calls = (0..replay.calls_recorded()).filter_map(|call| {
        let recorded = replay.recorded_call(call as CallNo)?;
        Some(ReplayedCall {
            call: call as CallNo,
            seq: replay.seq_of_call(call as CallNo)?,
            text: recorded.to_string(),
            matched: call < matched,
        })
    });
    ReplayReport {
        run_id: run.clone(),
        component: component.digest,
        calls: calls.collect(),
        verdict,
        took_us,
        fuel,
    }
}

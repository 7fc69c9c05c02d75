//! Running again what ran: a new run of the same workflow with the same input.

use std::collections::BTreeSet;

use super::Engine;
use super::admit::Origin;
use super::error::{Error, Result};
use super::request::{ConflictPolicy, RerunRequest, StartReceipt, StartRequest};
use crate::ids::RunId;
use crate::journal::{Event, Lineage, Seq};

/// Entries that are looked at together.
const PAGE: usize = 1_000;

impl Engine {
    /// Starts a run of the same workflow with the same input: every step runs again, with keys of its own where none is
    /// made from data. It claims what the request names, and not the token that the workflow declares.
    ///
    /// # Errors
    /// [`Error::UnkeyedSteps`] when steps of that run have no key made from data, unless the request says that they may
    /// run again; [`Error::RerunNeedsHook`] when the workflow declares a token and a hook and the request names no
    /// token; [`Error::RunNotFound`]; [`Error::InvalidRequest`] when its input was erased; as [`Engine::start`].
    pub async fn rerun(&self, request: RerunRequest) -> Result<StartReceipt> {
        self.to_its_end(|engine| async move { engine.rerun_once(request).await })
            .await
    }

    async fn rerun_once(&self, request: RerunRequest) -> Result<StartReceipt> {
        let of = request.of;
        let first = self.journal(&of, 0, 1).await?.into_iter().next();
        let Some((Event::Started(started), Some(input))) = first.map(|entry| (entry.event, entry.body))
        else {
            return Err(Error::RunNotFound(of));
        };
        let Some(input) = input.text else {
            let text = format!("the input of run {of} was erased; it cannot run again");
            return Err(Error::InvalidRequest(text));
        };
        let unkeyed = self.unkeyed_steps(&of).await?;
        if !request.repeat_unkeyed && !unkeyed.is_empty() {
            return Err(Error::UnkeyedSteps {
                run: of,
                steps: unkeyed,
            });
        }
        let again = StartRequest {
            workflow: started.workflow,
            input,
            id: request.id,
            hooks: request.hooks,
            min_retention_ms: 0,
            on_conflict: ConflictPolicy::Fail,
            start_at: None,
            tags: started.tags,
            key: request.key,
        };
        let origin = Origin {
            lineage: Some(Lineage::Rerun { of }),
            declared_token: false,
            ..Origin::default()
        };
        self.start_from(again, origin).await
    }

    /// The steps of a run whose keys are its own, so that whoever they reach cannot tell a second time.
    async fn unkeyed_steps(&self, run: &RunId) -> Result<Vec<String>> {
        let mut steps = BTreeSet::new();
        let mut from: Seq = 0;
        loop {
            let entries = self.journal(run, from, PAGE).await?;
            let Some(last) = entries.last() else {
                return Ok(steps.into_iter().collect());
            };
            from = last.seq + 1;
            steps.extend(entries.into_iter().filter_map(|entry| match entry.event {
                Event::StepScheduled { step, options, .. } if options.key.is_none() => Some(step),
                _ => None,
            }));
        }
    }
}

//! Events: one thing happened, and every workflow that waits for it starts, in one transaction.

use std::collections::HashSet;
use std::sync::Arc;

use super::Engine;
use super::admit::{Origin, as_admitted};
use super::error::{Error, Result};
use super::request::{ConflictPolicy, EmitReceipt, EmitRequest, StartRequest};
use crate::ids::{Digest, EventName, Tags};
use crate::sandbox::read_json;
use crate::store::{Emission, Emitted, NewPart, NewRun, Part, PartOutcome, Source};

impl Engine {
    /// Starts every workflow that waits for the event. Answers after the commit; the runs begin by themselves. Where
    /// a workflow's token is held, or the payload does not fit it, its part says so and the others start.
    ///
    /// # Errors
    /// [`Error::InvalidEvent`] when the payload fits none of several workflows, [`Error::KeyConflict`] when the id was
    /// used for another payload. Nothing was written then, and the id is as good as new.
    pub async fn emit(&self, request: EmitRequest) -> Result<EmitReceipt> {
        self.to_its_end(|engine| async move { engine.emit_once(request).await })
            .await
    }

    async fn emit_once(&self, request: EmitRequest) -> Result<EmitReceipt> {
        let EmitRequest { event, payload, id } = request;
        let emission = Emission {
            request: self.event_digest(&payload)?,
            parts: self.parts(&event, &payload).await?,
            source: Source::Event(event.clone()),
            id,
            now: self.0.clock.now(),
        };
        let runs: Vec<NewRun> = emission.parts.iter().filter_map(started).cloned().collect();
        let emitted = self.0.store.emit(emission).await;
        match emitted.inspect_err(|error| self.note_failure(error))? {
            Emitted::Done { parts, fresh } => {
                if fresh {
                    fits_somebody(&event, &parts)?;
                    self.begin_parts(&parts, runs);
                }
                Ok(EmitReceipt { event, parts })
            }
            Emitted::KeyConflict => Err(Error::KeyConflict),
        }
    }

    pub(super) fn event_digest(&self, payload: &str) -> Result<Digest> {
        let limit = self.0.config.limits.body_bytes;
        let bytes = payload.len() as u64;
        if bytes > limit {
            return Err(Error::TooLarge {
                what: "the payload",
                bytes,
                limit,
            });
        }
        let value = read_json(payload).map_err(|error| Error::InvalidRequest(error.to_string()))?;
        Ok(Digest::of(value.to_string()))
    }

    /// What the event is to every workflow that waits for it now.
    pub(super) async fn parts(&self, event: &EventName, payload: &str) -> Result<Vec<NewPart>> {
        let mut parts = Vec::new();
        // Several names for one component are one subscriber.
        let mut seen = HashSet::new();
        for route in self.routes().await?.iter() {
            for workflow in route.component.manifest.workflows.values() {
                let waits = workflow.on.as_ref() == Some(event);
                if waits && seen.insert((route.component.digest, &workflow.name)) {
                    let name = format!("{}/{}", route.deployment, workflow.name);
                    parts.push(self.part(name, workflow.input_from(payload).into()).await?);
                }
            }
        }
        Ok(parts)
    }

    pub(super) async fn part(&self, workflow: String, input: Arc<str>) -> Result<NewPart> {
        let request = StartRequest {
            workflow: workflow.clone(),
            input,
            id: None,
            hooks: Vec::new(),
            min_retention_ms: 0,
            on_conflict: ConflictPolicy::Fail,
            start_at: None,
            tags: Tags::default(),
            key: None,
        };
        let start = match self.prepare_run(&request, Origin::default()).await {
            Ok(run) => Ok(Box::new(run)),
            Err(Error::Store(error)) => return Err(error.into()),
            Err(error) => Err(error.to_string()),
        };
        Ok(NewPart { workflow, start })
    }

    /// Lets the runs begin that were admitted of `runs`.
    pub(super) fn begin_parts(&self, parts: &[Part], runs: Vec<NewRun>) {
        let admitted: HashSet<_> = parts.iter().filter_map(Part::run).collect();
        for run in runs.into_iter().filter(|run| admitted.contains(&run.id)) {
            self.begin_admitted(as_admitted(run));
        }
    }
}

/// # Errors
/// When there are workflows that wait for the event, and each refuses its payload.
fn fits_somebody(event: &EventName, parts: &[Part]) -> Result<()> {
    let refusals = parts.iter().map(|part| match &part.outcome {
        PartOutcome::Refused { message } => Some(message.as_str()),
        PartOutcome::Started { .. } | PartOutcome::Conflict { .. } => None,
    });
    match refusals.collect::<Option<Vec<_>>>() {
        Some(refusals) if !refusals.is_empty() => Err(Error::InvalidEvent {
            event: event.clone(),
            what: refusals.join("; "),
        }),
        _ => Ok(()),
    }
}

pub(super) fn started(part: &NewPart) -> Option<&NewRun> {
    part.start.as_deref().ok()
}

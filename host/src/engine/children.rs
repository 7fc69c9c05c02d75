//! Runs that runs start, as children or by events, or go on as: made ready before the entry that tells of them is
//! written.

use super::Engine;
use super::admit::Origin;
use super::error::Error;
use super::request::{ConflictPolicy, StartHook, StartRequest};
use crate::ids::{EventName, HookToken, RunId, Tags};
use crate::journal::{
    Body, ChildAdmission, ChildStart, Continuation, EmitAdmission, EmitPart, Event, Failure, FailureKind,
    Lineage, NewEmit, NewEntry, Replay, Started, not_continued,
};
use crate::store::{NewPart, StoreError};

impl Engine {
    /// Finds, for every run that is to be started, as a child or by an event, the component and the claims, or why it
    /// cannot be. What the
    /// tokens lead to is decided inside the transaction.
    pub(super) async fn prepare_starts(
        &self,
        parent: &RunId,
        entries: &mut [NewEntry],
    ) -> Result<(), StoreError> {
        for entry in entries {
            if let NewEntry::Emit(emit) = entry
                && emit.parts.is_none()
            {
                // Boxed, since every commit of a run holds room for this future.
                emit.parts = Some(match Box::pin(self.emit_parts(emit)).await {
                    Ok(parts) => Ok(parts),
                    Err(Error::Store(error)) => return Err(error),
                    Err(error) => Err(refusal(&error)),
                });
                continue;
            }
            if let NewEntry::StartChild(child) = entry
                && child.admission.is_none()
            {
                let admission = match Box::pin(self.child_admission(parent, child)).await {
                    Ok(admission) => Ok(Box::new(admission)),
                    Err(Error::Store(error)) => return Err(error),
                    Err(error) => Err(refusal(&error)),
                };
                child.admission = Some(admission);
            }
        }
        Ok(())
    }

    async fn emit_parts(&self, emit: &NewEmit) -> Result<Vec<EmitPart>, Error> {
        let (event, payload) = (EventName::new(&emit.name)?, emit.payload.shared());
        self.event_digest(&payload)?;
        let part = |part: NewPart| EmitPart {
            workflow: part.workflow,
            start: part.start.map(|run| EmitAdmission {
                run: run.id,
                started: run.started,
                input: run.input,
            }),
        };
        Ok(self
            .parts(&event, &payload)
            .await?
            .into_iter()
            .map(part)
            .collect())
    }

    async fn child_admission(&self, parent: &RunId, child: &ChildStart) -> Result<ChildAdmission, Error> {
        let hooks = child.options.hooks.iter().map(|hook| {
            Ok(StartHook {
                token: HookToken::new(hook.token.as_str())?,
                min_retention_ms: hook.min_retention_ms,
                metadata: hook.metadata.clone(),
            })
        });
        let request = StartRequest {
            workflow: child.workflow.clone(),
            input: child.input.shared(),
            id: child.options.id.clone().map(RunId::new).transpose()?,
            hooks: hooks.collect::<Result<_, Error>>()?,
            min_retention_ms: 0,
            on_conflict: ConflictPolicy::Fail,
            start_at: None,
            tags: Tags::default(),
            key: None,
        };
        let run = self.prepare_run(&request, Origin::default()).await?;
        Ok(ChildAdmission {
            run: run.id,
            started: Started {
                lineage: Some(Lineage::Child {
                    parent: parent.clone(),
                    call: child.call,
                }),
                ..run.started
            },
        })
    }

    /// The entry that ends a run which wants to go on as another one with this input: it may be that it cannot.
    pub(super) async fn continuation(
        &self,
        run: &RunId,
        replay: &Replay,
        input: String,
    ) -> Result<NewEntry, StoreError> {
        let refused = |why: String| {
            let body = Body::new(not_continued(&input, why).to_json());
            Ok(NewEntry::with_body(Event::Failed, body))
        };
        if replay.is_untouched() {
            return refused("it has done nothing, and would do so for ever".into());
        }
        let started = replay.started();
        let request = StartRequest {
            workflow: started.workflow.clone(),
            input: input.as_str().into(),
            id: None,
            hooks: Vec::new(),
            min_retention_ms: 0,
            on_conflict: ConflictPolicy::Fail,
            start_at: None,
            tags: started.tags.clone(),
            key: None,
        };
        // Deployed anew, it goes on with that; not deployed any more, with what carries it.
        let origin = Origin {
            component: Some(replay.component()),
            ..Origin::default()
        };
        let new = match self.prepare_run(&request, origin).await {
            Ok(new) => new,
            Err(Error::Store(error)) => return Err(error),
            Err(error) => return refused(error.to_string()),
        };
        let from = run.clone();
        Ok(NewEntry::Continue(Box::new(Continuation {
            input: new.input,
            admission: ChildAdmission {
                run: new.id,
                started: Started {
                    lineage: Some(Lineage::Continued { from }),
                    ..new.started
                },
            },
            carries_cancel: !replay.was_told_to_cancel(),
        })))
    }
}

/// Why a child cannot be started, as its parent's workflow sees it.
fn refusal(error: &Error) -> Failure {
    let kind = match error {
        Error::UnknownWorkflow(_) | Error::AmbiguousWorkflow { .. } => FailureKind::UnknownWorkflow,
        Error::TooLarge { .. } => FailureKind::TooLarge,
        _ => FailureKind::Invalid,
    };
    Failure::new(kind, error.to_string())
}

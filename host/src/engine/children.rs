//! Runs that runs start: made ready before the parent's entry is written.

use super::Engine;
use super::error::Error;
use super::request::{ConflictPolicy, StartHook, StartRequest};
use crate::ids::{HookToken, RunId, Tags};
use crate::journal::{ChildAdmission, ChildStart, Failure, FailureKind, Lineage, NewEntry, Started};
use crate::store::StoreError;

impl Engine {
    /// Finds, for every child that is to be started, the component and the claims, or why it cannot be. What the
    /// tokens lead to is decided inside the transaction.
    pub(super) async fn prepare_children(
        &self,
        parent: &RunId,
        entries: &mut [NewEntry],
    ) -> Result<(), StoreError> {
        for entry in entries {
            if let NewEntry::StartChild(child) = entry
                && child.admission.is_none()
            {
                let admission = match self.child_admission(parent, child).await {
                    Ok(admission) => Ok(Box::new(admission)),
                    Err(Error::Store(error)) => return Err(error),
                    Err(error) => Err(refusal(&error)),
                };
                child.admission = Some(admission);
            }
        }
        Ok(())
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
            on_conflict: ConflictPolicy::Fail,
            start_at: None,
            tags: Tags::default(),
            key: None,
        };
        let run = self.prepare_run(&request).await?;
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

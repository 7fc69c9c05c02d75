//! From a request to a run: everything is checked before the one transaction that admits it.

use serde_json::{Value, json};

use super::Engine;
use super::error::{Error, Result};
use super::request::{StartReceipt, StartRequest};
use crate::clock;
use crate::ids::{Digest, RunId};
use crate::journal::{Body, Entry, Event, HookSpec, MAX_METADATA_BYTES, PayloadType, RunStatus, Started};
use crate::sandbox::{WorkflowManifest, read_json};
use crate::store::{Admission, Loaded, NewRun, RunInfo};

impl Engine {
    /// Admits a run and claims its hooks, in one step. Answers after the commit; the run begins by itself.
    ///
    /// # Errors
    /// [`Error::HookConflict`] names the owner of a token that is held; see [`Error`] for the others.
    pub async fn start(&self, request: StartRequest) -> Result<StartReceipt> {
        let (asked, input) = asked(&request)?;
        let prepared = self.prepare(&request, &input, asked).await;
        let (admission, loaded) = match prepared {
            Ok(run) => {
                let loaded = as_admitted(&run);
                let admitted = self.0.store.admit(run).await;
                (
                    admitted.inspect_err(|error| self.note_failure(error))?,
                    Some(loaded),
                )
            }
            // It may be the repetition of a request that could be carried out when it came.
            Err(error) => {
                let (id, key) = (request.id.as_ref(), request.key.as_ref());
                let now = self.0.clock.now();
                let recalled = self.0.store.recall(id, key, asked, now).await;
                match recalled.inspect_err(|error| self.note_failure(error))? {
                    Some(answer) => (answer, None),
                    None => return Err(error),
                }
            }
        };
        match admission {
            Admission::Started { run } => {
                match loaded.filter(|loaded| loaded.run.id == run) {
                    Some(loaded) => self.wake_new(&run, loaded),
                    None => self.wake(&run),
                }
                Ok(StartReceipt {
                    run_id: run,
                    started: true,
                })
            }
            Admission::Existing { run } => Ok(StartReceipt {
                run_id: run,
                started: false,
            }),
            Admission::HookConflict { token, owner } => Err(Error::HookConflict { token, owner }),
            Admission::IdConflict { run } => Err(Error::RunIdConflict(run)),
            Admission::KeyConflict => Err(Error::KeyConflict),
        }
    }

    /// As it would be admitted now, whoever asks for it.
    pub(super) async fn prepare_run(&self, request: &StartRequest) -> Result<NewRun> {
        let (asked, input) = asked(request)?;
        self.prepare(request, &input, asked).await
    }

    /// Checks a request against what is deployed now.
    async fn prepare(&self, request: &StartRequest, input: &Value, asked: Digest) -> Result<NewRun> {
        let (component, workflow) = self.resolve(&request.workflow).await?;
        let workflow = &component.manifest.workflows[&workflow];
        self.check_input(workflow, &request.input, input)?;
        let hooks = self.claims(workflow, input, request)?;
        Ok(NewRun {
            id: request.id.clone().unwrap_or_else(RunId::generate),
            started: Started {
                workflow: workflow.name.clone(),
                component: component.digest,
                seed: clock::random_u64(),
                limits: self.0.config.limits.clone(),
                timeout: workflow.timeout,
                hooks,
                lineage: None,
            },
            input: Body::new(request.input.clone()),
            request: asked,
            key: request.key.clone(),
            now: self.0.clock.now(),
        })
    }

    fn check_input(&self, workflow: &WorkflowManifest, text: &str, input: &Value) -> Result<()> {
        let limit = self.0.config.limits.body_bytes;
        if text.len() as u64 > limit {
            let bytes = text.len() as u64;
            return Err(Error::TooLarge {
                what: "the input",
                bytes,
                limit,
            });
        }
        let invalid = |what: String| Error::InvalidInput {
            workflow: workflow.name.clone(),
            what,
        };
        if !input.is_object() {
            return Err(invalid("it must be an object keyed by parameter name".into()));
        }
        if let Some(schema) = &workflow.input {
            schema.check(input).map_err(|error| invalid(error.to_string()))?;
        }
        Ok(())
    }

    /// The workflow's own token first, then those of the request.
    fn claims(
        &self,
        workflow: &WorkflowManifest,
        input: &Value,
        request: &StartRequest,
    ) -> Result<Vec<HookSpec>> {
        let own = workflow.token_for(input).map_err(|error| Error::InvalidInput {
            workflow: workflow.name.clone(),
            what: error.to_string(),
        })?;
        let mut claims: Vec<HookSpec> = Vec::new();
        claims.extend(own.map(|token| HookSpec {
            token,
            retain_ms: workflow.retain_ms,
            metadata: None,
            payload: PayloadType::Any,
        }));
        let declared = claims.len();
        for hook in &request.hooks {
            let metadata = hook.metadata.as_ref().map_or(0, |value| value.to_string().len());
            if metadata > MAX_METADATA_BYTES {
                return Err(Error::TooLarge {
                    what: "the metadata of a hook",
                    bytes: metadata as u64,
                    limit: MAX_METADATA_BYTES as u64,
                });
            }
            match claims.iter().position(|claim| claim.token == hook.token) {
                // The request may keep the workflow's own token for longer and say more of it.
                Some(0) if declared == 1 && claims[0].metadata.is_none() => {
                    claims[0].retain_ms = claims[0].retain_ms.max(hook.min_retention_ms);
                    claims[0].metadata.clone_from(&hook.metadata);
                }
                Some(_) => {
                    let text = format!("hook token `{}` is asked for twice", hook.token);
                    return Err(Error::InvalidRequest(text));
                }
                None => claims.push(HookSpec {
                    token: hook.token.clone(),
                    retain_ms: hook.min_retention_ms,
                    metadata: hook.metadata.clone(),
                    payload: PayloadType::Any,
                }),
            }
        }
        let limit_ms = self.0.config.limits.max_retention_ms;
        if let Some(claim) = claims.iter().find(|claim| claim.retain_ms > limit_ms) {
            let asked_ms = claim.retain_ms;
            return Err(Error::RetentionTooLong { asked_ms, limit_ms });
        }
        if let (Some(first), Some(_)) = (claims.first_mut(), &workflow.hook) {
            first.payload = PayloadType::Declared;
        }
        Ok(claims)
    }
}

/// What the caller asked for, whatever is deployed: the same request has the same digest for ever. And the input,
/// read.
fn asked(request: &StartRequest) -> Result<(Digest, Value)> {
    let workflow = request.workflow.rsplit('/').next().unwrap_or_default();
    let input = read_json(&request.input).map_err(|error| Error::InvalidInput {
        workflow: workflow.to_owned(),
        what: error.to_string(),
    })?;
    let hooks = request
        .hooks
        .iter()
        .map(|hook| json!([hook.token, hook.min_retention_ms, hook.metadata]));
    let asked = json!({
        "workflow": workflow,
        "input": input,
        "hooks": hooks.collect::<Vec<_>>(),
        "id": request.id,
    });
    Ok((Digest::of(asked.to_string()), input))
}

/// A run as it is once it has been admitted.
fn as_admitted(run: &NewRun) -> Loaded {
    let NewRun {
        id,
        started,
        input,
        now,
        ..
    } = run;
    Loaded {
        run: RunInfo {
            id: id.clone(),
            workflow: started.workflow.clone(),
            component: started.component,
            status: RunStatus::Pending,
            created_at: *now,
            ended_at: None,
            wake_at: None,
            cancel_requested: None,
            blocked: None,
            parent: None,
            tokens: started.hooks.iter().map(|hook| hook.token.clone()).collect(),
            entries: 1,
        },
        entries: vec![Entry {
            seq: 0,
            at: *now,
            event: Event::Started(Box::new(started.clone())),
            body: Some(input.clone()),
        }],
    }
}

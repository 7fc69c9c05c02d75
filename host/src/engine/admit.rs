//! From a request to a run: everything is checked before the one transaction that admits it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Engine;
use super::error::{Error, Result};
use super::hooks::checked_hook;
use super::request::{Attached, ConflictPolicy, Outcome, StartReceipt, StartRequest};
use crate::clock;
use crate::ids::{Digest, HookToken, RunId};
use crate::journal::{
    Body, Entry, Event, HookSpec, Lineage, MAX_METADATA_BYTES, PayloadType, RunStatus, Seq, Started,
};
use crate::sandbox::{WorkflowManifest, read_json};
use crate::store::{Admission, Loaded, NewRun, OnConflict, RunInfo, StartDelivery, StoreError, Waits};

/// Position of the payload that a run is admitted with.
const FIRST_PAYLOAD: Seq = 1;

/// A request, read.
struct Asked {
    /// Over what the caller asked for, whatever is deployed: the same request has the same digest for ever.
    digest: Digest,
    input: Value,
    payload: Option<Value>,
}

/// Where a run comes from, beside its request.
pub(super) struct Origin {
    pub lineage: Option<Lineage>,
    /// It claims the token that its workflow declares.
    pub declared_token: bool,
    /// What makes two requests the same, where that is not what stands in them.
    pub same: Option<Digest>,
    /// What carries it where its workflow is not deployed any more.
    pub component: Option<Digest>,
}

impl Default for Origin {
    fn default() -> Self {
        Self {
            lineage: None,
            declared_token: true,
            same: None,
            component: None,
        }
    }
}

impl Engine {
    /// Admits a run and claims its hooks, in one step. Answers after the commit; the run begins by itself. Where a
    /// token is held, [`ConflictPolicy`] says what happens instead, in the same transaction.
    ///
    /// # Errors
    /// [`Error::HookConflict`] names the owner of a token that is held; see [`Error`] for the others.
    pub async fn start(&self, request: StartRequest) -> Result<StartReceipt> {
        self.to_its_end(|engine| async move { engine.start_once(request).await })
            .await
    }

    async fn start_once(&self, request: StartRequest) -> Result<StartReceipt> {
        self.start_from(request, Origin::default()).await
    }

    pub(super) async fn start_from(&self, request: StartRequest, origin: Origin) -> Result<StartReceipt> {
        let asked = self.read(&request, &origin)?;
        let mut run = match self.prepare(&request, &asked, origin).await {
            Ok(run) => run,
            // It may be the repetition of a request that could be carried out when it came.
            Err(error) => {
                let (id, key) = (request.id.as_ref(), request.key.as_ref());
                let now = self.0.clock.now();
                let recalled = self.0.store.recall(id, key, asked.digest, now).await;
                return match recalled.inspect_err(|error| self.note_failure(error))? {
                    Some(answer) => self.answer(&request, answer, None).await,
                    None => Err(error),
                };
            }
        };
        loop {
            let misfit = self.check_handover(&mut run, &asked).await?;
            let admitted = self.0.store.admit(run.clone()).await;
            let admission = admitted.inspect_err(|error| self.note_failure(error))?;
            match (admission, misfit) {
                (Admission::Moved, Some(misfit)) => return Err(misfit),
                // The token changed hands since the payload was checked.
                (Admission::Moved, None) => run.now = self.0.clock.now(),
                (admission, _) => return self.answer(&request, admission, Some(run)).await,
            }
        }
    }

    /// As it would be admitted now, whoever asks for it.
    pub(super) async fn prepare_run(&self, request: &StartRequest, origin: Origin) -> Result<NewRun> {
        let asked = self.read(request, &origin)?;
        self.prepare(request, &asked, origin).await
    }

    fn read(&self, request: &StartRequest, origin: &Origin) -> Result<Asked> {
        let workflow = request.workflow.rsplit('/').next().unwrap_or_default();
        let input: Value = read_json(&request.input).map_err(|error| Error::InvalidInput {
            workflow: workflow.to_owned(),
            what: error.to_string(),
        })?;
        let hooks = request
            .hooks
            .iter()
            .map(|hook| json!([hook.token, hook.min_retention_ms, hook.metadata]));
        let mut asked = json!({
            "workflow": request.workflow,
            "input": input,
            "hooks": hooks.collect::<Vec<_>>(),
            "id": request.id,
        });
        // What is not asked for stays out: requests of older clients keep their digests.
        let payload = match &request.on_conflict {
            ConflictPolicy::Fail => None,
            ConflictPolicy::Attach => {
                asked["on_conflict"] = json!("attach");
                None
            }
            ConflictPolicy::Replace => {
                asked["on_conflict"] = json!("replace");
                None
            }
            ConflictPolicy::Deliver(delivery) => {
                let payload = self.read_payload(delivery.token.as_ref(), &delivery.payload)?;
                asked["on_conflict"] = json!("deliver");
                asked["deliver"] = json!([delivery.token, payload, delivery.always]);
                Some(payload)
            }
        };
        if let Some(lineage) = &origin.lineage {
            asked["lineage"] = json!(lineage);
        }
        if let Some(at) = request.start_at {
            asked["start_at"] = json!(at);
        }
        if request.min_retention_ms > 0 {
            asked["min_retention_ms"] = json!(request.min_retention_ms);
        }
        if !request.tags.is_empty() {
            asked["tags"] = json!(request.tags);
        }
        Ok(Asked {
            digest: origin.same.unwrap_or_else(|| Digest::of(asked.to_string())),
            input,
            payload,
        })
    }

    /// Checks a request against what is deployed now.
    async fn prepare(&self, request: &StartRequest, asked: &Asked, origin: Origin) -> Result<NewRun> {
        let (component, workflow) = match (self.resolve(&request.workflow).await, origin.component) {
            (Err(Error::UnknownWorkflow(workflow)), Some(own)) => {
                let component = self.component(own).await?;
                match component.manifest.workflows.contains_key(&workflow) {
                    true => (component, workflow),
                    false => return Err(Error::UnknownWorkflow(workflow)),
                }
            }
            (resolved, _) => resolved?,
        };
        let workflow = &component.manifest.workflows[&workflow];
        self.check_input(workflow, &request.input, &asked.input)?;
        let hooks = self.claims(workflow, &asked.input, request, origin.declared_token)?;
        let concurrency = workflow.concurrency_for(&asked.input);
        let concurrency = concurrency.map_err(|error| Error::InvalidInput {
            workflow: workflow.name.clone(),
            what: error.to_string(),
        })?;
        Ok(NewRun {
            id: request.id.clone().unwrap_or_else(RunId::generate),
            on_conflict: self.on_conflict(workflow, &hooks, request, asked)?,
            started: Started {
                workflow: workflow.name.clone(),
                component: component.digest,
                seed: clock::random_u64(),
                limits: self.0.config.limits.clone(),
                timeout: workflow.timeout,
                hooks,
                lineage: origin.lineage,
                start_at: request.start_at,
                predecessors: Vec::new(),
                tags: request.tags.clone(),
                concurrency,
            },
            input: Body::new(request.input.clone()),
            request: asked.digest,
            key: request.key.clone(),
            now: self.0.clock.now(),
        })
    }

    /// The policy of a start that claims `hooks`. A payload that the new run would read is checked as at a delivery.
    fn on_conflict(
        &self,
        workflow: &WorkflowManifest,
        hooks: &[HookSpec],
        request: &StartRequest,
        asked: &Asked,
    ) -> Result<OnConflict> {
        let (delivery, payload) = match (&request.on_conflict, &asked.payload) {
            (ConflictPolicy::Deliver(delivery), Some(payload)) => (delivery, payload),
            (ConflictPolicy::Attach, _) => return Ok(OnConflict::Attach),
            (ConflictPolicy::Replace, _) => return Ok(OnConflict::Replace),
            _ => return Ok(OnConflict::Fail),
        };
        let named = |spec: &&HookSpec| delivery.token.as_ref().is_none_or(|token| *token == spec.token);
        let Some(spec) = hooks.iter().find(named) else {
            let text = match &delivery.token {
                Some(token) => format!("the payload is for hook `{token}`, which the start does not claim"),
                None => "the payload has nowhere to go: the start claims no hook".to_owned(),
            };
            return Err(Error::InvalidRequest(text));
        };
        if delivery.always
            && spec.payload == PayloadType::Declared
            && let Some(schema) = &workflow.hook
            && let Err(error) = schema.check(payload)
        {
            let (token, what) = (spec.token.clone(), error.to_string());
            return Err(Error::InvalidPayload { token, what });
        }
        Ok(OnConflict::Deliver(StartDelivery {
            token: spec.token.clone(),
            payload: Body::new(delivery.payload.clone()),
            always: delivery.always,
            checked: None,
            cap: self.0.config.unread,
        }))
    }

    /// Checks the payload of a start against the hook that would get it now, if there is one; why it does not fit.
    async fn check_handover(&self, run: &mut NewRun, asked: &Asked) -> Result<Option<Error>> {
        let (OnConflict::Deliver(delivery), Some(payload)) = (&mut run.on_conflict, &asked.payload) else {
            return Ok(None);
        };
        let token = delivery.token.clone();
        let Some(hook) = self.0.store.hook(&token, self.0.clock.now()).await? else {
            return Ok(None);
        };
        let misfit = self.misfit(&hook, payload).await?;
        delivery.checked = Some(checked_hook(&hook, misfit.as_ref()));
        Ok(misfit.map(|what| Error::InvalidPayload { token, what }))
    }

    /// Tells the caller what became of the start, and whoever carries runs on. `run` is what was asked of the store.
    async fn answer(
        &self,
        request: &StartRequest,
        admission: Admission,
        run: Option<NewRun>,
    ) -> Result<StartReceipt> {
        let receipt = |run_id, started| StartReceipt {
            run_id,
            started,
            delivered: None,
            replaced: Vec::new(),
            attached: None,
        };
        match admission {
            Admission::Started {
                run: id,
                replaced,
                fresh,
                woken,
            } => {
                self.wake_all(&woken);
                let first = matches!(&request.on_conflict, ConflictPolicy::Deliver(it) if it.always);
                // A receipt is of a run that was begun; whatever is asked for now is not what it began with.
                match run.filter(|_| fresh) {
                    // The store knows for whom it waits.
                    Some(run) if run.on_conflict == OnConflict::Replace => self.wake(&id),
                    Some(run) => self.begin_admitted(as_admitted(run)),
                    None => {}
                }
                Ok(StartReceipt {
                    delivered: first.then_some(FIRST_PAYLOAD),
                    replaced,
                    ..receipt(id, true)
                })
            }
            Admission::Existing { run } => Ok(receipt(run, false)),
            Admission::Attached { owner, input_matches } => {
                let outcome = match owner.status.is_terminal() {
                    true => self.outcome_of(&owner.run).await?,
                    false => Outcome::default(),
                };
                Ok(StartReceipt {
                    attached: Some(Attached {
                        status: owner.status,
                        input_matches,
                        outcome,
                    }),
                    ..receipt(owner.run, false)
                })
            }
            Admission::Delivered {
                receipt: delivered,
                entry,
            } => {
                if let Some(entry) = entry {
                    self.wake_for(&delivered.run_id, *entry);
                }
                Ok(StartReceipt {
                    delivered: Some(delivered.seq),
                    ..receipt(delivered.run_id, false)
                })
            }
            Admission::HookConflict { token, owner } => Err(Error::HookConflict { token, owner }),
            Admission::HookEnded { token, owner } => Err(Error::HookEnded { token, owner }),
            Admission::HookFull { token, owner } => {
                let cap = self.0.config.unread;
                Err(Error::HookFull { token, owner, cap })
            }
            Admission::IdConflict { run } => Err(Error::RunIdConflict(run)),
            Admission::KeyConflict => Err(Error::KeyConflict),
            Admission::Moved => Err(StoreError::Invalid("a receipt says `moved`".into()).into()),
        }
    }

    pub(super) fn begin_admitted(&self, admitted: Loaded) {
        match (&admitted.run.waits, admitted.run.wake_at) {
            (None, _) => {
                let run = admitted.run.id.clone();
                self.wake_new(&run, admitted);
            }
            (Some(_), Some(at)) => self.0.registry.expect(at),
            (Some(_), None) => {}
        }
    }

    async fn outcome_of(&self, run: &RunId) -> Result<Outcome> {
        match self.0.store.run(run).await? {
            Some(info) => {
                let hooks = self.hooks_of(run).await?.len() as u64;
                self.outcome(&info, hooks).await
            }
            None => Ok(Outcome::default()),
        }
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
        declared_token: bool,
    ) -> Result<Vec<HookSpec>> {
        let own = match declared_token {
            true => workflow.token_for(input).map_err(|error| Error::InvalidInput {
                workflow: workflow.name.clone(),
                what: error.to_string(),
            })?,
            // It would run until it opens its hook, and fail there.
            false if workflow.token.is_some() && workflow.hook.is_some() && request.hooks.is_empty() => {
                let workflow = workflow.name.clone();
                return Err(Error::RerunNeedsHook { workflow });
            }
            false => None,
        };
        let mut claims: Vec<HookSpec> = Vec::new();
        claims.extend(own.map(|token| HookSpec {
            token,
            retain_ms: workflow.retain_ms,
            metadata: None,
            payload: PayloadType::Any,
            webhook: None,
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
                    webhook: None,
                }),
            }
        }
        if request.min_retention_ms > 0 && claims.is_empty() {
            let text = format!(
                "there is no token to keep: workflow `{}` declares none, and the start names none",
                workflow.name
            );
            return Err(Error::InvalidRequest(text));
        }
        for claim in &mut claims {
            claim.retain_ms = claim.retain_ms.max(request.min_retention_ms);
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

/// A run as it is once it has been admitted.
pub(super) fn as_admitted(run: NewRun) -> Loaded {
    let NewRun {
        id,
        started,
        input,
        on_conflict,
        now,
        ..
    } = run;
    let hook = |token: &HookToken| (0..).zip(&started.hooks).find(|(_, spec)| spec.token == *token);
    let first = match on_conflict {
        OnConflict::Deliver(delivery) if delivery.always => {
            hook(&delivery.token).map(|(hook, _)| (Event::PayloadReceived { hook }, delivery.payload))
        }
        _ => None,
    };
    let waits = Waits::of(&started, now);
    let info = RunInfo {
        id,
        workflow: started.workflow.clone(),
        component: started.component,
        status: RunStatus::Pending,
        created_at: now,
        ended_at: None,
        wake_at: waits.as_ref().and_then(Waits::wake_at),
        waits,
        predecessors: Vec::new(),
        concurrency: started.concurrency.clone(),
        cancel_requested: None,
        blocked: None,
        parent: None,
        lineage: started.lineage.clone(),
        tokens: started.hooks.iter().map(|hook| hook.token.clone()).collect(),
        tags: started.tags.clone(),
        duplicates: 0,
        entries: 1 + u64::from(first.is_some()),
    };
    let begun = (Event::Started(Box::new(started)), input);
    let entries = std::iter::once(begun).chain(first).zip(0..);
    let entry = |((event, body), seq)| Entry {
        seq,
        at: now,
        event,
        body: Some(body),
    };
    Loaded {
        run: info,
        entries: entries.map(entry).collect(),
        written: BTreeMap::new(),
        logged: None,
    }
}

//! A new run that goes on from an entry of another one's journal.

use std::collections::BTreeSet;

use serde_json::json;

use super::Engine;
use super::error::{Error, Result};
use super::replay::verify;
use super::request::{ForkHook, ForkRequest, Replaced, StartReceipt, Verdict};
use crate::clock;
use crate::ids::{Digest, RunId};
use crate::journal::{
    CallNo, Copied, Entry, Event, Forked, HookNo, HookSpec, MAX_METADATA_BYTES, RunStatus, Seq,
};
use crate::store::{Admission, Loaded, NewFork, StoreError};

impl Engine {
    /// Starts a run that shares the journal of another one up to an entry and goes on from there by itself. Steps that
    /// are saved in the shared part do not run again; those that are not are attempted anew, with keys of the fork
    /// where none is made from data. It claims what the request names.
    ///
    /// # Errors
    /// [`Error::EntryNotFound`] and [`Error::EndsThere`] when the fork cannot be made there; [`Error::DoesNotReplay`]
    /// when another component does something else than the shared entries hold, unless the request says that it may;
    /// [`Error::UnkeyedSteps`] as for a rerun, of the steps that are not saved in the shared part;
    /// [`Error::HookConflict`], [`Error::RunIdConflict`], [`Error::KeyConflict`] as for a start;
    /// [`Error::RunNotFound`], [`Error::UnknownComponent`], [`Error::UnknownDeployment`], [`Error::InvalidRequest`].
    pub async fn fork(&self, request: ForkRequest) -> Result<StartReceipt> {
        self.to_its_end(|engine| async move { engine.fork_once(request).await })
            .await
    }

    async fn fork_once(&self, request: ForkRequest) -> Result<StartReceipt> {
        let digest = digest_of(&request);
        let answered = match self.prepare_fork(&request, digest).await {
            Ok(fork) => Ok(self.0.store.fork(fork).await),
            // It may be the repetition of a request that could be carried out when it came.
            Err(error) => {
                let (id, key) = (request.id.as_ref(), request.key.as_ref());
                let recalled = self.0.store.recall(id, key, digest, self.0.clock.now()).await;
                recalled.transpose().ok_or(error)
            }
        };
        let answer = answered?.inspect_err(|error| self.note_failure(error))?;
        let (run_id, started) = match answer {
            Admission::Started { run, fresh, .. } => {
                if fresh {
                    self.wake(&run);
                }
                (run, true)
            }
            Admission::Existing { run } => (run, false),
            Admission::HookConflict { token, owner } => return Err(Error::HookConflict { token, owner }),
            Admission::IdConflict { run } => return Err(Error::RunIdConflict(run)),
            Admission::KeyConflict => return Err(Error::KeyConflict),
            other => {
                let what = format!("a fork was answered with {other:?}");
                return Err(StoreError::Invalid(what).into());
            }
        };
        Ok(StartReceipt {
            run_id,
            started,
            replaced: Vec::new(),
            delivered: None,
            attached: None,
        })
    }

    async fn prepare_fork(&self, request: &ForkRequest, digest: Digest) -> Result<NewFork> {
        let ForkRequest { of, at, .. } = request;
        let loaded = self.0.store.load(of, 0).await?;
        let Loaded { run, entries, .. } = loaded.ok_or_else(|| Error::RunNotFound(of.clone()))?;
        let shared = shared(of, &entries, *at)?;
        if entries[0].body.as_ref().is_none_or(|input| input.text.is_none()) {
            let text = format!("the input of run {of} was erased; it cannot run again");
            return Err(Error::InvalidRequest(text));
        }
        let hooks = self.fork_hooks(of, &Copied::of(shared), &request.hooks)?;
        let steps = repeated(shared, &entries);
        if !request.repeat_unkeyed && !steps.is_empty() {
            let run = of.clone();
            return Err(Error::UnkeyedSteps { run, steps });
        }
        let component = match &request.component {
            Some(name) => self.component_named(name).await?,
            None => run.component,
        };
        if component != run.component {
            self.check_component(of, &run.workflow, component, shared.to_vec(), request.force)
                .await?;
        }
        Ok(NewFork {
            id: request.id.clone().unwrap_or_else(RunId::generate),
            forked: Forked {
                of: of.clone(),
                upto: *at,
                seed: clock::random_u64(),
                component,
                hooks,
            },
            request: digest,
            key: request.key.clone(),
            now: self.0.clock.now(),
        })
    }

    /// Whether a component can carry on what these entries hold.
    pub(super) async fn check_component(
        &self,
        run: &RunId,
        workflow: &str,
        digest: Digest,
        entries: Vec<Entry>,
        force: bool,
    ) -> Result<()> {
        let component = self.component(digest).await?;
        if !component.manifest.workflows.contains_key(workflow) {
            let text = format!(
                "component {} has no workflow `{workflow}`, which run {run} executes",
                digest.short()
            );
            return Err(Error::InvalidRequest(text));
        }
        if force {
            return Ok(());
        }
        let report = verify(&self.0.sandbox, &component, run, entries).await;
        let what = match &report.verdict {
            Verdict::Agrees => return Ok(()),
            Verdict::Diverged(divergence) => divergence.message.clone(),
            Verdict::Trapped(trap) => trap.message.clone(),
            Verdict::Corrupt(what) => what.clone(),
        };
        Err(Error::DoesNotReplay {
            run: run.clone(),
            component: digest,
            what,
            verdict: Box::new(report.verdict),
        })
    }

    /// The claims of a fork, each for a hook that is open where it begins.
    fn fork_hooks(&self, of: &RunId, copied: &Copied, asked: &[ForkHook]) -> Result<Vec<(HookNo, HookSpec)>> {
        let open: Vec<_> = copied.open_hooks().collect();
        let named = |replaced: &Replaced| {
            let found = open.iter().find(|(number, spec)| match replaced {
                Replaced::Number(wanted) => wanted == number,
                Replaced::Token(wanted) => *wanted == spec.token,
            });
            found.map(|(number, _)| *number).ok_or_else(|| {
                let wanted = match replaced {
                    Replaced::Number(number) => number.to_string(),
                    Replaced::Token(token) => format!("`{token}`"),
                };
                let text = format!("run {of} has no hook {wanted} that is open at that entry");
                Error::InvalidRequest(text)
            })
        };
        let names = asked
            .iter()
            .map(|hook| hook.replaces.as_ref().map(named).transpose());
        let names: Vec<Option<HookNo>> = names.collect::<Result<_>>()?;
        let mut others = open
            .iter()
            .map(|(number, _)| *number)
            .filter(|number| !names.contains(&Some(*number)));
        let mut claims: Vec<(HookNo, HookSpec)> = Vec::new();
        for (ForkHook { hook, .. }, name) in asked.iter().zip(&names) {
            let Some(number) = name.or_else(|| others.next()) else {
                let text = format!(
                    "hook token `{}` is for no hook: run {of} has {} open at that entry",
                    hook.token,
                    open.len()
                );
                return Err(Error::InvalidRequest(text));
            };
            if claims
                .iter()
                .any(|(taken, spec)| *taken == number || spec.token == hook.token)
            {
                let text = format!(
                    "hook token `{}`, or the hook that it is for, is named twice",
                    hook.token
                );
                return Err(Error::InvalidRequest(text));
            }
            let metadata = hook.metadata.as_ref().map_or(0, |value| value.to_string().len());
            if metadata > MAX_METADATA_BYTES {
                return Err(Error::TooLarge {
                    what: "the metadata of a hook",
                    bytes: metadata as u64,
                    limit: MAX_METADATA_BYTES as u64,
                });
            }
            let (asked_ms, limit_ms) = (hook.min_retention_ms, self.0.config.limits.max_retention_ms);
            if asked_ms > limit_ms {
                return Err(Error::RetentionTooLong { asked_ms, limit_ms });
            }
            let before = &copied.hooks[number as usize].spec;
            claims.push((
                number,
                HookSpec {
                    token: hook.token.clone(),
                    retain_ms: asked_ms,
                    metadata: hook.metadata.clone().or_else(|| before.metadata.clone()),
                    payload: before.payload.clone(),
                    // A token that somebody chose can be guessed.
                    webhook: None,
                },
            ));
        }
        Ok(claims)
    }
}

/// Over what the caller asked for: the same request has the same digest for ever.
fn digest_of(request: &ForkRequest) -> Digest {
    let hooks = request.hooks.iter().map(|ForkHook { hook, replaces }| {
        json!([hook.token, hook.min_retention_ms, hook.metadata, replaces])
    });
    let asked = json!({
        "fork": request.of,
        "at": request.at,
        "id": request.id,
        "component": request.component,
        "hooks": hooks.collect::<Vec<_>>(),
    });
    Digest::of(asked.to_string())
}

/// The entries that a fork at `at` shares with its run.
fn shared<'a>(run: &RunId, entries: &'a [Entry], at: Seq) -> Result<&'a [Entry]> {
    let run = || run.clone();
    let count = usize::try_from(at).ok().filter(|at| *at < entries.len());
    let Some(count) = count else {
        return Err(Error::EntryNotFound {
            run: run(),
            seq: at,
            last: (entries.len() as Seq).saturating_sub(1),
        });
    };
    let shared = &entries[..=count];
    let mut status = None;
    for entry in shared {
        status = RunStatus::next(status, &entry.event).ok();
        if status.is_some_and(RunStatus::is_terminal) {
            return Err(Error::EndsThere {
                run: run(),
                seq: at,
                last: entry.seq.saturating_sub(1),
            });
        }
    }
    Ok(shared)
}

/// The steps of a run that are not saved in what a fork shares with it, and of which whoever they reach cannot tell a
/// second time from the first, or which are not to have one.
fn repeated(shared: &[Entry], entries: &[Entry]) -> Vec<String> {
    let saved: BTreeSet<CallNo> = shared
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::StepCompleted { call, .. }
            | Event::StepFailed { call, .. }
            | Event::Abandoned { call } => Some(*call),
            _ => None,
        })
        .collect();
    let steps: BTreeSet<&String> = entries
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::StepScheduled {
                call, step, options, ..
            } if !saved.contains(call) && (options.key.is_none() || options.at_most_once) => Some(step),
            _ => None,
        })
        .collect();
    steps.into_iter().cloned().collect()
}

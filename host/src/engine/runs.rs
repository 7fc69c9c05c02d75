//! Looking at runs, waiting for them, and moving them to another component.

use std::time::Duration;

use serde_json::value::RawValue;

use super::Engine;
use super::error::{Error, Result};
use super::request::{Outcome, RunResult};
use crate::ids::{Digest, RunId};
use crate::journal::{Body, CancelReason, Entry, Event, RunStatus, Seq};
use crate::store::{Cancelled, Ending, HookInfo, RunFilter, RunInfo, Upgraded};

impl Engine {
    /// # Errors
    /// [`Error::RunNotFound`].
    pub async fn run(&self, run: &RunId) -> Result<RunInfo> {
        let info = self.0.store.run(run).await?;
        let mut info = info.ok_or_else(|| Error::RunNotFound(run.clone()))?;
        self.say_why(&mut info);
        Ok(info)
    }

    /// Says of a run that waits for its turn that it does.
    fn say_why(&self, run: &mut RunInfo) {
        if !run.status.is_terminal() && run.blocked.is_none() && run.waits.is_none() {
            run.waits = self.0.registry.waits(run, self.0.clock.now());
        }
    }

    /// The hooks that a run claimed, in order.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn hooks_of(&self, run: &RunId) -> Result<Vec<HookInfo>> {
        Ok(self.0.store.hooks_of(run, self.0.clock.now()).await?)
    }

    /// Newest first.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when the run to go on after is unknown.
    pub async fn runs(&self, filter: RunFilter) -> Result<Vec<RunInfo>> {
        if let Some(after) = &filter.after
            && self.0.store.run(after).await?.is_none()
        {
            let text = format!("the list cannot go on after `{after}`: there is no such run");
            return Err(Error::InvalidRequest(text));
        }
        let mut runs = self.0.store.runs(filter).await?;
        for run in &mut runs {
            self.say_why(run);
        }
        Ok(runs)
    }

    /// At most `limit` entries from `from` on.
    ///
    /// # Errors
    /// [`Error::RunNotFound`].
    pub async fn journal(&self, run: &RunId, from: Seq, limit: usize) -> Result<Vec<Entry>> {
        let entries = self.0.store.journal(run, from, limit).await?;
        entries.ok_or_else(|| Error::RunNotFound(run.clone()))
    }

    /// How a run stands; waits at most `wait` for it to end or to be blocked. Of a run that goes on as another one, how
    /// that one stands.
    ///
    /// # Errors
    /// [`Error::RunNotFound`].
    pub async fn result(&self, run: &RunId, wait: Duration) -> Result<RunResult> {
        let until = tokio::time::Instant::now() + wait;
        let mut run = run.clone();
        let info = loop {
            let info = self.settled(&run, until).await?;
            match self.goes_on_as(&info).await? {
                Some(next) => run = next,
                None => break info,
            }
        };
        let (outcome, unread) = match info.status.is_terminal() {
            true => {
                let hooks = self.hooks_of(&info.id).await?;
                let unread = hooks.iter().map(|hook| hook.unread).sum();
                (self.outcome(&info, hooks.len() as u64).await?, Some(unread))
            }
            false => (Outcome::default(), None),
        };
        Ok(RunResult {
            run_id: info.id,
            status: info.status,
            output: outcome.output,
            error: outcome.error,
            unread,
            blocked: info.blocked,
        })
    }

    /// The run, as soon as it has ended or is blocked, or as it is then.
    async fn settled(&self, run: &RunId, until: tokio::time::Instant) -> Result<RunInfo> {
        // Listen, then look, then wait: no change is missed.
        let mut changes = self.0.registry.watch(run);
        let waiting = async {
            loop {
                let info = self.run(run).await?;
                if info.status.is_terminal() || info.blocked.is_some() {
                    return Ok::<_, Error>(info);
                }
                if changes.changed().await.is_err() {
                    return Ok(info);
                }
            }
        };
        match tokio::time::timeout_at(until, waiting).await {
            Ok(info) => info,
            Err(_) => self.run(run).await,
        }
    }

    async fn goes_on_as(&self, info: &RunInfo) -> Result<Option<RunId>> {
        if info.status != RunStatus::Continued {
            return Ok(None);
        }
        let hooks = self.hooks_of(&info.id).await?.len() as u64;
        Ok(match self.end(info, hooks).await?.map(|entry| entry.event) {
            Some(Event::Continued { run }) => Some(run),
            _ => None,
        })
    }

    /// The body of the entry that ended the run, which made so many claims.
    pub(super) async fn outcome(&self, info: &RunInfo, hooks: u64) -> Result<Outcome> {
        let Some(end) = self.end(info, hooks).await? else {
            return Ok(Outcome::default());
        };
        let body = end.body.as_ref().map(Body::text_or_null);
        let value = body.and_then(|text| RawValue::from_string(text.to_owned()).ok());
        Ok(match end.event {
            Event::Completed => Outcome {
                output: value,
                error: None,
            },
            Event::Failed | Event::Cancelled | Event::Terminated => Outcome {
                output: None,
                error: value,
            },
            _ => Outcome::default(),
        })
    }

    /// The entry that ended the run, which made so many claims.
    async fn end(&self, info: &RunInfo, hooks: u64) -> Result<Option<Entry>> {
        // Only freed tokens follow the end, at most one entry a hook.
        let from = info.entries.saturating_sub(hooks + 1);
        let entries = self.journal(&info.id, from, usize::try_from(hooks + 1).unwrap_or(usize::MAX));
        let ends = |entry: &Entry| entry.event.is_outcome() || entry.event == Event::Terminated;
        Ok(entries.await?.into_iter().rev().find(ends))
    }

    /// Asks a run to cancel: what its workflow waits for completes with the failure `cancelled`, so that it can tidy
    /// up and end. A run that never executed, or that is blocked, ends at once. Asking twice is as asking once. Of a run
    /// that goes on as another one, that one is asked, and told of.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::RunEnded`] when it ended otherwise.
    pub async fn cancel(&self, run: &RunId) -> Result<RunInfo> {
        let ask = |run: &RunId| Ending::Ask {
            reason: CancelReason::Requested,
            executing: self.0.registry.is_active(run),
        };
        self.end_run(run, ask).await
    }

    /// Ends a run without its workflow: nothing is tidied up. Attempts at work are cut off.
    ///
    /// # Errors
    /// As [`Engine::cancel`].
    pub async fn terminate(&self, run: &RunId) -> Result<RunInfo> {
        self.end_run(run, |_| Ending::Terminate).await
    }

    /// Ends a run that was just blocked, where it was asked to cancel after entry `seen`: that came while nobody could
    /// know that it would be blocked, and a blocked run ends at once.
    pub(super) async fn end_if_asked_since(&self, run: &RunId, seen: Seq) -> Result<()> {
        let later = self.journal(run, seen + 1, usize::MAX).await?;
        let asked = later.iter().find_map(|entry| match entry.event {
            Event::CancelRequested { reason } => Some(reason),
            _ => None,
        });
        if let Some(reason) = asked {
            let executing = true;
            self.end_run(run, |_| Ending::Ask { reason, executing }).await?;
        }
        Ok(())
    }

    async fn end_run(&self, run: &RunId, ending: impl Fn(&RunId) -> Ending) -> Result<RunInfo> {
        let mut run = run.clone();
        loop {
            let cancelled = self.0.store.cancel(&run, ending(&run), self.0.clock.now()).await;
            let (cancelled, woken) = cancelled.inspect_err(|error| self.note_failure(error))?;
            self.wake_all(&woken);
            match cancelled {
                Cancelled::Requested => self.wake(&run),
                Cancelled::Ended => {
                    self.0.registry.withdraw(&run);
                    // Ends its activation, if it has one.
                    self.wake(&run);
                    self.0.registry.changed(&run);
                }
                Cancelled::Over {
                    status: RunStatus::Cancelled,
                } => {}
                Cancelled::NotFound => return Err(Error::RunNotFound(run)),
                Cancelled::Over { status } => {
                    let info = self.run(&run).await?;
                    match self.goes_on_as(&info).await? {
                        Some(next) => {
                            run = next;
                            continue;
                        }
                        None => return Err(Error::RunEnded { run, status }),
                    }
                }
            }
            return self.run(&run).await;
        }
    }

    /// Moves a live run to another stored component, by digest, and lets it go on. What blocked it is cleared.
    ///
    /// The component replays the run first, unless `force` says that it need not; what it then does otherwise shows when
    /// the run goes on, which is blocked again.
    ///
    /// # Errors
    /// [`Error::UnknownComponent`], [`Error::InvalidRequest`] when the component lacks the run's workflow,
    /// [`Error::DoesNotReplay`], [`Error::RunNotFound`], [`Error::RunEnded`].
    pub async fn upgrade(&self, run: &RunId, digest: Digest, force: bool) -> Result<RunInfo> {
        let loaded = self.0.store.load(run, 0).await?;
        let loaded = loaded.ok_or_else(|| Error::RunNotFound(run.clone()))?;
        if loaded.run.status.is_terminal() {
            let (run, status) = (run.clone(), loaded.run.status);
            return Err(Error::RunEnded { run, status });
        }
        self.check_component(run, &loaded.run.workflow, digest, loaded.entries, force)
            .await?;
        let upgraded = self.0.store.upgrade(run, digest, self.0.clock.now()).await;
        match upgraded.inspect_err(|error| self.note_failure(error))? {
            Upgraded::Done => self.wake(run),
            Upgraded::NotFound => return Err(Error::RunNotFound(run.clone())),
            Upgraded::Ended { status } => {
                let run = run.clone();
                return Err(Error::RunEnded { run, status });
            }
        }
        self.run(run).await
    }
}

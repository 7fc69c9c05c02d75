//! Steps that wait for a person: what people are told of them, and what they decide.

use serde_json::{Value, json};

use super::Engine;
use super::attempt::idempotency_key;
use super::error::{Error, Result};
use super::request::{Resolution, RetryReceipt, RetryRequest};
use crate::ids::RunId;
use crate::journal::{
    Body, CallNo, Event, Failure, FailureKind, Hold, LastAttempt, OpenStep, Replay, RunStatus, Seq,
    checked_json,
};
use crate::sandbox::read_json;
use crate::store::{BlockReason, Blocked, Decision, HeldStep, RunFilter, RunInfo, Settled, Settlement};

/// What blocks a run at a step.
const HELD: [BlockReason; 3] = [
    BlockReason::UnknownOutcome,
    BlockReason::StepFailed,
    BlockReason::KeyExpired,
];

/// What can be tried again without a look at what the step did: it failed, or its attempts share a key.
const RETRIED: [BlockReason; 2] = [BlockReason::StepFailed, BlockReason::KeyExpired];

/// Runs, or entries, that are looked at together.
const PAGE: usize = 500;

impl Engine {
    /// Supplies what a step that blocks its run came to, or lets it be tried again, and the run goes on. `call` is
    /// the step that is meant, or whichever blocks the run.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::RunEnded`], [`Error::NotBlocked`], [`Error::BlockedOtherwise`] and
    /// [`Error::BlockedElsewhere`] when no such step blocks the run; [`Error::TooLarge`] and
    /// [`Error::InvalidRequest`] when the outcome cannot be kept; [`Error::InvalidResult`] when the step returns
    /// something else.
    pub async fn resolve_step(
        &self,
        run: &RunId,
        call: Option<CallNo>,
        resolution: Resolution,
    ) -> Result<RunInfo> {
        let mut call = call;
        let decision = match resolution {
            Resolution::Result(value) => {
                let result = self.checked_outcome("the result", &value)?;
                // What it was checked for is what it is given to.
                call = self.check_result(run, call, &value).await?.or(call);
                Decision::Result(result)
            }
            Resolution::Error { message, error } => {
                let failure = Failure {
                    error,
                    ..Failure::new(FailureKind::Error, message)
                };
                Decision::Failure(self.checked_outcome("the error", &failure.to_json())?)
            }
            Resolution::Retry => Decision::Retry,
        };
        self.settle(run, call, &HELD, decision).await
    }

    /// Lets the step that blocks a run be tried again: one that has no retries left, or whose key has expired. A
    /// step of which nobody knows whether it took effect takes a decision: [`Engine::resolve_step`].
    ///
    /// # Errors
    /// As [`Engine::resolve_step`].
    pub async fn retry(&self, run: &RunId) -> Result<RunInfo> {
        self.settle(run, None, &RETRIED, Decision::Retry).await
    }

    /// As [`Engine::retry`], for every run that the request is about.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for a reason that needs more than another try.
    pub async fn retry_all(&self, request: RetryRequest) -> Result<RetryReceipt> {
        let Some(reason) = RETRIED.iter().position(|reason| *reason == request.reason) else {
            let text = "the reason is `step_failed` or `key_expired`; for others decide run by run";
            return Err(Error::InvalidRequest(text.into()));
        };
        let reasons = &RETRIED[reason..=reason];
        let mut filter = RunFilter {
            status: Some(RunStatus::Blocked),
            workflow: request.workflow,
            limit: PAGE,
            ..RunFilter::default()
        };
        let mut retried = Vec::new();
        loop {
            let page = self.0.store.runs(filter.clone()).await?;
            let last = page.last().map(|run| run.id.clone());
            let blocked = |run: &RunInfo| {
                run.blocked
                    .as_ref()
                    .is_some_and(|why| reasons.contains(&why.reason))
            };
            for run in page.into_iter().filter(blocked) {
                match self.settle(&run.id, None, reasons, Decision::Retry).await {
                    Ok(_) => retried.push(run.id),
                    // It was decided about, or ended, meanwhile.
                    Err(
                        Error::NotBlocked { .. } | Error::RunEnded { .. } | Error::BlockedOtherwise { .. },
                    ) => {}
                    Err(error) => return Err(error),
                }
            }
            if last.is_none() {
                break;
            }
            filter.after = last;
        }
        Ok(RetryReceipt {
            retried: retried.len() as u64,
            runs: retried,
        })
    }

    async fn settle(
        &self,
        run: &RunId,
        call: Option<CallNo>,
        reasons: &'static [BlockReason],
        decision: Decision,
    ) -> Result<RunInfo> {
        let settlement = Settlement {
            run: run.clone(),
            call,
            reasons,
            decision,
            now: self.0.clock.now(),
        };
        let settled = self.0.store.settle_step(settlement).await;
        let run = run.clone();
        match settled.inspect_err(|error| self.note_failure(error))? {
            Settled::Done => self.wake(&run),
            Settled::NotFound => return Err(Error::RunNotFound(run)),
            Settled::Ended { status } => return Err(Error::RunEnded { run, status }),
            Settled::NotBlocked { status } => return Err(Error::NotBlocked { run, status }),
            Settled::OtherReason { reason } => return Err(Error::BlockedOtherwise { run, reason }),
            Settled::OtherCall { call } => return Err(Error::BlockedElsewhere { run, call }),
        }
        self.run(&run).await
    }

    /// Checks a result against what the held step returns, and says which call that is. Whether there is such a step is
    /// for the store to say. Closures have no declared type.
    async fn check_result(&self, run: &RunId, call: Option<CallNo>, text: &str) -> Result<Option<CallNo>> {
        let info = self.run(run).await?;
        let held = info.blocked.and_then(|blocked| blocked.step);
        let Some(held) = held.filter(|held| call.is_none_or(|call| call == held.call)) else {
            return Ok(None);
        };
        let component = match self.component(info.component).await {
            Ok(component) => component,
            Err(Error::Store(error)) => return Err(error.into()),
            // It can be decided about all the same, and moved to a component that loads.
            Err(_) => return Ok(Some(held.call)),
        };
        let step = component.manifest.steps.get(&held.name);
        if let Some(schema) = step.and_then(|step| step.output.as_ref())
            && !self.is_closure(run, held.call).await?
        {
            let misfit = match read_json(text) {
                Ok(value) => schema.check(&value).err().map(|error| error.to_string()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(what) = misfit {
                return Err(Error::InvalidResult {
                    run: run.clone(),
                    step: held.name,
                    call: held.call,
                    what,
                });
            }
        }
        Ok(Some(held.call))
    }

    async fn is_closure(&self, run: &RunId, call: CallNo) -> Result<bool> {
        let mut from: Seq = 0;
        loop {
            let entries = self.journal(run, from, PAGE).await?;
            let Some(last) = entries.last() else {
                return Ok(false);
            };
            from = last.seq + 1;
            let scheduled = entries.iter().find_map(|entry| match entry.event {
                Event::StepScheduled { call: c, closure, .. } if c == call => Some(closure),
                _ => None,
            });
            if let Some(closure) = scheduled {
                return Ok(closure);
            }
        }
    }

    fn checked_outcome(&self, what: &'static str, text: &str) -> Result<Body> {
        let (bytes, limit) = (text.len() as u64, self.0.config.limits.body_bytes);
        if bytes > limit {
            return Err(Error::TooLarge { what, bytes, limit });
        }
        let no_json = |error| Error::InvalidRequest(format!("{what} cannot be kept: {error}"));
        checked_json(text).map_err(no_json)?;
        Ok(Body::new(text))
    }
}

/// The mark of a run that waits for a person since this step is held.
pub fn blocked(run: &RunId, call: CallNo, open: &OpenStep, hold: Hold, replay: &Replay) -> Blocked {
    let failure = last_failure(open, replay);
    let key = idempotency_key(run, call, &open.options);
    let (step, attempts) = (&open.step, open.attempts);
    let because = match &failure {
        Some(failure) => format!(": {}", failure.message),
        None => String::new(),
    };
    let retry = format!("`onemark runs retry {run}`");
    let resolve =
        format!("`onemark runs resolve {run} --call {call}` with `--result JSON` or `--error TEXT`");
    let (reason, message) = match hold {
        Hold::UnknownOutcome => (
            BlockReason::UnknownOutcome,
            format!(
                "whether step `{step}` (call {call}, attempt {attempts}, key `{key}`) took effect is unknown\
                 {because}. It is not run again. Find out, then tell the run: {resolve}, or `--retry` to run it again"
            ),
        ),
        Hold::StepFailed => (
            BlockReason::StepFailed,
            format!(
                "step `{step}` (call {call}, key `{key}`) failed after {attempts} attempts{because}. Mend the cause \
                 and let it be tried again: {retry}; or supply its outcome: {resolve}"
            ),
        ),
        Hold::KeyExpired => (
            BlockReason::KeyExpired,
            format!(
                "the idempotency key `{key}` of step `{step}` (call {call}) may be forgotten where it was used \
                 {attempts} times{because}. Find out whether the step took effect, then supply its outcome: \
                 {resolve}; or let it be tried again: {retry}"
            ),
        ),
    };
    Blocked {
        reason,
        message,
        step: Some(HeldStep {
            call,
            name: step.clone(),
            attempt: attempts,
            key,
        }),
        detail: failure.map_or(Value::Null, |failure| json!(failure)),
    }
}

/// Why the last attempt failed, if it did.
fn last_failure(open: &OpenStep, replay: &Replay) -> Option<Failure> {
    let LastAttempt::Failed { seq, .. } = open.last else {
        return None;
    };
    let entry = replay.entries().get(usize::try_from(seq).ok()?)?;
    serde_json::from_str(entry.body.as_ref().map(Body::text_or_null)?).ok()
}

//! One attempt of a step: what it is made with, and what its end means for the run.

use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::ids::RunId;
use crate::journal::{
    AttemptError, Body, CallNo, Divergence, Event, Failure, FailureKind, Limits, MAX_MESSAGE_BYTES, NewEntry,
    StepOptions, Then, Timestamp, checked_json, shortened,
};
use crate::sandbox::{Attempt, AttemptEnd, BlobStore, LogSink, StepEffects, Trap, TrapKind};

/// A step that wants an attempt.
#[derive(Debug, Clone)]
pub struct Pending {
    pub call: CallNo,
    pub step: String,
    /// A closure of the workflow.
    pub closure: bool,
    pub options: StepOptions,
    pub input: Arc<str>,
    /// Attempts that began before.
    pub attempts: u32,
    /// Those of them that do not count against the retries.
    pub forgiven: u32,
    /// The run was asked to cancel: no further attempts.
    pub cancelled: bool,
}

impl Pending {
    /// The next attempt.
    pub fn attempt(
        &self,
        run: &RunId,
        logs: Arc<dyn LogSink>,
        effects: Arc<dyn StepEffects>,
        blobs: Arc<dyn BlobStore>,
    ) -> Attempt {
        Attempt {
            number: self.attempts + 1,
            idempotency_key: self.idempotency_key(run),
            timeout: self.timeout(),
            logs,
            effects,
            blobs,
        }
    }

    fn idempotency_key(&self, run: &RunId) -> String {
        idempotency_key(run, self.call, &self.options)
    }

    /// A run that is to end waits for nobody.
    fn unless_cancelled(&self, then: Then) -> Then {
        match self.cancelled {
            true => Then::Fail,
            false => then,
        }
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.options.timeout_ms)
    }
}

/// The same in every attempt of this step.
pub fn idempotency_key(run: &RunId, call: CallNo, options: &StepOptions) -> String {
    let made = || format!("{run}/{call}");
    options.key.clone().unwrap_or_else(made)
}

/// What an attempt's end makes of its step.
pub enum Verdict {
    /// Saved: completed or failed for good.
    Done(NewEntry),
    /// Tried again at this time.
    Again(NewEntry, Timestamp),
    /// Tried again when a person says so.
    Held(NewEntry),
    /// The workflow is not what its journal holds.
    Diverged(Box<Divergence>),
}

/// More causes of an error help nobody.
const MAX_CAUSES: usize = 20;

/// Judges the end of attempt `step.attempts`.
pub fn judge(step: &Pending, end: AttemptEnd, limits: &Limits, now: Timestamp) -> Verdict {
    let (call, attempt) = (step.call, step.attempts);
    let mut retry_after = None;
    // What did not return may have taken effect.
    let mut outcome_unknown = step.options.at_most_once;
    let (failure, may_retry) = match end {
        AttemptEnd::Returned(Ok(value)) => match checked(&value, limits) {
            Ok(()) => {
                let event = Event::StepCompleted {
                    call,
                    attempt,
                    resolved: false,
                };
                return Verdict::Done(NewEntry::with_body(event, Body::new(value)));
            }
            // The same step would give the same again.
            Err(failure) => {
                outcome_unknown = false;
                (failure, false)
            }
        },
        AttemptEnd::Returned(Err(document)) if document.len() as u64 > limits.body_bytes => {
            let (bytes, limit) = (document.len(), limits.body_bytes);
            let text = format!("the step's error has {bytes} bytes; the limit is {limit}");
            outcome_unknown = parse_error(document).outcome_unknown;
            (Failure::new(FailureKind::TooLarge, text), true)
        }
        AttemptEnd::Returned(Err(document)) => {
            let error = parse_error(document);
            retry_after = error.retry_after_ms;
            outcome_unknown = error.outcome_unknown;
            let mut failure = Failure::new(FailureKind::Error, error.message);
            failure.error = error.error;
            let causes = error.causes.iter().take(MAX_CAUSES);
            failure.causes = causes
                .map(|cause| shortened(cause, MAX_MESSAGE_BYTES).into_owned())
                .collect();
            (failure, error.retry)
        }
        AttemptEnd::Diverged(divergence) => return Verdict::Diverged(divergence),
        AttemptEnd::Trapped(trap) => (trap_failure(trap), true),
        AttemptEnd::TimedOut => {
            let text = format!("the attempt took longer than {} ms", step.options.timeout_ms);
            (Failure::new(FailureKind::Timeout, text), true)
        }
    };
    if outcome_unknown {
        return unknown(step, failure);
    }
    // The first attempt is no retry.
    let counted = attempt - step.forgiven;
    if may_retry && counted <= step.options.automatic_retries() && !step.cancelled {
        let jitter = clock::random_u64();
        let retry_at = step.options.retry_at(now, counted, retry_after, jitter);
        return Verdict::Again(attempt_failed(step, failure, Some(retry_at)), retry_at);
    }
    match step.unless_cancelled(step.options.on_exhausted) {
        Then::Block if may_retry => Verdict::Held(attempt_failed(step, failure, None)),
        Then::Block | Then::Fail => Verdict::Done(step_failed(step, failure)),
    }
}

/// Judges attempt `step.attempts`, of which the journal knows no end.
pub fn cut_off(step: &Pending) -> Verdict {
    let text = "the attempt was cut off before it returned";
    unknown(step, Failure::new(FailureKind::Interrupted, text))
}

fn unknown(step: &Pending, failure: Failure) -> Verdict {
    let failure = Failure {
        outcome_unknown: true,
        ..failure
    };
    match step.unless_cancelled(step.options.on_unknown) {
        Then::Block => Verdict::Held(attempt_failed(step, failure, None)),
        Then::Fail => Verdict::Done(step_failed(step, failure)),
    }
}

fn attempt_failed(step: &Pending, failure: Failure, retry_at: Option<Timestamp>) -> NewEntry {
    let event = Event::AttemptFailed {
        call: step.call,
        attempt: step.attempts,
        retry_at,
        outcome_unknown: failure.outcome_unknown,
    };
    NewEntry::with_body(event, body(step, failure))
}

fn step_failed(step: &Pending, failure: Failure) -> NewEntry {
    let event = Event::StepFailed {
        call: step.call,
        attempt: step.attempts,
        resolved: false,
    };
    NewEntry::with_body(event, body(step, failure))
}

fn body(step: &Pending, failure: Failure) -> Body {
    let failure = Failure {
        attempts: Some(step.attempts),
        ..failure
    };
    Body::new(failure.to_json())
}

/// How far a step was that gets no attempt any more, since its run was asked to cancel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// No attempt is at work.
    NotAtWork,
    /// An attempt had its grace time, and nobody knows what it did.
    CutOff,
    /// Nobody knows what the last attempt did, such as one that was cut off with its host.
    Unknown,
}

impl Unfinished {
    /// Of a step that has no attempt at work here.
    pub fn left(unknown: bool) -> Self {
        if unknown { Self::Unknown } else { Self::NotAtWork }
    }
}

/// What such a step comes to.
pub fn cancelled(step: &Pending, how: Unfinished) -> NewEntry {
    let (call, attempt) = (step.call, step.attempts);
    let text = match how {
        Unfinished::NotAtWork => "the run was asked to cancel before the step was done",
        Unfinished::CutOff => {
            "the run was asked to cancel, and the attempt did not end within its grace time"
        }
        Unfinished::Unknown => {
            "the run was asked to cancel, and nobody knows what its last attempt did, which was cut off"
        }
    };
    let failure = Failure {
        attempts: Some(attempt),
        outcome_unknown: how != Unfinished::NotAtWork,
        ..Failure::new(FailureKind::Cancelled, text)
    };
    let event = Event::StepFailed {
        call,
        attempt,
        resolved: false,
    };
    NewEntry::with_body(event, Body::new(failure.to_json()))
}

fn checked(value: &str, limits: &Limits) -> Result<(), Failure> {
    if value.len() as u64 > limits.body_bytes {
        let text = format!(
            "the result has {} bytes; the limit is {}",
            value.len(),
            limits.body_bytes
        );
        return Err(Failure::new(FailureKind::TooLarge, text));
    }
    match checked_json(value) {
        Ok(()) => Ok(()),
        Err(error) => {
            let text = format!("the step returned what is no JSON: {error}");
            Err(Failure::new(FailureKind::Error, text))
        }
    }
}

/// A guest that reports its error in another form still failed.
fn parse_error(document: String) -> AttemptError {
    serde_json::from_str(&document).unwrap_or_else(|_| AttemptError {
        message: document,
        error: None,
        causes: Vec::new(),
        retry: true,
        retry_after_ms: None,
        outcome_unknown: false,
    })
}

fn trap_failure(trap: Trap) -> Failure {
    let kind = match trap.kind {
        TrapKind::Trap | TrapKind::StackOverflow | TrapKind::Refused => FailureKind::Trap,
        TrapKind::OutOfFuel => FailureKind::OutOfFuel,
        TrapKind::OutOfMemory => FailureKind::OutOfMemory,
    };
    Failure {
        causes: trap.frames,
        ..Failure::new(kind, trap.message)
    }
}

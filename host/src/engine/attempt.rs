//! One attempt of a step: what it is made with, and what its end means for the run.

use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::ids::RunId;
use crate::journal::{
    AttemptError, Body, CallNo, Divergence, Event, Failure, FailureKind, Limits, MAX_MESSAGE_BYTES, NewEntry,
    Replay, StepOptions, Timestamp, checked_json, shortened,
};
use crate::sandbox::{AttemptEnd, AttemptRequest, ClosureRequest, LogSink, Trap, TrapKind};

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
    /// The run was asked to cancel: no further attempts.
    pub cancelled: bool,
}

impl Pending {
    pub fn request(&self, run: &RunId, limits: Limits, logs: Arc<dyn LogSink>) -> AttemptRequest {
        AttemptRequest {
            step: self.step.clone(),
            input: self.input.clone(),
            attempt: self.attempts + 1,
            idempotency_key: self.idempotency_key(run),
            timeout: self.timeout(),
            limits,
            logs,
        }
    }

    pub fn closure_request(&self, run: &RunId, replay: Replay, logs: Arc<dyn LogSink>) -> ClosureRequest {
        ClosureRequest {
            run: run.clone(),
            replay,
            attempt: self.attempts + 1,
            idempotency_key: self.idempotency_key(run),
            timeout: self.timeout(),
            logs,
        }
    }

    fn idempotency_key(&self, run: &RunId) -> String {
        let made = || format!("{run}/{}", self.call);
        self.options.key.clone().unwrap_or_else(made)
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.options.timeout_ms)
    }
}

/// What an attempt's end makes of its step.
pub enum Verdict {
    /// Saved: completed or failed for good.
    Done(NewEntry),
    /// Tried again at this time.
    Again(NewEntry, Timestamp),
    /// The workflow is not what its journal holds.
    Diverged(Box<Divergence>),
}

/// More causes of an error help nobody.
const MAX_CAUSES: usize = 20;

/// Judges the end of attempt `step.attempts`.
pub fn judge(step: &Pending, end: AttemptEnd, limits: &Limits, now: Timestamp) -> Verdict {
    let (call, attempt) = (step.call, step.attempts);
    let mut retry_after = None;
    let (failure, may_retry) = match end {
        AttemptEnd::Returned(Ok(value)) => match checked(&value, limits) {
            Ok(()) => {
                let event = Event::StepCompleted { call, attempt };
                return Verdict::Done(NewEntry::with_body(event, Body::new(value)));
            }
            // The same step would give the same again.
            Err(failure) => (failure, false),
        },
        AttemptEnd::Returned(Err(document)) if document.len() as u64 > limits.body_bytes => {
            let (bytes, limit) = (document.len(), limits.body_bytes);
            let text = format!("the step's error has {bytes} bytes; the limit is {limit}");
            (Failure::new(FailureKind::TooLarge, text), true)
        }
        AttemptEnd::Returned(Err(document)) => {
            let error = parse_error(document);
            retry_after = error.retry_after_ms;
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
    let failure = Failure {
        attempts: Some(attempt),
        ..failure
    };
    let body = Body::new(failure.to_json());
    // The first attempt is no retry.
    if may_retry && attempt <= step.options.retries && !step.cancelled {
        let jitter = clock::random_u64();
        let retry_at = step.options.retry_at(now, attempt, retry_after, jitter);
        let event = Event::AttemptFailed {
            call,
            attempt,
            retry_at,
        };
        return Verdict::Again(NewEntry::with_body(event, body), retry_at);
    }
    Verdict::Done(NewEntry::with_body(Event::StepFailed { call, attempt }, body))
}

/// What a step comes to that gets no attempt any more, since the run was asked to cancel. `cut_off` when an attempt
/// had begun and nobody knows what it did.
pub fn cancelled(step: &Pending, cut_off: bool) -> NewEntry {
    let (call, attempt) = (step.call, step.attempts);
    let text = match cut_off {
        true => "the run was asked to cancel, and the attempt did not end within its grace time",
        false => "the run was asked to cancel before the step was done",
    };
    let failure = Failure {
        attempts: Some(attempt),
        outcome_unknown: cut_off,
        ..Failure::new(FailureKind::Cancelled, text)
    };
    NewEntry::with_body(Event::StepFailed { call, attempt }, Body::new(failure.to_json()))
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

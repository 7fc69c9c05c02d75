//! One attempt of a step: what it is made with, and what its end means for the run.

use std::sync::Arc;
use std::time::Duration;

use serde::de::IgnoredAny;

use crate::clock;
use crate::ids::RunId;
use crate::journal::{
    AttemptError, Body, CallNo, Divergence, Event, Failure, FailureKind, Limits, NewEntry, Replay,
    StepOptions, Then, Timestamp,
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
    /// Those of them that do not count against the retries.
    pub forgiven: u32,
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
        idempotency_key(run, self.call, &self.options)
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
            failure.causes = error.causes;
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
    if may_retry && counted <= step.options.automatic_retries() {
        let retry_at = match retry_after {
            Some(after) => now.saturating_add(after),
            None => step.options.backoff.retry_at(now, counted, clock::random_u64()),
        };
        return Verdict::Again(attempt_failed(step, failure, Some(retry_at)), retry_at);
    }
    match step.options.on_exhausted {
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
    match step.options.on_unknown {
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

/// Deepest nesting that JSON from guests may have: what readers of JSON accept by default.
const MAX_DEPTH: usize = 128;

/// Whether text is JSON that everybody can read.
///
/// # Errors
/// When it is no JSON, or is nested too deep.
pub fn checked_json(text: &str) -> Result<(), String> {
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| error.to_string())?;
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth -= 1,
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} deep"));
        }
    }
    Ok(())
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

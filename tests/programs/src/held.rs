//! Steps that wait for a person.

use onemark_sdk::Then;
use onemark_sdk::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::marks;

#[derive(Serialize, Deserialize, JsonSchema, StepError)]
pub enum Charge {
    #[retry]
    Busy,
    #[fatal]
    Declined,
    #[unknown]
    Lost,
    #[retry_after("60s")]
    Later,
}

/// Leaves a mark, then ends as asked.
async fn end(marks: &str, how: &str) -> Result<String, Charge> {
    if marks::leave(marks, how).await.is_err() {
        return Err(Charge::Busy);
    }
    match how {
        "busy" => Err(Charge::Busy),
        "declined" => Err(Charge::Declined),
        "lost" => Err(Charge::Lost),
        "panic" => panic!("as asked"),
        "loop" | "fuel" => loop {
            std::hint::black_box(0);
        },
        "memory" => {
            let mut all = Vec::new();
            loop {
                all.push(std::hint::black_box(vec![1u8; 1 << 20]));
            }
        }
        "large" => Ok("x".repeat(2 << 20)),
        other => Ok(other.to_owned()),
    }
}

#[step(at_most_once, key = "charge:{how}")]
async fn once(marks: &str, how: &str) -> Result<String, Charge> {
    end(marks, how).await
}

#[step(retries = 3, backoff = "1ms")]
async fn at_least_once(marks: &str, how: &str) -> Result<String, Charge> {
    end(marks, how).await
}

fn seen(result: Result<String, Failure<Charge>>) -> String {
    match result {
        Ok(value) => value,
        Err(failure) => format!(
            "{} after {}, unknown {}, typed {}: {}",
            failure.kind,
            failure.attempts.unwrap_or(0),
            failure.outcome_unknown,
            failure.error.is_some(),
            failure.message
        ),
    }
}

/// What the workflow sees of a step that runs at most once.
#[workflow(token = "{token}")]
async fn runs_once(marks: String, how: String, fail: bool, token: String) -> WorkflowResult<String> {
    let _ = token;
    let then = if fail { Then::Fail } else { Then::Block };
    let timeout = Duration::from_millis(if how == "loop" { 50 } else { 60_000 });
    Ok(seen(once(&marks, &how).on_unknown(then).timeout(timeout).await))
}

/// As [`runs_once`], once a payload has come.
#[workflow]
async fn runs_once_after_a_payload(marks: String, how: String) -> WorkflowResult<String> {
    start_hook::<u64>()?.next().await?;
    Ok(seen(once(&marks, &how).await))
}

/// As [`runs_once`], in a closure.
#[workflow]
async fn closure_runs_once(marks: String, how: String, fail: bool) -> WorkflowResult<String> {
    let then = if fail { Then::Fail } else { Then::Block };
    let call = onemark_sdk::typed_step("once", || async { end(&marks, &how).await });
    Ok(seen(call.at_most_once().on_unknown(then).await))
}

/// What the workflow sees of a step that may run again, and whose error says that it must not.
#[workflow]
async fn runs_again(marks: String, how: String, fail: bool) -> WorkflowResult<String> {
    let then = if fail { Then::Fail } else { Then::Block };
    Ok(seen(at_least_once(&marks, &how).on_unknown(then).await))
}

/// One that must not be repeated beside one that can be.
#[workflow]
async fn runs_once_beside(marks: String) -> WorkflowResult<Vec<String>> {
    let (once, other) = join!(once(&marks, "lost"), at_least_once(&marks, "beside"));
    let third = at_least_once(&marks, "third").await;
    Ok(vec![seen(once), seen(other), seen(third)])
}

#[step(retries = 1, backoff = "1ms", on_exhausted = "block")]
async fn stubborn(good_from_attempt: u32, fatal: bool) -> Result<(u32, String), Charge> {
    let info = step_info();
    match info.attempt {
        n if n >= good_from_attempt => Ok((n, info.idempotency_key)),
        _ if fatal => Err(Charge::Declined),
        _ => Err(Charge::Busy),
    }
}

/// A step for which the run waits when it has no retries left: its attempt and its key.
#[workflow(token = "{token}")]
async fn waits_for_help(good_from_attempt: u32, fatal: bool, token: String) -> WorkflowResult<(u32, String)> {
    let _ = token;
    Ok(stubborn(good_from_attempt, fatal).await?)
}

#[step(key_ttl = "30s", key = "fixed")]
async fn forgetful(good_from_attempt: u32) -> Result<u32, Charge> {
    match step_info().attempt {
        n if n >= good_from_attempt => Ok(n),
        _ => Err(Charge::Later),
    }
}

/// A step whose key lives shorter than its next attempt is away, unless told otherwise.
#[workflow]
async fn key_expires(good_from_attempt: u32, ttl_s: Option<u64>) -> WorkflowResult<u32> {
    let call = forgetful(good_from_attempt);
    let call = match ttl_s {
        Some(ttl) => call.key_ttl(Duration::from_secs(ttl)),
        None => call,
    };
    Ok(call.await?)
}

#[step(key_ttl = "30s")]
async fn mark_with_ttl(marks: &str, name: &str) -> Result<(), StepFailed> {
    marks::leave(marks, name).await
}

/// Leaves a mark with a key that lives for a while.
#[workflow]
async fn marks_with_ttl(marks: String) -> WorkflowResult<()> {
    Ok(mark_with_ttl(&marks, "ttl").await?)
}

#[step]
async fn length(text: &str) -> Result<usize, StepFailed> {
    Ok(text.len())
}

/// A step with a large input, caught; then one with a small input.
#[workflow]
async fn large_input(bytes: usize) -> WorkflowResult<String> {
    let text = "x".repeat(bytes);
    let large = match length(&text).await {
        Ok(length) => length.to_string(),
        Err(failure) => format!("{}: {}", failure.kind, failure.message),
    };
    let (again, small) = join!(length(&text), length("small"));
    Ok(format!("{large}, {}, {}", again.is_ok(), small?))
}

/// A step that is given up when a payload comes, while it runs or waits for its next attempt; then another.
#[workflow]
async fn loses_a_step(marks: String, how: String) -> WorkflowResult<String> {
    let mut hook = start_hook::<String>()?;
    let won = {
        let mut step = at_least_once(&marks, &how).backoff(Duration::from_secs(3600));
        select! {
            result = step => seen(result),
            payload = hook.next() => format!("{:?}", payload?),
        }
    };
    hook.next().await?;
    at_least_once(&marks, "after").await?;
    Ok(won)
}

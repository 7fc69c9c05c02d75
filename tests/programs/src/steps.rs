//! Steps: in sequence, together, retried, failing in every way.

use onemark_sdk::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{marks, misbehaviour};

#[step]
async fn add(a: u64, b: u64) -> Result<u64, StepFailed> {
    Ok(a + b)
}

/// `n` steps, one after another; the sum of 0, 1, … n-1.
#[workflow]
async fn sequence(n: u64) -> WorkflowResult<u64> {
    let mut sum = 0;
    for i in 0..n {
        sum = add(sum, i).await?;
    }
    Ok(sum)
}

/// `n` steps at once.
#[workflow]
async fn fanout(n: u64) -> WorkflowResult<Vec<u64>> {
    Ok(try_join_all((0..n).map(|i| add(i, 1))).await?)
}

/// `n` rounds of a step against a timer that never wins.
#[workflow]
async fn select_loop(n: u64) -> WorkflowResult<u64> {
    let mut sum = 0;
    for i in 0..n {
        let mut step = add(sum, i);
        let mut timer = sleep(Duration::from_secs(3600));
        select! {
            result = step => sum = result?,
            result = timer => { result?; return Err("the timer won".into()) }
        }
    }
    Ok(sum)
}

#[step(backoff = "1ms")]
async fn mark(marks: &str, name: &str) -> Result<(), StepFailed> {
    marks::leave(marks, name).await
}

/// Leaves marks in order, a step each.
#[workflow(token = "{token}")]
async fn leave_marks(marks: String, names: Vec<String>, token: String) -> WorkflowResult<()> {
    let _ = token;
    for name in &names {
        mark(&marks, name).await?;
    }
    Ok(())
}

/// Leaves marks all at once.
#[workflow]
async fn leave_marks_together(marks: String, names: Vec<String>) -> WorkflowResult<()> {
    try_join_all(names.iter().map(|name| mark(&marks, name))).await?;
    Ok(())
}

#[derive(Serialize, Deserialize, JsonSchema, StepError)]
pub enum Trouble {
    #[retry]
    Busy(String),
    #[fatal]
    Declined(String),
    #[retry_after("60s")]
    Later,
}

#[step(retries = 3, backoff(initial = "1ms", factor = 2, max = "4ms"))]
async fn trouble(kind: String, good_from_attempt: u32) -> Result<u32, Trouble> {
    let attempt = step_info().attempt;
    if attempt >= good_from_attempt {
        return Ok(attempt);
    }
    match kind.as_str() {
        "busy" => Err(Trouble::Busy(format!("attempt {attempt}"))),
        "declined" => Err(Trouble::Declined(format!("attempt {attempt}"))),
        _ => Err(Trouble::Later),
    }
}

/// The attempt that succeeded, or the failure passed on.
#[workflow]
async fn troubled(kind: String, good_from_attempt: u32) -> WorkflowResult<u32> {
    Ok(trouble(kind, good_from_attempt).await?)
}

/// What the workflow sees of a step that fails.
#[workflow]
async fn handles_trouble(kind: String, retries: u32) -> WorkflowResult<String> {
    match trouble(kind, u32::MAX).retries(retries).await {
        Ok(_) => Ok("done".into()),
        Err(failure) => {
            let error = match &failure.error {
                Some(Trouble::Busy(text)) => format!("busy({text})"),
                Some(Trouble::Declined(text)) => format!("declined({text})"),
                Some(Trouble::Later) => "later".into(),
                None => "none".into(),
            };
            Ok(format!(
                "{} after {}: {error}",
                failure.kind,
                failure.attempts.unwrap_or(0)
            ))
        }
    }
}

/// Fails with its key until that attempt; then the attempt and the key.
#[step]
async fn busy(good_from_attempt: u32) -> Result<(u32, String), Trouble> {
    let info = step_info();
    if info.attempt >= good_from_attempt {
        Ok((info.attempt, info.idempotency_key))
    } else {
        Err(Trouble::Busy(info.idempotency_key))
    }
}

/// A step that declares nothing about retries.
#[workflow]
async fn retried_by_default(good_from_attempt: u32) -> WorkflowResult<(u32, String)> {
    Ok(busy(good_from_attempt).await?)
}

#[step(retries = 1, backoff = "1ms")]
async fn misbehave(how: String) -> Result<String, StepFailed> {
    if how == "long_error" {
        return Err(StepFailed::retry("x".repeat(1 << 20)));
    }
    Ok(misbehaviour::misbehave(&how))
}

/// The kind of failure that a step's misbehaviour comes to.
#[workflow]
async fn misbehaves(how: String, timeout_ms: u64) -> WorkflowResult<String> {
    match misbehave(how).timeout(Duration::from_millis(timeout_ms)).await {
        Ok(value) => Ok(value),
        Err(failure) => Ok(format!(
            "{} after {}: {}",
            failure.kind,
            failure.attempts.unwrap_or(0),
            failure.message
        )),
    }
}

/// A step that is tried again at once.
#[workflow]
async fn retried_at_once(good_from_attempt: u32) -> WorkflowResult<u32> {
    let busy = busy(good_from_attempt).retries(u32::MAX);
    Ok(busy.backoff(Duration::ZERO).await?.0)
}

/// How long the message of a step is that fails with this much text.
#[workflow]
async fn complains(bytes: usize) -> WorkflowResult<String> {
    match complain(bytes).await {
        Ok(()) => Ok("no complaint".into()),
        Err(failure) => Ok(failure.message.clone()),
    }
}

#[step(retries = 0)]
async fn complain(bytes: usize) -> Result<(), StepFailed> {
    Err(StepFailed::fatal("c".repeat(bytes)))
}

#[step(key = "made:{seed}")]
async fn keyed(seed: String) -> Result<String, StepFailed> {
    Ok(step_info().idempotency_key + &seed[..0])
}

#[step]
async fn unkeyed() -> Result<String, StepFailed> {
    Ok(step_info().idempotency_key)
}

/// Keys as steps see them: declared, made by the host twice, given per call.
#[workflow]
async fn keys(seed: String) -> WorkflowResult<Vec<String>> {
    Ok(vec![
        keyed(seed.clone()).await?,
        unkeyed().await?,
        unkeyed().await?,
        unkeyed().key("given").await?,
    ])
}

/// What a step with an input of this size, and with this key, comes to.
#[workflow]
async fn keyed_with(bytes: usize, key: Option<String>) -> WorkflowResult<String> {
    let mut call = keyed("s".repeat(bytes));
    if let Some(key) = key {
        call = call.key(key);
    }
    match call.await {
        Ok(key) => Ok(key),
        Err(failure) => Ok(format!("{}: {}", failure.kind, failure.message)),
    }
}

/// Another number each time it is asked.
#[step]
async fn draw() -> Result<String, StepFailed> {
    Ok(random().to_string())
}

#[step]
async fn use_id(marks: &str, id: &str) -> Result<(), StepFailed> {
    marks::leave_with_key(marks, "used", id).await
}

/// Draws an ID in a step of its own, then uses it in another.
#[workflow]
async fn draws(marks: String) -> WorkflowResult<String> {
    let id = draw().await?;
    use_id(&marks, &id).await?;
    Ok(id)
}

#[step(retries = 0)]
async fn too_much(bytes: usize) -> Result<String, StepFailed> {
    Ok("x".repeat(bytes))
}

#[workflow]
async fn large_result(bytes: usize) -> WorkflowResult<usize> {
    Ok(too_much(bytes).await?.len())
}

#[step]
async fn wait_for(marks: &str, name: &str, ms: u64) -> Result<(), StepFailed> {
    marks::leave(marks, name).await?;
    wstd::task::sleep(wstd::time::Duration::from_millis(ms)).await;
    Ok(())
}

/// A step that leaves a mark and then takes long.
#[workflow]
async fn slow(marks: String, ms: u64) -> WorkflowResult<()> {
    Ok(wait_for(&marks, "slow", ms).await?)
}

/// As [`slow`], then asleep for a day.
#[workflow]
async fn slow_then_asleep(marks: String) -> WorkflowResult<()> {
    wait_for(&marks, "slow", 0).await?;
    Ok(sleep(Duration::from_secs(24 * 60 * 60)).await?)
}

#[step]
async fn largest_number() -> Result<u128, StepFailed> {
    Ok(u128::MAX)
}

/// A number that no float holds.
#[workflow]
async fn largest() -> WorkflowResult<u128> {
    Ok(largest_number().await?)
}

#[step]
async fn dawdle(ms: u64) -> Result<(), StepFailed> {
    wstd::task::sleep(wstd::time::Duration::from_millis(ms)).await;
    Ok(())
}

/// Returns at the first payload, and leaves a step behind that has just begun.
#[workflow]
async fn leaves_a_step() -> WorkflowResult<String> {
    let mut hook = start_hook::<u64>()?;
    let mut step = dawdle(60_000);
    Ok(select! {
        result = step => { result?; "step".into() }
        payload = hook.next() => format!("payload {:?}", payload?),
    })
}

/// Sleeps again and again beside a step that does not end.
#[workflow]
async fn ticks_beside_a_step(ticks: u64) -> WorkflowResult<u64> {
    let mut step = dawdle(600_000);
    let mut seen = 0;
    while seen < ticks {
        let mut timer = sleep(Duration::from_millis(1));
        select! {
            result = step => { result?; break }
            result = timer => { result?; seen += 1 }
        }
    }
    Ok(seen)
}

/// Arrays in arrays.
#[workflow]
async fn nested(depth: usize) -> WorkflowResult<serde_json::Value> {
    let mut value = serde_json::json!(0);
    for _ in 0..depth {
        value = serde_json::Value::Array(vec![value]);
    }
    Ok(value)
}

//! What `onemark bench` measures: steps that do nothing, so that the figures are the host's own.

use onemark_sdk::prelude::*;

#[step]
async fn nothing(n: u64) -> Result<u64, StepFailed> {
    Ok(n)
}

/// `n` steps, one after another.
#[workflow]
async fn sequence(n: u64) -> WorkflowResult<u64> {
    let mut last = 0;
    for i in 0..n {
        last = nothing(i).await?;
    }
    Ok(last)
}

/// `n` closures, one after another.
#[workflow]
async fn closures(n: u64) -> WorkflowResult<u64> {
    let mut last = 0;
    for i in 0..n {
        last = step("nothing", || async { Ok(i) }).await?;
    }
    Ok(last)
}

/// `n` steps at once.
#[workflow]
async fn fanout(n: u64) -> WorkflowResult<u64> {
    let done = try_join_all((0..n).map(nothing)).await?;
    Ok(done.len() as u64)
}

/// One step.
#[workflow]
async fn one_step(n: u64) -> WorkflowResult<u64> {
    Ok(nothing(n).await?)
}

/// One step, under a token.
#[workflow(token = "bench:{id}")]
async fn one_step_keyed(id: String) -> WorkflowResult<u64> {
    let _ = id;
    Ok(nothing(0).await?)
}

/// Says that it has begun, so that whoever measures hears it.
#[step]
async fn announce(n: u64) -> Result<u64, StepFailed> {
    log::info!("step {n}");
    Ok(n)
}

/// A step for each payload, until one says 0.
#[workflow]
async fn relay() -> WorkflowResult<u64> {
    let mut count = 0;
    let mut hook = start_hook::<u64>()?;
    while let Some(payload) = hook.next().await? {
        if payload == 0 {
            break;
        }
        count += 1;
        announce(payload).await?;
    }
    Ok(count)
}

/// Sleeps so long.
#[workflow]
async fn sleeps(ms: u64) -> WorkflowResult<()> {
    sleep(Duration::from_millis(ms)).await?;
    Ok(())
}

/// Waits for a payload.
#[workflow]
async fn waits() -> WorkflowResult<()> {
    start_hook::<u64>()?.next().await?;
    Ok(())
}

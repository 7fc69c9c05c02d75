//! Durable time.

use onemark_sdk::prelude::*;

/// Sleeps for each length in turn.
#[workflow]
async fn sleeps(lengths_ms: Vec<u64>) -> WorkflowResult<()> {
    for length in lengths_ms {
        sleep(Duration::from_millis(length)).await?;
    }
    Ok(())
}

/// The time after each of `n` payloads, in milliseconds: since the epoch, and since the workflow began.
#[workflow]
async fn times(n: usize) -> WorkflowResult<Vec<(u64, u64)>> {
    let began = std::time::Instant::now();
    let mut hook = start_hook::<()>()?;
    let mut seen = Vec::new();
    while seen.len() < n {
        hook.next().await?;
        let wall = now().duration_since(std::time::UNIX_EPOCH)?;
        seen.push((wall.as_millis() as u64, began.elapsed().as_millis() as u64));
    }
    Ok(seen)
}

/// Sleeps until a moment, in milliseconds since the epoch.
#[workflow]
async fn sleeps_until(at_ms: u64) -> WorkflowResult<()> {
    sleep_until(std::time::UNIX_EPOCH + Duration::from_millis(at_ms)).await?;
    Ok(())
}

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

/// Sleeps until a moment, in milliseconds since the epoch.
#[workflow]
async fn sleeps_until(at_ms: u64) -> WorkflowResult<()> {
    sleep_until(std::time::UNIX_EPOCH + Duration::from_millis(at_ms)).await?;
    Ok(())
}

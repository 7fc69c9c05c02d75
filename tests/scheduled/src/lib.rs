//! Workflows with schedules. A component of its own: where it is deployed, a test that moves the clock by days starts
//! hundreds of runs.

use onemark_sdk::prelude::*;
use serde_json::Value;

/// Weekday mornings in Berlin.
#[workflow(cron = "0 9 * * 1-5", time_zone = "Europe/Berlin")]
async fn morning(slot: String) -> WorkflowResult<String> {
    Ok(slot)
}

#[workflow(cron = "0 * * * *", catch_up = "all")]
async fn each_hour(slot: Option<String>) -> WorkflowResult<Option<String>> {
    Ok(slot)
}

/// The programs have another of this name, with a lower limit.
#[workflow(concurrency = 3)]
async fn one_at_a_time(slot: Option<String>) -> WorkflowResult<Option<String>> {
    Ok(slot)
}

#[workflow(cron = "30 * * * *", catch_up = "skip", token = "half past")]
async fn half_past() -> WorkflowResult<()> {
    start_hook::<Value>()?.next().await?;
    Ok(())
}

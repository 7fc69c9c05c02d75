//! Workflows that go on as new runs.

use onemark_sdk::prelude::*;
use onemark_sdk::{Saga, continue_as_new};
use serde_json::json;

/// Sums payloads, so many a run, until one is 0.
#[workflow(token = "sum:{name}", retain = "1h", hook = u64)]
async fn sums(name: String, total: u64, a_run: u64) -> WorkflowResult<u64> {
    let mut hook = start_hook::<u64>()?;
    let mut total = total;
    for _ in 0..a_run {
        match hook.next().await? {
            None | Some(0) => return Ok(total),
            Some(n) => total += n,
        }
    }
    Saga::run(async |saga: &mut Saga| {
        // Nothing failed, so nothing is undone.
        saga.undo(async { Err(WorkflowError::new("undone")) });
        Err(continue_as_new(
            json!({ "name": name, "total": total, "a_run": a_run }),
        ))
    })
    .await
}

/// Sleeps, then goes on as asked.
#[workflow]
async fn goes_on(input: serde_json::Value, ms: u64) -> WorkflowResult<()> {
    if ms > 0 {
        let _ = sleep(Duration::from_millis(ms)).await;
    }
    Err(continue_as_new(input))
}

/// Counts down, a run each.
#[workflow]
async fn counts_down(n: u64) -> WorkflowResult<String> {
    sleep(Duration::from_millis(1)).await?;
    match n {
        0 => Ok(run_id()),
        n => Err(continue_as_new(json!({ "n": n - 1 }))),
    }
}

//! Workflows of which so many are at work at once.

use onemark_sdk::child;
use onemark_sdk::prelude::*;
use serde_json::json;

use crate::marks;

#[step(backoff = "1ms")]
async fn act_limited(marks: &str, name: &str) -> Result<(), StepFailed> {
    marks::leave(marks, name).await
}

/// Acts, sleeps when it is to, and acts again.
#[workflow(concurrency = 1)]
async fn one_at_a_time(marks: String, name: String, sleep_ms: Option<u64>) -> WorkflowResult<()> {
    act_limited(&marks, &name).await?;
    if let Some(length) = sleep_ms {
        sleep(Duration::from_millis(length)).await?;
        act_limited(&marks, &format!("{name}-again")).await?;
    }
    Ok(())
}

/// Acts `n` times, and rests after each.
#[workflow(concurrency = 3)]
async fn three_at_a_time(marks: String, n: u64) -> WorkflowResult<()> {
    for _ in 0..n {
        act_limited(&marks, "three").await?;
        sleep(Duration::from_millis(1)).await?;
    }
    Ok(())
}

#[workflow(concurrency = 2, concurrency_key = "customer:{customer.id}")]
async fn two_per_customer(marks: String, customer: Customer) -> WorkflowResult<()> {
    Ok(act_limited(&marks, &customer.id).await?)
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Customer {
    id: String,
    /// The input has more than the key.
    note: Option<String>,
}

/// Does not know what it is counted by before it sees its input.
#[workflow(concurrency = 1, concurrency_key = "{of.customer}")]
async fn one_of(of: serde_json::Value) -> WorkflowResult<serde_json::Value> {
    Ok(of)
}

/// Waits for a payload, acts, and undoes it when asked to cancel.
#[workflow(concurrency = 1)]
async fn one_that_waits(marks: String, name: String) -> WorkflowResult<()> {
    let mut hook = Hook::<u64>::open(name.as_str())?;
    match hook.next().await {
        Ok(_) => Ok(act_limited(&marks, &name).await?),
        Err(error) => {
            act_limited(&marks, &format!("undo-{name}")).await?;
            Err(error.into())
        }
    }
}

/// A child of a child of a child, all of one workflow.
#[workflow(concurrency = 1)]
async fn one_generation(left: u64) -> WorkflowResult<u64> {
    match left {
        0 => Ok(0),
        _ => Ok(1 + child::<u64>("one_generation", json!({ "left": left - 1 })).await?),
    }
}

#[workflow(concurrency = 1)]
async fn one_that_traps(trap: bool) -> WorkflowResult<()> {
    assert!(!trap, "as asked");
    Ok(())
}

/// Acts once it was told to where it is to wait for that, and undoes it when asked to cancel.
#[workflow(concurrency = 1, timeout = "1h", timeout_grace = "1m")]
async fn one_in_an_hour(marks: String, name: String, waits: bool) -> WorkflowResult<()> {
    if waits {
        let mut hook = Hook::<u64>::open(name.as_str())?;
        if let Err(error) = hook.next().await {
            act_limited(&marks, &format!("undo-{name}")).await?;
            return Err(error.into());
        }
    }
    Ok(act_limited(&marks, &name).await?)
}

/// Acts once a run, so many runs after each other.
#[workflow(concurrency = 1)]
async fn one_pass_at_a_time(marks: String, name: String, left: u64) -> WorkflowResult<()> {
    act_limited(&marks, &format!("{name}{left}")).await?;
    match left {
        0 => Ok(()),
        _ => Err(onemark_sdk::continue_as_new(
            json!({ "marks": marks, "name": name, "left": left - 1 }),
        )),
    }
}

//! Workflows that events start.

use onemark_sdk::emit;
use onemark_sdk::prelude::*;
use serde_json::{Value, json};

/// Takes the whole payload.
#[workflow(on = "order.paid")]
async fn keeps_books(event: Value) -> WorkflowResult<Value> {
    Ok(event)
}

/// Takes a field of the payload, and claims a token that is made from it.
#[workflow(on = "order.paid", token = "ship:{id}")]
async fn ships(id: String, note: Option<String>) -> WorkflowResult<String> {
    let mut hook = start_hook::<Value>()?;
    if note.as_deref() == Some("wait") {
        hook.next().await?;
    }
    Ok(id)
}

#[workflow(on = "order.paid")]
async fn thanks(id: String, note: Option<String>) -> WorkflowResult<String> {
    Ok(format!("thank you for {id}{}", note.unwrap_or_default()))
}

/// An event with a name that is hard to write into a path.
#[workflow(on = "größe/a b%2F")]
async fn odd_event(n: u64) -> WorkflowResult<u64> {
    Ok(n)
}

/// Emits each of these in order; what it came to, or the failure's kind.
#[workflow]
async fn emits(events: Vec<(String, Value)>) -> WorkflowResult<Vec<Value>> {
    let mut outcomes = Vec::new();
    for (name, payload) in events {
        outcomes.push(match emit(&name, &payload).await {
            Ok(runs) => {
                let run =
                    |run: onemark_sdk::EmittedRun| json!([run.workflow, run.started, run.owner, run.refused]);
                runs.into_iter().map(run).collect()
            }
            Err(failure) => json!(failure.kind.as_str()),
        });
    }
    Ok(outcomes)
}

#[step]
async fn emits_inside() -> Result<String, StepFailed> {
    let failure = emit("order.paid", &json!({}))
        .await
        .expect_err("a step emits nothing");
    Ok(failure.to_string())
}

#[workflow]
async fn emits_in_a_step() -> WorkflowResult<String> {
    Ok(emits_inside().await?)
}

/// Told of orders by a shop: the first starts it, others go to it while it waits.
#[workflow(
    webhook(path = "shop/orders", signature = "hmac", secret_env = "SHOP_SECRET"),
    token = "shop:{/event/order/id}",
    retain = "1h"
)]
async fn shop_order(event: Value) -> WorkflowResult<Value> {
    let more = start_hook::<Value>()?.next().await?;
    Ok(json!([event, more]))
}

#[workflow(webhook(path = "github", signature = "github", secret_env = "SHOP_SECRET"))]
async fn pushed(event: Value) -> WorkflowResult<Value> {
    Ok(event)
}

#[workflow(webhook(path = "stripe", signature = "stripe", secret_env = "SHOP_SECRET"))]
async fn charged(event: Value) -> WorkflowResult<Value> {
    Ok(event)
}

#[workflow(webhook(path = "unset", signature = "stripe", secret_env = "NO_SECRET"))]
async fn never_called() -> WorkflowResult<()> {
    Ok(())
}

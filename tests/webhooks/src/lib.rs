//! Workflows that other services call. A component of its own: one path is that of one deployment, and tests deploy the
//! other programs under several names.

use onemark_sdk::prelude::*;
use serde_json::{Value, json};

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

//! Workflows that events start.

use onemark_sdk::prelude::*;
use serde_json::Value;

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

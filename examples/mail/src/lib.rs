//! A mail that arrives once, though it is sent twice: its message id is made from the data.

use onemark_sdk::prelude::*;
use serde_json::json;

#[workflow]
pub async fn welcome(customer: String, address: String, mail: String) -> WorkflowResult<()> {
    Ok(send_welcome(&customer, &address, &mail).await?)
}

/// A mail server takes a message id once. This one says what the mail is, so that it is the same in every attempt, and
/// in a rerun.
#[step(backoff = "200ms")]
async fn send_welcome(customer: &str, address: &str, mail: &str) -> Result<(), StepFailed> {
    let message = json!({
        "message_id": format!("<welcome-{customer}@shop.example>"),
        "to": address,
        "subject": "Welcome",
    });
    outside::post(&format!("{mail}/messages"), message).await
}

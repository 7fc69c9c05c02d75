//! A refund that is paid once, though its step is cut off: the key is made from the data.

use onemark_sdk::prelude::*;
use serde_json::json;

#[workflow]
pub async fn refund(order: String, cents: u64, bank: String) -> WorkflowResult<String> {
    Ok(pay_back(&order, cents, &bank).await?)
}

/// The bank pays for one key once, and gives the same answer again. This key names the refund, not the run: it is
/// the same in every attempt, and in every other run that refunds this order.
#[step(key = "refund:{order}", timeout = "5s", backoff = "200ms")]
async fn pay_back(order: &str, cents: u64, bank: &str) -> Result<String, StepFailed> {
    let body = json!({ "order": order, "cents": cents });
    outside::post(&format!("{bank}/refunds"), body).await // sends the key with it
}

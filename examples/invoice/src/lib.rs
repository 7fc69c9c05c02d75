//! An invoice that is written once, though its number is random: the number is drawn in a step of its own.

use onemark_sdk::prelude::*;
use serde_json::json;

/// Started twice for one order it is one run: the token is claimed with the start.
#[workflow(token = "invoice:{order}", retain = "24h")]
pub async fn invoice(order: String, cents: u64, books: String) -> WorkflowResult<String> {
    // Saved before it is used. Drawn inside of `write_invoice` it would be another in each attempt.
    let number = step("draw number", || async { Ok(format!("R-{:016x}", random())) }).await?;
    write_invoice(&number, &order, cents, &books).await?;
    Ok(number)
}

#[step(backoff = "200ms")]
async fn write_invoice(number: &str, order: &str, cents: u64, books: &str) -> Result<(), StepFailed> {
    let body = json!({ "order": order, "cents": cents });
    outside::put(&format!("{books}/invoices/{number}"), body).await
}

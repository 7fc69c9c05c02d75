//! An order: note it, follow its updates, charge it once, write its invoice once.

mod outside;

use onemark_sdk::prelude::*;
use outside::{OutsideError, post};
use serde_json::json;
use uuid::Uuid;

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Order {
    pub id: String,
    pub note: String,
    /// In cents.
    pub amount: u64,
    /// Base URL of the service that keeps notes, takes charges and stores invoices.
    pub outside: String,
}

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct OrderUpdate {
    pub note: String,
    /// No more updates follow.
    pub last: bool,
}

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Charge {
    pub charge_id: String,
}

/// Follows one order from its first note to its invoice, whose id it returns.
///
/// However often it is started for one order, one run does the work: `token` is claimed with the start.
#[workflow(token = "order:{order.id}", retain = "24h", hook = OrderUpdate)]
pub async fn process_order(order: Order) -> WorkflowResult<String> {
    record_note(&order, &order.note).await?;

    let mut updates = start_hook::<OrderUpdate>()?;
    while let Some(update) = updates.next().await? {
        record_note(&order, &update.note).await?;
        if update.last {
            updates.close().await?; // refuses more; what has come is still read
        }
    }

    #[cfg(feature = "changed")]
    record_note(&order, "all updates are in").await?;

    let charge = charge(&order).await?;
    let invoice_id = draw_invoice_id().await?;
    write_invoice(&order, &invoice_id, &charge).await?;
    Ok(invoice_id)
}

#[step(backoff = "200ms")]
async fn record_note(order: &Order, text: &str) -> Result<(), OutsideError> {
    post(
        &order.outside,
        "notes",
        &json!({ "order": order.id, "text": text }),
    )
    .await
}

/// The bank does a charge with one key once. This key comes from the data, so that it is the same in every
/// attempt, and in every other run for this order.
#[step(
    key = "charge:{order.id}",
    timeout = "20s",
    backoff(initial = "200ms", factor = 2, max = "10s")
)]
async fn charge(order: &Order) -> Result<Charge, OutsideError> {
    post(
        &order.outside,
        "charges",
        &json!({ "order": order.id, "amount": order.amount }),
    )
    .await
}

/// A step of its own: once saved, the id is the same in every attempt of the steps that use it.
#[step]
async fn draw_invoice_id() -> Result<String, StepFailed> {
    Ok(format!("invoice-{}", Uuid::new_v4()))
}

#[step(backoff = "200ms")]
async fn write_invoice(order: &Order, id: &str, charge: &Charge) -> Result<(), OutsideError> {
    let invoice = json!({ "id": id, "order": order.id, "charge_id": charge.charge_id });
    post(&order.outside, "invoices", &invoice).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use onemark_sdk::block_on;

    #[test]
    fn c16_a_step_is_a_plain_function_in_a_unit_test() {
        let [a, b] = [(); 2].map(|()| block_on(draw_invoice_id()).unwrap());
        assert!(a.starts_with("invoice-"));
        assert_ne!(a, b);
    }
}

//! A report for each week, and never two for one: also when the host was down on Monday morning.

use onemark_sdk::prelude::*;
use serde_json::{Value, json};

/// Where figures come from and reports go to.
const OFFICE: &str = "http://127.0.0.1:19000";

/// `slot` is the moment that the schedule meant, in UTC, whenever the run begins.
#[workflow(cron = "0 6 * * 1", time_zone = "Europe/Berlin", catch_up = "all")]
pub async fn weekly_report(slot: String) -> WorkflowResult<Value> {
    let figures = figures(&slot).await?;
    let total: i64 = figures.iter().sum();
    let report = json!({ "until": slot, "orders": figures.len(), "cents": total });
    file(&slot, &report).await?;
    Ok(report)
}

/// The orders of the week that ends with the slot: the same in every attempt, since the slot says which week.
#[step(retries = 10)]
async fn figures(slot: &str) -> Result<Vec<i64>, StepFailed> {
    let orders = outside::get(&format!("{OFFICE}/orders/{slot}")).await?;
    Ok(orders.unwrap_or_default())
}

/// Writes over what an attempt before may have filed.
#[step(retries = 10)]
async fn file(slot: &str, report: &Value) -> Result<(), StepFailed> {
    outside::put(&format!("{OFFICE}/reports/{slot}"), report).await
}

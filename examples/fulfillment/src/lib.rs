//! An order is sent out once, however often the shop says that it was paid, and not at all when it is called off in time.

use onemark_sdk::Within;
use onemark_sdk::prelude::*;
use serde_json::{Value, json};

/// What the shop tells of an order, in the body of its webhook.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct ShopEvent {
    pub order: Order,
    pub what: What,
    /// Which warehouse has the goods. Steps reach only those that the host was granted.
    pub warehouse: String,
}

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Order {
    pub id: String,
}

#[derive(Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum What {
    Paid,
    CalledOff,
}

const TIME_TO_CALL_OFF: Duration = Duration::from_secs(60 * 60);

/// The first event of an order starts it; every other one of that order is a payload of its hook.
#[workflow(
    webhook(path = "shop", signature = "hmac", secret_env = "SHOP_SECRET"),
    token = "order:{/event/order/id}",
    retain = "30d",
    hook = ShopEvent
)]
pub async fn fulfillment(event: ShopEvent) -> WorkflowResult<String> {
    let ShopEvent {
        order,
        what,
        warehouse,
    } = event;
    if what == What::CalledOff {
        return Ok("called off before it was paid".into());
    }
    pick(&order.id, &warehouse).await?;

    let until = now() + TIME_TO_CALL_OFF;
    let mut more = start_hook::<ShopEvent>()?;
    loop {
        let left = until.duration_since(now()).unwrap_or_default();
        match more.next_within(left).await? {
            Within::Payload(ShopEvent {
                what: What::CalledOff,
                ..
            }) => {
                put_back(&order.id, &warehouse).await?;
                return Ok("called off".into());
            }
            // Said twice, under another delivery id.
            Within::Payload(ShopEvent { what: What::Paid, .. }) => {}
            Within::Closed | Within::Late => break,
        }
    }
    // From here on the shop is told that it is too late.
    more.close().await?;
    let parcel = send_out(&order.id, &warehouse).await?;
    Ok(format!("sent as {parcel}"))
}

#[step]
async fn pick(order: &str, warehouse: &str) -> Result<(), StepFailed> {
    outside::put(&format!("{warehouse}/picked/{order}"), json!(true)).await
}

#[step]
async fn put_back(order: &str, warehouse: &str) -> Result<(), StepFailed> {
    outside::delete(&format!("{warehouse}/picked/{order}")).await
}

#[step(key = "parcel:{order}")]
async fn send_out(order: &str, warehouse: &str) -> Result<String, StepFailed> {
    let parcel: Value = outside::post(&format!("{warehouse}/parcels"), json!({ "order": order })).await?;
    parcel
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| StepFailed::fatal("the parcel has no number"))
}

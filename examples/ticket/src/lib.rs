//! A ticket that is opened once, where the service takes no key: look before you create.

use onemark_sdk::prelude::*;
use serde_json::json;

#[derive(Serialize, Deserialize)]
pub struct Ticket {
    number: u64,
}

/// The token lets one run at a time look and create: a webhook that is called twice at once is refused the second
/// time. One that comes after the run's end starts another run, which finds the ticket.
#[workflow(token = "ticket:{alert}")]
pub async fn open_ticket(alert: String, text: String, desk: String) -> WorkflowResult<u64> {
    Ok(find_or_create(&alert, &text, &desk).await?.number)
}

/// One step, not two: a saved "there is none" would be believed by every attempt of the second.
#[step(backoff = "200ms")]
async fn find_or_create(alert: &str, text: &str, desk: &str) -> Result<Ticket, StepFailed> {
    if let Some(ticket) = outside::get(&format!("{desk}/tickets/by-alert/{alert}")).await? {
        return Ok(ticket);
    }
    outside::post(
        &format!("{desk}/tickets"),
        json!({ "alert": alert, "text": text }),
    )
    .await
}

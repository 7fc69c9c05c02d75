//! A trip that is booked as a whole or not at all: what was booked is cancelled in reverse when a later booking fails.

use onemark_sdk::Saga;
use onemark_sdk::prelude::*;
use serde_json::json;

#[workflow(token = "trip:{trip}", retain = "24h")]
pub async fn book_trip(trip: String, agency: String) -> WorkflowResult<()> {
    Saga::run(async |saga: &mut Saga| {
        for part in ["hotel", "flight", "car"] {
            // Said before it is booked: of a booking that was cut off nobody knows whether it is there.
            saga.undo(cancel(part, &trip, &agency));
            book(part, &trip, &agency).await?;
        }
        Ok(())
    })
    .await
}

/// A booking is known by trip and part, so that booking it again books nothing more.
#[step(backoff = "200ms")]
async fn book(part: &str, trip: &str, agency: &str) -> Result<(), StepFailed> {
    outside::put(&format!("{agency}/{part}/{trip}"), json!({})).await
}

/// That there is nothing to cancel is no error. A booking that cannot be cancelled blocks the run until a person has
/// looked at it; without `on_exhausted` the other bookings would be cancelled and the run would fail.
#[step(backoff = "200ms", on_exhausted = "block")]
async fn cancel(part: &str, trip: &str, agency: &str) -> Result<(), StepFailed> {
    outside::delete(&format!("{agency}/{part}/{trip}")).await
}

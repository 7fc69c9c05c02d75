//! A newsletter to many readers: ten at a time, and those who cannot be reached are listed at the end.

use onemark_sdk::for_each_bounded;
use onemark_sdk::prelude::*;
use serde_json::json;

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Sent {
    pub sent: usize,
    /// Who did not get it, and why, in the order of the readers.
    pub failed: Vec<(String, String)>,
}

#[workflow(token = "newsletter:{issue}", retain = "24h")]
pub async fn newsletter(issue: String, readers: Vec<String>, mail: String) -> WorkflowResult<Sent> {
    let tell = |progress| log::info!("{progress}"); // `30 of 200 done, 2 failed`
    let sent = for_each_bounded(10, &readers, |reader| send(&issue, reader, &mail), tell).await;
    let failed = sent
        .failures()
        .map(|(n, why)| (readers[n].clone(), why.to_string()));
    Ok(Sent {
        failed: failed.collect(),
        sent: sent.successes().count(),
    })
}

/// One reader gets one issue once, whatever is repeated.
#[step(key = "newsletter:{issue}:{reader}", retries = 1, backoff = "200ms")]
async fn send(issue: &str, reader: &str, mail: &str) -> Result<(), StepFailed> {
    outside::post(
        &format!("{mail}/messages"),
        json!({ "issue": issue, "to": reader }),
    )
    .await
}

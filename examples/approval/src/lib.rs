//! An expense that waits three days for an answer: one that comes early waits for it, one that comes late is refused.

use onemark_sdk::prelude::*;
use serde_json::json;

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    pub approved: bool,
    pub by: String,
}

const THREE_DAYS: Duration = Duration::from_secs(3 * 24 * 60 * 60);

#[workflow(token = "expense:{expense}", retain = "30d", hook = Answer)]
pub async fn approval(expense: String, office: String) -> WorkflowResult<String> {
    ask(&expense, &office).await?;

    let mut answers = start_hook::<Answer>()?;
    let in_time = timeout(THREE_DAYS, answers.next()).await;
    // From here on an answer is refused, so nobody is told that it counts when it does not. One that was taken in
    // before this line counts, also when the time was over.
    answers.close().await?;
    let answer = match in_time {
        Err(late) if late.kind == FailureKind::Timeout => answers.next().await?,
        in_time => in_time??,
    };

    let outcome = match answer {
        Some(Answer { approved: true, by }) => format!("approved by {by}"),
        Some(Answer { by, .. }) => format!("declined by {by}"),
        None => "declined: nobody answered".into(),
    };
    tell(&expense, &outcome, &office).await?;
    Ok(outcome)
}

#[step]
async fn ask(expense: &str, office: &str) -> Result<(), StepFailed> {
    outside::put(&format!("{office}/questions/{expense}"), json!("approve?")).await
}

#[step]
async fn tell(expense: &str, outcome: &str, office: &str) -> Result<(), StepFailed> {
    outside::put(&format!("{office}/outcomes/{expense}"), json!(outcome)).await
}

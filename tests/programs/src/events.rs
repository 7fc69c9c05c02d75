//! Workflows that events start.

use onemark_sdk::prelude::*;
use onemark_sdk::{EmittedRun, emit};
use serde_json::{Value, json};

/// Takes the whole payload.
#[workflow(on = "order.paid")]
async fn keeps_books(event: Value) -> WorkflowResult<Value> {
    Ok(event)
}

/// Takes a field of the payload, and claims a token that is made from it.
#[workflow(on = "order.paid", token = "ship:{id}")]
async fn ships(id: String, note: Option<String>) -> WorkflowResult<String> {
    let mut hook = start_hook::<Value>()?;
    if note.as_deref() == Some("wait") {
        hook.next().await?;
    }
    Ok(id)
}

#[workflow(on = "order.paid")]
async fn thanks(id: String, note: Option<String>) -> WorkflowResult<String> {
    Ok(format!("thank you for {id}{}", note.unwrap_or_default()))
}

/// An event with a name that is hard to write into a path.
#[workflow(on = "größe/a b%2F")]
async fn odd_event(n: u64) -> WorkflowResult<u64> {
    Ok(n)
}

/// Emits each of these in order; what it came to, or the failure's kind.
#[workflow]
async fn emits(events: Vec<(String, Value)>) -> WorkflowResult<Vec<Value>> {
    let mut outcomes = Vec::new();
    for (name, payload) in events {
        outcomes.push(match emit(&name, &payload).await {
            Ok(runs) => {
                let run = |run: EmittedRun| json!([run.workflow, run.started, run.owner, run.refused]);
                runs.into_iter().map(run).collect()
            }
            Err(failure) => json!(failure.kind.as_str()),
        });
    }
    Ok(outcomes)
}

/// Emits two events in every attempt, and another one in the last.
#[step(retries = 2, backoff = "1ms")]
async fn emits_inside(id: &str) -> Result<Vec<Value>, StepFailed> {
    let last = step_info().attempt == 3;
    let mut outcomes = Vec::new();
    for n in 0..if last { 3 } else { 2 } {
        let emitted = emit("order.paid", &json!({ "id": format!("{id}-{n}") })).await;
        outcomes.push(outcome(emitted.map_err(StepFailed::retry)?));
    }
    if !last {
        return Err(StepFailed::retry("another attempt"));
    }
    Ok(outcomes)
}

fn outcome(emitted: Vec<EmittedRun>) -> Value {
    let runs = emitted
        .into_iter()
        .map(|part| json!([part.workflow, part.started]));
    runs.collect()
}

#[workflow]
async fn emits_in_a_step(id: String) -> WorkflowResult<Vec<Value>> {
    Ok(emits_inside(&id).await?)
}

#[workflow]
async fn emits_in_a_closure(id: String) -> WorkflowResult<Value> {
    let tell = async || {
        let emitted = emit("order.paid", &json!({ "id": id })).await;
        emitted.map(outcome).map_err(StepFailed::fatal)
    };
    Ok(step("tell", tell).await?)
}

/// Emits something else in its second attempt, and then a name and a payload that are no good.
#[step(retries = 1, backoff = "1ms")]
async fn changes_its_mind() -> Result<Vec<String>, StepFailed> {
    let attempt = step_info().attempt;
    let emitted = emit("order.paid", &json!({ "id": format!("m{attempt}") })).await;
    if attempt == 1 {
        return Err(StepFailed::retry("another attempt"));
    }
    let failures = [
        emitted.err(),
        emit("", &json!({})).await.err(),
        emit("a\nb", &json!({})).await.err(),
    ];
    Ok(failures
        .into_iter()
        .flatten()
        .map(|failure| failure.to_string())
        .collect())
}

#[workflow]
async fn emits_one_thing_and_then_another() -> WorkflowResult<Vec<String>> {
    Ok(changes_its_mind().await?)
}

//! What a run knows of itself, from step to step.

use onemark_sdk::prelude::*;
use serde_json::{Value, json};

#[step(retries = 0)]
async fn key_of(n: u64) -> Result<String, StepFailed> {
    let info = step_info();
    Ok(format!("{n} {} {}", info.idempotency_key, info.attempt))
}

/// Before each step: the id of the run, numbers that it draws in two ways. Then the step's key, and what a closure says
/// of what it captured.
#[workflow(token = "identities:{name}")]
async fn identities(name: String, rounds: u64) -> WorkflowResult<Vec<Value>> {
    let _ = name;
    let mut seen = Vec::new();
    for n in 0..rounds {
        let mut bytes = [0; 8];
        wstd::rand::get_random_bytes(&mut bytes);
        let drawn = format!("{} {} {}", run_id(), random(), u64::from_le_bytes(bytes));
        let key = key_of(n).await?;
        let captured = step("echo", || async { Ok(drawn.clone()) }).await?;
        seen.push(json!([drawn, captured, key]));
    }
    Ok(seen)
}

/// The token of its hook, and what came.
#[workflow]
async fn asks() -> WorkflowResult<(String, Vec<Value>)> {
    let mut hook = onemark_sdk::HookOptions::new().open_unique::<Value>()?;
    let asked = step("ask", || async { Ok(hook.token().to_owned()) }).await?;
    let mut seen = Vec::new();
    while let Some(payload) = hook.next().await? {
        if payload == json!("end") {
            break;
        }
        seen.push(payload);
    }
    Ok((asked, seen))
}

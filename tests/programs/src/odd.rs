//! Workflows that are given what nobody expects.

use onemark_sdk::prelude::*;
use onemark_sdk::{cancelled, child, continue_as_new, emit};
use serde_json::{Value, json};

use std::task::Poll;

/// Uses a text wherever the interface takes a name; what each place made of it.
#[workflow]
async fn uses_name(name: String) -> WorkflowResult<Vec<(String, String)>> {
    let mut told = Vec::new();
    let hook = match Hook::<Value>::open(name.as_str()) {
        Ok(mut hook) => {
            let token = hook.token().to_owned();
            hook.dispose().await?;
            Ok(token)
        }
        Err(error) => Err(error.to_string()),
    };
    told.push(("token", hook));
    let written = stream(&name).write(&name);
    told.push((
        "stream",
        written.map(|()| name.clone()).map_err(|it| it.to_string()),
    ));
    let tagged = set_tag("odd", &name).and_then(|()| set_tag(&name, "odd"));
    told.push(("tag", tagged.map(|()| name.clone()).map_err(|it| it.to_string())));
    let emitted = emit(&name, &json!({ "id": "odd" })).await;
    told.push((
        "event",
        emitted.map(|_| name.clone()).map_err(|it| it.to_string()),
    ));
    let call = child::<Value>("sequence", json!({ "n": 0 }));
    let ran = match call.id(name.as_str()).hook(name.as_str()).start().await {
        Ok(child) => {
            child.outcome().await?;
            Ok(child.run_id().to_owned())
        }
        Err(failure) => Err(failure.to_string()),
    };
    told.push(("child", ran));
    let unknown = child::<Value>(name.as_str(), json!({})).await;
    told.push((
        "workflow",
        unknown.map(|_| name.clone()).map_err(|it| it.to_string()),
    ));
    let keyed = step("keyed", async || Ok(step_info().idempotency_key)).key(name.as_str());
    told.push(("key", keyed.await.map_err(|it| it.to_string())));
    let named = step(name.clone(), async || Ok(name.clone())).await;
    told.push(("closure", named.map_err(|it| it.to_string())));
    let word = |(place, made): (&str, Result<String, String>)| {
        (
            place.to_owned(),
            made.unwrap_or_else(|refused| format!("refused: {refused}")),
        )
    };
    Ok(told.into_iter().map(word).collect())
}

/// Goes on as itself for ever.
#[workflow]
async fn circles(lap: u64) -> WorkflowResult<()> {
    sleep(Duration::from_millis(1)).await?;
    Err(continue_as_new(json!({ "lap": lap + 1 })))
}

/// Sleeps the longest that there is, or until a payload comes.
#[workflow(token = "{token}", hook = Value)]
async fn sleeps_for_ages(token: String, ms: u64) -> WorkflowResult<Value> {
    log::info!("sleeps for {token}");
    let mut hook = start_hook::<Value>()?;
    Ok(json!(
        match timeout(Duration::from_millis(ms), hook.next()).await {
            Ok(payload) => payload?,
            Err(_) => Some(json!("slept")),
        }
    ))
}

/// Waits for the request to cancel, more often than it can.
#[workflow]
async fn holds_too_much() -> WorkflowResult<()> {
    let mut waits = Vec::new();
    loop {
        let mut cancelled = Box::pin(cancelled());
        std::future::poll_fn(|context| {
            let _ = cancelled.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
        waits.push(cancelled);
    }
}

//! Workflows that start others.

use onemark_sdk::prelude::*;
use onemark_sdk::{ParentEnd, child};
use serde_json::{Value, json};

/// Starts one child and passes on what it comes to, in words.
#[workflow]
async fn parent(workflow: String, input: Value) -> WorkflowResult<Value> {
    let child = child::<Value>(workflow, input).start().await?;
    match child.outcome().await {
        Ok(value) => Ok(json!({ "run_id": child.run_id(), "value": value })),
        Err(failure) => Ok(json!({
            "run_id": child.run_id(),
            "kind": failure.kind.as_str(),
            "message": failure.message,
        })),
    }
}

/// Fails as its child does.
#[workflow]
async fn strict_parent(workflow: String, input: Value) -> WorkflowResult<Value> {
    Ok(child(workflow, input).await?)
}

/// What comes of starting it, in words: the failure's kind and error value.
#[workflow]
async fn tries_child(
    workflow: String,
    input: Value,
    id: Option<String>,
    token: String,
) -> WorkflowResult<Value> {
    let mut call = child::<Value>(workflow, input).hook(token);
    if let Some(id) = id {
        call = call.id(id);
    }
    match call.await {
        Ok(value) => Ok(value),
        Err(failure) => Ok(json!([failure.kind.as_str(), failure.value])),
    }
}

/// N children at once.
#[workflow]
async fn many_children(n: u64) -> WorkflowResult<u64> {
    let all = (0..n).map(|i| child::<u64>("sequence", json!({ "n": i % 3 })));
    Ok(try_join_all(all).await?.into_iter().sum())
}

/// Ends while its child sleeps for an hour.
#[workflow]
async fn ends_first(then: String) -> WorkflowResult<String> {
    let then = match then.as_str() {
        "leave" => ParentEnd::Leave,
        "wait" => ParentEnd::Wait,
        _ => ParentEnd::Cancel,
    };
    let child = child::<()>("sleeps", json!({ "lengths_ms": [3_600_000] }));
    let child = child.on_parent_end(then).start().await?;
    Ok(child.run_id().to_owned())
}

/// A child of a child of a child, the last of which waits for a payload.
#[workflow]
async fn generations(left: u64) -> WorkflowResult<u64> {
    if left == 0 {
        let mut hook = Hook::<u64>::open("the youngest")?;
        return Ok(hook.next().await?.unwrap_or(0));
    }
    Ok(1 + child::<u64>("generations", json!({ "left": left - 1 })).await?)
}

/// Starts a child and returns at once.
#[workflow]
async fn starts_and_leaves() -> WorkflowResult<()> {
    let mut child = child::<u64>("sequence", json!({ "n": 2 })).on_parent_end(ParentEnd::Leave);
    // Polled once, never again.
    assert!(futures_poll_once(&mut child).await.is_none());
    Ok(())
}

async fn futures_poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut once = std::pin::Pin::new(future);
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match once.as_mut().poll(context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

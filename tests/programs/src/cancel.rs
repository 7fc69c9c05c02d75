//! Workflows that are asked to cancel, and what they undo.

use onemark_sdk::prelude::*;
use onemark_sdk::{CancelReason, Saga, cancelled};

use crate::marks;

#[step(backoff = "1ms")]
async fn act(marks: &str, name: &str) -> Result<(), StepFailed> {
    marks::leave(marks, name).await
}

#[step(retries = 1_000, backoff = "1h")]
async fn never(marks: &str) -> Result<(), StepFailed> {
    marks::leave(marks, "never").await?;
    Err(StepFailed::retry("not yet"))
}

/// Waits for one thing, then tidies up with a step, and passes on what it got.
#[workflow]
async fn waits_then_tidies(marks: String, how: String) -> WorkflowResult<String> {
    let ended = match how.as_str() {
        "sleep" => sleep(Duration::from_secs(3600))
            .await
            .map_err(WorkflowError::from),
        "hook" => match Hook::<String>::open(format!("hook of {}", run_id()))?
            .next()
            .await
        {
            Ok(payload) => return Ok(format!("{payload:?}")),
            Err(error) => Err(error.into()),
        },
        "held" => act(&marks, "held").await.map_err(WorkflowError::from),
        "retry" => never(&marks).await.map_err(WorkflowError::from),
        "closure" => {
            let leave = || async { marks::leave(&marks, "held").await };
            step("held", leave).await.map_err(WorkflowError::from)
        }
        _ => {
            let both = async {
                let (a, b) = join!(sleep(Duration::from_secs(3600)), act(&marks, "held"));
                a?;
                Ok::<_, WorkflowError>(b?)
            };
            timeout(Duration::from_secs(7200), both).await?
        }
    };
    act(&marks, "tidy").await?;
    sleep(Duration::from_millis(1)).await?;
    match ended {
        Ok(()) => Ok("done".into()),
        Err(error) if how == "swallow" => Ok(error.to_string()),
        Err(error) => Err(error),
    }
}

/// Works, and when it hears that it is to end, tidies up and works no more.
#[workflow]
async fn works(marks: String) -> WorkflowResult<()> {
    // A request that comes now is found below.
    let _ = act(&marks, "begin").await;
    cancelled().await;
    act(&marks, "tidy").await?;
    Ok(())
}

/// Ends well when it hears that it is to end.
#[workflow(timeout = "1h", timeout_grace = "1m")]
async fn hears(then: String) -> WorkflowResult<String> {
    let reason = match cancelled().await {
        CancelReason::Timeout => "timeout",
        _ => "requested",
    };
    if then == "stays" {
        // Whoever is asked once need not listen again.
        loop {
            sleep(Duration::from_secs(10)).await?;
        }
    }
    // Asked again, it is the same.
    cancelled().await;
    Ok(reason.into())
}

/// Does three things; when one fails, or the run is to cancel, the others are undone.
#[workflow]
async fn trip(marks: String, last: String) -> WorkflowResult<()> {
    Saga::run(async |saga: &mut Saga| {
        act(&marks, "hotel").await?;
        saga.undo(act(&marks, "undo-hotel"));
        act(&marks, "flight").await?;
        saga.undo(act(&marks, "undo-flight"));
        match last.as_str() {
            "fails" => return Err(WorkflowError::new("no car")),
            "waits" => sleep(Duration::from_secs(3600)).await?,
            _ => act(&marks, &last).await?,
        }
        saga.undo(act(&marks, "undo-last"));
        Ok(())
    })
    .await
}

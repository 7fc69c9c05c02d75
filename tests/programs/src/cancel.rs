//! Workflows that are asked to cancel, and what they undo.

use onemark_sdk::prelude::*;
use onemark_sdk::{
    CancelReason, ParentEnd, Saga, cancelled, child, continue_as_new, for_each_bounded, shielded,
};

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
    // Where what it waited for was done after all, this is where it is told.
    if act(&marks, "tidy").await.is_err() {
        act(&marks, "tidy").await?;
    }
    sleep(Duration::from_millis(1)).await?;
    match ended {
        Ok(()) => Ok("done".into()),
        Err(error) if how == "swallow" => Ok(error.to_string()),
        Err(error) => Err(error),
    }
}

#[step(retries = 0)]
async fn refuses(marks: &str) -> Result<(), StepFailed> {
    marks::leave(marks, "held").await?;
    Err(StepFailed::fatal("not today"))
}

#[workflow]
async fn waits_for_ever() -> WorkflowResult<()> {
    Ok(sleep(Duration::from_secs(3600)).await?)
}

/// Goes on as `then` says after a step that was at work, and tidies up when that fails.
#[workflow]
async fn works_on(marks: String, then: String) -> WorkflowResult<()> {
    const HOUR: Duration = Duration::from_secs(3600);
    let next = async || act(&marks, "next").await;
    let begin = async || act(&marks, "held").await;
    let work = async || -> WorkflowResult<()> {
        match then.as_str() {
            "step" => {
                begin().await?;
                next().await?;
            }
            "closure" => {
                begin().await?;
                let leave = || async { marks::leave(&marks, "next").await };
                step("next", leave).await?;
            }
            "sleep" => {
                begin().await?;
                sleep(HOUR).await?;
            }
            "hook" => {
                begin().await?;
                let mut hook = Hook::<u32>::open(format!("hook of {}", run_id()))?;
                hook.next().await?;
            }
            "next_within" => {
                begin().await?;
                let mut hook = Hook::<u32>::open(format!("hook of {}", run_id()))?;
                hook.next_within(HOUR).await?;
            }
            "child" => {
                begin().await?;
                child::<()>("waits_for_ever", serde_json::json!({})).await?;
            }
            "limited" => {
                timeout(HOUR, begin()).await??;
                sleep(HOUR).await?;
            }
            "limits" => {
                begin().await?;
                timeout(HOUR, next()).await??;
            }
            "many" => {
                begin().await?;
                join_all([next(), next(), next()])
                    .await
                    .into_iter()
                    .collect::<Result<Vec<_>, _>>()?;
            }
            "each" => {
                let work = async |n: u32| {
                    let name = if n < 2 { "held" } else { "next" };
                    act(&marks, name).await?;
                    next().await
                };
                let results = for_each_bounded(2, 0..50, work, |_| ()).await;
                for (_, failure) in results.failures() {
                    assert_eq!(failure.kind, FailureKind::Cancelled, "{failure}");
                }
                assert_eq!(results.failures().count(), 50);
                // Every item was told, and the workflow itself was not.
                sleep(HOUR).await?;
            }
            "undone" => {
                let undone = Saga::run(async |saga: &mut Saga| {
                    begin().await?;
                    saga.undo(act(&marks, "undo"));
                    Err::<(), _>(WorkflowError::new("nothing left"))
                });
                let undone = undone.await;
                assert!(undone.is_err_and(|error| error.to_string().contains("nothing left")));
                // The saga was told.
                sleep(Duration::from_millis(1)).await?;
                return Err(WorkflowError::new("nothing left"));
            }
            "failed" => {
                let refused = refuses(&marks).await;
                assert!(refused.is_err_and(|failure| failure.kind == FailureKind::Error));
                // It may be undoing something.
                act(&marks, "undo").await?;
                sleep(HOUR).await?;
            }
            "continues" => {
                begin().await?;
                return Err(continue_as_new(
                    serde_json::json!({ "marks": marks, "then": "step" }),
                ));
            }
            _ => return Err(WorkflowError::new("unknown")),
        }
        Ok(())
    };
    let worked = work().await;
    if worked
        .as_ref()
        .is_err_and(|error| error.kind() == Some(FailureKind::Cancelled))
    {
        act(&marks, "tidy").await?;
        sleep(Duration::from_millis(1)).await?;
    }
    worked
}

#[step(backoff = "1ms")]
async fn undo_at_last(marks: &str, name: &str) -> Result<(), StepFailed> {
    marks::leave(marks, name).await?;
    if step_info().attempt < 3 {
        return Err(StepFailed::retry("not yet"));
    }
    Ok(())
}

/// Undoes three things, as `how` says, and then waits for what nobody does.
#[workflow]
async fn undoes(marks: String, how: String) -> WorkflowResult<()> {
    const HOUR: Duration = Duration::from_secs(3600);
    let undone = |n: u32| {
        let marks = &marks;
        async move { undo_at_last(marks, &format!("undo-{n}")).await }
    };
    match how.as_str() {
        // Told by what it waited for.
        "many" => {
            let slept = sleep(HOUR).await;
            assert!(slept.is_err());
            for_each_bounded(2, 0..3, undone, |_| ()).await.all()?;
            slept?;
        }
        // Told because it asked, each by itself.
        "asked" => {
            let item = async |n: u32| {
                cancelled().await;
                undone(n).await
            };
            for_each_bounded(3, 0..3, item, |_| ()).await.all()?;
        }
        // Not told yet, and undoing already.
        "saga" => {
            let saga = Saga::run(async |saga: &mut Saga| {
                for n in 0..3 {
                    let marks = marks.clone();
                    saga.undo(async move { undo_at_last(&marks, &format!("undo-{n}")).await });
                }
                Err::<(), _>(WorkflowError::new("by itself"))
            });
            assert!(saga.await.is_err_and(|error| error.to_string() == "by itself"));
        }
        "shielded" => {
            shielded(async {
                for n in 0..3 {
                    undone(n).await?;
                    sleep(Duration::from_millis(1)).await?;
                }
                Ok::<_, WorkflowError>(())
            })
            .await?;
        }
        _ => return Err(WorkflowError::new("unknown")),
    }
    // Of what is told once, it was told; of a request that came behind a shield it is now.
    sleep(Duration::from_millis(match how.as_str() {
        "saga" | "shielded" => 3_600_000,
        _ => 1,
    }))
    .await?;
    Ok(())
}

/// As `undoes`, in an hour.
#[workflow(timeout = "1h", timeout_grace = "1m")]
async fn undoes_in_time(marks: String) -> WorkflowResult<()> {
    assert!(sleep(Duration::from_secs(7200)).await.is_err());
    Ok(undo_at_last(&marks, "undo").await?)
}

/// Goes on as another run, but a child of it ends first.
#[workflow]
async fn continues_after_its_child(n: u32) -> WorkflowResult<()> {
    if n > 0 {
        return Ok(sleep(Duration::from_secs(3600)).await?);
    }
    child::<()>("waits_for_ever", serde_json::json!({}))
        .id(format!("child of {}", run_id()))
        .on_parent_end(ParentEnd::Wait)
        .start()
        .await?;
    Err(continue_as_new(serde_json::json!({ "n": 1 })))
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

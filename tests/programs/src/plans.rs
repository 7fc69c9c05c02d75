//! Workflows that are made of data, so that tests can ask any of them to cancel at any time.

use std::cell::RefCell;
use std::rc::Rc;

use onemark_sdk::prelude::*;
use onemark_sdk::{HookOptions, Saga, child, for_each_bounded, shielded};
use serde::{Deserialize, Serialize};

#[derive(Clone, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Plan {
    /// A step that is done.
    Act,
    /// A closure that is done.
    Closure,
    /// A step that fails at last.
    Fail,
    /// A sleep that is soon over.
    Nap,
    /// A sleep that ends only when the run is to cancel; so with a hook, a child and a step that is tried again.
    Sleep,
    Hook,
    Child,
    Retry,
    Sequence(Vec<Plan>),
    /// All go on until each has ended.
    Join(Vec<Plan>),
    /// So many at a time.
    Each(Vec<Plan>),
    /// What was begun is undone when one fails.
    Saga(Vec<Plan>),
    Within(Box<Plan>),
    /// After a failure something is given back.
    Mend(Box<Plan>),
}

#[step]
async fn plan_acts() -> Result<(), StepFailed> {
    Ok(())
}

#[step(retries = 0)]
async fn plan_fails() -> Result<(), StepFailed> {
    Err(StepFailed::fatal("not today"))
}

#[step(retries = 1_000, backoff = "1h")]
async fn plan_retries() -> Result<(), StepFailed> {
    Err(StepFailed::retry("not yet"))
}

/// Needs more than one attempt.
#[step(retries = 3, backoff = "1ms")]
async fn plan_undo(part: u32) -> Result<u32, StepFailed> {
    if step_info().attempt < 3 {
        return Err(StepFailed::retry("not yet"));
    }
    Ok(part)
}

async fn waits_and_undoes(part: u32) -> WorkflowResult<()> {
    plan_undo(part).await?;
    sleep(Duration::from_millis(1)).await?;
    step("undo", async || Ok::<_, StepFailed>(())).await?;
    Ok(())
}

impl Plan {
    async fn carry_out(&self) -> WorkflowResult<()> {
        const HOUR: Duration = Duration::from_secs(3600);
        match self {
            Self::Act => plan_acts().await?,
            Self::Closure => step("closure", async || Ok::<_, StepFailed>(())).await?,
            Self::Fail => plan_fails().await?,
            Self::Nap => sleep(Duration::from_millis(1)).await?,
            Self::Sleep => sleep(HOUR).await?,
            Self::Hook => drop(HookOptions::new().open_unique::<u32>()?.next().await?),
            Self::Child => child::<()>("waits_for_ever", serde_json::json!({})).await?,
            Self::Retry => plan_retries().await?,
            Self::Sequence(parts) => {
                for part in parts {
                    Box::pin(part.carry_out()).await?;
                }
            }
            Self::Join(parts) => {
                let all = join_all(parts.iter().map(|part| Box::pin(part.carry_out()))).await;
                all.into_iter().collect::<WorkflowResult<()>>()?;
            }
            Self::Each(parts) => {
                let all = for_each_bounded(2, parts, |part| Box::pin(part.carry_out()), |_| ()).await;
                all.all()?;
            }
            Self::Saga(parts) => Self::undone(parts).await?,
            Self::Within(part) => timeout(HOUR, Box::pin(part.carry_out())).await??,
            Self::Mend(part) => {
                let done = Box::pin(part.carry_out()).await;
                if done.is_err() {
                    let mended = shielded(for_each_bounded(2, 0..3, waits_and_undoes, |_| ())).await;
                    mended.all().expect("nothing keeps it from being mended");
                }
                done?;
            }
        }
        Ok(())
    }

    async fn undone(parts: &[Self]) -> WorkflowResult<()> {
        let (begun, undone) = (RefCell::new(Vec::new()), Rc::new(RefCell::new(Vec::new())));
        let ended = Saga::run(async |saga: &mut Saga| {
            for (part, n) in parts.iter().zip(0..) {
                begun.borrow_mut().push(n);
                let undone = undone.clone();
                saga.undo(async move {
                    waits_and_undoes(n).await?;
                    undone.borrow_mut().push(n);
                    Ok::<_, WorkflowError>(())
                });
                Box::pin(part.carry_out()).await?;
            }
            Ok(())
        });
        let ended = ended.await;
        if ended.is_err() {
            undone.borrow_mut().reverse();
            assert_eq!(begun, *undone, "all that was begun is undone");
        }
        ended
    }
}

#[workflow]
async fn carries_out(plan: serde_json::Value) -> WorkflowResult<()> {
    let plan: Plan = serde_json::from_value(plan)?;
    plan.carry_out().await
}

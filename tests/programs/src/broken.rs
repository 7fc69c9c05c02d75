//! Workflow code that traps, until it is mended.

use onemark_sdk::prelude::*;

use crate::changing::variant;
use crate::misbehaviour::misbehave;

#[step]
async fn before() -> Result<String, StepFailed> {
    Ok("saved".into())
}

#[workflow]
async fn broken(how: String) -> WorkflowResult<String> {
    let saved = before().await?;
    if variant() == "original" {
        misbehave(&how);
    }
    Ok(format!("{saved}, mended"))
}

/// Returns an error of its own.
#[workflow]
async fn fails(message: String) -> WorkflowResult<()> {
    Err(WorkflowError::new(message))
}

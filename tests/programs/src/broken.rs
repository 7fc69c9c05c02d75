//! Workflow code that traps, until it is mended.

use onemark_sdk::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// Returns an error of this many bytes.
#[workflow]
async fn fails_at_length(bytes: usize) -> WorkflowResult<()> {
    Err(WorkflowError::new("x".repeat(bytes)))
}

/// Says so much of itself, in one variant, that no host takes it.
#[derive(Serialize, Deserialize)]
pub struct Wordy;

impl JsonSchema for Wordy {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Wordy".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let bytes = if variant() == "wordy" { 1 << 20 } else { 0 };
        schemars::json_schema!({ "description": "x".repeat(bytes) })
    }
}

#[workflow]
async fn describes(_wordy: Wordy) -> WorkflowResult<()> {
    Ok(())
}

/// Returns an error of its own.
#[workflow]
async fn fails(message: String) -> WorkflowResult<()> {
    Err(WorkflowError::new(message))
}

//! A workflow that tests change without building it again: they replace the variant's name in the component.

use onemark_sdk::prelude::*;

/// Twelve bytes after the marker, padded with spaces.
static VARIANT: [u8; 28] = *b"onemark-variant:original    ";

/// The name that stands in this component.
pub fn variant() -> &'static str {
    let bytes = std::hint::black_box(&VARIANT);
    std::str::from_utf8(&bytes[16..]).unwrap_or("damaged").trim_end()
}

#[step]
async fn one(n: u64) -> Result<u64, StepFailed> {
    Ok(n)
}

#[step]
async fn two(n: u64) -> Result<u64, StepFailed> {
    Ok(n)
}

/// Calls `one`, sleeps, calls `two`, then waits for a payload; or does something else.
#[workflow]
async fn changing() -> WorkflowResult<u64> {
    let mut sum = 0;
    match variant() {
        "reordered" => {
            sum += two(2).await?;
            sleep(Duration::from_millis(1)).await?;
            sum += one(1).await?;
        }
        other => {
            sum += if other == "renamed" {
                two(1).await?
            } else {
                one(1).await?
            };
            if other == "added" {
                sum += one(7).await?;
            }
            if other != "removed" {
                sleep(Duration::from_millis(if other == "timer" { 2 } else { 1 })).await?;
            }
            if other != "dropped" {
                sum += two(if other == "input" { 3 } else { 2 }).await?;
            }
        }
    }
    if variant() == "waits" {
        sleep(Duration::from_secs(3600)).await?;
    }
    if let Ok(mut hook) = start_hook::<u64>() {
        sum += hook.next().await?.unwrap_or(0);
    }
    Ok(if variant() == "output" { sum + 1 } else { sum })
}

//! Guests that write more than anybody reads.

use onemark_sdk::prelude::*;

/// Writes `n` lines of this length to the log, or to a standard stream.
fn write(to: &str, n: u64, bytes: usize) {
    let line = "ä".repeat(bytes / 2);
    for i in 0..n {
        match to {
            "stdout" => println!("{i} {line}"),
            "stderr" => eprintln!("{i} {line}"),
            _ => log::info!("{i} {line}"),
        }
    }
}

#[step]
async fn writes(to: String, n: u64, bytes: usize) -> Result<(), StepFailed> {
    write(&to, n, bytes);
    Ok(())
}

/// Writes from the workflow, then from a step, then from the workflow again.
#[workflow]
async fn writes_lines(to: String, n: u64, bytes: usize) -> WorkflowResult<()> {
    write(&to, n, bytes);
    writes(to.clone(), n, bytes).await?;
    write(&to, n, bytes);
    Ok(())
}

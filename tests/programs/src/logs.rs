//! Guests that write more than anybody reads.

use std::io::Write as _;

use onemark_sdk::prelude::*;

use crate::marks;

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

#[step(retries = 1, backoff = "1s")]
async fn says_its_attempt() -> Result<(), StepFailed> {
    match step_info().attempt {
        1 => {
            log::warn!("attempt 1");
            Err(StepFailed::retry("on purpose"))
        }
        attempt => {
            log::info!("attempt {attempt}");
            Ok(())
        }
    }
}

/// Lines of workflow code, two attempts of a step and a closure.
#[workflow]
async fn keeps_a_log() -> WorkflowResult<()> {
    log::info!("begin");
    println!("to stdout");
    says_its_attempt().await?;
    log::info!("after the step");
    let said = "in the closure";
    step("closure", || async {
        log::debug!("{said}");
        Ok(())
    })
    .await?;
    log::info!("before the sleep");
    set_tag("state", "asleep")?;
    sleep(Duration::from_secs(60)).await?;
    log::error!("end");
    Ok(())
}

#[workflow]
async fn says_why_and_panics() -> WorkflowResult<()> {
    log::info!("this goes wrong");
    panic!("on purpose");
}

#[step]
async fn hostile() -> Result<(), StepFailed> {
    log::info!("\u{1b}[2J\u{7}two\nlines\r\0'; DROP TABLE runs; --");
    std::io::stdout().write_all(b"\xff\xfe\0\x1b]0;title\n")?;
    eprint!("no end");
    Ok(())
}

#[workflow]
async fn writes_hostile_lines() -> WorkflowResult<()> {
    Ok(hostile().await?)
}

/// Says each payload when it comes.
#[workflow(token = "{token}", hook = String)]
async fn says_what_comes(token: String) -> WorkflowResult<()> {
    log::debug!("waits at {token}");
    let mut hook = start_hook::<String>()?;
    while let Some(word) = hook.next().await? {
        log::info!("{word}");
        if word == "end" {
            break;
        }
    }
    Ok(())
}

#[step]
async fn logs_around(marks: &str) -> Result<(), StepFailed> {
    let attempt = step_info().attempt;
    log::info!("before, {attempt}");
    marks::leave(marks, "logged").await?;
    log::info!("after, {attempt}");
    Ok(())
}

#[workflow]
async fn logs_and_marks(marks: String) -> WorkflowResult<()> {
    Ok(logs_around(&marks).await?)
}

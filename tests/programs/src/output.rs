//! Streams and tags.

use onemark_sdk::prelude::*;

use crate::marks;

#[step]
async fn tell(name: &str, words: Vec<String>) -> Result<u32, StepFailed> {
    for word in &words {
        stream(name).write(word)?;
    }
    Ok(step_info().attempt)
}

/// Chunks by workflow, steps and a closure, in one stream.
#[workflow]
async fn tells(words: Vec<String>) -> WorkflowResult<u32> {
    stream("told").write("begin")?;
    let attempt = tell("told", words.clone()).await?;
    step("closure", || async { Ok(stream("told").write(&words.len())?) }).await?;
    stream("told").write(&Some(attempt))?;
    sleep(Duration::from_secs(1)).await?;
    stream("told").write("end")?;
    Ok(attempt)
}

/// Its first attempt writes two chunks and fails, its second three.
#[step(retries = 3, backoff = "1ms")]
async fn stumble() -> Result<(), StepFailed> {
    let attempt = step_info().attempt;
    for n in 0..=attempt {
        stream("stumbled").write(&format!("{attempt}.{n}"))?;
    }
    match attempt {
        1 => Err(StepFailed::retry("on purpose")),
        _ => Ok(()),
    }
}

#[workflow]
async fn stumbles() -> WorkflowResult<()> {
    Ok(stumble().await?)
}

/// Writes when it is told to, so that others can follow.
#[workflow(token = "{token}", hook = String)]
async fn echoes(token: String) -> WorkflowResult<u64> {
    log::info!("echoes what comes for {token}");
    let mut hook = start_hook::<String>()?;
    let mut count = 0;
    while let Some(word) = hook.next().await? {
        stream("echo").write(&word)?;
        count += 1;
        if word == "end" {
            break;
        }
    }
    Ok(count)
}

#[step]
async fn refusals_in_a_step() -> Result<Vec<String>, StepFailed> {
    Ok(refusals())
}

fn refusals() -> Vec<String> {
    let long = "x".repeat(64 << 10);
    let refused = [
        stream("").write(&1),
        stream("a\nb").write(&1),
        stream("x").write(&long),
        stream("x").write(&f64::NAN),
    ];
    let kinds = refused
        .into_iter()
        .map(|refused| refused.map_or_else(|failure| failure.kind.to_string(), |()| "written".to_owned()));
    kinds.collect()
}

/// What streams refuse, in workflow code and in a step; and where workflow code has written enough.
#[workflow]
async fn writes_too_much() -> WorkflowResult<(Vec<String>, Vec<String>, u32, String)> {
    let here = refusals();
    let in_step = refusals_in_a_step().await?;
    let mut written = 0;
    let chunk = "x".repeat(60_000);
    let full = loop {
        match stream("flood").write(&chunk) {
            Ok(()) => written += 1,
            Err(failure) => break failure.kind.to_string(),
        }
    };
    Ok((here, in_step, written, full))
}

/// Sets tags around a wait, some twice, and some that cannot be.
#[workflow]
async fn tags_itself() -> WorkflowResult<Vec<String>> {
    set_tag("state", "new")?;
    set_tag("state", "new")?;
    sleep(Duration::from_secs(1)).await?;
    set_tag("state", "paid")?;
    set_tag("customer", "8")?;
    let refused = [set_tag("a=b", "c"), set_tag("", "c"), set_tag("a", "")];
    let mut kinds: Vec<String> = refused
        .into_iter()
        .map(|refused| refused.map_or_else(|failure| failure.kind.to_string(), |()| "set".to_owned()))
        .collect();
    for n in 0.. {
        if let Err(failure) = set_tag(&format!("n{n}"), "1") {
            kinds.push(format!("{} at {n}", failure.kind));
            break;
        }
    }
    sleep(Duration::from_secs(1)).await?;
    Ok(kinds)
}

#[step]
async fn tell_and_mark(marks: &str) -> Result<(), StepFailed> {
    stream("marked").write(&format!("before, {}", step_info().attempt))?;
    marks::leave(marks, "told").await?;
    stream("marked").write(&format!("after, {}", step_info().attempt))?;
    Ok(())
}

/// Its step waits for the marks between two chunks; so it can be cut off there.
#[workflow]
async fn tells_and_marks(marks: String) -> WorkflowResult<()> {
    stream("marked").write("begin")?;
    set_tag("state", "telling")?;
    tell_and_mark(&marks).await?;
    stream("marked").write("end")?;
    Ok(())
}

//! Options that do not exist, are given twice, or have a wrong value.
#![allow(unused)]

use onemark_macros::{step, workflow};

#[step(retry = 3)]
async fn unknown() -> Result<(), String> {
    Ok(())
}

#[step(hook = u8)]
async fn of_workflows() -> Result<(), String> {
    Ok(())
}

#[workflow(retries = 3)]
async fn of_steps() -> Result<(), String> {
    Ok(())
}

#[step(on_exhausted = "retry", on_unknown, key_ttl = 24, at_most_once = true)]
async fn wrong_reactions() -> Result<(), String> {
    Ok(())
}

#[step(at_most_once, retries = 2, backoff = "1s")]
async fn once_and_again() -> Result<(), String> {
    Ok(())
}

#[step(retries = 1, retries = 2)]
async fn twice() -> Result<(), String> {
    Ok(())
}

#[step(retries = "3", timeout = 20, key = 1, backoff, name = "")]
async fn wrong_values() -> Result<(), String> {
    Ok(())
}

#[step(retries = -1)]
async fn negative() -> Result<(), String> {
    Ok(())
}

#[step(timeout = "20 seconds", backoff = "0s")]
async fn wrong_durations() -> Result<(), String> {
    Ok(())
}

#[step(backoff(initial = "1s", factor = 0.5, maximum = "1m"))]
async fn wrong_backoff() -> Result<(), String> {
    Ok(())
}

#[workflow(retain = "24h", hook = u8)]
async fn without_token() -> Result<(), String> {
    Ok(())
}

#[workflow(token = "a", hook = "u8")]
async fn hook_is_a_type() -> Result<(), String> {
    Ok(())
}

#[workflow(concurrency = 0)]
async fn never_at_work() -> Result<(), String> {
    Ok(())
}

#[workflow(concurrency = "5", concurrency_key = 1)]
async fn wrong_limits() -> Result<(), String> {
    Ok(())
}

#[workflow(concurrency_key = "all")]
async fn without_limit() -> Result<(), String> {
    Ok(())
}

#[step(concurrency = 5)]
async fn no_limits_of_steps() -> Result<(), String> {
    Ok(())
}

fn main() {}

//! Marks left outside, where tests count them.

use onemark_sdk::prelude::*;

/// Leaves a mark of this name at the counting service.
pub async fn leave(marks: &str, name: &str) -> Result<(), StepFailed> {
    leave_with_key(marks, name, &step_info().idempotency_key).await
}

/// As [`leave`], with a key of the caller's.
pub async fn leave_with_key(marks: &str, name: &str, key: &str) -> Result<(), StepFailed> {
    let url = format!("{marks}/{name}?key={key}&attempt={}", step_info().attempt);
    let request = wstd::http::Request::post(url).body(wstd::http::Body::empty())?;
    let response = wstd::http::Client::new().send(request).await?;
    if response.status().is_success() {
        Ok(())
    } else {
        Err(StepFailed::retry(format!("marks answered {}", response.status())))
    }
}

//! JSON over HTTP, as the steps of the small examples send it.
//!
//! Every request carries the key of its step and the number of the attempt. Connection errors, 429 and 5xx are tried
//! again; every other status that is not 2xx is final.

use onemark_sdk::StepFailed;
use onemark_sdk::step_info;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wstd::http::{Body, Client, Method, Request};

/// Asks for what is there; `None` where nothing is.
pub async fn get<T: DeserializeOwned>(url: &str) -> Result<Option<T>, StepFailed> {
    let (status, answer) = send(Method::GET, url, String::new()).await?;
    match status {
        404 => Ok(None),
        _ => read(url, status, &answer).map(Some),
    }
}

/// Makes something new.
pub async fn post<T: DeserializeOwned>(url: &str, body: impl Serialize) -> Result<T, StepFailed> {
    let (status, answer) = send(Method::POST, url, serde_json::to_string(&body)?).await?;
    read(url, status, &answer)
}

/// Writes what the URL names, over what was there.
pub async fn put<T: DeserializeOwned>(url: &str, body: impl Serialize) -> Result<T, StepFailed> {
    let (status, answer) = send(Method::PUT, url, serde_json::to_string(&body)?).await?;
    read(url, status, &answer)
}

/// Removes what the URL names. That it is not there is no error.
pub async fn delete(url: &str) -> Result<(), StepFailed> {
    match send(Method::DELETE, url, String::new()).await? {
        (404, _) => Ok(()),
        (status, answer) => read(url, status, &answer),
    }
}

async fn send(method: Method, url: &str, body: String) -> Result<(u16, String), StepFailed> {
    let info = step_info();
    let request = Request::builder()
        .method(method)
        .uri(url)
        .header("content-type", "application/json")
        // Without it the body is sent in chunks, which simple servers do not read.
        .header("content-length", body.len())
        .header("idempotency-key", info.idempotency_key)
        .header("onemark-attempt", info.attempt)
        .body(Body::from(body))?;
    let response = Client::new().send(request).await?;
    let status = response.status().as_u16();
    let mut body = response.into_body();
    Ok((status, body.str_contents().await?.to_owned()))
}

fn read<T: DeserializeOwned>(url: &str, status: u16, answer: &str) -> Result<T, StepFailed> {
    match status {
        200..=299 => serde_json::from_str(answer).map_err(StepFailed::fatal),
        429 | 500.. => Err(StepFailed::retry(format!("{url} answered {status}: {answer}"))),
        _ => Err(StepFailed::fatal(format!("{url} answered {status}: {answer}"))),
    }
}

//! Requests taken apart, with our own errors for what does not fit.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{FromRef, FromRequest, FromRequestParts, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::{ApiError, Result};
use crate::ids::IdempotencyKey;
use crate::sandbox::Form;

/// A JSON body of a known shape.
///
/// The content type is asked for strictly. That also keeps web pages of other origins from sending requests
/// with side effects, since a browser asks first before it sends JSON.
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T>
where
    BodyTimeout: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let JsonText(text) = JsonText::from_request(request, state).await?;
        // A list of values without names would fit too.
        if !text.trim_start().starts_with('{') {
            return Err(ApiError::invalid_request("the body must be a JSON object"));
        }
        let mut json = serde_json::Deserializer::from_str(&text);
        let value = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| ApiError::invalid_request(error.to_string()))?;
        json.end()
            .map_err(|error| ApiError::invalid_request(error.to_string()))?;
        Ok(Self(value))
    }
}

/// A JSON body as the text that it is: reading and writing it anew could change its numbers.
pub struct JsonText(pub String);

impl<S: Send + Sync> FromRequest<S> for JsonText
where
    BodyTimeout: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        if !has_type(request.headers(), &["application/json"]) {
            return Err(ApiError::expects_json());
        }
        let bytes = whole_body(request, state).await?;
        match String::from_utf8(bytes.into()) {
            Ok(text) => Ok(Self(text)),
            Err(_) => Err(ApiError::invalid_request("the body is not UTF-8")),
        }
    }
}

/// The bytes of a component; none at all when there is no body.
pub struct ComponentBytes(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for ComponentBytes
where
    BodyTimeout: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        let named = request.headers().contains_key(CONTENT_TYPE);
        if named
            && !has_type(
                request.headers(),
                &["application/wasm", "application/octet-stream"],
            )
        {
            return Err(ApiError::expects_component());
        }
        Ok(Self(whole_body(request, state).await?))
    }
}

/// What somebody submits.
pub enum Submitted {
    /// As it came.
    Json(String),
    Form(Form),
}

impl<S: Send + Sync> FromRequest<S> for Submitted
where
    BodyTimeout: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        if !has_type(request.headers(), &["application/x-www-form-urlencoded"]) {
            let JsonText(text) = JsonText::from_request(request, state).await?;
            return Ok(Self::Json(text));
        }
        let bytes = whole_body(request, state).await?;
        // No form looks like that, and read as one it would be a field of that name.
        let json = serde_json::from_slice::<Value>(&bytes);
        if json.is_ok_and(|json| json.is_object() || json.is_array()) {
            return Err(ApiError::json_sent_as_form());
        }
        let mut form = Form::default();
        for (name, value) in form_urlencoded::parse(&bytes) {
            form.add(name.into_owned(), value.into_owned());
        }
        Ok(Self::Form(form))
    }
}

/// A body as it came.
pub struct RawBody(pub Bytes);

impl<S: Send + Sync> FromRequest<S> for RawBody
where
    BodyTimeout: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self> {
        Ok(Self(whole_body(request, state).await?))
    }
}

/// How long a body may take to arrive.
#[derive(Clone, Copy)]
pub struct BodyTimeout(pub Duration);

async fn whole_body<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes>
where
    BodyTimeout: FromRef<S>,
{
    let BodyTimeout(timeout) = BodyTimeout::from_ref(state);
    match tokio::time::timeout(timeout, Bytes::from_request(request, state)).await {
        Ok(bytes) => Ok(bytes?),
        Err(_) => Err(ApiError::body_timeout(timeout)),
    }
}

fn has_type(headers: &HeaderMap, types: &[&str]) -> bool {
    let text = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default().trim();
    types.iter().any(|wanted| essence.eq_ignore_ascii_case(wanted))
}

/// The variable part of a path, percent-decoded.
pub struct Path<T = String>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self> {
        let axum::extract::Path(parts) = axum::extract::Path::from_request_parts(parts, state).await?;
        Ok(Self(parts))
    }
}

/// The query of a known shape.
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let axum::extract::Query(value) = axum::extract::Query::try_from_uri(&parts.uri)?;
        Ok(Self(value))
    }
}

/// The `Idempotency-Key` header, if there is one.
pub struct Key(pub Option<IdempotencyKey>);

impl<S: Send + Sync> FromRequestParts<S> for Key {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let key = only_header(&parts.headers, "Idempotency-Key")?;
        Ok(Self(key.map(IdempotencyKey::new).transpose()?))
    }
}

/// The text of a header that may be there once.
pub fn only_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        let text = format!("there are several `{name}` headers; send one");
        return Err(ApiError::invalid_request(text));
    }
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| ApiError::invalid_request(format!("the `{name}` is not UTF-8")))?;
    Ok(Some(text))
}

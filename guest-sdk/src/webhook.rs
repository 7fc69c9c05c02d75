//! Hooks with a URL: for callers that are given nothing but that.

use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::{Failure, FailureKind};
use crate::hook::{Hook, HookError, HookOptions};
use crate::stream::stream;

/// Where a run answers, and where the host looks for that.
const RESPONSES: &str = "webhook.responses";

/// A hook with a URL of its own, which the host makes and nobody can guess: whoever is given it can send a payload of
/// type `T`, as JSON or as a form (an object of texts), and nothing else.
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # use onemark_sdk::Webhook;
/// # use std::collections::HashMap;
/// # #[step] async fn mail(url: &str) -> Result<(), StepFailed> { Ok(()) }
/// # async fn example() -> WorkflowResult<bool> {
/// let mut answer = Webhook::<HashMap<String, String>>::open()?;
/// mail(answer.url()).await?;
/// let request = answer.next().await?;
/// # Ok(request.is_some_and(|request| request.payload.contains_key("approve"))) }
/// ```
pub struct Webhook<T> {
    hook: Hook<T>,
    url: String,
}

/// What somebody sent to the URL of a [`Webhook`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookRequest<T> {
    pub payload: T,
    seq: u64,
}

impl<T: DeserializeOwned + JsonSchema> Webhook<T> {
    /// Opens one that answers at once, with 202, when a payload is kept.
    ///
    /// # Errors
    ///
    /// As [`Hook::open`].
    pub fn open() -> Result<Self, HookError> {
        Self::of(HookOptions::new().webhook("automatic").open_unique()?)
    }

    /// Opens one whose requests wait for [`WebhookRequest::respond`]: for some 20 seconds, then they get 202.
    ///
    /// # Errors
    ///
    /// As [`Hook::open`].
    pub fn open_responding() -> Result<Self, HookError> {
        Self::of(HookOptions::new().webhook("manual").open_unique()?)
    }

    /// The webhook with this token, of the run that this one goes on for.
    ///
    /// # Errors
    ///
    /// As [`Hook::open`]; [`HookError::Invalid`] when the token is not that of a webhook.
    pub fn bind(token: impl Into<String>) -> Result<Self, HookError> {
        Self::of(Hook::open(token)?)
    }

    fn of(hook: Hook<T>) -> Result<Self, HookError> {
        match hook.url() {
            Some(url) => Ok(Self { hook, url }),
            None => Err(HookError::Invalid(format!(
                "`{}` is the token of no webhook",
                hook.token()
            ))),
        }
    }
}

impl<T> Webhook<T> {
    /// Where payloads are sent. Secret: whoever knows it may send.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The hook itself: to close it, and to learn its token.
    pub fn hook(&mut self) -> &mut Hook<T> {
        &mut self.hook
    }
}

impl<T: DeserializeOwned> Webhook<T> {
    /// Takes the next request; `None` when the hook is closed and nothing is left in it.
    ///
    /// # Errors
    ///
    /// As [`Hook::next`].
    pub async fn next(&mut self) -> Result<Option<WebhookRequest<T>>, HookError> {
        let Some(payload) = self.hook.next().await? else {
            return Ok(None);
        };
        let seq = self.hook.last_taken().unwrap_or_default();
        Ok(Some(WebhookRequest { payload, seq }))
    }
}

impl<T> WebhookRequest<T> {
    /// Answers whoever sent this and still waits, and whoever sends it again with the same `Idempotency-Key`: once,
    /// with the run's next commit. `status` is 200 to 599. Of a webhook that answers by itself it has no effect.
    ///
    /// # Errors
    ///
    /// [`FailureKind::Invalid`] for another status, `too_large` for a body over 64 KiB as JSON, and `stream_full`: the
    /// answers of a run are chunks of its output stream `webhook.responses`, see [`stream()`].
    pub fn respond(&self, status: u16, body: &impl Serialize) -> Result<(), Failure> {
        if !(200..=599).contains(&status) {
            let message = format!("{status} is no status of an answer; it is 200 to 599");
            return Err(Failure::local(RESPONSES, FailureKind::Invalid, message));
        }
        #[derive(Serialize)]
        struct Response<'a, B> {
            seq: u64,
            status: u16,
            body: &'a B,
        }
        let seq = self.seq;
        stream(RESPONSES).write(&Response { seq, status, body })
    }
}

//! Hooks: where a run receives payloads.

use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::FusedFuture;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::bindings::onemark::workflow::{context, hooks};
use crate::cancel;
use crate::failure::{Failure, FailureKind};
use crate::json::to_json;
use crate::manifest::schema_of;
use crate::operation::{Operation, WhenDropped};
use crate::sandbox;
use crate::time::{milliseconds, timeout};

/// Where a run receives payloads of type `T`, under a token that one run at a time owns.
///
/// Payloads wait in the hook's queue until [`next`](Self::next) takes them, in the order in which they
/// were delivered, also those that came before the workflow opened the hook. All handles of one token
/// share one queue. `Hook<serde_json::Value>` takes any payload.
pub struct Hook<T> {
    handle: hooks::Hook,
    token: String,
    /// As it was when the hook was opened.
    conflict: Option<HookConflict>,
    payload: PhantomData<fn() -> T>,
}

/// The hook that start claimed: the workflow's own token, or the first that the start request named.
///
/// # Errors
///
/// [`HookError::NotClaimed`] when this run was started without a token.
pub fn start_hook<T: DeserializeOwned + JsonSchema>() -> Result<Hook<T>, HookError> {
    let token = start_hooks()?.into_iter().next().ok_or(HookError::NotClaimed)?;
    Hook::open(token)
}

/// The tokens that start claimed: the workflow's own first, then in the order of the request.
///
/// # Errors
///
/// [`FailureKind::NotInStep`] outside of workflow code.
pub fn start_hooks() -> Result<Vec<String>, HookError> {
    require_workflow()?;
    Ok(context::start_tokens())
}

fn require_workflow() -> Result<(), Failure> {
    sandbox::require_workflow("hook", "take payloads in the workflow and hand them to the step")
}

/// How to claim a token that this run does not own yet.
///
/// ```no_run
/// # use onemark_sdk::prelude::*;
/// # use onemark_sdk::HookOptions;
/// # fn example() -> WorkflowResult<()> {
/// let approvals: Hook<bool> = HookOptions::new().retain(Duration::from_secs(3600)).open("approval:42")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct HookOptions {
    metadata: Option<serde_json::Value>,
    retain_ms: Option<u64>,
    webhook: Option<&'static str>,
}

impl HookOptions {
    /// No metadata, no retention.
    pub fn new() -> Self {
        Self::default()
    }

    /// What people see beside the hook, at most 16 KiB as JSON.
    pub fn metadata(mut self, metadata: serde_json::Value) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Keeps the token claimed for at least this long, also when the run ends sooner. In whole
    /// milliseconds; at most what the host allows, 366 days by default.
    pub fn retain(mut self, length: Duration) -> Self {
        self.retain_ms = Some(milliseconds(length));
        self
    }

    /// Gives the hook a URL. Who answers requests to it: `automatic`, the host, or `manual`, the run.
    pub(crate) fn webhook(mut self, response: &'static str) -> Self {
        self.webhook = Some(response);
        self
    }

    /// Claims `token`, or binds to the claim that this run has; then these options mean nothing.
    ///
    /// # Errors
    ///
    /// As [`Hook::open`].
    pub fn open<T: DeserializeOwned + JsonSchema>(
        self,
        token: impl Into<String>,
    ) -> Result<Hook<T>, HookError> {
        Hook::claim(Some(&token.into()), self)
    }

    /// Claims a token that the host makes and nobody can guess.
    ///
    /// # Errors
    ///
    /// As [`Hook::open`].
    pub fn open_unique<T: DeserializeOwned + JsonSchema>(self) -> Result<Hook<T>, HookError> {
        Hook::claim(None, self)
    }
}

impl<T: DeserializeOwned + JsonSchema> Hook<T> {
    /// Binds to this run's own claim of `token`, or claims it.
    ///
    /// A token that another run owns is no error yet, see [`conflict`](Self::conflict); awaiting a payload
    /// is one. Where a run that takes this one's place took the token, this is the hook that this run had: closed, with
    /// what is unread in it.
    ///
    /// # Errors
    ///
    /// [`HookError::Invalid`] for a token that is empty, longer than 255 bytes or holds a control character, and
    /// for options over their limits; nothing was claimed then. [`FailureKind::NotInStep`] outside of workflow
    /// code.
    pub fn open(token: impl Into<String>) -> Result<Self, HookError> {
        HookOptions::new().open(token)
    }

    fn claim(token: Option<&str>, options: HookOptions) -> Result<Self, HookError> {
        require_workflow()?;
        #[derive(Serialize)]
        struct Options {
            #[serde(skip_serializing_if = "Option::is_none")]
            webhook: Option<&'static str>,
            payload: serde_json::Value,
            #[serde(skip_serializing_if = "Option::is_none")]
            metadata: Option<serde_json::Value>,
            #[serde(skip_serializing_if = "Option::is_none")]
            retain_ms: Option<u64>,
        }
        let options = Options {
            payload: schema_of::<T>(),
            metadata: options.metadata,
            retain_ms: options.retain_ms,
            webhook: options.webhook,
        };
        let options = to_json(&options)
            .map_err(|error| Failure::local("hook", FailureKind::NotJson, error.to_string()))?;
        let handle = hooks::Hook::open(token, &options).map_err(|document| {
            let failure = Failure::untyped("hook", &document);
            match failure.kind {
                FailureKind::Invalid => HookError::Invalid(failure.message.clone()),
                _ => HookError::Failed(failure),
            }
        })?;
        let conflict = match handle.conflict() {
            None => None,
            Some(document) => Some(serde_json::from_str(&document).map_err(|error| {
                let message = format!("cannot read the conflict ({error}): {document}");
                Failure::local("hook", FailureKind::TypeMismatch, message)
            })?),
        };
        Ok(Self {
            token: handle.token(),
            handle,
            conflict,
            payload: PhantomData,
        })
    }
}

impl<T> Hook<T> {
    /// Under which token payloads are delivered.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Where requests are delivered, of a hook that was opened as a [`Webhook`](crate::Webhook).
    pub fn url(&self) -> Option<String> {
        self.handle.url()
    }

    /// Position in the journal of the payload that was taken last.
    pub(crate) fn last_taken(&self) -> Option<u64> {
        self.handle.last_taken()
    }

    /// The owner of the token, as it was at `open`, when that is another run.
    pub fn conflict(&self) -> Option<&HookConflict> {
        self.conflict.as_ref()
    }

    /// Refuses further deliveries. The token stays claimed, and what was delivered can still be taken.
    ///
    /// # Errors
    ///
    /// [`HookError::Conflict`] when another run owns the token.
    // Async, as all that reaches the journal is, although the host does not make it wait today.
    pub async fn close(&mut self) -> Result<(), HookError> {
        self.owned()?;
        self.handle.close();
        Ok(())
    }

    /// As [`close`](Self::close), and frees the token at once.
    ///
    /// # Errors
    ///
    /// As [`close`](Self::close).
    pub async fn dispose(&mut self) -> Result<(), HookError> {
        self.owned()?;
        self.handle.dispose();
        Ok(())
    }

    /// Takes the next payload as JSON text, whatever its type.
    pub fn next_raw(&mut self) -> NextRaw<'_, T> {
        NextRaw {
            hook: self,
            ready: None,
            done: false,
        }
    }

    fn owned(&self) -> Result<(), HookError> {
        match &self.conflict {
            None => Ok(()),
            Some(conflict) => Err(HookError::Conflict(conflict.clone())),
        }
    }
}

impl<T: DeserializeOwned> Hook<T> {
    /// Takes the next payload; `None` when the hook is closed and nothing is left in it.
    ///
    /// A payload stays in the queue until this future completes, so one that is dropped (a lost `select!`)
    /// loses nothing.
    ///
    /// # Errors
    ///
    /// [`HookError::Mismatch`] for a payload that is no `T`, which the error then holds;
    /// [`HookError::Conflict`] when another run owns the token; [`HookError::Failed`] with
    /// [`FailureKind::Cancelled`] when the run is asked to cancel.
    #[expect(
        clippy::should_implement_trait,
        reason = "the async counterpart of an iterator's `next`"
    )]
    pub fn next(&mut self) -> Next<'_, T> {
        Next(self.next_raw())
    }
}

impl<T: DeserializeOwned> Hook<T> {
    /// As [`next`](Self::next), and waits no longer than `length` from now. What comes later stays in the queue.
    ///
    /// ```
    /// # use onemark_sdk::prelude::*;
    /// # use onemark_sdk::Within;
    /// # async fn example(answers: &mut Hook<bool>) -> WorkflowResult<bool> {
    /// Ok(match answers.next_within(Duration::from_secs(3 * 86_400)).await? {
    ///     Within::Payload(answer) => answer,
    ///     Within::Closed | Within::Late => false,
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn next_within(&mut self, length: Duration) -> Result<Within<T>, HookError> {
        match timeout(length, self.next()).await {
            Ok(next) => Ok(next?.map_or(Within::Closed, Within::Payload)),
            Err(late) if late.kind == FailureKind::Timeout => Ok(Within::Late),
            Err(failure) => Err(failure.into()),
        }
    }
}

/// What came of waiting for a payload for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Within<T> {
    Payload(T),
    /// The hook is closed and nothing is left in it.
    Closed,
    /// Nothing came in time.
    Late,
}

/// The future of [`Hook::next_raw`].
#[must_use = "a payload is taken only when this is awaited"]
pub struct NextRaw<'a, T> {
    hook: &'a mut Hook<T>,
    ready: Option<Operation>,
    done: bool,
}

impl<T> NextRaw<'_, T> {
    fn poll_take(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<String>, HookError>> {
        self.hook.owned()?;
        loop {
            if let Some(ready) = &mut self.ready {
                let outcome = ready!(Pin::new(ready).poll(context));
                self.ready = None;
                outcome.map_err(|document| Failure::untyped("hook", &document))?;
            }
            if let Some(payload) = self.hook.handle.take() {
                return Poll::Ready(Ok(Some(payload)));
            }
            if self.hook.handle.closed() {
                return Poll::Ready(Ok(None));
            }
            // Nothing yet, or another handle of this hook took what was ready.
            cancel::check("hook")?;
            self.ready = Some(Operation::new(self.hook.handle.ready(), WhenDropped::Release));
        }
    }
}

impl<T> Future for NextRaw<'_, T> {
    type Output = Result<Option<String>, HookError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(self.poll_take(context));
        self.done = true;
        Poll::Ready(result)
    }
}

impl<T> FusedFuture for NextRaw<'_, T> {
    fn is_terminated(&self) -> bool {
        self.done
    }
}

/// The future of [`Hook::next`].
#[must_use = "a payload is taken only when this is awaited"]
pub struct Next<'a, T>(NextRaw<'a, T>);

impl<T: DeserializeOwned> Future for Next<'_, T> {
    type Output = Result<Option<T>, HookError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(raw) = ready!(Pin::new(&mut self.0).poll(context))? else {
            return Poll::Ready(Ok(None));
        };
        Poll::Ready(match serde_json::from_str(&raw) {
            Ok(payload) => Ok(Some(payload)),
            Err(error) => Err(HookError::Mismatch {
                raw,
                reason: error.to_string(),
            }),
        })
    }
}

impl<T: DeserializeOwned> FusedFuture for Next<'_, T> {
    fn is_terminated(&self) -> bool {
        self.0.is_terminated()
    }
}

/// The run that owns a token.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[non_exhaustive]
pub struct HookConflict {
    pub token: String,
    pub run_id: String,
    pub workflow: String,
    /// `pending`, `running`, `suspended`, `blocked`, `completed`, `failed`, `cancelled` or `continued`.
    pub status: String,
}

/// Why a hook was not opened, or gave no payload.
#[derive(Debug)]
#[non_exhaustive]
pub enum HookError {
    /// This run was started without a token.
    NotClaimed,
    /// The token is no token, or an option is over its limit; the text says which. Nothing was claimed.
    Invalid(String),
    /// Another run owns the token.
    Conflict(HookConflict),
    /// A payload that does not fit the hook's type. It was taken; here it is.
    Mismatch {
        /// The payload, JSON text.
        raw: String,
        /// What does not fit.
        reason: String,
    },
    /// The wait failed.
    Failed(Failure),
}

impl From<Failure> for HookError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotClaimed => f.write_str(
                "this run was started without a token; declare `#[workflow(token = \"…\")]`, or name one in \
                 the request: a rerun takes no token but those that it names, `onemark runs rerun RUN --hook TOKEN`",
            ),
            Self::Invalid(why) => write!(f, "the hook cannot be opened: {why}"),
            Self::Conflict(HookConflict {
                token,
                run_id,
                workflow,
                status,
            }) => {
                write!(
                    f,
                    "token `{token}` is owned by run {run_id} of `{workflow}` ({status})"
                )
            }
            Self::Mismatch { raw, reason } => {
                write!(f, "a payload does not fit the hook's type: {reason}: {raw}")
            }
            Self::Failed(failure) => failure.fmt(f),
        }
    }
}

impl Error for HookError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Failed(failure) => failure.source(),
            _ => None,
        }
    }
}

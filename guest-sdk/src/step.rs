//! Steps: work whose result is saved.

use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{FusedFuture, LocalBoxFuture};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bindings::onemark::workflow::{attempt, steps};
use crate::cancel;
use crate::failure::{Failure, FailureKind, decode_error};
use crate::json::{NotJson, to_json};
use crate::operation::{Operation, WhenDropped};
use crate::sandbox::{self, Sandbox};
use crate::step_error::StepError;
use crate::time::milliseconds;

/// What a step returns: `Result<T, E>` with a serde type and a [`StepError`].
#[diagnostic::on_unimplemented(
    message = "a step cannot return `{Self}`",
    note = "it returns `Result<T, E>`, where `T` is `Serialize` and `Deserialize` and `E` is a `StepError`"
)]
pub trait StepOutput: Sized + 'static {
    type Value: Serialize + DeserializeOwned;
    type Error: StepError;

    fn into_result(self) -> Result<Self::Value, Self::Error>;
}

impl<T: Serialize + DeserializeOwned + 'static, E: StepError> StepOutput for Result<T, E> {
    type Value = T;
    type Error = E;

    fn into_result(self) -> Self {
        self
    }
}

/// The options that one call can set, for everything that has `options: StepOptions`.
macro_rules! option_methods {
    () => {
        /// How often to try again after a failed attempt; 0 means one attempt. At most 10,000 times, whatever is asked
        /// for.
        pub fn retries(mut self, retries: u32) -> Self {
            self.options.retries = Some(retries);
            self
        }

        /// How long one attempt may take before it is cut off. In whole milliseconds, rounded up.
        pub fn timeout(mut self, length: Duration) -> Self {
            self.options.timeout_ms = Some(milliseconds(length));
            self
        }

        /// How long to wait between attempts: a [`Backoff`], or the first wait as a `Duration`. After the first ten
        /// retries it is a second at least, also when the error says otherwise.
        pub fn backoff(mut self, backoff: impl Into<Backoff>) -> Self {
            self.options.backoff = Some(backoff.into());
            self
        }

        /// The idempotency key itself (not a template). By default it is the declared one, or one that the
        /// host makes for this call. 1 to 255 bytes without control characters; with any other the call fails with
        /// [`FailureKind::Invalid`].
        pub fn key(mut self, key: impl Into<String>) -> Self {
            self.options.key = Some(Cow::Owned(key.into()));
            self
        }

        /// For how long whoever is given the key knows it, counted from when the first attempt begins. Where
        /// another attempt would begin later, the run is blocked until a person decides. In whole milliseconds,
        /// rounded up.
        pub fn key_ttl(mut self, length: Duration) -> Self {
            self.options.key_ttl_ms = Some(milliseconds(length));
            self
        }

        /// No second attempt without a person, whatever became of the first: not even one after an error that
        /// says `retry`, and whatever `retries` says. An attempt that is cut off, times out or traps leaves the
        /// outcome unknown; see [`on_unknown`](Self::on_unknown).
        pub fn at_most_once(mut self) -> Self {
            self.options.at_most_once = Some(true);
            self
        }

        /// What follows when nobody knows whether the step took effect: an at-most-once attempt that did not
        /// return, or an error marked as unknown. By default [`Then::Block`]; with [`Then::Fail`] the workflow
        /// gets a failure with `outcome_unknown`. Either way the step is not run again by itself.
        pub fn on_unknown(mut self, then: Then) -> Self {
            self.options.on_unknown = Some(then);
            self
        }

        /// What follows when no retries are left: by default [`Then::Fail`]. With [`Then::Block`] the run keeps
        /// its tokens and waits until somebody lets the step be tried again. A fatal error goes to the workflow
        /// in any case.
        pub fn on_exhausted(mut self, then: Then) -> Self {
            self.options.on_exhausted = Some(then);
            self
        }
    };
}
pub(crate) use option_methods;

/// A call of a `#[step]` function, to be awaited.
///
/// The arguments are serialised when the function is called. The step itself is called, and takes its
/// place in the journal, when this future is first polled: at its `.await`, or with its neighbours in
/// `join!`, `select!` or `join_all`. One that is never polled never runs. One that is dropped before it
/// completed is given up: no further attempts, its outcome is thrown away.
///
/// The methods set options for this call; what they leave open is as `#[step(…)]` declares.
///
/// Outside of workflow code (in another step, in a unit test) the step runs as a plain function, once,
/// and the options mean nothing.
///
/// # Errors
///
/// Awaited, a step gives its value or a [`Failure`]: the error of its last attempt, or another reason that
/// [`FailureKind`] lists.
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # #[step] async fn fetch(url: &str) -> Result<String, StepFailed> { Ok(url.into()) }
/// # async fn example(urls: Vec<String>) -> WorkflowResult<()> {
/// let one = fetch("https://example.org").retries(5).timeout(Duration::from_secs(2)).await?;
/// let (a, b) = try_join!(fetch("https://a.example"), fetch("https://b.example"))?;
/// let all = try_join_all(urls.iter().map(|url| fetch(url))).await?;
/// # Ok(()) }
/// ```
#[must_use = "a step does nothing unless it is awaited"]
pub struct StepCall<R: StepOutput> {
    name: &'static str,
    body: StepBody<R>,
    input: Result<String, NotJson>,
    options: StepOptions,
    state: State<R>,
}

/// Reads the input and makes the future of the step's body.
pub(crate) type StepBody<R> = fn(&str) -> Result<LocalBoxFuture<'static, R>, serde_json::Error>;

enum State<R> {
    New,
    /// Called in a workflow.
    Called(Operation),
    /// Called as a plain function.
    Plain(LocalBoxFuture<'static, R>),
    Done,
}

impl<R: StepOutput> StepCall<R> {
    pub(crate) fn new(name: &'static str, body: StepBody<R>, input: Result<String, NotJson>) -> Self {
        Self {
            name,
            body,
            input,
            options: StepOptions::NONE,
            state: State::New,
        }
    }

    option_methods!();

    fn begin(&self) -> Result<State<R>, Failure<R::Error>> {
        let not_json = |error: &NotJson| {
            let message = format!("its input is not JSON: {error}");
            Failure::local(self.name, FailureKind::NotJson, message)
        };
        let input = self.input.as_deref().map_err(not_json)?;
        if sandbox::current() == Sandbox::Workflow {
            cancel::check(self.name)?;
            let options = to_json(&self.options).map_err(|error| not_json(&error))?;
            let promise = steps::call(self.name, input, &options);
            return Ok(State::Called(Operation::new(promise, WhenDropped::Abandon)));
        }
        (self.body)(input).map(State::Plain).map_err(|error| {
            let message = format!("its input does not fit its parameters: {error}");
            Failure::local(self.name, FailureKind::TypeMismatch, message)
        })
    }
}

impl<R: StepOutput> Future for StepCall<R> {
    type Output = Result<R::Value, Failure<R::Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let State::New = this.state {
            this.state = State::Done;
            this.state = this.begin()?;
        }
        let result = match &mut this.state {
            State::Called(operation) => {
                let outcome = ready!(Pin::new(operation).poll(context));
                read(this.name, outcome)
            }
            State::Plain(body) => plain(this.name, ready!(body.as_mut().poll(context)).into_result()),
            State::New | State::Done => panic!("step `{}` was polled after its end", this.name),
        };
        this.state = State::Done;
        Poll::Ready(result)
    }
}

/// What a step that the host ran came to.
pub(crate) fn read<T: DeserializeOwned, E: StepError>(
    step: &str,
    outcome: Result<String, String>,
) -> Result<T, Failure<E>> {
    let value = outcome.map_err(|document| Failure::from_document(step, &document, decode_error))?;
    serde_json::from_str(&value).map_err(|error| {
        let message = format!("its saved result does not fit its type: {error}");
        Failure::local(step, FailureKind::TypeMismatch, message)
    })
}

/// What a step that ran as a plain function came to.
pub(crate) fn plain<T, E: StepError>(step: &str, result: Result<T, E>) -> Result<T, Failure<E>> {
    result.map_err(|error| {
        let (message, retry) = (error.message(), error.retry());
        Failure::returned(step, error, message, retry)
    })
}

impl<R: StepOutput> FusedFuture for StepCall<R> {
    fn is_terminated(&self) -> bool {
        matches!(self.state, State::Done)
    }
}

/// The options of a step, as they travel to the host. Where a field is `None`, the default holds.
#[derive(Clone, Serialize)]
pub struct StepOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most_once: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_unknown: Option<Then>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_exhausted: Option<Then>,
}

impl StepOptions {
    pub const NONE: Self = Self {
        retries: None,
        backoff: None,
        timeout_ms: None,
        key: None,
        key_ttl_ms: None,
        at_most_once: None,
        on_unknown: None,
        on_exhausted: None,
    };
}

/// What follows when a step gets no further attempt by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// The run is blocked, with everything it holds, until a person decides: `onemark runs resolve`,
    /// `onemark runs retry`.
    Block,
    /// The workflow gets the failure.
    Fail,
}

/// How long to wait between the attempts of a step. What it leaves open is as declared, or the host's
/// default.
///
/// ```
/// use onemark_sdk::Backoff;
/// use std::time::Duration;
///
/// let gentle = Backoff::initial(Duration::from_secs(1)).factor(3.0).max(Duration::from_secs(600));
/// ```
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Backoff {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[doc(hidden)]
    pub initial_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[doc(hidden)]
    pub factor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[doc(hidden)]
    pub max_ms: Option<u64>,
}

impl Backoff {
    /// The wait before the first retry, in whole milliseconds.
    pub fn initial(wait: Duration) -> Self {
        Self {
            initial_ms: Some(milliseconds(wait)),
            factor: None,
            max_ms: None,
        }
    }

    /// By how much each wait is longer than the one before: a finite number, at least 1.
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = Some(factor);
        self
    }

    /// The longest wait, in whole milliseconds.
    pub fn max(mut self, wait: Duration) -> Self {
        self.max_ms = Some(milliseconds(wait));
        self
    }
}

impl From<Duration> for Backoff {
    fn from(initial: Duration) -> Self {
        Self::initial(initial)
    }
}

/// What a step knows of the attempt that runs it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StepInfo {
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// The same in every attempt of this step. Hand it to services that do a request with one key once.
    pub idempotency_key: String,
}

impl StepInfo {
    /// As [`step_info`]; `None` in workflow code.
    pub fn current() -> Option<Self> {
        match sandbox::current() {
            Sandbox::Step => Some(Self {
                attempt: attempt::number(),
                idempotency_key: attempt::idempotency_key(),
            }),
            Sandbox::None => Some(Self {
                attempt: 1,
                idempotency_key: "test".into(),
            }),
            Sandbox::Workflow => None,
        }
    }
}

/// What this step knows of its attempt. In a native unit test: attempt 1, with the key `test`.
///
/// # Panics
///
/// In workflow code, which is no attempt. [`StepInfo::current`] does not panic.
#[track_caller]
pub fn step_info() -> StepInfo {
    StepInfo::current().expect("`step_info` works in a step, not in workflow code")
}

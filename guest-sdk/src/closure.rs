//! Closure steps: a piece of a workflow function whose result is saved.

use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{FusedFuture, LocalBoxFuture};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bindings::onemark::workflow::steps::{self, Begun};
use crate::cancel;
use crate::failure::{Failure, FailureKind};
use crate::json::to_json;
use crate::operation::{Operation, WhenDropped};
use crate::sandbox::{self, Sandbox};
use crate::step::{Backoff, StepOptions, Then, option_methods, plain, read};
use crate::step_error::{StepError, StepFailed};
use crate::time::milliseconds;

/// Runs a closure as a step called `name`: its result is saved, and it is tried again when it fails.
///
/// The closure may use whatever is in scope, by reference. It never runs in the workflow's own instance: for each
/// attempt the host makes another, replays the journal in it up to this line, runs the closure there, keeps its
/// result and throws that instance away. So a closure cannot change what it captured: it is `Fn + Sync`, and
/// capturing `&mut`, `Cell` or `RefCell` does not compile. (What a `Mutex` holds can be changed, and the change is
/// lost with the instance.) Hand results back as the closure's value.
///
/// Replaying costs time that grows with the journal: a `#[step]` is the better choice after some hundreds of steps.
/// In the journal a closure is known by its name alone, not by what it captured.
///
/// For errors of your own type there is [`typed_step`].
///
/// # Errors
///
/// As for a `#[step]`; see [`StepCall`](crate::StepCall).
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # async fn example(order_id: String) -> WorkflowResult<()> {
/// let label = step("label", || async { Ok(format!("{order_id}-{:x}", random())) }).await?;
/// let (a, b) = try_join!(
///     step("a", || async { Ok(label.len()) }).retries(5),
///     step("b", || async { Ok(order_id.len()) }),
/// )?;
/// # let _: (usize, usize) = (a, b);
/// # Ok(()) }
/// ```
pub fn step<'a, T, F>(name: impl Into<Cow<'static, str>>, closure: F) -> ClosureCall<'a, T, StepFailed>
where
    T: Serialize + DeserializeOwned + 'a,
    F: AsyncFn() -> Result<T, StepFailed> // it runs in a copy of the workflow: what it changed would be lost
        + Sync // for the same reason: it runs in a copy, and what it changed would be lost
        + 'a,
{
    typed_step(name, closure)
}

/// As [`step`], for closures that return an error type of their own.
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # use onemark_sdk::typed_step;
/// # #[derive(Serialize, Deserialize, StepError)]
/// # enum ChargeError { #[fatal] Declined(String), #[retry] Busy }
/// # async fn example(cents: u64) -> WorkflowResult<()> {
/// let charged = typed_step("charge", || async {
///     if cents > 10_000 {
///         return Err(ChargeError::Declined("too much".into()));
///     }
///     Ok(cents)
/// });
/// match charged.await {
///     Ok(cents) => log::info!("{cents}"),
///     Err(Failure { error: Some(ChargeError::Declined(why)), .. }) => log::warn!("{why}"),
///     Err(failure) => return Err(failure.into()),
/// }
/// # Ok(()) }
/// ```
pub fn typed_step<'a, T, E, F>(name: impl Into<Cow<'static, str>>, closure: F) -> ClosureCall<'a, T, E>
where
    T: Serialize + DeserializeOwned + 'a,
    E: StepError,
    F: AsyncFn() -> Result<T, E> // it runs in a copy of the workflow: what it changed would be lost
        + Sync // for the same reason: it runs in a copy, and what it changed would be lost
        + 'a,
{
    let name = name.into();
    ClosureCall {
        options: StepOptions::NONE,
        state: State::New(Box::new(move |options| Box::pin(run(name, closure, options)))),
    }
}

/// A closure step, to be awaited; see [`step`]. As a [`StepCall`](crate::StepCall) it takes its place in the journal
/// when it is first polled, and is given up when it is dropped.
#[must_use = "a step does nothing unless it is awaited"]
pub struct ClosureCall<'a, T, E> {
    options: StepOptions,
    state: State<'a, Result<T, Failure<E>>>,
}

type Begin<'a, R> = Box<dyn FnOnce(StepOptions) -> LocalBoxFuture<'a, R> + 'a>;

enum State<'a, R> {
    New(Begin<'a, R>),
    Begun(LocalBoxFuture<'a, R>),
    Done,
}

impl<T, E> ClosureCall<'_, T, E> {
    option_methods!();
}

async fn run<T, E, F>(name: Cow<'static, str>, closure: F, options: StepOptions) -> Result<T, Failure<E>>
where
    T: Serialize + DeserializeOwned,
    E: StepError,
    F: AsyncFn() -> Result<T, E>,
{
    if sandbox::current() != Sandbox::Workflow {
        return plain(&name, closure().await);
    }
    cancel::check(&name)?;
    let options = to_json(&options)
        .map_err(|error| Failure::local(&name, FailureKind::NotJson, format!("its options: {error}")))?;
    match steps::begin(&name, &options) {
        Begun::Elsewhere(promise) => read(&name, Operation::new(promise, WhenDropped::Abandon).await),
        Begun::Here => run_here(closure).await,
    }
}

/// This instance is a replica: it was made to run this closure and ends with it.
#[cfg(target_family = "wasm")]
async fn run_here<T: Serialize, E: StepError, R>(closure: impl AsyncFn() -> Result<T, E>) -> R {
    sandbox::enter(Sandbox::Step);
    let outcome = wstd::runtime::block_on(async { crate::__private::step_outcome(closure().await) });
    steps::finish(outcome.as_deref().map_err(|document| document.as_str()));
    unreachable!("`finish` does not return")
}

#[cfg(not(target_family = "wasm"))]
async fn run_here<T, E, R>(_: impl AsyncFn() -> Result<T, E>) -> R {
    unreachable!("a native build is never a replica")
}

impl<T, E> Future for ClosureCall<'_, T, E> {
    type Output = Result<T, Failure<E>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let State::New(_) = this.state
            && let State::New(begin) = std::mem::replace(&mut this.state, State::Done)
        {
            this.state = State::Begun(begin(this.options.clone()));
        }
        let State::Begun(running) = &mut this.state else {
            panic!("a closure step was polled after its end");
        };
        let result = ready!(running.as_mut().poll(context));
        this.state = State::Done;
        Poll::Ready(result)
    }
}

impl<T, E> FusedFuture for ClosureCall<'_, T, E> {
    fn is_terminated(&self) -> bool {
        matches!(self.state, State::Done)
    }
}

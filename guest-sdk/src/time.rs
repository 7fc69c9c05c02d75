//! Durable time.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::FusedFuture;

use crate::bindings::onemark::workflow::{context, timers};
use crate::cancel;
use crate::failure::{Failure, FailureKind};
use crate::operation::{Operation, WhenDropped};
use crate::sandbox::{self, Sandbox};

/// Suspends the workflow for `length`, which may be seconds or months, over any number of restarts.
///
/// It counts from [`now`], in whole milliseconds, begins when it is first polled, and never ends early.
/// Dropped before its end (a lost `select!`), it is given up.
///
/// # Errors
///
/// [`FailureKind::Cancelled`] when the run is asked to cancel, [`FailureKind::NotInStep`] outside of
/// workflow code. In a step use `wstd::task::sleep`.
pub fn sleep(length: Duration) -> Sleep {
    Sleep {
        until: Until::After(length),
        state: State::New,
    }
}

/// As [`sleep`], until a moment. Ends at once when that has passed.
///
/// # Errors
///
/// As [`sleep`].
pub fn sleep_until(moment: SystemTime) -> Sleep {
    Sleep {
        until: Until::At(moment),
        state: State::New,
    }
}

/// The time, in whole milliseconds.
///
/// In a workflow it is the time of the newest journal entry that the workflow has observed: the same in
/// every replay, and standing still while the workflow computes. Elsewhere it is the system's time.
#[expect(
    clippy::disallowed_methods,
    reason = "the ban is for the host; a guest asks its sandbox"
)]
pub fn now() -> SystemTime {
    match sandbox::current() {
        Sandbox::Workflow => UNIX_EPOCH + Duration::from_millis(context::now()),
        Sandbox::Step | Sandbox::None => SystemTime::now(),
    }
}

/// Awaits `future`, but no longer than `length` from now. What is late is dropped, so a step is given up.
///
/// `future` is polled first: on its first poll a step is called before the clock starts, and one that is
/// ready wins. A request to cancel the run changes nothing of the limit: what `future` waits for hears of it.
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # #[step] async fn ask(whom: &str) -> Result<bool, StepFailed> { Ok(true) }
/// # async fn example() -> WorkflowResult<bool> {
/// let answer = timeout(Duration::from_secs(3600), ask("the manager")).await;
/// # match answer {
/// #     Ok(answer) => Ok(answer?),
/// #     Err(late) if late.kind == FailureKind::Timeout => Ok(false),
/// #     Err(failure) => Err(failure.into()),
/// # } }
/// ```
///
/// # Errors
///
/// [`FailureKind::Timeout`] when the time is over, [`FailureKind::NotInStep`] outside of workflow code.
pub async fn timeout<F: Future>(length: Duration, future: F) -> Result<F::Output, Failure> {
    sandbox::require_workflow("timeout", "in a step use `wstd::future::FutureExt::timeout`")?;
    let mut future = pin!(future);
    let mut limit = Sleep {
        until: Until::Limit(length),
        state: State::New,
    };
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        match ready!(Pin::new(&mut limit).poll(context)) {
            Err(failure) => Poll::Ready(Err(failure)),
            Ok(()) => {
                let message = format!("it took longer than {length:?}");
                Poll::Ready(Err(Failure::local("timeout", FailureKind::Timeout, message)))
            }
        }
    })
    .await
}

/// The future of [`sleep`] and [`sleep_until`].
#[must_use = "a sleep does nothing unless it is awaited"]
pub struct Sleep {
    until: Until,
    state: State,
}

enum Until {
    /// As `After`, for the sake of something else that is awaited: a request to cancel does not end it.
    Limit(Duration),
    After(Duration),
    At(SystemTime),
}

enum State {
    New,
    Asleep(Operation),
    Done,
}

impl Sleep {
    fn begin(&self) -> Result<Operation, Failure> {
        sandbox::require_workflow("sleep", "in a step use `wstd::task::sleep`")?;
        if !matches!(self.until, Until::Limit(_)) {
            cancel::check("sleep")?;
        }
        let promise = match self.until {
            Until::Limit(length) => timers::limit(milliseconds(length)),
            Until::After(length) => timers::sleep(milliseconds(length)),
            Until::At(moment) => {
                let since_epoch = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
                timers::sleep_until(milliseconds(since_epoch))
            }
        };
        Ok(Operation::new(promise, WhenDropped::Abandon))
    }
}

impl Future for Sleep {
    type Output = Result<(), Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut operation = match std::mem::replace(&mut self.state, State::Done) {
            State::New => self.begin()?,
            State::Asleep(operation) => operation,
            State::Done => panic!("a sleep was polled after its end"),
        };
        match Pin::new(&mut operation).poll(context) {
            Poll::Ready(Ok(_)) => Poll::Ready(Ok(())),
            Poll::Ready(Err(document)) => Poll::Ready(Err(Failure::untyped("sleep", &document))),
            Poll::Pending => {
                self.state = State::Asleep(operation);
                Poll::Pending
            }
        }
    }
}

impl FusedFuture for Sleep {
    fn is_terminated(&self) -> bool {
        matches!(self.state, State::Done)
    }
}

/// Whole milliseconds, rounded up, so that nothing ends early.
pub(crate) fn milliseconds(length: Duration) -> u64 {
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_up_to_milliseconds() {
        assert_eq!(milliseconds(Duration::ZERO), 0);
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds(Duration::from_micros(1_500)), 2);
        assert_eq!(milliseconds(Duration::MAX), u64::MAX);
    }

    #[test]
    fn durable_time_is_refused_outside_of_workflows() {
        let failure = crate::block_on(sleep(Duration::ZERO)).unwrap_err();
        assert_eq!(failure.kind, FailureKind::NotInStep);
        assert!(failure.message.contains("not in a workflow"), "{failure}");
        let failure = crate::block_on(timeout(Duration::ZERO, async {})).unwrap_err();
        assert_eq!(failure.kind, FailureKind::NotInStep);
    }
}

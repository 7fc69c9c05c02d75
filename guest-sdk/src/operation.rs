//! A durable operation in flight: the host's promise as a future.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::bindings::onemark::workflow::promises::Promise;
use crate::cancel;
use crate::executor::Completion;

/// What happens to an operation whose future is dropped before it completed.
#[derive(Clone, Copy)]
pub(crate) enum WhenDropped {
    /// Given up: no more attempts, no wake-up.
    Abandon,
    /// Released: it had no effect to give up.
    Release,
}

pub(crate) struct Operation {
    /// `None` once its outcome was taken.
    promise: Option<Promise>,
    completion: Completion,
    when_dropped: WhenDropped,
}

impl Operation {
    pub(crate) fn new(promise: Promise, when_dropped: WhenDropped) -> Self {
        let completion = Completion::new(promise.id());
        Self {
            promise: Some(promise),
            completion,
            when_dropped,
        }
    }
}

impl Future for Operation {
    /// The value or the failure document.
    type Output = Result<String, String>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(Pin::new(&mut self.completion).poll(context));
        let promise = self.promise.take().expect("not polled after completion");
        let outcome = promise.take();
        if outcome.is_err() {
            cancel::part_failed();
        }
        Poll::Ready(outcome)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let (Some(promise), WhenDropped::Abandon) = (&self.promise, self.when_dropped)
            && !self.completion.is_complete()
        {
            promise.abandon();
        }
    }
}

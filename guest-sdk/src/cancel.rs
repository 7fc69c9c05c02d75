//! Ending before the end: how a workflow hears that it is to cancel, and undoes what it did.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use futures::future::{FusedFuture, LocalBoxFuture};
use serde::Deserialize;

use crate::bindings::onemark::workflow::context;
use crate::failure::{Failure, FailureKind};
use crate::operation::{Operation, WhenDropped};
use crate::sandbox::{self, Sandbox};
use crate::workflow::{WorkflowError, WorkflowResult};

/// Why a run is to cancel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CancelReason {
    /// The run took longer than its timeout allows.
    Timeout,
    /// Somebody asked for it, or a reason that this version does not know.
    #[serde(other)]
    Requested,
}

/// Completes when the run is asked to cancel, for workflows that want to know before what they wait for tells them.
///
/// Most workflows need not ask: when the run is to cancel, the sleep, the payload or the child that it waits for
/// comes to the failure [`Cancelled`](crate::FailureKind::Cancelled), which `?` passes on. A step that is at work gives
/// its result, and then the next call does: a step that would begin, a sleep, a payload, a child.
///
/// It is told once. After that failure, and after this future, whatever is called works as ever, so that a workflow can
/// undo what it did. Steps also do so after any other failure. What must come to its end whenever the request comes
/// is [`shielded`], as all is that a [`Saga`] undoes. Outside of workflow code it never completes.
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # use onemark_sdk::cancelled;
/// # #[step] async fn work(part: u32) -> Result<(), StepFailed> { Ok(()) }
/// # async fn example() -> WorkflowResult<u32> {
/// let mut cancelled = cancelled();
/// for part in 0..100 {
///     select! {
///         _ = cancelled => return Ok(part), // what is done is done, and that is a good end
///         done = work(part) => done?,
///     }
/// }
/// # Ok(100) }
/// ```
pub fn cancelled() -> Cancelled {
    Cancelled {
        request: None,
        done: false,
    }
}

/// The future of [`cancelled`].
#[must_use = "it says nothing unless it is awaited"]
pub struct Cancelled {
    request: Option<Operation>,
    done: bool,
}

impl Future for Cancelled {
    type Output = CancelReason;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CancelReason> {
        if sandbox::current() != Sandbox::Workflow {
            return Poll::Pending;
        }
        let request = self
            .request
            .get_or_insert_with(|| Operation::new(context::cancellation(), WhenDropped::Release));
        let reason = ready!(Pin::new(request).poll(context));
        self.done = true;
        part_told();
        let reason = reason.ok().and_then(|reason| serde_json::from_str(&reason).ok());
        Poll::Ready(reason.unwrap_or(CancelReason::Requested))
    }
}

impl FusedFuture for Cancelled {
    fn is_terminated(&self) -> bool {
        self.done
    }
}

/// Does `work` to its end, whether or not the run is asked to cancel before or meanwhile.
///
/// Its steps are carried out and tried again, its sleeps last, its payloads and children are waited for. The request is
/// not lost: the first thing after it hears of it. For what undoes something, or gives something back; a [`Saga`] does
/// so by itself. Whoever cannot wait may still terminate the run (`onemark runs terminate`).
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # use onemark_sdk::shielded;
/// # #[step] async fn lock(name: &str) -> Result<(), StepFailed> { Ok(()) }
/// # #[step] async fn work(name: &str) -> Result<u32, StepFailed> { Ok(1) }
/// # #[step] async fn unlock(name: &str) -> Result<(), StepFailed> { Ok(()) }
/// # async fn example(name: &str) -> WorkflowResult<u32> {
/// lock(name).await?;
/// let done = work(name).await;
/// shielded(unlock(name)).await?;
/// Ok(done?)
/// # }
/// ```
pub fn shielded<F: Future>(work: F) -> Shielded<F> {
    Shielded { work: Box::pin(work) }
}

/// The future of [`shielded`].
#[must_use = "nothing is done unless it is awaited"]
pub struct Shielded<F> {
    work: Pin<Box<F>>,
}

impl<F: Future> Future for Shielded<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let around = shield(true);
        let polled = self.work.as_mut().poll(context);
        shield(around);
        polled
    }
}

/// Puts the shield up or down and says where it was.
fn shield(on: bool) -> bool {
    let before = SHIELD.replace(on);
    if before != on && sandbox::current() == Sandbox::Workflow {
        context::shield(on);
    }
    before
}

thread_local! {
    /// What is being polled takes no notice of a request to cancel.
    static SHIELD: Cell<bool> = const { Cell::new(false) };
    /// The part of the workflow that is being polled and is told on its own that the run is to cancel.
    static PART: RefCell<Option<Rc<Cell<bool>>>> = const { RefCell::new(None) };
}

/// A part of a workflow that is told on its own: one of many things that go on at once, each of which is to end.
pub(crate) struct Part<F> {
    work: Pin<Box<F>>,
    told: Rc<Cell<bool>>,
}

impl<F> Part<F> {
    /// `told` where whoever makes it was told before.
    pub(crate) fn new(work: F, told: bool) -> Self {
        Self {
            work: Box::pin(work),
            told: Rc::new(Cell::new(told)),
        }
    }
}

/// Whether what is being polled was told that the run is to cancel, so that it may be undoing what it did.
pub(crate) fn is_told() -> bool {
    let part = PART.with_borrow(|part| part.as_ref().map(|told| told.get()));
    part.unwrap_or_else(|| sandbox::current() == Sandbox::Workflow && context::is_cancel_heard())
}

impl<F: Future> Future for Part<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let around = PART.replace(Some(self.told.clone()));
        let polled = self.work.as_mut().poll(context);
        PART.set(around);
        polled
    }
}

/// The part that is being polled is about to wait for something: the failure that tells it, if the run is to cancel.
pub(crate) fn check<E>(call: &str) -> Result<(), Failure<E>> {
    let told = PART.with_borrow(|part| part.as_ref().is_none_or(|told| told.get()));
    if told || SHIELD.get() || sandbox::current() != Sandbox::Workflow || !context::is_cancel_requested() {
        return Ok(());
    }
    part_told();
    let message = "the run was asked to cancel";
    Err(Failure::local(call, FailureKind::Cancelled, message))
}

/// The part that is being polled met a failure: in a run that is to cancel it may be undoing what it did.
pub(crate) fn part_failed() {
    let is_part = PART.with_borrow(Option::is_some);
    if is_part && !SHIELD.get() && sandbox::current() == Sandbox::Workflow && context::is_cancel_requested() {
        part_told();
    }
}

fn part_told() {
    PART.with_borrow(|part| part.iter().for_each(|told| told.set(true)));
}

/// From here on everything works as ever in a run that is to cancel.
async fn heard() {
    if sandbox::current() == Sandbox::Workflow && context::is_cancel_requested() {
        cancelled().await;
    }
}

/// What undoes the steps that are done, for a workflow of which a later step can fail.
///
/// Each time that something is done, say what would undo it: a call of a step, which runs only if it comes to that.
/// When the work fails, also when the run is cancelled, what was said runs one after another, the last first, and
/// the work's error is passed on. It is [`shielded`]: a run that is asked to cancel while it undoes goes on undoing.
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # use onemark_sdk::Saga;
/// # #[step] async fn book_hotel(trip: &str) -> Result<String, StepFailed> { Ok(trip.into()) }
/// # #[step] async fn cancel_hotel(booking: &str) -> Result<(), StepFailed> { Ok(()) }
/// # #[step] async fn book_flight(trip: &str) -> Result<String, StepFailed> { Ok(trip.into()) }
/// # #[step] async fn cancel_flight(booking: &str) -> Result<(), StepFailed> { Ok(()) }
/// # #[step] async fn charge(trip: &str) -> Result<(), StepFailed> { Ok(()) }
/// #[workflow]
/// async fn book(trip: String) -> WorkflowResult<()> {
///     Saga::run(async |saga: &mut Saga| {
///         let hotel = book_hotel(&trip).await?;
///         saga.undo(cancel_hotel(&hotel));
///         let flight = book_flight(&trip).await?;
///         saga.undo(cancel_flight(&flight));
///         charge(&trip).await?; // when this fails: `cancel_flight`, then `cancel_hotel`
///         Ok(())
///     })
///     .await
/// }
/// # fn main() {}
/// ```
///
/// An effect whose outcome is unknown (a step that was cut off) may have to be undone as well: say how before the
/// step, and let the undoing step bear that there is nothing to undo.
#[derive(Default)]
pub struct Saga {
    undo: Vec<LocalBoxFuture<'static, WorkflowResult<()>>>,
}

impl Saga {
    /// Does `work`, and undoes it when it fails.
    ///
    /// # Errors
    ///
    /// What the work failed with. When undoing fails too, the error names the work's as its cause, the rest is
    /// undone all the same, and the first error of undoing is told.
    pub async fn run<T>(work: impl AsyncFnOnce(&mut Self) -> WorkflowResult<T>) -> WorkflowResult<T> {
        let mut saga = Self::default();
        let error = match work(&mut saga).await {
            Ok(value) => return Ok(value),
            Err(error) if error.is_continuation() => return Err(error),
            Err(error) => error,
        };
        heard().await;
        let mut failed: Option<WorkflowError> = None;
        while let Some(undo) = saga.undo.pop() {
            if let Err(error) = shielded(undo).await {
                failed.get_or_insert(error);
            }
        }
        Err(match failed {
            None => error,
            Some(failed) => {
                WorkflowError::new(format!("{error}; and undoing what was done failed: {failed}"))
            }
        })
    }

    /// What undoes what was just done: a call of a step, or another future that does nothing until it is polled.
    pub fn undo<E>(&mut self, undo: impl Future<Output = Result<(), E>> + 'static)
    where
        WorkflowError: From<E>,
        E: 'static,
    {
        self.undo.push(Box::pin(async { Ok(undo.await?) }));
    }
}

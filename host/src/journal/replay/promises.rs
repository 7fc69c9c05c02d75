//! Promises: what the guest has in flight, and their outcomes.

use std::sync::Arc;

use super::calls::text_of;
use super::{GuestError, HookHandle, PromiseId, Replay, Result};
use crate::journal::entry::{CallNo, Event};
use crate::journal::outcome::{Failure, FailureKind};

#[derive(Debug)]
pub(super) enum Awaited {
    /// An outcome of a step.
    Step(CallNo),
    Timer(CallNo),
    /// A timer that limits something else.
    Limit(CallNo),
    ChildStarted,
    Emitted,
    ChildEnded,
    Ready(HookHandle),
    /// A call that could not be made: complete from the beginning, with this failure.
    Refused(Arc<str>),
    /// Completed by the entry that asks the run to cancel.
    Cancellation,
}

#[derive(Debug)]
pub(super) struct Promise {
    pub(super) awaited: Awaited,
    pub(super) held: bool,
    pub(super) reported: bool,
    pub(super) taken: bool,
    pub(super) abandoned: bool,
    /// It takes no notice of a request to cancel, nor does its outcome tell of one.
    pub(super) shielded: bool,
    /// Index of the entry that completed it.
    pub(super) completed_by: Option<usize>,
}

impl Replay {
    /// The outcome of a promise that `wait` has reported: a value or a failure, both JSON.
    ///
    /// # Errors
    /// [`GuestError::Misuse`] when `wait` has not reported it, or it was taken before.
    pub fn take(&mut self, id: PromiseId) -> Result<std::result::Result<Arc<str>, Arc<str>>> {
        let promise = &mut self.promises[id as usize];
        if !promise.reported {
            let text = format!("promise {id} was taken before `wait` reported it");
            return Err(GuestError::Misuse(text));
        }
        if std::mem::replace(&mut promise.taken, true) {
            return Err(GuestError::Misuse(format!("promise {id} was taken twice")));
        }
        let (completed_by, shielded) = (promise.completed_by, promise.shielded);
        let outcome = self.outcome(id);
        if !shielded {
            self.heard(completed_by, outcome.as_ref().err().map(|failure| &**failure));
        }
        Ok(outcome)
    }

    fn outcome(&self, id: PromiseId) -> std::result::Result<Arc<str>, Arc<str>> {
        let promise = &self.promises[id as usize];
        match (&promise.awaited, promise.completed_by) {
            (Awaited::Cancellation, Some(index)) => Ok(match self.entries[index].event {
                Event::CancelRequested { reason } => serde_json::json!(reason).to_string().into(),
                _ => "null".into(),
            }),
            (_, Some(index)) => {
                let entry = &self.entries[index];
                match entry.event {
                    Event::StepCompleted { .. } | Event::Emitted { .. } => Ok(text_of(entry)),
                    Event::StepFailed { .. } | Event::EmitRefused { .. } => Err(text_of(entry)),
                    Event::CancelRequested { reason } => {
                        let failure = Failure::new(FailureKind::Cancelled, reason.text());
                        Err(failure.to_json().into())
                    }
                    Event::ChildStarted { .. } | Event::ChildRefused { .. } | Event::ChildEnded { .. } => {
                        self.child_result(index)
                    }
                    _ => Ok("null".into()),
                }
            }
            (Awaited::Refused(failure), _) => Err(failure.clone()),
            (Awaited::Ready(HookHandle::Conflict(_)), _) => {
                let failure = Failure::new(
                    FailureKind::HookConflict,
                    "another run owns this hook's token; look at `conflict()` before awaiting payloads",
                );
                Err(failure.to_json().into())
            }
            _ => Ok("null".into()),
        }
    }

    /// Gives a promise up: no further attempts, the outcome is thrown away.
    pub fn abandon(&mut self, id: PromiseId) {
        let promise = &mut self.promises[id as usize];
        if promise.reported {
            return;
        }
        // A request to cancel may have given it up already.
        let first = !std::mem::replace(&mut promise.abandoned, true);
        if let Awaited::Step(call) | Awaited::Timer(call) | Awaited::Limit(call) = promise.awaited
            && first
        {
            self.give_up(call);
        }
        self.release(id);
    }

    /// The guest dropped its handle; `wait` will not report the promise.
    pub fn release(&mut self, id: PromiseId) {
        let promise = &mut self.promises[id as usize];
        if std::mem::replace(&mut promise.held, false) && !promise.reported {
            self.unreported -= 1;
        }
    }

    /// The promise of the call that was just made.
    pub(super) fn promise_for_call(&mut self, awaited: impl FnOnce(CallNo) -> Awaited) -> PromiseId {
        let id = self.new_promise(awaited(self.next_call - 1));
        self.promise_of_call.push(Some(id));
        id
    }

    pub(super) fn no_promise_for_call(&mut self) {
        self.promise_of_call.push(None);
    }

    pub(super) fn new_promise(&mut self, awaited: Awaited) -> PromiseId {
        // Who asks for the request itself is told of it.
        let shielded = self.shield && !matches!(awaited, Awaited::Cancellation);
        self.promises.push(Promise {
            awaited,
            held: true,
            reported: false,
            taken: false,
            abandoned: false,
            shielded,
            completed_by: None,
        });
        self.unreported += 1;
        self.promises.len() as PromiseId - 1
    }

    pub(super) fn promise(&self, call: CallNo) -> Option<&Promise> {
        let id = (*self.promise_of_call.get(call as usize)?)?;
        self.promises.get(id as usize)
    }
}

//! Promises: what the guest has in flight, and their outcomes.

use std::sync::Arc;

use super::calls::text_of;
use super::{GuestError, HookHandle, PromiseId, Replay, Result};
use crate::journal::entry::{CallNo, Event, NewEntry};
use crate::journal::outcome::{Failure, FailureKind};

#[derive(Debug)]
pub(super) enum Awaited {
    /// An outcome of a step.
    Step(CallNo),
    Timer(CallNo),
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
    /// Index of the entry that completed it.
    pub(super) completed_by: Option<usize>,
}

impl Replay {
    /// A promise for the request to cancel; complete from the start when the guest has observed one.
    pub fn cancellation(&mut self) -> PromiseId {
        let id = self.new_promise(Awaited::Cancellation);
        if self.cancelled_by.is_some() {
            self.promises[id as usize].completed_by = self.cancelled_by;
            self.due.push_back(id);
        }
        id
    }

    /// The guest observes that its run is to end: what it waits for by itself, and not for others to finish,
    /// completes.
    pub(super) fn cancel_waits(&mut self, index: usize) {
        self.cancelled_by = Some(index);
        self.calls_before_cancel = self.next_call;
        for id in 0..self.promises.len() {
            let promise = &mut self.promises[id];
            if !promise.held || promise.reported || promise.completed_by.is_some() {
                continue;
            }
            match promise.awaited {
                // A step completes with what becomes of it, an admission with the commit that it is part of.
                Awaited::Step(_)
                | Awaited::Ready(HookHandle::Conflict(_))
                | Awaited::Refused(_)
                | Awaited::ChildStarted
                | Awaited::Emitted => continue,
                Awaited::Ready(HookHandle::Own(_)) | Awaited::ChildEnded | Awaited::Cancellation => {}
                Awaited::Timer(call) => {
                    promise.abandoned = true;
                    self.give_up(call);
                }
            }
            self.promises[id].completed_by = Some(index);
            self.due.push_back(id as PromiseId);
        }
    }

    /// Nobody waits for the outcome of this call any more.
    fn give_up(&mut self, call: CallNo) {
        let uncommitted = call as usize >= self.calls.len();
        let outstanding = self.work.steps.contains_key(&call) || self.work.timers.contains_key(&call);
        if uncommitted || outstanding {
            self.new.push(NewEntry::event(Event::Abandoned { call }));
        }
    }

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
        Ok(match (&promise.awaited, promise.completed_by) {
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
        })
    }

    /// Gives a promise up: no further attempts, the outcome is thrown away.
    pub fn abandon(&mut self, id: PromiseId) {
        let promise = &mut self.promises[id as usize];
        if promise.abandoned || promise.reported {
            return;
        }
        promise.abandoned = true;
        if let Awaited::Step(call) | Awaited::Timer(call) = promise.awaited {
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
        self.promises.push(Promise {
            awaited,
            held: true,
            reported: false,
            taken: false,
            abandoned: false,
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

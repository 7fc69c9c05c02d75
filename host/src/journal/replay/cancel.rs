//! The request to cancel, as the guest sees it: it is told once, by the first thing that it would wait for.
//!
//! What it waits for when the request comes completes; where that is only work of others, which goes on to its end, the
//! next thing that it would wait for does, a step that it calls included. Once it has taken such an outcome, whatever it
//! calls works as ever, so that it can undo what it did. Steps do so also after it took another failure: it may be
//! undoing already. What it calls behind a shield takes no notice of the request, whenever that comes.

use super::hooks::HookHandle;
use super::promises::Awaited;
use super::{PromiseId, Replay};
use crate::journal::entry::{CallNo, Event, NewEntry};
use crate::journal::outcome::{FailureKind, is_of_kind};

/// The request, from the moment that the guest has observed it.
#[derive(Debug)]
pub(super) struct Request {
    /// Index of the entry that asks.
    pub(super) entry: usize,
    /// Calls that the guest had made by then.
    calls_before: CallNo,
    /// Steps that it called before this call get no attempt any more.
    refused_before: CallNo,
    told: bool,
}

impl Replay {
    /// A promise for the request to cancel; complete from the start when the guest has observed one.
    pub fn cancellation(&mut self) -> PromiseId {
        let id = self.new_promise(Awaited::Cancellation);
        if let Some(request) = &self.cancel {
            self.promises[id as usize].completed_by = Some(request.entry);
            self.due.push_back(id);
        }
        id
    }

    /// Whether the guest has observed a request to cancel.
    pub fn is_cancel_requested(&self) -> bool {
        self.cancel.is_some()
    }

    /// Whether the guest knows that its run is to end.
    pub fn was_told_to_cancel(&self) -> bool {
        self.cancel.as_ref().is_some_and(|request| request.told)
    }

    /// Whether steps that the guest calls now are carried out although it has observed a request to cancel.
    pub fn is_cancel_heard(&self) -> bool {
        let heard = |request: &Request| request.told || request.refused_before < CallNo::MAX;
        self.cancel.as_ref().is_some_and(heard)
    }

    /// From here on what the guest calls takes no notice of a request to cancel; or it does again.
    pub fn shield(&mut self, on: bool) {
        self.shield = on;
    }

    /// Whether the guest made this call behind a shield.
    pub fn is_shielded(&self, call: CallNo) -> bool {
        self.promise(call).is_some_and(|promise| promise.shielded)
    }

    /// Whether no attempt of this step need begin any more, since the guest called it before it was told that its run
    /// is to end; and then, whether an earlier activation may have begun one without a trace.
    pub fn is_cancelled(&self, call: CallNo) -> Option<bool> {
        let request = self.cancel.as_ref()?;
        let traceless = request.entry < self.resumed && call < request.calls_before;
        (call < request.refused_before && !self.is_shielded(call)).then_some(traceless)
    }

    /// The guest observes that its run is to end: what it waits for by itself, and not for others to finish,
    /// completes.
    pub(super) fn observe_cancel(&mut self, index: usize) {
        if self.cancel.is_some() {
            return;
        }
        self.cancel = Some(Request {
            entry: index,
            calls_before: self.next_call,
            refused_before: CallNo::MAX,
            told: false,
        });
        for id in 0..self.promises.len() as PromiseId {
            self.cancel_wait(id, index);
        }
    }

    /// The guest begins to wait for this promise, which is not complete: if it was not told that its run is to end, this
    /// tells it.
    pub(super) fn tell(&mut self, id: PromiseId) {
        if let Some(request) = self.cancel.as_ref().filter(|request| !request.told) {
            self.cancel_wait(id, request.entry);
        }
    }

    fn cancel_wait(&mut self, id: PromiseId, index: usize) {
        let promise = &mut self.promises[id as usize];
        let ended = promise.reported || promise.completed_by.is_some();
        if !promise.held || promise.shielded || ended {
            return;
        }
        match promise.awaited {
            // A step completes with what becomes of it, an admission with the commit that it is part of. A limit is
            // there for the sake of something else.
            Awaited::Step(_)
            | Awaited::Limit(_)
            | Awaited::Ready(HookHandle::Conflict(_))
            | Awaited::Refused(_)
            | Awaited::ChildStarted
            | Awaited::Emitted => return,
            Awaited::Ready(HookHandle::Own(_)) | Awaited::ChildEnded | Awaited::Cancellation => {}
            Awaited::Timer(call) => {
                promise.abandoned = true;
                self.give_up(call);
            }
        }
        self.promises[id as usize].completed_by = Some(index);
        self.due.push_back(id);
    }

    /// The guest took the outcome of a promise.
    pub(super) fn heard(&mut self, completed_by: Option<usize>, failure: Option<&str>) {
        let next_call = self.next_call;
        let Some(request) = self.cancel.as_mut().filter(|request| !request.told) else {
            return;
        };
        request.told = completed_by == Some(request.entry)
            || failure.is_some_and(|document| is_of_kind(document, FailureKind::Cancelled));
        if request.told || failure.is_some() {
            request.refused_before = request.refused_before.min(next_call);
        }
    }

    /// Nobody waits for the outcome of this call any more.
    pub(super) fn give_up(&mut self, call: CallNo) {
        let uncommitted = call as usize >= self.calls.len();
        let outstanding = self.work.steps.contains_key(&call) || self.work.timers.contains_key(&call);
        if uncommitted || outstanding {
            self.new.push(NewEntry::event(Event::Abandoned { call }));
        }
    }
}

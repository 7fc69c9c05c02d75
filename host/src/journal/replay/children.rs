//! Runs that the guest started, as it sees them: up to the horizon.

use std::sync::Arc;

use serde_json::json;

use super::calls::{Found, canonical, text_of};
use super::promises::Awaited;
use super::{PromiseId, Replay, Result};
use crate::journal::divergence::Call;
use crate::journal::entry::{Body, CallNo, ChildOptions, ChildStart, Event, NewEntry};
use crate::journal::status::RunStatus;

/// A child, by the call that started it.
#[derive(Debug, Default)]
pub(super) struct Child {
    /// Index of the entry that says whether it was started.
    decided_by: Option<usize>,
    /// Index of the entry that says how it ended.
    ended_by: Option<usize>,
    /// Promises for either.
    waiting: Vec<PromiseId>,
}

impl Replay {
    /// Starts a run. The call's number stands for it from here on.
    ///
    /// # Errors
    /// As every call.
    pub fn start_child(&mut self, workflow: &str, input: &str, options: ChildOptions) -> Result<CallNo> {
        let input_digest = canonical(input);
        let found = self.find(
            |entry| match &entry.event {
                Event::ChildStarted {
                    workflow: w, input, ..
                }
                | Event::ChildRefused {
                    workflow: w, input, ..
                } => w == workflow && *input == input_digest,
                _ => false,
            },
            || Call::StartChild {
                workflow: workflow.to_owned(),
                input: input_digest,
            },
        )?;
        let call = self.next_call - 1;
        if let Found::New(_) = found {
            self.new.push(NewEntry::StartChild(Box::new(ChildStart {
                call,
                workflow: workflow.to_owned(),
                input: Body::new(input),
                input_digest,
                options,
                admission: None,
            })));
        }
        self.no_promise_for_call();
        self.children.insert(call, Child::default());
        Ok(call)
    }

    /// A promise for the admission of a child.
    pub fn child_started(&mut self, child: CallNo) -> PromiseId {
        self.child_promise(child, Awaited::ChildStarted)
    }

    /// A promise for the end of a child, or for what kept it from being started.
    pub fn child_outcome(&mut self, child: CallNo) -> PromiseId {
        self.child_promise(child, Awaited::ChildEnded)
    }

    fn child_promise(&mut self, child: CallNo, awaited: Awaited) -> PromiseId {
        let id = self.new_promise(awaited);
        if let Some(child) = self.children.get_mut(&child) {
            child.waiting.push(id);
        }
        self.complete_child(child);
        self.tell(id);
        id
    }

    pub(super) fn observe_child(&mut self, call: CallNo, index: usize) {
        if let Some(child) = self.children.get_mut(&call) {
            match self.entries[index].event {
                Event::ChildEnded { .. } => child.ended_by = Some(index),
                _ => child.decided_by = Some(index),
            }
        }
        self.complete_child(call);
    }

    /// Completes the promises that can be.
    fn complete_child(&mut self, call: CallNo) {
        let Some(child) = self.children.get_mut(&call) else {
            return;
        };
        let refused = |index: &usize| matches!(self.entries[*index].event, Event::ChildRefused { .. });
        let ended_by = child.ended_by.or(child.decided_by.filter(refused));
        for id in std::mem::take(&mut child.waiting) {
            let promise = &mut self.promises[id as usize];
            if promise.completed_by.is_some() {
                continue;
            }
            let by = match promise.awaited {
                Awaited::ChildStarted => child.decided_by,
                _ => ended_by,
            };
            match by {
                Some(index) => {
                    promise.completed_by = Some(index);
                    self.due.push_back(id);
                }
                None => child.waiting.push(id),
            }
        }
    }

    /// What a promise for a child came to.
    pub(super) fn child_result(&self, index: usize) -> std::result::Result<Arc<str>, Arc<str>> {
        let entry = &self.entries[index];
        match &entry.event {
            Event::ChildStarted { run, .. } => Ok(json!({ "run_id": run }).to_string().into()),
            Event::ChildEnded {
                status: RunStatus::Completed,
                ..
            } => Ok(text_of(entry)),
            _ => Err(text_of(entry)),
        }
    }
}

//! Calls: numbered in program order, compared with the journal, or new.

use std::sync::Arc;

use serde_json::Value;

use super::promises::Awaited;
use super::{Begun, GuestError, PromiseId, Replay, Result};
use crate::ids::Digest;
use crate::journal::divergence::{Call, Divergence};
use crate::journal::entry::{Body, CallNo, Entry, Event, NewEmit, NewEntry, Seq, Timestamp};
use crate::journal::options::StepOptions;
use crate::journal::outcome::Failure;

/// What a call found in the journal.
pub(super) enum Found {
    /// At this index.
    Recorded(usize),
    /// Past the end: the call's number.
    New(CallNo),
}

impl Replay {
    pub fn step(
        &mut self,
        name: &str,
        input: &str,
        options: impl FnOnce() -> std::result::Result<StepOptions, String>,
    ) -> Result<PromiseId> {
        let found = self.find(
            |entry| match &entry.event {
                Event::StepScheduled {
                    step, closure: false, ..
                } => step == name && same_json(&entry.body, input),
                _ => false,
            },
            || Call::Step {
                name: name.to_owned(),
                input: input.into(),
            },
        )?;
        if let Found::New(call) = found {
            let event = Event::StepScheduled {
                call,
                step: name.to_owned(),
                closure: false,
                options: options().map_err(GuestError::Misuse)?,
            };
            self.new.push(NewEntry::with_body(event, Body::new(input)));
        }
        Ok(self.promise_for_call(Awaited::Step))
    }

    /// Emits an event. The promise tells what it came to.
    ///
    /// # Errors
    /// As every call.
    pub fn emit(&mut self, event: &str, payload: &str) -> Result<PromiseId> {
        let payload_digest = canonical(payload);
        let found = self.find(
            |entry| match &entry.event {
                Event::Emitted { name, payload, .. } | Event::EmitRefused { name, payload, .. } => {
                    name == event && *payload == payload_digest
                }
                _ => false,
            },
            || Call::Emit {
                event: event.to_owned(),
                payload: payload_digest,
            },
        )?;
        if let Found::New(call) = found {
            self.new.push(NewEntry::Emit(Box::new(NewEmit {
                call,
                name: event.to_owned(),
                payload: Body::new(payload),
                payload_digest,
                parts: None,
            })));
        }
        Ok(self.promise_for_call(|_| Awaited::Emitted))
    }

    /// Announces a closure as a step.
    pub fn closure(&mut self, name: &str, options: impl FnOnce() -> StepOptions) -> Result<Begun> {
        let asked = || Call::Closure {
            name: name.to_owned(),
        };
        if let Some(replica) = self
            .replica
            .as_ref()
            .filter(|replica| replica.call == self.next_call)
        {
            return match replica.closure == name {
                true => Ok(Begun::Here),
                false => Err(self.diverged(self.next_call, Some(asked()))),
            };
        }
        let found = self.find(
            |entry| match &entry.event {
                Event::StepScheduled {
                    step, closure: true, ..
                } => step == name,
                _ => false,
            },
            asked,
        )?;
        if let Found::New(call) = found {
            let event = Event::StepScheduled {
                call,
                step: name.to_owned(),
                closure: true,
                options: options(),
            };
            self.new.push(NewEntry::event(event));
        }
        Ok(Begun::Elsewhere(self.promise_for_call(Awaited::Step)))
    }

    /// A promise for a call that cannot be made, complete with that failure. Makes no entry, so what is refused
    /// must follow from the call and the journal alone.
    pub fn refuse(&mut self, failure: &Failure) -> PromiseId {
        let id = self.new_promise(Awaited::Refused(failure.to_json().into()));
        self.due.push_back(id);
        id
    }

    pub fn sleep(&mut self, length: u64) -> Result<PromiseId> {
        let due = self.now().saturating_add(length);
        self.timer(due, Some(length), || Call::Sleep { length_ms: length })?;
        Ok(self.wait_for_timer())
    }

    pub fn sleep_until(&mut self, at: Timestamp) -> Result<PromiseId> {
        self.timer(at, None, || Call::SleepUntil { at })?;
        Ok(self.wait_for_timer())
    }

    /// As [`Replay::sleep`], for the sake of something else that the guest waits for: it takes no notice of a request to
    /// cancel.
    ///
    /// # Errors
    /// As every call.
    pub fn limit(&mut self, length: u64) -> Result<PromiseId> {
        let due = self.now().saturating_add(length);
        self.timer(due, Some(length), || Call::Sleep { length_ms: length })?;
        Ok(self.promise_for_call(Awaited::Limit))
    }

    fn wait_for_timer(&mut self) -> PromiseId {
        let id = self.promise_for_call(Awaited::Timer);
        self.tell(id);
        id
    }

    fn timer(&mut self, due: Timestamp, length: Option<u64>, asked: impl FnOnce() -> Call) -> Result<()> {
        let found = self.find(
            |entry| match &entry.event {
                Event::TimerSet {
                    length: recorded,
                    due: set,
                    ..
                } => *recorded == length && (length.is_some() || *set == due),
                _ => false,
            },
            asked,
        )?;
        if let Found::New(call) = found {
            self.new
                .push(NewEntry::event(Event::TimerSet { call, due, length }));
        }
        Ok(())
    }

    /// Numbers the guest's next call and compares it with the recorded one, if there is one.
    pub(super) fn find(
        &mut self,
        matches: impl FnOnce(&Entry) -> bool,
        asked: impl FnOnce() -> Call,
    ) -> Result<Found> {
        let call = self.next_call;
        match self.calls.get(call as usize) {
            Some(&index) if matches(&self.entries[index]) => {
                self.next_call += 1;
                self.pass_forks();
                Ok(Found::Recorded(index))
            }
            Some(_) => Err(self.diverged(call, Some(asked()))),
            None if self.was_terminated() => Err(GuestError::EndOfJournal),
            None if self.status.is_terminal() => Err(self.diverged(call, Some(asked()))),
            None if self.verify => Err(GuestError::EndOfJournal),
            None if self.replica.as_ref().is_some_and(|replica| call >= replica.call) => {
                Err(self.diverged(call, Some(asked())))
            }
            None => {
                self.next_call += 1;
                self.pass_forks();
                Ok(Found::New(call))
            }
        }
    }

    pub(super) fn diverged(&self, call: CallNo, requested: Option<Call>) -> GuestError {
        let index = self.calls.get(call as usize).copied();
        if let (None, Some(replica)) = (index, &self.replica) {
            return GuestError::Diverged(Box::new(Divergence {
                call: replica.call,
                seq: None,
                recorded: Some(Call::Closure {
                    name: replica.closure.clone(),
                }),
                requested,
                source: None,
            }));
        }
        let index = index.or_else(|| {
            let last = self.entries.iter().rposition(|entry| entry.event.is_outcome());
            last.filter(|_| self.status.is_terminal())
        });
        GuestError::Diverged(Box::new(Divergence {
            call,
            seq: index.map(|index| index as Seq),
            recorded: index.and_then(|index| self.call_at(index)),
            requested,
            source: None,
        }))
    }

    pub(super) fn call_at(&self, index: usize) -> Option<Call> {
        let entry = &self.entries[index];
        let body = || text_of(entry);
        Some(match &entry.event {
            Event::StepScheduled {
                step, closure: true, ..
            } => Call::Closure { name: step.clone() },
            Event::StepScheduled { step, .. } => Call::Step {
                name: step.clone(),
                input: body(),
            },
            Event::TimerSet {
                length: Some(length), ..
            } => Call::Sleep { length_ms: *length },
            Event::TimerSet { due, .. } => Call::SleepUntil { at: *due },
            Event::HookClaimed { generated: true, .. } => Call::OpenHook { token: None },
            Event::HookClaimed { spec, .. } => Call::OpenHook {
                token: Some(spec.token.clone()),
            },
            Event::HookConflicted { token, .. } => Call::OpenHook {
                token: Some(token.clone()),
            },
            Event::HookClosed { hook, .. } => Call::CloseHook {
                token: self.token_of(*hook)?,
            },
            Event::HookDisposed { hook, .. } => Call::DisposeHook {
                token: self.token_of(*hook)?,
            },
            Event::ChildStarted { workflow, input, .. } | Event::ChildRefused { workflow, input, .. } => {
                Call::StartChild {
                    workflow: workflow.clone(),
                    input: *input,
                }
            }
            Event::Continued { .. } => Call::Continue { input: body() },
            Event::Tagged { name, value, .. } => Call::SetTag {
                name: name.clone(),
                value: value.clone(),
            },
            Event::Emitted { name, payload, .. } | Event::EmitRefused { name, payload, .. } => Call::Emit {
                event: name.clone(),
                payload: *payload,
            },
            Event::Completed => Call::Return { value: body() },
            Event::Failed | Event::Cancelled => Call::Fail { error: body() },
            _ => return None,
        })
    }
}

pub(super) fn text_of(entry: &Entry) -> Arc<str> {
    Body::shared_text(entry.body.as_ref())
}

/// The digest of JSON text in its canonical form: whatever the order of keys and the white space. What is no JSON is
/// taken as it is.
pub(super) fn canonical(text: &str) -> Digest {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => Digest::of(value.to_string()),
        Err(_) => Digest::of(text),
    }
}

/// Whether a recorded body and JSON text say the same, whatever the order of keys and the white space. An
/// erased body is the same only as text with its digest.
pub(super) fn same_json(recorded: &Option<Body>, asked: &str) -> bool {
    let Some(body) = recorded else {
        return false;
    };
    match &body.text {
        Some(text) if **text == *asked => true,
        Some(text) => match (
            serde_json::from_str::<Value>(text),
            serde_json::from_str::<Value>(asked),
        ) {
            (Ok(recorded), Ok(asked)) => recorded == asked,
            _ => false,
        },
        None => {
            *body
                == Body {
                    text: None,
                    ..Body::new(asked)
                }
        }
    }
}

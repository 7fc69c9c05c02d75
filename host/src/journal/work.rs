//! What is outstanding in a run: steps without an outcome, timers that have not fired. Unlike the guest's
//! view it covers the whole journal, observed or not.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{CallNo, Entry, Event, Seq, Timestamp};
use super::options::StepOptions;

/// A step whose outcome is not saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenStep {
    pub step: String,
    pub closure: bool,
    pub options: StepOptions,
    /// The entry whose body is the input.
    pub scheduled: Seq,
    /// Attempts that began, as far as the journal knows.
    pub attempts: u32,
    /// When the next attempt may begin; `None` at once, or one was cut off.
    pub retry_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTimer {
    pub due: Timestamp,
}

/// Derived from entries, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    pub steps: BTreeMap<CallNo, OpenStep>,
    pub timers: BTreeMap<CallNo, OpenTimer>,
    /// The timers again, soonest first.
    due: BTreeSet<(Timestamp, CallNo)>,
}

impl Work {
    pub fn apply(&mut self, entry: &Entry) {
        match &entry.event {
            Event::StepScheduled {
                call,
                step,
                closure,
                options,
            } => {
                let open = OpenStep {
                    step: step.clone(),
                    closure: *closure,
                    options: options.clone(),
                    scheduled: entry.seq,
                    attempts: 0,
                    retry_at: None,
                };
                self.steps.insert(*call, open);
            }
            Event::AttemptStarted { call, attempt } => {
                if let Some(step) = self.steps.get_mut(call) {
                    step.attempts = *attempt;
                    step.retry_at = None;
                }
            }
            Event::AttemptFailed {
                call,
                attempt,
                retry_at,
            } => {
                if let Some(step) = self.steps.get_mut(call) {
                    step.attempts = *attempt;
                    step.retry_at = Some(*retry_at);
                }
            }
            Event::TimerSet { call, due, .. } => {
                self.timers.insert(*call, OpenTimer { due: *due });
                self.due.insert((*due, *call));
            }
            Event::StepCompleted { call, .. }
            | Event::StepFailed { call, .. }
            | Event::TimerFired { call }
            | Event::Abandoned { call } => {
                self.steps.remove(call);
                if let Some(timer) = self.timers.remove(call) {
                    self.due.remove(&(timer.due, *call));
                }
            }
            _ => {}
        }
    }

    /// Timers due at `now`, soonest first.
    pub fn timers_due(&self, now: Timestamp) -> impl Iterator<Item = CallNo> {
        self.due
            .iter()
            .take_while(move |(due, _)| *due <= now)
            .map(|(_, call)| *call)
    }

    /// When the next timer fires.
    pub fn next_timer(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _)| *due)
    }
}

//! What is outstanding in a run: steps without an outcome, timers that have not fired. Unlike the guest's
//! view it covers the whole journal, observed or not.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{CallNo, CancelReason, Entry, Event, RunTimeout, Seq, Timestamp};
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
    /// The run was asked to cancel after this was called: no further attempts.
    pub cancelled: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTimer {
    pub due: Timestamp,
}

/// When a run has had its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// It is to be asked to cancel then.
    Cancel(Timestamp),
    /// It was asked, and is to end then.
    End(Timestamp),
}

/// Derived from entries, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    pub steps: BTreeMap<CallNo, OpenStep>,
    pub timers: BTreeMap<CallNo, OpenTimer>,
    /// The timers again, soonest first.
    due: BTreeSet<(Timestamp, CallNo)>,
    /// Why the run is to end, where it is.
    pub cancel_requested: Option<CancelReason>,
    timeout: Option<RunTimeout>,
    pub deadline: Option<Deadline>,
}

impl Work {
    pub fn apply(&mut self, entry: &Entry) {
        match &entry.event {
            Event::Started(started) => {
                self.timeout = started.timeout;
                let after = |timeout: RunTimeout| Deadline::Cancel(entry.at.saturating_add(timeout.after_ms));
                self.deadline = started.timeout.map(after);
            }
            Event::CancelRequested { reason } => {
                self.cancel_requested.get_or_insert(*reason);
                for step in self.steps.values_mut() {
                    step.cancelled = true;
                }
                // Whoever was asked for another reason still has its time.
                if let (CancelReason::Timeout, Some(timeout)) = (reason, self.timeout) {
                    self.deadline = Some(Deadline::End(entry.at.saturating_add(timeout.grace_ms)));
                }
            }
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
                    cancelled: false,
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

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
    /// Those before a person last let the step be tried again. They count for nothing but their numbers.
    pub forgiven: u32,
    /// When the first attempt after those began.
    pub first_at: Option<Timestamp>,
    pub last: LastAttempt,
    /// The run was asked to cancel after this was called: no further attempts.
    pub cancelled: bool,
}

/// What became of the last attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastAttempt {
    /// There was none, or a person let the step be tried again: one may begin.
    None,
    /// It began. Where nobody carries it out, it was cut off.
    Begun,
    Failed {
        /// The entry whose body is the failure.
        seq: Seq,
        retry_at: Option<Timestamp>,
        outcome_unknown: bool,
    },
}

/// Why no attempt begins before a person says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    UnknownOutcome,
    StepFailed,
    KeyExpired,
}

impl OpenStep {
    /// When the next attempt may begin, if that is known.
    pub fn retry_at(&self) -> Option<Timestamp> {
        match self.last {
            LastAttempt::Failed { retry_at, .. } => retry_at,
            LastAttempt::None | LastAttempt::Begun => None,
        }
    }

    /// Whether whoever was given the key may have forgotten it at that time.
    pub fn key_expired(&self, at: Timestamp) -> bool {
        let ttl = self.options.key_ttl_ms.zip(self.first_at);
        ttl.is_some_and(|(ttl, first)| at > first.saturating_add(ttl))
    }

    /// What keeps the step from an attempt at `now` or when its next one is due.
    pub fn hold(&self, now: Timestamp) -> Option<Hold> {
        if let LastAttempt::Failed {
            retry_at: None,
            outcome_unknown,
            ..
        } = self.last
        {
            return Some(match outcome_unknown {
                true => Hold::UnknownOutcome,
                false => Hold::StepFailed,
            });
        }
        let next = self.retry_at().map_or(now, |at| at.max(now));
        self.key_expired(next).then_some(Hold::KeyExpired)
    }
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

impl Deadline {
    pub fn at(self) -> Timestamp {
        match self {
            Self::Cancel(at) | Self::End(at) => at,
        }
    }
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
    /// Before this the guest does not begin.
    pub begins: Timestamp,
    timeout: Option<RunTimeout>,
    pub deadline: Option<Deadline>,
}

impl Work {
    /// The run's time counts from here.
    fn begin(&mut self, at: Timestamp) {
        self.begins = at;
        let after = |timeout: RunTimeout| Deadline::Cancel(at.saturating_add(timeout.after_ms));
        self.deadline = self.timeout.map(after);
    }

    pub fn apply(&mut self, entry: &Entry) {
        match &entry.event {
            Event::Started(started) => {
                self.timeout = started.timeout;
                self.begin(started.start_at.unwrap_or(entry.at).max(entry.at));
            }
            Event::PredecessorsEnded => self.begin(self.begins.max(entry.at)),
            Event::CancelRequested { reason } => {
                // Asked again, since its time is over too, it may be undoing what it did.
                if self.cancel_requested.is_none() {
                    self.cancel_requested = Some(*reason);
                    for step in self.steps.values_mut() {
                        step.cancelled = true;
                    }
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
                    forgiven: 0,
                    first_at: None,
                    last: LastAttempt::None,
                    cancelled: false,
                };
                self.steps.insert(*call, open);
            }
            Event::AttemptStarted { call, attempt } => {
                if let Some(step) = self.steps.get_mut(call) {
                    step.attempts = *attempt;
                    step.first_at.get_or_insert(entry.at);
                    step.last = LastAttempt::Begun;
                }
            }
            Event::AttemptFailed {
                call,
                attempt,
                retry_at,
                outcome_unknown,
            } => {
                if let Some(step) = self.steps.get_mut(call) {
                    step.attempts = *attempt;
                    step.last = LastAttempt::Failed {
                        seq: entry.seq,
                        retry_at: *retry_at,
                        outcome_unknown: *outcome_unknown,
                    };
                }
            }
            Event::StepRetried { call } => {
                if let Some(step) = self.steps.get_mut(call) {
                    step.forgiven = step.attempts;
                    step.first_at = None;
                    step.last = LastAttempt::None;
                }
            }
            // The run has attempted nothing yet, and has its time before it.
            Event::Forked(_) => {
                for step in self.steps.values_mut() {
                    (step.attempts, step.forgiven, step.first_at) = (0, 0, None);
                    step.last = LastAttempt::None;
                }
                let counted_anew = |timeout: RunTimeout| match self.deadline {
                    Some(Deadline::End(_)) => Deadline::End(entry.at.saturating_add(timeout.grace_ms)),
                    _ => Deadline::Cancel(self.begins.max(entry.at).saturating_add(timeout.after_ms)),
                };
                self.deadline = self.timeout.map(counted_anew);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Digest, RunId};
    use crate::journal::entry::Forked;
    use crate::journal::options::Then;

    /// The step of call 0 after these events, one a second from 1 s on.
    fn after(options: StepOptions, events: Vec<Event>) -> OpenStep {
        let scheduled = Event::StepScheduled {
            call: 0,
            step: "charge".into(),
            closure: false,
            options,
        };
        let mut work = Work::default();
        for (event, seq) in [scheduled].into_iter().chain(events).zip(1..) {
            work.apply(&Entry {
                seq,
                at: 1_000 * seq,
                event,
                body: None,
            });
        }
        work.steps.remove(&0).unwrap()
    }

    fn begun(attempt: u32) -> Event {
        Event::AttemptStarted { call: 0, attempt }
    }

    fn failed(attempt: u32, retry_at: Option<Timestamp>, outcome_unknown: bool) -> Event {
        Event::AttemptFailed {
            call: 0,
            attempt,
            retry_at,
            outcome_unknown,
        }
    }

    #[test]
    fn a_step_is_held_until_somebody_lets_it_be_tried_again() {
        let options = || StepOptions {
            on_exhausted: Then::Block,
            ..StepOptions::default()
        };
        let retried = Event::StepRetried { call: 0 };
        let step = after(options(), vec![begun(1), failed(1, Some(5_000), false)]);
        assert_eq!((step.hold(0), step.retry_at()), (None, Some(5_000)));
        let step = after(options(), vec![begun(1), failed(1, None, false)]);
        assert_eq!(step.hold(0), Some(Hold::StepFailed));
        let step = after(options(), vec![begun(1), failed(1, None, true)]);
        assert_eq!(step.hold(0), Some(Hold::UnknownOutcome));
        let step = after(options(), vec![begun(1), failed(1, None, true), retried]);
        assert_eq!((step.hold(0), step.attempts, step.forgiven), (None, 1, 1));
    }

    #[test]
    fn a_fork_has_attempted_nothing_and_has_its_time_before_it() {
        let forked = || {
            Event::Forked(Box::new(Forked {
                of: RunId::new("r").unwrap(),
                upto: 3,
                seed: 1,
                component: Digest::of("c"),
                hooks: Vec::new(),
            }))
        };
        let options = StepOptions {
            at_most_once: true,
            ..StepOptions::default()
        };
        for before in [
            vec![begun(1)],
            vec![begun(1), failed(1, None, true)],
            vec![begun(1), failed(1, Some(9_000), false), begun(2)],
        ] {
            let events = before.into_iter().chain([forked()]).collect();
            let step = after(options.clone(), events);
            assert_eq!((step.hold(0), step.retry_at(), step.attempts), (None, None, 0));
            assert_eq!((step.last, step.first_at), (LastAttempt::None, None));
        }

        let timeout = Some(RunTimeout {
            after_ms: 10,
            grace_ms: 5,
        });
        let mut work = Work {
            timeout,
            deadline: Some(Deadline::Cancel(10)),
            ..Work::default()
        };
        let mut apply = |at, event| {
            work.apply(&Entry {
                seq: at,
                at,
                event,
                body: None,
            });
            work.deadline
        };
        assert_eq!(apply(7, forked()), Some(Deadline::Cancel(17)));
        let reason = CancelReason::Timeout;
        assert_eq!(
            apply(17, Event::CancelRequested { reason }),
            Some(Deadline::End(22))
        );
        assert_eq!(apply(20, forked()), Some(Deadline::End(25)));
    }

    #[test]
    fn a_key_expires_after_its_first_attempt() {
        let options = || StepOptions {
            key_ttl_ms: Some(10_000),
            ..StepOptions::default()
        };
        assert_eq!(after(options(), vec![]).hold(u64::MAX), None);
        // The first attempt began at 2 s.
        let cut_off = after(options(), vec![begun(1)]);
        assert_eq!(cut_off.hold(12_000), None);
        assert_eq!(cut_off.hold(12_001), Some(Hold::KeyExpired));
        let in_time = after(options(), vec![begun(1), failed(1, Some(12_000), false)]);
        assert_eq!(in_time.hold(0), None);
        let late = after(options(), vec![begun(1), failed(1, Some(12_001), false)]);
        assert_eq!(late.hold(0), Some(Hold::KeyExpired));
        let events = vec![
            begun(1),
            failed(1, Some(12_001), false),
            Event::StepRetried { call: 0 },
        ];
        assert_eq!(after(options(), events).hold(u64::MAX), None);
    }
}

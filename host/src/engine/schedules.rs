//! Schedules: a run for each slot, never two.

use std::sync::PoisonError;

use serde::Serialize;

use super::Engine;
use super::error::{Error, Result};
use super::events::started;
use crate::ids::{Digest, IdempotencyKey};
use crate::journal::Timestamp;
use crate::sandbox::{CatchUp, Component, Schedule, ScheduleSpec, slot_text};
use crate::store::{
    Emission, Emitted, NewRun, NewSchedule, Part, ScheduleName, Source, StoreError, StoredSchedule,
};

/// A slot that the host comes to later than this, in milliseconds, was missed.
const LATE_MS: u64 = 60_000;

/// Slots dealt with before the host looks at what else is due.
const SLOTS_AT_ONCE: usize = 100;

/// How soon a slot is tried again whose workflow could not be started, in milliseconds: its component does not load.
const RETRY_MS: u64 = 60_000;

/// Most slots of one backfill.
const MAX_BACKFILL: usize = 1_000;

/// A schedule as whoever looks at it sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScheduleInfo {
    /// `deployment/workflow`
    pub name: String,
    pub deployment: String,
    pub workflow: String,
    #[serde(flatten)]
    pub spec: ScheduleSpec,
    /// When it fires next.
    pub next: Option<Timestamp>,
    /// Everything up to here was dealt with.
    pub done_until: Timestamp,
}

/// What became of the slots of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackfillReceipt {
    pub slots: Vec<BackfilledSlot>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackfilledSlot {
    pub slot: Timestamp,
    /// Began since this request; else the slot had its run before.
    pub fresh: bool,
    pub part: Part,
}

/// The schedules that a component declares.
pub(super) fn schedules_of(component: &Component) -> Vec<NewSchedule> {
    let workflows = component.manifest.workflows.values();
    let schedules = workflows.filter_map(|workflow| Some((workflow, workflow.schedule.as_ref()?)));
    let new = schedules.map(|(workflow, schedule)| NewSchedule {
        workflow: workflow.name.clone(),
        spec: serde_json::json!(schedule.spec).to_string(),
    });
    new.collect()
}

fn read(stored: &StoredSchedule) -> Option<Schedule> {
    let spec = serde_json::from_str(&stored.spec).ok()?;
    let schedule = Schedule::new(spec);
    // It was checked when it was deployed; a newer time zone database may know less.
    let failed = |error: &_| tracing::error!(schedule = %stored.name, %error, "a schedule cannot be kept");
    schedule.inspect_err(failed).ok()
}

/// What is next to do for a schedule.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Nothing before this.
    At(Option<Timestamp>),
    /// This slot starts its run; those before it are over.
    Fire(Timestamp),
    /// The slots up to here were missed.
    Pass(Timestamp),
}

fn next(schedule: &Schedule, done_until: Timestamp, now: Timestamp) -> Next {
    let Some(first) = schedule.after(done_until) else {
        return Next::At(None);
    };
    if first > now {
        return Next::At(Some(first));
    }
    let missed = now.saturating_sub(LATE_MS);
    match schedule.spec.catch_up {
        CatchUp::All => Next::Fire(first),
        CatchUp::One => Next::Fire(schedule.last_until(now).unwrap_or(first)),
        CatchUp::Skip if first >= missed => Next::Fire(first),
        CatchUp::Skip => Next::Pass(schedule.last_until(missed.saturating_sub(1)).unwrap_or(first)),
    }
}

impl Engine {
    /// Every schedule, by name.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        let stored = self.0.store.schedules().await?;
        let info = |stored: StoredSchedule| {
            let schedule = read(&stored)?;
            Some(ScheduleInfo {
                name: stored.name.to_string(),
                next: schedule.after(stored.done_until),
                spec: schedule.spec,
                deployment: stored.name.deployment,
                workflow: stored.name.workflow,
                done_until: stored.done_until,
            })
        };
        Ok(stored.into_iter().filter_map(info).collect())
    }

    /// Starts a run for every slot from `from` up to and with `to` that had none yet, also for slots from before the
    /// schedule was there. Slots that have not come yet are left to the schedule. `name` is `deployment/workflow`.
    ///
    /// # Errors
    /// [`Error::ScheduleNotFound`]; [`Error::InvalidRequest`] for a range that has too many slots.
    pub async fn backfill(&self, name: &str, from: Timestamp, to: Timestamp) -> Result<BackfillReceipt> {
        let name = name.to_owned();
        self.to_its_end(move |engine| async move { engine.backfill_all(&name, from, to).await })
            .await
    }

    async fn backfill_all(&self, name: &str, from: Timestamp, to: Timestamp) -> Result<BackfillReceipt> {
        let stored = self.0.store.schedules().await?;
        let stored = stored.into_iter().find(|it| it.name.to_string() == name);
        let not_found = || Error::ScheduleNotFound(name.to_owned());
        let stored = stored.ok_or_else(not_found)?;
        let schedule = read(&stored).ok_or_else(not_found)?;
        let first = schedule.after(from.saturating_sub(1));
        let now = self.0.clock.now();
        let slots: Vec<_> = std::iter::successors(first, |slot| schedule.after(*slot))
            .take_while(|slot| *slot <= to.min(now))
            .take(MAX_BACKFILL + 1)
            .collect();
        if slots.len() > MAX_BACKFILL {
            let text = format!("the range has more than {MAX_BACKFILL} slots; ask for less at once");
            return Err(Error::InvalidRequest(text));
        }
        let mut receipt = BackfillReceipt { slots: Vec::new() };
        for slot in slots {
            let (parts, fresh) = self.fire(&stored.name, slot, None).await?;
            let slots = parts.into_iter().map(|part| BackfilledSlot { slot, fresh, part });
            receipt.slots.extend(slots);
        }
        Ok(receipt)
    }

    /// Looks at schedules again: there may be others.
    pub(super) fn schedules_changed(&self) {
        *self.next_slot() = Some(0);
        self.0.registry.expect(self.0.clock.now());
    }

    fn next_slot(&self) -> std::sync::MutexGuard<'_, Option<Timestamp>> {
        self.0.next_slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fires what is due; says when the next slot comes.
    pub(super) async fn fire_due(
        &self,
        now: Timestamp,
    ) -> std::result::Result<Option<Timestamp>, StoreError> {
        let known = *self.next_slot();
        if known.is_none_or(|at| at > now) {
            return Ok(known);
        }
        // A deployment meanwhile sets it to look again.
        *self.next_slot() = None;
        let looked = self.fire_all(now).await;
        let soonest = match &looked {
            Ok(next) => *next,
            Err(_) => Some(0),
        };
        let mut next_slot = self.next_slot();
        *next_slot = [*next_slot, soonest].into_iter().flatten().min();
        looked.map(|_| *next_slot)
    }

    async fn fire_all(&self, now: Timestamp) -> std::result::Result<Option<Timestamp>, StoreError> {
        let mut soonest = None;
        let mut left = SLOTS_AT_ONCE;
        for stored in self.0.store.schedules().await? {
            let Some(schedule) = read(&stored) else {
                continue;
            };
            let mut done_until = stored.done_until;
            let at = loop {
                if left == 0 {
                    break Some(now);
                }
                left -= 1;
                let slot = match next(&schedule, done_until, now) {
                    Next::At(at) => break at,
                    Next::Fire(slot) => Some(slot),
                    Next::Pass(until) => {
                        done_until = until;
                        None
                    }
                };
                match slot {
                    Some(slot) => {
                        if !self.fire_slot(&stored.name, slot).await? {
                            break Some(now.saturating_add(RETRY_MS));
                        }
                        done_until = slot;
                    }
                    None => self.pass(&stored.name, done_until).await?,
                }
            };
            soonest = [soonest, at].into_iter().flatten().min();
        }
        Ok(soonest)
    }

    /// False when the slot is still to be fired.
    async fn fire_slot(&self, name: &ScheduleName, slot: Timestamp) -> std::result::Result<bool, StoreError> {
        match self.fire(name, slot, Some(slot)).await {
            Ok((parts, _)) => {
                for part in parts.iter().filter(|part| part.run().is_none()) {
                    tracing::warn!(schedule = %name, slot = slot_text(slot), ?part, "a slot started no run");
                }
                Ok(true)
            }
            Err(Error::Store(error)) => Err(error),
            Err(error) => {
                tracing::error!(schedule = %name, slot = slot_text(slot), %error, "a slot waits: it cannot be started");
                Ok(false)
            }
        }
    }

    async fn pass(&self, name: &ScheduleName, until: Timestamp) -> std::result::Result<(), StoreError> {
        tracing::info!(schedule = %name, until = slot_text(until), "slots were missed");
        let passed = Emission {
            source: Source::Schedule {
                name: name.clone(),
                done_until: Some(until),
            },
            id: None,
            request: Digest::of(""),
            parts: Vec::new(),
            now: self.0.clock.now(),
        };
        self.0.store.emit(passed).await.map(drop)
    }

    /// Starts the run of a slot, unless it had one.
    async fn fire(
        &self,
        name: &ScheduleName,
        slot: Timestamp,
        done_until: Option<Timestamp>,
    ) -> Result<(Vec<Part>, bool)> {
        let (component, workflow) = self.resolve(&name.to_string()).await?;
        let input = component.manifest.workflows[&workflow].scheduled_input(slot);
        let part = self.part(name.to_string(), input.to_string().into()).await?;
        let runs: Vec<NewRun> = started(&part).cloned().into_iter().collect();
        let emission = Emission {
            source: Source::Schedule {
                name: name.clone(),
                done_until,
            },
            id: Some(IdempotencyKey::new(slot_text(slot))?),
            request: Digest::of(slot_text(slot)),
            parts: vec![part],
            now: self.0.clock.now(),
        };
        let emitted = self.0.store.emit(emission).await;
        match emitted.inspect_err(|error| self.note_failure(error))? {
            Emitted::Done { parts, fresh } => {
                if fresh {
                    self.begin_parts(&parts, runs);
                }
                Ok((parts, fresh))
            }
            Emitted::KeyConflict => Err(Error::KeyConflict),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;

    fn hourly(catch_up: CatchUp) -> Schedule {
        let spec = ScheduleSpec {
            cron: "0 * * * *".into(),
            time_zone: "UTC".into(),
            catch_up,
        };
        Schedule::new(spec).unwrap()
    }

    #[test]
    fn e10_what_is_next_after_hours_without_a_host() {
        let hour = 60 * MINUTE;
        let half_past_three = 3 * hour + 30 * MINUTE;
        let cases = [
            (CatchUp::All, half_past_three, Next::Fire(hour)),
            (CatchUp::One, half_past_three, Next::Fire(3 * hour)),
            (CatchUp::Skip, half_past_three, Next::Pass(3 * hour)),
            (CatchUp::Skip, 3 * hour, Next::Pass(2 * hour)),
            (CatchUp::Skip, hour + MINUTE, Next::Fire(hour)),
            (CatchUp::All, hour - 1, Next::At(Some(hour))),
        ];
        for (catch_up, now, expected) in cases {
            assert_eq!(next(&hourly(catch_up), 0, now), expected, "{catch_up:?} at {now}");
        }
        assert_eq!(
            next(&hourly(CatchUp::Skip), 2 * hour, 3 * hour),
            Next::Fire(3 * hour)
        );
    }
}

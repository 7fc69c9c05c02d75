//! Finds runs that are due: at start, when a timer comes due, and when there is room again.
//!
//! Nothing polls: admissions, deliveries and upgrades wake their run themselves ([`Engine::wake`]).

use std::time::Duration;

use super::Engine;
use super::carry_on::carry_on;
use super::registry::{Due, Found, Place};
use crate::ids::RunId;
use crate::journal::{Deadline, Entry, Timestamp, Work};
use crate::store::{DueRun, Loaded, StoreError};

/// How soon to try again when the store could not be read.
const RETRY: Duration = Duration::from_millis(200);

impl Engine {
    /// There is news for this run: tells its activation, or begins one.
    pub(super) fn wake(&self, run: &RunId) {
        self.wake_with(
            Due {
                run: run.clone(),
                loaded: None,
                concurrency: None,
                deadline: None,
            },
            None,
        );
    }

    /// As [`Engine::wake`], for every run that something happened to, be it that it ended.
    pub(super) fn wake_all(&self, runs: &[RunId]) {
        for run in runs {
            self.wake(run);
            self.0.registry.changed(run);
        }
    }

    /// As [`Engine::wake`], for a run that was just admitted.
    pub(super) fn wake_new(&self, run: &RunId, loaded: Loaded) {
        let concurrency = loaded.run.concurrency.clone();
        let limited = concurrency.is_some().then_some(&loaded.entries);
        let deadline = limited.and_then(|entries| deadline_of(entries)).map(Deadline::at);
        let loaded = Some(loaded);
        self.wake_with(
            Due {
                run: run.clone(),
                loaded,
                concurrency,
                deadline,
            },
            None,
        );
    }

    /// As [`Engine::wake`], when the news is this entry.
    pub(super) fn wake_for(&self, run: &RunId, entry: Entry) {
        self.wake_with(
            Due {
                run: run.clone(),
                loaded: None,
                concurrency: None,
                deadline: None,
            },
            Some(entry),
        );
    }

    fn wake_with(&self, due: Due, entry: Option<Entry>) {
        if let Some(place) = self.0.registry.wake(due, entry) {
            self.begin(place);
        }
    }

    /// Begins an activation in a place that was taken for it.
    pub(super) fn begin(&self, place: Place) {
        let run = place.due.run.clone();
        let task = tokio::spawn(carry_on(self.clone(), place));
        self.0.registry.spawned(&run, task.abort_handle());
    }

    /// As [`Engine::begin`], in each of these places.
    pub(super) fn begin_all(&self, places: Vec<Place>) {
        for place in places {
            self.begin(place);
        }
    }

    /// Keeps the first error after which nothing can be written any more.
    pub(super) fn note_failure(&self, error: &StoreError) {
        if matches!(error, StoreError::Fatal(_) | StoreError::Fenced) {
            self.0.failure.send_if_modified(|failure| {
                let first = failure.is_none();
                failure.get_or_insert_with(|| error.clone());
                first
            });
        }
    }
}

pub fn spawn(engine: &Engine) {
    tokio::spawn(run(engine.clone()));
}

async fn run(engine: Engine) {
    let inner = &engine.0;
    // At start everything that is due is somebody's unfinished work.
    let mut look = true;
    let mut next: Option<Timestamp> = None;
    while !inner.registry.is_shut_down() {
        if look {
            match wake_due(&engine).await {
                Ok(soonest) => next = soonest,
                Err(error) => {
                    engine.note_failure(&error);
                    tracing::warn!(%error, "due runs could not be read; trying again");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
        }
        for run in inner.registry.take_overdue(inner.clock.now()) {
            engine.wake(&run);
        }
        let deadlines = [next, inner.registry.next_deadline()];
        let deadline = async {
            match deadlines.into_iter().flatten().min() {
                Some(at) => inner.clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = inner.registry.scheduler.notified() => {}
            () = deadline => {}
        }
        let (more, wake) = inner.registry.take_news();
        next = [next, wake].into_iter().flatten().min();
        look = more || next.is_some_and(|at| at <= inner.clock.now());
    }
}

/// What follows, and when, when a run that has this journal has had its time.
pub(super) fn deadline_of(entries: &[Entry]) -> Option<Deadline> {
    let mut work = Work::default();
    entries.iter().for_each(|entry| work.apply(entry));
    work.deadline
}

/// Takes in what is due, as much as there is room for; says when the next run becomes due.
async fn wake_due(engine: &Engine) -> Result<Option<Timestamp>, StoreError> {
    let inner = &engine.0;
    let now = inner.clock.now();
    let slot = engine.fire_due(now).await?;
    // Runs that are active or wait for room are due as well. One more than there is room for tells the
    // registry that there are more.
    let limit = inner.registry.capacity() + 1;
    let full = inner.registry.full_groups();
    for DueRun { run, concurrency } in inner.store.due(now, limit, &full).await? {
        let due = Due {
            run,
            loaded: None,
            concurrency,
            deadline: None,
        };
        let run = due.run.clone();
        match inner.registry.find(due) {
            Found::Begins(place) => engine.begin(*place),
            Found::Waits => {
                let first = inner.store.journal(&run, 0, 1).await?;
                // Most have no time of their own, and their journals need not be read.
                if first.is_some_and(|first| deadline_of(&first).is_some())
                    && let Some(loaded) = inner.store.load(&run, 0).await?
                    && let Some(at) = deadline_of(&loaded.entries).map(Deadline::at)
                {
                    inner.registry.set_deadline(&run, at);
                }
            }
            Found::Known => {}
        }
    }
    let due = inner.store.next_due(now).await?;
    Ok([due, slot].into_iter().flatten().min())
}

//! Which runs are active in this process, and who must be told when one changes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::ids::RunId;
use crate::journal::Timestamp;

/// Runs with an activation, and watchers of runs. One entry a run: a run is never carried on twice at once.
pub struct Registry {
    max_resident: usize,
    inner: Mutex<Active>,
    /// Tells the scheduler to look at the store, or at its deadline, again.
    pub scheduler: Notify,
}

#[derive(Default)]
struct Active {
    runs: HashMap<RunId, Slot>,
    watchers: HashMap<RunId, watch::Sender<()>>,
    /// A run was due and found no room: the scheduler must look for it when there is room again.
    backlog: bool,
    /// The soonest wake of a run that left the process since the scheduler last looked.
    next_wake: Option<Timestamp>,
    shut_down: bool,
}

struct Slot {
    signal: Arc<Signal>,
    task: Option<AbortHandle>,
    /// Since when its guest waits with nothing to do; such an instance can be given up.
    idle_since: Option<Instant>,
}

/// How an activation hears that its run has news.
#[derive(Debug, Default)]
pub struct Signal {
    news: AtomicU64,
    /// News that the activation has taken in.
    seen: AtomicU64,
    notify: Notify,
    evict: Notify,
}

impl Signal {
    /// The activation is about to read the journal: what was told up to now is in there.
    pub fn take_in(&self) {
        self.seen
            .store(self.news.load(Ordering::Acquire), Ordering::Release);
    }

    fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire) != self.seen.load(Ordering::Acquire)
    }

    /// Returns once there is news that the activation has not taken in.
    pub async fn news(&self) {
        loop {
            let notified = self.notify.notified();
            if self.has_news() {
                return;
            }
            notified.await;
        }
    }

    /// Returns when the instance is wanted back.
    pub async fn evicted(&self) {
        self.evict.notified().await;
    }

    fn tell(&self) {
        self.news.fetch_add(1, Ordering::AcqRel);
        self.notify.notify_waiters();
        self.notify.notify_one();
    }
}

/// What waking a run came to.
pub enum Woken {
    /// Its activation was told.
    Told,
    /// An activation must be spawned with this signal; its place is taken.
    Spawn(Arc<Signal>),
    /// There is no room; the scheduler comes back to it.
    Later,
}

impl Registry {
    pub fn new(max_resident: usize) -> Self {
        Self {
            max_resident: max_resident.max(1),
            inner: Mutex::default(),
            scheduler: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Active> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is news for this run.
    pub fn wake(&self, run: &RunId) -> Woken {
        let mut active = self.lock();
        if let Some(slot) = active.runs.get(run) {
            slot.signal.tell();
            return Woken::Told;
        }
        if active.shut_down {
            return Woken::Later;
        }
        if active.runs.len() >= self.max_resident {
            active.backlog = true;
            // The longest idle makes room.
            let idle = active
                .runs
                .values()
                .filter_map(|s| Some((s.idle_since?, &s.signal)));
            if let Some((_, signal)) = idle.min_by_key(|(since, _)| *since) {
                signal.evict.notify_one();
            }
            return Woken::Later;
        }
        let signal = Arc::new(Signal::default());
        let slot = Slot {
            signal: signal.clone(),
            task: None,
            idle_since: None,
        };
        active.runs.insert(run.clone(), slot);
        Woken::Spawn(signal)
    }

    /// The task that carries the run on, so that it can be ended.
    pub fn spawned(&self, run: &RunId, task: AbortHandle) {
        let mut active = self.lock();
        if active.shut_down {
            task.abort();
        } else if let Some(slot) = active.runs.get_mut(run) {
            slot.task = Some(task);
        }
    }

    /// The guest waits with nothing to do, or has something to do again.
    pub fn set_idle(&self, run: &RunId, idle: bool) {
        let mut active = self.lock();
        let wanted = idle && active.backlog;
        if let Some(slot) = active.runs.get_mut(run) {
            slot.idle_since = idle.then(Instant::now);
            // A run that found no room waits for this place.
            if wanted {
                slot.signal.evict.notify_one();
            }
        }
    }

    /// The activation ends, unless there is news that it has not taken in: then it must go on, and this is
    /// false.
    pub fn leave(&self, run: &RunId, wake_at: Option<Timestamp>) -> bool {
        let mut active = self.lock();
        if active.runs.get(run).is_some_and(|slot| slot.signal.has_news()) {
            return false;
        }
        active.runs.remove(run);
        if let Some(at) = wake_at {
            active.next_wake = Some(active.next_wake.map_or(at, |next| next.min(at)));
        }
        if wake_at.is_some() || active.backlog {
            self.scheduler.notify_one();
        }
        true
    }

    /// Gives up the place of an activation that died; its run goes on at the next start.
    pub fn drop_slot(&self, run: &RunId) {
        self.lock().runs.remove(run);
    }

    /// What the scheduler must take into account since it last asked: runs that found no room, and the
    /// soonest wake of those that left.
    pub fn take_news(&self) -> (bool, Option<Timestamp>) {
        let mut active = self.lock();
        (std::mem::take(&mut active.backlog), active.next_wake.take())
    }

    /// Activations that may still be added.
    pub fn room(&self) -> usize {
        self.max_resident.saturating_sub(self.lock().runs.len())
    }

    /// Activations there are.
    pub fn resident(&self) -> usize {
        self.lock().runs.len()
    }

    /// Hears of every change of this run's status from now on.
    pub fn watch(&self, run: &RunId) -> watch::Receiver<()> {
        let mut active = self.lock();
        let sender = active.watchers.entry(run.clone());
        sender.or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    /// Tells watchers that the run ended or was blocked.
    pub fn changed(&self, run: &RunId) {
        let mut active = self.lock();
        if let Some(sender) = active.watchers.get(run) {
            sender.send_replace(());
            if sender.receiver_count() == 0 {
                active.watchers.remove(run);
            }
        }
    }

    /// Forgets watchers that nobody listens to any more.
    pub fn tidy_watchers(&self) {
        self.lock()
            .watchers
            .retain(|_, sender| sender.receiver_count() > 0);
    }

    pub async fn shutdown(&self) {
        let tasks: Vec<_> = {
            let mut active = self.lock();
            active.shut_down = true;
            active.runs.drain().filter_map(|(_, slot)| slot.task).collect()
        };
        for task in &tasks {
            task.abort();
        }
        self.scheduler.notify_one();
        while tasks.iter().any(|task| !task.is_finished()) {
            tokio::task::yield_now().await;
        }
    }

    pub fn is_shut_down(&self) -> bool {
        self.lock().shut_down
    }
}

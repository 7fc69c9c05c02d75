//! Which runs are active in this process, and who must be told when one changes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::groups::{Entered, Groups};
use crate::ids::{ConcurrencyGroup, RunId};
use crate::journal::{Concurrency, Entry, Timestamp};
use crate::store::{Loaded, RunInfo, Waits};

/// Runs that wait for room in memory, and as many that wait for others of their group to rest or end; more of them
/// wait in the store.
const MAX_WAITING: usize = 10_000;

/// Fewer watchers are not worth tidying.
const MIN_TIDY: usize = 64;

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
    /// Of how runs stand.
    watchers: Watchers,
    /// Of what runs write.
    readers: Watchers,
    /// Due, and without room; first come, first served. Their journals are read when it is their turn: meanwhile
    /// they may change, or end.
    waiting: VecDeque<RunId>,
    /// The runs in `waiting`.
    queued: HashSet<RunId>,
    /// More runs are due than `waiting` holds: the scheduler must look for them when it has emptied.
    overflow: bool,
    /// The soonest wake, since the scheduler last looked, of a run that left the process or has not begun.
    next_wake: Option<Timestamp>,
    groups: Groups,
    shut_down: bool,
}

#[derive(Default)]
struct Watchers {
    senders: HashMap<RunId, watch::Sender<()>>,
    /// At this many those that nobody listens to are forgotten.
    tidy_at: usize,
}

impl Watchers {
    fn watch(&mut self, run: &RunId) -> watch::Receiver<()> {
        if self.senders.len() >= self.tidy_at {
            // Most have heard what they waited for.
            self.senders.retain(|_, sender| sender.receiver_count() > 0);
            self.tidy_at = (2 * self.senders.len()).max(MIN_TIDY);
        }
        let sender = self.senders.entry(run.clone());
        sender.or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    fn tell(&mut self, run: &RunId) {
        if let Some(sender) = self.senders.get(run) {
            sender.send_replace(());
            if sender.receiver_count() == 0 {
                self.senders.remove(run);
            }
        }
    }
}

/// A run that has something to do.
pub struct Due {
    pub run: RunId,
    /// What its journal holds at least, where that is known.
    pub loaded: Option<Loaded>,
    /// What limits it, where that is known; its activation asks where it is not.
    pub concurrency: Option<Concurrency>,
    /// When its time is over, where that is known and it has one.
    pub deadline: Option<Timestamp>,
}

/// What became of a run that was found in the store.
pub enum Found {
    /// Its activation can begin.
    Begins(Box<Place>),
    /// It waits for its turn, and its journal says until when it may.
    Waits,
    /// It is known, or waits for room.
    Known,
}

/// A place for an activation, taken.
pub struct Place {
    pub due: Due,
    pub signal: Arc<Signal>,
}

struct Slot {
    signal: Arc<Signal>,
    task: Option<AbortHandle>,
    /// Since when its guest waits with nothing to do, or for its turn; such an instance can be given up.
    idle_since: Option<Instant>,
    /// Its turn has come, and it does not know yet.
    its_turn: bool,
}

/// How an activation hears that its run has news.
#[derive(Debug, Default)]
pub struct Signal {
    news: AtomicU64,
    /// News that the activation has taken in.
    seen: AtomicU64,
    notify: Notify,
    evict: Notify,
    turn: Notify,
    told: Mutex<Told>,
}

/// Entries that others wrote, so that the activation need not read them.
#[derive(Debug, Default)]
struct Told {
    entries: Vec<Entry>,
    /// There is more than these, or was too much to keep: the journal must be read.
    incomplete: bool,
}

/// Entries kept for an activation; of more it reads the journal.
const MAX_TOLD: usize = 64;

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

    /// Returns when the run's turn may have come: see [`Registry::take_turn`].
    pub async fn turn(&self) {
        self.turn.notified().await;
    }

    /// The entries that were told since this was last asked, in order; `None` when the journal must be read.
    pub fn entries(&self) -> Option<Vec<Entry>> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let Told {
            mut entries,
            incomplete,
        } = std::mem::take(&mut *told);
        entries.sort_unstable_by_key(|entry| entry.seq);
        (!incomplete).then_some(entries)
    }

    fn tell(&self, entry: Option<Entry>) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match entry {
            Some(entry) if told.entries.len() < MAX_TOLD => told.entries.push(entry),
            _ => {
                *told = Told {
                    entries: Vec::new(),
                    incomplete: true,
                }
            }
        }
        drop(told);
        self.news.fetch_add(1, Ordering::AcqRel);
        self.notify.notify_waiters();
        self.notify.notify_one();
    }
}

/// What became of an activation that wanted to end.
pub enum Left {
    /// There is news that it has not taken in: it must go on.
    Stay,
    /// Its place is free, or taken by a run that waited for it. What can begin now.
    Gone(Vec<Place>),
}

/// What became of a run that wants to work.
pub enum Turn {
    /// It may.
    Now,
    /// It waits with its instance, and hears of its turn.
    Waits,
    /// It gave its place up, and is given one when its turn comes. What can begin now.
    Later(Vec<Place>),
}

impl Active {
    fn take_place(&mut self, due: Due) -> Place {
        let signal = Arc::new(Signal::default());
        let slot = Slot {
            signal: signal.clone(),
            task: None,
            idle_since: None,
            its_turn: false,
        };
        self.runs.insert(due.run.clone(), slot);
        Place { due, signal }
    }

    /// The next that wait, as many as there is room for.
    fn next(&mut self, max_resident: usize) -> Vec<Place> {
        let mut places = Vec::new();
        while !self.shut_down
            && self.runs.len() < max_resident
            && let Some(run) = self.waiting.pop_front()
        {
            self.queued.remove(&run);
            places.push(self.take_place(Due {
                run,
                loaded: None,
                concurrency: None,
                deadline: None,
            }));
        }
        places
    }

    /// The turn of these runs has come. Those without a place get one, or wait for room.
    fn call(&mut self, turn: Vec<RunId>, max_resident: usize) -> Vec<Place> {
        let mut without_place = 0;
        for run in turn {
            if let Some(slot) = self.runs.get_mut(&run) {
                slot.its_turn = true;
                slot.idle_since = None;
                slot.signal.turn.notify_one();
            } else if self.queued.insert(run.clone()) {
                self.waiting.push_back(run);
                without_place += 1;
            }
        }
        let places = self.next(max_resident);
        for _ in 0..without_place.min(self.waiting.len()) {
            self.evict_one();
        }
        places
    }

    fn expect(&mut self, at: Timestamp) {
        self.next_wake = Some(self.next_wake.map_or(at, |next| next.min(at)));
    }

    /// The longest idle is asked to make room; the next time, another.
    fn evict_one(&mut self) {
        let idle = self.runs.values_mut().filter(|slot| slot.idle_since.is_some());
        if let Some(slot) = idle.min_by_key(|slot| slot.idle_since) {
            slot.idle_since = None;
            slot.signal.evict.notify_one();
        }
    }
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

    /// There is news for this run: its activation is told, or it gets a place, now or when one is free.
    /// `entry` is the news, where it is one entry that was written.
    pub fn wake(&self, due: Due, entry: Option<Entry>) -> Option<Place> {
        let mut active = self.lock();
        if let Some(slot) = active.runs.get(&due.run) {
            slot.signal.tell(entry);
            return None;
        }
        // A payload is read when its turn has come. Other news may be that it need not wait any longer.
        if entry.is_some() && active.groups.is_waiting(&due.run) {
            return None;
        }
        self.place(&mut active, due)
    }

    /// As [`Registry::wake`], for runs found in the store: an activation that there is knows by itself.
    pub fn find(&self, due: Due) -> Found {
        let mut active = self.lock();
        let run = due.run.clone();
        if active.runs.contains_key(&run) || active.groups.is_waiting(&run) {
            return Found::Known;
        }
        match self.place(&mut active, due) {
            Some(place) => Found::Begins(Box::new(place)),
            None if active.groups.is_waiting(&run) => Found::Waits,
            None => Found::Known,
        }
    }

    fn place(&self, active: &mut Active, due: Due) -> Option<Place> {
        if active.shut_down || active.queued.contains(&due.run) {
            return None;
        }
        if active.runs.len() >= self.max_resident && active.waiting.len() >= MAX_WAITING {
            active.overflow = true;
            active.evict_one();
            return None;
        }
        if let Some(concurrency) = &due.concurrency
            && self.enter(active, &due.run, concurrency, due.deadline) != Entered::In
        {
            self.look_for_more(active);
            return None;
        }
        if active.runs.len() < self.max_resident {
            return Some(active.take_place(due));
        }
        active.queued.insert(due.run.clone());
        active.waiting.push_back(due.run);
        active.evict_one();
        None
    }

    fn enter(
        &self,
        active: &mut Active,
        run: &RunId,
        concurrency: &Concurrency,
        deadline: Option<Timestamp>,
    ) -> Entered {
        let entered = active.groups.enter(run, concurrency, MAX_WAITING);
        if entered == Entered::Queued && deadline.is_some() {
            active.groups.set_deadline(run, deadline);
            self.scheduler.notify_one();
        }
        entered
    }

    /// The time of a run that waits for its turn is over then.
    pub fn set_deadline(&self, run: &RunId, at: Timestamp) {
        self.lock().groups.set_deadline(run, Some(at));
        self.scheduler.notify_one();
    }

    /// When the time of a run that waits for its turn is over.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.lock().groups.next_deadline()
    }

    /// Runs that wait for their turn and whose time is over.
    pub fn take_overdue(&self, now: Timestamp) -> Vec<RunId> {
        self.lock().groups.take_overdue(now)
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

    /// The guest waits with nothing to do: it is not at work. What can begin now.
    pub fn rests(&self, run: &RunId) -> Vec<Place> {
        let mut active = self.lock();
        let turn = active.groups.release(run);
        let next = active.call(turn, self.max_resident);
        let wanted = !active.waiting.is_empty();
        if let Some(slot) = active.runs.get_mut(run) {
            slot.idle_since = Some(Instant::now());
            // A run that found no room waits for this place.
            if wanted {
                slot.signal.evict.notify_one();
            }
        }
        self.look_for_more(&active);
        next
    }

    /// The guest has something to do again. While it waits for its turn its instance can be given up.
    /// `deadline`: when the run's time is over.
    pub fn wakes(&self, run: &RunId, concurrency: Option<&Concurrency>, deadline: Option<Timestamp>) -> Turn {
        let mut active = self.lock();
        let entered = concurrency.map_or(Entered::In, |concurrency| {
            self.enter(&mut active, run, concurrency, deadline)
        });
        match entered {
            Entered::In => {
                if let Some(slot) = active.runs.get_mut(run) {
                    slot.idle_since = None;
                }
                Turn::Now
            }
            Entered::Queued => Turn::Waits,
            Entered::Full => {
                self.look_for_more(&active);
                Turn::Later(Vec::new())
            }
        }
    }

    /// Whether the turn of a run that waits with its instance has come.
    pub fn take_turn(&self, run: &RunId) -> bool {
        let mut active = self.lock();
        let slot = active.runs.get_mut(run);
        slot.is_some_and(|slot| std::mem::take(&mut slot.its_turn))
    }

    /// An activation is about to let its guest run.
    pub fn begins(&self, run: &RunId, concurrency: &Concurrency, deadline: Option<Timestamp>) -> Turn {
        let mut active = self.lock();
        match self.enter(&mut active, run, concurrency, deadline) {
            Entered::In => {
                if let Some(slot) = active.runs.get_mut(run) {
                    slot.its_turn = false;
                }
                Turn::Now
            }
            Entered::Queued | Entered::Full => Turn::Later(self.vacate(&mut active, run)),
        }
    }

    /// A run has ended that may have waited for its turn.
    pub fn withdraw(&self, run: &RunId) {
        let mut active = self.lock();
        active.groups.withdraw(run);
        // It may wait with its instance, and would for as long as such are kept.
        if let Some(slot) = active.runs.get(run) {
            slot.signal.evict.notify_one();
        }
        self.look_for_more(&active);
    }

    /// A workflow was deployed, with this limit. What can begin now.
    pub fn declare(&self, workflow: &str, limit: Option<NonZeroU32>) -> Vec<Place> {
        let mut active = self.lock();
        let turn = active.groups.declare(workflow, limit);
        active.call(turn, self.max_resident)
    }

    /// As [`Groups::undeclare`].
    pub fn undeclare(&self, workflow: &str) -> Vec<Place> {
        let mut active = self.lock();
        let turn = active.groups.undeclare(workflow);
        active.call(turn, self.max_resident)
    }

    /// Why this run does not go on, if it waits for its turn.
    pub fn waits(&self, run: &RunInfo, now: Timestamp) -> Option<Waits> {
        let concurrency = run.concurrency.as_ref()?;
        let active = self.lock();
        let known = active.groups.is_waiting(&run.id);
        // Of those that wait in the store alone: it has something to do, and nobody does it.
        let due = run.wake_at.is_none_or(|at| at <= now);
        let lost = due && !active.runs.contains_key(&run.id) && !active.queued.contains(&run.id);
        let waits = (known || lost).then(|| active.groups.waits(&run.id, concurrency));
        waits.flatten()
    }

    /// Groups of which nothing is to be looked for in the store.
    pub fn full_groups(&self) -> Vec<ConcurrencyGroup> {
        self.lock().groups.full()
    }

    /// The activation wants to end and leave its place to whoever waits. `wake_at` is when its run becomes due
    /// by itself.
    pub fn leave(&self, run: &RunId, wake_at: Option<Timestamp>) -> Left {
        let mut active = self.lock();
        // Whoever waits for its turn hears of its news then.
        let waits = active.groups.is_waiting(run);
        if let Some(slot) = active.runs.get_mut(run)
            && (std::mem::take(&mut slot.its_turn) || (slot.signal.has_news() && !waits))
        {
            slot.idle_since = None;
            return Left::Stay;
        }
        if let Some(at) = wake_at {
            active.expect(at);
            self.scheduler.notify_one();
        }
        Left::Gone(self.vacate(&mut active, run))
    }

    /// A run becomes due by itself that has no place here.
    pub fn expect(&self, at: Timestamp) {
        self.lock().expect(at);
        self.scheduler.notify_one();
    }

    /// Gives up the place of an activation that died; its run goes on at the next start.
    pub fn drop_slot(&self, run: &RunId) -> Vec<Place> {
        self.vacate(&mut self.lock(), run)
    }

    fn vacate(&self, active: &mut Active, run: &RunId) -> Vec<Place> {
        active.runs.remove(run);
        active.watchers.tell(run);
        let turn = active.groups.release(run);
        let next = match active.shut_down {
            true => Vec::new(),
            false => active.call(turn, self.max_resident),
        };
        self.look_for_more(active);
        next
    }

    /// Tells the scheduler when there is room for runs that wait in the store.
    fn look_for_more(&self, active: &Active) {
        if (active.overflow && active.waiting.len() < MAX_WAITING / 2) || active.groups.wants_look() {
            self.scheduler.notify_one();
        }
    }

    /// What the scheduler must take into account since it last asked: whether more is due than waits here, and
    /// the soonest wake of the runs that left.
    pub fn take_news(&self) -> (bool, Option<Timestamp>) {
        let mut active = self.lock();
        let look = active.overflow && active.waiting.len() < MAX_WAITING / 2;
        if look {
            active.overflow = false;
        }
        let look = active.groups.take_look() || look;
        (look, active.next_wake.take())
    }

    /// Runs that are active or wait here, at most.
    pub fn capacity(&self) -> usize {
        self.max_resident + 2 * MAX_WAITING
    }

    /// Whether a run is at work here, or was and keeps its instance.
    pub fn is_active(&self, run: &RunId) -> bool {
        self.lock().runs.contains_key(run)
    }

    /// Returns once no activation of the run is here.
    pub async fn gone(&self, run: &RunId) {
        while self.is_active(run) {
            let mut changes = self.watch(run);
            if !self.is_active(run) || changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Activations there are.
    pub fn resident(&self) -> usize {
        self.lock().runs.len()
    }

    /// Hears of every change of this run's status from now on.
    pub fn watch(&self, run: &RunId) -> watch::Receiver<()> {
        self.lock().watchers.watch(run)
    }

    /// Hears of every chunk that this run writes from now on, and of its end. Closed when the host stops.
    pub fn watch_output(&self, run: &RunId) -> watch::Receiver<()> {
        let mut active = self.lock();
        match active.shut_down {
            true => watch::Sender::new(()).subscribe(),
            false => active.readers.watch(run),
        }
    }

    /// Tells watchers that the run ended or was blocked.
    pub fn changed(&self, run: &RunId) {
        let mut active = self.lock();
        active.watchers.tell(run);
        active.readers.tell(run);
    }

    /// Tells those who read along that there are more chunks.
    pub fn written(&self, run: &RunId) {
        self.lock().readers.tell(run);
    }

    pub async fn shutdown(&self) {
        let tasks: Vec<_> = {
            let mut active = self.lock();
            active.shut_down = true;
            active.readers = Watchers::default();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Its turn came as it gave its instance up, and it has ended since: it is told once, and not for ever.
    #[test]
    fn who_is_told_of_its_turn_may_leave_all_the_same() {
        let registry = Registry::new(10);
        let one = Concurrency {
            group: ConcurrencyGroup::new("w").unwrap(),
            limit: NonZeroU32::MIN,
        };
        let [first, second, third] = ["a", "b", "c"].map(|id| RunId::new(id).unwrap());
        for run in [&first, &second] {
            let due = Due {
                run: run.clone(),
                loaded: None,
                concurrency: None,
                deadline: None,
            };
            assert!(registry.wake(due, None).is_some());
        }
        assert!(matches!(registry.begins(&first, &one, None), Turn::Now));
        assert!(matches!(registry.wakes(&second, Some(&one), None), Turn::Waits));
        assert!(matches!(registry.leave(&first, None), Left::Gone(_)));
        assert!(matches!(registry.leave(&second, None), Left::Stay));
        assert!(matches!(registry.leave(&second, None), Left::Gone(_)));
        assert!(matches!(registry.begins(&third, &one, None), Turn::Now));
    }
}

//! Concurrency groups: which runs are at work, and which wait for one of those to rest or end.
//!
//! Counted in memory, as one process owns the database: what is at work ends with it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::num::NonZeroU32;

use crate::ids::{ConcurrencyGroup, RunId};
use crate::journal::{Concurrency, Timestamp};
use crate::store::Waits;

/// Groups that have a run at work or one that waits, and what is known of limits.
#[derive(Default)]
pub struct Groups {
    /// Of each workflow, as the newest deployment that has it says: at most so many at once, or any number.
    declared: HashMap<String, Option<NonZeroU32>>,
    groups: HashMap<ConcurrencyGroup, Group>,
    members: HashMap<RunId, Member>,
    /// Runs that wait, of all groups.
    waiting: usize,
    /// When the time of runs that wait is over, of those that have a time.
    deadlines: BTreeSet<(Timestamp, RunId)>,
    /// A group has room for runs that wait in the store alone.
    look: bool,
    last_ticket: u64,
}

#[derive(Default)]
struct Group {
    at_work: usize,
    /// In order of their tickets: first come, first served.
    queue: VecDeque<(u64, RunId)>,
    /// More runs wait than the queue holds: those are found in the store when it has emptied, and nobody overtakes
    /// them.
    overflow: bool,
}

struct Member {
    concurrency: Concurrency,
    /// Absent when it is at work.
    ticket: Option<u64>,
    /// When its time is over, as long as it waits and nobody was told.
    deadline: Option<Timestamp>,
}

/// What became of a run that wants to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered {
    /// It is at work.
    In,
    /// It is told when its turn comes.
    Queued,
    /// Too many wait: it is found in the store when it may be its turn.
    Full,
}

impl Groups {
    /// A run wants to work. Asking again changes nothing.
    pub fn enter(&mut self, run: &RunId, concurrency: &Concurrency, max_waiting: usize) -> Entered {
        if let Some(member) = self.members.get(run) {
            return match member.ticket {
                None => Entered::In,
                Some(_) => Entered::Queued,
            };
        }
        let limit = self.limit(concurrency);
        let group = self.groups.entry(concurrency.group.clone()).or_default();
        let room = limit.is_none_or(|limit| group.at_work < limit);
        let ticket = if room && group.queue.is_empty() && !group.overflow {
            group.at_work += 1;
            None
        } else if self.waiting < max_waiting && !group.overflow {
            self.last_ticket += 1;
            self.waiting += 1;
            group.queue.push_back((self.last_ticket, run.clone()));
            Some(self.last_ticket)
        } else {
            group.overflow = true;
            // Nobody may be at work who makes it look later.
            self.look |= room && group.queue.is_empty();
            return Entered::Full;
        };
        let member = Member {
            concurrency: concurrency.clone(),
            ticket,
            deadline: None,
        };
        self.members.insert(run.clone(), member);
        match ticket {
            None => Entered::In,
            Some(_) => Entered::Queued,
        }
    }

    /// The time of a run ends then, and if it waits until then somebody must look.
    pub fn set_deadline(&mut self, run: &RunId, at: Option<Timestamp>) {
        if let Some(member) = self.members.get_mut(run).filter(|member| member.ticket.is_some()) {
            forget_deadline(&mut self.deadlines, run, member);
            member.deadline = at;
            self.deadlines.extend(at.map(|at| (at, run.clone())));
        }
    }

    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The runs that wait and whose time is over, once each.
    pub fn take_overdue(&mut self, now: Timestamp) -> Vec<RunId> {
        let mut overdue = Vec::new();
        while self.next_deadline().is_some_and(|at| at <= now)
            && let Some((_, run)) = self.deadlines.pop_first()
        {
            if let Some(member) = self.members.get_mut(&run) {
                member.deadline = None;
            }
            overdue.push(run);
        }
        overdue
    }

    /// A run rests or has ended, if it was at work. The runs whose turn it is now are at work.
    pub fn release(&mut self, run: &RunId) -> Vec<RunId> {
        if !self.is_at_work(run) {
            return Vec::new();
        }
        let Some(Member { concurrency, .. }) = self.members.remove(run) else {
            return Vec::new();
        };
        if let Some(group) = self.groups.get_mut(&concurrency.group) {
            group.at_work -= 1;
        }
        self.fill(&concurrency.group)
    }

    /// A run has ended, and waits no longer. Whoever is at work is told by its activation.
    pub fn withdraw(&mut self, run: &RunId) {
        let Some(ticket) = self.members.get(run).and_then(|member| member.ticket) else {
            return;
        };
        let Some(mut member) = self.members.remove(run) else {
            return;
        };
        forget_deadline(&mut self.deadlines, run, &mut member);
        let concurrency = member.concurrency;
        if let Some(group) = self.groups.get_mut(&concurrency.group)
            && let Ok(place) = group.queue.binary_search_by_key(&ticket, |(ticket, _)| *ticket)
        {
            group.queue.remove(place);
            self.waiting -= 1;
        }
        self.tidy(&concurrency.group);
    }

    /// A workflow was deployed, and this is its limit now. The runs whose turn it is since are at work.
    pub fn declare(&mut self, workflow: &str, limit: Option<NonZeroU32>) -> Vec<RunId> {
        self.declared.insert(workflow.to_owned(), limit);
        self.fill_all(workflow)
    }

    /// No deployment has the workflow any more: what its runs were admitted with counts.
    pub fn undeclare(&mut self, workflow: &str) -> Vec<RunId> {
        self.declared.remove(workflow);
        self.fill_all(workflow)
    }

    /// Lets in the runs of a workflow whose turn it is since its limit changed.
    fn fill_all(&mut self, workflow: &str) -> Vec<RunId> {
        let mut groups: Vec<_> = self.groups.keys().cloned().collect();
        groups.retain(|group| group.workflow() == workflow);
        groups.iter().flat_map(|group| self.fill(group)).collect()
    }

    /// Lets in as many as there is room for, the first first.
    fn fill(&mut self, name: &ConcurrencyGroup) -> Vec<RunId> {
        let mut turn = Vec::new();
        while let Some(group) = self.groups.get(name)
            && let Some((_, run)) = group.queue.front()
        {
            let run = run.clone();
            let concurrency = self.members.get(&run).map(|member| member.concurrency.clone());
            let limit = concurrency.and_then(|concurrency| self.limit(&concurrency));
            let Some(group) = self.groups.get_mut(name) else {
                break;
            };
            if limit.is_some_and(|limit| group.at_work >= limit) {
                break;
            }
            group.queue.pop_front();
            group.at_work += 1;
            self.waiting -= 1;
            if let Some(member) = self.members.get_mut(&run) {
                forget_deadline(&mut self.deadlines, &run, member);
                member.ticket = None;
            }
            turn.push(run);
        }
        self.tidy(name);
        turn
    }

    fn tidy(&mut self, name: &ConcurrencyGroup) {
        let Some(group) = self.groups.get(name).filter(|group| group.queue.is_empty()) else {
            return;
        };
        if group.overflow {
            self.look = true;
        } else if group.at_work == 0 {
            self.groups.remove(name);
        }
    }

    pub fn wants_look(&self) -> bool {
        self.look
    }

    /// Whether the scheduler must look for runs in the store, since a group has room for them. They come as any other.
    pub fn take_look(&mut self) -> bool {
        if std::mem::take(&mut self.look) {
            for group in self.groups.values_mut().filter(|group| group.queue.is_empty()) {
                group.overflow = false;
            }
            self.groups
                .retain(|_, group| group.at_work > 0 || group.overflow || !group.queue.is_empty());
            return true;
        }
        false
    }

    /// Groups of which the scheduler need not find more in the store.
    pub fn full(&self) -> Vec<ConcurrencyGroup> {
        let full = self.groups.iter().filter(|(_, group)| group.overflow);
        full.map(|(name, _)| name.clone()).collect()
    }

    /// Of the newest deployment, or else as the run was admitted with; `None` when there is none any more.
    fn limit(&self, concurrency: &Concurrency) -> Option<usize> {
        self.counts(concurrency).map(|limit| limit.get() as usize)
    }

    fn counts(&self, concurrency: &Concurrency) -> Option<NonZeroU32> {
        match self.declared.get(concurrency.group.workflow()) {
            Some(declared) => *declared,
            None => Some(concurrency.limit),
        }
    }

    pub fn is_at_work(&self, run: &RunId) -> bool {
        self.members
            .get(run)
            .is_some_and(|member| member.ticket.is_none())
    }

    pub fn is_waiting(&self, run: &RunId) -> bool {
        self.members
            .get(run)
            .is_some_and(|member| member.ticket.is_some())
    }

    /// Why this run, which has something to do, does not do it; `None` when it may.
    pub fn waits(&self, run: &RunId, concurrency: &Concurrency) -> Option<Waits> {
        let group = self.groups.get(&concurrency.group)?;
        let ahead = match self.members.get(run) {
            Some(member) => {
                let ticket = member.ticket?;
                let ahead = group.queue.partition_point(|(other, _)| *other < ticket);
                Some(ahead as u64)
            }
            None if group.overflow => None,
            None => return None,
        };
        Some(Waits::Concurrency {
            key: concurrency.group.key().map(str::to_owned),
            limit: self.counts(concurrency)?,
            ahead,
        })
    }
}

fn forget_deadline(deadlines: &mut BTreeSet<(Timestamp, RunId)>, run: &RunId, member: &mut Member) {
    if let Some(at) = member.deadline.take() {
        deadlines.remove(&(at, run.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(n: usize) -> RunId {
        RunId::new(format!("run-{n}")).unwrap()
    }

    fn limited(group: &str, limit: u32) -> Concurrency {
        Concurrency {
            group: ConcurrencyGroup::new(group).unwrap(),
            limit: NonZeroU32::new(limit).unwrap(),
        }
    }

    fn ahead(groups: &Groups, n: usize, concurrency: &Concurrency) -> Option<Option<u64>> {
        groups.waits(&run(n), concurrency).map(|waits| match waits {
            Waits::Concurrency { ahead, .. } => ahead,
            Waits::StartAt { .. } | Waits::Predecessors { .. } => unreachable!("no group says so"),
        })
    }

    #[test]
    fn the_first_come_is_the_first_served_and_groups_do_not_meet() {
        let (mut groups, one, two) = (Groups::default(), limited("w/a", 2), limited("w/b", 1));
        let entered: Vec<_> = (0..5).map(|n| groups.enter(&run(n), &one, 10)).collect();
        use Entered::{In, Queued};
        assert_eq!(entered, [In, In, Queued, Queued, Queued]);
        assert_eq!(groups.enter(&run(0), &one, 10), In, "asked again");
        assert_eq!(groups.enter(&run(9), &two, 10), In);
        assert_eq!(ahead(&groups, 4, &one), Some(Some(2)));
        assert_eq!(ahead(&groups, 0, &one), None);
        groups.withdraw(&run(3));
        assert_eq!(ahead(&groups, 4, &one), Some(Some(1)));
        assert_eq!(groups.release(&run(1)), [run(2)]);
        assert_eq!(groups.release(&run(1)), [], "it rests already");
        assert_eq!(groups.release(&run(0)), [run(4)]);
        for n in [2, 4, 9] {
            assert_eq!(groups.release(&run(n)), []);
        }
        assert!(groups.groups.is_empty() && groups.members.is_empty() && groups.waiting == 0);
    }

    #[test]
    fn the_newest_deployment_says_how_many() {
        let (mut groups, pinned) = (Groups::default(), limited("w", 1));
        for n in 0..6 {
            groups.enter(&run(n), &pinned, 10);
        }
        assert_eq!(groups.declare("other", NonZeroU32::new(9)), []);
        assert_eq!(groups.declare("w", NonZeroU32::new(3)), [run(1), run(2)]);
        // Fewer than are at work: nobody begins before it is true.
        assert_eq!(groups.declare("w", NonZeroU32::new(2)), []);
        assert_eq!(groups.release(&run(0)), []);
        assert_eq!(groups.release(&run(1)), [run(3)]);
        assert_eq!(groups.declare("w", None), [run(4), run(5)]);
        assert_eq!(groups.enter(&run(7), &pinned, 10), Entered::In);
        // Nothing is deployed that says so: one at once, as they were admitted.
        assert_eq!(groups.undeclare("w"), []);
        assert_eq!(groups.enter(&run(8), &pinned, 10), Entered::Queued);
    }

    #[test]
    fn deadlines_are_of_those_who_wait() {
        let (mut groups, one) = (Groups::default(), limited("w", 1));
        for n in 0..5 {
            groups.enter(&run(n), &one, 10);
            groups.set_deadline(&run(n), Some(100 - n as u64));
        }
        groups.set_deadline(&run(2), Some(90));
        assert_eq!(groups.next_deadline(), Some(90));
        groups.withdraw(&run(2));
        assert_eq!(groups.take_overdue(95), []);
        assert_eq!(groups.take_overdue(96), [run(4)]);
        assert_eq!(groups.take_overdue(96), []);
        assert_eq!(groups.release(&run(0)), [run(1)]);
        assert_eq!(groups.take_overdue(200), [run(3)]);
        assert_eq!(
            ahead(&groups, 4, &one),
            Some(Some(1)),
            "it waits until it has ended"
        );
        assert!(groups.deadlines.is_empty());
    }

    #[test]
    fn who_finds_the_queue_full_is_found_later_and_not_overtaken() {
        let (mut groups, one) = (Groups::default(), limited("w", 1));
        for n in 0..3 {
            groups.enter(&run(n), &one, 2);
        }
        assert_eq!(groups.enter(&run(3), &one, 2), Entered::Full);
        assert_eq!(ahead(&groups, 3, &one), Some(None));
        assert_eq!(groups.full(), std::slice::from_ref(&one.group));
        assert_eq!(groups.release(&run(0)), [run(1)]);
        // There is room in the queue, and somebody who came before.
        assert_eq!(groups.enter(&run(4), &one, 2), Entered::Full);
        assert!(!groups.take_look());
        assert_eq!(groups.release(&run(1)), [run(2)]);
        assert!(groups.take_look());
        assert!(groups.full().is_empty() && !groups.take_look());
        assert_eq!(groups.enter(&run(3), &one, 2), Entered::Queued);
        assert_eq!(groups.release(&run(2)), [run(3)]);
    }
}

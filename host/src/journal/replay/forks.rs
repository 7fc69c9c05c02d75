//! Forks as the guest passes them: whose run it is, and what it draws.
//!
//! The guest has passed a fork when it has made every copied call and was told everything that the copied entries tell:
//! what it asks for next is no longer in them. No copied call can depend on what it draws from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Replay;
use crate::ids::{HookToken, RunId};
use crate::journal::entry::{CallNo, Entry, Event, Forked, HookNo};

#[derive(Debug)]
struct Fork {
    /// Of the entry that says so.
    index: usize,
    /// Calls in the copied part.
    calls: CallNo,
    /// Index of the last copied entry that tells the guest something.
    news: usize,
    forked: Forked,
}

#[derive(Debug)]
pub(super) struct Forks {
    /// In order of the journal.
    all: Vec<Fork>,
    /// How many of them the guest has passed.
    passed: usize,
    /// Index of the last entry so far that tells the guest something.
    news: usize,
    seed: Arc<AtomicU64>,
}

impl Forks {
    pub fn new(seed: u64) -> Self {
        Self {
            all: Vec::new(),
            passed: 0,
            news: 0,
            seed: Arc::new(AtomicU64::new(seed)),
        }
    }

    /// Takes note of an entry, before which so many calls were made.
    pub fn note(&mut self, entry: &Entry, calls: CallNo) {
        let index = entry.seq as usize;
        if let Event::Forked(forked) = &entry.event {
            self.all.push(Fork {
                index,
                calls,
                news: self.news,
                forked: (**forked).clone(),
            });
        } else if entry.event.is_news() {
            self.news = index;
        }
    }
}

impl Replay {
    /// Notices that the guest has passed a fork. To be asked whenever it made a call or observed an entry.
    pub(super) fn pass_forks(&mut self) {
        while let Some(fork) = self.forks.all.get(self.forks.passed) {
            let made_all = self.next_call == fork.calls && self.horizon >= fork.news;
            if self.horizon < fork.index && self.next_call <= fork.calls && !made_all {
                return;
            }
            self.forks.seed.store(fork.forked.seed, Ordering::Relaxed);
            self.forks.passed += 1;
            for number in 0..self.hooks.len() as HookNo {
                self.rename_hook(number);
            }
        }
    }

    /// Gives a hook the token that the last fork which the guest has passed claimed for it. The guest may go on calling
    /// it by its old one.
    pub(super) fn rename_hook(&mut self, hook: HookNo) {
        let claimed = self.forks.all[..self.forks.passed].iter().rev();
        let mut claimed = claimed.flat_map(|fork| &fork.forked.hooks);
        if let Some((_, spec)) = claimed.find(|(number, _)| *number == hook) {
            let (token, webhook) = (spec.token.clone(), spec.webhook.as_ref());
            let url = webhook.map(|webhook| webhook.url.clone());
            self.bound.insert(token.clone(), hook);
            let hook = &mut self.hooks[hook as usize];
            (hook.token, hook.url) = (token, url);
        }
    }

    /// Whether the guest does what another run did, of which this one is a fork.
    pub(super) fn is_copied(&self) -> bool {
        self.forks.passed < self.forks.all.len()
    }

    /// The id of the run as the guest knows it. `own` is that of the run whose journal this is.
    pub fn run_id<'a>(&'a self, own: &'a RunId) -> &'a RunId {
        let next = self.forks.all.get(self.forks.passed);
        next.map_or(own, |fork| &fork.forked.of)
    }

    /// The seed of what the guest draws: shared, and changed when the guest passes a fork.
    pub fn seed(&self) -> Arc<AtomicU64> {
        self.forks.seed.clone()
    }

    /// The tokens that the run was started with, as the guest knows them.
    pub fn start_tokens(&self) -> impl Iterator<Item = &HookToken> {
        self.hooks
            .iter()
            .take(self.started.hooks.len())
            .map(|hook| &hook.token)
    }
}

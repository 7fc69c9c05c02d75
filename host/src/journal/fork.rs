//! What a run takes over with the beginning of another run's journal, and what it does not own.

use std::collections::BTreeMap;

use super::entry::{Body, CallNo, Entry, Event, Forked, HookNo, HookSpec};
use super::outcome::{Failure, FailureKind};
use super::status::RunStatus;
use crate::ids::RunId;

/// A hook that was claimed in the copied part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedHook {
    pub spec: HookSpec,
    /// It took deliveries where the copy ends.
    pub open: bool,
    /// Its token was still its own there.
    pub claimed: bool,
}

/// What stands at the end of the entries that a fork copies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Copied {
    /// Indexed by [`HookNo`].
    pub hooks: Vec<CopiedHook>,
    /// Runs that were started and had not ended, by the calls that started them.
    children: BTreeMap<CallNo, RunId>,
    /// Where the run stands; `None` of no entries, or of some that are no journal.
    pub status: Option<RunStatus>,
}

impl Copied {
    pub fn of(entries: &[Entry]) -> Self {
        let mut copied = Self::default();
        for entry in entries {
            copied.status = RunStatus::next(copied.status, &entry.event).ok();
            copied.apply(&entry.event);
        }
        copied
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Started(started) => started.hooks.iter().for_each(|spec| self.claim(spec)),
            Event::HookClaimed { spec, .. } => self.claim(spec),
            Event::HookClosed { hook, .. } => self.change(*hook, |hook| hook.open = false),
            Event::HookDisposed { hook, .. } => self.change(*hook, |hook| {
                hook.open = false;
                hook.claimed = false;
            }),
            Event::Forked(forked) => {
                for (number, spec) in &forked.hooks {
                    self.change(*number, |hook| hook.spec = spec.clone());
                }
            }
            Event::ChildStarted { call, run, .. } => {
                self.children.insert(*call, run.clone());
            }
            Event::ChildEnded { call, .. } => {
                self.children.remove(call);
            }
            _ => {}
        }
    }

    fn claim(&mut self, spec: &HookSpec) {
        self.hooks.push(CopiedHook {
            spec: spec.clone(),
            open: true,
            claimed: true,
        });
    }

    fn change(&mut self, hook: HookNo, change: impl FnOnce(&mut CopiedHook)) {
        if let Some(hook) = self.hooks.get_mut(hook as usize) {
            change(hook);
        }
    }

    /// The hooks that take deliveries, by number.
    pub fn open_hooks(&self) -> impl Iterator<Item = (HookNo, &HookSpec)> {
        let numbered = (0..).zip(&self.hooks);
        numbered
            .filter(|(_, hook)| hook.open)
            .map(|(number, hook)| (number, &hook.spec))
    }

    /// The entries that follow the copied ones, so that the guest is told what its run does not own: tokens that it was
    /// given no others for, and runs that the other one started.
    pub fn followed_by(&self, forked: Forked) -> Vec<(Event, Option<Body>)> {
        let kept = |number: &HookNo| forked.hooks.iter().any(|(hook, _)| hook == number);
        let lost = (0..).zip(&self.hooks).filter(|(_, hook)| hook.claimed);
        let disposed: Vec<_> = lost
            .filter(|(number, _)| !kept(number))
            .map(|(hook, _)| (Event::hook_freed(hook), None))
            .collect();
        let of = forked.of.clone();
        let ended = self.children.iter().map(|(call, child)| {
            let text = format!("child run {child} belongs to run {of}, which started it; this run is a fork");
            let failure = Failure::new(FailureKind::NotForked, text);
            let event = Event::ChildEnded {
                call: *call,
                status: RunStatus::Failed,
            };
            (event, Some(Body::new(failure.to_json())))
        });
        std::iter::once((Event::Forked(Box::new(forked)), None))
            .chain(disposed)
            .chain(ended)
            .collect()
    }
}

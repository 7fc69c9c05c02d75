//! Hooks as the guest sees them: claims, queues and what was taken, up to the horizon.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::Serialize;

use super::calls::{Found, text_of};
use super::promises::Awaited;
use super::{GuestError, PromiseId, Replay, Result};
use crate::ids::HookToken;
use crate::journal::divergence::Call;
use crate::journal::entry::{CallNo, Entry, Event, HookNo, HookSpec, NewEntry, Seq};

/// What a guest's hook handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HookHandle {
    Own(HookNo),
    /// The call that met another owner.
    Conflict(CallNo),
}

/// The answer to opening a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    Handle(HookHandle),
    /// Commit the new entries, then ask [`Replay::opened`].
    AfterCommit(CallNo),
}

/// A claim as the guest sees it.
#[derive(Debug)]
pub(super) struct Hook {
    pub(super) token: HookToken,
    pub(super) url: Option<String>,
    /// Entries of payloads up to the horizon that the guest did not take.
    pub(super) queue: VecDeque<usize>,
    /// Taken by this guest.
    pub(super) taken: u32,
    /// Position of the last of them.
    last_taken: Option<Seq>,
    /// How many of them were handed to the owner, to be committed.
    pub(super) told: u32,
    /// Closed, up to the horizon.
    pub(super) closed: bool,
    /// No longer the run's claim: disposed by this guest, or from outside up to the horizon.
    pub(super) disposed: bool,
    /// Its token was freed from outside, up to the horizon.
    freed: bool,
    /// The guest has opened it.
    opened: bool,
    pub(super) closed_by_guest: bool,
    /// Promises to be completed by the next payload or the close.
    pub(super) waiting: Vec<PromiseId>,
}

impl Hook {
    pub(super) fn new(spec: &HookSpec) -> Self {
        Self {
            token: spec.token.clone(),
            url: spec.webhook.as_ref().map(|webhook| webhook.url.clone()),
            queue: VecDeque::new(),
            taken: 0,
            last_taken: None,
            told: 0,
            closed: false,
            disposed: false,
            freed: false,
            opened: false,
            closed_by_guest: false,
            waiting: Vec::new(),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.closed || !self.queue.is_empty()
    }
}

impl Replay {
    /// Opens a hook. `spec` makes the claim, with a token when the guest names none.
    pub fn open_hook(
        &mut self,
        token: Option<HookToken>,
        spec: impl FnOnce(Option<HookToken>) -> HookSpec,
    ) -> Result<Opened> {
        if let Some(hook) = token.as_ref().and_then(|token| self.bound.get(token).copied()) {
            self.open_bound(hook);
            return Ok(Opened::Handle(HookHandle::Own(hook)));
        }
        let found = self.find(
            |entry| match &entry.event {
                Event::HookClaimed { spec, generated, .. } => match &token {
                    Some(token) => spec.token == *token && !generated,
                    None => *generated,
                },
                Event::HookConflicted { token: recorded, .. } => token.as_ref() == Some(recorded),
                _ => false,
            },
            || Call::OpenHook { token: token.clone() },
        )?;
        match found {
            Found::Recorded(index) => {
                self.no_promise_for_call();
                Ok(Opened::Handle(self.open_recorded(index)?))
            }
            // What opens a hook waits for the commit, so the journal of a replica holds it.
            Found::New(call) if self.replica.is_some() => {
                Err(self.diverged(call, Some(Call::OpenHook { token })))
            }
            Found::New(call) => {
                let generated = token.is_none();
                let spec = spec(token);
                let hook = self.hooks.len() as HookNo;
                self.new.push(NewEntry::OpenHook {
                    call,
                    hook,
                    spec,
                    generated,
                });
                self.no_promise_for_call();
                Ok(Opened::AfterCommit(call))
            }
        }
    }

    /// The handle of a hook whose opening is now committed.
    ///
    /// # Errors
    /// When the call's entry is not here.
    pub fn opened(&mut self, call: CallNo) -> Result<HookHandle> {
        let Some(index) = self.calls.get(call as usize).copied() else {
            let seq = self.entries.len() as Seq;
            let what = "the entry of an opened hook is missing";
            return Err(GuestError::Corrupt { seq, what });
        };
        self.open_recorded(index)
    }

    pub(super) fn open_recorded(&mut self, index: usize) -> Result<HookHandle> {
        let entry = &self.entries[index];
        match &entry.event {
            Event::HookClaimed { hook, spec, .. } if *hook as usize == self.hooks.len() => {
                let hook = *hook;
                self.bound.insert(spec.token.clone(), hook);
                self.hooks.push(Hook {
                    opened: true,
                    ..Hook::new(spec)
                });
                self.rename_hook(hook);
                Ok(HookHandle::Own(hook))
            }
            Event::HookConflicted { call, .. } => Ok(HookHandle::Conflict(*call)),
            _ => {
                let what = "a claim out of order";
                Err(GuestError::Corrupt { seq: entry.seq, what })
            }
        }
    }

    pub fn hook_token(&self, handle: HookHandle) -> Option<HookToken> {
        match handle {
            HookHandle::Own(hook) => Some(self.hooks[hook as usize].token.clone()),
            HookHandle::Conflict(call) => match &self.call_entry(call)?.event {
                Event::HookConflicted { token, .. } => Some(token.clone()),
                _ => None,
            },
        }
    }

    /// Where requests are delivered to this hook.
    pub fn hook_url(&self, handle: HookHandle) -> Option<String> {
        match handle {
            HookHandle::Own(hook) => self.hooks[hook as usize].url.clone(),
            HookHandle::Conflict(_) => None,
        }
    }

    /// The owner as it was when the guest opened the hook.
    pub fn hook_conflict(&self, handle: HookHandle) -> Option<Arc<str>> {
        match handle {
            HookHandle::Own(_) => None,
            HookHandle::Conflict(call) => self.call_entry(call)?.body.as_ref()?.text.clone(),
        }
    }

    pub fn close_hook(&mut self, handle: HookHandle) -> Result<()> {
        let HookHandle::Own(hook) = handle else {
            return Ok(());
        };
        let view = &mut self.hooks[hook as usize];
        if view.disposed || std::mem::replace(&mut view.closed_by_guest, true) {
            return Ok(());
        }
        let token = view.token.clone();
        let found = self.find(
            |entry| matches!(entry.event, Event::HookClosed { call: Some(_), hook: h } if h == hook),
            || Call::CloseHook { token },
        )?;
        if let Found::New(call) = found {
            let call = Some(call);
            self.new.push(NewEntry::event(Event::HookClosed { call, hook }));
        }
        self.no_promise_for_call();
        Ok(())
    }

    pub fn dispose_hook(&mut self, handle: HookHandle) -> Result<()> {
        let HookHandle::Own(hook) = handle else {
            return Ok(());
        };
        let view = &mut self.hooks[hook as usize];
        if std::mem::replace(&mut view.disposed, true) {
            return Ok(());
        }
        let token = view.token.clone();
        self.unbind(hook);
        let found = self.find(
            |entry| matches!(entry.event, Event::HookDisposed { call: Some(_), hook: h, .. } if h == hook),
            || Call::DisposeHook { token },
        )?;
        if let Found::New(call) = found {
            self.new.push(NewEntry::event(Event::hook_disposed(call, hook)));
        }
        self.no_promise_for_call();
        Ok(())
    }

    /// A promise for the next payload of a hook, or its close.
    pub fn hook_ready(&mut self, handle: HookHandle) -> PromiseId {
        let id = self.new_promise(Awaited::Ready(handle));
        match handle {
            HookHandle::Conflict(_) => self.due.push_back(id),
            HookHandle::Own(hook) => {
                let hook = &mut self.hooks[hook as usize];
                if hook.is_ready() {
                    self.due.push_back(id);
                } else {
                    hook.waiting.push(id);
                    self.tell(id);
                }
            }
        }
        id
    }

    /// The oldest unread payload up to the horizon.
    pub fn take_payload(&mut self, handle: HookHandle) -> Option<Arc<str>> {
        let HookHandle::Own(number) = handle else {
            return None;
        };
        let hook = &mut self.hooks[number as usize];
        let index = hook.queue.pop_front()?;
        hook.taken += 1;
        hook.last_taken = Some(self.entries[index].seq);
        self.read.insert(number);
        Some(text_of(&self.entries[index]))
    }

    /// Position of the payload that was taken last.
    pub fn last_taken(&self, handle: HookHandle) -> Option<Seq> {
        match handle {
            HookHandle::Own(hook) => self.hooks[hook as usize].last_taken,
            HookHandle::Conflict(_) => None,
        }
    }

    /// Closed and empty, up to the horizon.
    pub fn hook_closed(&self, handle: HookHandle) -> bool {
        match handle {
            HookHandle::Own(hook) => {
                let hook = &self.hooks[hook as usize];
                hook.closed && hook.queue.is_empty()
            }
            HookHandle::Conflict(_) => true,
        }
    }

    /// The guest opens a claim that its token leads to.
    fn open_bound(&mut self, hook: HookNo) {
        let view = &mut self.hooks[hook as usize];
        let first = !std::mem::replace(&mut view.opened, true);
        // Freed before it was ever opened: the guest has it now, with what is unread in it, and may claim anew.
        if first && view.freed {
            self.unbind(hook);
        }
    }

    /// The claim ended from outside.
    ///
    /// Where another run took the token, it leads to the closed claim for good: the guest reads what is left there,
    /// rather than meet the run that takes its place. A token that was freed may be claimed anew, once the guest has
    /// opened what was claimed when the run was admitted.
    pub(super) fn lose_hook(&mut self, hook: HookNo, replaced: bool, index: usize) -> Result<()> {
        let of_start = (hook as usize) < self.started.hooks.len();
        let view = self.observed_hook(hook, index)?;
        view.closed = true;
        view.disposed = true;
        view.freed = !replaced;
        let kept = replaced || (of_start && !view.opened);
        let waiting = std::mem::take(&mut view.waiting);
        self.due.extend(waiting);
        if !kept {
            self.unbind(hook);
        }
        Ok(())
    }

    /// The token no longer leads to this claim.
    pub(super) fn unbind(&mut self, hook: HookNo) {
        self.bound.retain(|_, bound| *bound != hook);
    }

    pub(super) fn observed_hook(&mut self, hook: HookNo, index: usize) -> Result<&mut Hook> {
        let what = "names a hook that the run has not claimed";
        let seq = index as Seq;
        self.hooks
            .get_mut(hook as usize)
            .ok_or(GuestError::Corrupt { seq, what })
    }

    /// The token of a claim anywhere in the journal, seen by the guest or not.
    pub(super) fn token_of(&self, hook: HookNo) -> Option<HookToken> {
        if let Some(spec) = self.started.hooks.get(hook as usize) {
            return Some(spec.token.clone());
        }
        self.entries.iter().find_map(|entry| match &entry.event {
            Event::HookClaimed { hook: h, spec, .. } if *h == hook => Some(spec.token.clone()),
            _ => None,
        })
    }

    pub(super) fn call_entry(&self, call: CallNo) -> Option<&Entry> {
        Some(&self.entries[*self.calls.get(call as usize)?])
    }
}

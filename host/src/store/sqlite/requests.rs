//! What the writer can be asked for: each function runs in the transaction of its batch, fetches facts, lets [`decide`]
//! judge them and writes what follows.

use std::collections::BTreeSet;

use rusqlite::Connection;

use super::failure::Failure;
use super::journal::{self, NOTHING, Tail};
use super::runs::{self, Anchor, NewRow, ParentLink, RunKey};
use super::thread::Writing;
use super::{components, hooks, host, logs, receipts, schedules, streams};
use crate::ids::{Digest, HookToken, IdempotencyKey, RunId};
use crate::journal::{
    Body, Continuation, Entry, Event, HookNo, NewEntry, ParentEnd, RunStatus, Seq, StreamWrite, Timestamp,
};
use crate::store::decide::{
    self, Cancellation, Meeting, Opener, Opening, Recall, Receipt, Replacement, Standing,
};
use crate::store::{
    Admission, Append, Appended, Blocked, Cancelled, ChunkWrite, Delivered, Delivery, DeliveryReceipt,
    Disposed, Emission, Emitted, Ending, Fence, HookRef, NewFork, NewPart, NewRun, NewSchedule, OnConflict,
    Part, Settled, Settlement, Source, StoreError, StoredComponent, Upgraded, Written,
};

type Result<T> = std::result::Result<T, Failure>;

/// Scope of the receipts of starts; tokens are never empty.
const STARTS: &str = "";

/// What is needed to add to a journal: kept in memory, so that an append reads nothing.
#[derive(Debug, Clone)]
pub struct Head {
    key: RunKey,
    component: Digest,
    standing: Standing,
    /// The last entry.
    seq: Seq,
    at: Timestamp,
    chain: Digest,
    parent: Option<ParentLink>,
}

impl Writing {
    /// The head of a run, whole: a journal that does not reach as far as its run's row says is refused.
    fn head(&mut self, id: &RunId) -> Result<Option<Head>> {
        if let Some(head) = self.heads.get(id) {
            return Ok(Some(head.clone()));
        }
        let Some(row) = runs::find(&self.conn, id)? else {
            return Ok(None);
        };
        let tail = journal::tail(&self.conn, row.key)?;
        let cut_off = || StoreError::Corrupt {
            run: id.clone(),
            what: format!("its journal is cut off before entry {}", row.anchor.seq),
        };
        let Tail { seq, at, chain } = tail
            .filter(|tail| tail.seq >= row.anchor.seq)
            .ok_or_else(cut_off)?;
        Ok(Some(Head {
            key: row.key,
            component: row.component,
            standing: row.standing,
            seq,
            at,
            chain,
            parent: row.parent,
        }))
    }

    fn existing(&mut self, id: &RunId) -> Result<Head> {
        Ok(self.head(id)?.ok_or_else(|| decide::no_run(id))?)
    }

    fn check_fence(&mut self, fence: Fence) -> Result<()> {
        let epoch = match self.epoch {
            Some(epoch) => epoch,
            None => *self.epoch.insert(host::epoch(&self.conn)?),
        };
        if fence.0 == epoch {
            Ok(())
        } else {
            Err(StoreError::Fenced.into())
        }
    }
}

impl Head {
    /// Adds an entry and what follows from it in the tables of hooks.
    fn push(&mut self, conn: &Connection, event: Event, body: Option<Body>, now: Timestamp) -> Result<Entry> {
        let at = decide::entry_time(self.at, now);
        self.standing = self.standing.after(&event, at)?;
        self.apply(conn, &event, body.as_ref(), at)?;
        let seq = self.seq + 1;
        let entry = Entry { seq, at, event, body };
        let link = journal::link(&entry, self.chain)?;
        journal::insert(conn, self.key, &entry, &link)?;
        (self.seq, self.at, self.chain) = (seq, at, link.chain);
        Ok(entry)
    }

    /// What follows from the entry after the last one, but for the run's standing.
    fn apply(&mut self, conn: &Connection, event: &Event, body: Option<&Body>, at: Timestamp) -> Result<()> {
        self.apply_to_hooks(conn, event, body, at)?;
        match event {
            Event::Upgraded { component } => self.component = *component,
            Event::Forked(forked) => self.component = forked.component,
            Event::Tagged { name, value, .. } => runs::set_tag(conn, self.key, name, value)?,
            _ => {}
        }
        Ok(())
    }

    fn apply_to_hooks(
        &self,
        conn: &Connection,
        event: &Event,
        body: Option<&Body>,
        at: Timestamp,
    ) -> Result<()> {
        let (hook, found) = match event {
            Event::HookClaimed { hook, spec, .. } => {
                return hooks::claim(conn, self.key, *hook, spec, at);
            }
            Event::Forked(forked) => {
                for (hook, spec) in &forked.hooks {
                    if !hooks::claim_anew(conn, self.key, *hook, spec, at)? {
                        return Err(decide::no_hook(*hook).into());
                    }
                }
                return Ok(());
            }
            Event::HookClosed { hook, .. } => (hook, hooks::close(conn, self.key, *hook)?),
            Event::HookDisposed { hook, .. } => (hook, hooks::dispose(conn, self.key, *hook, at)?),
            Event::PayloadReceived { hook } => {
                let bytes = body.map_or(0, |body| body.len);
                (
                    hook,
                    hooks::add_payload(conn, self.key, *hook, self.seq + 1, bytes)?,
                )
            }
            Event::PayloadsTaken { hook, count } => {
                let unread = hooks::unread(conn, self.key, *hook, *count)?;
                let left = unread.map(|(unread, bytes)| decide::unread_after_take(unread, *count, bytes));
                let left = left.transpose()?;
                left.map(|left| hooks::set_unread(conn, self.key, *hook, left))
                    .transpose()?;
                (hook, left.is_some())
            }
            _ => return Ok(()),
        };
        if found {
            Ok(())
        } else {
            Err(decide::no_hook(*hook).into())
        }
    }

    /// Brings the run's row up to date.
    fn update_row(&self, conn: &Connection) -> Result<()> {
        let anchor = Anchor {
            seq: self.seq,
            chain: self.chain,
        };
        runs::update(conn, self.key, self.standing, self.component, anchor)
    }
}

/// Adds what comes from outside to a run's journal.
fn push_one(
    writing: &mut Writing,
    run: &RunId,
    event: Event,
    body: Option<Body>,
    now: Timestamp,
) -> Result<(Entry, Standing)> {
    let before = writing.existing(run)?;
    let mut head = before.clone();
    let entry = head.push(&writing.conn, event, body, now)?;
    if (head.standing, head.component) != (before.standing, before.component) {
        head.update_row(&writing.conn)?;
    }
    let standing = head.standing;
    writing.heads.insert(run.clone(), head);
    Ok((entry, standing))
}

/// Adds a payload to a hook that takes it.
fn receive(
    writing: &mut Writing,
    address: HookRef,
    payload: Body,
    now: Timestamp,
) -> Result<(DeliveryReceipt, Option<Box<Entry>>)> {
    let event = Event::PayloadReceived { hook: address.hook };
    let (entry, standing) = push_one(writing, &address.run, event, Some(payload), now)?;
    let receipt = DeliveryReceipt {
        run_id: address.run,
        seq: entry.seq,
    };
    Ok((receipt, decide::news(entry, standing, now)))
}

pub fn take_over(writing: &mut Writing) -> Result<Fence> {
    let epoch = host::epoch(&writing.conn)? + 1;
    host::set_epoch(&writing.conn, epoch)?;
    // Read again when needed: this may yet be rolled back.
    writing.epoch = None;
    writing.taking = Some(epoch);
    Ok(Fence(epoch))
}

pub fn deploy(
    writing: &mut Writing,
    name: &str,
    component: &StoredComponent,
    schedules: &[NewSchedule],
    now: Timestamp,
) -> Result<()> {
    components::put(&writing.conn, component)?;
    components::name(&writing.conn, name, component.digest, now)?;
    schedules::replace(&writing.conn, name, schedules, now)
}

pub fn remove_deployment(writing: &mut Writing, name: &str) -> Result<bool> {
    schedules::remove(&writing.conn, name)?;
    components::remove_name(&writing.conn, name)
}

pub fn recall_start(
    writing: &mut Writing,
    id: Option<&RunId>,
    key: Option<&IdempotencyKey>,
    request: Digest,
    now: Timestamp,
) -> Result<Option<Admission>> {
    let answer = recalled(writing, id, key, request, now)?;
    if let Some(answer) = &answer {
        count_duplicate(writing, answer);
    }
    Ok(answer)
}

/// A start met the run that it was answered with.
fn count_duplicate(writing: &mut Writing, answer: &Admission) {
    writing.met.extend(answer.run().cloned());
}

fn recalled(
    writing: &Writing,
    id: Option<&RunId>,
    key: Option<&IdempotencyKey>,
    request: Digest,
    now: Timestamp,
) -> Result<Option<Admission>> {
    match recall(writing, STARTS, key, request, now)? {
        Recall::Again(answer) => return Ok(Some(answer)),
        Recall::Conflict => return Ok(Some(Admission::KeyConflict)),
        Recall::Fresh => {}
    }
    let Some(id) = id else {
        return Ok(None);
    };
    let run = runs::find(&writing.conn, id)?;
    Ok(run.map(|run| decide::same_id(id.clone(), run.request, request)))
}

pub fn admit(writing: &mut Writing, new: NewRun) -> Result<Admission> {
    decide::check_tokens(&new.started.hooks)?;
    let (key, request, now) = (new.key.clone(), new.request, new.now);
    answer_once(writing, key, request, now, |writing| admit_once(writing, new))
}

pub fn fork(writing: &mut Writing, fork: &NewFork) -> Result<Admission> {
    decide::check_tokens(&fork.specs())?;
    let key = fork.key.clone();
    answer_once(writing, key, fork.request, fork.now, |writing| {
        fork_once(writing, fork)
    })
}

/// Answers a keyed request as it was answered before, or lets it be answered and keeps that.
fn answer_once(
    writing: &mut Writing,
    key: Option<IdempotencyKey>,
    request: Digest,
    at: Timestamp,
    admit: impl FnOnce(&mut Writing) -> Result<Admission>,
) -> Result<Admission> {
    if let Some(answer) = recall_start(writing, None, key.as_ref(), request, at)? {
        return Ok(answer);
    }
    let answer = admit(writing)?;
    if !matches!(answer, Admission::Started { .. }) {
        count_duplicate(writing, &answer);
    }
    if let Some((key, answer)) = key.zip(answer.receipt()) {
        let receipt = Receipt { request, answer, at };
        keep_receipt(writing, STARTS, &key, &receipt)?;
    }
    Ok(answer)
}

fn admit_once(writing: &mut Writing, new: NewRun) -> Result<Admission> {
    let first = match meet(writing, &new)? {
        Meeting::Free { first } => first,
        Meeting::Replace(replacement) => return replace(writing, new, replacement),
        Meeting::Deliver { hook, payload } => {
            let (receipt, entry) = receive(writing, hook, payload, new.now)?;
            return Ok(Admission::Delivered { receipt, entry });
        }
        Meeting::Attach(owner) => {
            let conn = &writing.conn;
            let key = runs::key(conn, &owner.run)?.ok_or_else(|| decide::no_run(&owner.run))?;
            let started_with = journal::input(conn, (key, &owner.run))?;
            return Ok(decide::attached(owner, &new.input, &started_with));
        }
        Meeting::Refuse(answer) => return Ok(answer),
    };
    let (run, now) = (new.id.clone(), new.now);
    insert_run(writing, new, None)?;
    if let Some((hook, payload)) = first {
        let event = Event::PayloadReceived { hook };
        push_one(writing, &run, event, Some(payload), now)?;
    }
    Ok(Admission::Started {
        run,
        replaced: Vec::new(),
        fresh: true,
        woken: Vec::new(),
    })
}

/// Admits a run that takes its tokens from others and begins when they have ended.
fn replace(writing: &mut Writing, mut new: NewRun, replacement: Replacement) -> Result<Admission> {
    let (run, now) = (new.id.clone(), new.now);
    let Replacement { owners, claimants } = replacement;
    let mut woken = Vec::new();
    for (owner, hooks) in &owners {
        let standing = writing.existing(owner)?.standing;
        // Before the hook closes: that is not how its guest is to learn that it is over.
        if let Some((event, body)) = decide::cancel_replaced(standing) {
            let (_, standing) = push_one(writing, owner, event, body, now)?;
            woken.push(owner.clone());
            if standing.folded.is_terminal() {
                tell_others(writing, owner.clone(), now, &mut woken)?;
            }
        }
        for hook in hooks {
            push_one(writing, owner, Event::hook_replaced(*hook), None, now)?;
        }
    }
    let mut live = BTreeSet::new();
    for claimant in claimants {
        let head = writing.existing(&claimant)?;
        if !head.standing.folded.is_terminal() {
            live.insert(head.key);
        }
        live.extend(runs::live_predecessors(&writing.conn, head.key)?);
    }
    let ids = live.iter().map(|key| runs::id(&writing.conn, *key));
    new.started.predecessors = ids.collect::<Result<_>>()?;
    insert_run(writing, new, None)?;
    let mut predecessors = live;
    // Of one that was just ended something may still be at work, which the engine knows.
    for (owner, _) in &owners {
        predecessors.insert(writing.existing(owner)?.key);
    }
    let key = writing.existing(&run)?.key;
    runs::add_predecessors(&writing.conn, key, &predecessors)?;
    Ok(Admission::Started {
        run,
        replaced: owners.into_iter().map(|(owner, _)| owner).collect(),
        fresh: true,
        woken,
    })
}

fn fork_once(writing: &mut Writing, fork: &NewFork) -> Result<Admission> {
    let of = &fork.forked.of;
    if let Some(run) = runs::find(&writing.conn, &fork.id)? {
        return Ok(decide::same_id(fork.id.clone(), run.request, fork.request));
    }
    let source = writing.existing(of)?;
    let conn = &writing.conn;
    let copied = journal::read_upto(conn, (source.key, of), fork.forked.upto)?;
    let made = decide::fork(fork, &copied.entries, fork.now)?;
    let specs = fork.specs();
    let last = specs.iter().map(|spec| hooks::last_claim(conn, &spec.token));
    if let Some(refused) = decide::fork_meets(fork, &last.collect::<Result<Vec<_>>>()?) {
        return Ok(refused);
    }
    let (Some(first), Some(last), Some(chain)) =
        (copied.entries.first(), copied.entries.last(), copied.chain.last())
    else {
        return Err(decide::no_run(of).into());
    };
    let Event::Started(started) = &first.event else {
        return Err(decide::no_run(of).into());
    };
    let tokens: Vec<_> = specs.into_iter().map(|spec| spec.token).collect();
    let anchor = Anchor {
        seq: last.seq,
        chain: *chain,
    };
    let row = NewRow {
        id: &fork.id,
        workflow: &started.workflow,
        component: started.component,
        request: fork.request,
        tokens: &tokens,
        tags: &started.tags,
        created_at: decide::entry_time(last.at, fork.now),
        standing: made.standing,
        anchor,
        lineage: Some(&fork.lineage()),
        concurrency: started.concurrency.as_ref(),
        parent: None,
    };
    let key = runs::insert(conn, &row)?;
    journal::copy(conn, source.key, key, fork.forked.upto)?;
    for (spec, hook) in started.hooks.iter().zip(0 as HookNo..) {
        hooks::copy(conn, key, hook, spec, first.at)?;
    }
    let mut head = Head {
        key,
        component: started.component,
        standing: made.standing,
        seq: 0,
        at: last.at,
        chain: *chain,
        parent: None,
    };
    for entry in &copied.entries[1..] {
        match &entry.event {
            Event::HookClaimed { hook, spec, .. } => hooks::copy(conn, key, *hook, spec, entry.at)?,
            // Of an earlier fork: whatever it claimed, this one does not.
            Event::Forked(forked) => {
                for (hook, spec) in &forked.hooks {
                    hooks::copy_anew(conn, key, *hook, spec, entry.at)?;
                }
            }
            event => head.apply(conn, event, entry.body.as_ref(), entry.at)?,
        }
        head.seq = entry.seq;
    }
    for (event, body) in made.entries {
        head.push(conn, event, body, fork.now)?;
    }
    head.update_row(conn)?;
    writing.heads.insert(fork.id.clone(), head);
    Ok(Admission::Started {
        run: fork.id.clone(),
        replaced: Vec::new(),
        fresh: true,
        woken: Vec::new(),
    })
}

pub fn emit(writing: &mut Writing, emission: Emission) -> Result<Emitted> {
    let Emission {
        source,
        id,
        request,
        parts,
        now,
    } = emission;
    let scope = source.scope();
    if let Source::Schedule {
        name,
        done_until: Some(until),
    } = &source
        && !schedules::advance(&writing.conn, name, *until)?
    {
        return Ok(decide::nothing_to_fire());
    }
    match recall(writing, &scope, id.as_ref(), request, now)? {
        Recall::Again(parts) => return Ok(Emitted::Done { parts, fresh: false }),
        Recall::Conflict => return Ok(Emitted::KeyConflict),
        Recall::Fresh => {}
    }
    let parts = parts.into_iter().map(|part| admit_part(writing, part));
    let parts: Vec<_> = parts.collect::<Result<_>>()?;
    let owners = parts.iter().filter_map(Part::owner);
    writing.met.extend(owners.map(|owner| owner.run.clone()));
    if let Some(id) = id.as_ref().filter(|_| decide::was_emitted(&parts)) {
        let answer = parts.clone();
        let receipt = Receipt {
            request,
            answer,
            at: now,
        };
        keep_receipt(writing, &scope, id, &receipt)?;
    }
    Ok(Emitted::Done { parts, fresh: true })
}

fn admit_part(writing: &mut Writing, NewPart { workflow, start }: NewPart) -> Result<Part> {
    let admission = match start {
        Ok(new) => {
            decide::check_tokens(&new.started.hooks)?;
            let on_conflict = OnConflict::Fail;
            Ok(admit_once(writing, NewRun { on_conflict, ..*new })?)
        }
        Err(message) => Err(message),
    };
    Ok(decide::part(workflow, admission))
}

/// What a run meets that is to be admitted: by its id, then by its tokens.
fn meet(writing: &Writing, new: &NewRun) -> Result<Meeting> {
    let conn = &writing.conn;
    if let Some(run) = runs::find(conn, &new.id)? {
        let answer = decide::same_id(new.id.clone(), run.request, new.request);
        return Ok(Meeting::Refuse(answer));
    }
    let specs = new.started.hooks.iter();
    let last = specs.map(|spec| hooks::last_claim(conn, &spec.token));
    Ok(decide::meet(new, &last.collect::<Result<Vec<_>>>()?)?)
}

/// Run, entry 0, claims and wake.
fn insert_run(writing: &mut Writing, new: NewRun, parent: Option<(ParentLink, ParentEnd)>) -> Result<()> {
    let conn = &writing.conn;
    let at = decide::entry_time(0, new.now);
    let (component, workflow) = (new.started.component, new.started.workflow.clone());
    let specs = new.started.hooks.clone();
    let tokens: Vec<_> = specs.iter().map(|spec| spec.token.clone()).collect();
    let (tags, lineage) = (new.started.tags.clone(), new.started.lineage.clone());
    let concurrency = new.started.concurrency.clone();
    let event = Event::Started(Box::new(new.started));
    let standing = Standing::admitted(&event, at)?;
    let entry = Entry {
        seq: 0,
        at,
        event,
        body: Some(new.input),
    };
    let link = journal::link(&entry, NOTHING)?;
    let row = NewRow {
        id: &new.id,
        workflow: &workflow,
        component,
        request: new.request,
        tokens: &tokens,
        tags: &tags,
        concurrency: concurrency.as_ref(),
        created_at: at,
        standing,
        anchor: Anchor {
            seq: 0,
            chain: link.chain,
        },
        lineage: lineage.as_ref(),
        parent,
    };
    let key = runs::insert(conn, &row)?;
    journal::insert(conn, key, &entry, &link)?;
    for (spec, hook) in specs.iter().zip(0 as HookNo..) {
        hooks::claim(conn, key, hook, spec, at)?;
    }
    let head = Head {
        key,
        component,
        standing,
        seq: 0,
        at,
        chain: link.chain,
        parent: parent.map(|(link, _)| link),
    };
    writing.heads.insert(new.id, head);
    Ok(())
}

pub fn append(writing: &mut Writing, append: &Append) -> Result<Appended> {
    writing.check_fence(append.fence)?;
    let before = writing.existing(&append.run)?;
    decide::check_seen(append.seen, before.seq)?;
    let mut entries = tail_after(&writing.conn, &append.run, &before, append.seen)?;
    if before.standing.folded.is_terminal() {
        return Ok(Appended {
            entries,
            parked: false,
            status: before.standing.status(),
            woken: Vec::new(),
        });
    }
    let left = decide::unwritten(&entries, append.entries.clone());
    // What starts others brings the row up to date on the way; it may end as it was before.
    let row_moves = left
        .entries
        .iter()
        .any(|entry| matches!(entry, NewEntry::StartChild(_) | NewEntry::Emit(_)));
    let mut head = before.clone();
    head.standing = head.standing.at_work();
    let mut woken = Vec::new();
    for entry in left.entries {
        let Some((event, body)) = settle(writing, &append.run, &head, entry, append.now)? else {
            continue;
        };
        match &event {
            Event::ChildStarted { run, .. } | Event::Continued { run } => woken.push(run.clone()),
            Event::Emitted { runs, .. } => woken.extend(runs.iter().cloned()),
            _ => {}
        }
        entries.push(head.push(&writing.conn, event, body, append.now)?);
    }
    if !append.logs.is_empty() {
        logs::add(&writing.conn, head.key, &append.logs)?;
    }
    let parked = append
        .park
        .filter(|_| !left.others_wrote)
        .and_then(|park| head.standing.parked(park));
    if let Some(parked) = parked {
        head.standing = parked;
    }
    if row_moves || head.standing != before.standing {
        head.update_row(&writing.conn)?;
    }
    let status = head.standing.status();
    writing.heads.insert(append.run.clone(), head);
    if status.is_terminal() {
        tell_others(writing, append.run.clone(), append.now, &mut woken)?;
    }
    Ok(Appended {
        entries,
        parked: parked.is_some(),
        status,
        woken,
    })
}

/// Adds a chunk, unless it is there or cannot be.
fn write_one(conn: &Connection, head: &Head, write: &StreamWrite, now: Timestamp) -> Result<Written> {
    let held = streams::streamed(conn, head.key, write)?;
    match decide::write_chunk(head.standing, held, write)? {
        Ok(()) => {
            streams::add(conn, head.key, write, decide::entry_time(0, now))?;
            Ok(Written::Done)
        }
        Err(answer) => Ok(answer),
    }
}

pub fn write_chunk(writing: &mut Writing, asked: &ChunkWrite) -> Result<Written> {
    writing.check_fence(asked.fence)?;
    let head = writing.existing(&asked.run)?;
    write_one(&writing.conn, &head, &asked.write, asked.now)
}

/// The run has ended: its parent hears how, its children are asked to cancel where that was agreed, and theirs if that
/// is their end. Who waited for the end of the last of its predecessors may begin. `woken` gets those who have
/// something to do now.
fn tell_others(writing: &mut Writing, ended: RunId, now: Timestamp, woken: &mut Vec<RunId>) -> Result<()> {
    let mut ended = vec![ended];
    while let Some(run) = ended.pop() {
        let head = writing.existing(&run)?;
        // The run that goes on has the parent.
        let goes_on = head.standing.folded == RunStatus::Continued;
        if let Some(link) = head.parent.filter(|_| !goes_on) {
            let parent = runs::id(&writing.conn, link.run)?;
            if !writing.existing(&parent)?.standing.folded.is_terminal() {
                let last = journal::read(&writing.conn, (head.key, &run), head.seq, 1)?.pop();
                let outcome = last.as_ref().and_then(|entry| entry.body.as_ref());
                let (event, body) = decide::child_ended(link.call, &run, head.standing.folded, outcome);
                push_one(writing, &parent, event, Some(body), now)?;
                woken.push(parent);
            }
        }
        for (child, on_parent_end) in runs::children(&writing.conn, head.key)? {
            let standing = writing.existing(&child)?.standing;
            if let Some((event, body)) = decide::after_parent(standing, on_parent_end) {
                let (_, standing) = push_one(writing, &child, event, body, now)?;
                if standing.folded.is_terminal() {
                    ended.push(child.clone());
                }
                woken.push(child);
            }
        }
        for follower in runs::followers(&writing.conn, head.key)? {
            let after = writing.existing(&follower)?;
            if after.standing.awaits_predecessors()
                && runs::live_predecessors(&writing.conn, after.key)?.is_empty()
            {
                push_one(writing, &follower, Event::PredecessorsEnded, None, now)?;
                woken.push(follower);
            }
        }
    }
    Ok(())
}

/// The entries after `seen`, verified.
fn tail_after(conn: &Connection, id: &RunId, head: &Head, seen: Seq) -> Result<Vec<Entry>> {
    if seen == head.seq {
        return Ok(Vec::new());
    }
    let tail = journal::read_verified(conn, (head.key, id), seen + 1)?;
    if tail.chain.last() != Some(&head.chain) {
        let what = format!("its end is not entry {} as written", head.seq);
        return Err(StoreError::Corrupt {
            run: id.clone(),
            what,
        }
        .into());
    }
    Ok(tail.entries)
}

/// What a new entry is written as; `None` when it is written, beside the journal.
fn settle(
    writing: &mut Writing,
    run: &RunId,
    head: &Head,
    entry: NewEntry,
    now: Timestamp,
) -> Result<Option<(Event, Option<Body>)>> {
    match entry {
        NewEntry::Event { event, body } => {
            decide::check_owner_event(&event)?;
            Ok(Some((event, body)))
        }
        NewEntry::Write(write) => {
            write_one(&writing.conn, head, &write, now)?;
            Ok(None)
        }
        NewEntry::Continue(continuation) => Ok(Some(go_on(writing, run, head, &continuation, now)?)),
        NewEntry::StartChild(child) => {
            // What it meets may be the run itself, as the entries before this one left it.
            head.update_row(&writing.conn)?;
            let admitted = match decide::child(run, &child, now)? {
                Err(failure) => Err(failure),
                Ok(new) => match decide::child_meets(meet(writing, &new)?) {
                    Some(refused) => Err(refused),
                    None => {
                        let id = new.id.clone();
                        let link = ParentLink {
                            run: head.key,
                            call: child.call,
                        };
                        insert_run(writing, new, Some((link, child.options.on_parent_end)))?;
                        Ok(id)
                    }
                },
            };
            Ok(Some(decide::child_entry(*child, admitted)))
        }
        NewEntry::Emit(emit) => {
            // As for a child.
            head.update_row(&writing.conn)?;
            let parts = match decide::emitted_parts(run, &emit, now)? {
                Ok(parts) => {
                    let parts = parts.into_iter().map(|part| admit_part(writing, part));
                    Ok(parts.collect::<Result<_>>()?)
                }
                Err(failure) => Err(failure),
            };
            Ok(Some(decide::emit_entry(*emit, parts)))
        }
        NewEntry::OpenHook {
            call,
            hook,
            spec,
            generated,
        } => {
            let conn = &writing.conn;
            let last = hooks::last_claim(conn, &spec.token)?;
            let opening = Opening {
                call,
                hook,
                spec,
                generated,
            };
            let opener = Opener {
                run,
                standing: head.standing,
                claims: hooks::count(conn, head.key)?,
            };
            Ok(Some(decide::open_hook(&opener, opening, last.as_ref(), now)?))
        }
    }
}

/// Admits the run that goes on for this one: with its open hooks, what was not read from them, and its parent.
fn go_on(
    writing: &mut Writing,
    run: &RunId,
    head: &Head,
    continuation: &Continuation,
    now: Timestamp,
) -> Result<(Event, Option<Body>)> {
    let open = hooks::open(&writing.conn, head.key)?;
    let specs = open.iter().map(|(_, spec, until)| (spec.clone(), *until));
    let new = decide::continued(run, continuation, specs, now);
    let id = new.id.clone();
    insert_run(writing, new, runs::parent(&writing.conn, head.key)?)?;
    let mut unread = Vec::new();
    for ((old, ..), new) in open.iter().zip(0 as HookNo..) {
        for seq in hooks::unread_seqs(&writing.conn, head.key, *old)? {
            unread.push((seq, new));
        }
    }
    unread.sort_unstable();
    for (seq, hook) in unread {
        let payload = journal::read(&writing.conn, (head.key, run), seq, 1)?.pop();
        let body = payload.and_then(|entry| entry.body);
        push_one(writing, &id, Event::PayloadReceived { hook }, body, now)?;
    }
    let mut awaited = false;
    for follower in runs::followers(&writing.conn, head.key)? {
        awaited |= writing.existing(&follower)?.standing.awaits_predecessors();
    }
    let key = writing.existing(&id)?.key;
    runs::move_followers(&writing.conn, head.key, key)?;
    if let Some(carried) = decide::carried(continuation, head.standing, awaited) {
        push_one(writing, &id, carried, None, now)?;
    }
    Ok((Event::Continued { run: id }, Some(continuation.input.clone())))
}

pub fn block(writing: &mut Writing, run: &RunId, fence: Fence, why: &Blocked) -> Result<()> {
    writing.check_fence(fence)?;
    // Not by the head: a damaged journal must not be in the way.
    let row = runs::find(&writing.conn, run)?.ok_or_else(|| decide::no_run(run))?;
    let standing = row.standing.blocked()?;
    runs::block(&writing.conn, row.key, standing, why)?;
    writing.heads.remove(run);
    Ok(())
}

pub fn upgrade(writing: &mut Writing, run: &RunId, component: Digest, now: Timestamp) -> Result<Upgraded> {
    let Some(head) = writing.head(run)? else {
        return Ok(Upgraded::NotFound);
    };
    if head.standing.folded.is_terminal() {
        let status = head.standing.folded;
        return Ok(Upgraded::Ended { status });
    }
    if !components::is_stored(&writing.conn, component)? {
        return Err(decide::no_component(component).into());
    }
    push_one(writing, run, Event::Upgraded { component }, None, now)?;
    Ok(Upgraded::Done)
}

pub fn cancel(
    writing: &mut Writing,
    run: &RunId,
    ending: Ending,
    now: Timestamp,
) -> Result<(Cancelled, Vec<RunId>)> {
    let mut woken = Vec::new();
    let Some(head) = writing.head(run)? else {
        return Ok((Cancelled::NotFound, woken));
    };
    let answer = match decide::cancel(head.standing, ending) {
        Cancellation::Answer(answer) => answer,
        Cancellation::Write(event, body) => {
            let (_, standing) = push_one(writing, run, event, body, now)?;
            let answer = decide::cancelled(standing);
            if answer == Cancelled::Ended {
                tell_others(writing, run.clone(), now, &mut woken)?;
            }
            answer
        }
    };
    Ok((answer, woken))
}

pub fn settle_step(writing: &mut Writing, settlement: Settlement) -> Result<Settled> {
    let (id, now) = (settlement.run.clone(), settlement.now);
    let Some(run) = runs::get(&writing.conn, &id)? else {
        return Ok(Settled::NotFound);
    };
    let (event, body) = match decide::settle_step(settlement, run.status, run.blocked.as_ref()) {
        Ok(settled) => settled,
        Err(refused) => return Ok(refused),
    };
    push_one(writing, &id, event, body, now)?;
    Ok(Settled::Done)
}

pub fn deliver(writing: &mut Writing, delivery: Delivery) -> Result<Delivered> {
    let (request, at) = (delivery.request, delivery.now);
    let scope = delivery.token.as_str();
    match recall(writing, scope, delivery.key.as_ref(), request, at)? {
        Recall::Again(receipt) => return Ok(Delivered::Accepted { receipt, entry: None }),
        Recall::Conflict => return Ok(Delivered::KeyConflict),
        Recall::Fresh => {}
    }
    let last = hooks::last_claim(&writing.conn, &delivery.token)?;
    let address = match decide::deliver(&delivery, last.as_ref()) {
        Ok(address) => address,
        Err(refused) => return Ok(refused),
    };
    let (receipt, entry) = receive(writing, address, delivery.payload, at)?;
    if let Some(key) = &delivery.key {
        let answer = receipt.clone();
        keep_receipt(writing, scope, key, &Receipt { request, answer, at })?;
    }
    Ok(Delivered::Accepted { receipt, entry })
}

pub fn dispose(writing: &mut Writing, token: &HookToken, now: Timestamp) -> Result<Disposed> {
    let last = hooks::last_claim(&writing.conn, token)?;
    let address = match decide::dispose(last.as_ref(), now) {
        Ok(address) => address,
        Err(refused) => return Ok(refused),
    };
    push_one(writing, &address.run, Event::hook_freed(address.hook), None, now)?;
    Ok(Disposed::Freed { run: address.run })
}

/// What a request's key means, if it has one.
fn recall<T: serde::de::DeserializeOwned>(
    writing: &Writing,
    scope: &str,
    key: Option<&IdempotencyKey>,
    request: Digest,
    now: Timestamp,
) -> Result<Recall<T>> {
    let receipt = key
        .map(|key| receipts::find(&writing.conn, scope, key))
        .transpose()?;
    Ok(decide::recall(receipt.flatten(), request, now))
}

fn keep_receipt<T: serde::Serialize>(
    writing: &Writing,
    scope: &str,
    key: &IdempotencyKey,
    receipt: &Receipt<T>,
) -> Result<()> {
    receipts::put(&writing.conn, scope, key, receipt)?;
    if let Some(over) = decide::receipts_over(receipt.at) {
        receipts::prune(&writing.conn, over)?;
    }
    Ok(())
}

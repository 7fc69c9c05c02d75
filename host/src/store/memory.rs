//! The store in memory: the specification of every other one, and `serve --ephemeral`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde_json::Value;

use super::decide::{
    self, Cancellation, Claim, Meeting, Opener, Opening, Recall, Receipt, Replacement, Standing, Streamed,
    Unread,
};
use super::*;
use crate::journal::{CallNo, Continuation, Event, HookUrl, ParentEnd, PayloadType};

/// Keeps everything until the process ends, and nothing longer.
#[derive(Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    epoch: u64,
    /// In order of admission.
    runs: Vec<Run>,
    by_id: HashMap<RunId, usize>,
    /// The last claim of every token: a run, by its place in `runs`, and a hook.
    claims: HashMap<HookToken, (usize, HookNo)>,
    start_receipts: HashMap<IdempotencyKey, Receipt<Admission>>,
    event_receipts: HashMap<(String, IdempotencyKey), Receipt<Vec<Part>>>,
    delivery_receipts: HashMap<(HookToken, IdempotencyKey), Receipt<DeliveryReceipt>>,
    components: HashMap<Digest, StoredComponent>,
    deployments: BTreeMap<String, (Digest, Timestamp)>,
    /// With spec and how far it is.
    schedules: BTreeMap<ScheduleName, (String, Timestamp)>,
}

struct Run {
    id: RunId,
    workflow: String,
    component: Digest,
    /// What the run was admitted for.
    request: Digest,
    tokens: Vec<HookToken>,
    tags: Tags,
    duplicates: u64,
    standing: Standing,
    blocked: Option<Blocked>,
    entries: Vec<Entry>,
    /// Indexed by [`HookNo`].
    hooks: Vec<Hook>,
    /// Of each hook: where its payloads are, and how long they are.
    payloads: Vec<Vec<(Seq, u64)>>,
    /// The claims that its own replaced when it was admitted.
    replaced: Vec<(HookToken, Option<(usize, HookNo)>)>,
    streams: BTreeMap<StreamName, Stream>,
    log: Log,
    created_at: Timestamp,
    lineage: Option<Lineage>,
    /// Who started it, by its place in `runs`.
    parent: Option<(usize, CallNo, ParentEnd)>,
    /// Who must have ended before it begins, by their places in `runs`. Of one that went on as another, that other.
    predecessors: BTreeSet<usize>,
    /// The run in whose place it goes on.
    goes_on_for: Option<usize>,
}

#[derive(Clone, Default)]
struct Stream {
    chunks: Vec<Chunk>,
    bytes: u64,
    /// The next number of every writer.
    next: BTreeMap<Option<CallNo>, u64>,
}

#[derive(Default)]
struct Log {
    lines: Vec<LogLine>,
    bytes: u64,
    dropped: u64,
    /// What names each line: kept once.
    known: HashSet<(Option<CallNo>, u32, Seq, u64)>,
    mark: Option<LogMark>,
}

impl Log {
    fn add(&mut self, batch: LogBatch) {
        for line in batch.lines {
            let at = decide::entry_time(0, line.at);
            let line = LogLine { at, ..line };
            if !decide::takes_line(self.lines.len() as u64, self.bytes, &line) {
                self.dropped += 1;
            } else if self
                .known
                .insert((line.call, line.attempt, line.seq, line.number))
            {
                self.bytes += line.text.len() as u64;
                self.lines.push(line);
            }
        }
        self.dropped += batch.dropped;
        self.mark = self.mark.max(batch.mark);
    }
}

#[derive(Clone)]
struct Hook {
    token: HookToken,
    metadata: Option<Value>,
    payload: PayloadType,
    webhook: Option<HookUrl>,
    claimed_at: Timestamp,
    retained_until: Timestamp,
    closed: bool,
    disposed_at: Option<Timestamp>,
    unread: Unread,
}

impl Hook {
    fn new(spec: &HookSpec, claimed_at: Timestamp) -> Self {
        Self {
            token: spec.token.clone(),
            metadata: spec.metadata.clone(),
            payload: spec.payload.clone(),
            webhook: spec.webhook.clone(),
            claimed_at,
            retained_until: decide::retained_until(claimed_at, spec),
            closed: false,
            disposed_at: None,
            unread: Unread::default(),
        }
    }
}

impl Run {
    fn last(&self) -> &Entry {
        self.entries.last().expect("a run begins with entry 0")
    }

    fn concurrency(&self) -> Option<&Concurrency> {
        match &self.entries[0].event {
            Event::Started(started) => started.concurrency.as_ref(),
            _ => None,
        }
    }

    fn hook(&mut self, hook: HookNo) -> Result<&mut Hook> {
        self.hooks
            .get_mut(hook as usize)
            .ok_or_else(|| decide::no_hook(hook))
    }

    /// How many payloads of a hook the guest is known to have taken.
    fn read(&mut self, hook: HookNo) -> Result<usize> {
        let unread = self.hook(hook)?.unread.payloads as usize;
        Ok(self.payloads[hook as usize].len() - unread)
    }

    /// Adds an entry and what follows from it in this run. On an error the entry is not there.
    fn push(&mut self, event: Event, body: Option<Body>, now: Timestamp) -> Result<Entry> {
        let at = decide::entry_time(self.last().at, now);
        let standing = self.standing.after(&event, at)?;
        let entry = Entry {
            seq: self.last().seq + 1,
            at,
            event,
            body,
        };
        self.apply(&entry)?;
        self.standing = standing;
        if standing.status() != RunStatus::Blocked {
            self.blocked = None;
        }
        self.entries.push(entry.clone());
        Ok(entry)
    }

    /// What follows from an entry in this run, but for its standing.
    fn apply(&mut self, Entry { seq, at, event, body }: &Entry) -> Result<()> {
        let (seq, at) = (*seq, *at);
        match event {
            Event::HookClaimed { spec, .. } => {
                self.hooks.push(Hook::new(spec, at));
                self.payloads.push(Vec::new());
            }
            Event::HookClosed { hook, .. } => self.hook(*hook)?.closed = true,
            Event::HookDisposed { hook, .. } => {
                let hook = self.hook(*hook)?;
                hook.closed = true;
                hook.disposed_at.get_or_insert(at);
            }
            Event::PayloadReceived { hook } => {
                let len = body.as_ref().map_or(0, |body| body.len);
                let found = self.hook(*hook)?;
                found.unread = found.unread.with(len);
                self.payloads[*hook as usize].push((seq, len));
            }
            Event::PayloadsTaken { hook, count } => {
                let read = self.read(*hook)?;
                let taken = self.payloads[*hook as usize]
                    .iter()
                    .skip(read)
                    .take(*count as usize);
                let bytes = taken.map(|(_, len)| len).sum();
                let hook = self.hook(*hook)?;
                hook.unread = decide::unread_after_take(hook.unread, *count, bytes)?;
            }
            Event::Upgraded { component } => self.component = *component,
            Event::Forked(forked) => {
                self.component = forked.component;
                for (number, spec) in &forked.hooks {
                    let hook = self.hook(*number)?;
                    let unread = hook.unread;
                    *hook = Hook::new(spec, at);
                    hook.unread = unread;
                }
            }
            Event::Tagged { name, value, .. } => self.tags = decide::tagged(&self.tags, name, value)?,
            _ => {}
        }
        Ok(())
    }

    /// Adds a chunk, unless it is there or cannot be.
    fn write(&mut self, write: StreamWrite, now: Timestamp) -> Result<Written> {
        let stream = self.streams.get(&write.stream);
        let held = Streamed {
            streams: self.streams.len() as u64,
            bytes: self.streams.values().map(|stream| stream.bytes).sum(),
            chunks: stream.map(|stream| stream.chunks.len() as u64),
            next: stream
                .and_then(|stream| stream.next.get(&write.call).copied())
                .unwrap_or(0),
        };
        if let Err(answer) = decide::write_chunk(self.standing, held, &write)? {
            return Ok(answer);
        }
        let stream = self.streams.entry(write.stream).or_default();
        stream.bytes += write.chunk.len() as u64;
        stream.next.insert(write.call, write.number + 1);
        stream.chunks.push(Chunk {
            index: stream.chunks.len() as u64,
            at: decide::entry_time(0, now),
            call: write.call,
            attempt: write.attempt,
            chunk: write.chunk,
        });
        Ok(Written::Done)
    }

    /// `runs` are all that there are.
    fn info(&self, runs: &[Self]) -> RunInfo {
        let ids = |places: BTreeSet<usize>| places.into_iter().map(|place| runs[place].id.clone()).collect();
        RunInfo {
            parent: self.parent.map(|(parent, ..)| runs[parent].id.clone()),
            id: self.id.clone(),
            workflow: self.workflow.clone(),
            component: self.component,
            status: self.standing.status(),
            created_at: self.created_at,
            lineage: self.lineage.clone(),
            ended_at: self.standing.ended_at(),
            wake_at: self.standing.wake_at(),
            waits: self
                .standing
                .waits()
                .map(|wait| wait.shown(ids(self.live_predecessors(runs)))),
            predecessors: ids(self.predecessors.clone()),
            concurrency: self.concurrency().cloned(),
            cancel_requested: self.standing.cancel_requested,
            blocked: self.blocked.clone(),
            tokens: self.tokens.clone(),
            tags: self.tags.clone(),
            duplicates: self.duplicates,
            entries: self.entries.len() as u64,
        }
    }

    /// Those that have not ended.
    fn live_predecessors(&self, runs: &[Self]) -> BTreeSet<usize> {
        let live = |place: &usize| !runs[*place].standing.folded.is_terminal();
        self.predecessors.iter().copied().filter(live).collect()
    }

    fn claim(&self, hook: HookNo) -> Claim {
        let Hook {
            closed,
            disposed_at,
            retained_until,
            unread,
            ..
        } = self.hooks[hook as usize];
        Claim {
            address: HookRef {
                run: self.id.clone(),
                hook,
            },
            owner: Owner {
                run: self.id.clone(),
                workflow: self.workflow.clone(),
                status: self.standing.status(),
            },
            owner_ended_at: self.standing.ended_at(),
            closed,
            disposed_at,
            retained_until,
            unread,
        }
    }

    fn hook_info(&self, no: HookNo, now: Timestamp) -> HookInfo {
        let claim = self.claim(no);
        let hook = &self.hooks[no as usize];
        HookInfo {
            token: hook.token.clone(),
            run_id: self.id.clone(),
            hook: no,
            state: claim.state(now),
            owner: claim.owner,
            metadata: hook.metadata.clone(),
            unread: hook.unread.payloads,
            claimed_at: hook.claimed_at,
            retained_until: hook.retained_until,
            payload: hook.payload.clone(),
            webhook: hook.webhook.clone(),
            component: self.component,
        }
    }

    fn from(&self, seq: Seq) -> &[Entry] {
        let from = usize::try_from(seq).unwrap_or(usize::MAX);
        self.entries.get(from..).unwrap_or_default()
    }
}

impl State {
    fn check_fence(&self, fence: Fence) -> Result<()> {
        if fence.0 == self.epoch {
            Ok(())
        } else {
            Err(StoreError::Fenced)
        }
    }

    fn find(&self, id: &RunId) -> Option<&Run> {
        self.by_id.get(id).map(|&index| &self.runs[index])
    }

    fn index(&self, id: &RunId) -> Result<usize> {
        self.by_id.get(id).copied().ok_or_else(|| decide::no_run(id))
    }

    fn last_claim(&self, token: &HookToken) -> Option<Claim> {
        let &(run, hook) = self.claims.get(token)?;
        Some(self.runs[run].claim(hook))
    }

    fn recall(
        &self,
        id: Option<&RunId>,
        key: Option<&IdempotencyKey>,
        request: Digest,
        now: Timestamp,
    ) -> Option<Admission> {
        let receipt = key.and_then(|key| self.start_receipts.get(key));
        match decide::recall(receipt.cloned(), request, now) {
            Recall::Again(answer) => return Some(answer),
            Recall::Conflict => return Some(Admission::KeyConflict),
            Recall::Fresh => {}
        }
        let id = id?;
        let run = self.find(id)?;
        Some(decide::same_id(id.clone(), run.request, request))
    }

    fn admit(&mut self, new: NewRun) -> Result<Admission> {
        decide::check_tokens(&new.started.hooks)?;
        let (key, request, now) = (new.key.clone(), new.request, new.now);
        self.answer_once(key, request, now, |state| state.admit_once(new))
    }

    fn fork(&mut self, fork: NewFork) -> Result<Admission> {
        decide::check_tokens(&fork.specs())?;
        let (key, request, now) = (fork.key.clone(), fork.request, fork.now);
        self.answer_once(key, request, now, |state| state.fork_once(fork))
    }

    /// Answers a keyed request as it was answered before, or lets it be answered and keeps that.
    fn answer_once(
        &mut self,
        key: Option<IdempotencyKey>,
        request: Digest,
        at: Timestamp,
        admit: impl FnOnce(&mut Self) -> Result<Admission>,
    ) -> Result<Admission> {
        if let Some(answer) = self.recall(None, key.as_ref(), request, at) {
            self.count_duplicate(&answer);
            return Ok(answer);
        }
        let answer = admit(self)?;
        if !matches!(answer, Admission::Started { .. }) {
            self.count_duplicate(&answer);
        }
        if let Some((key, answer)) = key.zip(answer.receipt()) {
            let receipt = Receipt { request, answer, at };
            self.start_receipts.insert(key, receipt);
        }
        Ok(answer)
    }

    /// A start met the run that it was answered with.
    fn count_duplicate(&mut self, answer: &Admission) {
        let met = answer.run().and_then(|run| self.by_id.get(run));
        if let Some(&index) = met {
            self.runs[index].duplicates += 1;
        }
    }

    fn admit_once(&mut self, new: NewRun) -> Result<Admission> {
        let first = match self.meet(&new)? {
            Meeting::Free { first } => first,
            Meeting::Replace(replacement) => return self.replace(new, replacement),
            Meeting::Deliver { hook, payload } => {
                let (receipt, entry) = self.receive(hook, payload, new.now)?;
                return Ok(Admission::Delivered { receipt, entry });
            }
            Meeting::Attach(owner) => {
                let started_with = &self.runs[self.index(&owner.run)?].entries[0].body;
                let started_with = started_with.clone().unwrap_or_else(|| Body::new("null"));
                return Ok(decide::attached(owner, &new.input, &started_with));
            }
            Meeting::Refuse(answer) => return Ok(answer),
        };
        let (run, now) = (new.id.clone(), new.now);
        self.insert_run(new, None)?;
        if let (Some((hook, payload)), Some(admitted)) = (first, self.runs.last_mut()) {
            admitted.push(Event::PayloadReceived { hook }, Some(payload), now)?;
        }
        Ok(Admission::Started {
            run,
            replaced: Vec::new(),
            fresh: true,
            woken: Vec::new(),
        })
    }

    /// Admits a run that takes its tokens from others and begins when they have ended.
    fn replace(&mut self, mut new: NewRun, replacement: Replacement) -> Result<Admission> {
        let (run, now) = (new.id.clone(), new.now);
        let Replacement { owners, claimants } = replacement;
        let mut woken = Vec::new();
        for (owner, hooks) in &owners {
            let index = self.index(owner)?;
            // Before the hook closes: that is not how its guest is to learn that it is over.
            if let Some((event, body)) = decide::cancel_replaced(self.runs[index].standing) {
                self.runs[index].push(event, body, now)?;
                woken.push(owner.clone());
                if self.runs[index].standing.folded.is_terminal() {
                    self.tell_others(index, now, &mut woken)?;
                }
            }
            for hook in hooks {
                self.runs[index].push(Event::hook_replaced(*hook), None, now)?;
            }
        }
        let mut live = BTreeSet::new();
        for claimant in claimants {
            let index = self.index(&claimant)?;
            let claimant = &self.runs[index];
            live.extend(claimant.live_predecessors(&self.runs));
            if !claimant.standing.folded.is_terminal() {
                live.insert(index);
            }
        }
        let ids = live.iter().map(|place| self.runs[*place].id.clone());
        new.started.predecessors = ids.collect();
        self.insert_run(new, None)?;
        let mut predecessors = live;
        // Of one that was just ended something may still be at work, which the engine knows.
        for (owner, _) in &owners {
            predecessors.insert(self.index(owner)?);
        }
        if let Some(admitted) = self.runs.last_mut() {
            admitted.predecessors = predecessors;
        }
        Ok(Admission::Started {
            run,
            replaced: owners.into_iter().map(|(owner, _)| owner).collect(),
            fresh: true,
            woken,
        })
    }

    fn fork_once(&mut self, fork: NewFork) -> Result<Admission> {
        if let Some(run) = self.find(&fork.id) {
            return Ok(decide::same_id(fork.id, run.request, fork.request));
        }
        let source = &self.runs[self.index(&fork.forked.of)?];
        let copied = source.from(0).iter();
        let copied: Vec<_> = copied
            .take_while(|entry| entry.seq <= fork.forked.upto)
            .cloned()
            .collect();
        let made = decide::fork(&fork, &copied, fork.now)?;
        let specs = fork.specs();
        let last: Vec<_> = specs.iter().map(|spec| self.last_claim(&spec.token)).collect();
        if let Some(refused) = decide::fork_meets(&fork, &last) {
            return Ok(refused);
        }
        let Event::Started(started) = &copied[0].event else {
            return Err(decide::no_run(&fork.forked.of));
        };
        let hooks: Vec<_> = started
            .hooks
            .iter()
            .map(|spec| Hook::new(spec, copied[0].at))
            .collect();
        let mut run = Run {
            id: fork.id.clone(),
            workflow: started.workflow.clone(),
            component: started.component,
            request: fork.request,
            tokens: specs.into_iter().map(|spec| spec.token).collect(),
            tags: started.tags.clone(),
            duplicates: 0,
            standing: made.standing,
            blocked: None,
            payloads: vec![Vec::new(); hooks.len()],
            hooks,
            replaced: Vec::new(),
            streams: BTreeMap::new(),
            log: Log::default(),
            created_at: decide::entry_time(copied[copied.len() - 1].at, fork.now),
            lineage: Some(fork.lineage()),
            parent: None,
            predecessors: BTreeSet::new(),
            goes_on_for: None,
            entries: Vec::new(),
        };
        for entry in copied {
            run.apply(&entry)?;
            run.entries.push(entry);
        }
        for (event, body) in made.entries {
            run.push(event, body, fork.now)?;
        }
        let index = self.runs.len();
        for (hook, spec) in &fork.forked.hooks {
            self.claims.insert(spec.token.clone(), (index, *hook));
        }
        self.by_id.insert(fork.id.clone(), index);
        self.runs.push(run);
        Ok(Admission::Started {
            run: fork.id,
            replaced: Vec::new(),
            fresh: true,
            woken: Vec::new(),
        })
    }

    fn emit(&mut self, emission: Emission) -> Result<Emitted> {
        let Emission {
            source,
            id,
            request,
            parts,
            now,
        } = emission;
        let key = id.map(|id| (source.scope(), id));
        let before = self.schedules.clone();
        if let Source::Schedule {
            name,
            done_until: Some(until),
        } = source
        {
            match self.schedules.get_mut(&name) {
                Some((_, at)) if *at < until => *at = until,
                _ => return Ok(decide::nothing_to_fire()),
            }
        }
        let receipt = key.as_ref().and_then(|key| self.event_receipts.get(key));
        match decide::recall(receipt.cloned(), request, now) {
            Recall::Again(parts) => return Ok(Emitted::Done { parts, fresh: false }),
            Recall::Conflict => return Ok(Emitted::KeyConflict),
            Recall::Fresh => {}
        }
        let known = self.runs.len();
        let parts: Result<Vec<_>> = parts.into_iter().map(|part| self.admit_part(part)).collect();
        let parts = parts.inspect_err(|_| {
            while self.runs.len() > known {
                self.withdraw_last();
            }
            self.schedules = before;
        })?;
        for owner in parts.iter().filter_map(Part::owner) {
            if let Some(&index) = self.by_id.get(&owner.run) {
                self.runs[index].duplicates += 1;
            }
        }
        if let Some(key) = key.filter(|_| decide::was_emitted(&parts)) {
            let receipt = Receipt {
                request,
                answer: parts.clone(),
                at: now,
            };
            self.event_receipts.insert(key, receipt);
        }
        Ok(Emitted::Done { parts, fresh: true })
    }

    fn admit_part(&mut self, NewPart { workflow, start }: NewPart) -> Result<Part> {
        let admission = match start {
            Ok(new) => {
                decide::check_tokens(&new.started.hooks)?;
                let on_conflict = OnConflict::Fail;
                Ok(self.admit_once(NewRun { on_conflict, ..*new })?)
            }
            Err(message) => Err(message),
        };
        Ok(decide::part(workflow, admission))
    }

    /// What a run meets that is to be admitted: by its id, then by its tokens.
    fn meet(&self, new: &NewRun) -> Result<Meeting> {
        if let Some(run) = self.find(&new.id) {
            let answer = decide::same_id(new.id.clone(), run.request, new.request);
            return Ok(Meeting::Refuse(answer));
        }
        let hooks = new.started.hooks.iter();
        let last: Vec<_> = hooks.map(|spec| self.last_claim(&spec.token)).collect();
        decide::meet(new, &last)
    }

    fn insert_run(&mut self, new: NewRun, parent: Option<(usize, CallNo, ParentEnd)>) -> Result<()> {
        let at = decide::entry_time(0, new.now);
        let hooks: Vec<_> = new.started.hooks.iter().map(|spec| Hook::new(spec, at)).collect();
        let tokens: Vec<_> = hooks.iter().map(|hook| hook.token.clone()).collect();
        let (workflow, component) = (new.started.workflow.clone(), new.started.component);
        let (tags, lineage) = (new.started.tags.clone(), new.started.lineage.clone());
        let event = Event::Started(Box::new(new.started));
        let standing = Standing::admitted(&event, at)?;
        let index = self.runs.len();
        let claims = tokens.iter().zip(0..);
        let replaced = claims
            .map(|(token, hook)| (token.clone(), self.claims.insert(token.clone(), (index, hook))))
            .collect();
        self.by_id.insert(new.id.clone(), index);
        self.runs.push(Run {
            id: new.id.clone(),
            workflow,
            component,
            request: new.request,
            tokens,
            tags,
            duplicates: 0,
            standing,
            blocked: None,
            entries: vec![Entry {
                seq: 0,
                at,
                event,
                body: Some(new.input),
            }],
            payloads: vec![Vec::new(); hooks.len()],
            hooks,
            replaced,
            streams: BTreeMap::new(),
            log: Log::default(),
            created_at: at,
            lineage,
            parent,
            predecessors: BTreeSet::new(),
            goes_on_for: None,
        });
        Ok(())
    }

    /// Adds a payload to a hook that takes it.
    fn receive(
        &mut self,
        address: HookRef,
        payload: Body,
        now: Timestamp,
    ) -> Result<(DeliveryReceipt, Option<Box<Entry>>)> {
        let index = self.index(&address.run)?;
        let event = Event::PayloadReceived { hook: address.hook };
        let entry = self.runs[index].push(event, Some(payload), now)?;
        let receipt = DeliveryReceipt {
            run_id: address.run,
            seq: entry.seq,
        };
        Ok((receipt, decide::news(entry, self.runs[index].standing, now)))
    }

    /// All of the append or nothing of it.
    fn append(&mut self, append: Append) -> Result<Appended> {
        self.check_fence(append.fence)?;
        let index = self.index(&append.run)?;
        let run = &self.runs[index];
        decide::check_seen(append.seen, run.last().seq)?;
        if run.standing.folded.is_terminal() {
            return Ok(Appended {
                entries: run.from(append.seen + 1).to_vec(),
                parked: false,
                status: run.standing.status(),
                woken: Vec::new(),
            });
        }
        let left = decide::unwritten(run.from(append.seen + 1), append.entries);

        let before = (
            run.standing,
            run.blocked.clone(),
            run.entries.len(),
            run.hooks.clone(),
            run.tags.clone(),
            run.streams.clone(),
        );
        self.runs[index].standing = before.0.at_work();
        let mut moved = Vec::new();
        let known = self.runs.len();
        let written = left
            .entries
            .into_iter()
            .try_for_each(|entry| self.append_one(index, entry, append.now, &mut moved));
        if let Err(error) = written {
            // Children, the newest first, so that the claims before them come back.
            while self.runs.len() > known {
                self.withdraw_last();
            }
            let run = &mut self.runs[index];
            run.entries.truncate(before.2);
            (run.standing, run.blocked, run.hooks) = (before.0, before.1, before.3);
            (run.tags, run.streams) = (before.4, before.5);
            run.payloads.truncate(run.hooks.len());
            for (token, claim) in moved.into_iter().rev() {
                match claim {
                    Some(claim) => self.claims.insert(token, claim),
                    None => self.claims.remove(&token),
                };
            }
            return Err(error);
        }

        let run = &mut self.runs[index];
        run.log.add(append.logs);
        let parked = append
            .park
            .filter(|_| !left.others_wrote)
            .and_then(|park| run.standing.parked(park));
        if let Some(parked) = parked {
            run.standing = parked;
        }
        let status = run.standing.status();
        let mut answer = Appended {
            entries: run.from(append.seen + 1).to_vec(),
            parked: parked.is_some(),
            status,
            woken: self.runs[known..].iter().map(|child| child.id.clone()).collect(),
        };
        if status.is_terminal() {
            self.tell_others(index, append.now, &mut answer.woken)?;
        }
        Ok(answer)
    }

    /// Takes back the run that was admitted last: what it was part of failed.
    fn withdraw_last(&mut self) {
        let Some(run) = self.runs.pop() else {
            return;
        };
        self.by_id.remove(&run.id);
        if let Some(before) = run.goes_on_for {
            self.move_followers(self.runs.len(), before);
        }
        for (token, before) in run.replaced {
            match before {
                Some(claim) => self.claims.insert(token, claim),
                None => self.claims.remove(&token),
            };
        }
    }

    /// Whoever waits for one run waits for another in its place.
    fn move_followers(&mut self, from: usize, to: usize) {
        for run in &mut self.runs {
            if run.predecessors.remove(&from) {
                run.predecessors.insert(to);
            }
        }
    }

    /// Admits the run that goes on for this one: with its open hooks, what was not read from them, and its parent.
    fn go_on(
        &mut self,
        index: usize,
        continuation: &Continuation,
        now: Timestamp,
    ) -> Result<(Event, Option<Body>)> {
        let run = &self.runs[index];
        let (id, standing, parent) = (run.id.clone(), run.standing, run.parent);
        let held = |no: &HookNo| self.claims.get(&run.hooks[*no as usize].token) == Some(&(index, *no));
        let numbers = 0..run.hooks.len() as HookNo;
        let open: Vec<_> = numbers
            .filter(|no| !run.hooks[*no as usize].closed)
            .filter(held)
            .collect();
        let specs = open.iter().map(|no| {
            let hook = &run.hooks[*no as usize];
            let spec = HookSpec {
                token: hook.token.clone(),
                retain_ms: 0,
                metadata: hook.metadata.clone(),
                payload: hook.payload.clone(),
                webhook: hook.webhook.clone(),
            };
            (spec, hook.retained_until)
        });
        let new = decide::continued(&id, continuation, specs, now);
        let mut unread = Vec::new();
        for (old, new) in open.iter().zip(0 as HookNo..) {
            let (received, hook) = (&run.payloads[*old as usize], &run.hooks[*old as usize]);
            let read = received.len() - hook.unread.payloads as usize;
            unread.extend(received[read..].iter().map(|(seq, _)| (*seq, new)));
        }
        unread.sort_unstable();
        let payloads: Vec<_> = unread
            .into_iter()
            .map(|(seq, hook)| (hook, run.entries[seq as usize].body.clone()))
            .collect();
        let goes_on = new.id.clone();
        let awaits = |run: &Run| run.predecessors.contains(&index) && run.standing.awaits_predecessors();
        let awaited = self.runs.iter().any(awaits);
        self.insert_run(new, parent)?;
        self.move_followers(index, self.runs.len() - 1);
        let Some(admitted) = self.runs.last_mut() else {
            return Err(decide::no_run(&goes_on));
        };
        admitted.goes_on_for = Some(index);
        for (hook, body) in payloads {
            admitted.push(Event::PayloadReceived { hook }, body, now)?;
        }
        if let Some(carried) = decide::carried(continuation, standing, awaited) {
            admitted.push(carried, None, now)?;
        }
        Ok((
            Event::Continued { run: goes_on },
            Some(continuation.input.clone()),
        ))
    }

    fn tell_others(&mut self, ended: usize, now: Timestamp, woken: &mut Vec<RunId>) -> Result<()> {
        let mut ended = vec![ended];
        while let Some(index) = ended.pop() {
            let run = &self.runs[index];
            if let Some((parent, call, _)) = run.parent
                // The run that goes on has the parent.
                && run.standing.folded != RunStatus::Continued
                && !self.runs[parent].standing.folded.is_terminal()
            {
                let outcome = run.last().body.as_ref();
                let (event, body) = decide::child_ended(call, &run.id, run.standing.folded, outcome);
                self.runs[parent].push(event, Some(body), now)?;
                woken.push(self.runs[parent].id.clone());
            }
            for child in 0..self.runs.len() {
                let run = &mut self.runs[child];
                let Some((_, _, on_parent_end)) = run.parent.filter(|(parent, ..)| *parent == index) else {
                    continue;
                };
                if let Some((event, body)) = decide::after_parent(run.standing, on_parent_end) {
                    run.push(event, body, now)?;
                    woken.push(run.id.clone());
                    if run.standing.folded.is_terminal() {
                        ended.push(child);
                    }
                }
            }
            for follower in 0..self.runs.len() {
                let run = &self.runs[follower];
                if run.predecessors.contains(&index)
                    && run.standing.awaits_predecessors()
                    && run.live_predecessors(&self.runs).is_empty()
                {
                    self.runs[follower].push(Event::PredecessorsEnded, None, now)?;
                    woken.push(self.runs[follower].id.clone());
                }
            }
        }
        Ok(())
    }

    /// `moved` gets the claims that were replaced.
    fn append_one(
        &mut self,
        index: usize,
        entry: NewEntry,
        now: Timestamp,
        moved: &mut Vec<(HookToken, Option<(usize, HookNo)>)>,
    ) -> Result<()> {
        let (event, body) = match entry {
            NewEntry::Event { event, body } => {
                decide::check_owner_event(&event)?;
                (event, body)
            }
            NewEntry::Continue(continuation) => self.go_on(index, &continuation, now)?,
            NewEntry::Write(write) => {
                self.runs[index].write(write, now)?;
                return Ok(());
            }
            NewEntry::StartChild(child) => {
                let parent = self.runs[index].id.clone();
                let admitted = match decide::child(&parent, &child, now)? {
                    Err(failure) => Err(failure),
                    Ok(new) => match decide::child_meets(self.meet(&new)?) {
                        Some(refused) => Err(refused),
                        None => {
                            let id = new.id.clone();
                            let link = (index, child.call, child.options.on_parent_end);
                            self.insert_run(new, Some(link))?;
                            Ok(id)
                        }
                    },
                };
                decide::child_entry(*child, admitted)
            }
            NewEntry::Emit(emit) => {
                let parts = decide::emitted_parts(&self.runs[index].id, &emit, now)?;
                let parts = match parts {
                    Ok(parts) => Ok(parts
                        .into_iter()
                        .map(|part| self.admit_part(part))
                        .collect::<Result<_>>()?),
                    Err(failure) => Err(failure),
                };
                decide::emit_entry(*emit, parts)
            }
            NewEntry::OpenHook {
                call,
                hook,
                spec,
                generated,
            } => {
                let opening = Opening {
                    call,
                    hook,
                    spec,
                    generated,
                };
                let last = self.last_claim(&opening.spec.token);
                let run = &self.runs[index];
                let opener = Opener {
                    run: &run.id,
                    standing: run.standing,
                    claims: run.hooks.len() as HookNo,
                };
                decide::open_hook(&opener, opening, last.as_ref(), now)?
            }
        };
        let claimed = match &event {
            Event::HookClaimed { hook, spec, .. } => Some((spec.token.clone(), *hook)),
            _ => None,
        };
        self.runs[index].push(event, body, now)?;
        if let Some((token, hook)) = claimed {
            let replaced = self.claims.insert(token.clone(), (index, hook));
            moved.push((token, replaced));
        }
        Ok(())
    }

    fn deliver(&mut self, delivery: Delivery) -> Result<Delivered> {
        let request = delivery.request;
        let key = delivery.key.clone().map(|key| (delivery.token.clone(), key));
        let receipt = key.as_ref().and_then(|key| self.delivery_receipts.get(key));
        match decide::recall(receipt.cloned(), request, delivery.now) {
            Recall::Again(receipt) => return Ok(Delivered::Accepted { receipt, entry: None }),
            Recall::Conflict => return Ok(Delivered::KeyConflict),
            Recall::Fresh => {}
        }
        let last = self.last_claim(&delivery.token);
        let address = match decide::deliver(&delivery, last.as_ref()) {
            Ok(address) => address,
            Err(refused) => return Ok(refused),
        };
        let (receipt, entry) = self.receive(address, delivery.payload, delivery.now)?;
        if let Some(key) = key {
            let answer = receipt.clone();
            let receipt = Receipt {
                request,
                answer,
                at: delivery.now,
            };
            self.delivery_receipts.insert(key, receipt);
        }
        Ok(Delivered::Accepted { receipt, entry })
    }

    fn dispose(&mut self, token: &HookToken, now: Timestamp) -> Result<Disposed> {
        let address = match decide::dispose(self.last_claim(token).as_ref(), now) {
            Ok(address) => address,
            Err(refused) => return Ok(refused),
        };
        let index = self.index(&address.run)?;
        self.runs[index].push(Event::hook_freed(address.hook), None, now)?;
        Ok(Disposed::Freed { run: address.run })
    }

    fn cancel(&mut self, id: &RunId, ending: Ending, now: Timestamp) -> Result<(Cancelled, Vec<RunId>)> {
        let mut woken = Vec::new();
        let Some(&index) = self.by_id.get(id) else {
            return Ok((Cancelled::NotFound, woken));
        };
        let run = &mut self.runs[index];
        let answer = match decide::cancel(run.standing, ending) {
            Cancellation::Answer(answer) => answer,
            Cancellation::Write(event, body) => {
                run.push(event, body, now)?;
                let answer = decide::cancelled(run.standing);
                if answer == Cancelled::Ended {
                    self.tell_others(index, now, &mut woken)?;
                }
                answer
            }
        };
        Ok((answer, woken))
    }

    fn settle_step(&mut self, settlement: Settlement) -> Result<Settled> {
        let Some(&index) = self.by_id.get(&settlement.run) else {
            return Ok(Settled::NotFound);
        };
        let (run, now) = (&mut self.runs[index], settlement.now);
        let status = run.standing.status();
        match decide::settle_step(settlement, status, run.blocked.as_ref()) {
            Ok((event, body)) => run.push(event, body, now)?,
            Err(refused) => return Ok(refused),
        };
        Ok(Settled::Done)
    }

    fn upgrade(&mut self, id: &RunId, component: Digest, now: Timestamp) -> Result<Upgraded> {
        let Some(&index) = self.by_id.get(id) else {
            return Ok(Upgraded::NotFound);
        };
        let run = &mut self.runs[index];
        if run.standing.folded.is_terminal() {
            let status = run.standing.folded;
            return Ok(Upgraded::Ended { status });
        }
        if !self.components.contains_key(&component) {
            return Err(decide::no_component(component));
        }
        run.push(Event::Upgraded { component }, None, now)?;
        Ok(Upgraded::Done)
    }

    /// Places of the runs that are due at `now`, with since when, longest first.
    fn due(&self, now: Timestamp) -> Vec<(Timestamp, usize)> {
        let mut due: Vec<_> = (0..)
            .zip(&self.runs)
            .filter_map(|(index, run)| Some((run.standing.due_since(now)?, index)))
            .collect();
        due.sort_unstable();
        due
    }
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::default()
    }

    // A method that panicked changed nothing that others could misread: the rules hold before each write.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn take_over(&self, _now: Timestamp) -> Result<Fence> {
        let mut state = self.state();
        state.epoch += 1;
        Ok(Fence(state.epoch))
    }

    async fn deploy(
        &self,
        name: &str,
        component: StoredComponent,
        schedules: Vec<NewSchedule>,
        now: Timestamp,
    ) -> Result<()> {
        let mut state = self.state();
        let digest = component.digest;
        state.components.entry(digest).or_insert(component);
        let now = decide::entry_time(0, now);
        state.deployments.insert(name.to_owned(), (digest, now));
        let mut before = std::mem::take(&mut state.schedules);
        for NewSchedule { workflow, spec } in schedules {
            let deployment = name.to_owned();
            let name = ScheduleName { deployment, workflow };
            let same = before.remove(&name).filter(|(before, _)| *before == spec);
            let done_until = same.map_or(now, |(_, done_until)| done_until);
            state.schedules.insert(name, (spec, done_until));
        }
        before.retain(|other, _| other.deployment != name);
        state.schedules.append(&mut before);
        Ok(())
    }

    async fn remove_deployment(&self, name: &str) -> Result<bool> {
        let mut state = self.state();
        state.schedules.retain(|schedule, _| schedule.deployment != name);
        Ok(state.deployments.remove(name).is_some())
    }

    async fn schedules(&self) -> Result<Vec<StoredSchedule>> {
        let state = self.state();
        let schedules = state.schedules.iter();
        let schedules = schedules.map(|(name, (spec, done_until))| StoredSchedule {
            name: name.clone(),
            spec: spec.clone(),
            done_until: *done_until,
        });
        Ok(schedules.collect())
    }

    async fn deployments(&self) -> Result<Vec<Deployment>> {
        let state = self.state();
        let deployments = state.deployments.iter().map(|(name, (digest, at))| Deployment {
            name: name.clone(),
            digest: *digest,
            manifest: state.components[digest].manifest.clone(),
            deployed_at: *at,
        });
        Ok(deployments.collect())
    }

    async fn component(&self, digest: Digest) -> Result<Option<StoredComponent>> {
        Ok(self.state().components.get(&digest).cloned())
    }

    async fn admit(&self, run: NewRun) -> Result<Admission> {
        self.state().admit(run)
    }

    async fn recall(
        &self,
        id: Option<&RunId>,
        key: Option<&IdempotencyKey>,
        request: Digest,
        now: Timestamp,
    ) -> Result<Option<Admission>> {
        let mut state = self.state();
        let answer = state.recall(id, key, request, now);
        if let Some(answer) = &answer {
            state.count_duplicate(answer);
        }
        Ok(answer)
    }

    async fn emit(&self, emission: Emission) -> Result<Emitted> {
        self.state().emit(emission)
    }

    async fn due(&self, now: Timestamp, limit: usize, but: &[ConcurrencyGroup]) -> Result<Vec<DueRun>> {
        let state = self.state();
        let due = state.due(now).into_iter().map(|(_, index)| DueRun {
            run: state.runs[index].id.clone(),
            concurrency: state.runs[index].concurrency().cloned(),
        });
        let wanted = due.filter(|due| decide::in_none_of(due.concurrency.as_ref(), but));
        Ok(wanted.take(limit).collect())
    }

    async fn next_due(&self, now: Timestamp) -> Result<Option<Timestamp>> {
        let state = self.state();
        let wakes = state.runs.iter().filter_map(|run| run.standing.wake_at());
        Ok(wakes.filter(|at| *at > now).min())
    }

    async fn load(&self, run: &RunId, from: Seq) -> Result<Option<Loaded>> {
        let state = self.state();
        let own = |(name, stream): (&StreamName, &Stream)| Some((name.clone(), *stream.next.get(&None)?));
        Ok(state.find(run).map(|run| Loaded {
            run: run.info(&state.runs),
            entries: run.from(from).to_vec(),
            written: run.streams.iter().filter_map(own).collect(),
            logged: run.log.mark,
        }))
    }

    async fn journal(&self, run: &RunId, from: Seq, limit: usize) -> Result<Option<Vec<Entry>>> {
        let state = self.state();
        let entries = state.find(run).map(|run| run.from(from).iter().take(limit));
        Ok(entries.map(|entries| entries.cloned().collect()))
    }

    async fn append(&self, append: Append) -> Result<Appended> {
        self.state().append(append)
    }

    async fn write_chunk(&self, write: ChunkWrite) -> Result<Written> {
        let mut state = self.state();
        state.check_fence(write.fence)?;
        let index = state.index(&write.run)?;
        state.runs[index].write(write.write, write.now)
    }

    async fn streams_of(&self, run: &RunId) -> Result<Option<Vec<StreamInfo>>> {
        let state = self.state();
        let info = |(name, stream): (&StreamName, &Stream)| StreamInfo {
            name: name.clone(),
            chunks: stream.chunks.len() as u64,
            bytes: stream.bytes,
        };
        Ok(state.find(run).map(|run| run.streams.iter().map(info).collect()))
    }

    async fn chunks(
        &self,
        run: &RunId,
        stream: &StreamName,
        from: u64,
        limit: usize,
    ) -> Result<Option<Vec<Chunk>>> {
        let state = self.state();
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let read = |run: &Run| {
            let chunks = run.streams.get(stream).map_or(&[][..], |stream| &stream.chunks);
            chunks.iter().skip(from).take(limit).cloned().collect()
        };
        Ok(state.find(run).map(read))
    }

    async fn logs(&self, run: &RunId, filter: LogFilter) -> Result<Option<LogPage>> {
        let state = self.state();
        let read = |run: &Run| {
            let numbered = (0..).zip(&run.log.lines);
            let wanted = numbered.filter(|(index, line)| *index >= filter.from && line.level >= filter.level);
            LogPage {
                lines: wanted
                    .take(filter.limit)
                    .map(|(index, line)| (index, line.clone()))
                    .collect(),
                dropped: run.log.dropped,
            }
        };
        Ok(state.find(run).map(read))
    }

    async fn block(&self, run: &RunId, fence: Fence, blocked: Blocked) -> Result<()> {
        let mut state = self.state();
        state.check_fence(fence)?;
        let index = state.index(run)?;
        let run = &mut state.runs[index];
        run.standing = run.standing.blocked()?;
        run.blocked = Some(blocked);
        Ok(())
    }

    async fn upgrade(&self, run: &RunId, component: Digest, now: Timestamp) -> Result<Upgraded> {
        self.state().upgrade(run, component, now)
    }

    async fn cancel(&self, run: &RunId, ending: Ending, now: Timestamp) -> Result<(Cancelled, Vec<RunId>)> {
        self.state().cancel(run, ending, now)
    }

    async fn settle_step(&self, settlement: Settlement) -> Result<Settled> {
        self.state().settle_step(settlement)
    }

    async fn fork(&self, fork: NewFork) -> Result<Admission> {
        self.state().fork(fork)
    }

    async fn deliver(&self, delivery: Delivery) -> Result<Delivered> {
        self.state().deliver(delivery)
    }

    async fn dispose(&self, token: &HookToken, now: Timestamp) -> Result<Disposed> {
        self.state().dispose(token, now)
    }

    async fn hook(&self, token: &HookToken, now: Timestamp) -> Result<Option<HookInfo>> {
        let state = self.state();
        let Some(&(run, hook)) = state.claims.get(token) else {
            return Ok(None);
        };
        let run = &state.runs[run];
        let known = !run.claim(hook).is_forgotten(now);
        Ok(known.then(|| run.hook_info(hook, now)))
    }

    async fn payloads(
        &self,
        token: &HookToken,
        from: u64,
        limit: usize,
        now: Timestamp,
    ) -> Result<Option<Vec<ReceivedPayload>>> {
        let state = self.state();
        let Some(&(run, no)) = state.claims.get(token) else {
            return Ok(None);
        };
        let run = &state.runs[run];
        if run.claim(no).is_forgotten(now) {
            return Ok(None);
        }
        let payloads = &run.payloads[no as usize];
        let read = payloads.len() as u64 - run.hooks[no as usize].unread.payloads;
        let skipped = usize::try_from(from).unwrap_or(usize::MAX);
        let numbered = (0u64..).zip(payloads).skip(skipped).take(limit);
        let payloads = numbered.map(|(number, &(seq, _))| {
            let Entry { at, body, .. } = run.entries[seq as usize].clone();
            ReceivedPayload {
                number,
                seq,
                at,
                read: number < read,
                body: body.unwrap_or_else(|| Body::new("null")),
            }
        });
        Ok(Some(payloads.collect()))
    }

    async fn hooks_of(&self, run: &RunId, now: Timestamp) -> Result<Vec<HookInfo>> {
        let state = self.state();
        let Some(run) = state.find(run) else {
            return Ok(Vec::new());
        };
        let hooks = 0..run.hooks.len() as HookNo;
        Ok(hooks.map(|hook| run.hook_info(hook, now)).collect())
    }

    async fn run(&self, run: &RunId) -> Result<Option<RunInfo>> {
        let state = self.state();
        Ok(state.find(run).map(|run| run.info(&state.runs)))
    }

    async fn runs(&self, filter: RunFilter) -> Result<Vec<RunInfo>> {
        let state = self.state();
        let place = |index: usize| (state.runs[index].created_at, index);
        let before = match &filter.after {
            Some(after) => Some(place(state.index(after)?)),
            None => None,
        };
        let wanted = |index: &usize| {
            let run = &state.runs[*index];
            before.is_none_or(|before| place(*index) < before)
                && filter.status.is_none_or(|status| run.standing.status() == status)
                && filter.workflow.as_ref().is_none_or(|name| run.workflow == *name)
                && filter.created_after.is_none_or(|at| run.created_at >= at)
                && filter.created_before.is_none_or(|at| run.created_at < at)
                && filter.parent.as_ref().is_none_or(|parent| {
                    run.parent
                        .is_some_and(|(index, ..)| state.runs[index].id == *parent)
                })
                && run.tags.contain(&filter.tags)
        };
        let mut newest: Vec<usize> = (0..state.runs.len()).filter(wanted).collect();
        newest.sort_by_key(|index| std::cmp::Reverse(place(*index)));
        newest.truncate(filter.limit);
        let infos = newest
            .into_iter()
            .map(|index| state.runs[index].info(&state.runs));
        Ok(infos.collect())
    }
}

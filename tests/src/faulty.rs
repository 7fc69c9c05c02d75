//! A store that can be told to refuse writes, as a database does on a full disk.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use onemark::ids::{ConcurrencyGroup, Digest, HookToken, IdempotencyKey, RunId, StreamName};
use onemark::journal::{Entry, Seq, Timestamp};
use onemark::store::{
    Admission, Append, Appended, Blocked, Cancelled, Chunk, ChunkWrite, Delivered, Delivery, Deployment,
    Disposed, DueRun, Emission, Emitted, Ending, Fence, HookInfo, Loaded, LogFilter, LogPage, NewFork,
    NewRun, NewSchedule, ReceivedPayload, Result, RunFilter, RunInfo, Settled, Settlement, Store, StoreError,
    StoredComponent, StoredSchedule, StreamInfo, Upgraded, Written,
};
use tokio::sync::watch;

pub struct FaultyStore {
    store: Arc<dyn Store>,
    state: watch::Sender<State>,
}

/// What is refused from now on.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub enum Refuse {
    #[default]
    Nothing,
    /// What runs do by themselves; what is asked from outside is written.
    Appends,
    Writes,
}

#[derive(Default)]
struct State {
    refuse: Refuse,
    /// How often appends of each run were refused.
    refused: HashMap<RunId, usize>,
}

impl FaultyStore {
    pub fn new(store: Arc<dyn Store>) -> Self {
        let state = watch::Sender::default();
        Self { store, state }
    }

    pub fn refuse(&self, what: Refuse) {
        self.state.send_modify(|state| state.refuse = what);
    }

    /// Returns once appends of this run were refused that often.
    pub async fn refused(&self, run: &RunId, times: usize) {
        let enough = |state: &State| state.refused.get(run).is_some_and(|refused| *refused >= times);
        self.state
            .subscribe()
            .wait_for(enough)
            .await
            .expect("the store lives");
    }

    fn write(&self) -> Result<&dyn Store> {
        match self.state.borrow().refuse {
            Refuse::Writes => Err(full()),
            Refuse::Nothing | Refuse::Appends => Ok(&*self.store),
        }
    }
}

fn full() -> StoreError {
    StoreError::Unavailable("the disk is full".into())
}

#[async_trait]
impl Store for FaultyStore {
    async fn append(&self, append: Append) -> Result<Appended> {
        if self.state.borrow().refuse != Refuse::Nothing {
            self.state
                .send_modify(|state| *state.refused.entry(append.run.clone()).or_default() += 1);
            return Err(full());
        }
        self.store.append(append).await
    }

    async fn take_over(&self, now: Timestamp) -> Result<Fence> {
        self.write()?.take_over(now).await
    }

    async fn deploy(
        &self,
        name: &str,
        component: StoredComponent,
        schedules: Vec<NewSchedule>,
        now: Timestamp,
    ) -> Result<()> {
        self.write()?.deploy(name, component, schedules, now).await
    }

    async fn remove_deployment(&self, name: &str) -> Result<bool> {
        self.write()?.remove_deployment(name).await
    }

    async fn schedules(&self) -> Result<Vec<StoredSchedule>> {
        self.store.schedules().await
    }

    async fn admit(&self, run: NewRun) -> Result<Admission> {
        self.write()?.admit(run).await
    }

    async fn fork(&self, fork: NewFork) -> Result<Admission> {
        self.write()?.fork(fork).await
    }

    async fn emit(&self, emission: Emission) -> Result<Emitted> {
        self.write()?.emit(emission).await
    }

    async fn block(&self, run: &RunId, fence: Fence, blocked: Blocked) -> Result<()> {
        self.write()?.block(run, fence, blocked).await
    }

    async fn write_chunk(&self, write: ChunkWrite) -> Result<Written> {
        self.write()?.write_chunk(write).await
    }

    async fn logs(&self, run: &RunId, filter: LogFilter) -> Result<Option<LogPage>> {
        self.store.logs(run, filter).await
    }

    async fn streams_of(&self, run: &RunId) -> Result<Option<Vec<StreamInfo>>> {
        self.store.streams_of(run).await
    }

    async fn chunks(
        &self,
        run: &RunId,
        stream: &StreamName,
        from: u64,
        limit: usize,
    ) -> Result<Option<Vec<Chunk>>> {
        self.store.chunks(run, stream, from, limit).await
    }

    async fn upgrade(&self, run: &RunId, component: Digest, now: Timestamp) -> Result<Upgraded> {
        self.write()?.upgrade(run, component, now).await
    }

    async fn cancel(&self, run: &RunId, ending: Ending, now: Timestamp) -> Result<(Cancelled, Vec<RunId>)> {
        self.write()?.cancel(run, ending, now).await
    }

    async fn settle_step(&self, settlement: Settlement) -> Result<Settled> {
        self.write()?.settle_step(settlement).await
    }

    async fn deliver(&self, delivery: Delivery) -> Result<Delivered> {
        self.write()?.deliver(delivery).await
    }

    async fn dispose(&self, token: &HookToken, now: Timestamp) -> Result<Disposed> {
        self.write()?.dispose(token, now).await
    }

    async fn deployments(&self) -> Result<Vec<Deployment>> {
        self.store.deployments().await
    }

    async fn component(&self, digest: Digest) -> Result<Option<StoredComponent>> {
        self.store.component(digest).await
    }

    async fn recall(
        &self,
        id: Option<&RunId>,
        key: Option<&IdempotencyKey>,
        request: Digest,
        now: Timestamp,
    ) -> Result<Option<Admission>> {
        self.store.recall(id, key, request, now).await
    }

    async fn due(&self, now: Timestamp, limit: usize, but: &[ConcurrencyGroup]) -> Result<Vec<DueRun>> {
        self.store.due(now, limit, but).await
    }

    async fn next_due(&self, now: Timestamp) -> Result<Option<Timestamp>> {
        self.store.next_due(now).await
    }

    async fn load(&self, run: &RunId, from: Seq) -> Result<Option<Loaded>> {
        self.store.load(run, from).await
    }

    async fn journal(&self, run: &RunId, from: Seq, limit: usize) -> Result<Option<Vec<Entry>>> {
        self.store.journal(run, from, limit).await
    }

    async fn hook(&self, token: &HookToken, now: Timestamp) -> Result<Option<HookInfo>> {
        self.store.hook(token, now).await
    }

    async fn payloads(
        &self,
        token: &HookToken,
        from: u64,
        limit: usize,
        now: Timestamp,
    ) -> Result<Option<Vec<ReceivedPayload>>> {
        self.store.payloads(token, from, limit, now).await
    }

    async fn hooks_of(&self, run: &RunId, now: Timestamp) -> Result<Vec<HookInfo>> {
        self.store.hooks_of(run, now).await
    }

    async fn run(&self, run: &RunId) -> Result<Option<RunInfo>> {
        self.store.run(run).await
    }

    async fn runs(&self, filter: RunFilter) -> Result<Vec<RunInfo>> {
        self.store.runs(filter).await
    }
}

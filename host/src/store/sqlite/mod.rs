//! The store in a SQLite file: one writer with group commit, readers beside it.
//!
//! `open` makes sure that the file is ours and nobody else's; `thread` is the writer; `requests` are what it
//! is asked for; the SQL is in the files named after what it is about.

mod column;
mod components;
mod duplicates;
mod failure;
mod hooks;
mod host;
mod journal;
mod logs;
mod migrations;
mod open;
mod readers;
mod receipts;
mod requests;
mod runs;
mod schedules;
mod streams;
mod thread;

use std::fs::File;
use std::path::Path;

use async_trait::async_trait;

use super::*;
use duplicates::Duplicates;
use failure::Failure;
use readers::Readers;
use thread::Writer;

pub use open::OpenError;
pub use thread::AfterCommit;

/// How a database is opened.
#[derive(Clone)]
pub struct SqliteOptions {
    /// Connections that read at the same time.
    pub readers: usize,
    /// For crash tests.
    pub after_commit: Option<AfterCommit>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            readers: 4,
            after_commit: None,
        }
    }
}

/// A database file, held by this process alone until the store is dropped.
pub struct SqliteStore {
    // In the order of dropping: the writer closes last of the connections and tidies up the log; then the
    // lock falls.
    readers: Readers,
    writer: Writer,
    duplicates: Duplicates,
    _lock: File,
}

impl SqliteStore {
    /// Opens a database file, or makes it. Waits for the disk.
    ///
    /// # Errors
    /// When the file is in use, of something else, of a newer version or cannot be read. Nothing was written
    /// to it then.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> std::result::Result<Self, OpenError> {
        let path = path.as_ref();
        let open::Opened { conn, lock } = open::open(path)?;
        let duplicates = Duplicates::default();
        let writer = Writer::spawn(conn, duplicates.clone(), options.after_commit);
        let writer = writer.map_err(|error| OpenError::Unreadable {
            path: path.into(),
            error,
        })?;
        Ok(Self {
            readers: Readers::new(path.into(), options.readers),
            writer,
            duplicates,
            _lock: lock,
        })
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn take_over(&self, _now: Timestamp) -> Result<Fence> {
        self.writer.run(requests::take_over).await
    }

    async fn deploy(
        &self,
        name: &str,
        component: StoredComponent,
        schedules: Vec<NewSchedule>,
        now: Timestamp,
    ) -> Result<()> {
        let name = name.to_owned();
        self.writer
            .run(move |w| requests::deploy(w, &name, &component, &schedules, now))
            .await
    }

    async fn remove_deployment(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.writer
            .run(move |w| requests::remove_deployment(w, &name))
            .await
    }

    async fn schedules(&self) -> Result<Vec<StoredSchedule>> {
        self.readers.run(schedules::all).await
    }

    async fn deployments(&self) -> Result<Vec<Deployment>> {
        self.readers.run(components::deployments).await
    }

    async fn component(&self, digest: Digest) -> Result<Option<StoredComponent>> {
        self.readers.run(move |conn| components::get(conn, digest)).await
    }

    async fn admit(&self, run: NewRun) -> Result<Admission> {
        self.writer.run(move |w| requests::admit(w, run.clone())).await
    }

    async fn fork(&self, fork: NewFork) -> Result<Admission> {
        self.writer.run(move |w| requests::fork(w, &fork)).await
    }

    async fn recall(
        &self,
        id: Option<&RunId>,
        key: Option<&IdempotencyKey>,
        request: Digest,
        now: Timestamp,
    ) -> Result<Option<Admission>> {
        let (id, key) = (id.cloned(), key.cloned());
        let recall = move |w: &mut _| requests::recall_start(w, id.as_ref(), key.as_ref(), request, now);
        self.writer.run(recall).await
    }

    async fn emit(&self, emission: Emission) -> Result<Emitted> {
        self.writer
            .run(move |w| requests::emit(w, emission.clone()))
            .await
    }

    async fn due(&self, now: Timestamp, limit: usize, but: &[ConcurrencyGroup]) -> Result<Vec<DueRun>> {
        let but = but.to_vec();
        self.readers
            .run(move |conn| runs::due(conn, now, limit, &but))
            .await
    }

    async fn next_due(&self, now: Timestamp) -> Result<Option<Timestamp>> {
        self.readers.run(move |conn| runs::next_wake(conn, now)).await
    }

    async fn load(&self, run: &RunId, from: Seq) -> Result<Option<Loaded>> {
        let run = run.clone();
        let mut loaded = self.readers.run(move |conn| load(conn, &run, from)).await?;
        if let Some(loaded) = &mut loaded {
            self.duplicates.update(&mut loaded.run);
        }
        Ok(loaded)
    }

    async fn journal(&self, run: &RunId, from: Seq, limit: usize) -> Result<Option<Vec<Entry>>> {
        let run = run.clone();
        let read = move |conn: &_| {
            let key = runs::key(conn, &run)?;
            key.map(|key| journal::read(conn, (key, &run), from, limit))
                .transpose()
        };
        self.readers.run(read).await
    }

    async fn append(&self, append: Append) -> Result<Appended> {
        self.writer.run(move |w| requests::append(w, &append)).await
    }

    async fn write_chunk(&self, write: ChunkWrite) -> Result<Written> {
        self.writer.run(move |w| requests::write_chunk(w, &write)).await
    }

    async fn streams_of(&self, run: &RunId) -> Result<Option<Vec<StreamInfo>>> {
        let run = run.clone();
        let read = move |conn: &_| {
            let key = runs::key(conn, &run)?;
            key.map(|key| streams::of_run(conn, key)).transpose()
        };
        self.readers.run(read).await
    }

    async fn chunks(
        &self,
        run: &RunId,
        stream: &StreamName,
        from: u64,
        limit: usize,
    ) -> Result<Option<Vec<Chunk>>> {
        let (run, stream) = (run.clone(), stream.clone());
        let read = move |conn: &_| {
            let key = runs::key(conn, &run)?;
            key.map(|key| streams::read(conn, key, &stream, from, limit))
                .transpose()
        };
        self.readers.run(read).await
    }

    async fn logs(&self, run: &RunId, filter: LogFilter) -> Result<Option<LogPage>> {
        let run = run.clone();
        let read = move |conn: &_| {
            let key = runs::key(conn, &run)?;
            key.map(|key| logs::read(conn, key, filter)).transpose()
        };
        self.readers.run(read).await
    }

    async fn block(&self, run: &RunId, fence: Fence, blocked: Blocked) -> Result<()> {
        let run = run.clone();
        self.writer
            .run(move |w| requests::block(w, &run, fence, &blocked))
            .await
    }

    async fn upgrade(&self, run: &RunId, component: Digest, now: Timestamp) -> Result<Upgraded> {
        let run = run.clone();
        self.writer
            .run(move |w| requests::upgrade(w, &run, component, now))
            .await
    }

    async fn cancel(&self, run: &RunId, ending: Ending, now: Timestamp) -> Result<(Cancelled, Vec<RunId>)> {
        let run = run.clone();
        self.writer
            .run(move |w| requests::cancel(w, &run, ending, now))
            .await
    }

    async fn settle_step(&self, settlement: Settlement) -> Result<Settled> {
        self.writer
            .run(move |w| requests::settle_step(w, settlement.clone()))
            .await
    }

    async fn deliver(&self, delivery: Delivery) -> Result<Delivered> {
        self.writer
            .run(move |w| requests::deliver(w, delivery.clone()))
            .await
    }

    async fn dispose(&self, token: &HookToken, now: Timestamp) -> Result<Disposed> {
        let token = token.clone();
        self.writer.run(move |w| requests::dispose(w, &token, now)).await
    }

    async fn hook(&self, token: &HookToken, now: Timestamp) -> Result<Option<HookInfo>> {
        let token = token.clone();
        let found = self
            .readers
            .run(move |conn| hooks::by_token(conn, &token, now))
            .await?;
        let known = found.filter(|(claim, _)| !claim.is_forgotten(now));
        Ok(known.map(|(_, info)| info))
    }

    async fn payloads(
        &self,
        token: &HookToken,
        from: u64,
        limit: usize,
        now: Timestamp,
    ) -> Result<Option<Vec<ReceivedPayload>>> {
        let token = token.clone();
        let read = move |conn: &_| {
            let last = hooks::last_claim(conn, &token)?;
            let known = last.filter(|claim| !claim.is_forgotten(now));
            let read = known.map(|claim| hooks::payloads(conn, &claim.address, from, limit));
            read.transpose()
        };
        self.readers.run(read).await
    }

    async fn hooks_of(&self, run: &RunId, now: Timestamp) -> Result<Vec<HookInfo>> {
        let run = run.clone();
        self.readers.run(move |conn| hooks::of_run(conn, &run, now)).await
    }

    async fn run(&self, run: &RunId) -> Result<Option<RunInfo>> {
        let run = run.clone();
        let mut run = self.readers.run(move |conn| runs::get(conn, &run)).await?;
        if let Some(run) = &mut run {
            self.duplicates.update(run);
        }
        Ok(run)
    }

    async fn runs(&self, filter: RunFilter) -> Result<Vec<RunInfo>> {
        let mut runs = self.readers.run(move |conn| runs::list(conn, &filter)).await?;
        runs.iter_mut().for_each(|run| self.duplicates.update(run));
        Ok(runs)
    }
}

fn load(conn: &rusqlite::Connection, id: &RunId, from: Seq) -> std::result::Result<Option<Loaded>, Failure> {
    let (Some(row), Some(run)) = (runs::find(conn, id)?, runs::get(conn, id)?) else {
        return Ok(None);
    };
    let entries = journal::read_to_anchor(conn, (row.key, id), from, row.anchor)?;
    if from == 0 && !row.standing.fits(&entries) {
        let what = format!("its entries do not make it {}", row.standing.folded);
        return Err(StoreError::Corrupt {
            run: id.clone(),
            what,
        }
        .into());
    }
    let written = streams::of_workflow(conn, row.key)?;
    Ok(Some(Loaded {
        run,
        entries,
        written,
        logged: logs::mark(conn, row.key)?,
    }))
}

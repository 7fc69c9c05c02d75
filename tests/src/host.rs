//! A host in this process, on a real database file or on the model.

use std::sync::Arc;
use std::time::Duration;

use onemark::clock::{Clock, ManualClock, SystemClock};
use onemark::engine::{
    ConflictPolicy, DeliverRequest, Engine, EngineConfig, Error, ForkRequest, ReplayReport, RunResult,
    StartHook, StartReceipt, StartRequest, Verdict,
};
use onemark::ids::{HookToken, RunId, Tags};
use onemark::journal::{Entry, Limits, RunStatus, Seq};
use onemark::sandbox::{Sandbox, SandboxConfig};
use onemark::store::{
    DeliveryReceipt, HookInfo, MemoryStore, OpenError, RunFilter, RunInfo, SqliteOptions, SqliteStore, Store,
};
use serde_json::Value;
use serde_json::value::RawValue;
use tempfile::TempDir;

use crate::components;
use crate::faulty::FaultyStore;
use crate::killer::Killer;

/// Longer than any test should need; a test that gets here has failed.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    Memory,
    Sqlite,
}

impl StoreKind {
    pub const ALL: [Self; 2] = [Self::Memory, Self::Sqlite];
}

/// Makes of each `async fn case(kind: StoreKind)` a test on every store: `memory::case` and `sqlite::case`.
#[macro_export]
macro_rules! on_each_store {
    ($($case:ident),+ $(,)?) => {
        mod memory {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    super::$case($crate::StoreKind::Memory).await;
                }
            )+
        }

        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    super::$case($crate::StoreKind::Sqlite).await;
                }
            )+
        }
    };
}

/// An engine with the programs deployed.
pub struct TestHost {
    pub engine: Engine,
    pub store: Arc<dyn Store>,
    /// Set when the host was made with a clock that tests move.
    pub clock: Option<Arc<ManualClock>>,
    kind: StoreKind,
    config: EngineConfig,
    sandbox: Sandbox,
    /// Set when the host was made to be killed at commits.
    killer: Option<Arc<Killer>>,
    folder: TempDir,
}

/// Where clocks begin that tests move.
const NOW: u64 = 1_800_000_000_000;

/// That a sandbox has room for, unless a test says otherwise.
const INSTANCES: u32 = 300;

impl TestHost {
    /// On SQLite, with the machine's clock.
    pub async fn new() -> Self {
        Self::with(StoreKind::Sqlite, EngineConfig::default(), None, &[]).await
    }

    pub async fn on(kind: StoreKind) -> Self {
        Self::with(kind, EngineConfig::default(), None, &[]).await
    }

    /// With a clock that moves only when told to, at a fixed date.
    pub async fn with_clock(kind: StoreKind) -> Self {
        let clock = Arc::new(ManualClock::new(NOW));
        Self::with(kind, EngineConfig::default(), Some(clock), &[]).await
    }

    /// Steps may reach these servers (`HOST:PORT`).
    pub async fn with_http(http: &[String]) -> Self {
        Self::with(StoreKind::Sqlite, EngineConfig::default(), None, http).await
    }

    pub async fn with(
        kind: StoreKind,
        config: EngineConfig,
        clock: Option<Arc<ManualClock>>,
        http: &[String],
    ) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let store = open(kind, &folder, None);
        Self::over(store, folder, kind, config, clock, sandbox(http)).await
    }

    /// In memory, with a clock that tests move, in a sandbox that others may share.
    pub async fn within(sandbox: Sandbox) -> Self {
        let (kind, clock) = (StoreKind::Memory, Arc::new(ManualClock::new(NOW)));
        let folder = TempDir::new().expect("a temporary folder");
        let store = open(kind, &folder, None);
        Self::over(store, folder, kind, EngineConfig::default(), Some(clock), sandbox).await
    }

    /// As [`TestHost::within`], on SQLite and to be killed at commits: see [`Killer`]. Whoever was struck starts the
    /// host again.
    pub async fn with_killer(sandbox: Sandbox, config: EngineConfig) -> (Self, Arc<Killer>) {
        let (kind, clock) = (StoreKind::Sqlite, Arc::new(ManualClock::new(NOW)));
        let folder = TempDir::new().expect("a temporary folder");
        let killer = Arc::new(Killer::default());
        let store = open(kind, &folder, Some(&killer));
        let mut host = Self::over(store, folder, kind, config, Some(clock), sandbox).await;
        host.killer = Some(killer.clone());
        (host, killer)
    }

    /// In a sandbox that has room for so many instances.
    pub async fn with_room_for(kind: StoreKind, instances: u32) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let store = open(kind, &folder, None);
        Self::over(
            store,
            folder,
            kind,
            EngineConfig::default(),
            None,
            sandbox_with(&[], instances),
        )
        .await
    }

    /// On a store whose writes can be refused.
    pub async fn with_faults(
        kind: StoreKind,
        config: EngineConfig,
        clock: Option<Arc<ManualClock>>,
        http: &[String],
    ) -> (Self, Arc<FaultyStore>) {
        let folder = TempDir::new().expect("a temporary folder");
        let faulty = Arc::new(FaultyStore::new(open(kind, &folder, None)));
        let host = Self::over(faulty.clone(), folder, kind, config, clock, sandbox(http)).await;
        (host, faulty)
    }

    async fn over(
        store: Arc<dyn Store>,
        folder: TempDir,
        kind: StoreKind,
        config: EngineConfig,
        clock: Option<Arc<ManualClock>>,
        sandbox: Sandbox,
    ) -> Self {
        let config = with_blobs(config, &folder);
        let engine = engine(store.clone(), &config, clock.clone(), &sandbox).await;
        let host = Self {
            engine,
            store,
            clock,
            kind,
            config,
            sandbox,
            killer: None,
            folder,
        };
        host.engine
            .deploy("programs", components::programs())
            .await
            .expect("programs deploy");
        host
    }

    /// Runs get these limits.
    pub async fn with_limits(kind: StoreKind, limits: Limits) -> Self {
        let config = EngineConfig {
            limits,
            ..EngineConfig::default()
        };
        Self::with(kind, config, None, &[]).await
    }

    /// Ends the engine as a crash would leave it, and starts another on the same data.
    pub async fn restart(self) -> Self {
        let config = self.config.clone();
        self.restart_with(config).await
    }

    /// As [`TestHost::restart`], configured anew.
    pub async fn restart_with(self, config: EngineConfig) -> Self {
        self.engine.shutdown().await;
        let Self {
            engine: old,
            store,
            clock,
            kind,
            sandbox,
            killer,
            folder,
            ..
        } = self;
        drop(old);
        if let Some(killer) = &killer {
            killer.release();
        }
        let store = match kind {
            StoreKind::Memory => store,
            StoreKind::Sqlite => {
                released(store).await;
                reopened(&folder, killer.as_ref()).await
            }
        };
        let config = with_blobs(config, &folder);
        let engine = engine(store.clone(), &config, clock.clone(), &sandbox).await;
        Self {
            engine,
            store,
            clock,
            kind,
            config,
            sandbox,
            killer,
            folder,
        }
    }

    /// The folder of the database, `onemark.db`.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub async fn start(&self, workflow: &str, input: Value) -> RunId {
        self.try_start(workflow, input, &[])
            .await
            .expect("the run starts")
            .run_id
    }

    pub async fn start_with(&self, workflow: &str, input: Value, tokens: &[&str]) -> RunId {
        self.try_start(workflow, input, tokens)
            .await
            .expect("the run starts")
            .run_id
    }

    pub async fn try_start(
        &self,
        workflow: &str,
        input: Value,
        tokens: &[&str],
    ) -> Result<StartReceipt, Error> {
        self.engine.start(request(workflow, input, tokens)).await
    }

    pub async fn deliver(&self, token: &str, payload: Value) -> Result<DeliveryReceipt, Error> {
        self.engine
            .deliver(DeliverRequest {
                token: self::token(token),
                payload: payload.to_string().into(),
                key: None,
            })
            .await
    }

    /// Waits for the run to end or to be blocked.
    pub async fn ended(&self, run: &RunId) -> RunResult {
        let result = self.engine.result(run, PATIENCE).await.expect("the run is there");
        assert!(
            result.status.is_terminal() || result.blocked.is_some(),
            "run {run} is {} after {PATIENCE:?}",
            result.status
        );
        result
    }

    /// Waits for the run to complete; its output.
    pub async fn output(&self, run: &RunId) -> Value {
        let result = self.ended(run).await;
        assert_eq!(result.status, RunStatus::Completed, "{result:?}");
        json_of(result.output.as_deref())
    }

    /// Starts a run and waits for it to complete; its output, with which its replay agrees.
    pub async fn completes(&self, workflow: &str, input: Value) -> (RunId, Value) {
        let run = self.start(workflow, input).await;
        let output = self.output(&run).await;
        self.agrees(&run).await;
        (run, output)
    }

    /// Waits until the run has this status.
    pub async fn reached(&self, run: &RunId, status: RunStatus) -> RunInfo {
        self.until(run, |info| info.status == status).await
    }

    /// Waits until the run is as wanted. Looks again and again: the facts wanted have no event of their own.
    pub async fn until(&self, run: &RunId, wanted: impl Fn(&RunInfo) -> bool) -> RunInfo {
        let looking = async {
            loop {
                let info = self.engine.run(run).await.expect("the run is there");
                if wanted(&info) {
                    return info;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, looking)
            .await
            .expect("the run gets there")
    }

    pub async fn journal(&self, run: &RunId) -> Vec<Entry> {
        self.engine
            .journal(run, 0, usize::MAX)
            .await
            .expect("the run is there")
    }

    /// The names of the run's entries, in order.
    pub async fn events(&self, run: &RunId) -> Vec<&'static str> {
        self.journal(run)
            .await
            .iter()
            .map(|entry| entry.event.name())
            .collect()
    }

    /// Replays the run: all its calls matched, it ends the same, and nothing was written for that.
    pub async fn agrees(&self, run: &RunId) -> ReplayReport {
        let before = self.journal(run).await;
        let report = self
            .engine
            .replay(run, None)
            .await
            .expect("the run can be replayed");
        assert_eq!(report.verdict, Verdict::Agrees, "{report:?}");
        assert!(report.calls.iter().all(|call| call.matched), "{report:?}");
        assert_eq!(self.journal(run).await, before);
        report
    }

    /// All that there is to see, newest run first: the same before and after a request that does nothing. Leaves out
    /// how many such requests there were.
    pub async fn everything(&self) -> Vec<(RunInfo, Vec<Entry>, Vec<HookInfo>)> {
        let all = RunFilter {
            limit: usize::MAX,
            ..RunFilter::default()
        };
        let mut seen = Vec::new();
        for mut run in self.engine.runs(all).await.expect("runs can be listed") {
            run.duplicates = 0;
            let journal = self.journal(&run.id).await;
            let hooks = self.engine.hooks_of(&run.id).await.expect("hooks can be listed");
            seen.push((run, journal, hooks));
        }
        seen
    }

    pub async fn hook(&self, name: &str) -> Result<HookInfo, Error> {
        self.engine.hook(&token(name)).await
    }

    /// Moves the clock that this host was made with.
    pub fn advance(&self, by: Duration) {
        self.clock.as_ref().expect("made with a clock").advance(by);
    }
}

/// A fork request without id, key or tokens, that repeats what has no key from data.
pub fn fork(of: &RunId, at: Seq) -> ForkRequest {
    ForkRequest {
        of: of.clone(),
        at,
        id: None,
        component: None,
        hooks: Vec::new(),
        repeat_unkeyed: true,
        force: false,
        key: None,
    }
}

/// A start request without id or key.
pub fn request(workflow: &str, input: Value, tokens: &[&str]) -> StartRequest {
    StartRequest {
        workflow: workflow.to_owned(),
        input: input.to_string().into(),
        id: None,
        hooks: tokens
            .iter()
            .map(|name| StartHook {
                token: token(name),
                min_retention_ms: 0,
                metadata: None,
            })
            .collect(),
        min_retention_ms: 0,
        on_conflict: ConflictPolicy::Fail,
        start_at: None,
        tags: Tags::default(),
        key: None,
    }
}

pub fn token(text: &str) -> HookToken {
    HookToken::new(text).expect("a good token")
}

fn open(kind: StoreKind, folder: &TempDir, killer: Option<&Arc<Killer>>) -> Arc<dyn Store> {
    match kind {
        StoreKind::Memory => Arc::new(MemoryStore::new()),
        StoreKind::Sqlite => Arc::new(open_file(folder, killer).expect("the database opens")),
    }
}

fn open_file(folder: &TempDir, killer: Option<&Arc<Killer>>) -> Result<SqliteStore, OpenError> {
    let options = SqliteOptions {
        after_commit: killer.map(Killer::after_commit),
        ..SqliteOptions::default()
    };
    SqliteStore::open(folder.path().join("onemark.db"), options)
}

/// Blobs are beside the database, also where that is in memory.
fn with_blobs(config: EngineConfig, folder: &TempDir) -> EngineConfig {
    EngineConfig {
        blobs: Some(folder.path().join("onemark.db.blobs")),
        ..config
    }
}

/// Waits until the last user of the store is gone, so that its file is free.
async fn released(store: Arc<dyn Store>) {
    let weak = Arc::downgrade(&store);
    drop(store);
    while weak.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Opens the file again once it is let go of, which is a moment after its last user is gone from here.
async fn reopened(folder: &TempDir, killer: Option<&Arc<Killer>>) -> Arc<dyn Store> {
    loop {
        match open_file(folder, killer) {
            Ok(store) => return Arc::new(store),
            Err(OpenError::InUse { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn engine(
    store: Arc<dyn Store>,
    config: &EngineConfig,
    clock: Option<Arc<ManualClock>>,
    sandbox: &Sandbox,
) -> Engine {
    let clock: Arc<dyn Clock> = match clock {
        Some(clock) => clock,
        None => Arc::new(SystemClock),
    };
    Engine::open(store, sandbox.clone(), clock, config.clone())
        .await
        .expect("the engine starts")
}

/// A sandbox whose steps may reach these servers (`HOST:PORT`).
pub fn sandbox(http: &[String]) -> Sandbox {
    sandbox_with(http, INSTANCES)
}

/// As [`sandbox`], with room for so many instances.
pub fn sandbox_with(http: &[String], instances: u32) -> Sandbox {
    let config = SandboxConfig {
        // Shared by all tests: compiled once a build.
        code_cache: Some(std::env::temp_dir().join("onemark-test-code")),
        instances,
        http: http
            .iter()
            .map(|grant| grant.parse().expect("a good grant"))
            .collect(),
        ..SandboxConfig::default()
    };
    Sandbox::new(config).expect("the sandbox starts")
}

/// An outcome as a value; null when there is none.
pub fn json_of(outcome: Option<&RawValue>) -> Value {
    outcome.map_or(Value::Null, |raw| {
        serde_json::from_str(raw.get()).expect("outcomes are JSON")
    })
}

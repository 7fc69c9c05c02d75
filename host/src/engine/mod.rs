//! The one handle that the API holds: admits runs, carries them on, and answers for them.
//!
//! Joins sandbox and store, which do not know each other.

mod activation;
mod admit;
mod attempt;
mod backlog;
mod blobs;
mod carry_on;
mod children;
mod components;
mod effects;
mod error;
mod events;
mod fork;
mod groups;
mod held;
mod hooks;
mod logs;
mod registry;
mod replay;
mod rerun;
mod request;
mod runs;
mod scheduler;
mod schedules;
mod webhooks;
mod sequence;
mod streams;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};

use crate::clock::Clock;
use crate::journal::{Limits, Timestamp};
use crate::sandbox::{BlobLimits, Sandbox};
use crate::store::{Cap, Fence, Store, StoreError};

use backlog::Backlog;
use blobs::Blobs;
use components::Components;
use registry::Registry;
use sequence::Ahead;

pub use blobs::{BlobError, Reading};
pub use error::{Error, Result};
pub use logs::{FollowedLogs, FollowingLogs};
pub use replay::verify;
pub use request::{
    Attached, ConflictPolicy, DeliverRequest, DeployReceipt, DivergenceReport, EmitReceipt, EmitRequest,
    ForkHook, ForkRequest, Outcome, RemovalReceipt, Replaced, ReplayReport, ReplayedCall, RerunRequest,
    Resolution, RetryReceipt, RetryRequest, RunResult, StartHook, StartPayload, StartReceipt, StartRequest,
    Verdict, WorkflowInfo,
};
pub use schedules::{BackfillReceipt, BackfilledSlot, ScheduleInfo};
pub use streams::{Followed, Following};
pub use webhooks::WebhookRoute;

/// Sizes and times of an engine. The defaults suit one small machine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Pinned in runs that are admitted from now on.
    pub limits: Limits,
    /// Workflow instances alive at once, working or waiting; fewer where the sandbox has less room, of which attempts
    /// have a share.
    pub max_resident: usize,
    /// A waiting workflow's instance is given up after this long.
    pub idle: Duration,
    /// Attempts at once, of all runs. A budget of their own, so that waiting workflows never starve the
    /// steps that they wait for.
    pub max_attempts: usize,
    /// Attempts at once of one run.
    pub max_attempts_per_run: usize,
    /// How long attempts that are at work when their run is asked to cancel may go on.
    pub cancel_grace: Duration,
    /// What one hook keeps that was not read.
    pub unread: Cap,
    /// Where blobs are kept; `None` for a temporary folder that goes with the engine.
    pub blobs: Option<PathBuf>,
    /// How large blobs may be.
    pub blob_limits: BlobLimits,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            max_resident: 1_000,
            idle: Duration::from_secs(10),
            max_attempts: 256,
            max_attempts_per_run: 64,
            cancel_grace: Duration::from_secs(10),
            unread: Cap::default(),
            blobs: None,
            blob_limits: BlobLimits::default(),
        }
    }
}

/// Who may have how many of the sandbox's instances. Workflows hold theirs while they wait for attempts, and so do
/// attempts that are made ahead: what both leave over is what every attempt gets its turn in.
struct Shares {
    resident: usize,
    ahead: usize,
}

impl Shares {
    fn of(instances: usize, config: &EngineConfig) -> Result<Self> {
        if instances < 2 {
            let text = format!(
                "the sandbox has room for {instances} instances; it takes two at least, one for a workflow and one for \
                 its steps"
            );
            return Err(Error::InvalidRequest(text));
        }
        let ahead = sequence::MAX_AHEAD.min(instances / 8);
        let attempts = config.max_attempts.min(instances / 4).max(1);
        Ok(Self {
            resident: config.max_resident.min(instances - ahead - attempts),
            ahead,
        })
    }
}

/// Cheap to clone; all clones are one engine.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    sandbox: Sandbox,
    clock: Arc<dyn Clock>,
    config: EngineConfig,
    fence: Fence,
    blobs: Arc<Blobs>,
    components: Components,
    registry: Registry,
    attempts: Arc<Semaphore>,
    backlog: Backlog,
    ahead: Ahead,
    /// Of log lines that wait for a commit.
    log_bytes: logs::Waiting,
    /// When the next slot of a schedule comes, or when to look for one.
    next_slot: Mutex<Option<Timestamp>>,
    /// Why the engine stopped for good; see [`Engine::failed`].
    failure: watch::Sender<Option<StoreError>>,
}

impl Engine {
    /// Takes the store over and begins to carry on whatever is due in it.
    ///
    /// # Errors
    /// When the store cannot be taken over, the folder of blobs cannot be used, or the sandbox has less than two
    /// instances.
    pub async fn open(
        store: Arc<dyn Store>,
        sandbox: Sandbox,
        clock: Arc<dyn Clock>,
        config: EngineConfig,
    ) -> Result<Self> {
        let shares = Shares::of(sandbox.instances(), &config)?;
        let fence = store.take_over(clock.now()).await?;
        let blobs = Blobs::open(config.blobs.as_deref(), config.blob_limits).map_err(BlobError::from)?;
        let blobs = Arc::new(blobs);
        let engine = Self(Arc::new(Inner {
            blobs,
            components: Components::default(),
            registry: Registry::new(shares.resident),
            attempts: Arc::new(Semaphore::new(config.max_attempts)),
            backlog: Backlog::new(),
            ahead: Ahead::new(shares.ahead),
            log_bytes: logs::Waiting::default(),
            next_slot: Mutex::new(Some(0)),
            failure: watch::Sender::new(None),
            store,
            sandbox,
            clock,
            config,
            fence,
        }));
        engine.recall_limits().await?;
        scheduler::spawn(&engine);
        Ok(engine)
    }

    /// Returns once this engine can write no more, with the reason: another host took over, or the database
    /// failed. The process should end; another start reads what is really there.
    pub async fn failed(&self) -> StoreError {
        let mut failure = self.0.failure.subscribe();
        match failure.wait_for(Option::is_some).await.map(|error| error.clone()) {
            Ok(Some(error)) => error,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Does what was asked also when whoever asked goes away: what is committed must be carried on.
    async fn to_its_end<T, F>(&self, work: impl FnOnce(Self) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        match tokio::spawn(work(self.clone())).await {
            Ok(done) => done,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The process ends.
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns once no run has an instance in this process: all rest, ended or are blocked.
    pub async fn idle(&self) {
        while self.0.registry.resident() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends every activation and attempt. What was committed stays; the next start goes on from there.
    pub async fn shutdown(&self) {
        self.0.registry.shutdown().await;
    }
}

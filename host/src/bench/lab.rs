//! A host to measure: an engine on a database file of its own, with the guest deployed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Plan;
use crate::clock::{Clock, SystemClock};
use crate::engine::{ConflictPolicy, DeliverRequest, Engine, EngineConfig, StartHook, StartRequest};
use crate::ids::{HookToken, RunId, Tags};
use crate::journal::{RunStatus, Timestamp};
use crate::sandbox::{Component, Sandbox, SandboxConfig};
use crate::store::{OpenError, RunFilter, SqliteOptions, SqliteStore};

/// Longer than any scenario should take.
const PATIENCE: Duration = Duration::from_secs(600);

pub struct Lab {
    pub engine: Engine,
    pub sandbox: Sandbox,
    pub component: Component,
    folder: TempDir,
    config: EngineConfig,
    clock: Arc<dyn Clock>,
}

impl Lab {
    pub async fn open(plan: &Plan, config: EngineConfig) -> Result<Self> {
        Self::with_clock(plan, config, Arc::new(SystemClock)).await
    }

    pub async fn with_clock(plan: &Plan, config: EngineConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let folder = TempDir::new_in(&plan.folder).context("no folder for the database")?;
        let store = SqliteStore::open(folder.path().join("bench.db"), SqliteOptions::default())?;
        let sandbox = Sandbox::new(SandboxConfig {
            code_cache: Some(folder.path().join("code")),
            ..SandboxConfig::default()
        })?;
        let bytes: Arc<[u8]> = std::fs::read(&plan.component)
            .with_context(|| format!("{} cannot be read", plan.component.display()))?
            .into();
        let engine = Engine::open(Arc::new(store), sandbox.clone(), clock.clone(), config.clone()).await?;
        engine.deploy("bench", bytes.clone()).await?;
        let component = engine.load(bytes).await?;
        Ok(Self {
            engine,
            sandbox,
            component,
            folder,
            config,
            clock,
        })
    }

    /// Another host on the same database, and how long it takes from the opening of the file until it answers.
    pub async fn restart(mut self) -> Result<(Self, Duration)> {
        let path = self.database();
        self.engine.shutdown().await;
        drop(self.engine);
        let (store, began) = loop {
            let began = Instant::now();
            match SqliteStore::open(&path, SqliteOptions::default()) {
                Ok(store) => break (store, began),
                // Whoever still holds the engine is about to notice.
                Err(OpenError::InUse { .. }) => tokio::task::yield_now().await,
                Err(error) => return Err(error.into()),
            }
        };
        let (clock, config) = (self.clock.clone(), self.config.clone());
        self.engine = Engine::open(Arc::new(store), self.sandbox.clone(), clock, config).await?;
        self.engine.runs(RunFilter::default()).await?;
        let took = began.elapsed();
        Ok((self, took))
    }

    pub fn database(&self) -> PathBuf {
        self.folder.path().join("bench.db")
    }

    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub async fn start(&self, workflow: &str, input: Value, token: Option<&str>) -> Result<RunId> {
        Ok(self.engine.start(request(workflow, input, token)?).await?.run_id)
    }

    /// A run that holds a token and does not begin.
    pub async fn start_never(&self, token: &str) -> Result<RunId> {
        let request = StartRequest {
            start_at: Some(Timestamp::MAX),
            ..request("waits", json!({}), Some(token))?
        };
        Ok(self.engine.start(request).await?.run_id)
    }

    pub async fn deliver(&self, token: &str, payload: Value) -> Result<u64> {
        let request = DeliverRequest {
            token: HookToken::new(token)?,
            payload: payload.to_string().into(),
            key: None,
        };
        Ok(self.engine.deliver(request).await?.seq)
    }

    pub async fn completed(&self, run: &RunId) -> Result<()> {
        let result = self.engine.result(run, PATIENCE).await?;
        ensure!(result.status == RunStatus::Completed, "run {run}: {result:?}");
        Ok(())
    }

    /// Rows in the tables that runs fill.
    pub fn rows(&self) -> Result<u64> {
        let conn = rusqlite::Connection::open(self.database())?;
        let count = "SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM entries)
            + (SELECT count(*) FROM hooks) + (SELECT count(*) FROM claims)";
        Ok(conn.query_row(count, [], |row| row.get(0))?)
    }
}

fn request(workflow: &str, input: Value, token: Option<&str>) -> Result<StartRequest> {
    let hooks = match token {
        None => Vec::new(),
        Some(token) => vec![StartHook {
            token: HookToken::new(token)?,
            min_retention_ms: 0,
            metadata: None,
        }],
    };
    Ok(StartRequest {
        workflow: workflow.to_owned(),
        input: input.to_string().into(),
        id: None,
        hooks,
        min_retention_ms: 0,
        on_conflict: ConflictPolicy::Fail,
        start_at: None,
        tags: Tags::default(),
        key: None,
    })
}

//! The one wasmtime configuration, for live runs, replay, tests and precompiled code alike.

use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::component::Linker;
use wasmtime::{
    Config, Enabled, Engine, EngineWeak, InstanceAllocationStrategy, PoolingAllocationConfig,
    WasmBacktraceDetails,
};

use super::grants::HttpGrant;
use super::guest::Guest;
use super::host::http::{HttpClients, HttpLimits};
use super::linker;
use crate::journal::Limits;

/// How the sandbox is set up.
#[derive(Debug, Clone)]
pub struct SandboxConfig {
    /// Where compiled code is kept between starts; `None` compiles anew each time.
    pub code_cache: Option<PathBuf>,
    /// Instances that may be alive at once, of workflows, attempts and replays. Whoever finds no room waits for it.
    pub instances: u32,
    /// Largest linear memory of an instance, in bytes. At least as large as every limit that a run may have
    /// pinned.
    pub max_memory: u64,
    /// What steps may reach.
    pub http: Vec<HttpGrant>,
    /// Authorities that steps trust beside those of the web.
    pub http_authorities: Vec<CertificateDer<'static>>,
    pub http_limits: HttpLimits,
    /// What the URLs of hooks begin with: where callers reach this host, without a slash at its end.
    pub public_url: Arc<str>,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            code_cache: None,
            instances: 1_500,
            max_memory: limits.workflow_memory.max(limits.step_memory),
            http: Vec::new(),
            http_authorities: Vec::new(),
            http_limits: HttpLimits::default(),
            public_url: "http://127.0.0.1:7070".into(),
        }
    }
}

/// The machine cannot give what the sandbox's configuration asks for.
#[derive(Debug, thiserror::Error)]
#[error("the sandbox cannot be set up here: {0}")]
pub struct SandboxError(String);

impl From<wasmtime::Error> for SandboxError {
    fn from(error: wasmtime::Error) -> Self {
        Self(format!("{error:#}"))
    }
}

impl From<rustls::Error> for SandboxError {
    fn from(error: rustls::Error) -> Self {
        Self(format!("an authority that steps are to trust is none: {error}"))
    }
}

impl From<std::io::Error> for SandboxError {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Components that describe themselves at once, beside all else: a step may need that of another component.
const DESCRIBING: u32 = 8;

// What one component may have of what the pool holds for each instance: so that who finds room finds it in every part.
const CORE_INSTANCES: u32 = 4;
const MEMORIES: u32 = 1;
const TABLES: u32 = 2;

/// A place in the pool, for as long as an instance is alive.
pub(super) type Room = Option<OwnedSemaphorePermit>;

/// How often an endless guest is made to let others run, and deadlines are looked at.
const EPOCH: Duration = Duration::from_millis(10);

/// Runs guests. Cheap to clone.
#[derive(Clone)]
pub struct Sandbox {
    pub(super) engine: Engine,
    pub(super) workflows: Arc<Linker<Guest>>,
    pub(super) steps: Arc<Linker<Guest>>,
    pub(super) replicas: Arc<Linker<Guest>>,
    pub(super) config: Arc<SandboxConfig>,
    pub(super) clients: Arc<HttpClients>,
    room: Arc<Semaphore>,
    describing: Arc<Semaphore>,
}

impl Sandbox {
    /// # Errors
    /// When the machine cannot give what the configuration asks for.
    pub fn new(config: SandboxConfig) -> Result<Self, SandboxError> {
        let engine = Engine::new(&deterministic(&config))?;
        tick(engine.weak())?;
        let clients = HttpClients::new(&config.http_authorities, config.http_limits)?;
        Ok(Self {
            clients: Arc::new(clients),
            workflows: Arc::new(linker::workflow(&engine)?),
            steps: Arc::new(linker::step(&engine)?),
            replicas: Arc::new(linker::replica(&engine)?),
            room: Arc::new(Semaphore::new(config.instances as usize)),
            describing: Arc::new(Semaphore::new(DESCRIBING as usize)),
            config: Arc::new(config),
            engine,
        })
    }

    /// Instances that may be alive at once; see [`SandboxConfig::instances`].
    pub fn instances(&self) -> usize {
        self.config.instances as usize
    }

    /// Waits for a place in the pool.
    pub(super) async fn room(&self) -> Room {
        // Nobody closes it.
        self.room.clone().acquire_owned().await.ok()
    }

    /// A place in the pool if there is one now.
    pub(super) fn room_now(&self) -> Room {
        self.room.clone().try_acquire_owned().ok()
    }

    /// Waits for a place among those that describe themselves.
    pub(super) async fn room_to_describe(&self) -> Room {
        self.describing.clone().acquire_owned().await.ok()
    }

    /// Names the engine's version and configuration: code that another compiled is compiled anew.
    pub(super) fn code_version(&self) -> String {
        let mut hasher = std::collections::hash_map::DefaultHasher::new();
        self.engine.precompile_compatibility_hash().hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }
}

fn deterministic(config: &SandboxConfig) -> Config {
    let memory = usize::try_from(config.max_memory).unwrap_or(usize::MAX);
    let mut pool = PoolingAllocationConfig::default();
    let instances = config.instances.saturating_add(DESCRIBING);
    pool.total_component_instances(instances);
    pool.total_core_instances(instances.saturating_mul(CORE_INSTANCES));
    pool.total_memories(instances.saturating_mul(MEMORIES));
    pool.total_tables(instances.saturating_mul(TABLES));
    pool.total_stacks(instances);
    pool.max_core_instances_per_component(CORE_INSTANCES);
    pool.max_memories_per_component(MEMORIES);
    pool.max_tables_per_component(TABLES);
    pool.max_memory_size(memory);
    pool.table_elements(super::limits::MAX_TABLE_ELEMENTS);
    // Kept warm, so that a fresh instance costs no page faults for what the last one touched. Where the kernel
    // can say which pages those are, only they are wiped.
    pool.max_unused_warm_slots(16);
    let dirty_pages_known = PoolingAllocationConfig::is_pagemap_scan_available();
    pool.linear_memory_keep_resident(if dirty_pages_known { 2 << 20 } else { 128 << 10 });
    pool.table_keep_resident(16 << 10);
    pool.pagemap_scan(if dirty_pages_known {
        Enabled::Yes
    } else {
        Enabled::No
    });

    let mut wasmtime = Config::new();
    wasmtime.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    wasmtime.memory_reservation(config.max_memory);
    wasmtime.cranelift_nan_canonicalization(true);
    wasmtime.wasm_relaxed_simd(true);
    wasmtime.relaxed_simd_deterministic(true);
    wasmtime.wasm_backtrace_details(WasmBacktraceDetails::Disable);
    wasmtime.consume_fuel(true);
    wasmtime.epoch_interruption(true);
    wasmtime
}

/// Advances the epoch from a thread of its own until the engine is gone.
fn tick(engine: EngineWeak) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("onemark-epoch".into());
    thread.spawn(move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            std::thread::sleep(EPOCH);
        }
    })?;
    Ok(())
}

//! What a running instance holds on the host's side.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wasmtime::component::{HasData, ResourceTable};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::host::http::HttpEgress;
use super::limits::MemoryLimit;
use super::logs::{GuestLog, LogStream};
use super::manifest::Manifest;
use super::trap::Refused;
use super::workflow::Owner;
use crate::ids::RunId;
use crate::journal::{CallNo, HookHandle, Replay};

/// What a guest's promise handle stands for; its number is the resource's own representation.
pub enum PromiseHandle {}
/// What a guest's hook handle stands for; an index into [`WorkflowGuest::hooks`].
pub enum OpenHook {}

/// The data of a store.
pub struct Guest {
    pub role: Role,
    pub logs: Arc<GuestLog>,
    pub memory: MemoryLimit,
    pub wasi: WasiCtx,
    pub table: ResourceTable,
    pub http: WasiHttpCtx,
    pub egress: HttpEgress,
}

/// Which sandbox this is.
pub enum Role {
    Workflow(Box<WorkflowGuest>),
    Step(StepGuest),
    /// Asked to describe itself, nothing else.
    Describe,
}

/// Bytes of calls that the host keeps for a guest that does not wait.
const MAX_ASKED: u64 = 64 << 20;

pub struct WorkflowGuest {
    pub run: RunId,
    pub manifest: Arc<Manifest>,
    pub replay: Replay,
    pub owner: Box<dyn Owner>,
    pub hooks: Vec<HookHandle>,
    pub random: rand_pcg::Pcg64Mcg,
    pub time: GuestTime,
    /// Bytes of calls since the guest last waited.
    pub asked: u64,
    /// Given again whenever the guest made an entry or observed one.
    pub fuel: u64,
    /// What was used of the fuel that was given before.
    pub burnt: u64,
    /// How far the guest was when it last got fuel.
    pub progress: (usize, CallNo),
}

pub struct StepGuest {
    pub attempt: u32,
    pub idempotency_key: String,
}

/// For `bindgen`: the host functions work on the whole [`Guest`].
pub struct HasGuest;

impl HasData for HasGuest {
    type Data<'a> = &'a mut Guest;
}

impl Guest {
    /// The workflow that this guest runs.
    ///
    /// # Errors
    /// In every other sandbox: names the call and what to do instead.
    pub fn workflow(&mut self, call: &'static str) -> wasmtime::Result<&mut WorkflowGuest> {
        match &mut self.role {
            Role::Workflow(workflow) => Ok(workflow),
            Role::Step(_) => Err(Refused(format!(
                "`{call}` is for workflow code and was called inside a step: a step runs from start to \
                 end and is retried as a whole; do the waiting in the workflow, around the step"
            ))
            .into()),
            Role::Describe => Err(Refused(format!("`{call}` was called from `describe`")).into()),
        }
    }

    /// Counts what the guest asks for since it last waited: the host keeps it until then.
    ///
    /// # Errors
    /// When it is more than the host keeps.
    pub fn ask(&mut self, bytes: u64) -> wasmtime::Result<()> {
        let workflow = self.workflow("a call")?;
        workflow.asked += bytes;
        if workflow.asked > MAX_ASKED {
            return Err(Refused(format!(
                "the workflow asked for more than {} MiB of calls without waiting for any; wait for some before \
                 asking for more",
                MAX_ASKED >> 20
            ))
            .into());
        }
        Ok(())
    }

    /// The attempt that this guest runs.
    ///
    /// # Errors
    /// In every other sandbox.
    pub fn step(&mut self, call: &'static str) -> wasmtime::Result<&mut StepGuest> {
        match &mut self.role {
            Role::Step(step) => Ok(step),
            _ => Err(Refused(format!(
                "`{call}` is known only inside a step; workflow code has no attempts"
            ))
            .into()),
        }
    }
}

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

impl WasiHttpView for Guest {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView {
            ctx: &mut self.http,
            table: &mut self.table,
            hooks: &mut self.egress,
        }
    }
}

/// The time at the horizon, shared with the guest's clocks. Milliseconds since the Unix epoch.
#[derive(Debug, Clone, Default)]
pub struct GuestTime(Arc<AtomicU64>);

impl GuestTime {
    pub fn set(&self, now: u64) {
        self.0.store(now, Ordering::Relaxed);
    }

    fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

impl HostWallClock for GuestTime {
    fn resolution(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn now(&self) -> Duration {
        self.get()
    }
}

impl HostMonotonicClock for GuestTime {
    fn resolution(&self) -> u64 {
        1_000_000
    }

    fn now(&self) -> u64 {
        u64::try_from(self.get().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Standard streams that go to the log.
pub fn wasi_with_logs(logs: &Arc<GuestLog>) -> wasmtime_wasi::WasiCtxBuilder {
    let mut wasi = WasiCtx::builder();
    wasi.stdout(LogStream::Stdout(logs.clone()));
    wasi.stderr(LogStream::Stderr(logs.clone()));
    wasi.allow_tcp(false);
    wasi.allow_udp(false);
    wasi.allow_ip_name_lookup(false);
    wasi
}

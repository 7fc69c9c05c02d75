//! What a running instance holds on the host's side.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rand_core::{Rng as _, SeedableRng as _, TryRng};

use wasmtime::component::{HasData, ResourceTable};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::blobs::{BlobReader, BlobStore, BlobWriter};
use super::effects::StepEffects;
use super::host::http::HttpEgress;
use super::limits::MemoryLimit;
use super::logs::{GuestLog, LogStream};
use super::manifest::Manifest;
use super::runtime::Room;
use super::step::Attempt;
use super::trap::Refused;
use super::workflow::Owner;
use crate::clock::{self, Clock as _, SystemClock};
use crate::ids::{EventName, RunId, StreamName};
use crate::journal::{CallNo, HookHandle, Replay};

/// What a guest's promise handle stands for; its number is the resource's own representation.
pub enum PromiseHandle {}
/// What a guest's child handle stands for; its number is that of the call that started the child.
pub enum ChildHandle {}
/// What a guest's hook handle stands for; an index into [`WorkflowGuest::hooks`].
pub enum OpenHook {}

/// A blob that a guest writes; without its writer once it is finished or failed.
pub struct OpenWriter {
    pub writer: Option<Box<dyn BlobWriter>>,
    pub bytes: u64,
}

/// A blob that a guest reads.
pub struct OpenReader(pub Box<dyn BlobReader>);

/// The data of a store.
pub struct Guest {
    pub role: Role,
    pub logs: Arc<GuestLog>,
    pub memory: MemoryLimit,
    pub wasi: WasiCtx,
    pub table: ResourceTable,
    pub http: WasiHttpCtx,
    pub egress: HttpEgress,
    /// Given back with the instance.
    pub _room: Room,
}

/// Which sandbox this is.
pub enum Role {
    Workflow(Box<WorkflowGuest>),
    Step(StepGuest),
    /// For a step, before its attempt is known.
    Waiting,
    /// Asked to describe itself, nothing else.
    Describe,
}

/// Bytes of calls that the host keeps for a guest that does not wait.
const MAX_ASKED: u64 = 64 << 20;

pub struct WorkflowGuest {
    pub run: RunId,
    pub manifest: Arc<Manifest>,
    /// What the URLs of hooks begin with.
    pub public_url: Arc<str>,
    pub replay: Replay,
    pub owner: Box<dyn Owner>,
    pub hooks: Vec<HookHandle>,
    pub random: GuestRandom,
    pub time: GuestTime,
    /// Bytes of calls since the guest last waited.
    pub asked: u64,
    /// Given again whenever the guest made an entry or observed one.
    pub fuel: u64,
    /// What was used of the fuel that was given before.
    pub burnt: u64,
    /// How far the guest was when it last got fuel.
    pub progress: (usize, CallNo),
    /// In a replica: what the closure is to know and have.
    pub replica: Option<ReplicaGuest>,
}

/// A workflow guest that was made to run one of its closures.
pub struct ReplicaGuest {
    /// Its attempt, once that is known.
    pub given: Arc<Mutex<Option<StepGuest>>>,
    /// Taken from there when the guest is in its closure: from here on it is a step.
    pub attempt: Option<StepGuest>,
}

pub struct StepGuest {
    pub attempt: u32,
    pub idempotency_key: String,
    pub effects: Arc<dyn StepEffects>,
    /// How many chunks this attempt wrote to each stream.
    pub written: HashMap<StreamName, u64>,
    /// How many events of each name it emitted.
    pub emitted: HashMap<EventName, u64>,
    pub blobs: Arc<dyn BlobStore>,
    /// Writers and readers of blobs that this attempt holds, and bytes that it wrote.
    pub blobs_open: u32,
    pub blob_bytes: u64,
}

impl StepGuest {
    pub fn new(attempt: Attempt) -> Self {
        Self {
            attempt: attempt.number,
            idempotency_key: attempt.idempotency_key,
            effects: attempt.effects,
            written: HashMap::new(),
            emitted: HashMap::new(),
            blobs: attempt.blobs,
            blobs_open: 0,
            blob_bytes: 0,
        }
    }
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
        let in_step = self.attempt().is_some();
        match &mut self.role {
            Role::Workflow(workflow) if !in_step => Ok(workflow),
            Role::Workflow(_) | Role::Step(_) => Err(Refused(format!(
                "`{call}` is for workflow code and was called inside a step: a step runs from start to \
                 end and is retried as a whole; do the waiting in the workflow, around the step"
            ))
            .into()),
            Role::Waiting => Err(Refused(format!("`{call}` was called before there was an attempt")).into()),
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
        self.attempt().ok_or_else(|| {
            Refused(format!(
                "`{call}` is known only inside a step; workflow code has no attempts"
            ))
            .into()
        })
    }

    /// The journal of the workflow that this guest runs, also while a closure runs.
    pub fn replay(&self) -> Option<&Replay> {
        match &self.role {
            Role::Workflow(workflow) => Some(&workflow.replay),
            Role::Step(_) | Role::Waiting | Role::Describe => None,
        }
    }

    /// The attempt that this guest runs, if it runs one.
    pub fn attempt(&mut self) -> Option<&mut StepGuest> {
        match &mut self.role {
            Role::Step(step) => Some(step),
            Role::Workflow(workflow) => workflow.replica.as_mut()?.attempt.as_mut(),
            Role::Waiting | Role::Describe => None,
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
pub struct GuestTime(Arc<Times>);

#[derive(Debug, Default)]
struct Times {
    horizon: AtomicU64,
    /// When a closure began: from then on time is real.
    real_since: OnceLock<Instant>,
}

impl GuestTime {
    pub fn set(&self, now: u64) {
        self.0.horizon.store(now, Ordering::Relaxed);
    }

    /// From now on the guest sees real time and draws real random numbers.
    pub fn turn_real(&self) {
        self.0.real_since.get_or_init(Instant::now);
    }

    fn horizon(&self) -> Duration {
        Duration::from_millis(self.0.horizon.load(Ordering::Relaxed))
    }

    fn real_since(&self) -> Option<Instant> {
        self.0.real_since.get().copied()
    }
}

impl HostWallClock for GuestTime {
    fn resolution(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn now(&self) -> Duration {
        match self.real_since() {
            Some(_) => Duration::from_millis(SystemClock.now()),
            None => self.horizon(),
        }
    }
}

impl HostMonotonicClock for GuestTime {
    fn resolution(&self) -> u64 {
        1_000_000
    }

    fn now(&self) -> u64 {
        let since = self.real_since().map_or(Duration::ZERO, |since| since.elapsed());
        u64::try_from((self.horizon() + since).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A stream of a run's seed, and real random numbers once time is real. Where the run was forked, the seed becomes
/// another one.
pub struct GuestRandom {
    seed: Arc<AtomicU64>,
    /// Tells streams of one seed apart.
    number: u64,
    /// The stream, and the seed that it is of.
    stream: (u64, rand_pcg::Pcg64Mcg),
    time: GuestTime,
}

impl GuestRandom {
    pub fn new(seed: Arc<AtomicU64>, number: u64, time: GuestTime) -> Self {
        let now = seed.load(Ordering::Relaxed);
        Self {
            stream: (now, stream(now, number)),
            seed,
            number,
            time,
        }
    }

    fn stream(&mut self) -> &mut rand_pcg::Pcg64Mcg {
        let seed = self.seed.load(Ordering::Relaxed);
        if self.stream.0 != seed {
            self.stream = (seed, stream(seed, self.number));
        }
        &mut self.stream.1
    }
}

fn stream(seed: u64, number: u64) -> rand_pcg::Pcg64Mcg {
    rand_pcg::Pcg64Mcg::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl TryRng for GuestRandom {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(match self.time.real_since() {
            Some(_) => clock::random_u64() as u32,
            None => self.stream().next_u32(),
        })
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(match self.time.real_since() {
            Some(_) => clock::random_u64(),
            None => self.stream().next_u64(),
        })
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        match self.time.real_since() {
            Some(_) => {
                for chunk in bytes.chunks_mut(8) {
                    chunk.copy_from_slice(&clock::random_u64().to_le_bytes()[..chunk.len()]);
                }
            }
            None => self.stream().fill_bytes(bytes),
        }
        Ok(())
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

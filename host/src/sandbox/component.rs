//! Loading a component: is it one, does it offer what the host needs, what does it say of itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use wasmtime::{Store, UpdateDeadline};

use super::bindings::{WorkflowIndices, WorkflowPre};
use super::guest::{Guest, Role, wasi_with_logs};
use super::host::http::HttpEgress;
use super::limits::MAX_HANDLES;
use super::limits::MemoryLimit;
use super::logs::{GuestLog, NoLogs};
use super::manifest::{Manifest, ManifestError};
use super::runtime::{Room, Sandbox};
use super::sources::Sources;
use super::trap::Trap;
use crate::ids::Digest;
use crate::journal::Limits;

/// Compiled code with its manifest, ready to be instantiated. Cheap to clone.
#[derive(Clone)]
pub struct Component {
    pub digest: Digest,
    pub manifest: Arc<Manifest>,
    pub(super) workflow: WorkflowPre<Guest>,
    pub(super) step: WorkflowPre<Guest>,
    pub(super) replica: WorkflowPre<Guest>,
    pub(super) sources: Sources,
}

impl std::fmt::Debug for Component {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Component({:?})", self.digest)
    }
}

/// Why a file was not accepted as a component.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(
        "this is a core WebAssembly module, not a component; build it for the target wasm32-wasip2, for \
         example with `onemark build`"
    )]
    CoreModule,
    #[error("this is no WebAssembly component: {0}")]
    NotWasm(String),
    #[error(
        "the component does not offer what a workflow component must: {0}; build it with `onemark-sdk`, or \
         against the world `onemark:workflow/workflow`"
    )]
    Interface(String),
    #[error("the component could not describe itself: {}", .0.message)]
    Describe(Trap),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("the component has {bytes} bytes; the limit is {limit}")]
    TooLarge { bytes: usize, limit: usize },
}

/// Largest component accepted, in bytes.
pub const MAX_COMPONENT_BYTES: usize = 64 << 20;

/// What describing itself may cost.
const DESCRIBE_FUEL: u64 = 1_000_000_000;

impl Sandbox {
    /// Compiles a component, or takes its code from the cache, and asks it to describe itself.
    ///
    /// # Errors
    /// When it is not a component that this host can run; see [`LoadError`].
    pub async fn load(&self, bytes: Arc<[u8]>) -> Result<Component, LoadError> {
        check_header(&bytes)?;
        let digest = Digest::of(&bytes);
        let sources = Sources::new(bytes.clone());
        let sandbox = self.clone();
        let compiled = tokio::task::spawn_blocking(move || sandbox.compile(digest, &bytes)).await;
        let compiled = compiled
            .map_err(|error| LoadError::NotWasm(error.to_string()))?
            .map_err(|error| LoadError::NotWasm(format!("{error:#}")))?;

        let interface = |error: wasmtime::Error| LoadError::Interface(format!("{error:#}"));
        let indices = |linker: &wasmtime::component::Linker<Guest>| {
            let pre = linker.instantiate_pre(&compiled)?;
            WorkflowIndices::new(&pre)?;
            WorkflowPre::new(pre)
        };
        let workflow = indices(&self.workflows).map_err(interface)?;
        let step = indices(&self.steps).map_err(interface)?;
        let replica = indices(&self.replicas).map_err(interface)?;
        let manifest = Arc::new(Manifest::parse(self.describe(&workflow, &sources).await?)?);
        Ok(Component {
            digest,
            manifest,
            workflow,
            step,
            replica,
            sources,
        })
    }

    async fn describe(&self, pre: &WorkflowPre<Guest>, sources: &Sources) -> Result<String, LoadError> {
        let logs = GuestLog::new(Arc::new(NoLogs));
        let memory = Limits::default().workflow_memory;
        let wasi = wasi_with_logs(&logs).build();
        let room = self.room_to_describe().await;
        let mut store = self.store(Role::Describe, logs, memory, wasi, HttpEgress::default(), room);
        let described = async {
            store.set_fuel(DESCRIBE_FUEL)?;
            let instance = pre.instantiate_async(&mut store).await?;
            let guest = instance.onemark_workflow_guest();
            guest.call_describe(&mut store).await
        };
        let described = described.await;
        described.map_err(|error| {
            LoadError::Describe(Trap::from_error(&error, store.data().logs.last_words(), sources))
        })
    }

    pub(super) fn store(
        &self,
        role: Role,
        logs: Arc<GuestLog>,
        memory: u64,
        wasi: wasmtime_wasi::WasiCtx,
        egress: HttpEgress,
        room: Room,
    ) -> Store<Guest> {
        let guest = Guest {
            role,
            logs,
            memory: MemoryLimit::new(memory),
            wasi,
            table: Default::default(),
            http: Default::default(),
            egress,
            _room: room,
        };
        let mut store = Store::new(&self.engine, guest);
        store.set_max_component_handles(MAX_HANDLES);
        store.limiter(|guest| &mut guest.memory);
        // At each epoch a guest lets others run; it goes on when it is polled again.
        // Tokio's own yield lets timers and I/O come to their turn too, however many guests compute.
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|_| {
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
        });
        store
    }

    fn compile(&self, digest: Digest, bytes: &[u8]) -> wasmtime::Result<wasmtime::component::Component> {
        let cached = self.code_path(digest);
        if let Some(component) = cached.as_deref().and_then(|path| self.cached(path)) {
            return Ok(component);
        }
        let component = wasmtime::component::Component::new(&self.engine, bytes)?;
        if let Some(path) = cached {
            // A cache that cannot be written costs time, not correctness.
            if let Err(error) = keep(&path, &component.serialize()?) {
                tracing::warn!(path = %path.display(), %error, "compiled code was not kept");
            }
        }
        Ok(component)
    }

    fn code_path(&self, digest: Digest) -> Option<PathBuf> {
        let folder = self.config.code_cache.as_ref()?;
        Some(folder.join(format!("{digest}-{}.cwasm", self.code_version())))
    }

    #[expect(unsafe_code, reason = "wasmtime cannot check precompiled code; see below")]
    fn cached(&self, path: &Path) -> Option<wasmtime::component::Component> {
        let kept = std::fs::read(path).ok()?;
        let component = whole(&kept).and_then(|code| {
            // SAFETY: the folder is the host's own, made readable and writable by its user alone, only `keep`
            // writes there, whole files at once, and this is as it was written. Whoever can change it on purpose
            // can change this program too.
            unsafe { wasmtime::component::Component::deserialize(&self.engine, code) }
        });
        component
            .inspect_err(
                |error| tracing::warn!(path = %path.display(), %error, "compiled code is compiled anew"),
            )
            .ok()
    }
}

/// The code in a file that [`keep`] wrote: native code that a disk has changed would end the process, at each start
/// anew.
fn whole(kept: &[u8]) -> wasmtime::Result<&[u8]> {
    match kept.split_last_chunk::<32>() {
        Some((code, digest)) if Digest::of(code).0 == *digest => Ok(code),
        _ => Err(wasmtime::Error::msg("it is not as it was written")),
    }
}

/// The code and its checksum. Writes beside and renames, so that a half-written file is never read.
fn keep(path: &Path, code: &[u8]) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::DirBuilderExt as _;
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let mut aside = tempfile::NamedTempFile::new_in(folder)?;
    aside.write_all(code)?;
    aside.write_all(&Digest::of(code).0)?;
    // A name must never lead to a file that lacks its end.
    aside.as_file().sync_all()?;
    aside.persist(path)?;
    Ok(())
}

/// Tells apart what people send by mistake before the compiler sees it.
pub(super) fn check_header(bytes: &[u8]) -> Result<(), LoadError> {
    if bytes.len() > MAX_COMPONENT_BYTES {
        let (bytes, limit) = (bytes.len(), MAX_COMPONENT_BYTES);
        return Err(LoadError::TooLarge { bytes, limit });
    }
    match bytes {
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => Err(LoadError::CoreModule),
        [0, b'a', b's', b'm', ..] => Ok(()),
        [] => Err(LoadError::NotWasm("the file is empty".into())),
        _ => Err(LoadError::NotWasm("it does not begin as WebAssembly does".into())),
    }
}

//! Where guest code runs: one deterministic wasmtime configuration, and what each kind of guest is granted.
//!
//! Knows journals (a workflow guest is answered from one) but no store and no engine: what a workflow needs
//! beyond its journal it asks of its [`Owner`].

mod bindings;
mod blobs;
mod closure;
mod component;
mod form;
mod grants;
mod guest;
mod host;
mod imports;
mod json;
mod limits;
mod linker;
mod logs;
mod manifest;
mod runtime;
mod schedule;
mod schema;
mod sources;
mod step;
mod effects;
mod trap;
mod workflow;

pub use blobs::{BlobLimits, BlobReader, BlobStore, BlobWriter, NoBlobs};
pub use closure::Replica;
pub use component::{Component, LoadError, MAX_COMPONENT_BYTES};
pub use effects::{NoEffects, StepEffects};
pub use form::Form;
pub use grants::{HttpGrant, HttpGrantError};
pub use host::http::HttpLimits;
pub use imports::{Import, imports};
pub use json::{JsonError, read_json};
pub use logs::{Line, LogSink, NoLogs};
pub use manifest::{Manifest, ManifestError, SignatureForm, StepManifest, Webhook, WorkflowManifest};
pub use runtime::{Sandbox, SandboxConfig, SandboxError};
pub use schedule::{CatchUp, Schedule, ScheduleError, ScheduleSpec, slot_text};
pub use schema::{Schema, SchemaError};
pub use step::{Attempt, AttemptEnd, AttemptRequest, SpentInstance, StepInstance};
pub use trap::{Trap, TrapKind};
pub use workflow::{Owner, Pass, WorkflowEnd};

//! Durable workflows for Onemark, in plain async Rust.

#![cfg_attr(
    not(target_family = "wasm"),
    allow(dead_code, reason = "what only `component` uses is still type-checked and tested natively")
)]

mod workflow;
mod step;
mod step_error;
mod failure;
mod hook;
mod time;
mod random;
pub mod log;

mod sandbox;
mod executor;
mod operation;
mod json;
mod manifest;
#[doc(hidden)]
pub mod __private;

#[cfg(target_family = "wasm")]
mod component;
#[cfg(not(target_family = "wasm"))]
mod block_on;

/// What the host and a component say to each other.
mod bindings {
    wit_bindgen::generate!({ path: "../wit", world: "workflow", generate_all });
}

#[cfg(not(target_family = "wasm"))]
pub use block_on::block_on;
pub use failure::{Failure, FailureInfo, FailureKind};
pub use hook::{Hook, HookConflict, HookError, HookOptions, Next, NextRaw, start_hook, start_hooks};
pub use onemark_macros::{StepError, step, workflow};
pub use random::{random, random_range};
pub use step::{Backoff, StepCall, StepInfo, StepOutput, step_info};
pub use step_error::{Retry, StepError, StepFailed};
pub use time::{Sleep, now, sleep, sleep_until, timeout};
pub use workflow::{WorkflowError, WorkflowOutput, WorkflowResult, run_id, workflow_name};

pub use futures::future::{join_all, select_all, try_join_all};
pub use futures::{join, select_biased as select, try_join};

pub mod prelude {
    pub use crate::{
        Failure, FailureKind, Hook, HookError, StepError, StepFailed, WorkflowError, WorkflowResult, join,
        join_all, log, now, random, run_id, select, sleep, sleep_until, start_hook, start_hooks, step,
        step_info, timeout, try_join, try_join_all, workflow,
    };
    pub use futures::FutureExt as _;
    pub use schemars::JsonSchema;
    pub use serde::{Deserialize, Serialize};
    pub use std::time::Duration;
}

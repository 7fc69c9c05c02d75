//! Durable workflows for Onemark, in plain async Rust.
//!
//! A workflow is an `async fn` whose every step, sleep and received payload is saved in a journal. When
//! the host stops, however it stops, the run goes on where it was: the function is run again, and what
//! it awaits is answered from the journal up to there. Steps whose results are saved do not run again.
//!
//! ```
//! use onemark_sdk::prelude::*;
//!
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! struct Order {
//!     id: String,
//!     note: String,
//! }
//!
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! struct OrderUpdate {
//!     note: String,
//!     last: bool,
//! }
//!
//! #[derive(Serialize, Deserialize)]
//! struct Charge {
//!     id: String,
//! }
//!
//! #[derive(Serialize, Deserialize, StepError)]
//! enum ChargeError {
//!     #[fatal]
//!     Declined(String),
//!     #[retry]
//!     Busy,
//! }
//!
//! /// Saved once; tried again with backoff when it fails.
//! #[step]
//! async fn record_note(order_id: &str, note: &str) -> Result<(), StepFailed> {
//!     // Real effects: HTTP, a database, …
//! #   log::info!("{order_id}: {note}");
//!     Ok(())
//! }
//!
//! #[step(key = "charge:{order.id}", timeout = "20s")]
//! async fn charge(order: &Order) -> Result<Charge, ChargeError> {
//!     let key = step_info().idempotency_key; // a bank does a request with one key once
//! #   Ok(Charge { id: key })
//! }
//!
//! /// However it is started, it claims `order:<id>`: two starts for one order cannot both succeed.
//! #[workflow(token = "order:{order.id}", retain = "24h", hook = OrderUpdate)]
//! async fn process_order(order: Order) -> WorkflowResult<String> {
//!     record_note(&order.id, &order.note).await?;
//!     let paid = charge(&order).retries(5).await?;
//!
//!     let mut updates = start_hook::<OrderUpdate>()?;
//!     while let Some(update) = updates.next().await? {
//!         record_note(&order.id, &update.note).await?;
//!         if update.last {
//!             updates.close().await?; // refuses more; what has come is still read
//!         }
//!     }
//!     Ok(paid.id)
//! }
//! ```
//!
//! # The crate around it
//!
//! One crate is one component. It is built as a `cdylib` for `wasm32-wasip2`, and needs `serde` and
//! `schemars` beside this crate, whose derive macros name them:
//!
//! ```toml
//! [lib]
//! crate-type = ["cdylib", "rlib"]     # the rlib is for tests
//!
//! [dependencies]
//! onemark-sdk = "0.1"
//! serde = { version = "1", features = ["derive"] }
//! schemars = "1"
//! serde_json = "1"                    # `json!`, `Value`
//! wstd = "0.6"                        # HTTP, sockets and timers inside steps
//! ```
//!
//! # What goes where
//!
//! **Workflow code** decides: it calls steps, waits, branches. It has no network, no files and no
//! environment, and it need not avoid anything for the sake of replay: `SystemTime::now`, `HashMap`
//! and random numbers are the same in every replay. What it awaits must be durable: steps, [`sleep`],
//! [`Hook::next`], and futures made of those with [`join!`], [`select!`], [`join_all`], [`timeout()`].
//! Awaiting anything else panics with a message that says so, and the run is blocked. Timers of `wstd` panic with a
//! message of their own, `Reactor::current must be called within a wstd runtime`: take [`sleep`].
//!
//! **Steps** act: each attempt runs in a fresh sandbox, with what the operator granted it. A step may
//! run more than once (the host can stop after the effect and before the result is saved), so hand its
//! [idempotency key](StepInfo::idempotency_key) to whom it calls. Where nobody takes such a key, declare
//! `#[step(at_most_once)]`: what becomes of a cut-off attempt is then for a person, or the workflow, to find out.
//! Async I/O comes from `wstd`.
//!
//! A future does nothing until it is polled: two steps run at the same time when they are awaited
//! together, as in `try_join!(a(), b())`. Combinators poll from first to last, and that is the order in
//! which steps are called.
//!
//! **Output** goes to a run's [streams](stream()), for others to read while the run goes on, and its
//! [tags](set_tag), by which lists find it.
//!
//! # Errors
//!
//! A step returns its own error type, for which [`StepError`] says whether another attempt can help, or
//! [`StepFailed`]. The workflow gets a [`Failure`] with that value. A workflow returns
//! [`WorkflowResult`], and `?` makes its [`WorkflowError`] from any error. A *returned* error ends the
//! run as failed. A *panic* in workflow code does not: the run is blocked until a mended component
//! takes it on.
//!
//! # Tests
//!
//! Built natively, as by `cargo test`, a step is a plain function that runs once:
//!
//! ```
//! # use onemark_sdk::prelude::*;
//! # #[step] async fn add(a: u32, b: u32) -> Result<u32, StepFailed> { Ok(a + b) }
//! assert_eq!(onemark_sdk::block_on(add(1, 2)).unwrap(), 3);
//! ```

#![cfg_attr(
    not(target_family = "wasm"),
    allow(
        dead_code,
        reason = "what only `component` uses is type-checked and tested natively"
    )
)]

// So that unit tests can use the macros, which name the crate as users do.
#[cfg(test)]
extern crate self as onemark_sdk;

#[doc(hidden)]
pub mod __private;
mod blob;
#[cfg(not(target_family = "wasm"))]
mod block_on;
mod cancel;
mod child;
mod closure;
#[cfg(target_family = "wasm")]
#[allow(unsafe_code, reason = "wit-bindgen generates the exported functions")]
mod component;
mod event;
mod executor;
mod failure;
mod for_each;
mod hook;
mod json;
pub mod log;
mod manifest;
mod operation;
mod random;
mod sandbox;
mod step;
mod step_error;
mod stream;
mod time;
mod webhook;
mod workflow;

/// What the host and a component say to each other.
#[allow(unsafe_code, reason = "generated: how a component calls and is called")]
mod bindings {
    wit_bindgen::generate!({ path: "../wit", world: "workflow", generate_all });
}

pub use blob::{Blob, BlobReader, BlobWriter};
#[cfg(not(target_family = "wasm"))]
pub use block_on::block_on;
pub use cancel::{CancelReason, Cancelled, Saga, Shielded, cancelled, shielded};
pub use child::{Child, ChildCall, ParentEnd, child};
pub use closure::{ClosureCall, step, typed_step};
pub use event::{EmittedRun, emit};
pub use failure::{Failure, FailureInfo, FailureKind};
pub use for_each::{Progress, Results, for_each_bounded};
pub use hook::{Hook, HookConflict, HookError, HookOptions, Next, NextRaw, Within, start_hook, start_hooks};
pub use onemark_macros::{StepError, step, workflow};
pub use random::{random, random_range};
pub use step::{Backoff, StepCall, StepInfo, StepOutput, Then, step_info};
pub use step_error::{Retry, StepError, StepFailed};
pub use stream::{OutputStream, stream};
pub use time::{Sleep, now, sleep, sleep_until, timeout};
pub use webhook::{Webhook, WebhookRequest};
pub use workflow::{
    WorkflowError, WorkflowOutput, WorkflowResult, continue_as_new, run_id, set_tag, workflow_name,
};

#[doc(no_inline)]
pub use futures::future::{join_all, select_all, try_join_all};
#[doc(no_inline)]
pub use futures::{join, try_join};

/// Awaits several futures and goes on with the first that is ready; the others are dropped.
///
/// It is `futures::select_biased!`: of several that are ready the one written first wins. Calls of steps,
/// sleeps and `hook.next()` can be written as they are; other futures need `.fuse()`, and `pin!` when
/// they are used by name.
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # async fn example(updates: &mut Hook<String>) -> WorkflowResult<()> {
/// loop {
///     select! {
///         update = updates.next() => match update? {
///             Some(update) => log::info!("{update}"),
///             None => break,
///         },
///         slept = sleep(Duration::from_secs(3600)) => {
///             slept?;
///             log::warn!("nothing for an hour");
///         }
///     }
/// }
/// # Ok(()) }
/// ```
#[doc(no_inline)]
pub use futures::select_biased as select;

/// What a workflow needs: `use onemark_sdk::prelude::*;`
pub mod prelude {
    #[doc(no_inline)]
    pub use crate::{
        Failure, FailureKind, Hook, HookError, StepError, StepFailed, WorkflowError, WorkflowResult, join,
        join_all, log, now, random, run_id, select, set_tag, sleep, sleep_until, start_hook, start_hooks,
        step, step_info, stream, timeout, try_join, try_join_all, workflow,
    };
    pub use futures::FutureExt as _;
    #[doc(no_inline)]
    pub use schemars::JsonSchema;
    #[doc(no_inline)]
    pub use serde::{Deserialize, Serialize};
    #[doc(no_inline)]
    pub use std::time::Duration;
}

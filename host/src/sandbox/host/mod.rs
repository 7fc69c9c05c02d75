//! What guests call, one file per WIT interface.

mod attempt;
mod blobs;
mod children;
mod context;
mod events;
mod hooks;
pub(super) mod http;
mod logs;
pub(super) mod promises;
pub mod steps;
mod streams;
mod timers;

use super::bindings::onemark::workflow::types;
use super::guest::Guest;

impl types::Host for Guest {}

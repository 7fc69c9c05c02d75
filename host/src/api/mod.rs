//! The HTTP surface: JSON in, JSON out, over one [`Engine`](crate::engine::Engine).
//!
//! `router` has every route, `error` every status code; the other files hold one resource each.

mod blobs;
mod components;
mod error;
mod events;
mod extract;
mod health;
mod hooks;
mod logs;
mod router;
mod runs;
mod schedules;
mod server;
mod signature;
mod webhooks;
mod streams;

pub use router::router;
pub use server::{BindError, ServerConfig, bind, serve};
pub use webhooks::Secrets;

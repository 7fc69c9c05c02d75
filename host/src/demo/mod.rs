//! `onemark demo`: one order, its duplicates, a crash and a replay, shown on a real host and checked.
//!
//! Nothing is staged: cargo builds the component, the host is a process of its own on a real database file, it
//! is spoken to over HTTP and ended with SIGKILL, and what steps did is counted by a service outside Onemark.
//! Whatever is not as promised ends the demo with an error, so that it is a test as well.

mod folder;
mod host;
mod outside;
mod screen;
mod story;

pub use outside::{Charge, ChargeRequest, Counts, Desk, Invoice, Note, Outside};
pub use story::{Demo, tell};

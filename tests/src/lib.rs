//! What the tests share: components built from source, hosts to run them in, and a service that counts the
//! marks that steps leave outside.

mod components;
mod faulty;
mod host;
mod killer;
mod marks;
mod service;

pub use components::{example, order, patched, programs, scheduled, variant, webhooks};
pub use faulty::{FaultyStore, Refuse};
pub use host::{StoreKind, TestHost, fork, json_of, request, sandbox, sandbox_with, token};
pub use killer::Killer;
pub use marks::Marks;
pub use service::{Asked, Service};

use std::path::PathBuf;

/// The binary under test, built by cargo with this package.
pub fn onemark_bin() -> PathBuf {
    binary("onemark-under-test")
}

/// A host that dies at a chosen commit; see `src/bin/crash_host.rs`.
pub fn crash_host_bin() -> PathBuf {
    binary("crash-host")
}

fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("tests run from a file");
    let profile = test
        .parent()
        .and_then(|deps| deps.parent())
        .expect("tests lie in target/…/deps");
    profile.join(name)
}

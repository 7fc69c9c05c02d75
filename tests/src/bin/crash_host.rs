//! A host that kills itself with SIGKILL right after its n-th commit, before anybody is answered.
//!
//! Usage: `crash-host DATABASE CODE-CACHE ALLOW-HTTP COMMIT`; commit 0 never comes. Prints its address when it
//! is ready. Ends when its stdin is closed, so that it never outlives its test.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use onemark::api::{self, ServerConfig};
use onemark::clock::SystemClock;
use onemark::engine::{Engine, EngineConfig};
use onemark::sandbox::{Sandbox, SandboxConfig};
use onemark::store::{SqliteOptions, SqliteStore};

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [database, code, http, commit] = args.as_slice() else {
        anyhow::bail!("usage: crash-host DATABASE CODE-CACHE ALLOW-HTTP COMMIT");
    };
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let last: u64 = commit.parse().context("COMMIT is a number")?;
    let options = SqliteOptions {
        after_commit: Some(Arc::new(move |commit| {
            if commit == last {
                kill_self();
            }
        })),
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(database, options)?;
    let sandbox = Sandbox::new(SandboxConfig {
        code_cache: Some(code.into()),
        instances: 100,
        http: vec![http.parse()?],
        ..SandboxConfig::default()
    })?;
    let clock = Arc::new(SystemClock);
    let engine = Engine::open(Arc::new(store), sandbox, clock, EngineConfig::default()).await?;
    let listener = api::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    api::serve(listener, engine, ServerConfig::default(), std::future::pending()).await;
    Ok(())
}

/// No destructor, no flush, no farewell.
fn kill_self() {
    let pid = std::process::id().to_string();
    let killed = std::process::Command::new("kill").args(["-KILL", &pid]).status();
    // The signal arrives before the call returns, or soon.
    assert!(killed.is_ok(), "the kill command runs");
    loop {
        std::thread::park();
    }
}

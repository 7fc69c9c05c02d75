//! `onemark demo`

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use tokio::signal::unix::{SignalKind, signal};

use super::{Exit, output};
use crate::demo::{self, Demo, Outside};

#[derive(clap::Args)]
pub struct Args {
    /// Folder of the order example; by default the one that this program was built beside
    #[arg(long, value_name = "PATH")]
    example: Option<PathBuf>,
    /// Keep the folder with the database and the components
    #[arg(long)]
    keep: bool,
    /// Run the demo's outside service alone, for trying the order example by hand
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["example", "keep"])]
    outside: Option<String>,
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(address) = args.outside {
        return serve_outside(&address).await;
    }
    let demo = Demo {
        program: env::current_exe().context("cannot tell where this program lies")?,
        example: example(args.example)?,
        keep: args.keep,
    };
    let mut terminate = signal(SignalKind::terminate())?;
    // Whichever comes first: what the demo has started ends with its future.
    tokio::select! {
        told = demo::tell(&demo) => told.map(|()| Exit::Done.into()),
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            bail!("interrupted")
        }
        _ = terminate.recv() => bail!("terminated"),
    }
}

/// The example's source, without which there is nothing to build.
fn example(asked: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let folder = asked.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/order"));
    if !folder.join("Cargo.toml").is_file() {
        bail!(
            "the demo builds Onemark's order example, and its source is not in `{}`; \
             get the repository, and name the folder with `--example PATH`",
            folder.display()
        );
    }
    folder
        .canonicalize()
        .with_context(|| format!("cannot open `{}`", folder.display()))
}

/// Serves until interrupted, then says what was counted.
async fn serve_outside(address: &str) -> anyhow::Result<ExitCode> {
    let outside = Outside::listen(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    output::message(&format!(
        "the outside counts at {}; ctrl-c ends it",
        outside.url()
    ));
    tokio::signal::ctrl_c().await?;
    output::print(&serde_json::to_string_pretty(&outside.counts())?)?;
    Ok(Exit::Done.into())
}

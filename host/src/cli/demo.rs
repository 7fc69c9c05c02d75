//! `onemark demo`

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use tokio::signal::unix::{SignalKind, signal};

use super::Exit;
use crate::demo::{self, Demo};

#[derive(clap::Args)]
pub struct Args {
    /// Folder of the order example; by default the one that this program was built beside
    #[arg(long, value_name = "PATH")]
    example: Option<PathBuf>,
    /// Keep the folder with the database and the components
    #[arg(long)]
    keep: bool,
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
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

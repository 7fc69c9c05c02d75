//! `onemark blobs`

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::Subcommand;
use sha2::{Digest as _, Sha256};

use super::{Exit, Global};
use crate::ids::Digest;

#[derive(Subcommand)]
pub enum Command {
    /// Fetch what a step wrote, and check that it is that
    Get {
        /// Digest of the blob, as the run's journal names it
        digest: Digest,
        /// Where to write it [default: stdout]
        file: Option<PathBuf>,
    },
}

pub async fn run(command: Command, global: &Global) -> anyhow::Result<ExitCode> {
    let Command::Get { digest, file } = command;
    match file {
        None => fetch(digest, &mut io::stdout().lock(), global).await?,
        Some(file) => {
            // A file of this name holds the whole blob or what it held before.
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            let aside = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")));
            let mut aside = aside.with_context(|| format!("cannot write beside {}", file.display()))?;
            fetch(digest, aside.as_file_mut(), global).await?;
            aside
                .persist(&file)
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(Exit::Done.into())
}

async fn fetch(digest: Digest, to: &mut impl Write, global: &Global) -> anyhow::Result<()> {
    let mut response = global
        .client()?
        .download(&["v1", "blobs", &digest.to_string()])
        .await?;
    let mut hash = Sha256::new();
    while let Some(chunk) = response.chunk().await.context("the blob breaks off")? {
        hash.update(&chunk);
        to.write_all(&chunk)?;
    }
    to.flush()?;
    ensure!(
        Digest(hash.finalize().into()) == digest,
        "what came is not blob {digest}; fetch it again"
    );
    Ok(())
}

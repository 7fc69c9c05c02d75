//! `onemark build`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use super::{Exit, Global, output};
use crate::guest_build::{BuildOptions, build_component};
use crate::ids::Digest;

#[derive(clap::Args)]
pub struct Args {
    /// Folder of the workflow crate
    #[arg(default_value = ".")]
    folder: PathBuf,
    /// Feature of the crate to turn on
    #[arg(long = "feature", value_name = "NAME")]
    features: Vec<String>,
    /// Where cargo puts what it builds; by default `target/guests` of the crate's workspace
    #[arg(long, value_name = "FOLDER")]
    target_dir: Option<PathBuf>,
}

pub async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let Args {
        folder,
        features,
        target_dir,
    } = args;
    let options = BuildOptions {
        target_dir,
        features,
        quiet: false,
    };
    let built = tokio::task::spawn_blocking(move || build_component(&folder, &options));
    let path = built.await.context("the build was cut off")??;
    let bytes = tokio::fs::read(&path).await;
    let bytes = bytes.with_context(|| format!("cannot read {}", path.display()))?;
    let (path, digest) = (path.display().to_string(), Digest::of(bytes));
    match global.json() {
        true => output::print(&serde_json::json!({ "path": path, "digest": digest }).to_string())?,
        false => output::print_facts(&[("component", path), ("digest", digest.to_string())])?,
    }
    Ok(Exit::Done.into())
}

//! `onemark demo`

use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {}

pub async fn run(_: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}

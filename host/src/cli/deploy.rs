//! `onemark deploy`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use reqwest::Method;
use serde::Deserialize;

use super::workflows::{Workflow, triggers_of};
use super::{Exit, Global, output};

#[derive(clap::Args)]
pub struct Args {
    /// Component to deploy, a `.wasm` file
    file: PathBuf,
    /// Name of the deployment; by default that of the file
    #[arg(long)]
    name: Option<String>,
}

#[derive(Deserialize)]
struct Receipt {
    name: String,
    digest: String,
    manifest: Manifest,
    warnings: Vec<String>,
}

#[derive(Deserialize)]
struct Manifest {
    workflows: Vec<Workflow>,
}

pub async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let bytes = read_component(&args.file).await?;
    let name = match args.name {
        Some(name) => name,
        None => {
            let stem = args
                .file
                .file_stem()
                .context("the file has no name; give one with `--name`")?;
            stem.to_string_lossy().into_owned()
        }
    };
    let path = ["v1", "components", &name];
    let answer = global.client()?.send_component(Method::PUT, &path, bytes).await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(Exit::Done.into());
    }
    let Receipt {
        name,
        digest,
        manifest,
        warnings,
    } = answer.read()?;
    let workflows = manifest.workflows;
    let names: Vec<_> = workflows.iter().map(|it| it.name.as_str()).collect();
    let mut facts = vec![
        ("deployed", name),
        ("digest", digest),
        ("workflows", names.join(", ")),
    ];
    for workflow in &workflows {
        facts.extend(triggers_of(workflow));
    }
    output::print_facts(&facts)?;
    for warning in warnings {
        output::warning(&warning);
    }
    Ok(Exit::Done.into())
}

pub async fn read_component(file: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = tokio::fs::read(file).await;
    bytes.with_context(|| format!("cannot read {}", file.display()))
}

//! `onemark inspect`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::deploy::read_component;
use super::output::Rows;
use super::workflows::{Workflow, triggers_of};
use super::{Exit, output};
use crate::ids::Digest;
use crate::sandbox::{self, Import, Sandbox, SandboxConfig};

#[derive(clap::Args)]
pub struct Args {
    /// Component to look at, a `.wasm` file
    file: PathBuf,
}

#[derive(Deserialize)]
struct Manifest {
    workflows: Vec<Workflow>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    name: String,
}

/// Says what a component is and what it asks for, without a server. The component describes itself, in a sandbox.
pub async fn run(args: Args, as_json: bool) -> anyhow::Result<ExitCode> {
    let bytes = read_component(&args.file).await?;
    let file = args.file.display();
    let imports = sandbox::imports(&bytes).with_context(|| format!("{file} cannot be deployed"))?;
    let (digest, size) = (Digest::of(&bytes), bytes.len());
    let described = describe(bytes).await;
    if as_json {
        let manifest = described
            .as_ref()
            .ok()
            .map(|text| RawValue::from_string(text.clone()));
        let document = json!({
            "digest": digest,
            "bytes": size,
            "imports": imports,
            "manifest": manifest.transpose()?,
            "error": described.as_ref().err().map(|error| format!("{error:#}")),
        });
        output::print(&document.to_string())?;
    } else {
        print(
            &args.file.to_string_lossy(),
            digest,
            size,
            &imports,
            described.as_deref().ok(),
        )?;
    }
    match described {
        Ok(_) => Ok(Exit::Done.into()),
        Err(_) if as_json => Ok(Exit::Error.into()),
        Err(error) => Err(error.context(format!("{file} cannot be deployed"))),
    }
}

/// The manifest of a component.
async fn describe(bytes: Vec<u8>) -> anyhow::Result<String> {
    // One that describes itself, and one more for what is still being dropped.
    let config = SandboxConfig {
        instances: 2,
        ..SandboxConfig::default()
    };
    let component = Sandbox::new(config)?.load(bytes.into()).await?;
    Ok(component.manifest.json.clone())
}

fn print(
    file: &str,
    digest: Digest,
    size: usize,
    imports: &[Import],
    manifest: Option<&str>,
) -> anyhow::Result<()> {
    let mut facts = vec![
        ("component", file.to_owned()),
        ("digest", digest.to_string()),
        ("bytes", size.to_string()),
    ];
    if let Some(manifest) = manifest {
        let Manifest { workflows, steps } = serde_json::from_str(manifest)?;
        for workflow in &workflows {
            facts.push(("workflow", workflow.name.clone()));
            facts.extend(triggers_of(workflow));
        }
        facts.extend(steps.into_iter().map(|step| ("step", step.name)));
    }
    output::print_facts(&facts)?;
    output::print("")?;
    // A package at a time, as far as the host gives the same.
    let mut packages: Vec<(String, Vec<&str>, Option<&str>)> = Vec::new();
    for Import { name, given } in imports {
        let (path, version) = name.split_once('@').unwrap_or((name, ""));
        let (package, interface) = path.split_once('/').unwrap_or((path, ""));
        let package = match version {
            "" => package.to_owned(),
            version => format!("{package}@{version}"),
        };
        let known = packages.iter_mut().find(|(p, _, g)| *p == package && g == given);
        match known {
            Some((_, interfaces, _)) => interfaces.push(interface),
            None => packages.push((package, vec![interface], *given)),
        }
    }
    let mut rows = Rows::new(["IMPORTS", "IS GIVEN", "INTERFACES"]);
    for (package, interfaces, given) in packages {
        let given = given.unwrap_or("unknown to this host: it cannot be deployed");
        rows.add([package, given.to_owned(), interfaces.join(", ")]);
    }
    Ok(rows.print()?)
}

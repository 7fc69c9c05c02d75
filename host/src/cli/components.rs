//! `onemark components`

use std::process::ExitCode;

use clap::Subcommand;
use serde::Deserialize;

use super::output::{Rows, time};
use super::{Exit, Global, output};
use crate::journal::Timestamp;

#[derive(Subcommand)]
pub enum Command {
    /// List what is deployed
    List,
    /// Remove a deployment: nothing starts under its name any more, and its runs go on
    Remove {
        /// Name of the deployment
        name: String,
    },
}

#[derive(Deserialize)]
struct Components {
    components: Vec<Deployed>,
}

#[derive(Deserialize)]
struct Deployed {
    name: String,
    digest: String,
    deployed_at: Timestamp,
}

#[derive(Deserialize)]
struct Removed {
    name: String,
    digest: String,
}

pub async fn run(command: Command, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.client()?;
    let (answer, is_list) = match command {
        Command::List => (client.get(&["v1", "components"], &[]).await?, true),
        Command::Remove { name } => (client.delete(&["v1", "components", &name]).await?, false),
    };
    if global.json() {
        output::print(&answer.text)?;
    } else if is_list {
        let mut rows = Rows::new(["NAME", "DIGEST", "DEPLOYED"]);
        for it in answer.read::<Components>()?.components {
            rows.add([it.name, it.digest, time(it.deployed_at)]);
        }
        rows.print()?;
    } else {
        let Removed { name, digest } = answer.read()?;
        output::print_facts(&[("removed", name), ("digest", digest)])?;
    }
    Ok(Exit::Done.into())
}

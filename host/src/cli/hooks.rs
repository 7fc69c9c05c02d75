//! `onemark hooks`

use std::process::ExitCode;

use clap::Subcommand;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::output::{json, time};
use super::{Exit, Global, output};
use crate::journal::{RunStatus, Timestamp};

#[derive(Subcommand)]
pub enum Command {
    /// Show who holds a token
    Show {
        /// Token of the hook
        token: String,
    },
    /// Close a hook and free its token at once, whatever its retention
    Dispose {
        /// Token of the hook
        token: String,
    },
}

#[derive(Deserialize)]
pub struct Hook {
    pub token: String,
    pub state: String,
    pub unread: u64,
    owner: Owner,
    metadata: Option<Box<RawValue>>,
    claimed_at: Timestamp,
    retained_until: Timestamp,
}

#[derive(Deserialize)]
struct Owner {
    run: String,
    workflow: String,
    status: RunStatus,
}

impl Hook {
    /// Until when the token is kept, if it is kept longer than its run lives.
    pub fn retained_until(&self) -> String {
        match self.retained_until > self.claimed_at {
            true => time(self.retained_until),
            false => String::new(),
        }
    }
}

pub async fn run(command: Command, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.client()?;
    let answer = match &command {
        Command::Show { token } => client.get(&["v1", "hooks", token], &[]).await?,
        Command::Dispose { token } => client.delete(&["v1", "hooks", token]).await?,
    };
    if global.json() {
        output::print(&answer.text)?;
        return Ok(Exit::Done.into());
    }
    let hook: Hook = answer.read()?;
    let retained = hook.retained_until();
    let mut facts = vec![
        ("token", hook.token),
        ("state", hook.state),
        ("run", format!("{} ({})", hook.owner.run, hook.owner.status)),
        ("workflow", hook.owner.workflow),
        ("unread", hook.unread.to_string()),
        ("claimed", time(hook.claimed_at)),
        ("retained", retained),
        ("metadata", json(hook.metadata.as_deref())),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    output::print_facts(&facts)?;
    Ok(Exit::Done.into())
}

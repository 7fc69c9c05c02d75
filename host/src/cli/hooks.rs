//! `onemark hooks`

use std::process::ExitCode;

use clap::Subcommand;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::client::Client;
use super::output::{Rows, json, time};
use super::{Exit, Global, output};
use crate::journal::{RunStatus, Timestamp};

#[derive(Subcommand)]
pub enum Command {
    /// Show who holds a token, or what was delivered to it
    Show {
        /// Token of the hook
        token: String,
        /// List the payloads that it was given, read or not
        #[arg(long)]
        payloads: bool,
        /// Begin the list with the payload of this number
        #[arg(long, value_name = "N", requires = "payloads", default_value_t = 0)]
        from: u64,
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

#[derive(Deserialize)]
struct Payloads {
    payloads: Vec<Payload>,
    next: Option<u64>,
}

#[derive(Deserialize)]
struct Payload {
    number: u64,
    seq: u64,
    at: Timestamp,
    read: bool,
    payload: Option<Box<RawValue>>,
}

async fn payloads(client: &Client, token: &str, from: u64, global: &Global) -> anyhow::Result<ExitCode> {
    let query = [("from", from.to_string())];
    let answer = client.get(&["v1", "hooks", token, "payloads"], &query).await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(Exit::Done.into());
    }
    let Payloads { payloads, next } = answer.read()?;
    if payloads.is_empty() {
        output::message("no payloads");
        return Ok(Exit::Done.into());
    }
    let mut rows = Rows::new(["NUMBER", "ENTRY", "AT", "READ", "PAYLOAD"]);
    for payload in payloads {
        let read = if payload.read { "yes" } else { "no" };
        rows.add([
            payload.number.to_string(),
            payload.seq.to_string(),
            time(payload.at),
            read.to_owned(),
            json(payload.payload.as_deref()),
        ]);
    }
    rows.print()?;
    if let Some(next) = next {
        output::hint(&format!("there are more: `--from {next}`"));
    }
    Ok(Exit::Done.into())
}

pub async fn run(command: Command, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.client()?;
    let answer = match &command {
        Command::Show {
            token,
            payloads: true,
            from,
        } => return payloads(&client, token, *from, global).await,
        Command::Show { token, .. } => client.get(&["v1", "hooks", token], &[]).await?,
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

//! `onemark deliver`

use std::process::ExitCode;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Exit, Global, output};

#[derive(clap::Args)]
pub struct Args {
    /// Token of the hook
    token: String,
    /// Payload; a text is written with its quotes, as '"text"'
    #[arg(value_name = "JSON")]
    payload: String,
    /// Idempotency key; the same delivery again gets the same answer
    #[arg(long)]
    key: Option<String>,
}

#[derive(Deserialize)]
struct Receipt {
    run_id: String,
    seq: u64,
}

/// Before it is sent: what is wrong with it is most often how the shell was told.
pub fn checked_payload(text: &str) -> anyhow::Result<()> {
    serde_json::from_str::<&RawValue>(text)
        .map(drop)
        .context("the payload is no JSON; a text is written with its quotes, as '\"text\"'")
}

pub async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    checked_payload(&args.payload)?;
    let path = ["v1", "hooks", &args.token];
    let answer = global
        .client()?
        .post(&path, args.payload, args.key.as_deref())
        .await?;
    if global.json() {
        output::print(&answer.text)?;
    } else {
        let Receipt { run_id, seq } = answer.read()?;
        output::print_facts(&[("run", run_id), ("entry", seq.to_string())])?;
    }
    Ok(Exit::Done.into())
}

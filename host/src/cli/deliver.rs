//! `onemark deliver`

use std::process::ExitCode;

use serde::Deserialize;

use super::{Exit, Global, output};

#[derive(clap::Args)]
pub struct Args {
    /// Token of the hook
    token: String,
    /// Payload
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

pub async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
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

//! `onemark runs fork`

use serde::Serialize;
use serde_json::{Value, json};

use super::client::{Answer, Client};
use super::rerun::{Receipt, asked_first};
use super::{Global, output};
use crate::journal::Seq;

#[derive(clap::Args)]
pub struct ForkArgs {
    /// Id of the run
    run: String,
    /// The last entry that both runs share; `onemark journal` lists them
    #[arg(long, value_name = "SEQ")]
    at: Seq,
    /// What carries the fork: a digest, or the name of a deployment. The run's own when absent
    #[arg(long)]
    component: Option<String>,
    /// Token that the fork claims, for the first open hook that has none; may be given several times. Hooks without one
    /// are closed
    #[arg(long = "hook", value_name = "TOKEN")]
    hooks: Vec<String>,
    /// Token that the fork claims for the hook that has that one; may be given several times
    #[arg(long = "hook-for", num_args = 2, value_names = ["OLD", "TOKEN"])]
    hooks_for: Vec<String>,
    /// Id of the fork
    #[arg(long)]
    id: Option<String>,
    /// Idempotency key; the same request again gets the same answer
    #[arg(long)]
    key: Option<String>,
    /// Do not ask about steps that have no key made from data, or that run at most once
    #[arg(long)]
    yes: bool,
    /// Also with a component that does something else than the shared entries hold
    #[arg(long)]
    force: bool,
}

#[derive(Serialize)]
struct Body<'a> {
    at: Seq,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    component: Option<&'a str>,
    hooks: Vec<Value>,
    repeat_unkeyed: bool,
    force: bool,
}

pub async fn run(args: ForkArgs, global: &Global) -> anyhow::Result<()> {
    let client = global.client()?;
    let answer = asked_first(args.yes, async |repeat| ask(&client, &args, repeat).await).await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(());
    }
    let Receipt { run_id, started } = answer.read()?;
    let ForkArgs { run, at, .. } = &args;
    output::message(&match started {
        true => format!("run {run} is forked at entry {at} as {run_id}"),
        false => format!("run {run} was forked at entry {at} before, as {run_id}, by the same request"),
    });
    output::print(&run_id)?;
    Ok(())
}

async fn ask(client: &Client, args: &ForkArgs, repeat_unkeyed: bool) -> anyhow::Result<Answer> {
    let named = args.hooks_for.chunks_exact(2);
    let named = named.map(|pair| json!({ "for": pair[0], "token": pair[1] }));
    let others = args.hooks.iter().map(|token| json!({ "token": token }));
    let body = Body {
        at: args.at,
        id: args.id.as_deref(),
        component: args.component.as_deref(),
        hooks: named.chain(others).collect(),
        repeat_unkeyed,
        force: args.force,
    };
    let body = serde_json::to_string(&body)?;
    let path = ["v1", "runs", &args.run, "fork"];
    client.post(&path, body, args.key.as_deref()).await
}

//! `onemark runs rerun`

use std::io::{IsTerminal as _, Write as _};

use anyhow::bail;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::client::{Answer, Client, ClientError};
use super::{Global, output};

#[derive(clap::Args)]
pub struct RerunArgs {
    /// Id of the run
    run: String,
    /// Token that the new run claims; may be given several times. The token that the workflow declares it claims only
    /// when it is named here
    #[arg(long = "hook", value_name = "TOKEN")]
    hooks: Vec<String>,
    /// Id of the new run
    #[arg(long)]
    id: Option<String>,
    /// Idempotency key; the same request again gets the same answer
    #[arg(long)]
    key: Option<String>,
    /// Do not ask about steps that have no key made from data
    #[arg(long)]
    yes: bool,
}

#[derive(Serialize)]
struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    hooks: Vec<serde_json::Value>,
    repeat_unkeyed: bool,
}

#[derive(Deserialize)]
pub struct Receipt {
    pub run_id: String,
    /// False when the same request started it before, with this id.
    pub started: bool,
}

pub async fn run(args: RerunArgs, global: &Global) -> anyhow::Result<()> {
    let client = global.client()?;
    let answer = asked_first(args.yes, async |repeat| ask(&client, &args, repeat).await).await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(());
    }
    let Receipt { run_id, started } = answer.read()?;
    output::message(&match started {
        true => format!("run {} runs again as {run_id}", args.run),
        false => format!(
            "run {} was run again before, as {run_id}, by the same request",
            args.run
        ),
    });
    output::print(&run_id)?;
    Ok(())
}

async fn ask(client: &Client, args: &RerunArgs, repeat_unkeyed: bool) -> anyhow::Result<Answer> {
    let body = Body {
        id: args.id.as_deref(),
        hooks: args.hooks.iter().map(|token| json!({ "token": token })).collect(),
        repeat_unkeyed,
    };
    let body = serde_json::to_string(&body)?;
    let path = ["v1", "runs", &args.run, "rerun"];
    client.post(&path, body, args.key.as_deref()).await
}

/// Sends a request that repeats steps; where it is refused for steps without a key, asks whoever sits at the terminal
/// and sends it again. `yes`: they said so before.
pub async fn asked_first(
    yes: bool,
    send: impl AsyncFn(bool) -> anyhow::Result<Answer>,
) -> anyhow::Result<Answer> {
    let unkeyed = |error: &anyhow::Error| {
        let error = error.downcast_ref::<ClientError>();
        error.is_some_and(|error| error.code() == "unkeyed_steps")
    };
    match send(yes).await {
        Err(error) if unkeyed(&error) && std::io::stdin().is_terminal() => {
            if !confirmed(&error.to_string())? {
                bail!("nothing was started");
            }
            send(true).await
        }
        answer => answer,
    }
}

fn confirmed(question: &str) -> anyhow::Result<bool> {
    let mut terminal = std::io::stderr();
    write!(terminal, "{question}. Run them again? [y/N] ")?;
    terminal.flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

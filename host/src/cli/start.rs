//! `onemark start`

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::client::Client;
use super::runs::Outcome;
use super::{Exit, Global, output};

#[derive(clap::Args)]
pub struct Args {
    /// Workflow to start: `NAME`, or `DEPLOYMENT/NAME` where several deployments have one of that name
    workflow: String,
    /// Input: a JSON object keyed by parameter name
    #[arg(default_value = "{}", value_name = "INPUT-JSON")]
    input: String,
    /// Read the input from a file instead
    #[arg(long, value_name = "FILE", conflicts_with = "input")]
    input_file: Option<PathBuf>,
    /// Token that the run claims, or there is no run; may be given several times
    #[arg(long = "hook", value_name = "TOKEN")]
    hooks: Vec<String>,
    /// Keep the tokens at least this long, counted from now, also when the run ends before: `24h`, `7days`
    #[arg(long, value_name = "DURATION", requires = "hooks", value_parser = humantime::parse_duration)]
    min_retention: Option<Duration>,
    /// Id of the run; the same start again leads to the run that exists
    #[arg(long)]
    id: Option<String>,
    /// Idempotency key; the same start again gets the same answer
    #[arg(long)]
    key: Option<String>,
    /// Wait for the run to end and print what it returned
    #[arg(long)]
    wait: bool,
}

#[derive(Serialize)]
struct Body<'a> {
    workflow: &'a str,
    input: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    hooks: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Receipt {
    run_id: String,
    started: bool,
}

#[derive(Serialize)]
struct Waited<'a> {
    started: bool,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

pub async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.client()?;
    let body = args.body().await?;
    let answer = client.post(&["v1", "runs"], body, args.key.as_deref()).await?;
    let Receipt { run_id, started } = answer.read()?;

    if !args.wait {
        match global.json() {
            true => output::print(&answer.text)?,
            false => {
                output::message(if started {
                    "started"
                } else {
                    "this run exists already"
                });
                output::print(&run_id)?;
            }
        }
        return Ok(Exit::Done.into());
    }
    if !global.json() {
        let what = if started { "started run" } else { "waiting for run" };
        output::message(&format!("{what} {run_id}"));
    }
    let outcome = wait(&client, &run_id).await?;
    let success = outcome.is_success();
    if global.json() {
        output::print(&serde_json::to_string(&Waited {
            started,
            outcome: &outcome,
        })?)?;
    } else if success {
        output::print(outcome.output())?;
    } else {
        output::error(&format!(
            "run {run_id} is {}: {}",
            outcome.status,
            outcome.trouble()
        ));
    }
    Ok(if success {
        Exit::Done.into()
    } else {
        Exit::RunFailed.into()
    })
}

impl Args {
    async fn body(&self) -> anyhow::Result<String> {
        let text = match &self.input_file {
            Some(file) => tokio::fs::read_to_string(file)
                .await
                .with_context(|| format!("cannot read {}", file.display()))?,
            None => self.input.clone(),
        };
        let input: &RawValue = serde_json::from_str(&text).context("the input is no JSON")?;
        let hook = |token: &String| match self.min_retention {
            Some(duration) => {
                let text = humantime::format_duration(duration).to_string();
                json!({ "token": token, "min_retention": text })
            }
            None => json!({ "token": token }),
        };
        let body = Body {
            workflow: &self.workflow,
            input,
            id: self.id.as_deref(),
            hooks: self.hooks.iter().map(hook).collect(),
        };
        Ok(serde_json::to_string(&body)?)
    }
}

/// Waits for the run to end or to be blocked.
async fn wait(client: &Client, run: &str) -> anyhow::Result<Outcome> {
    loop {
        let query = [("wait", "30s".to_owned())];
        let outcome: Outcome = client.get(&["v1", "runs", run, "result"], &query).await?.read()?;
        if outcome.is_settled() {
            return Ok(outcome);
        }
    }
}

//! `onemark start`

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::client::Client;
use super::runs::Outcome;
use super::{Exit, Global, Usage, output};
use crate::journal::{RunStatus, Timestamp};

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
    /// Keep the tokens, also the one that the workflow declares, at least this long, counted from now, also when the
    /// run ends before: `24h`, `7days`
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    min_retention: Option<Duration>,
    /// What happens when a token is held: `fail` with exit code 3, `attach` to the run that holds it, `deliver` a
    /// payload to it, or `replace` it: it is asked to cancel, and this run begins when that one has ended
    #[arg(long, value_enum, value_name = "POLICY")]
    on_conflict: Option<OnConflict>,
    /// Payload for the run that holds the token, if there is one; says `--on-conflict deliver`
    #[arg(long, value_name = "JSON", required_if_eq("on_conflict", "deliver"))]
    deliver: Option<String>,
    /// The payload is the first of the run as well when this start begins it
    #[arg(long, requires = "deliver")]
    deliver_always: bool,
    /// Token that the payload is for, of those that the run claims; the first unless given
    #[arg(long, value_name = "TOKEN", requires = "deliver")]
    deliver_token: Option<String>,
    /// Admit the run now and begin it then: `2030-01-31T08:00:00Z`, or a date for its midnight, UTC
    #[arg(long, value_name = "TIME", value_parser = super::time::parse)]
    start_at: Option<Timestamp>,
    /// Name and value to find the run by; may be given several times
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = tag)]
    tags: Vec<(String, String)>,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum OnConflict {
    Fail,
    Attach,
    Deliver,
    Replace,
}

/// `NAME=VALUE`
pub fn tag(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[derive(Serialize)]
struct Body<'a> {
    workflow: &'a str,
    input: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    hooks: Vec<serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_retention: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_conflict: Option<OnConflict>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deliver: Option<Deliver<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tags: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct Deliver<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    payload: &'a RawValue,
    when: &'static str,
}

#[derive(Deserialize)]
struct Receipt {
    run_id: String,
    started: bool,
    delivered: Option<u64>,
    /// Runs that held its tokens.
    #[serde(default)]
    replaced: Vec<String>,
    /// Of the run that was there, for a start that attaches.
    status: Option<RunStatus>,
    input_matches: Option<bool>,
}

impl Receipt {
    /// What became of the start, for people.
    fn message(&self) -> String {
        match (self.started, self.delivered, self.status) {
            (true, None, _) if !self.replaced.is_empty() => {
                format!("started, in place of run {}", self.replaced.join(", "))
            }
            (true, None, _) => "started".to_owned(),
            (true, Some(_), _) => "started, with the payload".to_owned(),
            (false, Some(seq), _) => format!("delivered to the run that holds the token, as entry {seq}"),
            (false, None, Some(status)) => {
                let input = match self.input_matches {
                    Some(false) => ", started with another input",
                    _ => "",
                };
                format!("the token is held by a run that is {status}{input}")
            }
            (false, None, None) => "this run was started before, by the same request".to_owned(),
        }
    }
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
    let receipt: Receipt = answer.read()?;

    if !args.wait {
        match global.json() {
            true => output::print(&answer.text)?,
            false => {
                output::message(&receipt.message());
                output::print(&receipt.run_id)?;
            }
        }
        return Ok(Exit::Done.into());
    }
    let Receipt { run_id, started, .. } = receipt;
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
    fn tags(&self) -> anyhow::Result<BTreeMap<&str, &str>> {
        let mut tags = BTreeMap::new();
        for (name, value) in &self.tags {
            if tags.insert(name.as_str(), value.as_str()).is_some() {
                bail!("tag `{name}` is given twice");
            }
        }
        Ok(tags)
    }

    async fn body(&self) -> anyhow::Result<String> {
        let text = match &self.input_file {
            Some(file) => tokio::fs::read_to_string(file)
                .await
                .with_context(|| format!("cannot read {}", file.display()))?,
            None => self.input.clone(),
        };
        let input: &RawValue = serde_json::from_str(&text).context("the input is no JSON")?;
        let payload = self.deliver.as_deref().map(serde_json::from_str::<&RawValue>);
        let payload = payload.transpose().context("the payload is no JSON")?;
        if payload.is_some() && !matches!(self.on_conflict, None | Some(OnConflict::Deliver)) {
            bail!(Usage(
                "`--deliver` goes with `--on-conflict deliver` alone, which it says by itself"
            ));
        }
        let kept = self.min_retention.map(humantime::format_duration);
        let body = Body {
            workflow: &self.workflow,
            input,
            id: self.id.as_deref(),
            hooks: self.hooks.iter().map(|token| json!({ "token": token })).collect(),
            min_retention: kept.map(|length| length.to_string()),
            on_conflict: self.on_conflict.or(payload.map(|_| OnConflict::Deliver)),
            deliver: payload.map(|payload| Deliver {
                token: self.deliver_token.as_deref(),
                payload,
                when: if self.deliver_always { "always" } else { "conflict" },
            }),
            start_at: self.start_at,
            tags: self.tags()?,
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

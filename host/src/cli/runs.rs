//! `onemark runs`

use std::process::ExitCode;

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::hooks::Hook;
use super::output::{Rows, time};
use super::{Exit, Global, output};
use crate::ids::Digest;
use crate::journal::{RunStatus, Timestamp};

#[derive(Subcommand)]
pub enum Command {
    /// List runs, newest first
    List(ListArgs),
    /// Show how a run stands, its hooks and its outcome
    Show {
        /// Id of the run
        run: String,
    },
    /// Move a run to another deployed component and let it go on
    Upgrade {
        /// Id of the run
        run: String,
        /// Digest of the component, or name of a deployment
        component: String,
    },
}

#[derive(clap::Args)]
pub struct ListArgs {
    /// Only runs with this status
    #[arg(long)]
    status: Option<RunStatus>,
    /// Only runs of this workflow
    #[arg(long)]
    workflow: Option<String>,
    /// How many at most
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: usize,
    /// Go on after this run, the last of an earlier list
    #[arg(long, value_name = "RUN")]
    cursor: Option<String>,
}

#[derive(Deserialize)]
struct List {
    runs: Vec<Run>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Run {
    id: String,
    workflow: String,
    component: Digest,
    status: RunStatus,
    created_at: Timestamp,
    ended_at: Option<Timestamp>,
    wake_at: Option<Timestamp>,
    tokens: Vec<String>,
    entries: u64,
    #[serde(default)]
    hooks: Vec<Hook>,
}

/// How a run stands, as `/result` tells it.
#[derive(Serialize, Deserialize)]
pub struct Outcome {
    run_id: String,
    status: RunStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Blocked {
    reason: String,
    message: String,
}

#[derive(Deserialize)]
struct Failure {
    message: String,
    #[serde(default)]
    causes: Vec<String>,
}

impl Outcome {
    /// Nothing changes any more without a person.
    pub fn is_settled(&self) -> bool {
        self.status.is_terminal() || self.status == RunStatus::Blocked
    }

    pub fn is_success(&self) -> bool {
        self.status == RunStatus::Completed
    }
}

pub async fn run(command: Command, global: &Global) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(args) => list(args, global).await?,
        Command::Show { run } => show(&run, global).await?,
        Command::Upgrade { run, component } => upgrade(&run, &component, global).await?,
    }
    Ok(Exit::Done.into())
}

async fn list(args: ListArgs, global: &Global) -> anyhow::Result<()> {
    let mut query = vec![("limit", args.limit.to_string())];
    query.extend(args.status.map(|status| ("status", status.to_string())));
    query.extend(args.workflow.map(|workflow| ("workflow", workflow)));
    query.extend(args.cursor.map(|cursor| ("cursor", cursor)));
    let answer = global.client()?.get(&["v1", "runs"], &query).await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(());
    }
    let List { runs, next_cursor } = answer.read()?;
    if runs.is_empty() {
        output::message("no runs");
        return Ok(());
    }
    let mut rows = Rows::new(["RUN", "STATUS", "WORKFLOW", "CREATED", "TOKENS"]);
    for run in runs {
        let (status, created) = (run.status.to_string(), time(run.created_at));
        rows.add([run.id, status, run.workflow, created, run.tokens.join(" ")]);
    }
    rows.print()?;
    if let Some(cursor) = next_cursor {
        output::hint(&format!("there are more: `--cursor {cursor}`"));
    }
    Ok(())
}

async fn show(id: &str, global: &Global) -> anyhow::Result<()> {
    let client = global.client()?;
    let answer = client.get(&["v1", "runs", id], &[]).await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(());
    }
    let run: Run = answer.read()?;
    let hooks = print_run(run)?;
    if !hooks.is_empty() {
        let mut rows = Rows::new(["TOKEN", "HOOK", "UNREAD", "RETAINED UNTIL"]);
        for hook in hooks {
            let retained = hook.retained_until();
            rows.add([hook.token, hook.state, hook.unread.to_string(), retained]);
        }
        output::print("")?;
        rows.print()?;
    }
    let outcome: Outcome = client.get(&["v1", "runs", id, "result"], &[]).await?.read()?;
    if outcome.is_settled() {
        output::print("")?;
        tell_outcome(&outcome)?;
    }
    Ok(())
}

fn print_run(run: Run) -> anyhow::Result<Vec<Hook>> {
    let mut facts = vec![
        ("run", run.id),
        ("workflow", run.workflow),
        ("component", run.component.to_string()),
        ("status", run.status.to_string()),
        ("created", time(run.created_at)),
    ];
    facts.extend(run.ended_at.map(|at| ("ended", time(at))));
    facts.extend(run.wake_at.map(|at| ("wakes", time(at))));
    facts.push(("entries", run.entries.to_string()));
    output::print_facts(&facts)?;
    Ok(run.hooks)
}

/// What a run returned goes to stdout; why it did not return, to stderr.
pub fn tell_outcome(outcome: &Outcome) -> anyhow::Result<()> {
    if outcome.is_success() {
        let value = outcome.output.as_deref().map_or("null", RawValue::get);
        output::print(value)?;
        return Ok(());
    }
    let run = &outcome.run_id;
    if let Some(blocked) = &outcome.blocked {
        let Blocked { reason, message } = serde_json::from_str(blocked.get())?;
        output::error(&format!("run {run} is blocked ({reason}): {message}"));
        output::hint(&format!(
            "nothing is lost; deploy a component that fits and `onemark runs upgrade {run} COMPONENT`"
        ));
        return Ok(());
    }
    let why = outcome
        .error
        .as_deref()
        .map(|error| match serde_json::from_str::<Failure>(error.get()) {
            Ok(failure) => [vec![failure.message], failure.causes].concat().join(": "),
            Err(_) => error.get().to_owned(),
        });
    output::error(&format!(
        "run {run} {}: {}",
        outcome.status,
        why.unwrap_or_default()
    ));
    Ok(())
}

async fn upgrade(id: &str, component: &str, global: &Global) -> anyhow::Result<()> {
    let body = json!({ "component": component }).to_string();
    let answer = global
        .client()?
        .post(&["v1", "runs", id, "upgrade"], body, None)
        .await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(());
    }
    print_run(answer.read()?)?;
    Ok(())
}

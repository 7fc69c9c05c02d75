//! `onemark runs`

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Subcommand;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::fork::{self, ForkArgs};
use super::hooks::Hook;
use super::logs::{self, LogArgs};
use super::output::{Rows, count, json, time};
use super::rerun::{self, RerunArgs};
use super::{Exit, Global, Usage, output, workflows};
use crate::ids::Digest;
use crate::journal::{CallNo, CancelReason, Lineage, RunStatus, Timestamp};

#[derive(Subcommand)]
pub enum Command {
    /// List runs, newest first
    List(ListArgs),
    /// Show how a run stands, its outcome, its hooks and the runs that it started
    Show {
        /// Id of the run
        run: String,
    },
    /// Start a new run with the workflow and input of this one; asks when steps would take effect once more
    Rerun(RerunArgs),
    /// Start a new run that goes on from an entry of this one's journal: what is saved up to there does not run again
    Fork(ForkArgs),
    /// Ask a run to cancel: its workflow is told, and can tidy up before it ends
    Cancel {
        /// Id of the run
        run: String,
    },
    /// End a run at once, without its workflow
    Terminate {
        /// Id of the run
        run: String,
    },
    /// Say what a step came to that blocks its run, or let it run again
    Resolve(ResolveArgs),
    /// Let a run go on at the step that failed and blocks it, or all such runs
    Retry(RetryArgs),
    /// Print what the guests of a run wrote to its log, to stdout and to stderr
    Logs(LogArgs),
    /// List the output streams of a run
    Streams {
        /// Id of the run
        run: String,
    },
    /// Print what a run wrote to an output stream, one chunk a line
    Stream(StreamArgs),
    /// Move a run to another deployed component and let it go on
    Upgrade {
        /// Id of the run
        run: String,
        /// Digest of the component, or name of a deployment
        #[arg(long)]
        component: String,
        /// Do so also where the component does something else than the run's journal holds
        #[arg(long)]
        force: bool,
    },
}

#[derive(clap::Args)]
pub struct ListArgs {
    /// Only runs with this status: pending, running, suspended, blocked, completed, failed, cancelled or continued
    #[arg(long)]
    status: Option<RunStatus>,
    /// Only runs of this workflow: `NAME`, or `DEPLOYMENT/NAME`, which means the same: runs do not keep the name of the
    /// deployment
    #[arg(long)]
    workflow: Option<String>,
    /// Only runs that this run started
    #[arg(long, value_name = "RUN")]
    parent: Option<String>,
    /// Only runs with this tag; may be given several times
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = super::start::tag)]
    tags: Vec<(String, String)>,
    /// Only runs admitted at this time or later: `2030-01-31T08:00:00Z`, or a date for its midnight, UTC
    #[arg(long, value_name = "TIME", value_parser = super::time::parse)]
    created_after: Option<Timestamp>,
    /// Only runs admitted before this time
    #[arg(long, value_name = "TIME", value_parser = super::time::parse)]
    created_before: Option<Timestamp>,
    /// How many at most, up to 1000
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Go on after this run, the last of an earlier list
    #[arg(long, value_name = "RUN")]
    cursor: Option<String>,
}

#[derive(clap::Args)]
pub struct ResolveArgs {
    /// Id of the run
    run: String,
    /// The step's call, as the run's message names it [default: whichever blocks the run]
    #[arg(long, value_name = "N")]
    call: Option<CallNo>,
    #[command(flatten)]
    outcome: OutcomeArgs,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct OutcomeArgs {
    /// The step took effect: its result
    #[arg(long, value_name = "JSON")]
    result: Option<String>,
    /// The step failed: why
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Run the step again
    #[arg(long)]
    retry: bool,
}

#[derive(clap::Args)]
pub struct RetryArgs {
    /// Id of the run
    #[arg(required_unless_present = "all")]
    run: Option<String>,
    /// Every run that is blocked for the reason
    #[arg(long, conflicts_with = "run")]
    all: bool,
    /// With --all, only runs of this workflow, whatever deployment they came from
    #[arg(long, value_name = "NAME", requires = "all")]
    workflow: Option<String>,
    /// With --all, why they are blocked: step_failed or key_expired [default: step_failed]
    #[arg(long, requires = "all")]
    reason: Option<String>,
}

#[derive(clap::Args)]
pub struct StreamArgs {
    /// Id of the run
    run: String,
    /// Name of the stream
    name: String,
    /// Index of the first chunk to print
    #[arg(long, default_value_t = 0, value_name = "N")]
    from: u64,
    /// Go on with what is written, until the run has ended
    #[arg(short, long)]
    follow: bool,
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
    cancel_requested: Option<CancelReason>,
    #[serde(default)]
    parent: Option<String>,
    #[serde(default)]
    lineage: Option<Lineage>,
    waits: Option<Waits>,
    tokens: Vec<String>,
    tags: BTreeMap<String, String>,
    duplicates: u64,
    entries: u64,
    #[serde(default)]
    hooks: Vec<Hook>,
}

#[derive(Deserialize)]
struct Waits {
    reason: String,
    until: Option<Timestamp>,
    /// Those that have to end before.
    #[serde(default)]
    runs: Vec<String>,
    limit: Option<u32>,
    key: Option<String>,
    ahead: Option<u64>,
}

impl Waits {
    fn text(&self) -> String {
        if let Some(limit) = self.limit {
            let of = self
                .key
                .as_ref()
                .map_or_else(String::new, |key| format!(" of {key}"));
            let ahead = self.ahead.map_or_else(String::new, |ahead| {
                let wait = if ahead == 1 { "waits" } else { "wait" };
                format!("; {ahead} {wait} before it")
            });
            return format!("its turn, {limit}{of} at once{ahead}");
        }
        match self.runs.len() {
            0 => match self.until {
                Some(until) => format!("{} {}", self.reason, time(until)),
                None => self.reason.clone(),
            },
            1 => format!("run {} to end", self.runs[0]),
            _ => format!("runs {} to end", self.runs.join(", ")),
        }
    }
}

impl Run {
    /// Its status, and what keeps it from going on; short.
    fn status(&self) -> String {
        let status = self.status;
        match &self.waits {
            Some(waits) if waits.limit.is_some() => format!("{status}, waits for its turn"),
            Some(waits) if !waits.runs.is_empty() => format!("{status} after {}", waits.runs.join(" ")),
            Some(Waits {
                until: Some(until), ..
            }) => format!("{status} until {}", time(*until)),
            _ => status.to_string(),
        }
    }

    fn tags(&self) -> String {
        let tags = self.tags.iter().map(|(name, value)| format!("{name}={value}"));
        tags.collect::<Vec<_>>().join(" ")
    }
}

/// How a run stands, as `/result` tells it.
#[derive(Serialize, Deserialize)]
pub struct Outcome {
    run_id: String,
    pub status: RunStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unread: Option<u64>,
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

    /// What a run returned that completed; JSON.
    pub fn output(&self) -> &str {
        self.output.as_deref().map_or("null", RawValue::get)
    }

    /// Why a run did not complete, and what to do; for people.
    pub fn trouble(&self) -> String {
        if let Some(Blocked { reason, message }) = read(self.blocked.as_deref()) {
            return format!("{message} ({reason})");
        }
        match read(self.error.as_deref()) {
            Some(Failure { message, causes }) => [vec![message], causes].concat().join(": "),
            None => json(self.error.as_deref()),
        }
    }
}

fn read<T: DeserializeOwned>(json: Option<&RawValue>) -> Option<T> {
    json.and_then(|json| serde_json::from_str(json.get()).ok())
}

pub async fn run(command: Command, global: &Global) -> anyhow::Result<ExitCode> {
    match command {
        Command::List(args) => list(args, global).await?,
        Command::Show { run } => show(&run, global).await?,
        Command::Fork(args) => fork::run(args, global).await?,
        Command::Rerun(args) => rerun::run(args, global).await?,
        Command::Cancel { run } => act(&run, "cancel", "{}".into(), global).await?,
        Command::Terminate { run } => act(&run, "terminate", "{}".into(), global).await?,
        Command::Resolve(args) => resolve(args, global).await?,
        Command::Retry(RetryArgs { run: Some(run), .. }) => act(&run, "retry", "{}".into(), global).await?,
        Command::Retry(args) => retry_all(args, global).await?,
        Command::Logs(args) => logs::run(args, global).await?,
        Command::Streams { run } => streams(&run, global).await?,
        Command::Stream(args) => stream(args, global).await?,
        Command::Upgrade {
            run,
            component,
            force,
        } => upgrade(&run, &component, force, global).await?,
    }
    Ok(Exit::Done.into())
}

async fn list(args: ListArgs, global: &Global) -> anyhow::Result<()> {
    let mut query = vec![("limit", args.limit.to_string())];
    let workflow = args.workflow.clone();
    query.extend(args.status.map(|status| ("status", status.to_string())));
    query.extend(args.workflow.map(|workflow| ("workflow", workflow)));
    query.extend(args.parent.map(|run| ("parent", run)));
    let tags = args.tags.iter().map(|(name, value)| format!("{name}={value}"));
    query.extend(tags.map(|tag| ("tag", tag)));
    query.extend(args.created_after.map(|at| ("created_after", at.to_string())));
    query.extend(args.created_before.map(|at| ("created_before", at.to_string())));
    query.extend(args.cursor.map(|cursor| ("cursor", cursor)));
    let answer = global.client()?.get(&["v1", "runs"], &query).await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(());
    }
    let List { runs, next_cursor } = answer.read()?;
    let is_empty = runs.is_empty();
    if is_empty {
        output::message("no runs");
    } else {
        print_list(runs)?;
    }
    if let Some(cursor) = next_cursor {
        output::hint(&format!("there are more: `--cursor {cursor}`"));
    }
    if let Some(workflow) = workflow {
        hint_at_workflow(&workflow, is_empty, global).await?;
    }
    Ok(())
}

fn print_list(runs: Vec<Run>) -> std::io::Result<()> {
    let mut rows = Rows::new(["RUN", "STATUS", "WORKFLOW", "CREATED", "TOKENS", "TAGS"]);
    for run in runs {
        let status = run.status();
        let created = time(run.created_at);
        let tags = run.tags();
        rows.add([run.id, status, run.workflow, created, run.tokens.join(" "), tags]);
    }
    rows.print()
}

/// Says what a list by workflow cannot: that there is none of the name, or that it is of more deployments than were asked
/// for. Runs of workflows that are no longer deployed are listed all the same.
async fn hint_at_workflow(workflow: &str, is_empty: bool, global: &Global) -> anyhow::Result<()> {
    let (deployment, name) = match workflow.rsplit_once('/') {
        Some((deployment, name)) => (Some(deployment), name),
        None => (None, workflow),
    };
    if deployment.is_none() && !is_empty {
        return Ok(());
    }
    let found = workflows::deployments_of(name, global).await?;
    let is_known = found
        .iter()
        .any(|it| deployment.is_none_or(|wanted| wanted == it));
    if !is_known {
        output::hint(&format!(
            "no workflow `{workflow}` is deployed; `onemark workflows` lists those that are"
        ));
    } else if found.len() > 1 && !is_empty {
        output::hint(&format!(
            "runs do not keep the name of their deployment: these are of `{name}` in {}",
            found.join(", ")
        ));
    }
    Ok(())
}

/// Children that `show` lists.
const CHILDREN: usize = 20;

async fn show(id: &str, global: &Global) -> anyhow::Result<()> {
    let client = global.client()?;
    let answer = client.get(&["v1", "runs", id], &[]).await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(());
    }
    let run: Run = answer.read()?;
    let mut facts = facts(&run);
    let outcome: Outcome = client.get(&["v1", "runs", id, "result"], &[]).await?.read()?;
    if outcome.is_success() {
        facts.push(("output", outcome.output().to_owned()));
    } else if outcome.is_settled() {
        facts.push(("trouble", outcome.trouble()));
    }
    if let Some(unread) = outcome.unread.filter(|unread| *unread > 0) {
        facts.push(("unread", count(unread, "payload")));
    }
    output::print_facts(&facts)?;
    if !run.hooks.is_empty() {
        let mut rows = Rows::new(["TOKEN", "HOOK", "UNREAD", "RETAINED UNTIL"]);
        for hook in run.hooks {
            let retained = hook.retained_until();
            rows.add([hook.token, hook.state, hook.unread.to_string(), retained]);
        }
        output::print("")?;
        rows.print()?;
    }
    let query = [("parent", id.to_owned()), ("limit", CHILDREN.to_string())];
    let List { runs, next_cursor } = client.get(&["v1", "runs"], &query).await?.read()?;
    if !runs.is_empty() {
        let mut rows = Rows::new(["CHILD", "STATUS", "WORKFLOW"]);
        for run in runs {
            let status = run.status();
            rows.add([run.id, status, run.workflow]);
        }
        output::print("")?;
        rows.print()?;
        if next_cursor.is_some() {
            output::hint(&format!("there are more: `onemark runs list --parent {id}`"));
        }
    }
    Ok(())
}

fn facts(run: &Run) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("run", run.id.clone()),
        ("workflow", run.workflow.clone()),
        ("component", run.component.to_string()),
        ("status", run.status.to_string()),
        ("created", time(run.created_at)),
    ];
    facts.extend(run.parent.clone().map(|parent| ("started by", parent)));
    facts.extend(run.lineage.as_ref().and_then(|lineage| match lineage {
        Lineage::Child { .. } => None,
        Lineage::Rerun { of } => Some(("rerun of", of.to_string())),
        Lineage::Fork { of, upto } => Some(("fork of", format!("{of} at entry {upto}"))),
        Lineage::Continued { from } => Some(("goes on for", from.to_string())),
    }));
    facts.extend(run.ended_at.map(|at| ("ended", time(at))));
    facts.extend(run.waits.as_ref().map(|waits| ("waits for", waits.text())));
    facts.extend(run.wake_at.map(|at| ("wakes", time(at))));
    facts.extend(
        run.cancel_requested
            .map(|reason| ("to end", reason.text().to_owned())),
    );
    facts.push(("entries", run.entries.to_string()));
    if !run.tags.is_empty() {
        facts.push(("tags", run.tags()));
    }
    if run.duplicates > 0 {
        facts.push(("duplicates", run.duplicates.to_string()));
    }
    facts
}

async fn resolve(args: ResolveArgs, global: &Global) -> anyhow::Result<()> {
    let OutcomeArgs { result, error, retry } = args.outcome;
    // As text: reading and writing it anew could change its numbers.
    let result: Option<Box<RawValue>> = result
        .map(RawValue::from_string)
        .transpose()
        .context("the result is no JSON; a text is written with its quotes, as '\"text\"'")?;
    let body = serde_json::to_string(&Resolve {
        call: args.call,
        result,
        error,
        retry,
    })?;
    act(&args.run, "resolve", body, global).await
}

#[derive(Serialize)]
struct Resolve {
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<CallNo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    retry: bool,
}

#[derive(Deserialize)]
struct Retried {
    retried: u64,
    runs: Vec<String>,
}

async fn retry_all(args: RetryArgs, global: &Global) -> anyhow::Result<()> {
    if args.workflow.as_ref().is_some_and(|name| name.contains('/')) {
        bail!(Usage(
            "write the workflow's name alone: runs do not keep the name of their deployment, and those of all would go on"
        ));
    }
    let body = serde_json::json!({
        "workflow": args.workflow,
        "reason": args.reason.as_deref().unwrap_or("step_failed"),
    });
    let answer = global
        .client()?
        .post(&["v1", "runs", "retry"], body.to_string(), None)
        .await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(());
    }
    let Retried { retried, runs } = answer.read()?;
    let go = if retried == 1 { "goes" } else { "go" };
    output::message(&format!("{} {go} on", count(retried, "run")));
    for run in runs {
        output::print(&run)?;
    }
    Ok(())
}

async fn upgrade(id: &str, component: &str, force: bool, global: &Global) -> anyhow::Result<()> {
    let body = serde_json::json!({ "component": component, "force": force }).to_string();
    act(id, "upgrade", body, global).await
}

/// Asks for something to be done with a run, and shows how it stands then.
async fn act(id: &str, what: &str, body: String, global: &Global) -> anyhow::Result<()> {
    let answer = global
        .client()?
        .post(&["v1", "runs", id, what], body, None)
        .await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(());
    }
    output::print_facts(&facts(&answer.read()?))?;
    Ok(())
}

#[derive(Deserialize)]
struct StreamList {
    streams: Vec<StreamInfo>,
}

#[derive(Deserialize)]
struct StreamInfo {
    name: String,
    chunks: u64,
    bytes: u64,
}

async fn streams(id: &str, global: &Global) -> anyhow::Result<()> {
    let answer = global.client()?.get(&["v1", "runs", id, "streams"], &[]).await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(());
    }
    let StreamList { streams } = answer.read()?;
    if streams.is_empty() {
        output::message("no streams");
        return Ok(());
    }
    let mut rows = Rows::new(["STREAM", "CHUNKS", "BYTES"]);
    for stream in streams {
        rows.add([stream.name, stream.chunks.to_string(), stream.bytes.to_string()]);
    }
    rows.print()?;
    Ok(())
}

#[derive(Deserialize)]
struct StreamPage {
    chunks: Vec<Box<RawValue>>,
    next: Option<u64>,
}

#[derive(Deserialize)]
struct Chunk {
    index: u64,
    chunk: Box<RawValue>,
}

/// One line a chunk: its JSON, or with `-o json` all that is known of it.
async fn stream(args: StreamArgs, global: &Global) -> anyhow::Result<()> {
    let client = global.client()?;
    let path = ["v1", "runs", &args.run, "streams", &args.name];
    let print = |text: &str| -> anyhow::Result<u64> {
        let chunk: Chunk = serde_json::from_str(text).context("the server sent what is no chunk")?;
        output::print(if global.json() { text } else { chunk.chunk.get() })?;
        Ok(chunk.index)
    };
    let mut from = args.from;
    if args.follow {
        loop {
            let query = [("from", from.to_string()), ("follow", "true".to_owned())];
            let mut events = client.follow(&path, &query).await?;
            // A connection that breaks is made again, from where it was.
            while let Ok(Some(event)) = events.next().await {
                match event.name.as_deref() {
                    None => from = print(&event.data)? + 1,
                    Some("end") => return Ok(()),
                    Some(_) => {}
                }
            }
        }
    }
    let mut is_empty = true;
    loop {
        let answer = client.get(&path, &[("from", from.to_string())]).await?;
        let page: StreamPage = answer.read()?;
        is_empty &= page.chunks.is_empty();
        for chunk in page.chunks {
            print(chunk.get())?;
        }
        match page.next {
            Some(next) => from = next,
            None => break,
        }
    }
    if is_empty {
        output::message("no chunks");
    }
    Ok(())
}

//! `onemark workflows`, and what a manifest says of workflows.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::output::{Rows, json, plain};
use super::{Exit, Global, output};

#[derive(clap::Args)]
pub struct Args {
    /// Only this one, with the schemas of what it takes: `NAME`, or `DEPLOYMENT/NAME`
    #[arg(value_name = "WORKFLOW")]
    name: Option<String>,
}

#[derive(Deserialize)]
struct List {
    workflows: Vec<Deployed>,
}

#[derive(Deserialize)]
struct Deployed {
    name: String,
    deployment: String,
    component: String,
    description: Option<String>,
    manifest: Workflow,
}

/// A workflow as its component's manifest has it.
#[derive(Deserialize)]
pub struct Workflow {
    pub name: String,
    input: Option<Box<RawValue>>,
    token: Option<String>,
    hook: Option<Box<RawValue>>,
    on: Option<String>,
    schedule: Option<Schedule>,
    webhook: Option<Webhook>,
    timeout_ms: Option<u64>,
    concurrency: Option<Concurrency>,
}

#[derive(Deserialize)]
struct Concurrency {
    limit: u32,
    key: Option<String>,
}

impl Concurrency {
    fn text(&self) -> String {
        match &self.key {
            Some(key) => format!("{} at once of each {key}", self.limit),
            None => format!("{} at once", self.limit),
        }
    }
}

#[derive(Deserialize)]
struct Schedule {
    cron: String,
    #[serde(default = "utc")]
    time_zone: String,
}

fn utc() -> String {
    "UTC".to_owned()
}

#[derive(Deserialize)]
struct Webhook {
    path: String,
    secret_env: String,
}

impl Workflow {
    /// What starts it beside a command: what that is, and its name.
    pub fn triggers(&self) -> Vec<(&'static str, String)> {
        let event = self.on.clone().map(|event| ("event", event));
        let schedule = self.schedule.as_ref();
        let schedule = schedule.map(|it| ("schedule", format!("{} ({})", it.cron, it.time_zone)));
        let webhook = self.webhook.as_ref();
        let webhook = webhook.map(|it| {
            let text = format!("/webhooks/{}, secret in {}", it.path, it.secret_env);
            ("webhook", text)
        });
        [event, schedule, webhook].into_iter().flatten().collect()
    }
}

/// As facts of what has several workflows.
pub fn triggers_of(workflow: &Workflow) -> impl Iterator<Item = (&'static str, String)> {
    let triggers = workflow.triggers().into_iter();
    triggers.map(|(what, it)| (what, format!("{}: {it}", workflow.name)))
}

impl Deployed {
    fn is(&self, wanted: &str) -> bool {
        match wanted.split_once('/') {
            Some((deployment, name)) => self.deployment == deployment && self.name == name,
            None => self.name == wanted,
        }
    }

    fn facts(self) -> Vec<(&'static str, String)> {
        let mut facts = vec![
            ("workflow", self.name),
            ("deployment", self.deployment),
            ("component", self.component),
            ("about", self.description.unwrap_or_default()),
            ("token", self.manifest.token.clone().unwrap_or_default()),
        ];
        facts.extend(self.manifest.triggers());
        let timeout = self.manifest.timeout_ms.map(Duration::from_millis);
        facts.extend(timeout.map(|it| ("timeout", humantime::format_duration(it).to_string())));
        let limit = self.manifest.concurrency.as_ref();
        facts.extend(limit.map(|it| ("runs", it.text())));
        facts.push(("input", json(self.manifest.input.as_deref())));
        facts.push(("payload", json(self.manifest.hook.as_deref())));
        facts.retain(|(_, value)| !value.is_empty());
        facts
    }
}

/// The deployments that have a workflow of this name.
pub async fn deployments_of(name: &str, global: &Global) -> anyhow::Result<Vec<String>> {
    let answer = global.client()?.get(&["v1", "workflows"], &[]).await?;
    let workflows = answer.read::<List>()?.workflows.into_iter();
    let found = workflows.filter(|it| it.name == name);
    Ok(found.map(|it| it.deployment).collect())
}

pub async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let answer = global.client()?.get(&["v1", "workflows"], &[]).await?;
    let Some(wanted) = args.name else {
        if global.json() {
            output::print(&answer.text)?;
        } else {
            list(answer.read()?)?;
        }
        return Ok(Exit::Done.into());
    };
    // As text: reading and writing it anew could change its numbers.
    let whole: RawList = answer.read()?;
    let mut found = Vec::new();
    for text in whole.workflows {
        let workflow: Deployed =
            serde_json::from_str(text.get()).context("the server sent what is no workflow")?;
        if workflow.is(&wanted) {
            found.push((workflow, text));
        }
    }
    if found.is_empty() {
        let what = format!("no workflow `{wanted}` is deployed; `onemark workflows` lists those that are");
        return Err(anyhow::anyhow!(what));
    }
    if global.json() {
        let found: Vec<_> = found.iter().map(|(_, text)| text.get()).collect();
        output::print(&format!("{{\"workflows\":[{}]}}", found.join(",")))?;
        return Ok(Exit::Done.into());
    }
    for (n, (workflow, _)) in found.into_iter().enumerate() {
        if n > 0 {
            output::print("")?;
        }
        output::print_facts(&workflow.facts())?;
    }
    Ok(Exit::Done.into())
}

#[derive(Deserialize)]
struct RawList {
    workflows: Vec<Box<RawValue>>,
}

fn list(List { workflows }: List) -> anyhow::Result<()> {
    if workflows.is_empty() {
        output::message("no workflows");
        output::hint("`onemark deploy FILE` brings some");
        return Ok(());
    }
    let mut rows = Rows::new(["WORKFLOW", "DEPLOYMENT", "STARTS BY ITSELF", "TOKEN", "ABOUT"]);
    for it in workflows {
        let triggers = it.manifest.triggers().into_iter();
        let triggers = triggers.map(|(what, name)| format!("{what} {name}"));
        let triggers = triggers.collect::<Vec<_>>().join("; ");
        let about = it.description.unwrap_or_default();
        let about = plain(about.lines().next().unwrap_or_default());
        rows.add([
            it.name,
            it.deployment,
            triggers,
            it.manifest.token.unwrap_or_default(),
            about,
        ]);
    }
    rows.print()?;
    Ok(())
}

//! `onemark journal`

use std::collections::HashMap;
use std::process::ExitCode;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::client::Client;
use super::output::{Rows, count, json, plain, time};
use super::{Exit, Global, output};
use crate::journal::{Seq, Timestamp};

#[derive(clap::Args)]
pub struct Args {
    /// Id of the run
    run: String,
    /// Position of the first entry to show
    #[arg(long, default_value_t = 0, value_name = "SEQ")]
    from: Seq,
}

#[derive(Deserialize)]
struct Page<T> {
    entries: Vec<T>,
    next: Option<Seq>,
}

#[derive(Serialize)]
struct Whole {
    entries: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
pub struct Entry {
    seq: Seq,
    at: Timestamp,
    event: String,
    fields: Map<String, Value>,
    body: Option<Box<RawValue>>,
}

pub async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.client()?;
    match global.json() {
        true => {
            let entries = entries(&client, &args.run, args.from).await?;
            output::print(&serde_json::to_string(&Whole { entries })?)?;
        }
        false => match entries(&client, &args.run, args.from).await?.as_slice() {
            [] => output::message(&format!("no entry has position {} or a later one", args.from)),
            entries => table(entries).print()?,
        },
    }
    Ok(Exit::Done.into())
}

/// Every entry of a run from `from` on.
pub async fn entries<T: DeserializeOwned>(client: &Client, run: &str, from: Seq) -> anyhow::Result<Vec<T>> {
    let mut all = Vec::new();
    let mut next = Some(from);
    while let Some(from) = next {
        let query = [("from", from.to_string()), ("limit", "1000".to_owned())];
        let page = client.get(&["v1", "runs", run, "journal"], &query).await?;
        let page: Page<T> = page.read()?;
        all.extend(page.entries);
        next = page.next;
    }
    Ok(all)
}

/// One row an entry. Times count from the first entry shown.
pub fn table(entries: &[Entry]) -> Rows {
    let mut rows = Rows::new(["SEQ", "TIME", "EVENT", "CALL", "WHAT", "BODY"]);
    let mut names = Names::default();
    let begin = entries.first().map_or(0, |entry| entry.at);
    for entry in entries {
        names.learn(entry);
        let passed = entry.at.saturating_sub(begin);
        rows.add([
            entry.seq.to_string(),
            format!("+{}.{:03} s", passed / 1000, passed % 1000),
            entry.event.clone(),
            entry
                .fields
                .get("call")
                .map_or_else(String::new, Value::to_string),
            names.what(entry),
            json(entry.body.as_deref()),
        ]);
    }
    rows
}

/// What earlier entries called the things that later ones number.
#[derive(Default)]
struct Names {
    /// By call: a step, or a child with its run.
    calls: HashMap<u64, String>,
    hooks: HashMap<u64, String>,
}

impl Names {
    fn learn(&mut self, entry: &Entry) {
        let token = |fields: &Value| fields["token"].as_str().map(str::to_owned);
        if entry.event == "started" {
            let hooks = entry
                .fields
                .get("hooks")
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            self.hooks.extend((0..).zip(hooks.filter_map(token)));
        }
        if let (Some(call), Some(step)) = (entry.number("call"), entry.text("step")) {
            self.calls.insert(call, step.to_owned());
        }
        if let (Some(call), "child_started", Some(run)) =
            (entry.number("call"), entry.event.as_str(), entry.text("run"))
        {
            let workflow = entry.text("workflow").unwrap_or_default();
            self.calls.insert(call, format!("{workflow} {run}"));
        }
        if let (Some(hook), Some(token)) = (entry.number("hook"), entry.text("token")) {
            self.hooks.insert(hook, token.to_owned());
        }
        if entry.event == "forked" {
            let claims = entry.fields.get("hooks").and_then(Value::as_array);
            let claims = claims.into_iter().flatten();
            self.hooks
                .extend(claims.filter_map(|claim| Some((claim[0].as_u64()?, token(&claim[1])?))));
        }
    }

    /// What the entry is about, in a few words.
    fn what(&self, entry: &Entry) -> String {
        let mut words: Vec<String> = Vec::new();
        let called = entry.number("call").and_then(|call| self.calls.get(&call));
        match called {
            Some(name) => words.push(name.clone()),
            None => words.extend(entry.text("workflow").map(str::to_owned)),
        }
        match entry.event.as_str() {
            "started" => words.extend(begins(&entry.fields)),
            "child_ended" => words.extend(entry.text("status").map(str::to_owned)),
            "cancel_requested" => words.extend(entry.text("reason").map(str::to_owned)),
            "continued" => words.extend(entry.text("run").map(|run| format!("as {run}"))),
            "emit_refused" => words.extend(entry.text("name").map(str::to_owned)),
            "emitted" => {
                let started = entry.fields.get("runs").and_then(Value::as_array);
                let started = started.map_or(0, |runs| runs.len() as u64);
                words.extend(entry.text("name").map(str::to_owned));
                words.push(format!("started {}", count(started, "run")));
            }
            "tagged" => {
                let pair = entry.text("name").zip(entry.text("value"));
                words.extend(pair.map(|(name, value)| format!("{name}={value}")));
            }
            _ => {}
        }
        words.extend(
            entry
                .number("attempt")
                .map(|attempt| format!("attempt {attempt}")),
        );
        words.extend(
            entry
                .number("retry_at")
                .map(|at| format!("again at {}", time(at))),
        );
        let says = |field| entry.fields.get(field).and_then(Value::as_bool) == Some(true);
        words.extend(says("outcome_unknown").then(|| "outcome unknown".to_owned()));
        words.extend(says("resolved").then(|| "as a person decided".to_owned()));
        words.extend(entry.number("due").map(|at| format!("due {}", time(at))));
        words.extend(entry.number("count").map(|count| format!("{count} of")));
        match entry.number("hook").and_then(|hook| self.hooks.get(&hook)) {
            Some(token) => words.push(token.clone()),
            None => words.extend(entry.text("token").map(str::to_owned)),
        }
        if entry.event == "started" {
            let mut hooks: Vec<_> = self.hooks.iter().collect();
            hooks.sort();
            words.extend(hooks.into_iter().map(|(_, token)| token.clone()));
        }
        if entry.event == "forked" {
            words.extend(entry.text("of").map(|of| format!("of {of}")));
            words.extend(entry.number("upto").map(|upto| format!("at {upto},")));
        }
        if ["upgraded", "forked"].contains(&entry.event.as_str()) {
            words.extend(
                entry
                    .text("component")
                    .map(|digest| digest.chars().take(12).collect()),
            );
        }
        plain(&words.join(" ")).replace(['\n', '\t'], " ")
    }
}

/// Where a run comes from and what it waits for, as its first entry has it.
fn begins(fields: &Map<String, Value>) -> Vec<String> {
    let mut words = Vec::new();
    let lineage = fields.get("lineage").and_then(Value::as_object);
    for (kind, of) in lineage.into_iter().flatten() {
        let whose = ["parent", "of", "from"].iter().find_map(|name| of[name].as_str());
        words.extend(whose.map(|run| match kind.as_str() {
            "child" => format!("child of {run}"),
            "continued" => format!("goes on for {run}"),
            other => format!("{other} of {run}"),
        }));
    }
    let predecessors = fields.get("predecessors").and_then(Value::as_array);
    let predecessors = predecessors.into_iter().flatten().filter_map(Value::as_str);
    words.extend(predecessors.map(|run| format!("after {run}")));
    let start_at = fields.get("start_at").and_then(Value::as_u64);
    words.extend(start_at.map(|at| format!("at {}", time(at))));
    words
}

impl Entry {
    fn number(&self, field: &str) -> Option<u64> {
        self.fields.get(field).and_then(Value::as_u64)
    }

    fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field).and_then(Value::as_str)
    }
}

//! `onemark emit`

use std::process::ExitCode;

use serde::Deserialize;

use super::deliver::checked_payload;
use super::output::Rows;
use super::{Exit, Global, output};

#[derive(clap::Args)]
pub struct Args {
    /// Name of the event
    name: String,
    /// Payload; a text is written with its quotes, as '"text"'
    #[arg(value_name = "JSON")]
    payload: String,
    /// Id of the event; the same event again starts nothing and gets the same answer
    #[arg(long)]
    id: Option<String>,
}

#[derive(Deserialize)]
struct Receipt {
    runs: Vec<Part>,
}

#[derive(Deserialize)]
struct Part {
    workflow: String,
    run_id: Option<String>,
    conflict: Option<Conflict>,
    refused: Option<String>,
}

#[derive(Deserialize)]
struct Conflict {
    token: String,
    run: String,
}

impl Part {
    fn what(self) -> String {
        match (self.run_id, self.conflict, self.refused) {
            (Some(run), ..) => format!("started {run}"),
            (_, Some(Conflict { token, run }), _) => format!("`{token}` is held by run {run}"),
            (_, _, refused) => refused.unwrap_or_default(),
        }
    }
}

pub async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    checked_payload(&args.payload)?;
    let path = ["v1", "events", &args.name];
    let answer = global
        .client()?
        .post(&path, args.payload, args.id.as_deref())
        .await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(Exit::Done.into());
    }
    let Receipt { runs } = answer.read()?;
    if runs.is_empty() {
        output::hint("no workflow waits for this event; `on = \"…\"` in `#[workflow]` lets one wait");
        return Ok(Exit::Done.into());
    }
    let mut rows = Rows::new(["WORKFLOW", "OUTCOME"]);
    for part in runs {
        rows.add([part.workflow.clone(), part.what()]);
    }
    rows.print()?;
    Ok(Exit::Done.into())
}

//! `onemark schedules`

use std::process::ExitCode;

use anyhow::bail;
use clap::Subcommand;
use serde::Deserialize;
use serde_json::json;

use super::output::{Rows, time};
use super::{Exit, Global, Usage, output};
use crate::journal::Timestamp;

#[derive(Subcommand)]
pub enum Command {
    /// List what starts by itself, and when next
    List,
    /// Start a run for every slot of a range that had none
    Backfill {
        /// Name of the schedule: DEPLOYMENT/WORKFLOW
        name: String,
        /// Begin with the slot at this time: `2030-01-31T08:00:00Z`, or a date for its midnight, UTC
        #[arg(long, value_name = "TIME", value_parser = super::time::parse)]
        from: Timestamp,
        /// End with the slot at this time
        #[arg(long, value_name = "TIME", value_parser = super::time::parse)]
        to: Timestamp,
    },
}

#[derive(Deserialize)]
struct Schedules {
    schedules: Vec<Schedule>,
}

#[derive(Deserialize)]
struct Schedule {
    name: String,
    cron: String,
    time_zone: String,
    catch_up: String,
    next: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Backfill {
    slots: Vec<Slot>,
}

#[derive(Deserialize)]
struct Slot {
    slot: Timestamp,
    existing: bool,
    run_id: Option<String>,
    refused: Option<String>,
}

pub async fn run(command: Command, global: &Global) -> anyhow::Result<ExitCode> {
    match command {
        Command::List => list(global).await?,
        Command::Backfill { name, from, to } => backfill(&name, from, to, global).await?,
    }
    Ok(Exit::Done.into())
}

async fn list(global: &Global) -> anyhow::Result<()> {
    let answer = global.client()?.get(&["v1", "schedules"], &[]).await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(());
    }
    let Schedules { schedules } = answer.read()?;
    if schedules.is_empty() {
        output::message("no schedules");
        output::hint("`cron = \"…\"` in `#[workflow]` declares one");
        return Ok(());
    }
    let mut rows = Rows::new(["SCHEDULE", "CRON", "TIME ZONE", "CATCH UP", "NEXT"]);
    for it in schedules {
        let next = it.next.map(time).unwrap_or_default();
        rows.add([it.name, it.cron, it.time_zone, it.catch_up, next]);
    }
    rows.print()?;
    Ok(())
}

async fn backfill(name: &str, from: Timestamp, to: Timestamp, global: &Global) -> anyhow::Result<()> {
    if to < from {
        bail!(Usage("`--from` is after `--to`: the range ends before it begins"));
    }
    let path = ["v1", "schedules", name, "backfill"];
    let body = json!({ "from": from, "to": to }).to_string();
    let answer = global.client()?.post(&path, body, None).await?;
    if global.json() {
        output::print(&answer.text)?;
        return Ok(());
    }
    let Backfill { slots } = answer.read()?;
    if slots.is_empty() {
        let (from, to) = (time(from), time(to));
        output::message(&format!(
            "schedule `{name}` has no slot from {from} to {to} that has come; nothing was started"
        ));
        return Ok(());
    }
    let mut rows = Rows::new(["SLOT", "RUN", ""]);
    for it in slots {
        let note = match (it.existing, it.refused) {
            (true, _) => "was there".to_owned(),
            (false, refused) => refused.unwrap_or_default(),
        };
        rows.add([time(it.slot), it.run_id.unwrap_or_default(), note]);
    }
    rows.print()?;
    Ok(())
}

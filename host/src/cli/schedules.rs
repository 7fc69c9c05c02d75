//! `onemark schedules`

use std::process::ExitCode;

use clap::Subcommand;
use serde::Deserialize;
use serde_json::json;

use super::output::{Rows, time};
use super::{Exit, Global, output};
use crate::journal::Timestamp;

#[derive(Subcommand)]
pub enum Command {
    /// List what starts by itself, and when next
    List,
    /// Start a run for every slot of a range that had none
    Backfill {
        /// Name of the schedule: DEPLOYMENT/WORKFLOW
        name: String,
        /// Begin with the slot at this time, such as 2030-01-31T08:00:00Z
        #[arg(long, value_name = "TIME")]
        from: String,
        /// End with the slot at this time
        #[arg(long, value_name = "TIME")]
        to: String,
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
    let client = global.client()?;
    let (answer, is_list) = match command {
        Command::List => (client.get(&["v1", "schedules"], &[]).await?, true),
        Command::Backfill { name, from, to } => {
            let path = ["v1", "schedules", &name, "backfill"];
            let body = json!({ "from": from, "to": to }).to_string();
            (client.post(&path, body, None).await?, false)
        }
    };
    if global.json() {
        output::print(&answer.text)?;
        return Ok(Exit::Done.into());
    }
    let rows = if is_list {
        let mut rows = Rows::new(["SCHEDULE", "CRON", "TIME ZONE", "CATCH UP", "NEXT"]);
        for it in answer.read::<Schedules>()?.schedules {
            let next = it.next.map(time).unwrap_or_default();
            rows.add([it.name, it.cron, it.time_zone, it.catch_up, next]);
        }
        rows
    } else {
        let mut rows = Rows::new(["SLOT", "RUN", ""]);
        for it in answer.read::<Backfill>()?.slots {
            let note = match (it.existing, it.refused) {
                (true, _) => "was there".to_owned(),
                (false, refused) => refused.unwrap_or_default(),
            };
            rows.add([time(it.slot), it.run_id.unwrap_or_default(), note]);
        }
        rows
    };
    rows.print()?;
    Ok(Exit::Done.into())
}

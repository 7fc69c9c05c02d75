//! `onemark replay`

use std::path::PathBuf;
use std::process::ExitCode;

use reqwest::Method;
use serde::Deserialize;

use super::deploy::read_component;
use super::output::{BAD, GOOD, Rows, count};
use super::{Exit, Global, output};

#[derive(clap::Args)]
pub struct Args {
    /// Id of the run
    run: String,
    /// Component to try, a `.wasm` file; by default the run's own
    #[arg(long, value_name = "FILE")]
    component: Option<PathBuf>,
}

/// What a replay found, as the server tells it.
#[derive(Deserialize)]
pub struct Report {
    component: String,
    calls: Vec<Call>,
    verdict: Verdict,
    took_us: u64,
}

#[derive(Deserialize)]
struct Call {
    call: u32,
    seq: u64,
    text: String,
    matched: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Agrees,
    Diverged { message: String, diff: String },
    Trapped { message: String, frames: Vec<String> },
    Corrupt(String),
}

pub async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let component = match &args.component {
        Some(file) => read_component(file).await?,
        None => Vec::new(),
    };
    let path = ["v1", "runs", &args.run, "replay"];
    let answer = global
        .client()?
        .send_component(Method::POST, &path, component)
        .await?;
    let report: Report = answer.read()?;
    match global.json() {
        true => output::print(&answer.text)?,
        false => print(&report)?,
    }
    Ok(match report.verdict {
        Verdict::Agrees => Exit::Done.into(),
        Verdict::Diverged { .. } => Exit::ReplayDiverged.into(),
        Verdict::Trapped { .. } | Verdict::Corrupt(_) => Exit::Error.into(),
    })
}

/// Each call and whether it matched, then the verdict.
pub fn print(report: &Report) -> anyhow::Result<()> {
    let mut rows = Rows::new(["CALL", "ENTRY", "MATCHED", "RECORDED"]);
    for call in &report.calls {
        let matched = if call.matched { "yes" } else { "no" };
        rows.add([
            call.call.to_string(),
            call.seq.to_string(),
            matched.to_owned(),
            call.text.clone(),
        ]);
    }
    rows.print()?;
    output::print("")?;

    let matched = report.calls.iter().filter(|call| call.matched).count();
    let component: String = report.component.chars().take(12).collect();
    let took = format!("{}.{:03} ms", report.took_us / 1000, report.took_us % 1000);
    let calls = count(report.calls.len() as u64, "call");
    let score = format!("{matched} of {calls} matched");
    let score = format!("{score}, component {component}, {took}, no effects");
    match &report.verdict {
        Verdict::Agrees => output::print(&format!("{GOOD}agrees{GOOD:#}: {score}"))?,
        Verdict::Diverged { message, diff } => {
            output::print(&format!("{BAD}diverged{BAD:#}: {score}"))?;
            output::print(message)?;
            for line in diff.lines() {
                let style = match line.chars().next() {
                    Some('-') => BAD,
                    Some('+') => GOOD,
                    _ => Default::default(),
                };
                output::print(&format!("  {style}{line}{style:#}"))?;
            }
            output::hint(
                "the journal is untouched; runs that are in flight need the component that they have, \
                 or one that makes the same calls",
            );
        }
        Verdict::Trapped { message, frames } => {
            output::print(&format!("{BAD}trapped{BAD:#}: {score}"))?;
            output::print(&output::plain(message))?;
            for frame in frames {
                output::print(&format!("  at {frame}"))?;
            }
        }
        Verdict::Corrupt(what) => {
            output::print(&format!("{BAD}the journal is damaged{BAD:#}: {what}"))?;
        }
    }
    Ok(())
}

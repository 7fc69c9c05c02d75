//! `onemark bench`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::ValueEnum as _;
use serde_json::json;

use super::output::{self, BOLD};
use super::{Exit, Global};
use crate::bench::{self, Figure, Plan, Scenario};
use crate::guest_build::{BuildOptions, build_component};

/// Measures this host on this machine, beside what the machine does bare.
#[derive(clap::Args)]
pub struct Args {
    /// What to measure; everything when none is named.
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// Steps, runs or deliveries, instead of each scenario's own number.
    #[arg(long, short = 'n')]
    count: Option<u64>,
    /// Clients at once, for `starts` and `duplicates`.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// Source of the guest to measure with.
    #[arg(long, value_name = "FOLDER", conflicts_with = "component")]
    example: Option<PathBuf>,
    /// The guest to measure with, built before.
    #[arg(long, value_name = "FILE")]
    component: Option<PathBuf>,
    /// Where the databases are made, on the disk that is to be measured.
    #[arg(long, default_value = ".", value_name = "FOLDER")]
    folder: PathBuf,
}

pub async fn run(args: Args, global: &Global) -> Result<ExitCode> {
    let component = match (args.component, args.example) {
        (Some(component), _) => component,
        (None, example) => build(example).await?,
    };
    let plan = Plan {
        scenarios: args.scenarios,
        count: args.count,
        clients: args.clients.max(1),
        component,
        folder: args.folder,
    };
    if cfg!(debug_assertions) {
        output::message("this is a debug build: figures of a release build are several times better");
    }
    let mut figures = Vec::new();
    let json = global.json();
    bench::run(&plan, |figure| {
        if !json {
            show(&figure);
        }
        figures.push(figure);
    })
    .await?;
    if json {
        let shares = figures
            .iter()
            .map(|figure| json!({ "figure": figure, "share": figure.share() }));
        output::print(&serde_json::to_string_pretty(&shares.collect::<Vec<_>>())?)?;
    }
    Ok(Exit::Done.into())
}

async fn build(example: Option<PathBuf>) -> Result<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/bench");
    let folder = example.unwrap_or(beside);
    if !folder.is_dir() {
        bail!(
            "the source of the guest is not at {}; name it with `--example`, or a built one with `--component`",
            folder.display()
        );
    }
    output::message("building the guest");
    let build = move || {
        build_component(
            &folder,
            &BuildOptions {
                quiet: true,
                ..BuildOptions::default()
            },
        )
    };
    tokio::task::spawn_blocking(build).await?
}

/// One figure, a line or two.
fn show(figure: &Figure) {
    let name = figure.scenario.to_possible_value();
    let name = name.map_or_else(String::new, |name| name.get_name().to_owned());
    let value = match figure.value {
        value if value >= 100.0 => format!("{value:.0}"),
        value => format!("{value:.2}"),
    };
    let share = match (figure.bare, figure.share()) {
        (Some(bare), Some(share)) => format!("{:.0} % of {bare:.0} bare", share * 100.0),
        _ => String::new(),
    };
    let _ = output::print(&format!(
        "{BOLD}{name:<11}{BOLD:#}{:<14}{value:>9} {:<14} {share}",
        figure.what, figure.unit
    ));
    if !figure.note.is_empty() {
        let _ = output::print(&format!("           {}", figure.note));
    }
}

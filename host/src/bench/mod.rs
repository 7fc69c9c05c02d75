//! `onemark bench`: how fast this host is here, each figure beside the bare limit measured in the same run.
//!
//! Durable mode: a real database file with full syncs, real components, for `starts` and `duplicates` real
//! HTTP. A figure alone says as much about the machine as about the host; the share of the bare limit says
//! what the host adds.

mod bare;
mod lab;
mod scenarios;

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;

pub use scenarios::Scenario;

/// How a benchmark is run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// All when empty.
    pub scenarios: Vec<Scenario>,
    /// Steps, runs or deliveries per scenario; each has its own default.
    pub count: Option<u64>,
    /// Clients at once, for `starts` and `duplicates`.
    pub clients: usize,
    /// The guest: `examples/bench`, built.
    pub component: PathBuf,
    /// Where the databases are made; they are removed afterwards.
    pub folder: PathBuf,
}

/// One measured number.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    pub scenario: Scenario,
    pub what: String,
    pub value: f64,
    pub unit: &'static str,
    /// What the same machine does bare, in the same unit.
    pub bare: Option<f64>,
    /// How the bare limit is made up, and what else belongs to the figure.
    pub note: String,
}

impl Figure {
    /// The figure as a share of the bare limit.
    pub fn share(&self) -> Option<f64> {
        self.bare.map(|bare| self.value / bare)
    }
}

/// Runs the scenarios in order; `report` gets each figure as it is measured.
///
/// # Errors
/// When something does not run as it should: a benchmark of a broken host is worth nothing.
pub async fn run(plan: &Plan, mut report: impl FnMut(Figure)) -> Result<()> {
    let scenarios = match plan.scenarios.as_slice() {
        [] => Scenario::ALL.to_vec(),
        chosen => chosen.to_vec(),
    };
    for scenario in scenarios {
        for figure in scenarios::measure(scenario, plan).await? {
            report(figure);
        }
    }
    Ok(())
}

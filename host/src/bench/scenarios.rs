//! What is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

use super::bare::{self, ROWS_PER_STEP};
use super::lab::Lab;
use super::{Figure, Plan};
use crate::api::{self, ServerConfig};
use crate::clock::ManualClock;
use crate::engine::{EngineConfig, Verdict, verify};
use crate::ids::RunId;
use crate::journal::RunStatus;

/// A kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// One run, steps one after another.
    Seq,
    /// One run, closures one after another, beside as many steps.
    Closures,
    /// One run, steps at once.
    Fanout,
    /// Clients start workflows of one step, over HTTP.
    Starts,
    /// Clients start one token again and again, over HTTP.
    Duplicates,
    /// From a delivery to the workflow's next step.
    Deliver,
    /// A journal against its component.
    Replay,
    /// Memory of runs that wait.
    Suspended,
    /// Many runs that sleep: memory, a restart, and waking many at once.
    Sleeping,
}

impl Scenario {
    pub const ALL: [Self; 9] = [
        Self::Seq,
        Self::Closures,
        Self::Fanout,
        Self::Starts,
        Self::Duplicates,
        Self::Deliver,
        Self::Replay,
        Self::Suspended,
        Self::Sleeping,
    ];

    fn figure(
        self,
        what: impl Into<String>,
        value: f64,
        unit: &'static str,
        bare: Option<f64>,
        note: String,
    ) -> Figure {
        Figure {
            scenario: self,
            what: what.into(),
            value,
            unit,
            bare,
            note,
        }
    }
}

pub async fn measure(scenario: Scenario, plan: &Plan) -> Result<Vec<Figure>> {
    match scenario {
        Scenario::Seq => seq(plan).await,
        Scenario::Closures => closures(plan).await,
        Scenario::Fanout => fanout(plan).await,
        Scenario::Starts => starts(plan).await,
        Scenario::Duplicates => duplicates(plan).await,
        Scenario::Deliver => deliver(plan).await,
        Scenario::Replay => replay(plan).await,
        Scenario::Suspended => suspended(plan).await,
        Scenario::Sleeping => sleeping(plan).await,
    }
}

/// The mean of a bare figure before and after what it is compared with: these machines drift.
fn mean(before: f64, after: f64) -> f64 {
    f64::midpoint(before, after)
}

fn micros(seconds: f64) -> String {
    format!("{:.0} µs", seconds * 1e6)
}

fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64)
}

async fn seq(plan: &Plan) -> Result<Vec<Figure>> {
    let lab = Lab::open(plan, EngineConfig::default()).await?;
    let steps = plan.count.unwrap_or(3_000);
    // Warm: code, caches, the database's first pages.
    run_steps(&lab, "sequence", steps.min(100)).await?;
    let before = bare::commits_per_second(lab.folder())?;
    let seconds = run_steps(&lab, "sequence", steps).await?;
    let after = bare::commits_per_second(lab.folder())?;
    let note = format!(
        "bare: commits of {ROWS_PER_STEP} rows; {} a step, {} of it in the sandbox",
        micros(seconds / steps as f64),
        micros(bare::attempt_seconds(&lab).await?)
    );
    let (value, bare) = (steps as f64 / seconds, mean(before, after));
    Ok(vec![Scenario::Seq.figure(
        format!("{steps} steps"),
        value,
        "steps/s",
        Some(bare),
        note,
    )])
}

/// A closure's attempt replays the journal before it, so its cost depends on how long a run is.
async fn closures(plan: &Plan) -> Result<Vec<Figure>> {
    const ROUNDS: u64 = 20;
    let lab = Lab::open(plan, EngineConfig::default()).await?;
    let most = plan.count.unwrap_or(1_000);
    let mut figures = Vec::new();
    for steps in [10, 100, most] {
        let rounds = (ROUNDS * 100 / steps).clamp(1, 100);
        run_steps(&lab, "sequence", steps).await?;
        run_steps(&lab, "closures", steps).await?;
        // In turn, since these machines drift.
        let (mut step_seconds, mut closure_seconds) = (0.0, 0.0);
        for _ in 0..rounds {
            step_seconds += run_steps(&lab, "sequence", steps).await?;
            closure_seconds += run_steps(&lab, "closures", steps).await?;
        }
        let all = (rounds * steps) as f64;
        let note = format!(
            "bare: as many steps; a closure takes {}, {:.2} times a step",
            micros(closure_seconds / all),
            closure_seconds / step_seconds
        );
        let (value, bare) = (all / closure_seconds, all / step_seconds);
        let what = format!("{steps} closures a run");
        figures.push(Scenario::Closures.figure(what, value, "steps/s", Some(bare), note));
    }
    Ok(figures)
}

/// Runs a workflow of that many steps; the seconds from start to end.
async fn run_steps(lab: &Lab, workflow: &str, steps: u64) -> Result<f64> {
    let began = Instant::now();
    let run = lab.start(workflow, json!({ "n": steps }), None).await?;
    lab.completed(&run).await?;
    Ok(began.elapsed().as_secs_f64())
}

async fn fanout(plan: &Plan) -> Result<Vec<Figure>> {
    let config = EngineConfig::default();
    let in_flight = config.max_attempts_per_run;
    let lab = Lab::open(plan, config).await?;
    const ROUNDS: u64 = 3;
    let most = plan.count.unwrap_or(10_000);
    // Warm: code, caches, the database's first pages.
    run_steps(&lab, "fanout", most).await?;
    let mut figures = Vec::new();
    for steps in [100, 1_000, most] {
        // As many steps in all, whatever the size of a run.
        let runs = (ROUNDS * most / steps).max(1);
        let mut alone = 0.0;
        for _ in 0..runs.min(100) {
            alone += run_steps(&lab, "fanout", 1).await?;
        }
        let alone = alone / runs.min(100) as f64;
        let all = (steps * runs) as f64;
        let before = bare::rows_per_second(lab.folder())?;
        let rows = lab.rows()?;
        let mut seconds = 0.0;
        for _ in 0..runs {
            seconds += run_steps(&lab, "fanout", steps).await?;
        }
        let rows = (lab.rows()? - rows) as f64 / all;
        let row = 1.0 / mean(before, bare::rows_per_second(lab.folder())?);
        let attempt = bare::attempt_seconds(&lab).await?;
        let cpu = attempt + rows * row;
        let bare = (cores() / cpu).min(1.0 / (rows * row));
        // What a run costs by itself, however many steps it has, apart.
        let step = (seconds / runs as f64 - alone) / (steps.max(2) - 1) as f64;
        let note = format!(
            "{in_flight} in flight; {} a step beyond the {} of a run with one; bare: an attempt {} + {rows:.1} rows of \
             {}, on {} cores",
            micros(step),
            micros(alone),
            micros(attempt),
            micros(row),
            cores()
        );
        let value = all / seconds;
        let what = format!("{steps} a run");
        figures.push(Scenario::Fanout.figure(what, value, "steps/s", Some(bare), note));
    }
    Ok(figures)
}

/// The API of a lab's engine on a port of its own.
struct Server {
    url: String,
    client: reqwest::Client,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start(lab: &Lab) -> Result<Self> {
        let listener = api::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let task = tokio::spawn(api::serve(
            listener,
            lab.engine.clone(),
            ServerConfig::default(),
            std::future::pending(),
        ));
        Ok(Self {
            url,
            client: reqwest::Client::new(),
            task,
        })
    }

    /// Sends `total` requests from `clients` at once; the answers and the seconds that all took.
    async fn load<T: Send + 'static>(
        &self,
        clients: usize,
        total: u64,
        request: impl Fn(&reqwest::Client, &str, u64) -> reqwest::RequestBuilder + Send + Sync + Clone + 'static,
        read: fn(u16, Value) -> Result<T>,
    ) -> Result<(Vec<T>, f64)> {
        let next = Arc::new(AtomicU64::new(0));
        let began = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..clients {
            let (client, url) = (self.client.clone(), self.url.clone());
            let (request, next) = (request.clone(), next.clone());
            tasks.spawn(async move {
                let mut answers = Vec::new();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= total {
                        return Ok::<_, anyhow::Error>(answers);
                    }
                    let response = request(&client, &url, n).send().await?;
                    let status = response.status().as_u16();
                    answers.push(read(status, response.json().await?)?);
                }
            });
        }
        let mut answers = Vec::new();
        while let Some(done) = tasks.join_next().await {
            answers.extend(done??);
        }
        Ok((answers, began.elapsed().as_secs_f64()))
    }
}

fn run_id(status: u16, answer: Value) -> Result<RunId> {
    ensure!(status == 201, "a start was answered with {status}: {answer}");
    Ok(RunId::new(
        answer["run_id"].as_str().context("an answer without run id")?,
    )?)
}

/// A start of a workflow of one step, without a token.
fn one_step(client: &reqwest::Client, url: &str, n: u64) -> reqwest::RequestBuilder {
    let body = json!({ "workflow": "one_step", "input": { "n": n } });
    client.post(format!("{url}/v1/runs")).json(&body)
}

async fn starts(plan: &Plan) -> Result<Vec<Figure>> {
    let lab = Lab::open(plan, EngineConfig::default()).await?;
    let server = Server::start(&lab).await?;
    let (clients, total) = (plan.clients, plan.count.unwrap_or(5_000));
    let health = |client: &reqwest::Client, url: &str, _: u64| client.get(format!("{url}/healthz"));
    server.load(clients, 200, one_step, run_id).await?;

    let before = bare::rows_per_second(lab.folder())?;
    let (_, http) = server.load(clients, total, health, |_, _| Ok(())).await?;
    let rows = lab.rows()?;
    let began = Instant::now();
    let (runs, acked) = server.load(clients, total, one_step, run_id).await?;
    lab.engine.idle().await;
    let done = began.elapsed().as_secs_f64();
    for run in &runs {
        lab.completed(run).await?;
    }
    let rows = (lab.rows()? - rows) as f64 / total as f64;
    let row = 1.0 / mean(before, bare::rows_per_second(lab.folder())?);
    let http = http / total as f64 * cores();
    let attempt = bare::attempt_seconds(&lab).await?;
    let activation = bare::activation_seconds(&lab).await?;
    let cpu = http + activation + attempt + rows * row;
    let bare = (cores() / cpu).min(1.0 / (rows * row));
    let note = format!(
        "{clients} clients; bare: a request and its client {} + an activation {} + an attempt {} + {rows:.1} \
         rows of {}, on {} cores",
        micros(http),
        micros(activation),
        micros(attempt),
        micros(row),
        cores()
    );
    let token = with_token(&lab, &server, clients, total / 5).await?;
    let total = total as f64;
    Ok(vec![
        Scenario::Starts.figure("completed", total / done, "runs/s", Some(bare), note),
        Scenario::Starts.figure("acknowledged", total / acked, "runs/s", None, String::new()),
        token,
    ])
}

/// Starts that claim a token beside starts that claim none.
async fn with_token(lab: &Lab, server: &Server, clients: usize, each: u64) -> Result<Figure> {
    const ROUNDS: u64 = 5;
    let (mut without, mut with) = (0.0, 0.0);
    // In turn, since these machines drift.
    for round in 0..ROUNDS {
        let began = Instant::now();
        server.load(clients, each, one_step, run_id).await?;
        lab.engine.idle().await;
        without += began.elapsed().as_secs_f64();

        let keyed = move |client: &reqwest::Client, url: &str, n: u64| {
            let body = json!({ "workflow": "one_step_keyed", "input": { "id": format!("{round}:{n}") } });
            client.post(format!("{url}/v1/runs")).json(&body)
        };
        let began = Instant::now();
        server.load(clients, each, keyed, run_id).await?;
        lab.engine.idle().await;
        with += began.elapsed().as_secs_f64();
    }
    let total = (ROUNDS * each) as f64;
    let note = format!("bare: {total:.0} starts without a token, in turn with these");
    Ok(Scenario::Starts.figure(
        "with a token",
        total / with,
        "runs/s",
        Some(total / without),
        note,
    ))
}

async fn duplicates(plan: &Plan) -> Result<Vec<Figure>> {
    let lab = Lab::open(plan, EngineConfig::default()).await?;
    let server = Server::start(&lab).await?;
    let (clients, total) = (plan.clients, plan.count.unwrap_or(5_000));
    let owner = lab.start("waits", json!({}), Some("bench:taken")).await?;
    let first = |client: &reqwest::Client, url: &str, n: u64| {
        let body = json!({ "workflow": "one_step_keyed", "input": { "id": n.to_string() } });
        client.post(format!("{url}/v1/runs")).json(&body)
    };
    let again = |client: &reqwest::Client, url: &str, _: u64| {
        let body = json!({ "workflow": "one_step_keyed", "input": { "id": "taken" } });
        client.post(format!("{url}/v1/runs")).json(&body)
    };
    let (_, admitted) = server.load(clients, total, first, run_id).await?;
    let conflict = |status, answer: Value| {
        ensure!(status == 409, "a duplicate was answered with {status}: {answer}");
        let owner = answer["error"]["conflicting_run_id"].as_str();
        Ok(owner.context("a conflict without its owner")?.to_owned())
    };
    let (owners, refused) = server.load(clients, total, again, conflict).await?;
    ensure!(
        owners.iter().all(|id| *id == owner.as_str()),
        "a conflict named another owner"
    );
    let note = format!(
        "{clients} clients, one token; every answer named the one owner; bare: admitted starts, of which a \
         duplicate takes {:.0} % of the time",
        refused / admitted * 100.0
    );
    let (value, bare) = (total as f64 / refused, total as f64 / admitted);
    Ok(vec![Scenario::Duplicates.figure(
        "conflicts",
        value,
        "answers/s",
        Some(bare),
        note,
    )])
}

/// Hears what guests log.
#[derive(Clone)]
struct Ear(Arc<watch::Sender<u64>>);

impl<S: tracing::Subscriber> Layer<S> for Ear {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "onemark::guest" {
            self.0.send_modify(|heard| *heard += 1);
        }
    }
}

async fn deliver(plan: &Plan) -> Result<Vec<Figure>> {
    let ear = Ear(Arc::new(watch::Sender::new(0)));
    let mut heard = ear.0.subscribe();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(ear))
        .context("`deliver` listens to the guest's log, and something else does already")?;
    let lab = Lab::open(plan, EngineConfig::default()).await?;
    let rounds = plan.count.unwrap_or(500);
    let run = lab.start("relay", json!({}), Some("bench:relay")).await?;
    let mut times = Vec::new();
    let before = bare::commits_per_second(lab.folder())?;
    for round in 1..=rounds {
        suspended_at(&lab, &run).await?;
        let began = Instant::now();
        lab.deliver("bench:relay", json!(round)).await?;
        heard.wait_for(|heard| *heard == round).await?;
        times.push(began.elapsed());
    }
    let commit = 1.0 / mean(before, bare::commits_per_second(lab.folder())?);
    suspended_at(&lab, &run).await?;
    lab.deliver("bench:relay", json!(0)).await?;
    lab.completed(&run).await?;
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64();
    let note = format!(
        "from the request until the workflow's next step runs; median {}, 99th percentile {}, a bare commit {}",
        micros(at(0.5)),
        micros(at(0.99)),
        micros(commit)
    );
    Ok(vec![
        Scenario::Deliver.figure("median", at(0.5) / commit, "commits' time", None, note),
        unread(&lab).await?,
    ])
}

/// Whether a delivery costs more when many wait to be read before it.
async fn unread(lab: &Lab) -> Result<Figure> {
    const DELIVERIES: usize = 10_000;
    const SPELL: usize = 1_000;
    lab.start_never("bench:unread").await?;
    let mut times = Vec::new();
    for n in 0..DELIVERIES {
        let began = Instant::now();
        lab.deliver("bench:unread", json!(n)).await?;
        times.push(began.elapsed());
    }
    let mean = |spell: &[Duration]| spell.iter().sum::<Duration>().as_secs_f64() / SPELL as f64;
    let (first, last) = (mean(&times[..SPELL]), mean(&times[DELIVERIES - SPELL..]));
    let note = format!(
        "{DELIVERIES} deliveries to a run that has not begun; the first {SPELL} take {} each, the last {}",
        micros(first),
        micros(last)
    );
    Ok(Scenario::Deliver.figure("last of many unread", last / first, "times the first", None, note))
}

async fn suspended_at(lab: &Lab, run: &RunId) -> Result<()> {
    while lab.engine.run(run).await?.status != RunStatus::Suspended {
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn replay(plan: &Plan) -> Result<Vec<Figure>> {
    let lab = Lab::open(plan, EngineConfig::default()).await?;
    let most = plan.count.unwrap_or(100_000);
    let mut figures = Vec::new();
    for steps in [1_000, 10_000, most] {
        let journal = bare::sequence_journal(&lab, steps);
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let report = verify(&lab.sandbox, &lab.component, &RunId::generate(), journal.clone()).await;
            ensure!(report.verdict == Verdict::Agrees, "replay: {:?}", report.verdict);
            best = best.min(Duration::from_micros(report.took_us));
        }
        let value = best.as_secs_f64() * 1e6 / steps as f64;
        let what = format!("{steps} steps");
        let note = "call and completion, best of three".to_owned();
        figures.push(Scenario::Replay.figure(what, value, "µs/step", None, note));
    }
    let steps = 2_000;
    let run = lab.start("fanout", json!({ "n": steps }), None).await?;
    lab.completed(&run).await?;
    let began = Instant::now();
    lab.engine.replay(&run, None).await?;
    let value = began.elapsed().as_secs_f64() * 1e6 / f64::from(steps);
    let note = "read from the database and verified too".to_owned();
    figures.push(Scenario::Replay.figure("from disk", value, "µs/step", None, note));
    Ok(figures)
}

async fn suspended(plan: &Plan) -> Result<Vec<Figure>> {
    let config = EngineConfig {
        idle: Duration::from_millis(100),
        ..EngineConfig::default()
    };
    let lab = Lab::open(plan, config).await?;
    let runs = plan.count.unwrap_or(10_000);
    // What the host holds whether or not runs wait: warm instances, caches.
    for n in 0..500 {
        lab.start("waits", json!({}), Some(&format!("warm:{n}"))).await?;
    }
    lab.engine.idle().await;
    let before = resident_bytes()?;
    for n in 0..runs {
        lab.start("waits", json!({}), Some(&format!("bench:{n}"))).await?;
    }
    lab.engine.idle().await;
    let grown = resident_bytes()?.saturating_sub(before);
    let note = format!("{runs} runs wait, none resident; {} bytes a run", grown / runs);
    let value = grown as f64 / f64::from(1 << 20);
    Ok(vec![
        Scenario::Suspended.figure("memory", value, "MiB", None, note),
    ])
}

async fn sleeping(plan: &Plan) -> Result<Vec<Figure>> {
    const DUE: u64 = 10_000;
    const NAP: Duration = Duration::from_secs(60 * 60);
    let config = EngineConfig {
        idle: Duration::from_millis(100),
        ..EngineConfig::default()
    };
    let runs = plan.count.unwrap_or(100_000).max(DUE);
    let clock = Arc::new(ManualClock::new(1_800_000_000_000));
    let lab = Lab::with_clock(plan, config, clock.clone()).await?;
    let mut due = Vec::new();
    for n in 0..runs {
        let nap = if n < DUE { NAP } else { 100 * NAP };
        let input = json!({ "ms": nap.as_millis() as u64 });
        let run = lab.start("sleeps", input, None).await?;
        due.extend((n < DUE).then_some(run));
    }
    lab.engine.idle().await;
    let memory = resident_bytes()? as f64 / f64::from(1 << 20);
    let (lab, ready) = lab.restart().await?;

    let began = Instant::now();
    clock.advance(NAP);
    // From the first one on, some are at work until all have ended.
    lab.completed(&due[0]).await?;
    lab.engine.idle().await;
    let woken = DUE as f64 / began.elapsed().as_secs_f64();
    for run in &due {
        lab.completed(run).await?;
    }
    let server = Server::start(&lab).await?;
    let began = Instant::now();
    server.load(plan.clients, DUE, one_step, run_id).await?;
    lab.engine.idle().await;
    let started = DUE as f64 / began.elapsed().as_secs_f64();
    let figure = |what, value, unit, bare, note: &str| {
        Scenario::Sleeping.figure(what, value, unit, bare, note.to_owned())
    };
    let of = format!("{runs} runs sleep; all of this process");
    Ok(vec![
        figure("memory", memory, "MiB", None, &of),
        figure(
            "restart",
            ready.as_secs_f64() * 1e3,
            "ms",
            None,
            "until requests are answered",
        ),
        figure(
            "wake-ups",
            woken,
            "runs/s",
            Some(started),
            "10000 due at once, until they are completed; bare: starts over HTTP beside these sleepers",
        ),
    ])
}

/// Resident memory of this process.
fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB"));
    Ok(kilobytes.context("no VmRSS")?.trim().parse::<u64>()? << 10)
}

//! The demo's story, section by section.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::{JoinSet, spawn_blocking};

use super::folder::Folder;
use super::host::{Api, Entry, Host, Place, Start, text, within};
use super::outside::{Counts, Desk, Outside};
use super::screen::Screen;
use crate::guest_build::{BuildOptions, build_component};

/// What the demo works with.
pub struct Demo {
    /// The `onemark` program.
    pub program: PathBuf,
    /// The folder of the order example.
    pub example: PathBuf,
    /// Whether the folder with the database and the components stays.
    pub keep: bool,
}

const WORKFLOW: &str = "process_order";
const TOKEN: &str = "order:42";
/// The key that the example's `charge` step makes from its data.
const CHARGE_KEY: &str = "charge:42";
const CLIENTS: usize = 20;

/// What the outside should have in its book at the end, in this order.
const NOTES: [&str; 5] = [
    "two blue mugs",
    "make it three",
    "gift wrap, please",
    "ring twice",
    "that is all",
];

/// Tells the story; prints to stdout.
///
/// # Errors
/// When something is not as promised, or cannot be done at all.
pub async fn tell(demo: &Demo) -> Result<()> {
    let began = Instant::now();
    let folder = Folder::new(demo.keep)?;
    let log = folder.path().join("host.log");
    let told = act(demo, folder.path(), &log, began).await;
    if told.is_err()
        && let Some(lines) = last_lines(&log)
    {
        eprintln!("{lines}\nThese are the last lines that the host logged.");
    }
    told
}

fn last_lines(log: &Path) -> Option<String> {
    let log = fs::read_to_string(log).ok()?;
    let lines: Vec<_> = log.lines().collect();
    let last = lines[lines.len().saturating_sub(20)..].join("\n");
    (!last.is_empty()).then_some(last)
}

async fn act(demo: &Demo, folder: &Path, log: &Path, began: Instant) -> Result<()> {
    let mut screen = Screen::new();
    screen.title("One order: its duplicates, a crash, a replay")?;
    let components = build(&mut screen, &demo.example, folder).await?;
    let built = Instant::now();

    let outside = Outside::start()
        .await
        .context("could not start the outside service")?;
    let place = Place {
        program: demo.program.clone(),
        database: folder.join("onemark.db"),
        log: log.to_owned(),
        allow_http: outside.authority(),
    };
    let host = serve(&mut screen, &place, &components).await?;
    let run_id = start(&mut screen, &host, &outside).await?;
    send_updates(&mut screen, &host, &outside, &run_id).await?;
    let host = crash(&mut screen, host, &place, &outside, &run_id).await?;
    count(&mut screen, &outside.counts())?;
    journal(&mut screen, &host, &place, &run_id).await?;
    replay(&mut screen, &host, &place, &run_id).await?;
    replay_changed(&mut screen, &host, &place, &run_id, &components).await?;
    drop(host);

    next(&mut screen, demo, folder, &run_id)?;
    screen.title(&format!(
        "\nEverything as promised, in {:.1} s, and {:.1} s for the builds.",
        built.elapsed().as_secs_f32(),
        (built - began).as_secs_f32(),
    ))
}

// ---- 1: build ---------------------------------------------------------------------------------------

struct Components {
    order: PathBuf,
    changed: PathBuf,
}

async fn build(screen: &mut Screen, example: &Path, folder: &Path) -> Result<Components> {
    screen.section("Build the workflow, and a changed version of it for later")?;
    let (from, to) = (example.to_owned(), folder.to_owned());
    let building = spawn_blocking(move || build_both(&from, &to));
    let components = screen.busy("cargo builds for wasm32-wasip2", building).await??;
    let bytes = fs::metadata(&components.order)?.len();
    screen.fact(&format!(
        "examples/order is a WebAssembly component of {} KiB",
        bytes / 1024
    ))?;
    screen.fact(
        "so is examples/order/changed, the same source, which notes one thing more before it charges",
    )?;
    Ok(components)
}

/// Builds both versions; they share their dependencies.
fn build_both(example: &Path, folder: &Path) -> Result<Components> {
    let quiet = BuildOptions {
        quiet: true,
        ..BuildOptions::default()
    };
    let order = build_component(example, &quiet)?;
    let changed = build_component(&example.join("changed"), &quiet)?;
    // Copies, since another build may write over cargo's files.
    let copy = |from: &Path, name: &str| -> Result<PathBuf> {
        let to = folder.join(name);
        fs::copy(from, &to).with_context(|| format!("could not copy `{}`", from.display()))?;
        Ok(to)
    };
    Ok(Components {
        order: copy(&order, "order.wasm")?,
        changed: copy(&changed, "changed.wasm")?,
    })
}

// ---- 2: serve ---------------------------------------------------------------------------------------

async fn serve(screen: &mut Screen, place: &Place, components: &Components) -> Result<Host> {
    screen.section("Start a host and load the component")?;
    let allow = &place.allow_http;
    screen.command(&format!("onemark serve --db onemark.db --allow-http {allow}"))?;
    let host = screen.busy("starting the host", Host::start(place)).await?;
    screen.fact(&format!("process {} listens at {}", host.pid(), host.api.url))?;
    let component = fs::read(&components.order)?;
    let deployed = screen
        .busy("compiling the component", host.api.deploy("order", component))
        .await?;
    let digest = text(&deployed, "digest")?;
    let digest = digest.get(..12).unwrap_or(&digest);
    screen.fact(&format!(
        "component {digest} is deployed as `order`, workflow `{WORKFLOW}`"
    ))?;
    Ok(host)
}

// ---- 3: start ---------------------------------------------------------------------------------------

fn order(outside: &Outside) -> Value {
    json!({ "order": { "id": "42", "note": NOTES[0], "amount": 4200, "outside": outside.url() } })
}

/// Many clients want to start the order; one run does.
async fn start(screen: &mut Screen, host: &Host, outside: &Outside) -> Result<String> {
    screen.section(&format!("Start order 42, {CLIENTS} times at once"))?;
    // Keeps the first step, and with it the whole run, from going on until the next section lets it.
    outside.hold_next(Desk::Notes);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (api, order) = (host.api.clone(), order(outside));
        clients.spawn(async move { api.start(WORKFLOW, &order).await });
    }
    let (mut started, mut owners) = (Vec::new(), Vec::new());
    while let Some(answer) = clients.join_next().await {
        match answer?? {
            Start::Started { run_id } => started.push(run_id),
            Start::Conflict { owner } => owners.push(owner),
        }
    }
    ensure!(
        started.len() == 1,
        "{} runs were started instead of one",
        started.len()
    );
    let run_id = started.remove(0);
    ensure!(
        owners.iter().all(|owner| *owner == run_id),
        "a conflict names another run"
    );
    ensure!(host.api.runs().await?.len() == 1, "there is more than one run");
    screen.fact(&format!("1 × 201 Created: run {run_id}"))?;
    screen.fact(&format!(
        "{} × 409 hook_conflict: `{TOKEN}` is held by that run",
        owners.len()
    ))?;
    Ok(run_id)
}

// ---- 4: update --------------------------------------------------------------------------------------

fn update(note: &str, last: bool) -> Value {
    json!({ "note": note, "last": last })
}

/// What an API route does with an order: it starts the run; when there is one already it delivers to that.
/// Either way its client learns the run's id.
async fn start_or_deliver(api: &Api, order: &Value, update: &Value) -> Result<Value> {
    match api.start(WORKFLOW, order).await? {
        Start::Started { run_id } => Ok(json!({ "run_id": run_id, "started": true })),
        Start::Conflict { .. } => {
            let (run_id, _) = api.deliver(TOKEN, update).await?;
            Ok(json!({ "run_id": run_id, "started": false }))
        }
    }
}

/// Updates reach the run before its workflow has opened the hook, by a duplicate start, and afterwards.
async fn send_updates(screen: &mut Screen, host: &Host, outside: &Outside, run_id: &str) -> Result<()> {
    screen.section("Send updates, one of them with a duplicate of the order")?;
    within("the first step is at work", outside.held()).await?;
    let (owner, seq) = host.api.deliver(TOKEN, &update(NOTES[1], false)).await?;
    ensure!(owner == run_id, "the update went to run {owner}");
    screen.fact(&format!(
        "an update before the workflow has opened its hook: kept, as entry {seq}"
    ))?;

    let routed = start_or_deliver(&host.api, &order(outside), &update(NOTES[2], false)).await?;
    ensure!(
        routed == json!({ "run_id": run_id, "started": false }),
        "the route answered {routed}"
    );
    screen.fact("an update with a duplicate of the order: 409, so it goes to the owner; the client gets")?;
    screen.output(&routed.to_string())?;

    outside.release();
    within("the workflow waits at its hook", suspended(&host.api, run_id)).await??;
    ensure!(outside.counts().notes.len() == 3, "the updates are not noted");
    host.api.deliver(TOKEN, &update(NOTES[3], false)).await?;
    within(
        "the update is noted",
        outside.until(|counts| counts.notes.len() == 4),
    )
    .await?;
    screen.fact("an update while the workflow waits at its hook: read at once")
}

/// Returns once the run rests: its workflow has read what there was, and waits for more. Nothing tells when, so
/// this looks again and again.
async fn suspended(api: &Api, run_id: &str) -> Result<()> {
    while api.run(run_id).await?["status"] != "suspended" {}
    Ok(())
}

// ---- 5: crash ---------------------------------------------------------------------------------------

/// Kills the host between a step's effect and the saving of its result, and starts another.
async fn crash(
    screen: &mut Screen,
    host: Host,
    place: &Place,
    outside: &Outside,
    run_id: &str,
) -> Result<Host> {
    screen.section("Kill the host in the middle of a step")?;
    outside.hold_next(Desk::Charges);
    host.api.deliver(TOKEN, &update(NOTES[4], true)).await?;
    let held = within("the bank has taken the charge", outside.held()).await?;
    let before = within(
        "the attempt is in the journal",
        attempt_journaled(&host.api, run_id),
    );
    let before = before.await??;
    ensure!(
        held.charges.len() == 1,
        "the bank took {} charges",
        held.charges.len()
    );
    screen.fact("after the last update the bank has taken the charge; its answer is not there yet")?;
    let pid = host.pid();
    host.kill()?;
    outside.release();
    screen.fact(&format!(
        "process {pid} is killed with SIGKILL: the result is not saved"
    ))?;

    let host = screen.busy("starting the host again", Host::start(place)).await?;
    screen.fact(&format!("process {} goes on from the same database", host.pid()))?;
    let result = screen.busy("the run goes on", host.api.result(run_id)).await?;
    ensure!(
        result["status"] == "completed",
        "the run has not completed: {result}"
    );
    let after = host.api.journal(run_id).await?;
    ensure!(
        after.starts_with(&before),
        "the journal has changed where it was written already"
    );
    let saved = check_steps(&before, &after)?;
    screen.fact(&format!(
        "{saved} saved steps did not run again; `charge` did, with the same key"
    ))?;
    screen.fact(&format!("the run has completed with {}", result["output"]))?;
    Ok(host)
}

/// Returns the journal once it holds that an attempt of the charge began. That is written while the attempt
/// runs, and nothing outside tells when, so this looks again and again.
async fn attempt_journaled(api: &Api, run_id: &str) -> Result<Vec<Entry>> {
    loop {
        let entries = api.journal(run_id).await?;
        let charge = entries
            .iter()
            .find(|entry| entry.fields.get("step") == Some(&"charge".into()));
        let begun = entries.last().filter(|entry| entry.event == "attempt_started");
        if charge
            .zip(begun)
            .is_some_and(|(charge, begun)| charge.call() == begun.call())
        {
            return Ok(entries);
        }
    }
}

/// Counts the steps whose results were saved before the crash, and checks that each ran once, and the one
/// that was cut off twice.
fn check_steps(before: &[Entry], after: &[Entry]) -> Result<usize> {
    let attempts = |call: u64| {
        let begun = |entry: &&Entry| entry.event == "attempt_started" && entry.call() == Some(call);
        after.iter().filter(begun).count()
    };
    let saved: Vec<_> = before
        .iter()
        .filter(|entry| entry.event == "step_completed")
        .filter_map(Entry::call)
        .collect();
    for call in &saved {
        ensure!(attempts(*call) == 1, "call {call} was saved, and ran again");
    }
    let cut_off = before
        .last()
        .and_then(Entry::call)
        .context("no step was cut off")?;
    ensure!(
        attempts(cut_off) == 2,
        "the step cut off had {} attempts",
        attempts(cut_off)
    );
    Ok(saved.len())
}

// ---- 6: count ---------------------------------------------------------------------------------------

/// What the outside saw, which no journal can embellish.
fn count(screen: &mut Screen, counts: &Counts) -> Result<()> {
    screen.section("Count the marks outside")?;
    let requests = &counts.charge_requests;
    ensure!(requests.len() == 2, "the bank got {} requests", requests.len());
    let keyed = requests.iter().all(|request| request.key == CHARGE_KEY);
    ensure!(keyed, "the bank got other keys: {requests:?}");
    let attempts: Vec<_> = requests.iter().map(|request| request.attempt).collect();
    ensure!(attempts == [1, 2], "the attempts at the charge are {attempts:?}");
    ensure!(
        counts.charges.len() == 1,
        "the bank took {} charges",
        counts.charges.len()
    );
    screen.fact(&format!(
        "bank      2 requests  1 charge   attempts 1 and 2, key `{CHARGE_KEY}`"
    ))?;

    let notes: Vec<_> = counts.notes.iter().map(|note| note.text.as_str()).collect();
    ensure!(notes == NOTES, "the notes are {notes:?}");
    ensure!(
        counts.note_requests == 5,
        "notes got {} requests",
        counts.note_requests
    );
    screen.fact(&format!("notes     5 requests  5 notes    {}", notes.join(" · ")))?;

    let ids: Vec<_> = counts.invoices.keys().map(String::as_str).collect();
    ensure!(ids.len() == 1, "the invoices are {ids:?}");
    ensure!(
        counts.invoice_requests == 1,
        "invoices got {} requests",
        counts.invoice_requests
    );
    screen.fact(&format!("invoices  1 request   1 invoice  {}", ids[0]))
}

// ---- 7 to 9: look -----------------------------------------------------------------------------------

async fn journal(screen: &mut Screen, host: &Host, place: &Place, run_id: &str) -> Result<()> {
    screen.section("Look at the run's journal")?;
    let printed = onemark_command(screen, host, place, &["journal", run_id]).await?;
    ensure!(
        printed.code == Some(0),
        "`onemark journal` failed: {}",
        printed.errors
    );
    screen.output(&printed.output)
}

/// The component makes the same calls again, and gets the answers from the journal.
async fn replay(screen: &mut Screen, host: &Host, place: &Place, run_id: &str) -> Result<()> {
    screen.section("Replay it: the workflow against its journal, without effects")?;
    let printed = onemark_command(screen, host, place, &["replay", run_id]).await?;
    ensure!(printed.code == Some(0), "`onemark replay` failed: {printed:?}");
    screen.output(&printed.output)
}

/// The exit code of a replay that found a difference.
const DIVERGED: i32 = 4;

/// The changed version notes one thing more before it charges.
async fn replay_changed(
    screen: &mut Screen,
    host: &Host,
    place: &Place,
    run_id: &str,
    components: &Components,
) -> Result<()> {
    screen.section("Replay it with the changed workflow")?;
    let changed = components.changed.to_string_lossy();
    let arguments = ["replay", run_id, "--component", &changed];
    let printed = onemark_command(screen, host, place, &arguments).await?;
    ensure!(
        printed.code == Some(DIVERGED),
        "`onemark replay` found no difference: {printed:?}"
    );
    // Calls that matched are above already; the verdict follows their table.
    let verdict = printed.output.split_once("\n\n").map(|(_, verdict)| verdict);
    screen.output(verdict.unwrap_or(&printed.output))?;
    let report = host.api.replay(run_id, fs::read(&components.changed)?).await?;
    let (at, line) = source_line(&report).context("the difference has no source line")?;
    screen.fact(&format!("the difference is at {at}: {line}"))
}

/// Where in the source a replay found the guest to diverge, and what stands there.
fn source_line(report: &Value) -> Option<(String, String)> {
    let source = report["verdict"]["diverged"]["source"].as_str()?;
    let (path, number) = source.rsplit_once(':')?;
    let code = fs::read_to_string(path).ok()?;
    let line = code.lines().nth(number.parse::<usize>().ok()?.checked_sub(1)?)?;
    let file = Path::new(path).file_name()?.to_string_lossy();
    Some((format!("{file}:{number}"), line.trim().to_owned()))
}

#[derive(Debug)]
struct Printed {
    code: Option<i32>,
    output: String,
    errors: String,
}

/// Runs a command against the host, as a user would; shows it, with file names for paths.
async fn onemark_command(screen: &Screen, host: &Host, place: &Place, arguments: &[&str]) -> Result<Printed> {
    let shown = arguments
        .iter()
        .map(|argument| match Path::new(argument).file_name() {
            Some(name) => name.to_string_lossy(),
            None => (*argument).into(),
        });
    screen.command(&format!("onemark {}", shown.collect::<Vec<_>>().join(" ")))?;
    let mut command = Command::new(&place.program);
    command
        .args(arguments)
        .env("ONEMARK_URL", &host.api.url)
        .stdin(Stdio::null());
    let ended = within("the command has ended", command.kill_on_drop(true).output());
    let output = screen.busy("at work", ended).await??;
    Ok(Printed {
        code: output.status.code(),
        output: String::from_utf8_lossy(&output.stdout).into_owned(),
        errors: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

// ---- 10: next ---------------------------------------------------------------------------------------

fn next(screen: &mut Screen, demo: &Demo, folder: &Path, run_id: &str) -> Result<()> {
    screen.section("Try next")?;
    screen.command("cargo install --path host             # puts `onemark` on your path")?;
    if demo.keep {
        screen.command(&format!(
            "onemark serve --db {}",
            folder.join("onemark.db").display()
        ))?;
        screen.command(&format!("onemark runs show {run_id}"))?;
    } else {
        screen.command("onemark demo --keep                   # keeps this run, to look at")?;
    }
    screen.command("onemark build examples/order          # then change the workflow, and build again")?;
    screen.command("onemark bench                         # this machine beside its bare limits")
}

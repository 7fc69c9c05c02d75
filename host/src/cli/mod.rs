//! The command line. Only `serve` builds an engine; what looks at runs or changes them asks a server, over the
//! same API that everybody has.

mod bench;
mod blobs;
mod build;
mod client;
mod components;
mod deliver;
mod demo;
mod deploy;
mod emit;
mod fork;
mod hints;
mod hooks;
mod inspect;
mod journal;
mod logs;
mod output;
mod replay;
mod rerun;
mod runs;
mod schedules;
mod serve;
mod start;
mod time;
mod workflows;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use serde_json::json;

use crate::api::BindError;
use client::{Client, ClientError};
use output::Output;

/// Durable workflows as WebAssembly components: every piece of work leaves a single mark.
#[derive(Parser)]
#[command(name = "onemark", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every subcommand takes.
#[derive(clap::Args)]
#[command(next_help_heading = "Everywhere")]
struct Global {
    /// How results are printed: for people, or as one JSON document
    #[arg(short, long, global = true, value_enum, default_value_t)]
    output: Output,
    /// Where the server is
    #[arg(
        long,
        global = true,
        env = "ONEMARK_URL",
        default_value = "http://127.0.0.1:7070"
    )]
    url: String,
}

impl Global {
    fn client(&self) -> anyhow::Result<Client> {
        Client::new(&self.url)
    }

    fn json(&self) -> bool {
        self.output == Output::Json
    }
}

#[derive(Subcommand)]
enum Command {
    /// Build a workflow crate into a component
    Build(build::Args),
    /// Look at a component: its workflows and steps, and what it asks its host for
    Inspect(inspect::Args),
    /// Run the host: carry runs on and serve the API
    Serve(serve::Args),
    /// Give a component to the server, so that its workflows can start
    Deploy(deploy::Args),
    /// Look at what is deployed, or remove it
    #[command(subcommand)]
    Components(components::Command),
    /// List what is deployed and can be started, or show the input of one workflow
    Workflows(workflows::Args),
    /// Start a run and claim its hooks, in one step
    Start(start::Args),
    /// Deliver a payload to the run that holds a token
    Deliver(deliver::Args),
    /// Say that something happened: every workflow that waits for it starts
    Emit(emit::Args),
    /// Look at runs, decide about those that are blocked, or move one to another component
    #[command(subcommand)]
    Runs(runs::Command),
    /// Look at hooks, or free one
    #[command(subcommand)]
    Hooks(hooks::Command),
    /// Look at schedules, or start the runs of a time that has passed
    #[command(subcommand)]
    Schedules(schedules::Command),
    /// Fetch large values that steps wrote
    #[command(subcommand)]
    Blobs(blobs::Command),
    /// Show what happened in a run
    Journal(journal::Args),
    /// Verify a run's journal against a component, with no effects
    Replay(replay::Args),
    /// Measure this machine beside its bare limits
    Bench(bench::Args),
    /// See an order survive duplicates, a kill and a changed build
    Demo(demo::Args),
}

/// How the program ends.
enum Exit {
    Done = 0,
    Error = 1,
    /// The command line is wrong; the parser has it so too.
    Usage = 2,
    HookConflict = 3,
    ReplayDiverged = 4,
    /// The run failed, was cancelled or is blocked.
    RunFailed = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Arguments that are each as they should be, and not together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(&'static str);

/// Does what the command line says.
pub async fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    let done = match command {
        Command::Build(args) => build::run(args, &global).await,
        Command::Inspect(args) => inspect::run(args, global.json()).await,
        Command::Serve(args) => serve::run(args, &global).await,
        Command::Deploy(args) => deploy::run(args, &global).await,
        Command::Components(command) => components::run(command, &global).await,
        Command::Workflows(args) => workflows::run(args, &global).await,
        Command::Start(args) => start::run(args, &global).await,
        Command::Deliver(args) => deliver::run(args, &global).await,
        Command::Emit(args) => emit::run(args, &global).await,
        Command::Runs(command) => runs::run(command, &global).await,
        Command::Hooks(command) => hooks::run(command, &global).await,
        Command::Schedules(command) => schedules::run(command, &global).await,
        Command::Blobs(command) => blobs::run(command, &global).await,
        Command::Journal(args) => journal::run(args, &global).await,
        Command::Replay(args) => replay::run(args, &global).await,
        Command::Bench(args) => bench::run(args, &global).await,
        Command::Demo(args) => demo::run(args).await,
    };
    done.unwrap_or_else(|error| report(&error, &global))
}

/// Tells people on stderr what went wrong and what to do; with `-o json` also programs on stdout.
fn report(error: &anyhow::Error, global: &Global) -> ExitCode {
    let broken_pipe = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    if error.downcast_ref::<io::Error>().is_some_and(broken_pipe) {
        // Whoever read our output has enough.
        return Exit::Done.into();
    }
    output::error(&format!("{error:#}"));
    let refused = error.downcast_ref::<ClientError>();
    let hint = match (refused, error.downcast_ref::<BindError>()) {
        (Some(refused), _) => refused.hint(),
        (_, Some(BindError::NotLoopback(_))) => Some("listen on 127.0.0.1 or [::1]"),
        (_, Some(BindError::InUse(_))) => Some("stop it, or choose another port with `--listen`"),
        _ => None,
    };
    if let Some(hint) = hint {
        output::hint(hint);
    }
    let code = refused.map_or("failed", ClientError::code);
    if global.json() {
        let document = match refused.and_then(ClientError::document) {
            Some(document) => document.to_owned(),
            None => json!({ "error": { "code": code, "message": format!("{error:#}") } }).to_string(),
        };
        // There is nobody left to tell that this failed.
        let _ = output::print(&document);
    }
    match code {
        "hook_conflict" => Exit::HookConflict.into(),
        _ if error.is::<Usage>() => Exit::Usage.into(),
        _ => Exit::Error.into(),
    }
}

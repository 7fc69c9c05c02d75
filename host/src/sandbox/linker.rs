//! The whole list of what guests are granted.

use wasmtime::component::{Linker, Val};
use wasmtime::{Engine, FrameInfo, StoreContextMut, WasmBacktrace};

use super::bindings::Workflow;
use super::guest::{Guest, HasGuest};
use super::host::{promises, steps};
use super::trap::Refused;

/// The version of WASI 0.2 whose functions are replaced below: the one that the WASI library names.
const WASI: &str = "0.2.12";

/// What workflow code would reach through WASI and must not: it would be lost, repeated or different in a
/// replay. Interface, function, and what the error says of it.
const DENIED: &[(&str, &str, &str)] = &[
    ("cli/environment", "get-environment", "read environment variables"),
    ("cli/exit", "exit", "exit the process"),
    ("clocks/monotonic-clock", "subscribe-instant", "block on a timer"),
    ("clocks/monotonic-clock", "subscribe-duration", "block on a timer"),
    ("filesystem/preopens", "get-directories", "open files"),
    ("sockets/instance-network", "instance-network", "use the network"),
    ("sockets/tcp-create-socket", "create-tcp-socket", "open sockets"),
    ("sockets/udp-create-socket", "create-udp-socket", "open sockets"),
    ("http/outgoing-handler", "handle", "send HTTP requests"),
];

/// For workflow instances: journaled calls, virtual time, seeded random.
pub fn workflow(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = step(engine)?;
    waits(&mut linker)?;
    for (interface, function, what) in DENIED {
        let mut instance = linker.instance(&format!("wasi:{interface}@{WASI}"))?;
        instance.func_new(function, move |store, _, _, results| {
            if *function == "get-environment" && is_panicking(&store) {
                results[0] = Val::List(Vec::new());
                return Ok(());
            }
            let instead = match *what {
                "block on a timer" => "use `onemark_sdk::sleep`, which survives restarts",
                "exit the process" => "return an error",
                _ => "do it in a `#[step]`",
            };
            Err(Refused(format!("workflow code cannot {what}; {instead}")).into())
        })?;
    }
    Ok(linker)
}

/// For attempts of closures: up to the closure a workflow, from there on a step. What workflow code is denied is
/// not denied here: the workflow's own instance has passed that code.
pub fn replica(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = step(engine)?;
    waits(&mut linker)?;
    let mut steps = linker.instance("onemark:workflow/steps@0.1.0")?;
    steps.func_wrap("begin", |store, (name, options): (String, String)| {
        Ok((steps::begin(store, &name, &options)?,))
    })?;
    Ok(linker)
}

/// `wait` needs the whole store.
fn waits(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    let mut promises = linker.instance("onemark:workflow/promises@0.1.0")?;
    promises.func_wrap_async("wait", |store, (): ()| {
        Box::new(async move { Ok((promises::wait(store).await?,)) })
    })
}

/// Whether Rust's standard library is about to report a panic. It looks for `RUST_BACKTRACE` before it does; were
/// that refused, nobody would learn of the panic.
fn is_panicking(store: &StoreContextMut<'_, Guest>) -> bool {
    let stack = WasmBacktrace::force_capture(store);
    let names = stack.frames().iter().filter_map(FrameInfo::func_name);
    names
        .map(|name| format!("{:#}", rustc_demangle::demangle(name)))
        .any(|name| name.starts_with("std::panicking::"))
}

/// For attempts of steps: real time and random, and what the operator granted.
pub fn step(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    Workflow::add_to_linker::<_, HasGuest>(&mut linker, |guest| guest)?;
    Ok(linker)
}

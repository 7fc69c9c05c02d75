//! What ended a guest that did not return.

use serde::Serialize;
use wasmtime::WasmBacktrace;

use super::limits::{MAX_HANDLES, OutOfMemory};
use super::logs::LastWords;
use super::sources::{Located, Sources};
use crate::journal::{MAX_MESSAGE_BYTES, shortened};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrapKind {
    /// A panic, or an instruction that Wasm forbids.
    Trap,
    OutOfFuel,
    OutOfMemory,
    StackOverflow,
    /// The guest asked for what its sandbox does not have, or broke a rule of the interface.
    Refused,
}

/// A guest's end by force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Trap {
    pub kind: TrapKind,
    pub message: String,
    /// `function (file:line)`, innermost first, the guest's own frames before those of libraries are
    /// left out.
    pub frames: Vec<String>,
}

/// Host code refuses what the guest asked for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refused(pub String);

/// The words of wasmtime, which has no type for it.
const NO_MORE_HANDLES: &str = "store handle limit exceeded";

fn too_many_handles() -> String {
    format!(
        "it holds more than {MAX_HANDLES} handles, of steps, timers, children and hooks in flight; work through many items \
         in parts (`for_each_bounded`), or start a child for each part"
    )
}

const MAX_FRAMES: usize = 20;

/// Names of generic functions have no bound of their own.
const MAX_FUNCTION_BYTES: usize = 256;

impl Trap {
    /// `words` are the guest's own about a panic, where it left some.
    pub(super) fn from_error(error: &wasmtime::Error, words: Option<LastWords>, sources: &Sources) -> Self {
        let told = |trap: String| match words {
            Some(LastWords::Panic(message)) => message,
            Some(LastWords::Stderr(text)) => format!("{trap}; its stderr ended with: {text}"),
            None => trap,
        };
        let (kind, message) = if let Some(out) = error.downcast_ref::<OutOfMemory>() {
            (TrapKind::OutOfMemory, out.to_string())
        } else if let Some(refused) = error.downcast_ref::<Refused>() {
            (TrapKind::Refused, refused.to_string())
        } else {
            match error.downcast_ref::<wasmtime::Trap>() {
                Some(wasmtime::Trap::OutOfFuel) => (
                    TrapKind::OutOfFuel,
                    "out of fuel: the code computed longer than its limit allows".to_owned(),
                ),
                Some(wasmtime::Trap::StackOverflow) => {
                    (TrapKind::StackOverflow, "call stack exhausted".to_owned())
                }
                Some(trap) => (TrapKind::Trap, told(trap.to_string())),
                None => match error.root_cause().to_string() {
                    text if text.contains(NO_MORE_HANDLES) => (TrapKind::Refused, too_many_handles()),
                    _ => (TrapKind::Trap, told(format!("{:#}", error.root_cause()))),
                },
            }
        };
        Self {
            kind,
            message: shortened(&message, MAX_MESSAGE_BYTES).into_owned(),
            frames: frames(error, sources),
        }
    }
}

/// The first source line of the guest's own code.
pub(super) fn source_of(error: &wasmtime::Error, sources: &Sources) -> Option<String> {
    let backtrace = error.downcast_ref::<WasmBacktrace>()?;
    located(backtrace, sources)
        .into_iter()
        .find_map(|(_, place)| place.filter(|place| is_own(place)))
}

fn frames(error: &wasmtime::Error, sources: &Sources) -> Vec<String> {
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else {
        return Vec::new();
    };
    let all = located(backtrace, sources);
    let own = |frame: &&(String, Option<String>)| frame.1.as_deref().is_some_and(is_own);
    // Where debug info tells the guest's own code apart, the rest is noise.
    let shown: Vec<_> = match all.iter().any(|frame| own(&frame)) {
        true => all.iter().filter(own).collect(),
        false => all.iter().collect(),
    };
    let text = |(function, place): &(String, Option<String>)| match place {
        Some(place) => format!("{function} ({place})"),
        None => function.clone(),
    };
    shown.into_iter().take(MAX_FRAMES).map(text).collect()
}

fn located(backtrace: &WasmBacktrace, sources: &Sources) -> Vec<(String, Option<String>)> {
    let lookup = sources.lookup();
    let mut all = Vec::new();
    for frame in backtrace.frames() {
        let name = demangled(frame.func_name().unwrap_or("<unknown>"));
        let symbols = frame
            .module_offset()
            .map(|position| lookup.at(position))
            .unwrap_or_default();
        if symbols.is_empty() {
            all.push((name.clone(), None));
        }
        for Located { function, place } in symbols {
            all.push((function.as_deref().map_or_else(|| name.clone(), demangled), place));
        }
    }
    all
}

fn demangled(name: &str) -> String {
    let name = format!("{:#}", rustc_demangle::demangle(name));
    shortened(&name, MAX_FUNCTION_BYTES).into_owned()
}

/// Paths of a guest's own sources, as against those of its libraries and language.
fn is_own(place: &str) -> bool {
    [
        "/rustc/",
        "/library/",
        "/.cargo/",
        "/registry/src/",
        "wasisdk://",
        "/debian/build/",
        "guest-sdk/",
        "onemark-sdk",
    ]
    .iter()
    .all(|foreign| !place.contains(foreign))
}

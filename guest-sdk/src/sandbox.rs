//! Which of the host's sandboxes this instance runs in.

use std::cell::Cell;

use crate::failure::{Failure, FailureKind};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sandbox {
    /// A native build, such as a unit test.
    None,
    Workflow,
    Step,
}

thread_local! {
    static CURRENT: Cell<Sandbox> = const { Cell::new(Sandbox::None) };
}

pub(crate) fn current() -> Sandbox {
    CURRENT.get()
}

/// The host calls one export per instance, so nothing ever leaves a sandbox again.
#[cfg(target_family = "wasm")]
pub(crate) fn enter(sandbox: Sandbox) {
    CURRENT.set(sandbox);
}

/// The guard of every durable call. `instead` says what to use in a step.
pub(crate) fn require_workflow(call: &str, instead: &str) -> Result<(), Failure> {
    let message = match current() {
        Sandbox::Workflow => return Ok(()),
        Sandbox::Step => format!("it is durable and works in workflow code only; {instead}"),
        Sandbox::None => "not in a workflow: only a workflow that the host runs can do this".into(),
    };
    Err(Failure::local(call, FailureKind::NotInStep, message))
}

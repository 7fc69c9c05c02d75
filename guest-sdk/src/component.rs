//! The exports of the component.

use crate::bindings::exports::onemark::workflow::guest::Guest;
use crate::bindings::onemark::workflow::context;
use crate::log::{self, Level};
use crate::manifest::{self, Outcome, StepDefinition, WorkflowDefinition};
use crate::operation::{Operation, WhenDropped};
use crate::sandbox::{self, Sandbox};
use crate::workflow::WorkflowError;
use crate::{__private, executor};

struct Component;

crate::bindings::export!(Component with_types_in crate::bindings);

impl Guest for Component {
    fn describe() -> String {
        report_panics();
        manifest::manifest()
    }

    fn run_workflow(name: String, input: String) -> Outcome {
        report_panics();
        sandbox::enter(Sandbox::Workflow);
        // The first promise of every run, so that versions that let workflows await it find it there.
        let _cancellation = Operation::new(context::cancellation(), WhenDropped::Release);
        let workflow = inventory::iter::<WorkflowDefinition>
            .into_iter()
            .find(|it| it.name == name);
        match workflow {
            Some(workflow) => executor::run(
                async {
                    let outcome = (workflow.run)(&input).await;
                    crate::child::awaited_children().await;
                    outcome
                },
                crate::bindings::onemark::workflow::promises::wait,
            ),
            None => Err(WorkflowError::new(format!("this component has no workflow `{name}`")).document()),
        }
    }

    fn run_step(name: String, input: String) -> Outcome {
        report_panics();
        sandbox::enter(Sandbox::Step);
        let step = inventory::iter::<StepDefinition>
            .into_iter()
            .find(|it| it.name == name);
        match step {
            Some(step) => wstd::runtime::block_on((step.run)(&input)),
            None => Err(__private::fatal_document(&format!(
                "this component has no step `{name}`"
            ))),
        }
    }
}

/// Reports a panic to the run's log, then traps.
///
/// The standard library's own hook writes to stderr, of which the host can tell no more than that these were the
/// guest's last words.
fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        log::log(Level::Error, panic);
        core::arch::wasm32::unreachable()
    }));
}

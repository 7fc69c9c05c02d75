//! Output for others to read while a run goes on.

use serde::Serialize;

use crate::bindings::onemark::workflow::streams;
use crate::failure::{Failure, FailureKind};
use crate::json::to_json;
use crate::sandbox::{self, Sandbox};

/// The run's output stream called `name`: ordered chunks that others read from an index, and follow as they come.
///
/// In **workflow code** a chunk is written once, whatever happens to the host: it travels with the run's next commit,
/// which comes when the workflow waits, and before the steps begin that it waits for.
///
/// In a **step**, also in a closure, a chunk is kept when `write` returns. Another attempt begins to count anew: its
/// n-th chunk of a stream stands for the n-th of the attempt before, and is not written when that was, whatever it
/// holds. So a step that writes the same in every attempt writes it once; of one that does not, the beginning is that
/// of the first attempt, and the rest of whichever got that far. Readers see with each chunk which attempt wrote it.
///
/// ```
/// # use onemark_sdk::prelude::*;
/// #[step]
/// async fn answer(question: &str) -> Result<String, StepFailed> {
///     let tokens = stream("tokens");
///     let mut whole = String::new();
///     for token in question.split(' ').rev() {
///         tokens.write(token)?;
///         whole.push_str(token);
///     }
///     Ok(whole)
/// }
/// ```
pub fn stream(name: &str) -> OutputStream<'_> {
    OutputStream { name }
}

/// An output stream of this run; see [`stream()`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a stream is there once something is written to it"]
pub struct OutputStream<'a> {
    name: &'a str,
}

impl OutputStream<'_> {
    /// Appends a chunk: any value, at most 64 KiB as JSON. In a native unit test it goes nowhere.
    ///
    /// # Errors
    ///
    /// `too_large` for a larger one, `not_json` for what JSON cannot hold, `invalid` when the stream's name is empty,
    /// longer than 255 bytes or holds a control character, and `stream_full` when the run has written as much as it
    /// may: workflow code 10,000 chunks, 8 MiB or to 32 streams; steps when the stream has 100,000 chunks, or the run
    /// 64 MiB or 64 streams. Nothing is written then.
    pub fn write<T: Serialize + ?Sized>(self, chunk: &T) -> Result<(), Failure> {
        let chunk = to_json(chunk)
            .map_err(|error| Failure::local(self.name, FailureKind::NotJson, error.to_string()))?;
        match sandbox::current() {
            Sandbox::None => Ok(()),
            Sandbox::Workflow | Sandbox::Step => {
                streams::write(self.name, &chunk).map_err(|document| Failure::untyped(self.name, &document))
            }
        }
    }
}

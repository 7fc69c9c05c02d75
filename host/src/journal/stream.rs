//! Output streams: chunks for others to read, in rows beside the journal. A replay reads nothing of them.

use std::sync::Arc;

use super::entry::CallNo;
use super::outcome::{Failure, FailureKind, checked_json};
use crate::ids::StreamName;

/// Largest chunk, in bytes of JSON.
pub const MAX_CHUNK_BYTES: usize = 64 << 10;

/// A chunk on its way into a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamWrite {
    pub stream: StreamName,
    /// The call of the step that writes; `None` for workflow code.
    pub call: Option<CallNo>,
    /// The step's attempt, from 1; 0 for workflow code.
    pub attempt: u32,
    /// Counts what this writer, whichever attempt of it, writes to this stream; from 0. A number is written once.
    pub number: u64,
    /// JSON.
    pub chunk: Arc<str>,
}

/// What a stream takes, whoever writes: the name, and a chunk that is JSON and not too large.
pub fn check_chunk(name: &str, chunk: &str) -> Result<StreamName, Failure> {
    let invalid = |text: String| Failure::new(FailureKind::Invalid, text);
    let name = StreamName::new(name).map_err(|error| invalid(error.to_string()))?;
    if chunk.len() > MAX_CHUNK_BYTES {
        let bytes = chunk.len();
        let text = format!("the chunk has {bytes} bytes; the limit is {MAX_CHUNK_BYTES}");
        return Err(Failure::new(FailureKind::TooLarge, text));
    }
    checked_json(chunk).map_err(|error| invalid(format!("the chunk is no JSON: {error}")))?;
    Ok(name)
}

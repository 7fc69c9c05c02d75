//! How an entry is written: its event as JSON, its body beside it, and a checksum that chains over both.

use sha2::{Digest as _, Sha256};

use super::entry::{Body, Event, Seq, Timestamp};
use crate::ids::Digest;

/// Version of what [`encode_event`] writes and [`chain`] hashes.
pub const ENTRY_FORMAT: u8 = 1;

/// An event that this build cannot read.
#[derive(Debug, thiserror::Error)]
#[error("journal entry cannot be read: {0}")]
pub struct CodecError(#[from] serde_json::Error);

/// The event as compact JSON.
///
/// # Errors
/// Only when metadata or a schema inside cannot be JSON.
pub fn encode_event(event: &Event) -> Result<Vec<u8>, CodecError> {
    Ok(serde_json::to_vec(event)?)
}

/// # Errors
/// When the bytes are not an event of a format that this build knows.
pub fn decode_event(bytes: &[u8]) -> Result<Event, CodecError> {
    Ok(serde_json::from_slice(bytes)?)
}

/// The checksum of an entry: over the one before, its position and time, the event as written, and the
/// body's length and digest. Entry 0 follows the digest of nothing, [`Digest`] of zeros.
pub fn chain(before: Digest, seq: Seq, at: Timestamp, event: &[u8], body: Option<&Body>) -> Digest {
    let mut hash = Sha256::new();
    hash.update([ENTRY_FORMAT]);
    hash.update(before.0);
    hash.update(seq.to_le_bytes());
    hash.update(at.to_le_bytes());
    hash.update((event.len() as u64).to_le_bytes());
    hash.update(event);
    if let Some(body) = body {
        hash.update(body.len.to_le_bytes());
        hash.update(body.digest.0);
    }
    Digest(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was written before a field was there reads as it was meant.
    #[test]
    fn entries_without_later_fields_are_read() {
        let failed = br#"{"attempt_failed":{"call":1,"attempt":2,"retry_at":3}}"#;
        let expected = Event::AttemptFailed {
            call: 1,
            attempt: 2,
            retry_at: Some(3),
            outcome_unknown: false,
        };
        assert_eq!(decode_event(failed).unwrap(), expected);
        assert_eq!(encode_event(&expected).unwrap(), failed);
        let completed = br#"{"step_completed":{"call":1,"attempt":2}}"#;
        let expected = Event::StepCompleted {
            call: 1,
            attempt: 2,
            resolved: false,
        };
        assert_eq!(decode_event(completed).unwrap(), expected);
        assert_eq!(encode_event(&expected).unwrap(), completed);
    }
}

//! What a workflow shows of itself: its run's tags and its chunks of output streams.

use std::collections::BTreeMap;

use super::calls::Found;
use super::{Replay, Result};
use crate::ids::{StreamName, Tags};
use crate::journal::divergence::Call;
use crate::journal::entry::{Event, NewEntry};
use crate::journal::outcome::{Failure, FailureKind};
use crate::journal::stream::{StreamWrite, check_chunk};

// Bounds of what workflow code writes. Of its own chunks alone, since what steps write comes at any time: whether a
// write is refused must be the same in every replay.
const MAX_CHUNKS: u64 = 10_000;
const MAX_BYTES: u64 = 8 << 20;
const MAX_STREAMS: usize = 32;

#[derive(Debug)]
pub(super) struct Output {
    /// As the guest has set them.
    tags: Tags,
    /// How many chunks the guest wrote to each stream.
    streams: BTreeMap<StreamName, u64>,
    chunks: u64,
    bytes: u64,
    /// How many of them the guest wrote before the run was forked: they are the other run's.
    copied: BTreeMap<StreamName, u64>,
    /// How many of its own the store holds from earlier activations.
    stored: BTreeMap<StreamName, u64>,
}

impl Output {
    pub fn new(tags: Tags) -> Self {
        Self {
            tags,
            streams: BTreeMap::new(),
            chunks: 0,
            bytes: 0,
            copied: BTreeMap::new(),
            stored: BTreeMap::new(),
        }
    }

    fn count(&mut self, stream: &StreamName, bytes: u64) -> std::result::Result<u64, Failure> {
        let full = |text: String| Err(Failure::new(FailureKind::StreamFull, text));
        if self.chunks >= MAX_CHUNKS {
            return full(format!("the workflow has written {MAX_CHUNKS} chunks, its limit"));
        }
        if self.bytes + bytes > MAX_BYTES {
            let mib = MAX_BYTES >> 20;
            return full(format!(
                "the workflow's chunks would have more than {mib} MiB, their limit"
            ));
        }
        if !self.streams.contains_key(stream) && self.streams.len() >= MAX_STREAMS {
            return full(format!("the workflow writes to {MAX_STREAMS} streams, its limit"));
        }
        self.chunks += 1;
        self.bytes += bytes;
        let count = self.streams.entry(stream.clone()).or_default();
        *count += 1;
        Ok(*count - 1)
    }
}

impl Replay {
    /// How many chunks of workflow code the store holds, by stream: the guest writes them again, and they are dropped.
    pub fn set_stored_chunks(&mut self, stored: BTreeMap<StreamName, u64>) {
        self.output.stored = stored;
    }

    /// Appends a chunk of workflow code to a stream. Neither numbered among the calls nor compared: the chunk is known
    /// by its place among those that the guest wrote to that stream.
    ///
    /// # Errors
    /// The failure that the guest is told, the same in every replay.
    pub fn write(&mut self, stream: &str, chunk: &str) -> std::result::Result<(), Failure> {
        let stream = check_chunk(stream, chunk)?;
        let counted = self.output.count(&stream, chunk.len() as u64)?;
        if self.is_copied() {
            self.output.copied.insert(stream, counted + 1);
            return Ok(());
        }
        let number = counted - self.output.copied.get(&stream).copied().unwrap_or(0);
        let stored = self.output.stored.get(&stream).copied().unwrap_or(0);
        // Nobody commits what a verification or a replica writes.
        if number >= stored && !self.verify && self.replica.is_none() {
            self.new.push(NewEntry::Write(StreamWrite {
                stream,
                call: None,
                attempt: 0,
                number,
                chunk: chunk.into(),
            }));
        }
        Ok(())
    }

    /// Gives the run a tag. No call where it has that value.
    ///
    /// # Errors
    /// The inner one is what the guest is told, the same in every replay.
    pub fn set_tag(&mut self, name: &str, value: &str) -> Result<std::result::Result<(), Failure>> {
        if self.output.tags.get(name) == Some(value) {
            return Ok(Ok(()));
        }
        let tags = match self.output.tags.with(name, value) {
            Ok(tags) => tags,
            Err(error) => return Ok(Err(Failure::new(FailureKind::Invalid, error.to_string()))),
        };
        let (name, value) = (name.to_owned(), value.to_owned());
        let found = self.find(
            |entry| match &entry.event {
                Event::Tagged {
                    name: recorded,
                    value: set,
                    ..
                } => (recorded, set) == (&name, &value),
                _ => false,
            },
            || Call::SetTag {
                name: name.clone(),
                value: value.clone(),
            },
        )?;
        if let Found::New(call) = found {
            self.new
                .push(NewEntry::event(Event::Tagged { call, name, value }));
        }
        self.output.tags = tags;
        self.no_promise_for_call();
        Ok(Ok(()))
    }
}

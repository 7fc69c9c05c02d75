//! Output streams: what attempts write, and who reads along.

use tokio::sync::watch;

use super::Engine;
use super::error::{Error, Result};
use crate::ids::{RunId, StreamName};
use crate::journal::RunStatus;
use crate::store::{Chunk, StreamInfo};

/// Chunks that are read at a time by who follows.
const AT_ONCE: usize = 100;

impl Engine {
    /// The output streams of a run, by name.
    ///
    /// # Errors
    /// [`Error::RunNotFound`].
    pub async fn streams_of(&self, run: &RunId) -> Result<Vec<StreamInfo>> {
        let streams = self.0.store.streams_of(run).await?;
        streams.ok_or_else(|| Error::RunNotFound(run.clone()))
    }

    /// At most `limit` chunks of a stream from index `from` on; none of a stream that was not written to yet.
    ///
    /// # Errors
    /// [`Error::RunNotFound`].
    pub async fn chunks(
        &self,
        run: &RunId,
        stream: &StreamName,
        from: u64,
        limit: usize,
    ) -> Result<Vec<Chunk>> {
        let chunks = self.0.store.chunks(run, stream, from, limit).await?;
        chunks.ok_or_else(|| Error::RunNotFound(run.clone()))
    }

    /// Reads a stream from index `from` on, and what is written to it from now on.
    ///
    /// # Errors
    /// [`Error::RunNotFound`].
    pub async fn follow(&self, run: RunId, stream: StreamName, from: u64) -> Result<Following> {
        let changes = self.0.registry.watch_output(&run);
        self.run(&run).await?;
        Ok(Following {
            engine: self.clone(),
            run,
            stream,
            next: from,
            changes,
        })
    }
}

/// A stream that is read as it is written.
pub struct Following {
    engine: Engine,
    run: RunId,
    stream: StreamName,
    /// Index of the next chunk.
    next: u64,
    changes: watch::Receiver<()>,
}

/// What comes next in a stream that is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Followed {
    Chunks(Vec<Chunk>),
    /// The run has ended, and everything is read.
    Ended(RunStatus),
    /// This host stops; the stream goes on at the next start.
    Stopping,
}

impl Following {
    /// Waits for more.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn next(&mut self) -> Result<Followed> {
        loop {
            // Before the chunks: nothing is written after the end.
            let status = self.engine.run(&self.run).await?.status;
            let chunks = self
                .engine
                .chunks(&self.run, &self.stream, self.next, AT_ONCE)
                .await?;
            if let Some(last) = chunks.last() {
                self.next = last.index + 1;
                return Ok(Followed::Chunks(chunks));
            }
            if status.is_terminal() {
                return Ok(Followed::Ended(status));
            }
            if self.changes.changed().await.is_err() {
                return Ok(Followed::Stopping);
            }
        }
    }
}

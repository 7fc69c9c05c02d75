//! Where output of steps goes.

use std::sync::Arc;

use async_trait::async_trait;

use crate::ids::StreamName;
use crate::journal::Failure;

/// Takes the chunks that one attempt writes.
#[async_trait]
pub trait StreamSink: Send + Sync {
    /// Returns once the step's chunk of this number is kept. The inner failure is for the guest; an error ends the
    /// attempt.
    async fn write(
        &self,
        stream: &StreamName,
        number: u64,
        chunk: Arc<str>,
    ) -> anyhow::Result<Result<(), Failure>>;
}

/// Throws chunks away: for attempts of no run.
#[derive(Debug)]
pub struct NoStreams;

#[async_trait]
impl StreamSink for NoStreams {
    async fn write(&self, _: &StreamName, _: u64, _: Arc<str>) -> anyhow::Result<Result<(), Failure>> {
        Ok(Ok(()))
    }
}

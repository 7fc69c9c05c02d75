//! What attempts do to the host while they run: output, and events.

use std::sync::Arc;

use anyhow::anyhow;
use async_trait::async_trait;

use super::Engine;
use super::activation::WRITE_RETRY;
use super::error::Error;
use super::request::EmitRequest;
use crate::ids::{EventName, IdempotencyKey, RunId, StreamName};
use crate::journal::{CallNo, Failure, FailureKind, StreamWrite};
use crate::sandbox::StepEffects;
use crate::store::{ChunkWrite, Written, parts_document};

/// Of one attempt.
pub struct AttemptEffects {
    pub engine: Engine,
    pub run: RunId,
    pub call: CallNo,
    pub attempt: u32,
}

#[async_trait]
impl StepEffects for AttemptEffects {
    async fn write(
        &self,
        stream: &StreamName,
        number: u64,
        chunk: Arc<str>,
    ) -> anyhow::Result<Result<(), Failure>> {
        let Engine(inner) = &self.engine;
        let mut refused = None;
        loop {
            let write = ChunkWrite {
                run: self.run.clone(),
                fence: inner.fence,
                write: StreamWrite {
                    stream: stream.clone(),
                    call: Some(self.call),
                    attempt: self.attempt,
                    number,
                    chunk: chunk.clone(),
                },
                now: inner.clock.now(),
            };
            match inner.store.write_chunk(write).await {
                Ok(Written::Done) => {
                    inner.registry.written(&self.run);
                    return Ok(Ok(()));
                }
                Ok(Written::Full(text)) => return Ok(Err(Failure::new(FailureKind::StreamFull, text))),
                Ok(Written::Ended) => return Err(anyhow!("the run has ended")),
                Err(error) if error.may_retry() => {
                    refused.get_or_insert_with(|| inner.backlog.refused());
                    tokio::time::sleep(WRITE_RETRY).await;
                }
                Err(error) => {
                    self.engine.note_failure(&error);
                    return Err(error.into());
                }
            }
        }
    }
    async fn emit(
        &self,
        event: &EventName,
        id: IdempotencyKey,
        payload: Arc<str>,
    ) -> anyhow::Result<Result<String, Failure>> {
        let refused = |kind, text: String| Ok(Err(Failure::new(kind, text)));
        let mut waiting = None;
        loop {
            let request = EmitRequest {
                event: event.clone(),
                payload: payload.clone(),
                id: Some(id.clone()),
            };
            match self.engine.emit(request).await {
                Ok(receipt) => return Ok(Ok(parts_document(&receipt.parts))),
                Err(Error::Store(error)) if error.may_retry() => {
                    waiting.get_or_insert_with(|| self.engine.0.backlog.refused());
                    tokio::time::sleep(WRITE_RETRY).await;
                }
                Err(Error::Store(error)) => return Err(error.into()),
                Err(Error::KeyConflict) => {
                    let text = format!(
                        "an earlier attempt of this step emitted `{event}` with another payload; emit the same in \
                         every attempt"
                    );
                    return refused(FailureKind::Invalid, text);
                }
                Err(error @ Error::TooLarge { .. }) => {
                    return refused(FailureKind::TooLarge, error.to_string());
                }
                Err(error) => return refused(FailureKind::Invalid, error.to_string()),
            }
        }
    }
}

//! What attempts do to the host while they run.

use std::sync::Arc;

use async_trait::async_trait;

use crate::ids::{EventName, IdempotencyKey, StreamName};
use crate::journal::Failure;

/// Takes what one attempt writes and emits. The inner failure is for the guest; an error ends the attempt.
#[async_trait]
pub trait StepEffects: Send + Sync {
    /// Returns once the step's chunk of this number is kept.
    async fn write(
        &self,
        stream: &StreamName,
        number: u64,
        chunk: Arc<str>,
    ) -> anyhow::Result<Result<(), Failure>>;

    /// Returns once the event has started what waits for it: what it came to at each workflow, as JSON.
    async fn emit(
        &self,
        event: &EventName,
        id: IdempotencyKey,
        payload: Arc<str>,
    ) -> anyhow::Result<Result<String, Failure>>;
}

/// For attempts of no run: chunks are thrown away, events start nothing.
#[derive(Debug)]
pub struct NoEffects;

#[async_trait]
impl StepEffects for NoEffects {
    async fn write(&self, _: &StreamName, _: u64, _: Arc<str>) -> anyhow::Result<Result<(), Failure>> {
        Ok(Ok(()))
    }

    async fn emit(
        &self,
        _: &EventName,
        _: IdempotencyKey,
        _: Arc<str>,
    ) -> anyhow::Result<Result<String, Failure>> {
        Ok(Ok(r#"{"parts":[]}"#.to_owned()))
    }
}

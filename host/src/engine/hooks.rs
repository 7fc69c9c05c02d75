//! Hooks from outside: delivering, looking up, disposing.

use serde_json::Value;

use super::Engine;
use super::error::{Error, Result};
use super::request::DeliverRequest;
use crate::ids::{Digest, HookToken};
use crate::journal::{Body, HookNo, PayloadType};
use crate::sandbox::{JsonError, Schema, read_json};
use crate::store::{Delivered, Delivery, DeliveryReceipt, Disposed, HookInfo, HookRef, HookState};

impl Engine {
    /// Puts a payload into the queue of the hook that holds the token. Answers after the commit; the run goes
    /// on by itself.
    ///
    /// # Errors
    /// [`Error::HookNotFound`], [`Error::HookEnded`] with the owner, [`Error::InvalidPayload`] when it does not
    /// fit the hook's declared type, [`Error::KeyConflict`].
    pub async fn deliver(&self, request: DeliverRequest) -> Result<DeliveryReceipt> {
        let limit = self.0.config.limits.body_bytes;
        let bytes = request.payload.len() as u64;
        if bytes > limit {
            return Err(Error::TooLarge {
                what: "the payload",
                bytes,
                limit,
            });
        }
        let payload = read_json(&request.payload).map_err(|error| match error {
            JsonError::Malformed(error) => Error::InvalidRequest(format!("the payload is no JSON: {error}")),
            JsonError::Unreadable(error) => Error::InvalidPayload {
                token: request.token.clone(),
                what: error.to_string(),
            },
        })?;
        loop {
            // Where nothing is known of the token, no receipt is left either.
            let hook = self.hook(&request.token).await?;
            let misfit = self.misfit(&hook, &payload).await?;
            let delivery = Delivery {
                token: request.token.clone(),
                payload: Body::new(request.payload.clone()),
                request: Digest::of(payload.to_string()),
                key: request.key.clone(),
                // What does not fit is accepted by no hook; its key may still have a receipt, of one that had
                // the token before.
                hook: Some(HookRef {
                    run: hook.run_id,
                    hook: if misfit.is_some() { HookNo::MAX } else { hook.hook },
                }),
                now: self.0.clock.now(),
            };
            let delivered = self.0.store.deliver(delivery).await;
            let token = request.token.clone();
            match delivered.inspect_err(|error| self.note_failure(error))? {
                Delivered::Accepted { receipt, entry } => {
                    if let Some(entry) = entry {
                        self.wake_for(&receipt.run_id, *entry);
                    }
                    return Ok(receipt);
                }
                Delivered::NotFound => return Err(Error::HookNotFound(token)),
                Delivered::Ended { owner } => return Err(Error::HookEnded { token, owner }),
                Delivered::KeyConflict => return Err(Error::KeyConflict),
                Delivered::Moved => match misfit {
                    Some(what) => return Err(Error::InvalidPayload { token, what }),
                    // The token changed hands since the payload was checked.
                    None => continue,
                },
            }
        }
    }

    /// What of the payload does not fit the type of the hook, if that takes payloads and has a type.
    async fn misfit(&self, hook: &HookInfo, payload: &Value) -> Result<Option<String>> {
        if hook.state != HookState::Open {
            return Ok(None);
        }
        let checked = match &hook.payload {
            PayloadType::Any => Ok(()),
            PayloadType::Declared => {
                let component = self.component(hook.component).await?;
                let workflow = component.manifest.workflows.get(&hook.owner.workflow);
                match workflow.and_then(|workflow| workflow.hook.as_ref()) {
                    Some(schema) => schema.check(payload).map_err(|error| error.to_string()),
                    None => Ok(()),
                }
            }
            PayloadType::Schema(json) => Schema::compile(json.clone())
                .and_then(|schema| schema.check(payload).map_err(|error| error.to_string())),
        };
        Ok(checked.err())
    }

    /// The hook that holds the token, or the last that did.
    ///
    /// # Errors
    /// [`Error::HookNotFound`].
    pub async fn hook(&self, token: &HookToken) -> Result<HookInfo> {
        let hook = self.0.store.hook(token, self.0.clock.now()).await?;
        hook.ok_or_else(|| Error::HookNotFound(token.clone()))
    }

    /// Closes the hook that holds the token and frees it at once, whatever the retention. Nothing happens when
    /// it is free already.
    ///
    /// # Errors
    /// [`Error::HookNotFound`].
    pub async fn dispose(&self, token: &HookToken) -> Result<HookInfo> {
        let disposed = self.0.store.dispose(token, self.0.clock.now()).await;
        match disposed.inspect_err(|error| self.note_failure(error))? {
            Disposed::Freed { run } => self.wake(&run),
            Disposed::Free { .. } => {}
            Disposed::NotFound => return Err(Error::HookNotFound(token.clone())),
        }
        self.hook(token).await
    }
}

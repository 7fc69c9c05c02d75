//! Hooks from outside: delivering, looking up, disposing.

use serde_json::Value;

use super::Engine;
use super::error::{Error, Result};
use super::request::DeliverRequest;
use crate::ids::{Digest, HookToken};
use crate::journal::{Body, HookNo, PayloadType};
use crate::sandbox::{Form, JsonError, Schema, read_json};
use crate::store::{
    Delivered, Delivery, DeliveryReceipt, Disposed, HookInfo, HookRef, HookState, ReceivedPayload,
};

/// The hook that a payload may go to once it was checked. What does not fit is accepted by no hook; its key may
/// still have a receipt, of one that had the token before.
pub(super) fn checked_hook(hook: &HookInfo, misfit: Option<&String>) -> HookRef {
    HookRef {
        run: hook.run_id.clone(),
        hook: if misfit.is_some() { HookNo::MAX } else { hook.hook },
    }
}

impl Engine {
    /// Puts a payload into the queue of the hook that holds the token. Answers after the commit; the run goes
    /// on by itself.
    ///
    /// # Errors
    /// [`Error::HookNotFound`], [`Error::HookEnded`] with the owner, [`Error::InvalidPayload`] when it does not
    /// fit the hook's declared type, [`Error::HookFull`], [`Error::KeyConflict`].
    pub async fn deliver(&self, request: DeliverRequest) -> Result<DeliveryReceipt> {
        self.to_its_end(|engine| async move { engine.deliver_once(request).await })
            .await
    }

    async fn deliver_once(&self, request: DeliverRequest) -> Result<DeliveryReceipt> {
        let payload = self.read_payload(Some(&request.token), &request.payload)?;
        let cap = self.0.config.unread;
        loop {
            // Where nothing is known of the token, no receipt is left either.
            let hook = self.hook(&request.token).await?;
            let misfit = self.misfit(&hook, &payload).await?;
            let delivery = Delivery {
                token: request.token.clone(),
                payload: Body::new(request.payload.clone()),
                request: Digest::of(payload.to_string()),
                key: request.key.clone(),
                hook: Some(checked_hook(&hook, misfit.as_ref())),
                cap,
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
                Delivered::Full { owner } => return Err(Error::HookFull { token, owner, cap }),
                Delivered::KeyConflict => return Err(Error::KeyConflict),
                Delivered::Moved => match misfit {
                    Some(what) => return Err(Error::InvalidPayload { token, what }),
                    // The token changed hands since the payload was checked.
                    None => continue,
                },
            }
        }
    }

    /// Checks what any hook asks of a payload.
    pub(super) fn read_payload(&self, token: Option<&HookToken>, text: &str) -> Result<Value> {
        let limit = self.0.config.limits.body_bytes;
        let bytes = text.len() as u64;
        if bytes > limit {
            return Err(Error::TooLarge {
                what: "the payload",
                bytes,
                limit,
            });
        }
        read_json(text).map_err(|error| match (error, token) {
            (JsonError::Unreadable(error), Some(token)) => Error::InvalidPayload {
                token: token.clone(),
                what: error.to_string(),
            },
            (error, _) => Error::InvalidRequest(format!("the payload cannot be read: {error}")),
        })
    }

    /// The payloads of the hook that holds the token, or of the last that did: at most `limit`, from number `from`
    /// on, read or not.
    ///
    /// # Errors
    /// [`Error::HookNotFound`].
    pub async fn payloads(&self, token: &HookToken, from: u64, limit: usize) -> Result<Vec<ReceivedPayload>> {
        let payloads = self
            .0
            .store
            .payloads(token, from, limit, self.0.clock.now())
            .await?;
        payloads.ok_or_else(|| Error::HookNotFound(token.clone()))
    }

    /// What of the payload does not fit the type of the hook, if that takes payloads and has a type.
    pub(super) async fn misfit(&self, hook: &HookInfo, payload: &Value) -> Result<Option<String>> {
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

    /// A form as a payload of this hook, JSON: as its type has the fields.
    ///
    /// # Errors
    /// When the store cannot be read or the component of the hook's run no longer loads.
    pub async fn payload_of(&self, hook: &HookInfo, form: &Form) -> Result<String> {
        Ok(match &hook.payload {
            PayloadType::Any => form.to_json(None),
            PayloadType::Declared => {
                let component = self.component(hook.component).await?;
                let workflow = component.manifest.workflows.get(&hook.owner.workflow);
                let schema = workflow.and_then(|workflow| workflow.hook.as_ref());
                form.to_json(schema.map(|schema| &schema.json))
            }
            PayloadType::Schema(json) => form.to_json(Some(json)),
        })
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

//! `onemark:workflow/hooks`.

use serde::Deserialize;
use wasmtime::component::Resource;

use crate::clock;
use crate::ids::HookToken;
use crate::journal::{HookHandle, HookSpec, Opened, PayloadType};
use crate::sandbox::bindings::onemark::workflow::hooks::{Host, HostHook};
use crate::sandbox::guest::{Guest, OpenHook, PromiseHandle, WorkflowGuest};
use crate::sandbox::trap::Refused;
use crate::sandbox::workflow::Stopped;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HookOptions {
    payload: Option<serde_json::Value>,
    metadata: Option<serde_json::Value>,
    #[serde(default)]
    retain_ms: u64,
}

impl WorkflowGuest {
    fn handle(&self, hook: &Resource<OpenHook>) -> HookHandle {
        self.hooks[hook.rep() as usize]
    }

    fn hand_out(&mut self, handle: HookHandle) -> Resource<OpenHook> {
        self.hooks.push(handle);
        Resource::new_own(self.hooks.len() as u32 - 1)
    }
}

impl Host for Guest {}

impl HostHook for Guest {
    async fn open(&mut self, token: Option<String>, options: String) -> wasmtime::Result<Resource<OpenHook>> {
        self.ask(options.len() as u64)?;
        let workflow = self.workflow("hook.open")?;
        let token = token.map(HookToken::new).transpose();
        let token = token.map_err(|error| Refused(error.to_string()))?;
        let spec = |token: Option<HookToken>| -> Result<HookSpec, String> {
            let options: HookOptions =
                serde_json::from_str(&options).map_err(|error| format!("the options of a hook: {error}"))?;
            let token = match token {
                Some(token) => token,
                None => generated().map_err(|error| error.to_string())?,
            };
            Ok(HookSpec {
                token,
                retain_ms: options.retain_ms,
                metadata: options.metadata,
                payload: options.payload.map_or(PayloadType::Any, PayloadType::Schema),
            })
        };
        let handle = match workflow.replay.open_hook(token, spec)? {
            Opened::Handle(handle) => handle,
            Opened::AfterCommit(call) => {
                let committed = workflow.owner.commit(&mut workflow.replay).await;
                committed.map_err(Stopped)?;
                workflow.replay.opened(call)?
            }
        };
        Ok(workflow.hand_out(handle))
    }

    fn token(&mut self, hook: Resource<OpenHook>) -> wasmtime::Result<String> {
        let workflow = self.workflow("hook.token")?;
        let token = workflow.replay.hook_token(workflow.handle(&hook));
        Ok(token.map(String::from).unwrap_or_default())
    }

    fn conflict(&mut self, hook: Resource<OpenHook>) -> wasmtime::Result<Option<String>> {
        let workflow = self.workflow("hook.conflict")?;
        let conflict = workflow.replay.hook_conflict(workflow.handle(&hook));
        Ok(conflict.map(|document| document.to_string()))
    }

    fn ready(&mut self, hook: Resource<OpenHook>) -> wasmtime::Result<Resource<PromiseHandle>> {
        let workflow = self.workflow("hook.ready")?;
        let handle = workflow.handle(&hook);
        Ok(Resource::new_own(workflow.replay.hook_ready(handle)))
    }

    fn take(&mut self, hook: Resource<OpenHook>) -> wasmtime::Result<Option<String>> {
        let workflow = self.workflow("hook.take")?;
        let handle = workflow.handle(&hook);
        let payload = workflow.replay.take_payload(handle);
        Ok(payload.map(|payload| payload.to_string()))
    }

    fn closed(&mut self, hook: Resource<OpenHook>) -> wasmtime::Result<bool> {
        let workflow = self.workflow("hook.closed")?;
        Ok(workflow.replay.hook_closed(workflow.handle(&hook)))
    }

    fn close(&mut self, hook: Resource<OpenHook>) -> wasmtime::Result<()> {
        let workflow = self.workflow("hook.close")?;
        let handle = workflow.handle(&hook);
        Ok(workflow.replay.close_hook(handle)?)
    }

    fn dispose(&mut self, hook: Resource<OpenHook>) -> wasmtime::Result<()> {
        let workflow = self.workflow("hook.dispose")?;
        let handle = workflow.handle(&hook);
        Ok(workflow.replay.dispose_hook(handle)?)
    }

    fn drop(&mut self, _hook: Resource<OpenHook>) -> wasmtime::Result<()> {
        // Handles of one claim share one queue; dropping one changes nothing.
        Ok(())
    }
}

/// 128 bits that nobody can guess; journaled, so a replay sees the same.
fn generated() -> Result<HookToken, crate::ids::NameError> {
    let (high, low) = (clock::random_u64(), clock::random_u64());
    HookToken::new(format!("hook_{high:016x}{low:016x}"))
}

//! `onemark:workflow/hooks`.

use serde::Deserialize;
use wasmtime::component::Resource;

use crate::ids::HookToken;
use crate::journal::{
    Failure, FailureKind, HookHandle, HookResponse, HookSpec, HookUrl, Limits, MAX_METADATA_BYTES, Opened,
    PayloadType,
};
use crate::sandbox::bindings::onemark::workflow::hooks::{Host, HostHook};
use crate::sandbox::guest::{Guest, OpenHook, PromiseHandle, WorkflowGuest};
use crate::sandbox::workflow::Stopped;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HookOptions {
    payload: Option<serde_json::Value>,
    metadata: Option<serde_json::Value>,
    #[serde(default)]
    retain_ms: u64,
    webhook: Option<HookResponse>,
}

/// What a guest asks for when it opens a hook, checked. Depends on nothing but the call and what entry 0 pinned, so
/// that a replay says the same whatever the host is configured to.
fn checked(
    token: Option<String>,
    options: &str,
    limits: &Limits,
) -> Result<(Option<HookToken>, HookOptions), String> {
    let token = token.map(HookToken::new).transpose();
    let token = token.map_err(|error| error.to_string())?;
    let in_options = |what: String| format!("the options of a hook: {what}");
    let bytes = options.len() as u64;
    if bytes > limits.body_bytes {
        return Err(in_options(format!(
            "they have {bytes} bytes; the limit is {}",
            limits.body_bytes
        )));
    }
    let options: HookOptions =
        serde_json::from_str(options).map_err(|error| in_options(error.to_string()))?;
    let metadata = options
        .metadata
        .as_ref()
        .map_or(0, |value| value.to_string().len());
    if metadata > MAX_METADATA_BYTES {
        return Err(in_options(format!(
            "the metadata has {metadata} bytes; the limit is {MAX_METADATA_BYTES}"
        )));
    }
    let (asked, limit) = (options.retain_ms, limits.max_retention_ms);
    if asked > limit {
        return Err(in_options(format!(
            "a retention of {asked} ms; the limit is {limit} ms"
        )));
    }
    if token.is_some() && options.webhook.is_some() {
        let what = "a webhook's token is made by the host: whoever knows it may deliver";
        return Err(in_options(what.to_owned()));
    }
    Ok((token, options))
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
    async fn open(
        &mut self,
        token: Option<String>,
        options: String,
    ) -> wasmtime::Result<Result<Resource<OpenHook>, String>> {
        self.ask(options.len() as u64)?;
        let workflow = self.workflow("hook.open")?;
        let (token, options) = match checked(token, &options, &workflow.replay.started().limits) {
            Ok(checked) => checked,
            Err(text) => return Ok(Err(Failure::new(FailureKind::Invalid, text).to_json())),
        };
        let public_url = &workflow.public_url;
        let spec = |token: Option<HookToken>| {
            let token = token.unwrap_or_else(HookToken::generate);
            let webhook = options.webhook.map(|response| HookUrl {
                url: format!("{public_url}/hooks/{token}"),
                response,
            });
            HookSpec {
                token,
                webhook,
                retain_ms: options.retain_ms,
                metadata: options.metadata,
                payload: options.payload.map_or(PayloadType::Any, PayloadType::Schema),
            }
        };
        let handle = match workflow.replay.open_hook(token, spec)? {
            Opened::Handle(handle) => handle,
            Opened::AfterCommit(call) => {
                let committed = workflow.owner.commit(&mut workflow.replay).await;
                committed.map_err(Stopped)?;
                workflow.replay.opened(call)?
            }
        };
        Ok(Ok(workflow.hand_out(handle)))
    }

    fn token(&mut self, hook: Resource<OpenHook>) -> wasmtime::Result<String> {
        let workflow = self.workflow("hook.token")?;
        let token = workflow.replay.hook_token(workflow.handle(&hook));
        Ok(token.map(String::from).unwrap_or_default())
    }

    fn url(&mut self, hook: Resource<OpenHook>) -> wasmtime::Result<Option<String>> {
        let workflow = self.workflow("hook.url")?;
        Ok(workflow.replay.hook_url(workflow.handle(&hook)))
    }

    fn last_taken(&mut self, hook: Resource<OpenHook>) -> wasmtime::Result<Option<u64>> {
        let workflow = self.workflow("hook.last_taken")?;
        Ok(workflow.replay.last_taken(workflow.handle(&hook)))
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

//! What a component says of itself, checked when it is loaded.

use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;
use serde_json::{Value, json};

use super::schedule::{Schedule, ScheduleSpec, slot_text};
use super::schema::Schema;
use crate::ids::{ConcurrencyGroup, EventName, HookToken, NameError};
use crate::journal::{Concurrency, RunTimeout, StepOptions, Template, TemplateError, Timestamp};
use std::num::NonZeroU32;

/// The answer of `describe`, checked.
#[derive(Debug)]
pub struct Manifest {
    pub workflows: BTreeMap<String, WorkflowManifest>,
    pub steps: BTreeMap<String, StepManifest>,
    /// As the component gave it.
    pub json: String,
}

#[derive(Debug)]
pub struct WorkflowManifest {
    pub name: String,
    pub description: Option<String>,
    pub input: Option<Schema>,
    pub token: Option<Template>,
    /// Milliseconds.
    pub retain_ms: u64,
    pub timeout: Option<RunTimeout>,
    /// The type of the payloads of its first hook.
    pub hook: Option<Schema>,
    /// The event that starts it.
    pub on: Option<EventName>,
    /// When it starts by itself.
    pub schedule: Option<Schedule>,
    /// What another service calls to start it.
    pub webhook: Option<Webhook>,
    /// How many of its runs are at work at once.
    pub concurrency: Option<ConcurrencyLimit>,
}

/// A path that takes requests of another service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhook {
    /// After `/webhooks/`.
    pub path: String,
    pub signature: SignatureForm,
    /// Variable of the host's environment that holds the secret.
    pub secret_env: String,
}

/// How a request proves where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignatureForm {
    /// `X-Signature: sha256=HEX`, with `X-Signature-Timestamp` over `{timestamp}.{body}`, else over the body.
    Hmac,
    /// `X-Hub-Signature-256`
    Github,
    /// `Stripe-Signature`
    Stripe,
}

#[derive(Debug)]
pub struct ConcurrencyLimit {
    pub limit: NonZeroU32,
    /// The limit is that of each value.
    pub key: Option<Template>,
}

#[derive(Debug)]
pub struct StepManifest {
    pub name: String,
    pub options: StepOptions,
    pub key: Option<Template>,
    /// The type of its results.
    pub output: Option<Schema>,
}

/// Largest manifest: hundreds of workflows and steps with their schemas.
const MAX_MANIFEST_BYTES: usize = 1 << 20;

/// How long a run has to end after its timeout, in milliseconds, where its workflow does not say.
const TIMEOUT_GRACE_MS: u64 = 60_000;

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("the manifest that `describe` returned is not as the interface asks: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the manifest has {bytes} bytes; the limit is {limit}")]
    TooLarge { bytes: usize, limit: usize },
    #[error("manifest version {0} is newer than this host; upgrade the host")]
    Version(u32),
    #[error("{what} `{name}` is declared twice")]
    Twice { what: &'static str, name: String },
    #[error("{what} {name:?}: {error}")]
    Name {
        what: &'static str,
        name: String,
        error: String,
    },
    #[error("workflow `{workflow}`: {error}")]
    Workflow { workflow: String, error: String },
    #[error("{of} `{name}`: its {what} is no JSON Schema: {error}")]
    Schema {
        of: &'static str,
        name: String,
        what: &'static str,
        error: String,
    },
    #[error("{what} `{name}`: {error}")]
    Template {
        what: &'static str,
        name: String,
        error: TemplateError,
    },
}

#[derive(Deserialize)]
struct RawManifest {
    manifest: u32,
    #[serde(default)]
    workflows: Vec<RawWorkflow>,
    #[serde(default)]
    steps: Vec<RawStep>,
}

#[derive(Deserialize)]
struct RawWorkflow {
    name: String,
    description: Option<String>,
    input: Option<Value>,
    token: Option<String>,
    #[serde(default)]
    retain_ms: u64,
    timeout_ms: Option<u64>,
    timeout_grace_ms: Option<u64>,
    hook: Option<Value>,
    on: Option<String>,
    schedule: Option<ScheduleSpec>,
    webhook: Option<Webhook>,
    concurrency: Option<RawConcurrency>,
}

#[derive(Deserialize)]
struct RawConcurrency {
    limit: u32,
    key: Option<String>,
}

#[derive(Deserialize)]
struct RawStep {
    name: String,
    #[serde(default)]
    options: StepOptions,
    output: Option<Value>,
}

impl Manifest {
    /// # Errors
    /// When the text is not the manifest that the WIT describes.
    pub fn parse(json: String) -> Result<Self, ManifestError> {
        if json.len() > MAX_MANIFEST_BYTES {
            let (bytes, limit) = (json.len(), MAX_MANIFEST_BYTES);
            return Err(ManifestError::TooLarge { bytes, limit });
        }
        let raw: RawManifest = serde_json::from_str(&json)?;
        if raw.manifest != 1 {
            return Err(ManifestError::Version(raw.manifest));
        }
        let mut workflows = BTreeMap::new();
        let mut paths = HashSet::new();
        for workflow in raw.workflows {
            let name = checked_name("workflow", &workflow.name)?;
            let workflow = WorkflowManifest::check(workflow)?;
            if let Some(webhook) = &workflow.webhook
                && !paths.insert(webhook.path.clone())
            {
                let (what, name) = ("webhook", webhook.path.clone());
                return Err(ManifestError::Twice { what, name });
            }
            if workflows.insert(name.clone(), workflow).is_some() {
                let what = "workflow";
                return Err(ManifestError::Twice { what, name });
            }
        }
        let mut steps = BTreeMap::new();
        for step in raw.steps {
            let name = checked_name("step", &step.name)?;
            let key = template("step", &name, step.options.key.as_deref())?;
            let manifest = StepManifest {
                output: schema("step", &name, "output", step.output)?,
                name: name.clone(),
                options: step.options,
                key,
            };
            if steps.insert(name.clone(), manifest).is_some() {
                return Err(ManifestError::Twice { what: "step", name });
            }
        }
        Ok(Self {
            workflows,
            steps,
            json,
        })
    }
}

impl WorkflowManifest {
    fn check(raw: RawWorkflow) -> Result<Self, ManifestError> {
        let on = raw.on.map(EventName::new).transpose();
        let name = raw.name.clone();
        let refused = |error: String| ManifestError::Workflow {
            workflow: name.clone(),
            error,
        };
        let on = on.map_err(|error| refused(error.to_string()))?;
        let planned = raw.schedule.map(Schedule::new).transpose();
        let planned = planned.map_err(|error| refused(error.to_string()))?;
        if let Some(webhook) = &raw.webhook {
            check_webhook(webhook).map_err(refused)?;
        }
        let limit = |raw: RawConcurrency| {
            let limit = NonZeroU32::new(raw.limit).ok_or_else(|| {
                refused(
                    "its concurrency limit is 0, so that no run would ever be at work; give it 1 or more"
                        .into(),
                )
            })?;
            let key = template("workflow", &name, raw.key.as_deref())?;
            Ok::<_, ManifestError>(ConcurrencyLimit { limit, key })
        };
        let concurrency = raw.concurrency.map(limit).transpose()?;
        let manifest = Self {
            webhook: raw.webhook,
            on,
            concurrency,
            schedule: planned,
            input: schema("workflow", &raw.name, "input", raw.input)?,
            hook: schema("workflow", &raw.name, "hook", raw.hook)?,
            token: template("workflow", &raw.name, raw.token.as_deref())?,
            retain_ms: raw.retain_ms,
            timeout: raw.timeout_ms.map(|after_ms| RunTimeout {
                after_ms,
                grace_ms: raw.timeout_grace_ms.unwrap_or(TIMEOUT_GRACE_MS),
            }),
            description: raw.description,
            name: raw.name,
        };
        let input = manifest.scheduled_input(0);
        if let (Some(_), Some(schema)) = (&manifest.schedule, &manifest.input)
            && let Err(error) = schema.check(&input)
        {
            let workflow = manifest.name;
            let error = format!("its schedule starts it with {input}, which does not fit its input: {error}");
            return Err(ManifestError::Workflow { workflow, error });
        }
        Ok(manifest)
    }

    /// The input of the run of a slot: the slot, where there is a parameter of that name.
    pub fn scheduled_input(&self, slot: Timestamp) -> Value {
        let properties = self
            .input
            .as_ref()
            .and_then(|schema| schema.json.get("properties"));
        match properties.is_some_and(|names| names.get("slot").is_some()) {
            true => json!({ "slot": slot_text(slot) }),
            false => json!({}),
        }
    }

    /// The input that an event or a webhook with this payload, JSON, gives to the workflow: a sole parameter named
    /// `event` gets the payload, and else the payload is the input.
    pub fn input_from(&self, payload: &str) -> String {
        let properties = self
            .input
            .as_ref()
            .and_then(|schema| schema.json.get("properties"));
        let properties = properties.and_then(Value::as_object);
        match properties.is_some_and(|names| names.len() == 1 && names.contains_key("event")) {
            true => format!("{{\"event\":{payload}}}"),
            false => payload.to_owned(),
        }
    }

    /// The token that a start with this input claims, if the workflow declares one.
    ///
    /// # Errors
    /// When the input lacks what the token is made of, or it makes no good token.
    pub fn token_for(&self, input: &Value) -> Result<Option<HookToken>, TokenError> {
        let Some(template) = &self.token else {
            return Ok(None);
        };
        Ok(Some(HookToken::new(template.render(input)?)?))
    }

    /// Which runs a start with this input is counted with, if the workflow declares a limit.
    ///
    /// # Errors
    /// When the input lacks what the key is made of, or it makes no good name.
    pub fn concurrency_for(&self, input: &Value) -> Result<Option<Concurrency>, TokenError> {
        let Some(ConcurrencyLimit { limit, key }) = &self.concurrency else {
            return Ok(None);
        };
        let key = key.as_ref().map(|key| key.render(input)).transpose()?;
        Ok(Some(Concurrency {
            group: ConcurrencyGroup::of(&self.name, key.as_deref())?,
            limit: *limit,
        }))
    }
}

/// An input from which the declared token, or the key of a limit, cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Name(#[from] NameError),
}

fn schema(
    of: &'static str,
    name: &str,
    what: &'static str,
    json: Option<Value>,
) -> Result<Option<Schema>, ManifestError> {
    let compiled = json.map(Schema::compile).transpose();
    compiled.map_err(|error| ManifestError::Schema {
        of,
        name: name.to_owned(),
        what,
        error,
    })
}

fn template(what: &'static str, name: &str, text: Option<&str>) -> Result<Option<Template>, ManifestError> {
    let parsed = text.map(Template::parse).transpose();
    parsed.map_err(|error| ManifestError::Template {
        what,
        name: name.to_owned(),
        error,
    })
}

fn check_webhook(webhook: &Webhook) -> Result<(), String> {
    let Webhook { path, secret_env, .. } = webhook;
    if path.len() > 255 || path.chars().any(char::is_control) || path.split('/').any(str::is_empty) {
        return Err(format!(
            "`{path}` is no path of a webhook: write `shop/orders`, at most 255 bytes, no slash at the ends"
        ));
    }
    if secret_env.is_empty() || secret_env.contains(['=', '\0']) {
        return Err("the secret of its webhook names no environment variable".to_owned());
    }
    Ok(())
}

fn checked_name(what: &'static str, name: &str) -> Result<String, ManifestError> {
    let error = match name {
        "" => "a name is needed",
        name if name.len() > 128 => "at most 128 bytes",
        name if name.chars().any(|c| c.is_control() || c == '/') => "no control characters, no slashes",
        name => return Ok(name.to_owned()),
    };
    let (name, error) = (name.chars().take(80).collect(), error.to_owned());
    Err(ManifestError::Name { what, name, error })
}

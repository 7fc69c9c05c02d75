//! What the macros register, and the manifest made of it.

use futures::future::LocalBoxFuture;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::Value;

use crate::step::StepOptions;

/// An outcome as it crosses the host interface.
pub type Outcome = Result<String, String>;

pub struct WorkflowDefinition {
    pub name: &'static str,
    pub description: &'static str,
    pub input: fn() -> Value,
    pub output: fn() -> Option<Value>,
    pub token: Option<&'static str>,
    pub retain_ms: Option<u64>,
    pub timeout_ms: Option<u64>,
    pub timeout_grace_ms: Option<u64>,
    pub hook: Option<fn() -> Value>,
    pub on: Option<&'static str>,
    pub schedule: Option<Schedule>,
    pub webhook: Option<Webhook>,
    pub concurrency: Option<Concurrency>,
    pub run: fn(&str) -> LocalBoxFuture<'static, Outcome>,
}

#[derive(Clone, Copy, Serialize)]
pub struct Webhook {
    pub path: &'static str,
    pub signature: &'static str,
    pub secret_env: &'static str,
}

#[derive(Clone, Copy, Serialize)]
pub struct Schedule {
    pub cron: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<&'static str>,
}

#[derive(Clone, Copy, Serialize)]
pub struct Concurrency {
    pub limit: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<&'static str>,
}

pub struct StepDefinition {
    pub name: &'static str,
    pub description: &'static str,
    pub input: fn() -> Value,
    pub output: fn() -> Option<Value>,
    pub error: fn() -> Option<Value>,
    pub options: StepOptions,
    pub run: fn(&str) -> LocalBoxFuture<'static, Outcome>,
}

inventory::collect!(WorkflowDefinition);
inventory::collect!(StepDefinition);

/// The registered definitions by name, whatever order the linker put them in.
///
/// # Panics
///
/// When two have one name: two functions of one crate, in different modules.
fn sorted<T: inventory::Collect>(what: &str, name: fn(&T) -> &'static str) -> Vec<&'static T> {
    let mut all: Vec<&T> = inventory::iter::<T>.into_iter().collect();
    all.sort_by_key(|definition| name(definition));
    for pair in all.windows(2) {
        let (a, b) = (name(pair[0]), name(pair[1]));
        assert!(
            a != b,
            "two {what}s are named `{a}`; rename one with `#[{what}(name = \"…\")]`"
        );
    }
    all
}

/// The manifest of this component, JSON.
pub(crate) fn manifest() -> String {
    let manifest = Manifest {
        manifest: 1,
        sdk: Sdk {
            language: "rust",
            version: env!("CARGO_PKG_VERSION"),
        },
        workflows: sorted("workflow", |it: &WorkflowDefinition| it.name)
            .into_iter()
            .map(|it| Workflow {
                name: it.name,
                description: it.description,
                input: (it.input)(),
                output: (it.output)(),
                token: it.token,
                retain_ms: it.retain_ms,
                timeout_ms: it.timeout_ms,
                timeout_grace_ms: it.timeout_grace_ms,
                hook: it.hook.map(|schema| schema()),
                on: it.on,
                schedule: it.schedule,
                webhook: it.webhook,
                concurrency: it.concurrency,
            })
            .collect(),
        steps: sorted("step", |it: &StepDefinition| it.name)
            .into_iter()
            .map(|it| Step {
                name: it.name,
                description: it.description,
                input: (it.input)(),
                output: (it.output)(),
                error: (it.error)(),
                options: &it.options,
            })
            .collect(),
    };
    serde_json::to_string(&manifest).expect("schemas and options are JSON")
}

#[derive(Serialize)]
struct Manifest {
    manifest: u32,
    sdk: Sdk,
    workflows: Vec<Workflow>,
    steps: Vec<Step>,
}

#[derive(Serialize)]
struct Sdk {
    language: &'static str,
    version: &'static str,
}

#[derive(Serialize)]
struct Workflow {
    name: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'static str,
    input: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retain_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_grace_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hook: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<Schedule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook: Option<Webhook>,
    concurrency: Option<Concurrency>,
}

#[derive(Serialize)]
struct Step {
    name: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'static str,
    input: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Value>,
    options: &'static StepOptions,
}

/// The schema of what is read into a `T`.
pub fn schema_of<T: JsonSchema>() -> Value {
    reading().into_root_schema_for::<T>().into()
}

fn reading() -> SchemaGenerator {
    SchemaSettings::draft2020_12().for_deserialize().into_generator()
}

fn writing() -> SchemaGenerator {
    SchemaSettings::draft2020_12().for_serialize().into_generator()
}

/// The schema of an input: an object with a property for each parameter.
pub struct InputSchema {
    generator: SchemaGenerator,
    properties: serde_json::Map<String, Value>,
    required: Vec<&'static str>,
}

impl InputSchema {
    #[expect(clippy::new_without_default, reason = "only macros make one")]
    pub fn new() -> Self {
        Self {
            generator: reading(),
            properties: Default::default(),
            required: Vec::new(),
        }
    }

    pub fn required(
        mut self,
        name: &'static str,
        schema: impl FnOnce(&mut SchemaGenerator) -> Value,
    ) -> Self {
        self.required.push(name);
        self.optional(name, schema)
    }

    pub fn optional(
        mut self,
        name: &'static str,
        schema: impl FnOnce(&mut SchemaGenerator) -> Value,
    ) -> Self {
        self.properties.insert(name.into(), schema(&mut self.generator));
        self
    }

    pub fn finish(mut self) -> Value {
        let mut schema = serde_json::json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": self.properties,
            "required": self.required,
            "additionalProperties": false,
        });
        let definitions = self.generator.take_definitions(true);
        if !definitions.is_empty() {
            schema["$defs"] = definitions.into();
        }
        schema
    }
}

/// Finds out in generated code whether a type has a schema: `(&Probe::<T>::new()).input(…)`.
///
/// Method lookup takes the implementation on `Probe<T>` when `T: JsonSchema`, and else, one reference
/// further, the one on `&Probe<T>`. So what steps take and return needs no schema, and has one in the
/// manifest when it can.
pub struct Probe<T>(std::marker::PhantomData<T>);

impl<T> Probe<T> {
    #[expect(clippy::new_without_default, reason = "only macros make one")]
    pub fn new() -> Self {
        Self(std::marker::PhantomData)
    }
}

pub trait HasSchema {
    fn input(&self, generator: &mut SchemaGenerator) -> Value;
    fn output(&self) -> Option<Value>;
}

impl<T: JsonSchema> HasSchema for Probe<T> {
    fn input(&self, generator: &mut SchemaGenerator) -> Value {
        generator.subschema_for::<T>().into()
    }

    fn output(&self) -> Option<Value> {
        Some(writing().into_root_schema_for::<T>().into())
    }
}

pub trait HasNoSchema {
    fn input(&self, generator: &mut SchemaGenerator) -> Value;
    fn output(&self) -> Option<Value>;
}

impl<T> HasNoSchema for &Probe<T> {
    fn input(&self, _: &mut SchemaGenerator) -> Value {
        Schema::default().into()
    }

    fn output(&self) -> Option<Value> {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::prelude::*;

    #[derive(Serialize, Deserialize, JsonSchema)]
    struct Order {
        id: u32,
    }

    #[derive(Serialize, Deserialize)]
    struct NoSchema;

    /// Follows an order.
    #[workflow(
        token = "order:{order.id}",
        retain = "1h",
        hook = bool,
        name = "follow",
        on = "order.paid",
        concurrency = 2,
        concurrency_key = "{order.id}"
    )]
    async fn follow_order(order: &Order, note: Option<String>) -> WorkflowResult<()> {
        charge(order, NoSchema).await?;
        bare().await?;
        once().await?;
        log::info!("{note:?}");
        Ok(())
    }

    #[step(
        retries = 3,
        timeout = "20s",
        key = "charge:{order.id}",
        backoff(initial = "500ms", factor = 2)
    )]
    async fn charge(order: &Order, _other: NoSchema) -> Result<u8, StepFailed> {
        Ok(order.id as u8)
    }

    #[step(at_most_once, on_unknown = "fail", on_exhausted = "block", key_ttl = "24h")]
    async fn once() -> Result<u8, StepFailed> {
        Ok(1)
    }

    #[step]
    async fn bare() -> Result<NoSchema, StepFailed> {
        Ok(NoSchema)
    }

    #[test]
    fn the_manifest_says_what_the_macros_were_told() {
        let manifest: Value = serde_json::from_str(&super::manifest()).unwrap();
        let order = json!({
            "type": "object",
            "properties": { "id": { "type": "integer", "format": "uint32", "minimum": 0 } },
            "required": ["id"]
        });
        let schema = "https://json-schema.org/draft/2020-12/schema";
        assert_eq!(
            manifest["workflows"],
            json!([{
                "name": "follow",
                "description": "Follows an order.",
                "input": {
                    "$schema": schema,
                    "type": "object",
                    "properties": {
                        "order": { "$ref": "#/$defs/Order" },
                        "note": { "type": ["string", "null"] }
                    },
                    "required": ["order"],
                    "additionalProperties": false,
                    "$defs": { "Order": order }
                },
                "output": { "$schema": schema, "title": "null", "type": "null" },
                "token": "order:{order.id}",
                "retain_ms": 3_600_000,
                "hook": { "$schema": schema, "title": "boolean", "type": "boolean" },
                "on": "order.paid",
                "concurrency": { "limit": 2, "key": "{order.id}" }
            }])
        );
        let steps = manifest["steps"].as_array().unwrap();
        assert_eq!(steps.len(), 3);
        assert_eq!(
            steps[0],
            json!({
                "name": "bare",
                "input": {
                    "$schema": schema, "type": "object", "properties": {}, "required": [],
                    "additionalProperties": false
                },
                "options": {}
            })
        );
        assert_eq!(steps[1]["input"]["properties"]["_other"], json!({}));
        assert_eq!(steps[1]["output"]["type"], "integer");
        assert_eq!(
            steps[1]["options"],
            json!({
                "retries": 3, "timeout_ms": 20_000, "key": "charge:{order.id}",
                "backoff": { "initial_ms": 500, "factor": 2.0 }
            })
        );
        assert_eq!(
            steps[2]["options"],
            json!({
                "at_most_once": true, "on_unknown": "fail", "on_exhausted": "block",
                "key_ttl_ms": 86_400_000
            })
        );
    }
}

//! Webhooks: which workflow another service calls, and what its request becomes.

use std::sync::Arc;

use super::Engine;
use super::admit::Origin;
use super::error::{Error, Result};
use super::request::{ConflictPolicy, StartPayload, StartReceipt, StartRequest};
use crate::ids::{Digest, IdempotencyKey, Tags};
use crate::journal::Timestamp;
use crate::sandbox::{Component, Manifest, Webhook};
use crate::store::Deployment;

/// A webhook that is deployed.
#[derive(Debug, Clone)]
pub struct WebhookRoute {
    pub webhook: Webhook,
    component: Component,
    deployment: String,
    workflow: String,
}

fn webhooks_of(manifest: &Manifest) -> impl Iterator<Item = &Webhook> {
    manifest
        .workflows
        .values()
        .filter_map(|workflow| workflow.webhook.as_ref())
}

impl Engine {
    /// Refuses a component with a webhook that another deployment has, be it the same component.
    pub(super) async fn check_webhooks(&self, name: &str, component: &Component) -> Result<()> {
        let others = self.webhooks().await?;
        for webhook in webhooks_of(&component.manifest) {
            let taken = |(other, it): &&(String, Webhook)| other != name && it.path == webhook.path;
            if let Some((other, _)) = others.iter().find(taken) {
                let text = format!(
                    "webhook `{}` is that of deployment `{other}`: one path is one workflow. Deploy as `{other}`, or \
                     remove that first: `onemark components remove {other}`",
                    webhook.path
                );
                return Err(Error::InvalidRequest(text));
            }
        }
        Ok(())
    }

    /// Every webhook that is deployed, each with the name of its deployment.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn webhooks(&self) -> Result<Vec<(String, Webhook)>> {
        let mut webhooks = Vec::new();
        for Deployment { name, manifest, .. } in self.deployments().await? {
            match Manifest::parse(manifest.to_string()) {
                Ok(manifest) => {
                    webhooks.extend(webhooks_of(&manifest).map(|webhook| (name.clone(), webhook.clone())));
                }
                Err(error) => tracing::error!(name, %error, "the webhooks of a deployment cannot be read"),
            }
        }
        Ok(webhooks)
    }

    /// The webhook with this path.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn webhook(&self, path: &str) -> Result<Option<WebhookRoute>> {
        for route in self.routes().await?.iter() {
            for workflow in route.component.manifest.workflows.values() {
                if let Some(webhook) = workflow.webhook.as_ref().filter(|it| it.path == path) {
                    return Ok(Some(WebhookRoute {
                        webhook: webhook.clone(),
                        component: route.component.clone(),
                        deployment: route.deployment.clone(),
                        workflow: workflow.name.clone(),
                    }));
                }
            }
        }
        Ok(None)
    }

    /// Starts the workflow of a webhook with what its caller sent, JSON; where the token that the workflow declares is
    /// held, the run that holds it gets that as a payload. `delivery` is the caller's id of the request: the same again
    /// is answered as the first time, whatever came with it. Whose request it is was checked before.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub async fn receive_webhook(
        &self,
        route: &WebhookRoute,
        delivery: Option<&str>,
        payload: Arc<str>,
    ) -> Result<StartReceipt> {
        let workflow = &route.component.manifest.workflows[&route.workflow];
        let request = StartRequest {
            workflow: format!("{}/{}", route.deployment, route.workflow),
            input: workflow.input_from(&payload).into(),
            id: None,
            hooks: Vec::new(),
            min_retention_ms: 0,
            on_conflict: match workflow.token {
                Some(_) => ConflictPolicy::Deliver(StartPayload {
                    token: None,
                    payload,
                    always: false,
                }),
                None => ConflictPolicy::Fail,
            },
            start_at: None,
            tags: Tags::default(),
            key: None,
        };
        let same = delivery.map(|id| Digest::of(format!("{}\n{id}", route.webhook.path)));
        // A digest, since the keys of starts are few letters and those of one caller shall not be another's.
        let key = same
            .map(|same| IdempotencyKey::new(format!("webhook:{same}")))
            .transpose()?;
        let request = StartRequest { key, ..request };
        let origin = Origin {
            same,
            ..Origin::default()
        };
        self.to_its_end(move |engine| async move { engine.start_from(request, origin).await })
            .await
    }

    /// The host's time, by which the age of a request is judged.
    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }
}

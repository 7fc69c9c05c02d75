//! Deployed components, loaded once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OnceCell;

use super::Engine;
use super::error::{Error, Result};
use super::request::{DeployReceipt, RemovalReceipt, WorkflowInfo};
use super::schedules::schedules_of;
use crate::ids::Digest;
use crate::sandbox::{Component, Manifest};
use crate::store::{Deployment, StoredComponent};

/// Components by digest; each is compiled once, whoever asks first.
#[derive(Default)]
pub struct Components {
    loaded: Mutex<HashMap<Digest, Arc<OnceCell<Component>>>>,
    deployed: Mutex<Deployed>,
    /// Held while a deployment is made or removed: what it was checked against stays true.
    changing: tokio::sync::Mutex<()>,
}

/// What can be started, as the store has it. This host writes every deployment, so that it knows when to
/// look again.
#[derive(Default)]
struct Deployed {
    /// Grows with every deployment.
    version: u64,
    known: Option<Arc<[Route]>>,
}

/// A name and what it stands for.
pub(super) struct Route {
    pub deployment: String,
    pub component: Component,
}

impl Components {
    fn cell(&self, digest: Digest) -> Arc<OnceCell<Component>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.entry(digest).or_default().clone()
    }

    fn deployed(&self) -> MutexGuard<'_, Deployed> {
        self.deployed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        let mut deployed = self.deployed();
        deployed.version += 1;
        deployed.known = None;
    }
}

/// Longest name of a deployment, in bytes.
const MAX_DEPLOYMENT_NAME: usize = 100;

impl Engine {
    /// Checks a component and gives it a name. Runs that exist keep theirs.
    ///
    /// # Errors
    /// When the bytes are no component that this host can run, or the name is no good.
    pub async fn deploy(&self, name: &str, bytes: Arc<[u8]>) -> Result<DeployReceipt> {
        let name = name.to_owned();
        self.to_its_end(move |engine| async move { engine.deploy_once(&name, bytes).await })
            .await
    }

    async fn deploy_once(&self, name: &str, bytes: Arc<[u8]>) -> Result<DeployReceipt> {
        let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let taken = matches!(name, "." | "..") || name.parse::<Digest>().is_ok();
        if name.is_empty() || name.len() > MAX_DEPLOYMENT_NAME || !name.chars().all(good) || taken {
            let text = format!(
                "`{name}` is no name for a deployment; use letters, digits, `-`, `_` and `.`, at most \
                 {MAX_DEPLOYMENT_NAME}, not a digest, not `.` and `..`"
            );
            return Err(Error::InvalidRequest(text));
        }
        let component = self.0.sandbox.load(bytes.clone()).await?;
        let stored = StoredComponent {
            digest: component.digest,
            bytes,
            manifest: component.manifest.json.as_str().into(),
        };
        let now = self.0.clock.now();
        let _changing = self.0.components.changing.lock().await;
        self.check_webhooks(name, &component).await?;
        let schedules = schedules_of(&component);
        let deployed = self.0.store.deploy(name, stored, schedules, now).await;
        deployed.inspect_err(|error| self.note_failure(error))?;
        let receipt = DeployReceipt {
            name: name.to_owned(),
            digest: component.digest,
            manifest: json_of(&component.manifest.json),
        };
        self.declare_limits(&component.manifest);
        // Whoever loaded it meanwhile has the same.
        let _ = self.0.components.cell(component.digest).set(component);
        self.0.components.changed();
        self.schedules_changed();
        Ok(receipt)
    }

    /// Takes a name away: its workflows cannot be started under it any more, and its schedules, events and webhooks
    /// end. Its runs keep their component and go on.
    ///
    /// # Errors
    /// [`Error::UnknownDeployment`].
    pub async fn remove_deployment(&self, name: &str) -> Result<RemovalReceipt> {
        let name = name.to_owned();
        self.to_its_end(move |engine| async move { engine.remove_once(&name).await })
            .await
    }

    async fn remove_once(&self, name: &str) -> Result<RemovalReceipt> {
        let _changing = self.0.components.changing.lock().await;
        let mut deployments = self.deployments().await?;
        let unknown = || Error::UnknownDeployment(name.to_owned());
        let place = deployments.iter().position(|deployment| deployment.name == name);
        let removed = deployments.remove(place.ok_or_else(unknown)?);
        let done = self.0.store.remove_deployment(name).await;
        if !done.inspect_err(|error| self.note_failure(error))? {
            return Err(unknown());
        }
        self.0.components.changed();
        self.schedules_changed();
        if let Ok(manifest) = Manifest::parse(removed.manifest.to_string()) {
            for workflow in manifest.workflows.keys() {
                self.begin_all(self.0.registry.undeclare(workflow));
            }
        }
        self.declare_all(deployments);
        Ok(RemovalReceipt {
            name: removed.name,
            digest: removed.digest,
        })
    }

    /// Takes over the concurrency limits of a component that was deployed after every other.
    fn declare_limits(&self, manifest: &Manifest) {
        for workflow in manifest.workflows.values() {
            let limit = workflow.concurrency.as_ref().map(|it| it.limit);
            self.begin_all(self.0.registry.declare(&workflow.name, limit));
        }
    }

    /// As at the deployments that there are.
    pub(super) async fn recall_limits(&self) -> Result<()> {
        let deployments = self.0.store.deployments().await?;
        self.declare_all(deployments);
        Ok(())
    }

    /// The newest last.
    fn declare_all(&self, mut deployments: Vec<Deployment>) {
        deployments.sort_by_key(|deployment| deployment.deployed_at);
        for Deployment { name, manifest, .. } in deployments {
            match Manifest::parse(manifest.to_string()) {
                Ok(manifest) => self.declare_limits(&manifest),
                // Its runs keep the limits that they were admitted with.
                Err(error) => tracing::error!(name, %error, "the limits of a deployment cannot be read"),
            }
        }
    }

    /// What each name stands for.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn deployments(&self) -> Result<Vec<Deployment>> {
        Ok(self.0.store.deployments().await?)
    }

    /// The component that a digest or the name of a deployment stands for.
    ///
    /// # Errors
    /// [`Error::UnknownDeployment`].
    pub async fn component_named(&self, name: &str) -> Result<Digest> {
        if let Ok(digest) = name.parse() {
            return Ok(digest);
        }
        let mut deployments = self.deployments().await?.into_iter();
        let named = deployments.find(|deployment| deployment.name == name);
        let deployment = named.ok_or_else(|| Error::UnknownDeployment(name.to_owned()))?;
        Ok(deployment.digest)
    }

    /// Every workflow that can be started, by deployment and name.
    ///
    /// # Errors
    /// When the store cannot be read or a component no longer loads.
    pub async fn workflows(&self) -> Result<Vec<WorkflowInfo>> {
        let mut workflows = Vec::new();
        for Route {
            deployment,
            component,
        } in self.routes().await?.iter()
        {
            let manifest = json_of(&component.manifest.json);
            let declared = manifest["workflows"].as_array().into_iter().flatten();
            let declared: HashMap<_, _> = declared
                .filter_map(|workflow| Some((workflow["name"].as_str()?, workflow)))
                .collect();
            let entry = |name: &str| declared.get(name).copied().cloned().unwrap_or_default();
            workflows.extend(component.manifest.workflows.values().map(|w| WorkflowInfo {
                name: w.name.clone(),
                deployment: deployment.clone(),
                component: component.digest,
                description: w.description.clone(),
                manifest: entry(&w.name),
            }));
        }
        Ok(workflows)
    }

    /// Every deployment whose component loads.
    pub(super) async fn routes(&self) -> Result<Arc<[Route]>> {
        let version = {
            let deployed = self.0.components.deployed();
            if let Some(known) = &deployed.known {
                return Ok(known.clone());
            }
            deployed.version
        };
        let mut routes = Vec::new();
        for Deployment { name, digest, .. } in self.0.store.deployments().await? {
            match self.component(digest).await {
                Ok(component) => routes.push(Route {
                    deployment: name,
                    component,
                }),
                Err(Error::Store(error)) => return Err(error.into()),
                // One that no longer loads keeps nobody from starting the others.
                Err(error) => tracing::error!(name, %error, "a deployment cannot be started"),
            }
        }
        let routes: Arc<[Route]> = routes.into();
        let mut deployed = self.0.components.deployed();
        if deployed.version == version {
            deployed.known = Some(routes.clone());
        }
        Ok(routes)
    }

    /// The component with this digest, compiled at first use.
    ///
    /// # Errors
    /// When it is not stored or no longer loads.
    pub(super) async fn component(&self, digest: Digest) -> Result<Component> {
        let cell = self.0.components.cell(digest);
        if let Some(component) = cell.get() {
            return Ok(component.clone());
        }
        // Boxed, since every run holds room for this future, and it is rarely made.
        let component = Box::pin(cell.get_or_try_init(|| async {
            let stored = self.0.store.component(digest).await?;
            let stored = stored.ok_or(Error::UnknownComponent(digest))?;
            // Other code under this name could do anything to the run.
            if Digest::of(&stored.bytes) != digest {
                return Err(Error::DamagedComponent(digest));
            }
            Ok::<_, Error>(self.0.sandbox.load(stored.bytes).await?)
        }));
        Ok(component.await?.clone())
    }

    /// Compiles a component without keeping it, to try a journal against it.
    ///
    /// # Errors
    /// When the bytes are no component that this host can run.
    pub async fn load(&self, bytes: Arc<[u8]>) -> Result<Component> {
        Ok(self.0.sandbox.load(bytes).await?)
    }

    /// The component that a start of this workflow takes, and the workflow's bare name.
    pub(super) async fn resolve(&self, workflow: &str) -> Result<(Component, String)> {
        let (wanted, name) = match workflow.split_once('/') {
            Some((deployment, name)) => (Some(deployment), name),
            None => (None, workflow),
        };
        let routes = self.routes().await?;
        let offers = |route: &&Route| {
            wanted.is_none_or(|wanted| wanted == route.deployment)
                && route.component.manifest.workflows.contains_key(name)
        };
        let found: Vec<_> = routes.iter().filter(offers).collect();
        match found.as_slice() {
            [] => Err(Error::UnknownWorkflow(workflow.to_owned())),
            // Several names for one component are no choice.
            [first, rest @ ..] if rest.iter().all(|r| r.component.digest == first.component.digest) => {
                Ok((first.component.clone(), name.to_owned()))
            }
            _ => Err(Error::AmbiguousWorkflow {
                name: name.to_owned(),
                candidates: found.iter().map(|r| format!("{}/{name}", r.deployment)).collect(),
            }),
        }
    }
}

fn json_of(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_default()
}

//! Deploying components, and what is deployed.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::value::RawValue;

use super::error::Result;
use super::extract::{ComponentBytes, Path};
use super::webhooks::{Secrets, warn_of_secrets};
use crate::engine::{DeployReceipt, Engine, RemovalReceipt, WorkflowInfo};
use crate::ids::Digest;
use crate::journal::Timestamp;

#[derive(Serialize)]
pub struct DeployedView {
    #[serde(flatten)]
    receipt: DeployReceipt,
    /// What keeps it from working as it is deployed, in words.
    warnings: Vec<String>,
}

/// `PUT /v1/components/{name}`
pub async fn deploy(
    State(engine): State<Engine>,
    State(secrets): State<Secrets>,
    Path(name): Path,
    ComponentBytes(bytes): ComponentBytes,
) -> Result<Json<DeployedView>> {
    let receipt = engine.deploy(&name, bytes.as_ref().into()).await?;
    let warnings = warn_of_secrets(&engine, &secrets, Some(&name)).await?;
    Ok(Json(DeployedView { receipt, warnings }))
}

/// `DELETE /v1/components/{name}`: nothing starts under this name any more.
pub async fn remove(State(engine): State<Engine>, Path(name): Path) -> Result<Json<RemovalReceipt>> {
    Ok(Json(engine.remove_deployment(&name).await?))
}

#[derive(Serialize)]
pub struct Components {
    components: Vec<Deployed>,
}

#[derive(Serialize)]
struct Deployed {
    name: String,
    digest: Digest,
    deployed_at: Timestamp,
    manifest: Option<Box<RawValue>>,
}

/// `GET /v1/components`
pub async fn list(State(engine): State<Engine>) -> Result<Json<Components>> {
    let deployments = engine.deployments().await?.into_iter();
    let components = deployments.map(|deployment| Deployed {
        name: deployment.name,
        digest: deployment.digest,
        deployed_at: deployment.deployed_at,
        manifest: RawValue::from_string(deployment.manifest.to_string()).ok(),
    });
    Ok(Json(Components {
        components: components.collect(),
    }))
}

#[derive(Serialize)]
pub struct Workflows {
    workflows: Vec<WorkflowInfo>,
}

/// `GET /v1/workflows`
pub async fn workflows(State(engine): State<Engine>) -> Result<Json<Workflows>> {
    Ok(Json(Workflows {
        workflows: engine.workflows().await?,
    }))
}

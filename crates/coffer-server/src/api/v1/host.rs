//! What the host of the sandboxes can do.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::ErrorShape;
use crate::api::App;
use crate::api::auth::{Caller, Read};
use crate::api::error::ApiError;

/// What the host of the sandboxes can and cannot do.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Host {
    /// What runs the sandboxes.
    engine: String,
    /// Whether processes can be frozen where they are.
    freeze: bool,
    /// Whether memory can be put on disk: pauses that outlive the host, snapshots and forks with processes.
    memory_snapshot: bool,
    /// Why not, where it cannot.
    memory_snapshot_lacks: Option<String>,
    disk_quota: bool,
    memory_limit: bool,
    cpu_limit: bool,
    process_limit: bool,
    network: bool,
}

/// What the host of the sandboxes can do.
#[utoipa::path(
    get, path = "/api/v1/host", tag = "server",
    responses((status = 200, body = Host), (status = 401, body = ErrorShape), (status = 503, body = ErrorShape))
)]
pub(super) async fn show(State(app): State<Arc<App>>, _: Caller<Read>) -> Result<Json<Host>, ApiError> {
    let info = app.fleet.host().await.map_err(|error| ApiError::fleet(error, ""))?;
    let can = info.capabilities;
    Ok(Json(Host {
        engine: info.engine,
        freeze: can.freeze,
        memory_snapshot: can.memory_snapshot,
        memory_snapshot_lacks: info.memory_snapshot_lacks.filter(|_| !can.memory_snapshot),
        disk_quota: can.disk_quota,
        memory_limit: can.memory_limit,
        cpu_limit: can.cpu_limit,
        process_limit: can.process_limit,
        network: can.network,
    }))
}

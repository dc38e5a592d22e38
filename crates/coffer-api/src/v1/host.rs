//! Capabilities of the host.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::app::App;
use crate::auth::{Caller, Operating, Read};
use crate::error::ApiError;
use coffer_api_types::host::{Host, HostFailure, HostReport, KernelFeature, LargestSandbox};
use coffer_core::clock::rfc3339;

/// Returns what the host can do.
#[utoipa::path(
    get, path = "/api/v1/host", tag = "server",
    responses((status = 200, body = Host))
)]
pub(super) async fn show(State(app): State<Arc<App>>, _: Caller<Read>) -> Result<Json<Host>, ApiError> {
    let info = app.fleet.host().await.map_err(|error| ApiError::fleet(error, ""))?;
    let largest = app.fleet.largest_size(&info);
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
        largest_sandbox: LargestSandbox {
            cpu_count: largest.cpu_count,
            memory_mib: largest.memory_mib,
            disk_mib: largest.disk_mib,
        },
    }))
}

/// Kernel features of the host, and its recent failures. For operators.
#[utoipa::path(
    get, path = "/api/v1/admin/host", tag = "server",
    responses((status = 200, body = HostReport))
)]
pub(super) async fn inspect(State(app): State<Arc<App>>, _: Operating) -> Result<Json<HostReport>, ApiError> {
    let info = app.fleet.host().await.map_err(|error| ApiError::fleet(error, ""))?;
    let feature = |one: coffer_engine::KernelFeature| KernelFeature {
        name: one.name,
        present: one.present,
        why: one.why,
        without: one.without,
    };
    let failures = app.host_failures.list().into_iter();
    let failures =
        failures.map(|one| HostFailure { at: rfc3339(one.at_ms), request_id: one.request_id, why: one.why });
    Ok(Json(HostReport {
        engine: info.engine,
        warnings: info.warnings,
        kernel: info.kernel.into_iter().map(feature).collect(),
        failures: failures.collect(),
    }))
}

//! The network policy, traffic and refusals of a sandbox.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::network::{Policy, Refusals};
use coffer_wire::e2b::NetworkUpdate;

use super::app::App;
use super::auth::{Named, Read, Write};
use super::body::Checked;
use super::error::ApiError;
use super::query::Query;
use coffer_api_types::ErrorShape;
use coffer_api_types::network::{PolicyShape, Reach, ReachQuery};
use coffer_core::Code;
use coffer_fleet::Record;
use coffer_fleet::network;

async fn reach(app: &App, record: &Record, id: &str, after: u64) -> Result<Json<Reach>, ApiError> {
    let policy = record.row().network.policy;
    let refusals = app.fleet.refusals(record, after).await;
    let Refusals { refusals, total, forgotten } =
        refusals.map_err(|error| ApiError::fleet(error.into(), id))?;
    let traffic = record.reported().traffic;
    Ok(Json(Reach { policy: policy.shown(), traffic, refusals, total, forgotten }))
}

/// Returns the network policy, traffic and refusals of a sandbox.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/network", tag = "sandboxes",
    params(("id" = String, Path), ReachQuery),
    responses((status = 200, body = Reach), (status = 501, body = ErrorShape))
)]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    named: Named<Read>,
    Query(query): Query<ReachQuery>,
) -> Result<Json<Reach>, ApiError> {
    reach(&app, &named.record, &named.id, query.after.unwrap_or(0)).await
}

/// Replaces the network policy of a running sandbox, and cuts the connections that it forbids.
#[utoipa::path(
    put, path = "/api/v1/sandboxes/{id}/network", tag = "sandboxes", params(("id" = String, Path)),
    request_body = PolicyShape,
    responses((status = 200, body = Reach), (status = 409, body = ErrorShape), (status = 501, body = ErrorShape))
)]
pub(super) async fn replace(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    Checked(policy): Checked<Policy>,
) -> Result<Json<Reach>, ApiError> {
    let update = NetworkUpdate { policy: Some(policy), ..NetworkUpdate::default() };
    let update = network::read_update(update);
    let update = update.map_err(|error| ApiError::of(Code::Invalid, error.to_string()))?;
    let set = app.fleet.set_network(named.record.clone(), update).await;
    set.map_err(|error| ApiError::fleet(error, &named.id))?;
    reach(&app, &named.record, &named.id, 0).await
}

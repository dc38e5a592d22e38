//! What a sandbox may reach, what it has, and what it was refused.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::network::{Policy, Refusals, Traffic};
use serde::Serialize;

use super::App;
use super::auth::Named;
use super::error::ApiError;
use super::network;
use super::query::Query;
use crate::fleet::network_of;

#[derive(Debug, Serialize)]
pub(super) struct Reach {
    policy: Policy,
    /// As of the newest sample, some seconds ago at the most.
    traffic: Traffic,
    #[serde(flatten)]
    refusals: Refusals,
}

/// `GET /api/v1/sandboxes/{id}/network`: with `after`, only the refusals after that one.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    named: Named,
    query: Query,
) -> Result<Json<Reach>, ApiError> {
    let after = query.number("after")?.unwrap_or(0).unsigned_abs();
    let row = named.record.row();
    let policy = network::policy(network_of(&row).as_ref(), row.allow_internet_access);
    let policy = policy.map_err(|error| {
        tracing::error!(sandbox.id = %row.id, "network settings on record that make no sense: {error}");
        ApiError::internal()
    })?;
    let refusals = app.fleet.refusals(&named.record, after).await;
    let refusals = refusals.map_err(|error| ApiError::fleet(error.into(), &named.id))?;
    let traffic = named.record.reported().traffic;
    Ok(Json(Reach { policy: policy.shown(), traffic, refusals }))
}

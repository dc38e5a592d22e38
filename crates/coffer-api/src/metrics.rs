//! Resource usage of sandboxes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::SandboxId;
use coffer_wire::e2b::{Metric, SandboxesMetrics};

use super::app::App;
use super::auth::{Caller, Named, Read};
use super::error::ApiError;
use super::query::Pairs;

const MOST_SANDBOXES: usize = 100;

/// `GET /sandboxes/{id}/metrics`: samples between `start` and `end`, in seconds.
pub(super) async fn series(named: Named<Read>, query: Pairs) -> Result<Json<Vec<Metric>>, ApiError> {
    let from_ms = query.number("start")?.unwrap_or(0).saturating_mul(1000);
    // The second that `end` names belongs to the range.
    let to_ms = query.number("end")?.map_or(i64::MAX, |end| end.saturating_mul(1000).saturating_add(999));
    if from_ms > to_ms {
        return Err(ApiError::bad_request("start must not be after end"));
    }
    let limits = named.record.live().row.limits;
    Ok(Json(named.record.samples().between(from_ms, to_ms, limits)))
}

/// `GET /sandboxes/metrics`: the newest sample of each sandbox named; others are left out.
pub(super) async fn newest(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    query: Pairs,
) -> Result<Json<SandboxesMetrics>, ApiError> {
    let ids: Vec<&str> =
        query.all("sandbox_ids").flat_map(|value| value.split(',')).filter(|id| !id.is_empty()).collect();
    if ids.is_empty() || ids.len() > MOST_SANDBOXES {
        return Err(ApiError::bad_request(format!("sandbox_ids must name 1 to {MOST_SANDBOXES} sandboxes")));
    }
    let found = ids.into_iter().filter_map(|text| {
        let id: SandboxId = text.parse().ok()?;
        let record = app.fleet.find(&caller.scope, id)?;
        let limits = record.live().row.limits;
        let newest = record.samples().newest(limits)?;
        Some((text.to_string(), newest))
    });
    Ok(Json(SandboxesMetrics { sandboxes: found.collect() }))
}

//! What sandboxes use.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::Millis;

use super::executions::time;
use crate::app::App;
use crate::auth::{NamedId, Read, not_here};
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::Page;
use coffer_api_types::sandboxes::{SampleQuery, SandboxSample};

/// Samples of what a sandbox used, oldest first: one every five seconds for the last half hour. The server that
/// holds it has them in memory, so there are none from before its start, or after the end of the sandbox.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/metrics", tag = "sandboxes", params(("id" = String, Path), SampleQuery),
    responses((status = 200, body = Page<SandboxSample>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    named: NamedId<Read>,
    Query(query): Query<SampleQuery>,
) -> Result<Json<Page<SandboxSample>>, ApiError> {
    let from_ms = time("start", query.start.as_deref())?.unwrap_or(0);
    let to_ms = time("end", query.end.as_deref())?.unwrap_or(Millis::MAX);
    if from_ms > to_ms {
        return Err(ApiError::invalid("start", "must not be after end"));
    }
    let scope = &named.caller.scope;
    let Some(record) = app.fleet.find(scope, named.id) else {
        let over = app.store.sandbox(scope, named.id).await.map_err(ApiError::store)?;
        return match over {
            Some(row) if app.store.holder_elsewhere(&row).is_none() => Ok(Json(Page::new(Vec::new(), None))),
            _ => Err(not_here(&app, scope, named.id, &named.text).await),
        };
    };
    let limits = record.live().row.limits;
    let samples = record.samples().between(from_ms, to_ms, limits);
    let shown = samples.into_iter().map(|sample| SandboxSample {
        at: sample.timestamp,
        cpu_count: sample.cpu_count,
        cpu_used_pct: sample.cpu_used_pct,
        memory_used_bytes: sample.mem_used,
        memory_cache_bytes: sample.mem_cache,
        memory_total_bytes: sample.mem_total,
        disk_used_bytes: sample.disk_used,
        disk_total_bytes: sample.disk_total,
    });
    Ok(Json(Page::new(shown.collect(), None)))
}

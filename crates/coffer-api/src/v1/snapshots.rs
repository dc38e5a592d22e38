//! Snapshots of sandboxes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::{Memory, SnapshotId};
use coffer_store::{SnapshotFilter, SnapshotRow};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::page::Part;
use super::sandboxes::{self, usual_timeout_s};
use crate::app::App;
use crate::auth::{Caller, Id, Named, Read, Write};
use crate::body::{Checked, MaybeChecked};
use crate::context::Context;
use crate::error::ApiError;
use crate::query::Query;
use crate::snapshots::{checked_name, full_name};
use crate::templates;
use coffer_api_types::sandboxes::Sandbox;
use coffer_api_types::snapshots::{NewSnapshot, RollbackBody, Snapshot, SnapshotQuery};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::Code;
use coffer_core::clock::rfc3339;
use coffer_fleet::{FleetError, MemoryWish, SnapshotSpec};

fn shown(row: SnapshotRow) -> Snapshot {
    Snapshot {
        id: row.id.to_string(),
        state: row.state.as_str().to_string(),
        sandbox_id: row.sandbox.to_string(),
        full_name: full_name(&row),
        name: row.name,
        tag: row.tag,
        memory: row.memory,
        note: row.note,
        template: row.template,
        cpu_count: row.limits.cpu_count,
        memory_mib: row.limits.memory_mib,
        disk_mib: row.limits.disk_mib,
        files_bytes: row.files_bytes,
        memory_bytes: row.memory_bytes,
        paused_us: row.paused_us,
        created_by: row.created_by,
        created_at: rfc3339(row.created_ms),
        installation: row.installation,
    }
}

/// Creates a snapshot of a running sandbox, which keeps running.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/snapshots", tag = "snapshots", request_body = Option<NewSnapshot>,
    params(
        ("id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "the same key and body create one snapshot")
    ),
    responses(
        (status = 201, body = Snapshot, headers(("Location" = String))),
        (status = 409, body = ErrorShape, description = "it is paused or changing, or its processes hold secrets"),
        (status = 501, body = ErrorShape, description = "`memory` is true and cannot be saved")
    )
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    named: Named<Write>,
    context: Context,
    headers: HeaderMap,
    MaybeChecked(new): MaybeChecked<NewSnapshot>,
) -> Result<(StatusCode, HeaderMap, Json<Snapshot>), ApiError> {
    // The sandbox is part of the request.
    let idempotency = crate::check::idempotency_of(&headers, &caller.actor(), &(named.record.id, &new))?;
    let name = new.name.as_deref().map(|name| checked_name(&caller.scope, name)).transpose();
    let name = name.map_err(|why| ApiError::of(Code::Invalid, why))?;
    if let Some(reference) = &name
        && templates::is_template(&app, &reference.name).await?
    {
        let why = format!("'{}' is that of a template; choose another", reference.name);
        return Err(ApiError::invalid("name", why));
    }
    let (name, tag) = name.map_or((None, None), |reference| (Some(reference.name), reference.tag));
    let spec = SnapshotSpec {
        name,
        tag,
        wish: MemoryWish { memory: new.memory, with_secrets: new.inherit_secrets },
        created_by: Some(caller.key_id.to_string()),
        idempotency,
        ..SnapshotSpec::default()
    };
    let made = app.fleet.snapshot(caller.scope, named.record, spec).await;
    let row = made.map_err(|error| ApiError::fleet(error, &named.id))?;
    context.made(row.id);
    let place = HeaderValue::try_from(format!("/api/v1/snapshots/{}", row.id)).expect("letters and digits");
    Ok((StatusCode::CREATED, HeaderMap::from_iter([(header::LOCATION, place)]), Json(shown(row))))
}

/// The snapshots of the project, newest first.
#[utoipa::path(
    get, path = "/api/v1/snapshots", tag = "snapshots", params(PageQuery, SnapshotQuery),
    responses((status = 200, body = Page<Snapshot>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
    Query(query): Query<SnapshotQuery>,
) -> Result<Json<Page<Snapshot>>, ApiError> {
    let part: Part<SnapshotId> = Part::of(page)?;
    let sandbox = query.sandbox_id;
    let name = query.name.map(|name| checked_name(&caller.scope, &name)).transpose();
    let name = name.map_err(|why| ApiError::of(Code::Invalid, why))?;
    let (name, tag) = name.map_or((None, None), |reference| (Some(reference.name), reference.tag));
    let (before, limit) = (part.after, part.to_fetch());
    let filter = SnapshotFilter { sandbox, name, tag, usable_only: false, before, limit };
    let rows = app.store.snapshots(&caller.scope, &filter).await.map_err(ApiError::store)?;
    Ok(Json(part.page(rows, |row| row.id.to_string(), shown)))
}

/// One snapshot.
#[utoipa::path(
    get, path = "/api/v1/snapshots/{snapshot}", tag = "snapshots", params(("snapshot" = String, Path)),
    responses((status = 200, body = Snapshot))
)]
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(snapshot): Id<SnapshotId>,
) -> Result<Json<Snapshot>, ApiError> {
    let row = app.store.snapshot(&caller.scope, snapshot).await.map_err(ApiError::store)?;
    let unknown = || ApiError::fleet(FleetError::NoSnapshot(snapshot.to_string()), "");
    row.map(|row| Json(shown(row))).ok_or_else(unknown)
}

/// Deletes a snapshot. Sandboxes from it keep running.
#[utoipa::path(
    delete, path = "/api/v1/snapshots/{snapshot}", tag = "snapshots", params(("snapshot" = String, Path)),
    responses((status = 204), (status = 421, body = ErrorShape))
)]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(snapshot): Id<SnapshotId>,
) -> Result<StatusCode, ApiError> {
    let deleted = app.fleet.delete_snapshot(caller.scope, snapshot).await;
    deleted.map_err(|error| ApiError::fleet(error, ""))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Rolls a sandbox back to one of its snapshots, in place. Its processes end, and files written since are
/// lost.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/rollback", tag = "snapshots", params(("id" = String, Path)),
    request_body = RollbackBody,
    responses(
        (status = 200, body = Sandbox), (status = 402, body = ErrorShape, description = "a budget is spent"),
        (status = 404, body = ErrorShape, description = "no such sandbox or snapshot"),
        (status = 409, body = ErrorShape),
        (status = 501, body = ErrorShape, description = "`memory` is true, but the snapshot has none or the host cannot restore it")
    )
)]
pub(super) async fn rollback(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    named: Named<Write>,
    Checked(body): Checked<RollbackBody>,
) -> Result<Json<Sandbox>, ApiError> {
    let project = app.limiter.of(named.record.project);
    let timeout_ms = app.policy.check(body.timeout_s.unwrap_or_else(|| usual_timeout_s(&app, &project)));
    let timeout_ms = timeout_ms.map_err(|error| ApiError::invalid("timeout_s", error.to_string()))?;
    let RollbackBody { snapshot_id, memory, .. } = body;
    let memory = memory.map(Memory::from);
    let done = app.fleet.rollback(caller.scope, named.record, snapshot_id, memory, timeout_ms).await;
    let row = done.map_err(|error| ApiError::fleet(error, &named.id))?;
    Ok(Json(sandboxes::shown(&app, row)))
}

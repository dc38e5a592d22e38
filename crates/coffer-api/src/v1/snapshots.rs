//! Snapshots of sandboxes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::{SandboxId, SnapshotId};
use coffer_store::{SnapshotFilter, SnapshotRow};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::page::Part;
use super::sandboxes::{self, Sandbox, usual_timeout_s};
use crate::app::App;
use crate::auth::{Caller, Id, Named, Read, Write};
use crate::body::{Checked, MaybeChecked};
use crate::context::Context;
use crate::error::ApiError;
use crate::query::Query;
use crate::snapshots::{checked_name, full_name};
use crate::templates;
use coffer_api_types::ErrorShape;
use coffer_api_types::{Page, PageQuery};
use coffer_core::Code;
use coffer_core::clock::rfc3339;
use coffer_fleet::{FleetError, MemoryWish, SnapshotSpec};

/// A snapshot to be made.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NewSnapshot {
    /// `name` or `name:tag`. From when it is made, the name stands for it and no longer for one before it.
    #[schema(example = "built:v2")]
    name: Option<String>,
    /// Whether the processes are kept too. True is refused where that cannot be; by default they are kept where
    /// it can.
    memory: Option<bool>,
    /// Whether values of secrets that the processes hold may be in it, and in every sandbox made from it. Without,
    /// a sandbox that has some is kept without its processes.
    inherit_secrets: bool,
}

/// What a sandbox was at one moment.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Snapshot {
    id: String,
    /// `creating`, `ready` or `deleting`.
    state: &'static str,
    /// The sandbox that it was made of, which may be over.
    sandbox_id: String,
    name: Option<String>,
    tag: String,
    /// The name in full, which a create takes as its `template`; null where there is none, or where it stands for
    /// a newer snapshot.
    full_name: Option<String>,
    /// Whether sandboxes made from it go on with its processes.
    memory: bool,
    /// Why not, where that was not asked for.
    note: Option<String>,
    template: String,
    cpu_count: u32,
    memory_mib: u64,
    disk_mib: u64,
    files_bytes: u64,
    memory_bytes: u64,
    /// How long the sandbox stood still for it, in microseconds.
    paused_us: u64,
    /// The key that asked for it.
    created_by: Option<String>,
    created_at: String,
    /// The installation whose host has it.
    installation: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SnapshotQuery {
    /// Only those of that sandbox.
    #[param(value_type = Option<String>)]
    sandbox_id: Option<SandboxId>,
    /// Only those of that name, also where it stands for a newer one; with `:tag` only those of that tag.
    name: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RollbackBody {
    /// One of the sandbox itself, or the one that it began with.
    #[schema(value_type = String)]
    snapshot_id: SnapshotId,
    /// Whether the snapshot's processes go on; by default they do if it has them.
    #[serde(default)]
    memory: Option<bool>,
    /// How long a paused sandbox lives from then on, in seconds. One that runs keeps its deadline.
    #[schema(minimum = 1)]
    #[serde(default)]
    timeout_s: Option<i64>,
}

fn shown(row: SnapshotRow) -> Snapshot {
    Snapshot {
        id: row.id.to_string(),
        state: row.state.as_str(),
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

/// Makes a snapshot of a running sandbox, which goes on.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/snapshots", tag = "snapshots", request_body = Option<NewSnapshot>,
    params(
        ("id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "the same key and body make one snapshot")
    ),
    responses(
        (status = 201, body = Snapshot, headers(("Location" = String))),
        (status = 409, body = ErrorShape, description = "it is paused or changing, or its processes hold secrets"),
        (status = 501, body = ErrorShape, description = "memory was asked for and cannot be kept")
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
    // The sandbox is part of what is asked for.
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

/// Deletes a snapshot. Sandboxes that were made from it go on.
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

/// Takes a sandbox back to one of its snapshots, in place. What ran in it ends, and what it wrote since is gone.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/rollback", tag = "snapshots", params(("id" = String, Path)),
    request_body = RollbackBody,
    responses(
        (status = 200, body = Sandbox), (status = 402, body = ErrorShape, description = "its budget is spent"),
        (status = 404, body = ErrorShape, description = "no such sandbox or snapshot"),
        (status = 409, body = ErrorShape),
        (status = 501, body = ErrorShape, description = "memory was asked for and cannot be had")
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
    let done = app.fleet.rollback(caller.scope, named.record, snapshot_id, memory, timeout_ms).await;
    let row = done.map_err(|error| ApiError::fleet(error, &named.id))?;
    Ok(Json(sandboxes::shown(&app, row)))
}

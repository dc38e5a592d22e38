//! Snapshots and forks, as E2B has them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::{SnapshotId, TemplateRef};
use coffer_store::{ProjectScope, SnapshotFilter, SnapshotRow};
use coffer_wire::e2b::{ForkRequest, ForkResult, Snapshot, SnapshotRequest};
use http::{HeaderMap, StatusCode};

use super::app::App;
use super::auth::{Caller, Named, Read, Write};
use super::body::MaybeBody;
use super::context::Context;
use super::error::ApiError;
use super::query::Pairs;
use super::{show, templates};
use coffer_fleet::{DEFAULT_TAG, ForkSpec, MemoryWish, SnapshotSpec};

const LARGEST_PAGE: i64 = 100;

/// The default timeout of forks, in seconds.
const FORK_S: i64 = 15;
/// The most forks of one request; quotas usually allow fewer.
pub(super) const MOST_CHILDREN: u32 = 100;

/// `POST /sandboxes/{id}/snapshots`.
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    named: Named<Write>,
    context: Context,
    MaybeBody(request): MaybeBody<SnapshotRequest>,
) -> Result<(StatusCode, Json<Snapshot>), ApiError> {
    let name = request.name.as_deref().map(|name| checked_name(&caller.scope, name)).transpose();
    let name = name.map_err(ApiError::bad_request)?;
    if let Some(TemplateRef { name, .. }) = &name
        && templates::is_template(&app, name).await?
    {
        return Err(ApiError::bad_request(format!("'{name}' is the name of a template; choose another")));
    }
    let (name, tag) = name.map_or((None, None), |reference| (Some(reference.name), reference.tag));
    let spec = SnapshotSpec {
        name,
        tag,
        wish: MemoryWish { memory: request.memory, with_secrets: false },
        created_by: Some(caller.key_id.to_string()),
        idempotency: None,
        ..SnapshotSpec::default()
    };
    let made = app.fleet.snapshot(caller.scope, named.record, spec).await;
    let row = made.map_err(|error| ApiError::fleet(error, &named.id))?;
    context.made(row.id);
    Ok((StatusCode::CREATED, Json(shown(&row))))
}

/// `GET /snapshots`: a page, newest first.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    query: Pairs,
) -> Result<(HeaderMap, Json<Vec<Snapshot>>), ApiError> {
    let limit = query.number("limit")?.unwrap_or(LARGEST_PAGE);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        return Err(ApiError::bad_request(format!("limit must be between 1 and {LARGEST_PAGE}")));
    }
    let before = query.text("nextToken").map(str::parse::<SnapshotId>).transpose();
    let before = before.map_err(|_| ApiError::bad_request("nextToken is not a token of this server"))?;
    let mut headers = HeaderMap::new();
    // A name may also be an id.
    if let Some(reference) = query.text("name").and_then(|name| name.parse::<TemplateRef>().ok())
        && reference.name.parse::<SnapshotId>().is_ok()
    {
        let found = app.fleet.snapshot_called(&caller.scope, &reference).await;
        let found = found.map_err(|error| ApiError::fleet(error, ""))?;
        return Ok((headers, Json(found.iter().map(shown).collect())));
    }
    // A text that is not a valid sandbox id or name has no snapshots.
    let sandbox = query.text("sandboxID").map(|id| id.split('-').next().unwrap_or_default().parse());
    let name = query.text("name").map(|name| checked_name(&caller.scope, name));
    let (Ok(sandbox), Ok(name)) = (sandbox.transpose(), name.transpose()) else {
        return Ok((headers, Json(Vec::new())));
    };
    let (name, tag) = name.map_or((None, None), |reference| (Some(reference.name), reference.tag));
    let limit = u32::try_from(limit).map_err(|_| ApiError::internal())?;
    // Fetch one more than is shown to learn whether there is a next page.
    let filter = SnapshotFilter { sandbox, name, tag, usable_only: true, before, limit: limit + 1 };
    let mut rows = app.store.snapshots(&caller.scope, &filter).await.map_err(ApiError::store)?;
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    if let Some(last) = rows.last().filter(|_| more) {
        let next = last.id.to_string().try_into().map_err(|_| ApiError::internal())?;
        headers.insert("x-next-token", next);
    }
    Ok((headers, Json(rows.iter().map(shown).collect())))
}

/// `POST /sandboxes/{id}/fork`: one result for each requested fork.
pub(super) async fn fork(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    named: Named<Write>,
    MaybeBody(request): MaybeBody<ForkRequest>,
) -> Result<(StatusCode, Json<Vec<ForkResult>>), ApiError> {
    let timeout_ms = app.policy.check(request.timeout.unwrap_or(FORK_S));
    let timeout_ms = timeout_ms.map_err(|error| ApiError::bad_request(error.to_string()))?;
    let count = u32::try_from(request.count.unwrap_or(1)).ok().filter(|n| (1..=MOST_CHILDREN).contains(n));
    let count =
        count.ok_or_else(|| ApiError::bad_request(format!("count must be between 1 and {MOST_CHILDREN}")))?;
    let spec = ForkSpec {
        count,
        timeout_ms,
        wish: MemoryWish::default(),
        task: None,
        idle_s: None,
        sizes: Vec::new(),
        metadata: Default::default(),
        env_vars: Default::default(),
        secrets: Default::default(),
        idempotency: None,
    };
    let forked = app.fleet.fork(caller.scope, named.record, spec).await;
    let forked = forked.map_err(|error| ApiError::fleet(error, &named.id))?;
    let domain = app.domain.as_deref();
    let results = forked.children.into_iter().map(|child| match child {
        Ok(row) => ForkResult::Sandbox(show::sandbox(&row, domain)),
        Err(error) => ForkResult::Error(ApiError::fleet(error, &named.id).into_e2b()),
    });
    Ok((StatusCode::CREATED, Json(results.collect())))
}

/// A name that a snapshot of the project may have.
pub(super) fn checked_name(scope: &ProjectScope, name: &str) -> Result<TemplateRef, String> {
    let reference: TemplateRef = name.parse().map_err(|_| {
        let shown: String = name.chars().take(100).collect();
        format!("name '{shown}' is not of the form name or name:tag with letters, digits, - and _")
    })?;
    let own = scope.project().to_string();
    match &reference.namespace {
        Some(namespace) if *namespace != own => Err(format!("names of this project begin with {own}/")),
        // It would look like a snapshot's id.
        _ if reference.name.parse::<SnapshotId>().is_ok() => {
            Err("an id cannot be used as a name".to_string())
        }
        _ => Ok(reference),
    }
}

/// The full name of a snapshot, if it has a name.
pub(super) fn full_name(row: &SnapshotRow) -> Option<String> {
    let current = row.name.as_ref().filter(|_| row.is_current)?;
    Some(format!("{}/{current}:{}", row.project, row.tag))
}

fn shown(row: &SnapshotRow) -> Snapshot {
    let name = full_name(row);
    let snapshot_id = name.clone().unwrap_or_else(|| format!("{}:{DEFAULT_TAG}", row.id));
    Snapshot { snapshot_id, names: name.into_iter().collect() }
}

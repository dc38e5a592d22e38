//! Sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::network::{Base, NetworkSettings, Policy};
use coffer_core::{
    BadMount, DestroyReason, Kept, OnTimeout, SandboxPurpose, SandboxState, SizeWish, StateName, TemplateRef,
    check_mounts,
};
use coffer_store::{Bounds, Cursor, ListFilter, Order, SandboxRow, SnapshotState, Transition};
use coffer_wire::e2b::Network;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::bounds::within;
use super::page::Part;
use crate::app::App;
use crate::auth::{Caller, Named, NamedId, Operating, Read, Write, not_here};
use crate::body::{Checked, MaybeChecked};
use crate::context::Context;
use crate::error::ApiError;
use crate::query::{Query, names};
use crate::{check, kinds};
use coffer_api_types::sandboxes::{
    AtTimeout, Extension, LifeStep, NewSandbox, OwnedSandbox, PauseBody, ResumeBody, Sandbox, SandboxQuery,
};
use coffer_api_types::volumes::{NewMount, VolumeMount};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::Code;
use coffer_core::clock::rfc3339;
use coffer_fleet::limits::InForce;
use coffer_fleet::{Boot, Connected, CreateSpec, FleetError, IfSilent, MountWish, describe};

/// The longest time between heartbeats.
const LONGEST_LEASE_S: i64 = 86_400;

pub(super) const fn on_timeout(chosen: AtTimeout) -> OnTimeout {
    match chosen {
        AtTimeout::Kill => OnTimeout::Destroy,
        AtTimeout::Pause => OnTimeout::Pause,
        AtTimeout::PauseFilesOnly => OnTimeout::PauseFilesOnly,
    }
}

pub(super) const fn at_timeout(chosen: OnTimeout) -> AtTimeout {
    match chosen {
        OnTimeout::Destroy => AtTimeout::Kill,
        OnTimeout::Pause => AtTimeout::Pause,
        OnTimeout::PauseFilesOnly => AtTimeout::PauseFilesOnly,
    }
}

pub(super) fn shown(app: &App, row: SandboxRow) -> Sandbox {
    // The server that holds the sandbox knows it exactly.
    let last_ms = app.fleet.any(row.id).map(|record| record.last_used_ms()).or(row.last_used_ms);
    let reason = match &row.state {
        SandboxState::Error { fault } => Some(describe(fault)),
        SandboxState::Terminated { reason: DestroyReason::LeaseExpired } => Some("lease expired".to_string()),
        SandboxState::Terminated { reason } => Some(reason.as_str().to_string()),
        SandboxState::Paused { kept: Kept::FilesOnly } => Some("its files are kept".to_string()),
        SandboxState::Paused { kept: Kept::MemoryAndFiles } => Some("its processes are kept".to_string()),
        SandboxState::Creating | SandboxState::Running => None,
    };
    Sandbox {
        id: row.id.to_string(),
        state: row.state.name().as_str().to_string(),
        reason,
        template: row.template,
        agent_id: row.agent.map(|agent| agent.to_string()),
        task_id: row.task.map(|task| task.to_string()),
        metadata: row.metadata,
        cpu_count: row.limits.cpu_count,
        memory_mib: row.limits.memory_mib,
        disk_mib: row.limits.disk_mib,
        created_at: rfc3339(row.created_ms),
        started_at: rfc3339(row.lifetime.started_ms),
        deadline: rfc3339(row.lifetime.deadline_ms),
        on_timeout: at_timeout(row.lifetime.on_timeout),
        auto_resume: row.auto_resume,
        ended_at: row.ended_ms.map(rfc3339),
        idle_s: row.bounds.idle_s.filter(|idle_s| *idle_s > 0),
        max_lifetime_s: row.bounds.max_lifetime_s,
        lease_s: row.bounds.lease_s,
        lease_expires_at: row.lease_until_ms.map(rfc3339),
        last_activity_at: last_ms.map(rfc3339),
        installation: row.installation,
        parent_id: row.origin.map(|origin| origin.parent.to_string()),
        snapshot_id: row.origin.map(|origin| origin.snapshot.to_string()),
        fork_position: row.origin.and_then(|origin| origin.fork_position),
        volumes: row.volumes.into_iter().map(shown_mount).collect(),
    }
}

fn shown_mount(mount: coffer_store::VolumeMount) -> VolumeMount {
    VolumeMount { name: mount.name.to_string(), path: mount.path.to_string(), read_only: mount.read_only }
}

/// The volumes of a request.
fn mounts(mounts: Vec<NewMount>) -> Result<Vec<MountWish>, ApiError> {
    let wish = |NewMount { name, path, read_only }: NewMount| {
        let unknown = |_| ApiError::fleet(FleetError::NoVolume(name.clone()), "");
        let path = path.parse().map_err(|error: BadMount| ApiError::of(Code::Invalid, error.to_string()))?;
        Ok(MountWish { name: name.parse().map_err(unknown)?, path, read_only })
    };
    let wishes = mounts.into_iter().map(wish).collect::<Result<Vec<_>, ApiError>>()?;
    check_mounts(&wishes.iter().map(|wish| &wish.path).collect::<Vec<_>>())
        .map_err(|error| ApiError::of(Code::Invalid, error.to_string()))?;
    Ok(wishes)
}

/// The default timeout.
pub(super) fn usual_timeout_s(app: &App, project: &InForce) -> i64 {
    project.timeout_s.min(app.policy.longest_timeout_ms / 1000)
}

/// Bounds of a new sandbox's life: from its request, within the project's limits.
fn bounds(app: &App, new: &NewSandbox, project: &InForce) -> Result<Bounds, ApiError> {
    let maximum_s = app.policy.maximum_ms / 1000;
    let maximum_s = project.max_lifetime_s.map_or(maximum_s, |longest| longest.min(maximum_s));
    within("max_lifetime_s", new.max_lifetime_s, 1, maximum_s)?;
    within("idle_s", new.idle_s, 0, i64::MAX / 1000)?;
    within("lease_s", new.lease_s, 1, LONGEST_LEASE_S)?;
    Ok(Bounds {
        idle_s: new.idle_s.or(project.idle_s),
        max_lifetime_s: new.max_lifetime_s.or(project.max_lifetime_s),
        lease_s: new.lease_s,
    })
}

/// The row of a sandbox, live or ended.
async fn row(app: &App, named: &NamedId<Read>) -> Result<SandboxRow, ApiError> {
    if let Some(record) = app.fleet.find(&named.caller.scope, named.id) {
        return Ok(record.row());
    }
    let row = app.store.sandbox(&named.caller.scope, named.id).await.map_err(ApiError::store)?;
    row.ok_or_else(|| ApiError::no_sandbox(&named.text))
}

/// Creates a sandbox and returns once it answers.
#[utoipa::path(
    post, path = "/api/v1/sandboxes", tag = "sandboxes", request_body = Option<NewSandbox>,
    params(("Idempotency-Key" = Option<String>, Header, description = "the same key and body create one sandbox")),
    responses(
        (status = 201, body = Sandbox, headers(("Location" = String))),
        (status = 404, body = ErrorShape, description = "no such template, snapshot, agent or task"),
        (status = 421, body = ErrorShape, description = "another installation has the snapshot"),
        (status = 501, body = ErrorShape, description = "`memory` is true, but the snapshot has none or the host cannot restore it"),
        (status = 402, body = ErrorShape, description = "a budget is spent"), (status = 409, body = ErrorShape)
    )
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    context: Context,
    headers: HeaderMap,
    MaybeChecked(new): MaybeChecked<NewSandbox>,
) -> Result<(StatusCode, HeaderMap, Json<Sandbox>), ApiError> {
    let idempotency = crate::check::idempotency_of(&headers, &caller.actor(), &new)?;
    let agent = match (caller.scope.agent(), new.agent_id) {
        (Some(own), None) => Some(own),
        (Some(own), Some(asked)) if own == asked => Some(own),
        (Some(_), Some(asked)) => return Err(ApiError::nothing("agent", asked)),
        (None, asked) => asked,
    };
    if let Some(agent) = agent {
        let known = app.store.agent(&caller.scope, agent).await.map_err(ApiError::store)?;
        known.ok_or_else(|| ApiError::nothing("agent", agent))?;
    }
    if let Some(task) = new.task_id {
        let known = app.store.task(&caller.scope, task).await.map_err(ApiError::store)?;
        known.ok_or_else(|| ApiError::nothing("task", task))?;
    }
    let size = SizeWish { cpu_count: new.cpu_count, memory_mib: new.memory_mib, disk_mib: new.disk_mib };
    app.fleet.check_size(size).await.map_err(|error| ApiError::fleet(error, "new"))?;
    let base = match new.snapshot_id {
        None => None,
        Some(_) if new.template.is_some() => {
            return Err(ApiError::invalid("snapshot_id", "cannot be combined with template"));
        }
        Some(id) => {
            let found = app.store.snapshot(&caller.scope, id).await.map_err(ApiError::store)?;
            let ready = found.filter(|row| row.state == SnapshotState::Ready);
            let row = ready.ok_or_else(|| ApiError::fleet(FleetError::NoSnapshot(id.to_string()), ""))?;
            Some(app.fleet.base_of(&row, new.memory).map_err(|error| ApiError::fleet(error, ""))?)
        }
    };
    if base.is_none() && new.template.is_none() && new.memory.is_some() {
        return Err(ApiError::invalid("memory", "is only for sandboxes that start from a snapshot"));
    }
    let template = base.as_ref().map(|base| base.template.as_str()).or(new.template.as_deref());
    let template = template.unwrap_or(&app.default_template).parse::<TemplateRef>();
    let project = app.limiter.of(caller.scope.project());
    let timeout_ms = app.policy.check(new.timeout_s.unwrap_or_else(|| usual_timeout_s(&app, &project)));
    let bounds = bounds(&app, &new, &project)?;
    check::metadata(&new.metadata)?;
    check::env(&new.env)?;
    // Names of variables must be valid whatever their value.
    check::env(&new.secrets)?;
    if let Some(both) = new.secrets.keys().find(|name| new.env.contains_key(*name)) {
        return Err(ApiError::invalid("secrets", format!("has '{both}', which env has too")));
    }
    let on_timeout = new.on_timeout.unwrap_or_else(|| at_timeout(project.on_timeout));
    if on_timeout == AtTimeout::PauseFilesOnly && new.auto_resume {
        return Err(ApiError::invalid("auto_resume", "cannot be combined with pause_files_only"));
    }
    let network =
        Network { policy: Some(new.network.unwrap_or(Policy::of(Base::Web))), ..Network::default() };
    let network = NetworkSettings::from_e2b(Some(network), None);
    let network = network.map_err(|error| ApiError::of(Code::Invalid, error.to_string()))?;
    kinds::check_reach(caller.kind, &network.policy, Base::Web)?;
    let volumes = mounts(new.volumes)?;
    kinds::check_mounts(caller.kind, &volumes)?;
    let spec = CreateSpec {
        agent,
        task: new.task_id,
        template: template.map_err(|error| ApiError::invalid("template", error.to_string()))?,
        metadata: new.metadata,
        env_vars: new.env,
        secrets: new.secrets,
        timeout_ms: timeout_ms.map_err(|error| ApiError::invalid("timeout_s", error.to_string()))?,
        on_timeout: self::on_timeout(on_timeout),
        auto_resume: new.auto_resume,
        secure: true,
        network,
        allow_internet_access: None,
        bounds,
        size,
        base,
        memory: new.memory,
        purpose: SandboxPurpose::Use,
        volumes,
        idempotency,
    };
    let row = app.fleet.create(caller.scope, spec).await.map_err(|error| ApiError::fleet(error, "new"))?;
    context.made(row.id);
    let place = HeaderValue::try_from(format!("/api/v1/sandboxes/{}", row.id)).expect("letters and digits");
    Ok((StatusCode::CREATED, HeaderMap::from_iter([(header::LOCATION, place)]), Json(shown(&app, row))))
}

/// Lists sandboxes, live and ended.
#[utoipa::path(
    get, path = "/api/v1/sandboxes", tag = "sandboxes", params(PageQuery, SandboxQuery),
    responses((status = 200, body = Page<Sandbox>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
    Query(query): Query<SandboxQuery>,
) -> Result<Json<Page<Sandbox>>, ApiError> {
    let part: Part<Cursor> = Part::of(page)?;
    let order = match query.order.as_deref() {
        None | Some("desc") => Order::NewestFirst,
        Some("asc") => Order::OldestFirst,
        Some(_) => return Err(ApiError::invalid("order", "must be asc or desc")),
    };
    let filter = ListFilter {
        states: states(&query.state)?,
        template: query.template.map(|name| name.to_lowercase()),
        agent: query.agent_id,
        task: query.task_id,
        metadata: pairs(&query.metadata)?,
        order,
        limit: part.limit,
        cursor: part.after,
        ..ListFilter::default()
    };
    app.fleet.recorded().await;
    let page = app.store.list(&caller.scope, &filter).await.map_err(ApiError::store)?;
    let next = page.next.map(|next| next.to_string());
    Ok(Json(Page::new(page.rows.into_iter().map(|row| shown(&app, row)).collect(), next)))
}

/// The live sandboxes of all projects. For operators.
#[utoipa::path(
    get, path = "/api/v1/admin/sandboxes", tag = "sandboxes", params(PageQuery),
    responses((status = 200, body = Page<OwnedSandbox>))
)]
pub(super) async fn list_all(
    State(app): State<Arc<App>>,
    caller: Operating,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<OwnedSandbox>>, ApiError> {
    let part: Part<Cursor> = Part::of(page)?;
    let filter = ListFilter { limit: part.limit, cursor: part.after, ..ListFilter::default() };
    app.fleet.recorded().await;
    let page = app.store.list(&caller.operator, &filter).await.map_err(ApiError::store)?;
    let next = page.next.map(|next| next.to_string());
    let owned =
        |row: SandboxRow| OwnedSandbox { project_id: row.project.to_string(), sandbox: shown(&app, row) };
    Ok(Json(Page::new(page.rows.into_iter().map(owned).collect(), next)))
}

/// The pairs of `key=value`.
fn pairs(given: &[String]) -> Result<BTreeMap<String, String>, ApiError> {
    let mut pairs = BTreeMap::new();
    for text in given {
        let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
        let (key, value) =
            pair.ok_or_else(|| ApiError::invalid("metadata", "must be key=value, such as team=core"))?;
        if pairs.insert(key.to_string(), value.to_string()).is_some_and(|before| before != value) {
            let key: String = key.chars().take(64).collect();
            let why = format!("has two values for '{key}', and a sandbox has at most one");
            return Err(ApiError::invalid("metadata", why));
        }
    }
    Ok(pairs)
}

fn states(named: &[String]) -> Result<Vec<StateName>, ApiError> {
    use StateName::{Creating, Error, Paused, Running, Terminated};
    let known = |name: &str| {
        [Creating, Running, Paused, Terminated, Error].into_iter().find(|state| state.as_str() == name)
    };
    let wrong = || ApiError::invalid("state", "must be creating, running, paused, terminated or error");
    names(named).map(|name| known(name).ok_or_else(wrong)).collect()
}

/// One sandbox, live or ended.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = Sandbox))
)]
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    named: NamedId<Read>,
) -> Result<Json<Sandbox>, ApiError> {
    Ok(Json(shown(&app, row(&app, &named).await?)))
}

/// The state changes of a sandbox, oldest first.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/history", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = Page<LifeStep>))
)]
pub(super) async fn history(
    State(app): State<Arc<App>>,
    named: NamedId<Read>,
) -> Result<Json<Page<LifeStep>>, ApiError> {
    app.fleet.recorded().await;
    let steps = app.store.transitions(&named.caller.scope, named.id).await.map_err(ApiError::store)?;
    if steps.is_empty() {
        return Err(ApiError::no_sandbox(&named.text));
    }
    let shown = |step: Transition| LifeStep {
        from: step.from.map(|from| from.as_str().to_string()),
        to: step.to.name().as_str().to_string(),
        reason: step.reason,
        at: rfc3339(step.at_ms),
    };
    Ok(Json(Page::new(steps.into_iter().map(shown).collect(), None)))
}

/// Destroys a sandbox. If it has already ended, this succeeds too.
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 204))
)]
pub(super) async fn destroy(
    State(app): State<Arc<App>>,
    named: NamedId<Write>,
) -> Result<StatusCode, ApiError> {
    let scope = &named.caller.scope;
    let Some(record) = app.fleet.find(scope, named.id) else {
        let over = app.store.sandbox(scope, named.id).await.map_err(ApiError::store)?;
        return match over {
            Some(row) if app.store.holder_elsewhere(&row).is_none() => Ok(StatusCode::NO_CONTENT),
            _ => Err(not_here(&app, scope, named.id, &named.text).await),
        };
    };
    let destroyed = app.fleet.destroy(record, DestroyReason::Requested).await;
    destroyed.map_err(|error| ApiError::fleet(error, &named.text))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pauses a running sandbox.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/pause", tag = "sandboxes", params(("id" = String, Path)),
    request_body = Option<PauseBody>,
    responses((status = 200, body = Sandbox), (status = 409, body = ErrorShape), (status = 501, body = ErrorShape))
)]
pub(super) async fn pause(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    MaybeChecked(body): MaybeChecked<PauseBody>,
) -> Result<Json<Sandbox>, ApiError> {
    let kept = if body.memory == Some(false) { Kept::FilesOnly } else { Kept::MemoryAndFiles };
    let paused = app.fleet.pause(named.record.clone(), kept, IfSilent::Pause).await;
    paused.map_err(|error| ApiError::fleet(error, &named.id))?;
    Ok(Json(shown(&app, named.record.row())))
}

/// Resumes a paused sandbox; a running one keeps running, with the new deadline if that is later.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/resume", tag = "sandboxes", params(("id" = String, Path)),
    request_body = Option<ResumeBody>,
    responses(
        (status = 200, body = Sandbox), (status = 409, body = ErrorShape),
        (status = 402, body = ErrorShape, description = "a budget is spent")
    )
)]
pub(super) async fn resume(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    MaybeChecked(body): MaybeChecked<ResumeBody>,
) -> Result<Json<Sandbox>, ApiError> {
    let project = app.limiter.of(named.record.project);
    let timeout_ms = app.policy.check(body.timeout_s.unwrap_or_else(|| usual_timeout_s(&app, &project)));
    let timeout_ms = timeout_ms.map_err(|error| ApiError::invalid("timeout_s", error.to_string()))?;
    let boot = if body.memory == Some(false) { Boot::Cold } else { Boot::AsPaused };
    let connected = app.fleet.connect(named.record, timeout_ms, boot).await;
    let (Connected::Running(row) | Connected::Resumed(row)) =
        connected.map_err(|error| ApiError::fleet(error, &named.id))?;
    Ok(Json(shown(&app, row)))
}

/// Sets how long a running sandbox lives from now on, earlier or later.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/timeout", tag = "sandboxes", params(("id" = String, Path)),
    request_body = Extension,
    responses((status = 200, body = Sandbox), (status = 409, body = ErrorShape))
)]
pub(super) async fn extend(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    Checked(body): Checked<Extension>,
) -> Result<Json<Sandbox>, ApiError> {
    let timeout_ms = app.policy.check(body.timeout_s);
    let timeout_ms = timeout_ms.map_err(|error| ApiError::invalid("timeout_s", error.to_string()))?;
    let set = app.fleet.set_timeout(named.record.clone(), timeout_ms).await;
    set.map_err(|error| ApiError::fleet(error, &named.id))?;
    Ok(Json(shown(&app, named.record.row())))
}

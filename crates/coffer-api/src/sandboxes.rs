//! Creates, shows, changes and destroys a single sandbox.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::network::Base;
use coffer_core::{Code, DestroyReason, Kept, Millis, OnTimeout};
use coffer_store::Bounds;
use coffer_wire::e2b::{
    ConnectRequest, NetworkUpdate, NewSandbox, PauseRequest, RefreshRequest, ResumeRequest, Sandbox,
    SandboxDetail, TimeoutRequest,
};
use http::{HeaderMap, StatusCode};

use super::app::App;
use super::auth::{Caller, Named, Read, Write};
use super::body::{Body, MaybeBody};
use super::check::{self, Generation};
use super::error::ApiError;
use super::{kinds, secrets, show};
use coffer_fleet::network;
use coffer_fleet::{Boot, Connected, CreateSpec, FleetError, IfSilent};

/// The default timeout of a `resume`, in seconds.
const RESUME_S: i64 = 15;
/// How long a `refreshes` without a duration keeps a sandbox alive, and its largest value.
const REFRESH_S: i64 = 15;
const LONGEST_REFRESH_S: i64 = 3600;

type Created = (StatusCode, Json<Sandbox>);

pub(super) async fn create_v1(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Body(new): Body<NewSandbox>,
) -> Result<Created, ApiError> {
    create(&app, caller, new, Generation::First, None).await
}

pub(super) async fn create_v2(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    headers: HeaderMap,
    Body(new): Body<NewSandbox>,
) -> Result<Created, ApiError> {
    let key = headers.get("idempotency-key").map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned());
    create(&app, caller, new, Generation::Second, key).await
}

async fn create(
    app: &App,
    caller: Caller<Write>,
    mut new: NewSandbox,
    generation: Generation,
    idempotency_key: Option<String>,
) -> Result<Created, ApiError> {
    let rules = new.network.as_mut().and_then(|network| network.rules.as_mut());
    secrets::spell(app, caller.scope.project(), rules).await?;
    let is_mcp = new.mcp.is_some();
    let spec = check::create(new, generation, &app.policy, idempotency_key, &caller.actor())?;
    kinds::check_reach(caller.kind, &spec.network.policy, Base::Public)?;
    kinds::check_mounts(caller.kind, &spec.volumes)?;
    // E2B's request sets the timeout; the project's bounds apply too.
    let project = app.limiter.of(caller.scope.project());
    let bounds =
        Bounds { idle_s: project.idle_s, max_lifetime_s: project.max_lifetime_s, ..Bounds::default() };
    let spec = CreateSpec { agent: caller.scope.agent(), bounds, ..spec };
    let row = app.fleet.create(caller.scope, spec).await.map_err(|error| match error {
        // SDKs choose this template on their own if `mcp` is given, and start its program themselves.
        FleetError::UnknownTemplate(name) if is_mcp => ApiError::of(
            Code::NotFound,
            format!("template '{name}' not found; `mcp` needs a template that has the program mcp-gateway"),
        ),
        error => ApiError::fleet(error, "new"),
    })?;
    Ok((StatusCode::CREATED, Json(show::sandbox(&row, app.domain.as_deref()))))
}

pub(super) async fn detail(
    State(app): State<Arc<App>>,
    user: Result<Caller<Write>, ApiError>,
    named: Named<Read>,
) -> Result<Json<SandboxDetail>, ApiError> {
    let row = if named.record.live().ending.is_some() { None } else { Some(named.record.row()) };
    let detail = row.and_then(|row| show::detail(&row, app.domain.as_deref()));
    let mut detail = detail.ok_or_else(|| ApiError::no_sandbox(&named.id))?;
    if user.is_err() {
        // The token can start commands, and this key may only read.
        detail.envd_access_token = None;
    }
    Ok(Json(detail))
}

pub(super) async fn destroy(
    State(app): State<Arc<App>>,
    named: Named<Write>,
) -> Result<StatusCode, ApiError> {
    let destroyed = app.fleet.destroy(named.record, DestroyReason::Requested).await;
    destroyed.map_err(|error| ApiError::fleet(error, &named.id))?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn timeout(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    Body(request): Body<TimeoutRequest>,
) -> Result<StatusCode, ApiError> {
    // Zero or less ends the sandbox now.
    let timeout_ms = if request.timeout <= 0 { 0 } else { checked(&app, request.timeout)? };
    let set = app.fleet.set_timeout(named.record, timeout_ms).await;
    set.map_err(|error| ApiError::fleet(error, &named.id))?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn refresh(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    MaybeBody(request): MaybeBody<RefreshRequest>,
) -> Result<StatusCode, ApiError> {
    let duration = request.duration.unwrap_or(REFRESH_S);
    if !(0..=LONGEST_REFRESH_S).contains(&duration) {
        let message = format!("duration must be between 0 and {LONGEST_REFRESH_S} seconds");
        return Err(ApiError::bad_request(message));
    }
    let refreshed = app.fleet.refresh(named.record, duration * 1000).await;
    refreshed.map_err(|error| ApiError::fleet(error, &named.id))?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn pause(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    MaybeBody(request): MaybeBody<PauseRequest>,
) -> Result<StatusCode, ApiError> {
    let kept = if request.memory.unwrap_or(true) { Kept::MemoryAndFiles } else { Kept::FilesOnly };
    let silent = if request.require_healthy_guest == Some(true) { IfSilent::Refuse } else { IfSilent::Pause };
    let paused = app.fleet.pause(named.record, kept, silent).await;
    paused.map_err(|error| ApiError::fleet(error, &named.id))?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn resume(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    MaybeBody(request): MaybeBody<ResumeRequest>,
) -> Result<Created, ApiError> {
    let timeout_ms = checked(&app, request.timeout.unwrap_or(RESUME_S))?;
    let on_timeout =
        request.auto_pause.map(|pause| if pause { OnTimeout::Pause } else { OnTimeout::Destroy });
    let resumed = app.fleet.resume(named.record, timeout_ms, boot(request.memory), on_timeout).await;
    let row = resumed.map_err(|error| ApiError::fleet(error, &named.id))?;
    Ok((StatusCode::CREATED, Json(show::sandbox(&row, app.domain.as_deref()))))
}

pub(super) async fn connect_v1(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    Body(request): Body<ConnectRequest>,
) -> Result<Created, ApiError> {
    if request.timeout.is_none() {
        return Err(ApiError::bad_request("timeout is missing"));
    }
    connect(&app, named, request).await
}

pub(super) async fn connect_v2(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    MaybeBody(request): MaybeBody<ConnectRequest>,
) -> Result<Created, ApiError> {
    connect(&app, named, request).await
}

async fn connect(app: &App, named: Named<Write>, request: ConnectRequest) -> Result<Created, ApiError> {
    let timeout_ms = checked(app, request.timeout.unwrap_or(Generation::Second.default_timeout_s()))?;
    let connected = app.fleet.connect(named.record, timeout_ms, boot(request.memory)).await;
    let (status, row) = match connected.map_err(|error| ApiError::fleet(error, &named.id))? {
        Connected::Running(row) => (StatusCode::OK, row),
        Connected::Resumed(row) => (StatusCode::CREATED, row),
    };
    Ok((status, Json(show::sandbox(&row, app.domain.as_deref()))))
}

pub(super) async fn network(
    State(app): State<Arc<App>>,
    named: Named<Write>,
    MaybeBody(mut update): MaybeBody<NetworkUpdate>,
) -> Result<StatusCode, ApiError> {
    network::check_update(&update).map_err(|bad| ApiError::bad_request(bad.to_string()))?;
    secrets::spell(&app, named.record.project, update.rules.as_mut()).await?;
    let update = network::read_update(update).map_err(|error| ApiError::network(&error))?;
    let set = app.fleet.set_network(named.record, update).await;
    set.map_err(|error| ApiError::fleet(error, &named.id))?;
    Ok(StatusCode::NO_CONTENT)
}

fn checked(app: &App, timeout_s: i64) -> Result<Millis, ApiError> {
    app.policy.check(timeout_s).map_err(|error| ApiError::bad_request(error.to_string()))
}

/// `memory: false` asks for a boot from files.
fn boot(memory: Option<bool>) -> Boot {
    if memory == Some(false) { Boot::Cold } else { Boot::AsPaused }
}

//! Agents: owners of sandboxes, and their definitions for work on tasks.

pub(super) mod presets;
mod shape;
pub(super) mod trial;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::AgentId;
use coffer_store::{AgentError, NewAgent as NewRow};
use http::{HeaderMap, StatusCode};

use self::shape::{Stocked, check_quotas, checked, settle_template, shown, tagged, want_template};
use super::page::Part;
use super::projects::{changed_meanwhile, wanted_version};
use crate::app::App;
use crate::auth::{Admin, Caller, Id, Read};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use crate::names::check_name;
use crate::query::Query;
use coffer_api_types::agents::{Agent, Definition, NewAgent};
use coffer_api_types::{ErrorShape, Page, PageQuery};

/// Creates an agent; it acts by keys that are created for it. If its template comes with the program and is not built,
/// it is built in the background.
#[utoipa::path(
    post, path = "/api/v1/agents", tag = "agents", request_body = NewAgent,
    responses((status = 201, body = Agent), (status = 409, body = ErrorShape, description = "the name is taken"))
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    context: Context,
    Checked(request): Checked<NewAgent>,
) -> Result<(StatusCode, Json<Agent>), ApiError> {
    check_name(&request.name)?;
    let mut definition = request.definition.map(|definition| checked(definition, None)).transpose()?;
    if let Some(definition) = &mut definition {
        check_quotas(&app, &caller.scope, definition).await?;
        settle_template(&app, &caller.scope, definition).await?;
    }
    let new = NewRow { name: request.name.clone(), definition };
    let made = app.store.create_agent(&caller.scope, new).await;
    let agent = made.map_err(|error| ApiError::name(error, "agent", &request.name))?;
    context.made(agent.id);
    want_template(&app, agent.definition.as_ref()).await;
    let stocked = Stocked::of(&app, [&agent].into_iter()).await?;
    Ok((StatusCode::CREATED, Json(shown(agent, &stocked))))
}

/// The agents of this project, oldest first.
#[utoipa::path(
    get, path = "/api/v1/agents", tag = "agents", params(PageQuery),
    responses((status = 200, body = Page<Agent>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Agent>>, ApiError> {
    let part = Part::of(page)?;
    let agents =
        app.store.agents(&caller.scope, part.after, part.to_fetch()).await.map_err(ApiError::store)?;
    let stocked = Stocked::of(&app, agents.iter()).await?;
    Ok(Json(part.page(agents, |agent| agent.id.to_string(), |agent| shown(agent, &stocked))))
}

/// One agent.
#[utoipa::path(
    get, path = "/api/v1/agents/{agent}", tag = "agents", params(("agent" = String, Path)),
    responses((status = 200, body = Agent, headers(("ETag" = String))))
)]
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(agent): Id<AgentId>,
) -> Result<(HeaderMap, Json<Agent>), ApiError> {
    let found = app.store.agent(&caller.scope, agent).await.map_err(ApiError::store)?;
    let found = found.ok_or_else(|| ApiError::nothing("agent", agent))?;
    let stocked = Stocked::of(&app, [&found].into_iter()).await?;
    Ok(tagged(found, &stocked))
}

/// Sets an agent's definition, for its next attempt; has its template built as on creation.
#[utoipa::path(
    put, path = "/api/v1/agents/{agent}/definition", tag = "agents", request_body = Definition,
    params(
        ("agent" = String, Path),
        ("If-Match" = Option<String>, Header, description = "the ETag that the change is meant for")
    ),
    responses((status = 200, body = Agent, headers(("ETag" = String))), (status = 412, body = ErrorShape))
)]
pub(super) async fn define(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(agent): Id<AgentId>,
    headers: HeaderMap,
    Checked(definition): Checked<Definition>,
) -> Result<(HeaderMap, Json<Agent>), ApiError> {
    let version = wanted_version(&headers)?;
    let before = app.store.agent(&caller.scope, agent).await.map_err(ApiError::store)?;
    let before = before.ok_or_else(|| ApiError::nothing("agent", agent))?;
    let mut definition = checked(definition, before.definition.as_ref())?;
    check_quotas(&app, &caller.scope, &definition).await?;
    settle_template(&app, &caller.scope, &mut definition).await?;
    let defined = app.store.define_agent(&caller.scope, agent, version, definition).await;
    let defined = defined.map_err(|error| match error {
        AgentError::NotFound => ApiError::nothing("agent", agent),
        AgentError::Changed => changed_meanwhile(),
        AgentError::Store(error) => ApiError::store(error),
    })?;
    want_template(&app, defined.definition.as_ref()).await;
    let stocked = Stocked::of(&app, [&defined].into_iter()).await?;
    Ok(tagged(defined, &stocked))
}

/// Deletes an agent and revokes its keys. Its sandboxes stay and belong to the project.
#[utoipa::path(
    delete, path = "/api/v1/agents/{agent}", tag = "agents", params(("agent" = String, Path)),
    responses((status = 204))
)]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(agent): Id<AgentId>,
) -> Result<StatusCode, ApiError> {
    let removed = app.store.remove_agent(&caller.scope, agent).await.map_err(ApiError::store)?;
    if removed { Ok(StatusCode::NO_CONTENT) } else { Err(ApiError::nothing("agent", agent)) }
}

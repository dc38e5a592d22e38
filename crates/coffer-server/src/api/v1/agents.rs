//! Agents: who may own sandboxes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::AgentId;
use coffer_store::AgentRow;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ErrorShape;
use super::page::{Page, PageQuery, Part};
use crate::api::App;
use crate::api::auth::{Admin, Caller, Id, Read};
use crate::api::body::Checked;
use crate::api::context::Context;
use crate::api::error::ApiError;
use crate::api::names::check_name;
use crate::api::query::Query;
use crate::clock::rfc3339;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewAgent {
    /// Of no other agent of the project.
    name: String,
}

/// Something that acts by itself, and may own sandboxes.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Agent {
    id: String,
    name: String,
    created_at: String,
}

fn shown(agent: AgentRow) -> Agent {
    Agent { id: agent.id.to_string(), name: agent.name, created_at: rfc3339(agent.created_ms) }
}

/// Makes an agent; it acts by keys that are made for it.
#[utoipa::path(
    post, path = "/api/v1/agents", tag = "agents", request_body = NewAgent,
    responses(
        (status = 201, body = Agent), (status = 400, body = ErrorShape), (status = 401, body = ErrorShape),
        (status = 403, body = ErrorShape), (status = 409, body = ErrorShape, description = "the name is taken"),
        (status = 422, body = ErrorShape)
    )
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    context: Context,
    Checked(request): Checked<NewAgent>,
) -> Result<(StatusCode, Json<Agent>), ApiError> {
    check_name(&request.name)?;
    let made = app.store.create_agent(&caller.scope, &request.name).await;
    let agent = made.map_err(|error| ApiError::name(error, "agent", &request.name))?;
    context.made(agent.id);
    Ok((StatusCode::CREATED, Json(shown(agent))))
}

/// The agents of this project, oldest first.
#[utoipa::path(
    get, path = "/api/v1/agents", tag = "agents", params(PageQuery),
    responses(
        (status = 200, body = Page<Agent>), (status = 400, body = ErrorShape), (status = 401, body = ErrorShape),
        (status = 422, body = ErrorShape)
    )
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    query: Query,
) -> Result<Json<Page<Agent>>, ApiError> {
    let part = Part::of(&query)?;
    let agents =
        app.store.agents(&caller.scope, part.after, part.to_fetch()).await.map_err(ApiError::store)?;
    Ok(Json(part.page(agents, |agent| agent.id.to_string(), shown)))
}

/// One agent.
#[utoipa::path(
    get, path = "/api/v1/agents/{agent}", tag = "agents", params(("agent" = String, Path)),
    responses((status = 200, body = Agent), (status = 401, body = ErrorShape), (status = 404, body = ErrorShape))
)]
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(agent): Id<AgentId>,
) -> Result<Json<Agent>, ApiError> {
    let found = app.store.agent(&caller.scope, agent).await.map_err(ApiError::store)?;
    found.map(|agent| Json(shown(agent))).ok_or_else(|| ApiError::nothing("agent", agent))
}

/// Removes an agent and revokes its keys. Its sandboxes stay, and are the project's alone.
#[utoipa::path(
    delete, path = "/api/v1/agents/{agent}", tag = "agents", params(("agent" = String, Path)),
    responses(
        (status = 204), (status = 401, body = ErrorShape), (status = 403, body = ErrorShape),
        (status = 404, body = ErrorShape)
    )
)]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    Id(agent): Id<AgentId>,
) -> Result<StatusCode, ApiError> {
    let removed = app.store.remove_agent(&caller.scope, agent).await.map_err(ApiError::store)?;
    if removed { Ok(StatusCode::NO_CONTENT) } else { Err(ApiError::nothing("agent", agent)) }
}

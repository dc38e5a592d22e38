//! Agents: owners of sandboxes, and their definitions for work on tasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::agent::{AgentDefinition, Preset};
use coffer_core::{AgentId, SizeWish};
use coffer_store::{AgentError, AgentRow, NewAgent as NewRow, ProjectScope, SecretName};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::page::Part;
use super::projects::{changed_meanwhile, wanted_version};
use crate::app::App;
use crate::auth::{Admin, Caller, Id, Read};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use crate::names::check_name;
use crate::query::Query;
use coffer_api_types::agents::{Agent, Definition, NewAgent, PresetInfo};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::clock::rfc3339;

/// Without the values of its environment.
fn shown_definition(definition: AgentDefinition) -> Definition {
    Definition {
        preset: definition.preset,
        command: definition.command,
        model: definition.model,
        prompt: definition.prompt,
        env: definition.env.into_keys().map(|name| (name, None)).collect(),
        secrets: definition.secrets,
        working_directory: definition.working_directory,
        output: definition.output,
        template: definition.template,
        limits: definition.limits,
        model_access: definition.model_access,
    }
}

/// The definition to store, with earlier values where none are given.
fn checked(new: Definition, before: Option<&AgentDefinition>) -> Result<AgentDefinition, ApiError> {
    let mut env = BTreeMap::new();
    for (name, value) in new.env {
        let known = || before.and_then(|before| before.env.get(&name).cloned());
        let value = value.or_else(known);
        let value = value.ok_or_else(|| {
            ApiError::invalid(&format!("definition.env.{name}"), "is null, but no earlier value exists")
        })?;
        env.insert(name, value);
    }
    for (variable, secret) in &new.secrets {
        secret.parse::<SecretName>().map_err(|error| {
            ApiError::invalid(&format!("definition.secrets.{variable}"), format!("is invalid: {error}"))
        })?;
    }
    let definition = AgentDefinition {
        preset: new.preset,
        command: new.command,
        model: new.model,
        prompt: new.prompt,
        env,
        secrets: new.secrets,
        working_directory: new.working_directory,
        output: new.output,
        template: new.template,
        limits: new.limits,
        model_access: new.model_access,
    };
    definition.check().map_err(|bad| ApiError::invalid(&format!("definition.{}", bad.field), bad.why))?;
    Ok(definition)
}

/// Refuses limits that exceed the project's quotas.
async fn check_quotas(app: &App, scope: &ProjectScope, definition: &AgentDefinition) -> Result<(), ApiError> {
    let SizeWish { cpu_count, memory_mib, .. } = definition.limits.size();
    if cpu_count.is_none() && memory_mib.is_none() {
        return Ok(());
    }
    let found = app.store.quotas(scope, scope.project()).await.map_err(ApiError::store)?;
    let Some(quotas) = found.map(|found| found.in_force) else { return Ok(()) };
    let memory_mib = memory_mib.and_then(|memory| i64::try_from(memory).ok());
    for (field, asked, quota, most) in [
        ("cpu_count", cpu_count.map(i64::from), "cpus", quotas.cpus),
        ("memory_mib", memory_mib, "memory_mib", quotas.memory_mib),
    ] {
        if let (Some(asked), Some(most)) = (asked, most)
            && asked > most
        {
            let why =
                format!("is {asked}, and the project's quota `{quota}` is {most}: no sandbox can have it");
            return Err(ApiError::invalid(&format!("definition.limits.{field}"), why)
                .hint("ask for less, or ask an operator to raise the quota; GET /api/v1/quotas shows it"));
        }
    }
    Ok(())
}

fn shown(agent: AgentRow) -> Agent {
    Agent {
        id: agent.id.to_string(),
        name: agent.name,
        definition: agent.definition.map(shown_definition),
        sealed: agent.sealed,
        version: agent.version,
        created_at: rfc3339(agent.created_ms),
    }
}

fn tagged(agent: AgentRow) -> (HeaderMap, Json<Agent>) {
    let tag = HeaderValue::try_from(format!("\"{}\"", agent.version)).expect("digits in quotes");
    (HeaderMap::from_iter([(header::ETAG, tag)]), Json(shown(agent)))
}

/// Creates an agent; it acts by keys that are created for it.
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
    let definition = request.definition.map(|definition| checked(definition, None)).transpose()?;
    if let Some(definition) = &definition {
        check_quotas(&app, &caller.scope, definition).await?;
    }
    let new = NewRow { name: request.name.clone(), definition };
    let made = app.store.create_agent(&caller.scope, new).await;
    let agent = made.map_err(|error| ApiError::name(error, "agent", &request.name))?;
    context.made(agent.id);
    Ok((StatusCode::CREATED, Json(shown(agent))))
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
    Ok(Json(part.page(agents, |agent| agent.id.to_string(), shown)))
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
    found.map(tagged).ok_or_else(|| ApiError::nothing("agent", agent))
}

/// Sets an agent's definition, for its next attempt.
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
    let definition = checked(definition, before.definition.as_ref())?;
    check_quotas(&app, &caller.scope, &definition).await?;
    let defined = app.store.define_agent(&caller.scope, agent, version, definition).await;
    defined.map(tagged).map_err(|error| match error {
        AgentError::NotFound => ApiError::nothing("agent", agent),
        AgentError::Changed => changed_meanwhile(),
        AgentError::Store(error) => ApiError::store(error),
    })
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

/// Lists the agent presets.
#[utoipa::path(
    get, path = "/api/v1/agent-presets", tag = "agents",
    responses((status = 200, body = Vec<PresetInfo>))
)]
pub(super) async fn presets(_caller: Caller<Read>) -> Json<Vec<PresetInfo>> {
    let known = Preset::ALL.iter().map(|&preset| PresetInfo {
        preset,
        title: preset.title().to_string(),
        takes_model: preset.takes_model(),
        usual_secret: preset.usual_secret().map(str::to_string),
        output: preset.output(),
        command: preset.command_shown(),
    });
    Json(known.collect())
}

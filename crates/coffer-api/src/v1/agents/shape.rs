//! Definitions of agents: read, checked and shown.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use coffer_api_types::agents::{Agent, AgentTemplate, Definition};
use coffer_build::Readiness;
use coffer_core::agent::AgentDefinition;
use coffer_core::clock::rfc3339;
use coffer_core::{SizeWish, TemplateRef};
use coffer_store::{AgentRow, ProjectScope, SecretName};
use http::{HeaderMap, HeaderValue, header};

use crate::app::App;
use crate::error::ApiError;

/// Without the values that an earlier version promised to hide.
fn shown_definition(definition: AgentDefinition) -> Definition {
    let env = definition.env.iter();
    let env = env.map(|(name, value)| (name.clone(), (!definition.hides(name)).then(|| value.clone())));
    Definition {
        env: env.collect(),
        preset: definition.preset,
        command: definition.command,
        model: definition.model,
        prompt: definition.prompt,
        secrets: definition.secrets,
        working_directory: definition.working_directory,
        output: definition.output,
        template: definition.template,
        limits: definition.limits,
        model_access: definition.model_access,
        setup: definition.setup,
    }
}

/// The definition to store, with earlier values where none are given.
pub(super) fn checked(
    new: Definition,
    before: Option<&AgentDefinition>,
) -> Result<AgentDefinition, ApiError> {
    let (mut env, mut hidden) = (BTreeMap::new(), BTreeSet::new());
    for (name, value) in new.env {
        let value = match (value, before.filter(|before| before.env.contains_key(&name))) {
            (Some(value), _) => value,
            (None, Some(before)) => {
                // What was hidden stays so.
                if before.hides(&name) {
                    hidden.insert(name.clone());
                }
                before.env[&name].clone()
            }
            (None, None) => {
                let why = "is null, but no earlier value exists";
                return Err(ApiError::invalid(&format!("definition.env.{name}"), why));
            }
        };
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
        hidden_env: Some(hidden),
        secrets: new.secrets,
        working_directory: new.working_directory,
        output: new.output,
        template: new.template,
        limits: new.limits,
        model_access: new.model_access,
        setup: new.setup,
    };
    definition.check().map_err(|bad| ApiError::invalid(&format!("definition.{}", bad.field), bad.why))?;
    Ok(definition)
}

/// Refuses limits that exceed the project's quotas.
pub(super) async fn check_quotas(
    app: &App,
    scope: &ProjectScope,
    definition: &AgentDefinition,
) -> Result<(), ApiError> {
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

/// Chooses the template of the preset if none is named, and refuses one that does not exist.
pub(super) async fn settle_template(
    app: &App,
    scope: &ProjectScope,
    definition: &mut AgentDefinition,
) -> Result<(), ApiError> {
    let Some(named) = &definition.template else {
        definition.template = definition.recipe().map(|recipe| recipe.template.to_string());
        return Ok(());
    };
    let bad = |why: String| ApiError::invalid("definition.template", why);
    let of_fleet = |error| ApiError::fleet(error, "");
    let reference: TemplateRef = named.parse().map_err(|error| bad(format!("is not a template: {error}")))?;
    let is_the_hosts =
        app.fleet.templates().await.map_err(of_fleet)?.iter().any(|known| known.name == reference.name);
    if is_the_hosts
        || *named == app.default_template
        || app.fleet.is_shared(&reference.name)
        || app.store.template(scope, &reference.name).await.map_err(ApiError::store)?.is_some()
        || app.fleet.base_called(scope, &reference, None).await.map_err(of_fleet)?.is_some()
    {
        return Ok(());
    }
    Err(bad(format!("names `{named}`, and there is no such template or snapshot"))
        .hint("GET /api/v1/templates lists templates; without a name, the agent gets its preset's"))
}

/// Has the template of an agent built in the background if it comes with the program. If that cannot begin now, the
/// agent's first attempt asks again.
pub(super) async fn want_template(app: &App, definition: Option<&AgentDefinition>) {
    let name = definition.and_then(|definition| definition.template.as_deref());
    let Some(name) = name.filter(|name| app.fleet.is_shared(name)) else { return };
    if let Err(error) = app.builds.want(name).await {
        tracing::warn!("could not begin to build template {name}: {}", coffer_core::chain(&error));
    }
}

/// How far templates are, by name.
pub(super) struct Stocked(BTreeMap<String, Readiness>);

impl Stocked {
    /// Looks up nothing if none of the agents needs it.
    pub(super) async fn of<'a>(
        app: &App,
        mut agents: impl Iterator<Item = &'a AgentRow>,
    ) -> Result<Self, ApiError> {
        let needs = |agent: &AgentRow| {
            let template = agent.definition.as_ref().and_then(|definition| definition.template.as_deref());
            template.is_some_and(|name| app.fleet.is_shared(name))
        };
        if agents.any(needs) { Self::all(app).await } else { Ok(Self(BTreeMap::new())) }
    }

    pub(super) async fn all(app: &App) -> Result<Self, ApiError> {
        let entries = app.builds.catalogue().await?;
        let states = entries.iter();
        let states = states.map(|entry| (entry.definition.name.clone(), app.builds.readiness_of(entry)));
        Ok(Self(states.collect()))
    }

    /// A template of the catalogue, and how far it is.
    pub(super) fn shown(&self, name: &str) -> Option<AgentTemplate> {
        let (state, doing) = match self.0.get(name)? {
            Readiness::Ready => ("ready", None),
            Readiness::NotBuilt => ("not_built", None),
            Readiness::Building { doing } => ("building", Some(doing.clone())),
            Readiness::Failed { message } => ("failed", Some(message.clone())),
        };
        Some(AgentTemplate { name: name.to_string(), state: state.to_string(), doing })
    }
}

pub(super) fn shown(agent: AgentRow, stocked: &Stocked) -> Agent {
    let template = agent.definition.as_ref().and_then(|definition| definition.template.as_deref());
    Agent {
        id: agent.id.to_string(),
        name: agent.name,
        template: template.and_then(|name| stocked.shown(name)),
        definition: agent.definition.map(shown_definition),
        sealed: agent.sealed,
        version: agent.version,
        created_at: rfc3339(agent.created_ms),
    }
}

pub(super) fn tagged(agent: AgentRow, stocked: &Stocked) -> (HeaderMap, Json<Agent>) {
    let tag = HeaderValue::try_from(format!("\"{}\"", agent.version)).expect("digits in quotes");
    (HeaderMap::from_iter([(header::ETAG, tag)]), Json(shown(agent, stocked)))
}

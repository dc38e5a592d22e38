//! Presets, and agents from them: one request from nothing to an agent that can work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_api_types::ErrorShape;
use coffer_api_types::agents::{AgentSetup, PresetInfo, PresetLogin, PresetRecipe, SetUpAgent};
use coffer_core::agent::{AgentDefinition, Login, Preset};
use coffer_store::{AgentError, AgentRow, NewAgent as NewRow, ProjectScope, Secret, SecretName, SecretTerms};
use http::StatusCode;

use super::shape::{Stocked, check_quotas, settle_template, shown, want_template};
use crate::app::App;
use crate::auth::{Admin, Caller, Id, Read};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use crate::names::check_name;
use crate::secrets::{check_value, refused};

/// Lists the agent presets: known programs, how they are installed, and how they sign in.
#[utoipa::path(
    get, path = "/api/v1/agent-presets", tag = "agents",
    responses((status = 200, body = Vec<PresetInfo>))
)]
pub(in crate::v1) async fn list(
    State(app): State<Arc<App>>,
    _caller: Caller<Read>,
) -> Result<Json<Vec<PresetInfo>>, ApiError> {
    let stocked = Stocked::all(&app).await?;
    let known = Preset::ALL.iter().map(|&preset| PresetInfo {
        preset,
        title: preset.title().to_string(),
        takes_model: preset.takes_model(),
        usual_secret: preset.usual_secret().map(str::to_string),
        output: preset.output(),
        command: preset.command_shown(),
        recipe: preset.recipe().map(|recipe| PresetRecipe {
            template: recipe.template.to_string(),
            state: stocked.shown(recipe.template).map_or_else(String::new, |shown| shown.state),
            package: recipe.package_name().to_string(),
            versions: recipe.versions().to_string(),
            tested: recipe.tested.to_string(),
            install: recipe.install(),
            memory_mib: recipe.memory_mib,
            needs_model: recipe.needs_model,
        }),
        logins: preset.logins().iter().map(shown_login).collect(),
    });
    Ok(Json(known.collect()))
}

fn shown_login(login: &Login) -> PresetLogin {
    let pair = |(name, value): &(&str, &str)| ((*name).to_string(), (*value).to_string());
    PresetLogin {
        variable: login.variable.to_string(),
        about: login.about.to_string(),
        secret: login.secret.to_string(),
        hosts: login.hosts.iter().map(ToString::to_string).collect(),
        env: login.env.iter().map(pair).collect(),
    }
}

/// Sets up an agent of a preset, from nothing: stores its key as a secret, defines the agent, and has its template built
/// in the background. A repetition changes what it names and nothing else; without a key, the secret stays.
#[utoipa::path(
    put, path = "/api/v1/agent-presets/{preset}/agent", tag = "agents", request_body = AgentSetup,
    params(("preset" = String, Path)),
    responses(
        (status = 200, body = SetUpAgent, description = "changed"), (status = 201, body = SetUpAgent),
        (status = 409, body = ErrorShape, description = "an agent of this name has another preset, or was changed meanwhile")
    )
)]
pub(in crate::v1) async fn set_up(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    context: Context,
    Id(preset): Id<Preset>,
    Checked(setup): Checked<AgentSetup>,
) -> Result<(StatusCode, Json<SetUpAgent>), ApiError> {
    let name = setup.name.clone().unwrap_or_else(|| preset.as_str().to_string());
    check_name(&name)?;
    let login = login_of(preset, setup.login.as_deref())?;
    let secret = match &setup.secret {
        Some(named) => named.clone(),
        None => login.secret.to_string(),
    };
    let secret: SecretName =
        secret.parse().map_err(|error| ApiError::invalid("secret", format!("is invalid: {error}")))?;
    if let Some(key) = &setup.key {
        check_value(key).map_err(|wrong| ApiError::invalid("key", wrong))?;
    }
    let before = app.store.agent_named(&caller.scope, &name).await.map_err(ApiError::store)?;
    let mut definition = defined(preset, login, &secret, &setup, before.as_ref())?;
    definition.check().map_err(|bad| ApiError::invalid(&bad.field, bad.why))?;
    check_quotas(&app, &caller.scope, &definition).await?;
    settle_template(&app, &caller.scope, &mut definition).await?;
    // Everything was checked: what follows is repeated by a repetition.
    store_key(&app, &caller.scope, login, &secret, setup.key).await?;
    let (agent, is_new) = match before {
        Some(before) if before.definition.as_ref() == Some(&definition) => (before, false),
        Some(before) => {
            let defined =
                app.store.define_agent(&caller.scope, before.id, Some(before.version), definition).await;
            let agent = defined.map_err(|error| match error {
                AgentError::NotFound | AgentError::Changed => {
                    ApiError::conflict("the agent was changed meanwhile").hint("send the request again")
                }
                AgentError::Store(error) => ApiError::store(error),
            })?;
            (agent, false)
        }
        None => {
            let new = NewRow { name: name.clone(), definition: Some(definition) };
            let made = app.store.create_agent(&caller.scope, new).await;
            (made.map_err(|error| ApiError::name(error, "agent", &name))?, true)
        }
    };
    context.made(agent.id);
    want_template(&app, agent.definition.as_ref()).await;
    let stocked = Stocked::of(&app, [&agent].into_iter()).await?;
    let answer = SetUpAgent {
        agent: shown(agent, &stocked),
        variable: login.variable.to_string(),
        secret: secret.as_str().to_string(),
    };
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, Json(answer)))
}

/// The way to sign in that a request names by its variable, or the usual one.
fn login_of(preset: Preset, variable: Option<&str>) -> Result<&'static Login, ApiError> {
    let logins = preset.logins();
    let Some(usual) = logins.first() else {
        let why = format!("is `{}`, which has no set-up of its own", preset.as_str());
        return Err(ApiError::invalid("preset", why).hint("POST /api/v1/agents takes a whole definition"));
    };
    let Some(variable) = variable else { return Ok(usual) };
    logins.iter().find(|login| login.variable == variable).ok_or_else(|| {
        let known: Vec<&str> = logins.iter().map(|login| login.variable).collect();
        ApiError::invalid("login", format!("must be one of {}", known.join(", ")))
    })
}

/// The definition, with what an existing one has and the request does not name.
fn defined(
    preset: Preset,
    login: &Login,
    secret: &SecretName,
    setup: &AgentSetup,
    before: Option<&AgentRow>,
) -> Result<AgentDefinition, ApiError> {
    let mut definition = match before.map(|row| (row, &row.definition)) {
        None => AgentDefinition::of(preset),
        Some((row, None)) if row.sealed => {
            return Err(ApiError::conflict(format!("the definition of agent `{}` is sealed", row.name))
                .hint("the master key that it was sealed under is missing"));
        }
        Some((_, None)) => AgentDefinition::of(preset),
        Some((_, Some(known))) if known.preset == preset => known.clone(),
        Some((row, Some(known))) => {
            let message = format!("agent `{}` has the preset `{}`", row.name, known.preset.as_str());
            return Err(ApiError::conflict(message).hint("choose another name"));
        }
    };
    if setup.template.is_some() {
        definition.template.clone_from(&setup.template);
    }
    if preset.recipe().is_none() && definition.template.is_none() {
        let program = preset.command_shown().into_iter().next().unwrap_or_default();
        let why = format!(
            "is needed: there is no package of {}, so name a template that has `{program}`",
            preset.title()
        );
        return Err(ApiError::invalid("template", why));
    }
    // A definition of an earlier version may have no template, and must get one.
    if setup.model.is_some() {
        definition.model.clone_from(&setup.model);
    }
    if definition.recipe().is_some_and(|recipe| recipe.needs_model) && definition.model.is_none() {
        return Err(ApiError::invalid("model", format!("is needed: {} does not choose one", preset.title())));
    }
    // Another way to sign in replaces the one before: with both, the program would choose.
    for other in preset.logins().iter().filter(|other| other.variable != login.variable) {
        definition.secrets.remove(other.variable);
        other.env.iter().for_each(|(name, _)| drop(definition.env.remove(*name)));
    }
    definition.secrets.insert(login.variable.to_string(), secret.as_str().to_string());
    let of_login: BTreeMap<String, String> =
        login.env.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect();
    let added: BTreeMap<String, String> = of_login.into_iter().chain(setup.env.clone()).collect();
    // What an earlier version hid stays hidden, unless it is given anew.
    let hidden: BTreeSet<String> =
        definition.env.keys().filter(|name| definition.hides(name)).cloned().collect();
    definition.hidden_env = Some(hidden.into_iter().filter(|name| !added.contains_key(name)).collect());
    definition.env.extend(added);
    Ok(definition)
}

/// Stores the key, or makes sure that there is one.
async fn store_key(
    app: &App,
    scope: &ProjectScope,
    login: &Login,
    secret: &SecretName,
    key: Option<String>,
) -> Result<(), ApiError> {
    let Some(key) = key else {
        let known = app.store.secrets(scope).await.map_err(ApiError::store)?;
        if known.iter().any(|known| known.name == secret.as_str()) {
            return Ok(());
        }
        let why =
            format!("is needed: {}, for {}; there is no secret `{secret}` yet", login.about, login.variable);
        return Err(ApiError::invalid("key", why));
    };
    // Without hosts: a secret that has them is kept out of every sandbox, and the program reads a variable.
    let terms = SecretTerms { hosts: None, plain_http: None, metadata: None };
    let put = app.store.put_secret_on(scope, secret, &Secret::new(key), terms).await;
    put.map_err(|error| refused(error, secret.as_str()))?;
    app.fleet.secrets_changed();
    Ok(())
}

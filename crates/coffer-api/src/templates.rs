//! Templates and teams, as far as E2B's command line and SDKs need them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use coffer_core::TemplateRef;
use coffer_wire::agentd::ENVD_VERSION;
use coffer_wire::e2b::{Team, Template, TemplateAlias};
use http::StatusCode;

use super::app::App;
use super::auth::{Caller, Read, Write};
use super::error::ApiError;
use coffer_core::Code;
use coffer_core::clock::rfc3339;
use coffer_fleet::FleetError;

/// `GET /teams`: the caller's project.
pub(super) async fn teams(caller: Caller<Read>) -> Json<Vec<Team>> {
    Json(vec![Team {
        team_id: caller.scope.project().to_string(),
        name: "default".to_string(),
        api_key: caller.key.reveal().to_string(),
        is_default: true,
    }])
}

/// `GET /templates`.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
) -> Result<Json<Vec<Template>>, ApiError> {
    let templates = app.fleet.templates().await.map_err(|error| ApiError::fleet(error, ""))?;
    let started = rfc3339(app.started_ms);
    let templates = templates.iter().map(|template| Template {
        template_id: template.name.clone(),
        build_id: template.build.clone(),
        cpu_count: app.limits.cpu_count,
        memory_mb: app.limits.memory_mib,
        disk_size_mb: app.limits.disk_mib,
        public: true,
        aliases: vec![template.name.clone()],
        names: vec![template.name.clone()],
        created_at: started.clone(),
        updated_at: started.clone(),
        created_by: None,
        last_spawned_at: None,
        spawn_count: 0,
        build_count: 1,
        envd_version: ENVD_VERSION.to_string(),
        build_status: "ready".to_string(),
    });
    Ok(Json(templates.collect()))
}

/// `GET /templates/aliases/{alias}`: whether the template exists.
pub(super) async fn alias(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Path(alias): Path<String>,
) -> Result<Json<TemplateAlias>, ApiError> {
    let unknown = match known(&app, &alias).await {
        Ok(name) => return Ok(Json(TemplateAlias { template_id: name, public: true })),
        Err(unknown) => unknown,
    };
    let reference: TemplateRef = alias.parse().map_err(|_| unknown.clone())?;
    let found = app.fleet.snapshot_called(&caller.scope, &reference).await;
    let snapshot = found.map_err(|error| ApiError::fleet(error, ""))?.ok_or(unknown)?;
    Ok(Json(TemplateAlias { template_id: snapshot.id.to_string(), public: false }))
}

/// `DELETE /templates/{id}`, which SDKs also use to delete snapshots.
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    if let Ok(name) = known(&app, &id).await {
        return Err(ApiError::of(Code::Forbidden, format!("template '{name}' belongs to the server")));
    }
    let reference: TemplateRef = id.parse().map_err(|_| ApiError::fleet(FleetError::NoSnapshot(id), ""))?;
    let deleted = app.fleet.delete_named(caller.scope, &reference).await;
    deleted.map_err(|error| ApiError::fleet(error, ""))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Template builds are not implemented yet.
pub(super) async fn build_later(_: Caller<Write>) -> ApiError {
    ApiError::not_implemented("template builds")
}

/// Whether the name is that of a template, which a snapshot cannot have.
pub(super) async fn is_template(app: &App, name: &str) -> Result<bool, ApiError> {
    let templates = app.fleet.templates().await.map_err(|error| ApiError::fleet(error, ""))?;
    Ok(templates.iter().any(|template| template.name == name))
}

async fn known(app: &App, text: &str) -> Result<String, ApiError> {
    let shown: String = text.chars().take(64).collect();
    let unknown = || ApiError::of(Code::NotFound, format!("template '{shown}' not found"));
    let asked: TemplateRef = text.parse().map_err(|_| unknown())?;
    if asked.namespace.is_some() || asked.tag.is_some_and(|tag| tag != "default") {
        return Err(unknown());
    }
    let templates = app.fleet.templates().await.map_err(|error| ApiError::fleet(error, ""))?;
    let found = templates.iter().find(|template| template.name == asked.name);
    found.map(|template| template.name.clone()).ok_or_else(unknown)
}

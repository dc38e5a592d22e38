//! Templates and teams, as E2B's command line and SDKs see them. Builds are in [`super::template_builds`].

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use coffer_core::TemplateRef;
use coffer_store::{BuildFilter, TemplateRow};
use coffer_wire::agentd::ENVD_VERSION;
use coffer_wire::e2b::{Team, Template, TemplateAlias};
use http::StatusCode;
use serde_json::{Value, json};

use super::app::App;
use super::auth::{Caller, Read, Write};
use super::body::Body;
use super::error::ApiError;
use super::template_builds::shown_id;
use coffer_build::{BuildError, CatalogueEntry, CatalogueState};
use coffer_core::Code;
use coffer_core::clock::rfc3339;
use coffer_fleet::FleetError;

/// Most templates in one answer; a project has no more.
pub(crate) const MOST_LISTED: u32 = 1000;
/// Most builds in the detail of a template.
const MOST_BUILDS: u32 = 100;

/// `GET /teams`: the caller's project.
pub(super) async fn teams(caller: Caller<Read>) -> Json<Vec<Team>> {
    Json(vec![Team {
        team_id: caller.scope.project().to_string(),
        name: "default".to_string(),
        api_key: caller.key.reveal().to_string(),
        is_default: true,
    }])
}

/// `GET /templates` and `GET /v2/templates`: the server's and the project's.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
) -> Result<Json<Vec<Template>>, ApiError> {
    let host = app.fleet.templates().await.map_err(|error| ApiError::fleet(error, ""))?;
    let started = rfc3339(app.started_ms);
    let host = host.iter().map(|template| Template {
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
    let catalogue = app.builds.catalogue().await?;
    let catalogue = catalogue.iter().map(|entry| of_catalogue(&app, entry, &started));
    let own = app.store.templates(&caller.scope, None, MOST_LISTED).await.map_err(ApiError::store)?;
    let own = own.iter().map(|row| shown(&app, row));
    Ok(Json(host.chain(catalogue).chain(own).collect()))
}

/// A template of the catalogue. Its ids belong to a project that nobody sees, so its name is its id.
fn of_catalogue(app: &App, entry: &CatalogueEntry, started: &str) -> Template {
    let (definition, ready) = (entry.definition, entry.ready.as_ref());
    let shown = ready.or(entry.newest.as_ref());
    let at = |ms: Option<i64>| ms.map_or_else(|| started.to_string(), rfc3339);
    Template {
        template_id: definition.name.clone(),
        build_id: shown.map_or_else(|| uuid::Uuid::nil().to_string(), |row| shown_id(row.id)),
        cpu_count: definition.cpus.unwrap_or(app.limits.cpu_count),
        memory_mb: definition.memory_mib.unwrap_or(app.limits.memory_mib),
        disk_size_mb: app.limits.disk_mib,
        public: true,
        aliases: vec![definition.name.clone()],
        names: vec![definition.name.clone()],
        created_at: at(shown.map(|row| row.created_ms)),
        updated_at: at(shown.map(|row| row.ended_ms.unwrap_or(row.created_ms))),
        created_by: None,
        last_spawned_at: None,
        spawn_count: 0,
        build_count: u32::from(ready.is_some()),
        envd_version: ENVD_VERSION.to_string(),
        build_status: match entry.state {
            CatalogueState::NotBuilt => "waiting",
            CatalogueState::Building => "building",
            CatalogueState::Ready => "ready",
            CatalogueState::Failed => "error",
        }
        .to_string(),
    }
}

fn shown(app: &App, row: &TemplateRow) -> Template {
    Template {
        template_id: row.id.to_string(),
        build_id: shown_id(row.build),
        cpu_count: row.size.cpu_count.unwrap_or(app.limits.cpu_count),
        memory_mb: row.size.memory_mib.unwrap_or(app.limits.memory_mib),
        disk_size_mb: row.size.disk_mib.unwrap_or(app.limits.disk_mib),
        public: false,
        aliases: vec![row.name.clone()],
        names: vec![row.name.clone()],
        created_at: rfc3339(row.created_ms),
        updated_at: rfc3339(row.updated_ms),
        created_by: None,
        last_spawned_at: row.last_spawned_ms.map(rfc3339),
        spawn_count: u64::try_from(row.spawn_count).unwrap_or(0),
        build_count: u32::try_from(row.build_count).unwrap_or(u32::MAX),
        envd_version: ENVD_VERSION.to_string(),
        build_status: "ready".to_string(),
    }
}

/// `GET /templates/{id}`: a template of the project with its builds.
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let row = app.store.template(&caller.scope, &id).await.map_err(ApiError::store)?;
    let row = row.ok_or_else(|| ApiError::from(BuildError::NotFound(id.chars().take(64).collect())))?;
    let filter = BuildFilter { template: Some(row.id), limit: MOST_BUILDS, ..BuildFilter::default() };
    let builds = app.store.builds(&caller.scope, &filter).await.map_err(ApiError::store)?;
    let builds: Vec<Value> = builds
        .iter()
        .map(|build| {
            json!({
                "buildID": shown_id(build.id),
                "status": build.state.as_str(),
                "createdAt": rfc3339(build.created_ms),
                "updatedAt": rfc3339(build.ended_ms.or(build.started_ms).unwrap_or(build.created_ms)),
                "finishedAt": build.ended_ms.map(rfc3339),
                "cpuCount": build.size.cpu_count.unwrap_or(app.limits.cpu_count),
                "memoryMB": build.size.memory_mib.unwrap_or(app.limits.memory_mib),
                "diskSizeMB": app.limits.disk_mib,
                "envdVersion": ENVD_VERSION,
            })
        })
        .collect();
    let mut detail = serde_json::to_value(shown(&app, &row)).unwrap_or_default();
    detail["builds"] = builds.into();
    Ok(Json(detail))
}

/// `PATCH /v2/templates/{id}`: the only change is whether a template is public, which none here can be.
pub(super) async fn update(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Path(id): Path<String>,
    Body(change): Body<Value>,
) -> Result<Json<Value>, ApiError> {
    let row = app.store.template(&caller.scope, &id).await.map_err(ApiError::store)?;
    let row = row.ok_or_else(|| ApiError::from(BuildError::NotFound(id.chars().take(64).collect())))?;
    if change.get("public").and_then(Value::as_bool) == Some(true) {
        return Err(ApiError::of(Code::Forbidden, "a template belongs to its project and cannot be public")
            .hint(
                "build it in the other project too, or ask an operator to add it to the server's templates",
            ));
    }
    Ok(Json(json!({ "names": [row.name] })))
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
    let is_plain = reference.tag.is_none();
    // A template exists by its name, whatever tags it has.
    let own = match is_plain {
        true => app.store.template(&caller.scope, &reference.name).await.map_err(ApiError::store)?,
        false => None,
    };
    if let Some(own) = own {
        return Ok(Json(TemplateAlias { template_id: own.id.to_string(), public: false }));
    }
    let tagged = app.fleet.template_called(&caller.scope, &reference, Some(false)).await;
    if let Some(tagged) = tagged.map_err(|error| ApiError::fleet(error, ""))? {
        return Ok(Json(TemplateAlias { template_id: tagged.template_id, public: false }));
    }
    let found = app.fleet.snapshot_called(&caller.scope, &reference).await;
    if let Some(snapshot) = found.map_err(|error| ApiError::fleet(error, ""))? {
        return Ok(Json(TemplateAlias { template_id: snapshot.id.to_string(), public: false }));
    }
    let shared = app.fleet.shared_called(&reference, Some(false)).await;
    let shared = shared.map_err(|error| ApiError::fleet(error, ""))?.ok_or(unknown)?;
    Ok(Json(TemplateAlias { template_id: shared.template_id, public: true }))
}

/// `DELETE /templates/{id}`, which SDKs also use to delete snapshots.
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    // Agents delete their snapshots by this route; templates are their project's.
    if caller.scope.agent().is_none() {
        match app.builds.delete(&caller.scope, &id).await {
            Err(BuildError::NotFound(_)) => {}
            deleted => return Ok(deleted.map(|()| StatusCode::NO_CONTENT)?),
        }
    }
    let reference: TemplateRef = id.parse().map_err(|_| ApiError::fleet(FleetError::NoSnapshot(id), ""))?;
    let deleted = app.fleet.delete_named(caller.scope, &reference).await;
    deleted.map_err(|error| ApiError::fleet(error, ""))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Whether the name is that of a template, which a snapshot cannot have.
pub(super) async fn is_template(app: &App, name: &str) -> Result<bool, ApiError> {
    let templates = app.fleet.templates().await.map_err(|error| ApiError::fleet(error, ""))?;
    Ok(templates.iter().any(|template| template.name == name) || app.fleet.is_shared(name))
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

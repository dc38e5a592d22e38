//! Templates: the server's, and those that projects build.

mod builds;
mod files;
mod request;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use coffer_core::TemplateRef;
use coffer_core::clock::rfc3339;
use coffer_store::{TemplateEntry, TemplateFilter, TemplateState};
use coffer_wire::node::TemplateInfo;
use http::StatusCode;

use super::page::Part;
use crate::app::App;
use crate::auth::{Caller, Read, Write};
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::templates::{Template, TemplateQuery};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_build::BuildError;

pub(super) use builds::*;
pub(super) use files::*;
pub(super) use request::*;

const SERVER: &str = "server";
const PROJECT: &str = "project";
const LONGEST_SEARCH: usize = 256;

/// A template of the server.
fn of_server(app: &App, template: &TemplateInfo) -> Template {
    Template {
        id: template.name.clone(),
        name: template.name.clone(),
        kind: SERVER.to_string(),
        state: TemplateState::Ready.as_str().to_string(),
        summary: None,
        build: Some(template.build.clone()),
        is_default: template.name == app.default_template,
        user: Some(template.default_user.clone()),
        workdir: template.default_workdir.clone(),
        tags: vec![coffer_fleet::DEFAULT_TAG.to_string()],
        cpu_count: app.limits.cpu_count,
        memory_mib: app.limits.memory_mib,
        disk_mib: app.limits.disk_mib,
        added_bytes: None,
        build_count: 1,
        spawn_count: 0,
        last_spawned_at: None,
        created_by: None,
        created_at: None,
        updated_at: None,
        last_build: None,
    }
}

/// A template of a project.
fn of_project(app: &App, entry: TemplateEntry) -> Template {
    let (user, workdir) = match entry.defaults {
        Some(defaults) => (Some(defaults.user), defaults.workdir),
        None => (None, None),
    };
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    Template {
        id: entry.id.to_string(),
        is_default: entry.name == app.default_template,
        name: entry.name,
        kind: PROJECT.to_string(),
        state: entry.state.as_str().to_string(),
        summary: entry.summary,
        build: entry.build.map(crate::template_builds::shown_id),
        user,
        workdir,
        tags: entry.tags,
        cpu_count: entry.size.cpu_count.unwrap_or(app.limits.cpu_count),
        memory_mib: entry.size.memory_mib.unwrap_or(app.limits.memory_mib),
        disk_mib: entry.size.disk_mib.unwrap_or(app.limits.disk_mib),
        added_bytes: entry.snapshot.map(|_| count(entry.bytes)),
        build_count: count(entry.build_count),
        spawn_count: count(entry.spawn_count),
        last_spawned_at: entry.last_spawned_ms.map(rfc3339),
        created_by: entry.created_by,
        created_at: Some(rfc3339(entry.created_ms)),
        updated_at: Some(rfc3339(entry.updated_ms)),
        last_build: entry.last_build.map(|row| shown_build(app, row)),
    }
}

/// Lists templates by name: the server's, and those that the project built. Snapshots can be used as templates too:
/// `GET /api/v1/snapshots` lists those.
#[utoipa::path(
    get, path = "/api/v1/templates", tag = "templates", params(PageQuery, TemplateQuery),
    responses((status = 200, body = Page<Template>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
    Query(query): Query<TemplateQuery>,
) -> Result<Json<Page<Template>>, ApiError> {
    let part: Part<String> = Part::of(page)?;
    let (servers, own) = match query.kind.as_deref() {
        None => (true, true),
        Some(SERVER) => (true, false),
        Some(PROJECT) => (false, true),
        Some(_) => return Err(ApiError::invalid("kind", format!("must be {SERVER} or {PROJECT}"))),
    };
    let state = query.state.as_deref();
    let known = state.is_none_or(|state| state == NOT_BUILT || TemplateState::parse(state).is_some());
    if !known {
        return Err(ApiError::invalid("state", "must be ready, building, error or not_built"));
    }
    let search = query.search.as_deref().map(str::to_lowercase);
    if search.as_ref().is_some_and(|search| search.len() > LONGEST_SEARCH) {
        return Err(ApiError::invalid("search", format!("may have at most {LONGEST_SEARCH} bytes")));
    }
    let mut found: Vec<Template> = Vec::new();
    if servers {
        let wanted = |template: &Template| {
            part.after.as_ref().is_none_or(|after| template.name > *after)
                && state.is_none_or(|state| template.state == state)
                && search.as_ref().is_none_or(|search| {
                    let summary = template.summary.as_deref().unwrap_or_default();
                    format!("{} {summary}", template.name).to_lowercase().contains(search)
                })
        };
        found.extend(of_the_server(&app).await?.into_iter().filter(wanted));
    }
    if own && state != Some(NOT_BUILT) {
        let filter = TemplateFilter {
            only: None,
            state: state.and_then(TemplateState::parse),
            search: search.as_deref(),
            after: part.after.as_deref(),
            limit: part.to_fetch(),
        };
        let entries = app.store.template_entries(&caller.scope, &filter).await.map_err(ApiError::store)?;
        found.extend(entries.into_iter().map(|entry| of_project(&app, entry)));
    }
    // No project can have a template with the name of one of the server's.
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Json(part.page(found, |template| template.name.clone(), |template| template)))
}

/// The state of a template of the server that nobody has built yet.
const NOT_BUILT: &str = "not_built";

async fn of_the_server(app: &App) -> Result<Vec<Template>, ApiError> {
    let known = app.fleet.templates().await.map_err(|error| ApiError::fleet(error, ""))?;
    Ok(known.iter().map(|template| of_server(app, template)).collect())
}

/// One template, by its id or name.
#[utoipa::path(
    get, path = "/api/v1/templates/{template}", tag = "templates", params(("template" = String, Path)),
    responses((status = 200, body = Template))
)]
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Path(template): Path<String>,
) -> Result<Json<Template>, ApiError> {
    let servers = of_the_server(&app).await?.into_iter().find(|known| known.name == template);
    if let Some(found) = servers {
        return Ok(Json(found));
    }
    let entry = own(&app, &caller, &template).await?;
    Ok(Json(of_project(&app, entry)))
}

/// The template of the project with that id or name.
async fn own<N>(app: &App, caller: &Caller<N>, template: &str) -> Result<TemplateEntry, ApiError> {
    let name = template.parse::<TemplateRef>().ok().map(|reference| reference.name);
    let filter = TemplateFilter { only: name.as_deref(), limit: 1, ..TemplateFilter::default() };
    let missing = || ApiError::from(BuildError::NotFound(template.chars().take(64).collect()));
    if name.is_none() {
        return Err(missing());
    }
    let found = app.store.template_entries(&caller.scope, &filter).await.map_err(ApiError::store)?;
    found.into_iter().next().ok_or_else(missing)
}

/// Deletes a template of the project: its builds end, its tags and cached snapshots go. Sandboxes from it keep running.
#[utoipa::path(
    delete, path = "/api/v1/templates/{template}", tag = "templates", params(("template" = String, Path)),
    responses((status = 204), (status = 403, body = ErrorShape, description = "it is the server's"))
)]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Path(template): Path<String>,
) -> Result<StatusCode, ApiError> {
    if app.builds.is_of_the_host(&template).await? {
        return Err(BuildError::HostTemplate(template).into());
    }
    let entry = own(&app, &caller, &template).await?;
    app.builds.delete(&caller.scope, &entry.id.to_string()).await?;
    Ok(StatusCode::NO_CONTENT)
}

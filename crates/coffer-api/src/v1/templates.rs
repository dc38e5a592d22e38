//! Templates: the server's, those of the catalogue, and those that projects build.

pub(super) mod builds;
pub(super) mod files;
pub(super) mod request;
pub(super) mod show;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use coffer_store::{TemplateFilter, TemplateState};
use http::StatusCode;

use self::show::{CATALOGUE, NOT_BUILT, PROJECT, SERVER, of_catalogue, of_project, of_server, own};
use super::page::Part;
use crate::app::App;
use crate::auth::{Caller, Read, Write};
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::templates::{Template, TemplateQuery};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_build::BuildError;

const LONGEST_SEARCH: usize = 256;

/// Lists templates by name: the server's, those of the catalogue (built or not), and those that the project built. Snapshots can be used as templates too:
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
    let kind = query.kind.as_deref();
    if kind.is_some_and(|kind| ![SERVER, CATALOGUE, PROJECT].contains(&kind)) {
        return Err(ApiError::invalid("kind", format!("must be {SERVER}, {CATALOGUE} or {PROJECT}")));
    }
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
    if kind != Some(PROJECT) {
        let wanted = |template: &Template| {
            kind.is_none_or(|kind| template.kind == kind)
                && part.after.as_ref().is_none_or(|after| template.name > *after)
                && state.is_none_or(|state| template.state == state)
                && search.as_ref().is_none_or(|search| {
                    let summary = template.summary.as_deref().unwrap_or_default();
                    format!("{} {summary}", template.name).to_lowercase().contains(search)
                })
        };
        found.extend(shared(&app).await?.into_iter().filter(wanted));
    }
    if kind.is_none_or(|kind| kind == PROJECT) && state != Some(NOT_BUILT) {
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

/// Templates that all projects share.
async fn shared(app: &App) -> Result<Vec<Template>, ApiError> {
    let known = app.fleet.templates().await.map_err(|error| ApiError::fleet(error, ""))?;
    let catalogue = app.builds.catalogue().await?;
    let servers = known.iter().map(|template| of_server(app, template));
    Ok(servers.chain(catalogue.into_iter().map(|entry| of_catalogue(app, entry))).collect())
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
    let shared = shared(&app).await?.into_iter().find(|known| known.name == template);
    if let Some(found) = shared {
        return Ok(Json(found));
    }
    let entry = own(&app, &caller, &template).await?;
    Ok(Json(of_project(&app, entry)))
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

//! Templates: the server's, and those that projects build.

pub(super) mod builds;
pub(super) mod files;
pub(super) mod request;
mod show;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use coffer_store::{TemplateFilter, TemplateState};
use http::StatusCode;

use self::show::{PROJECT, SERVER, of_catalogue, of_project, of_server, own};
use super::page::Part;
use crate::app::App;
use crate::auth::{Caller, Read, Write};
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::templates::{Template, TemplateQuery};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_build::BuildError;

const LONGEST_SEARCH: usize = 256;

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
    // A project may have had a name before the catalogue did: then its own counts.
    found.sort_by(|one, other| (&one.name, &one.kind).cmp(&(&other.name, &other.kind)));
    found.dedup_by(|later, earlier| later.name == earlier.name);
    Ok(Json(part.page(found, |template| template.name.clone(), |template| template)))
}

/// The state of a template of the server that nobody has built yet.
const NOT_BUILT: &str = "not_built";

async fn of_the_server(app: &App) -> Result<Vec<Template>, ApiError> {
    let known = app.fleet.templates().await.map_err(|error| ApiError::fleet(error, ""))?;
    let catalogue = app.builds.catalogue().await?;
    let catalogue = catalogue.into_iter().map(|entry| of_catalogue(app, entry));
    Ok(known.iter().map(|template| of_server(app, template)).chain(catalogue).collect())
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
    let missing = match own(&app, &caller, &template).await {
        Ok(entry) => return Ok(Json(of_project(&app, entry))),
        Err(missing) => missing,
    };
    let servers = of_the_server(&app).await?.into_iter().find(|known| known.name == template);
    servers.map(Json).ok_or(missing)
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
    if app.builds.is_of_the_server(&caller.scope, &template).await? {
        return Err(BuildError::HostTemplate(template).into());
    }
    let entry = own(&app, &caller, &template).await?;
    app.builds.delete(&caller.scope, &entry.id.to_string()).await?;
    Ok(StatusCode::NO_CONTENT)
}

//! The catalogue, for operators: templates that come with the program.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;

use crate::app::App;
use crate::auth::Operating;
use crate::body::MaybeChecked;
use crate::error::ApiError;
use crate::query::Query;
use crate::template_builds::shown_id;
use coffer_api_types::templates::{
    CatalogueBuild, CatalogueBuildRequest, CatalogueLogQuery, CatalogueTemplate,
};
use coffer_api_types::{ErrorShape, Page};
use coffer_build::{CatalogueEntry, CatalogueState};
use coffer_core::clock::rfc3339;

/// Lines of a log in one answer.
const LOG_PAGE: u32 = 500;

/// Lists the catalogue: templates that come with the program as definitions. For operators.
#[utoipa::path(
    get, path = "/api/v1/admin/catalogue", tag = "templates",
    responses((status = 200, body = Page<CatalogueTemplate>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    _: Operating,
) -> Result<Json<Page<CatalogueTemplate>>, ApiError> {
    let entries = app.builds.catalogue().await?;
    Ok(Json(Page::new(entries.into_iter().map(|entry| shown(entry, Vec::new())).collect(), None)))
}

/// Returns a template of the catalogue, with a page of the log of its newest build. For operators.
#[utoipa::path(
    get, path = "/api/v1/admin/catalogue/{name}", tag = "templates",
    params(("name" = String, Path), CatalogueLogQuery),
    responses((status = 200, body = CatalogueTemplate))
)]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    _: Operating,
    Path(name): Path<String>,
    Query(query): Query<CatalogueLogQuery>,
) -> Result<Json<CatalogueTemplate>, ApiError> {
    let entry = app.builds.catalogue_entry(&name).await?;
    let log = match &entry.newest {
        Some(row) => app.builds.catalogue_log(row, query.log_offset.unwrap_or(0).into(), LOG_PAGE).await?,
        None => Vec::new(),
    };
    Ok(Json(shown(entry, log.into_iter().map(|line| line.message).collect())))
}

/// Builds a template of the catalogue, unless it is current or being built; the answer does not wait for it. For
/// operators.
#[utoipa::path(
    post, path = "/api/v1/admin/catalogue/{name}/build", tag = "templates", params(("name" = String, Path)),
    request_body = CatalogueBuildRequest,
    responses(
        (status = 202, body = CatalogueTemplate),
        (status = 409, body = ErrorShape, description = "the template that it starts from is not built")
    )
)]
pub(super) async fn build(
    State(app): State<Arc<App>>,
    _: Operating,
    Path(name): Path<String>,
    MaybeChecked(request): MaybeChecked<CatalogueBuildRequest>,
) -> Result<(StatusCode, Json<CatalogueTemplate>), ApiError> {
    let entry = app.builds.build_of_catalogue(&name, request.force).await?;
    Ok((StatusCode::ACCEPTED, Json(shown(entry, Vec::new()))))
}

/// The name of a template's state.
pub(super) const fn state(entry: &CatalogueEntry) -> &'static str {
    match entry.state {
        CatalogueState::NotBuilt => "not_built",
        CatalogueState::Building => "building",
        CatalogueState::Ready => "ready",
        CatalogueState::Failed => "error",
    }
}

fn shown(entry: CatalogueEntry, log: Vec<String>) -> CatalogueTemplate {
    let state = state(&entry).to_string();
    let build = entry.newest.map(|row| CatalogueBuild {
        id: shown_id(row.id),
        state: row.state.as_str().to_string(),
        started_at: row.started_ms.map(rfc3339),
        ended_at: row.ended_ms.map(rfc3339),
        step: row.failure.as_ref().and_then(|failure| failure.step.clone()),
        failure: row.failure.map(|failure| failure.message),
        log,
    });
    CatalogueTemplate {
        name: entry.definition.name.clone(),
        summary: entry.definition.summary.clone(),
        from: entry.definition.source().to_string(),
        state,
        is_current: entry.is_current,
        build,
    }
}

//! Templates of this host.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::app::App;
use crate::auth::{Caller, Read};
use crate::error::ApiError;
use coffer_api_types::Page;
use coffer_api_types::templates::Template;

/// Lists the templates of this host, by name. Snapshots can be used as templates too: `GET /api/v1/snapshots`
/// lists those.
#[utoipa::path(
    get, path = "/api/v1/templates", tag = "templates",
    responses((status = 200, body = Page<Template>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    _: Caller<Read>,
) -> Result<Json<Page<Template>>, ApiError> {
    let known = app.fleet.templates().await.map_err(|error| ApiError::fleet(error, ""))?;
    let shown = known.iter().map(|template| Template {
        name: template.name.clone(),
        build: template.build.clone(),
        is_default: template.name == app.default_template,
        user: template.default_user.clone(),
        workdir: template.default_workdir.clone(),
    });
    let mut items: Vec<Template> = shown.collect();
    items.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Json(Page::new(items, None)))
}

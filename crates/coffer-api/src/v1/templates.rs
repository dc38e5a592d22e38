//! What sandboxes are made from.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::page::Page;
use crate::app::App;
use crate::auth::{Caller, Read};
use crate::error::ApiError;

/// A template that sandboxes can be made from.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Template {
    name: String,
    /// Changes with every build.
    build: String,
    /// Whether sandboxes that name no template are made from it.
    is_default: bool,
    /// Whom commands run as unless they say otherwise.
    user: String,
    /// Where commands run unless they say otherwise; the user's home where it is null.
    workdir: Option<String>,
}

/// The templates of this host, by name. Snapshots can be named as templates too: `GET /api/v1/snapshots` lists those.
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

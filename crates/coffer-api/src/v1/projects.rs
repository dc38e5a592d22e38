//! Projects: the caller's own, and for operators all of them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::ProjectId;
use coffer_store::Project as ProjectRow;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::keys::{checked, made};
use super::page::Part;
use crate::app::App;
use crate::auth::{Admin, Caller, Id, Operating, Read};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use crate::names::check_name;
use crate::query::Query;
use coffer_api_types::keys::{MadeKey, NewKeyRequest};
use coffer_api_types::projects::{Project, ProjectName};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::Code;
use coffer_core::clock::rfc3339;

fn shown(project: ProjectRow) -> Project {
    Project { id: project.id.to_string(), name: project.name, created_at: rfc3339(project.created_ms) }
}

fn tagged(project: ProjectRow) -> (HeaderMap, Json<Project>) {
    let tag = HeaderValue::try_from(format!("\"{}\"", project.version)).expect("digits in quotes");
    (HeaderMap::from_iter([(header::ETAG, tag)]), Json(shown(project)))
}

/// The version in `If-Match`; `None` without that header.
pub(super) fn wanted_version(headers: &HeaderMap) -> Result<Option<i64>, ApiError> {
    let Some(tag) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let text = tag.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    let version = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')?.parse().ok());
    // A malformed tag matches nothing.
    version.map(Some).ok_or_else(changed_meanwhile)
}

pub(super) fn changed_meanwhile() -> ApiError {
    ApiError::of(Code::PreconditionFailed, "the version in If-Match is out of date")
        .hint("read it again and repeat the change with its ETag")
}

/// The caller's project.
#[utoipa::path(
    get, path = "/api/v1/project", tag = "projects",
    responses((status = 200, body = Project, headers(("ETag" = String))))
)]
pub(super) async fn own(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
) -> Result<(HeaderMap, Json<Project>), ApiError> {
    let id = caller.scope.project();
    let project = app.store.project(&caller.scope, id).await.map_err(ApiError::store)?;
    project.map(tagged).ok_or_else(|| ApiError::nothing("project", id))
}

/// Renames the caller's project.
#[utoipa::path(
    patch, path = "/api/v1/project", tag = "projects", request_body = ProjectName,
    params(("If-Match" = Option<String>, Header, description = "the ETag that the change is meant for")),
    responses(
        (status = 200, body = Project, headers(("ETag" = String))),
        (status = 409, body = ErrorShape, description = "the name is taken"), (status = 412, body = ErrorShape)
    )
)]
pub(super) async fn rename(
    State(app): State<Arc<App>>,
    caller: Caller<Admin>,
    headers: HeaderMap,
    Checked(request): Checked<ProjectName>,
) -> Result<(HeaderMap, Json<Project>), ApiError> {
    check_name(&request.name)?;
    let version = wanted_version(&headers)?;
    let project = caller.scope.project();
    let renamed = app.store.rename_project(&caller.scope, project, version, &request.name).await;
    let renamed = renamed.map_err(|error| ApiError::name(error, "project", &request.name))?;
    renamed.map(tagged).ok_or_else(changed_meanwhile)
}

/// Creates a project. For operators.
#[utoipa::path(
    post, path = "/api/v1/projects", tag = "projects", request_body = ProjectName,
    responses((status = 201, body = Project), (status = 409, body = ErrorShape))
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Operating,
    context: Context,
    Checked(request): Checked<ProjectName>,
) -> Result<(StatusCode, Json<Project>), ApiError> {
    check_name(&request.name)?;
    let id = app.store.create_project(&caller.operator, &request.name).await;
    let id = id.map_err(|error| ApiError::name(error, "project", &request.name))?;
    context.made(id);
    let project = app.store.project(&caller.operator, id).await.map_err(ApiError::store)?;
    let project = project.ok_or_else(|| ApiError::nothing("project", id))?;
    Ok((StatusCode::CREATED, Json(shown(project))))
}

/// All projects, oldest first. For operators.
#[utoipa::path(
    get, path = "/api/v1/projects", tag = "projects", params(PageQuery),
    responses((status = 200, body = Page<Project>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Operating,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Project>>, ApiError> {
    let part = Part::of(page)?;
    let projects = app.store.listed_projects(&caller.operator, part.after, part.to_fetch()).await;
    Ok(Json(part.page(projects.map_err(ApiError::store)?, |project| project.id.to_string(), shown)))
}

/// Creates a key for a project. For operators.
#[utoipa::path(
    post, path = "/api/v1/projects/{project}/keys", tag = "projects", params(("project" = String, Path)),
    request_body = NewKeyRequest,
    responses((status = 201, body = MadeKey))
)]
pub(super) async fn create_key(
    State(app): State<Arc<App>>,
    caller: Operating,
    Id(project): Id<ProjectId>,
    Checked(request): Checked<NewKeyRequest>,
) -> Result<(StatusCode, Json<MadeKey>), ApiError> {
    let key = checked(request)?;
    if key.agent.is_some() {
        return Err(ApiError::invalid("agent_id", "can be set only by the project's own admins"));
    }
    let found = app.store.project(&caller.operator, project).await.map_err(ApiError::store)?;
    found.ok_or_else(|| ApiError::nothing("project", project))?;
    let secret = app.store.create_key(&caller.operator, project, key).await.map_err(ApiError::store)?;
    Ok(made(&secret))
}

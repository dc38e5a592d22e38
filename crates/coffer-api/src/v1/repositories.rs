//! Repositories.

use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams, State};
use coffer_api_types::repositories::{
    Branch, ChangedRepository, NewProtection, NewRepository, Protection, Repository, RepositoryDetail,
};
use coffer_core::KeyKind;
use coffer_core::forge::{BranchName, ProtectionRules, RepositoryName};
use coffer_forge::{Forge, Listed, Part as ForgePart};
use coffer_store::{ProjectScope, RepositoryRow};
use futures_util::StreamExt;
use http::request::Parts;
use http::{HeaderMap, StatusCode};

use super::locate;
use super::page::Part;
use crate::app::App;
use crate::auth::{Admin, Caller, Need, Read, Write};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use crate::here::{base_url, check_keeper};
use crate::query::Query;
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::clock::rfc3339;

/// The repository in the path, for a caller with the role that the handler needs.
#[derive(Debug)]
pub(super) struct Located<N> {
    pub(super) scope: ProjectScope,
    pub(super) actor: String,
    pub(super) kind: KeyKind,
    pub(super) row: RepositoryRow,
    pub(super) forge: Arc<dyn Forge>,
    /// The other parameters of the path.
    params: Vec<(String, String)>,
    needs: PhantomData<fn() -> N>,
}

impl<N: Need> FromRequestParts<Arc<App>> for Located<N> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let caller = Caller::<N>::from_request_parts(parts, app).await?;
        let params = RawPathParams::from_request_parts(parts, app).await;
        let params = params.map_err(|_| ApiError::bad_request("the path is not text"))?;
        let params: Vec<_> =
            params.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let named = params.iter().find(|(name, _)| name == "repository").map(|(_, value)| value.as_str());
        let named = named.ok_or_else(ApiError::internal)?;
        let shown: String = named.chars().take(64).collect();
        let row = app.store.repository(&caller.scope, named).await.map_err(ApiError::store)?;
        let row = row.ok_or_else(|| ApiError::nothing("repository", shown))?;
        check_keeper(app, &row)?;
        let actor = caller.actor();
        let forge = app.forges.open(&caller.scope, &row, &actor).await.map_err(ApiError::forge)?;
        Ok(Self { scope: caller.scope, actor, kind: caller.kind, row, forge, params, needs: PhantomData })
    }
}

impl<N> Located<N> {
    /// Another parameter of the path; a malformed one is not found.
    pub(super) fn named<T: FromStr>(&self, kind: &str) -> Result<T, ApiError> {
        let text = self.params.iter().find(|(name, _)| name == kind).map_or("", |(_, value)| value.as_str());
        let shown: String = text.chars().take(64).collect();
        text.parse().map_err(|_| ApiError::nothing(kind, shown))
    }

    /// The number in the path.
    pub(super) fn number(&self) -> Result<i64, ApiError> {
        match self.named::<i64>("number")? {
            number if number > 0 => Ok(number),
            number => Err(ApiError::nothing("number", number)),
        }
    }
}

fn shown(row: RepositoryRow, headers: &HeaderMap) -> Repository {
    let here = base_url(headers).filter(|_| row.connection.is_none());
    Repository {
        clone_url: here.map(|here| format!("{here}{}", coffer_forge::git_path(&row))),
        id: row.id.to_string(),
        name: row.name.to_string(),
        kind: row.kind.as_str().to_string(),
        connection_id: row.connection.map(|id| id.to_string()),
        remote: row.remote,
        default_branch: row.default_branch.to_string(),
        created_at: rfc3339(row.created_ms),
    }
}

/// The name of a repository without the optional prefix `local/`. Records have one name per repository and
/// are compared by it.
pub(super) fn plain_name(name: &str) -> &str {
    name.strip_prefix("local/").filter(|rest| !rest.is_empty()).unwrap_or(name)
}

/// Parses a field that has a grammar.
pub(super) fn field<T: FromStr<Err: std::fmt::Display>>(name: &str, text: &str) -> Result<T, ApiError> {
    text.parse().map_err(|why| ApiError::invalid(name, format!("is invalid: {why}")))
}

/// The requested part of a forge's list.
pub(super) fn forge_part(page: PageQuery) -> Result<ForgePart, ApiError> {
    let part = Part::<String>::of(page)?;
    Ok(ForgePart { after: part.after, limit: part.limit })
}

pub(super) fn listed<T>(listed: Listed<T>) -> Json<Page<T>> {
    Json(Page::new(listed.items, listed.next))
}

/// Creates an empty repository on this server, to push to its `clone_url` or to import a bundle; or, with
/// `connection_id` and `remote`, or with `url`, registers one of another forge.
#[utoipa::path(
    post, path = "/api/v1/repositories", tag = "repositories", request_body = NewRepository,
    responses(
        (status = 201, body = Repository),
        (status = 200, body = Repository, description = "the project has the one at this `url`"),
        (status = 404, body = ErrorShape, description = "no such connection"),
        (status = 409, body = ErrorShape, description = "the name is taken, or no connection leads to the `url`")
    )
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    context: Context,
    headers: HeaderMap,
    Checked(new): Checked<NewRepository>,
) -> Result<(StatusCode, Json<Repository>), ApiError> {
    if let Some(url) = &new.url {
        let others = new.connection_id.is_some() || new.remote.is_some() || new.default_branch.is_some();
        if others {
            return Err(ApiError::invalid(
                "url",
                "stands for connection_id, remote and default_branch: leave them out",
            ));
        }
        if !new.name.is_empty() {
            return Err(ApiError::invalid("name", "comes from the address in `url`: leave it out"));
        }
        let (found, is_new) = locate::repository_at(&app, &caller.scope, "url", url, &headers).await?;
        if is_new {
            context.made(found.id);
        }
        let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
        return Ok((status, Json(shown(found, &headers))));
    }
    let name: RepositoryName = field("name", &new.name)?;
    let made = match (new.connection_id, new.remote) {
        (None, None) => {
            let branch: BranchName =
                field("default_branch", new.default_branch.as_deref().unwrap_or("main"))?;
            app.forges.create_local(&caller.scope, name, branch).await
        }
        (Some(connection), Some(remote)) if new.default_branch.is_none() => {
            let connection = field("connection_id", &connection)?;
            app.forges.register(&caller.scope, name, connection, &remote).await
        }
        (Some(_), Some(_)) => return Err(ApiError::invalid("default_branch", "comes from the other forge")),
        _ => return Err(ApiError::invalid("remote", "and connection_id go together")),
    };
    let made = made.map_err(ApiError::forge)?;
    context.made(made.id);
    Ok((StatusCode::CREATED, Json(shown(made, &headers))))
}

/// The repositories of this project, oldest first.
#[utoipa::path(
    get, path = "/api/v1/repositories", tag = "repositories", params(PageQuery),
    responses((status = 200, body = Page<Repository>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    headers: HeaderMap,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Repository>>, ApiError> {
    let part = Part::of(page)?;
    let rows = app.store.repositories(&caller.scope, part.after, part.to_fetch()).await;
    let rows = rows.map_err(ApiError::store)?;
    Ok(Json(part.page(rows, |row| row.id.to_string(), |row| shown(row, &headers))))
}

/// One repository, by its id or its name.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}", tag = "repositories", params(("repository" = String, Path)),
    responses((status = 200, body = RepositoryDetail))
)]
pub(super) async fn detail(
    located: Located<Read>,
    headers: HeaderMap,
) -> Result<Json<RepositoryDetail>, ApiError> {
    let info = located.forge.repository().await.map_err(ApiError::forge)?;
    Ok(Json(RepositoryDetail { repository: shown(located.row, &headers), info }))
}

/// Changes the default branch of a local repository.
#[utoipa::path(
    patch, path = "/api/v1/repositories/{repository}", tag = "repositories",
    params(("repository" = String, Path)), request_body = ChangedRepository,
    responses((status = 200, body = Repository))
)]
pub(super) async fn change(
    State(app): State<Arc<App>>,
    located: Located<Admin>,
    headers: HeaderMap,
    Checked(change): Checked<ChangedRepository>,
) -> Result<Json<Repository>, ApiError> {
    let branch: BranchName = field("default_branch", &change.default_branch)?;
    let changed = app.forges.set_default_branch(&located.scope, &located.row, branch).await;
    Ok(Json(shown(changed.map_err(ApiError::forge)?, &headers)))
}

/// Deletes a repository with its pull requests and issues; for one on another forge only its records here.
#[utoipa::path(
    delete, path = "/api/v1/repositories/{repository}", tag = "repositories",
    params(("repository" = String, Path)),
    responses((status = 204))
)]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    located: Located<Admin>,
) -> Result<StatusCode, ApiError> {
    app.forges.delete(&located.scope, &located.row).await.map_err(ApiError::forge)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Fills an empty local repository from a bundle, such as `git bundle create x.bundle --all` writes.
#[utoipa::path(
    post, path = "/api/v1/repositories/{repository}/import", tag = "repositories",
    params(("repository" = String, Path)),
    request_body(content = String, content_type = "application/octet-stream"),
    responses((status = 200, body = Repository), (status = 413, body = ErrorShape), (status = 507, body = ErrorShape))
)]
pub(super) async fn import(
    State(app): State<Arc<App>>,
    located: Located<Write>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Repository>, ApiError> {
    let bundle = body.into_data_stream().boxed();
    let filled = app.forges.import(&located.scope, &located.row, &located.actor, bundle).await;
    Ok(Json(shown(filled.map_err(ApiError::forge)?, &headers)))
}

/// The branches of a repository, by name.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/branches", tag = "repositories",
    params(("repository" = String, Path), PageQuery),
    responses((status = 200, body = Page<Branch>))
)]
pub(super) async fn branches(
    located: Located<Read>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Branch>>, ApiError> {
    let all = located.forge.branches(forge_part(page)?).await;
    Ok(listed(all.map_err(ApiError::forge)?))
}

/// The protected branches of a local repository.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/protections", tag = "repositories",
    params(("repository" = String, Path)),
    responses((status = 200, body = Page<Protection>))
)]
pub(super) async fn protections(
    State(app): State<Arc<App>>,
    located: Located<Read>,
) -> Result<Json<Page<Protection>>, ApiError> {
    let all = app.forges.protections(&located.scope, &located.row).await.map_err(ApiError::forge)?;
    Ok(Json(Page::new(all, None)))
}

/// The protection of a branch; 404 if it has none.
#[utoipa::path(
    get, path = "/api/v1/repositories/{repository}/protections/{*branch}", tag = "repositories",
    params(("repository" = String, Path), ("branch" = String, Path)),
    responses((status = 200, body = Protection))
)]
pub(super) async fn protection(located: Located<Read>) -> Result<Json<Protection>, ApiError> {
    let branch: BranchName = located.named("branch")?;
    let found = located.forge.protection(&branch).await.map_err(ApiError::forge)?;
    found.map(Json).ok_or_else(|| ApiError::nothing("protection of branch", branch))
}

/// Protects a branch of a local repository; the branch need not exist yet.
#[utoipa::path(
    put, path = "/api/v1/repositories/{repository}/protections/{*branch}", tag = "repositories",
    params(("repository" = String, Path), ("branch" = String, Path)), request_body = NewProtection,
    responses((status = 200, body = Protection))
)]
pub(super) async fn protect(
    State(app): State<Arc<App>>,
    located: Located<Admin>,
    Checked(new): Checked<NewProtection>,
) -> Result<Json<Protection>, ApiError> {
    let branch: BranchName = located.named("branch")?;
    if new.approvals > 100 {
        return Err(ApiError::invalid("approvals", "must be at most 100"));
    }
    let NewProtection { require_pull, approvals, require_statuses } = new;
    let rules = ProtectionRules { require_pull, approvals, require_statuses };
    let set = app.forges.protect(&located.scope, &located.row, branch, Some(rules)).await;
    set.map_err(ApiError::forge)?.map(Json).ok_or_else(ApiError::internal)
}

/// Removes the protection of a branch.
#[utoipa::path(
    delete, path = "/api/v1/repositories/{repository}/protections/{*branch}", tag = "repositories",
    params(("repository" = String, Path), ("branch" = String, Path)),
    responses((status = 204))
)]
pub(super) async fn unprotect(
    State(app): State<Arc<App>>,
    located: Located<Admin>,
) -> Result<StatusCode, ApiError> {
    let branch: BranchName = located.named("branch")?;
    app.forges.protect(&located.scope, &located.row, branch, None).await.map_err(ApiError::forge)?;
    Ok(StatusCode::NO_CONTENT)
}

//! Repositories and issues by their addresses: on other forges, and this server's own.

use coffer_core::forge::{BadAddress, ForgeAddress, ForgeKind};
use coffer_store::{ProjectScope, RepositoryRow};
use http::HeaderMap;

use crate::app::App;
use crate::error::ApiError;
use crate::here::{base_url, check_keeper};

/// A repository of this server, or one of its issues, by name or id.
type Own<'a> = (&'a str, Option<i64>);

/// The repository at an address, and whether it was registered just now.
pub(super) async fn repository_at(
    app: &App,
    scope: &ProjectScope,
    field: &str,
    text: &str,
    headers: &HeaderMap,
) -> Result<(RepositoryRow, bool), ApiError> {
    if let Some(path) = own_path(text, headers) {
        let (name, _) = own(path, scope).filter(|(_, issue)| issue.is_none()).ok_or_else(|| {
            ApiError::invalid(field, "is an address of this server, and names no repository of it")
        })?;
        return Ok((named(app, scope, name).await?, false));
    }
    let address = address(field, text)?;
    if address.issue.is_some() {
        return Err(ApiError::invalid(field, "names an issue: use `issue_url` for it"));
    }
    app.forges.locate(scope, &address).await.map_err(ApiError::forge)
}

/// The repository and the number of the issue at an address; registers the repository if necessary.
pub(super) async fn issue_at(
    app: &App,
    scope: &ProjectScope,
    text: &str,
    headers: &HeaderMap,
) -> Result<(RepositoryRow, i64), ApiError> {
    const FIELD: &str = "issue_url";
    let none = || ApiError::invalid(FIELD, "names a repository and no issue: it ends with `/issues/7`");
    let path = own_path(text, headers);
    let own = match (path, text.trim().rsplit_once('#')) {
        (Some(path), _) => Some(own(path, scope).ok_or_else(|| {
            ApiError::invalid(FIELD, "is an address of this server, and names no issue of it")
        })?),
        // `app#7`, as people write it.
        (None, Some((name, number))) if !name.contains([':', '/']) => {
            Some((name, Some(number.parse().map_err(|_| none())?)))
        }
        _ => None,
    };
    if let Some((name, issue)) = own {
        let number = issue.filter(|number| *number > 0).ok_or_else(none)?;
        return Ok((named(app, scope, name).await?, number));
    }
    let address = address(FIELD, text)?;
    let number = address.issue.ok_or_else(none)?;
    let (row, _) = app.forges.locate(scope, &address).await.map_err(ApiError::forge)?;
    if row.kind == ForgeKind::Git {
        let why = format!("is on {}, whose issues this server cannot read", address.host);
        return Err(ApiError::invalid(FIELD, why)
            .hint("create the task with its text, and `repository` instead of `issue_url`"));
    }
    Ok((row, number))
}

fn address(field: &str, text: &str) -> Result<ForgeAddress, ApiError> {
    text.parse().map_err(|why: BadAddress| ApiError::invalid(field, why.to_string()))
}

/// The path in an address of this server; `None` for addresses elsewhere.
fn own_path<'a>(text: &'a str, headers: &HeaderMap) -> Option<&'a str> {
    let text = text.trim();
    let path = match base_url(headers) {
        Some(here) => text.strip_prefix(here.as_str()).unwrap_or(text),
        None => text,
    };
    path.starts_with('/').then_some(path)
}

/// What a path of this server names: of its API, of git, or of the web UI.
fn own<'a>(path: &'a str, scope: &ProjectScope) -> Option<Own<'a>> {
    let path = path.split(['?', '#']).next()?.trim_end_matches('/');
    if let Some(rest) = path.strip_prefix("/git/") {
        let (project, name) = rest.split_once('/')?;
        let name = name.strip_suffix(".git").unwrap_or(name);
        return (project == scope.project().to_string() && !name.contains('/')).then_some((name, None));
    }
    let rest = path.strip_prefix("/api/v1/repositories/").or_else(|| path.strip_prefix("/repositories/"))?;
    match rest.split('/').collect::<Vec<_>>().as_slice() {
        [name] => Some((name, None)),
        [name, "issues", number] => Some((name, Some(number.parse().ok()?))),
        _ => None,
    }
}

async fn named(app: &App, scope: &ProjectScope, name: &str) -> Result<RepositoryRow, ApiError> {
    let shown: String = name.chars().take(64).collect();
    let row = app.store.repository(scope, name).await.map_err(ApiError::store)?;
    let row = row.ok_or_else(|| ApiError::nothing("repository", shown))?;
    check_keeper(app, &row)?;
    Ok(row)
}

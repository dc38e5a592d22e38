//! Where a new task comes from: an issue, or a repository by its address.

use coffer_api_types::tasks::NewTask;
use coffer_core::TaskIssue;
use coffer_work::issues;
use http::HeaderMap;

use crate::app::App;
use crate::auth::{Caller, Write};
use crate::error::ApiError;
use crate::v1::locate::{issue_at, repository_at};

/// Most labels of a task; those of the issue are left out beyond it.
const MOST_LABELS: usize = 50;

/// Reads the addresses of a request, fills in what they say, and returns the issue that the task is for.
pub(super) async fn of(
    app: &App,
    caller: &Caller<Write>,
    request: &mut NewTask,
    headers: &HeaderMap,
) -> Result<Option<TaskIssue>, ApiError> {
    let named = [
        ("repository", request.repository.is_some()),
        ("repository_url", request.repository_url.is_some()),
        ("issue_url", request.issue_url.is_some()),
    ];
    let mut named = named.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name);
    if let (Some(first), Some(second)) = (named.next(), named.next()) {
        return Err(ApiError::invalid(
            second,
            format!("names a repository, and so does {first}: use one of them"),
        ));
    }
    if let Some(url) = request.repository_url.take() {
        let (row, _) = repository_at(app, &caller.scope, "repository_url", &url, headers).await?;
        request.repository = Some(row.name.to_string());
    }
    let Some(url) = request.issue_url.take() else {
        if request.another {
            return Err(ApiError::invalid("another", "is for `issue_url`: other tasks are always new"));
        }
        return Ok(None);
    };
    let (row, number) = issue_at(app, &caller.scope, &url, headers).await?;
    let actor = caller.actor();
    let asked = std::mem::take(&mut request.description);
    let words = issues::read(&app.forges, &caller.scope, &row, number, (&actor, &asked)).await;
    let words = words.map_err(ApiError::forge)?;
    if request.title.trim().is_empty() {
        request.title = words.title;
    }
    request.description = words.description;
    let room = MOST_LABELS.saturating_sub(request.labels.len());
    request.labels.extend(words.labels.into_iter().take(room));
    request.repository = Some(row.name.to_string());
    Ok(Some(words.issue))
}

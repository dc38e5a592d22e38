//! One search over a project: tasks, repositories, pull requests, sandboxes, agents and lines of logs.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_api_types::search::{SearchHit, SearchQuery, SearchResults};
use coffer_core::clock::rfc3339;
use coffer_store::{Found, FoundKind};
use serde_json::Value;

use super::logs;
use crate::app::App;
use crate::auth::{Caller, Read};
use crate::error::ApiError;
use crate::query::{Query, names};

const LOG: &str = "log";
const LONGEST: usize = 200;
const MOST_WORDS: usize = 8;
const MOST: u32 = 50;
const USUAL: u32 = 8;
/// Bytes of a line that are shown.
const LONGEST_LINE: usize = 300;
/// The shortest text that logs are searched for: shorter ones are in every line.
const SHORTEST_IN_LOGS: usize = 3;

/// Searches tasks, repositories, pull requests, sandboxes, agents and logs of the project at once.
///
/// It looks through the 20,000 newest records of each kind, and through a bounded part of the newest logs; `GET /api/v1/logs`
/// goes through all of them. Letters beyond ASCII are found in the case in which they are written.
#[utoipa::path(
    get, path = "/api/v1/search", tag = "search", params(SearchQuery),
    responses((status = 200, body = SearchResults))
)]
pub(super) async fn find(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(query): Query<SearchQuery>,
) -> Result<Json<SearchResults>, ApiError> {
    let text = query.q.as_deref().unwrap_or_default().trim();
    if text.len() > LONGEST || text.contains('\0') {
        return Err(ApiError::invalid("q", format!("must have at most {LONGEST} bytes, none of them NUL")));
    }
    let limit = query.limit.unwrap_or(USUAL);
    if !(1..=MOST).contains(&limit) {
        return Err(ApiError::invalid("limit", format!("must be between 1 and {MOST}")));
    }
    let wanted: Vec<&str> = names(&query.kinds).collect();
    let known = |name: &str| name == LOG || FoundKind::ALL.iter().any(|kind| kind.as_str() == name);
    if !wanted.iter().all(|name| known(name)) {
        return Err(ApiError::invalid("kinds", "must be task, repository, pull, sandbox, agent or log"));
    }
    let wants = |name: &str| wanted.is_empty() || wanted.contains(&name);
    let kinds: Vec<FoundKind> = FoundKind::ALL.into_iter().filter(|kind| wants(kind.as_str())).collect();
    let words: Vec<String> = text.split_whitespace().take(MOST_WORDS).map(String::from).collect();
    let found = app.store.search(&caller.scope, &kinds, &words, limit).await.map_err(ApiError::store)?;
    let first = words.first().map(|word| word.to_lowercase()).unwrap_or_default();
    let mut items: Vec<(FoundKind, bool, SearchHit)> = found
        .into_iter()
        .map(|found| {
            let kind = found.kind;
            let hit = shown(found);
            (kind, !hit.title.to_lowercase().starts_with(&first), hit)
        })
        .collect();
    // What begins with the first word is what most people mean; the sort is stable, so the newest stay first.
    items.sort_by_key(|(kind, is_worse, _)| (*kind, *is_worse));
    let mut items: Vec<SearchHit> = items.into_iter().map(|(_, _, hit)| hit).collect();
    if wants(LOG) && text.chars().count() >= SHORTEST_IN_LOGS {
        let lines = logs::glance(&app, caller, text, limit).await?;
        items.extend(lines.into_iter().map(|found| SearchHit {
            kind: LOG.to_string(),
            id: found.sandbox_id,
            title: cut(&found.line.message),
            about: Some(found.line.source),
            state: None,
            number: None,
            at: found.line.at,
        }));
    }
    Ok(Json(SearchResults { items }))
}

fn shown(found: Found) -> SearchHit {
    let title = match found.kind {
        FoundKind::Sandbox => name_of(&found.title).unwrap_or_else(|| found.id.clone()),
        _ => found.title,
    };
    let some = |text: String| (!text.is_empty()).then_some(text);
    SearchHit {
        kind: found.kind.as_str().to_string(),
        id: found.id,
        title,
        about: some(found.about),
        state: some(found.state),
        number: (found.kind == FoundKind::Pull).then_some(found.number),
        at: rfc3339(found.at_ms),
    }
}

/// The name that a sandbox's metadata gives it.
fn name_of(metadata: &str) -> Option<String> {
    let metadata: Value = serde_json::from_str(metadata).ok()?;
    let name = metadata.get("name")?.as_str()?;
    (!name.is_empty()).then(|| cut(name))
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(LONGEST_LINE)].to_string()
}

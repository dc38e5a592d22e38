//! Lists of sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::StateName;
use coffer_store::{Cursor, ListFilter, Order, ProjectScope, SandboxRow};
use coffer_wire::e2b::ListedSandbox;
use http::HeaderMap;
use percent_encoding::percent_decode_str;

use super::app::App;
use super::auth::{Caller, Read};
use super::error::ApiError;
use super::query::{Pairs, form_pairs};
use super::show;

const LARGEST_PAGE: i64 = 100;

/// `GET /sandboxes`: every running sandbox at once.
pub(super) async fn running(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    query: Pairs,
) -> Result<Json<Vec<ListedSandbox>>, ApiError> {
    let mut filter = ListFilter {
        states: vec![StateName::Running],
        metadata: metadata(&query)?,
        limit: 1000,
        ..ListFilter::default()
    };
    let mut all = Vec::new();
    loop {
        app.fleet.recorded().await;
        let page = app.store.list(&caller.scope, &filter).await.map_err(ApiError::store)?;
        all.extend(visible(&app, &caller.scope, page.rows));
        filter.cursor = page.next;
        if filter.cursor.is_none() {
            return Ok(Json(all));
        }
    }
}

/// `GET /v2/sandboxes`: a page of running and paused sandboxes.
pub(super) async fn page(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    query: Pairs,
) -> Result<(HeaderMap, Json<Vec<ListedSandbox>>), ApiError> {
    app.fleet.recorded().await;
    let page = app.store.list(&caller.scope, &filter(&query)?).await.map_err(ApiError::store)?;
    let mut headers = HeaderMap::new();
    headers.insert("x-total-running", page.total_running.into());
    if let Some(next) = page.next {
        let next = next.to_string().try_into().map_err(|_| ApiError::internal())?;
        headers.insert("x-next-token", next);
    }
    Ok((headers, Json(visible(&app, &caller.scope, page.rows))))
}

/// Leaves out sandboxes that are ending: the caller that destroyed one must not see it again.
fn visible(app: &App, scope: &ProjectScope, rows: Vec<SandboxRow>) -> Vec<ListedSandbox> {
    let rows = rows.into_iter().filter(|row| {
        let record = app.fleet.find(scope, row.id);
        // For a sandbox of another installation, only the database is known.
        record.map_or(app.store.holder_elsewhere(row).is_some(), |record| record.live().ending.is_none())
    });
    rows.filter_map(|row| show::listed(&row)).collect()
}

fn filter(query: &Pairs) -> Result<ListFilter, ApiError> {
    let limit = query.number("limit")?.unwrap_or(LARGEST_PAGE);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        return Err(ApiError::bad_request(format!("limit must be between 1 and {LARGEST_PAGE}")));
    }
    let order = match query.text("order") {
        None | Some("desc") => Order::NewestFirst,
        Some("asc") => Order::OldestFirst,
        Some(_) => return Err(ApiError::bad_request("order must be asc or desc")),
    };
    let cursor = query.text("nextToken").map(str::parse::<Cursor>).transpose();
    let cursor = cursor.map_err(|_| ApiError::bad_request("nextToken is not a token of this server"))?;
    let started_after = query.text("startedAfter").map(str::parse::<jiff::Timestamp>).transpose();
    let started_after = started_after
        .map_err(|_| ApiError::bad_request("startedAfter must be a time such as 2030-01-02T03:04:05Z"))?;
    Ok(ListFilter {
        agent: None,
        task: None,
        states: states(query)?,
        metadata: metadata(query)?,
        template: query.text("template").map(str::to_lowercase),
        // E2B means "at or after", the store "after".
        started_after_ms: started_after.map(|time| time.as_millisecond() - 1),
        order,
        limit: u32::try_from(limit).map_err(|_| ApiError::internal())?,
        cursor,
    })
}

/// Comma-joined or repeated; without one, both states.
fn states(query: &Pairs) -> Result<Vec<StateName>, ApiError> {
    let named = query.all("state").flat_map(|value| value.split(',')).filter(|name| !name.is_empty());
    let states = named.map(|name| match name {
        "running" => Ok(StateName::Running),
        "paused" => Ok(StateName::Paused),
        _ => Err(ApiError::bad_request("state must be running or paused")),
    });
    let states = states.collect::<Result<Vec<_>, _>>()?;
    Ok(if states.is_empty() { vec![StateName::Running, StateName::Paused] } else { states })
}

/// Undoes the two encodings below the query's own: SDKs percent-encode each key and value, then
/// form-encode the pairs.
fn metadata(query: &Pairs) -> Result<BTreeMap<String, String>, ApiError> {
    let bad = || ApiError::bad_request("metadata must be URL-encoded pairs such as user=abc&app=prod");
    let text = query.text("metadata").unwrap_or_default();
    let decode = |text: &str| percent_decode_str(text).decode_utf8().ok().map(|text| text.into_owned());
    let pairs = form_pairs(text).ok_or_else(bad)?;
    let pairs = pairs.into_iter().map(|(key, value)| Some((decode(&key)?, decode(&value)?)));
    pairs.collect::<Option<_>>().ok_or_else(bad)
}

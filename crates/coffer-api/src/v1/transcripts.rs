//! Transcripts of agents' work: page by page, as a file, and as they grow.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::sse;
use axum::response::{IntoResponse as _, Response, Sse};
use coffer_core::agent::transcript::{Heading, markdown};
use coffer_core::clock::rfc3339;
use coffer_core::{CompetitionId, TaskId};
use coffer_store::{ProjectScope, Store, TranscriptEntry as Row, TranscriptFilter, TranscriptOf};
use futures_util::Stream;
use http::{HeaderMap, HeaderValue, header};

use super::bounds::within;
use super::competitions;
use super::events::{KeyWatch, after};
use super::page::Part;
use super::tasks;
use crate::app::App;
use crate::auth::{Caller, Id, Read};
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::events::AfterQuery;
use coffer_api_types::transcripts::{TranscriptEntry, TranscriptQuery};
use coffer_api_types::{Page, PageQuery};
use coffer_fleet::Follower;

/// How long a stream may be silent before it sends a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How often to look for what other servers wrote.
const LOOK: Duration = Duration::from_secs(1);
/// Pause between two looks, because most writes are of other kinds.
const BREATHER: Duration = Duration::from_millis(200);
const STEP: u32 = 200;
/// Most bytes of a file, before its last page.
const MOST_EXPORTED: usize = 16 << 20;

fn shown(row: Row) -> TranscriptEntry {
    TranscriptEntry {
        sequence: row.sequence,
        change: row.change,
        attempt: row.attempt,
        turn: row.turn,
        run_id: row.run.to_string(),
        subagent: row.subagent,
        at: rfc3339(row.at_ms),
        updated_at: rfc3339(row.updated_ms),
        body: row.body,
    }
}

/// The transcript of a task's attempts, oldest first: what was said to its agent, what it did, and what it used.
///
/// A tool call is one entry that changes when it ends. With `format`, all entries are returned as a file.
#[utoipa::path(
    get, path = "/api/v1/tasks/{task}/transcript", tag = "tasks",
    params(("task" = String, Path), PageQuery, TranscriptQuery),
    responses((status = 200, body = Page<TranscriptEntry>))
)]
pub(super) async fn of_task(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(task): Id<TaskId>,
    Query(page): Query<PageQuery>,
    Query(query): Query<TranscriptQuery>,
) -> Result<Response, ApiError> {
    let row = tasks::found(&app, &caller, task).await?;
    answer(&app, &caller.scope, TranscriptOf::Task(task), &row.title, page, query).await
}

/// The transcript of a task as it grows.
///
/// Each message has an entry, new or changed: a client replaces the one with the same `sequence`. The id of a
/// message is its `change`; a reader that reconnects with it as `Last-Event-ID` (or `after`) misses nothing. `0` is
/// the beginning, which is also the default.
#[utoipa::path(
    get, path = "/api/v1/tasks/{task}/transcript/stream", tag = "tasks",
    params(
        ("task" = String, Path),
        ("Last-Event-ID" = Option<i64>, Header, description = "the same, as browsers send it"),
        AfterQuery
    ),
    responses((status = 200, content_type = "text/event-stream", body = String))
)]
pub(super) async fn stream_of_task(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(task): Id<TaskId>,
    headers: HeaderMap,
    Query(position): Query<AfterQuery>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, ApiError> {
    tasks::found(&app, &caller, task).await?;
    follow(&app, caller, TranscriptOf::Task(task), &headers, &position)
}

/// The transcript of an entry of a competition.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/fork/{fork}/entries/{entry}/transcript", tag = "competitions",
    params(("fork" = String, Path), ("entry" = i64, Path), PageQuery, TranscriptQuery),
    responses((status = 200, body = Page<TranscriptEntry>))
)]
pub(super) async fn of_entry(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Path(names): Path<(String, String)>,
    Query(page): Query<PageQuery>,
    Query(query): Query<TranscriptQuery>,
) -> Result<Response, ApiError> {
    let (competition, number, title) = entry(&app, &caller, &names).await?;
    answer(&app, &caller.scope, TranscriptOf::Entry(competition, number), &title, page, query).await
}

/// The transcript of an entry of a competition as it grows; as that of a task.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/fork/{fork}/entries/{entry}/transcript/stream", tag = "competitions",
    params(
        ("fork" = String, Path), ("entry" = i64, Path),
        ("Last-Event-ID" = Option<i64>, Header, description = "the same, as browsers send it"),
        AfterQuery
    ),
    responses((status = 200, content_type = "text/event-stream", body = String))
)]
pub(super) async fn stream_of_entry(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Path(names): Path<(String, String)>,
    headers: HeaderMap,
    Query(position): Query<AfterQuery>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, ApiError> {
    let (competition, number, _) = entry(&app, &caller, &names).await?;
    follow(&app, caller, TranscriptOf::Entry(competition, number), &headers, &position)
}

async fn entry(
    app: &App,
    caller: &Caller<Read>,
    (competition, number): &(String, String),
) -> Result<(CompetitionId, i64, String), ApiError> {
    let competition = competitions::of_path(competition)?;
    let (row, entries) = competitions::found(app, caller, competition).await?;
    let shown: String = number.chars().take(20).collect();
    let found =
        number.parse().ok().and_then(|number: i64| entries.into_iter().find(|entry| entry.number == number));
    let found = found.ok_or_else(|| ApiError::nothing("entry", shown))?;
    Ok((competition, found.number, format!("{}: {}", row.terms.title, found.label)))
}

async fn answer(
    app: &App,
    scope: &ProjectScope,
    of: TranscriptOf,
    title: &str,
    page: PageQuery,
    query: TranscriptQuery,
) -> Result<Response, ApiError> {
    within("attempt", query.attempt, 1, i64::MAX)?;
    within("turn", query.turn, 1, i64::MAX)?;
    let filter = TranscriptFilter { attempt: query.attempt, turn: query.turn, after: None, limit: STEP };
    within("last", query.last, 1, i64::from(STEP))?;
    let is_markdown = match query.format.as_deref() {
        None if query.last.is_some() => {
            if page.limit.is_some() || page.cursor.is_some() {
                return Err(ApiError::invalid("last", "is a page of its own: leave out limit and cursor"));
            }
            let last = u32::try_from(query.last.unwrap_or(1)).unwrap_or(STEP);
            let rows = app.store.transcript_end(scope, of, filter, last).await.map_err(ApiError::store)?;
            return Ok(Json(Page::new(rows.into_iter().map(shown).collect(), None)).into_response());
        }
        None => {
            let part: Part<i64> = Part::of(page)?;
            let filter = TranscriptFilter { after: part.after, limit: part.to_fetch(), ..filter };
            let rows = app.store.transcript(scope, of, filter).await.map_err(ApiError::store)?;
            return Ok(Json(part.page(rows, |row| row.sequence.to_string(), shown)).into_response());
        }
        Some("json") => false,
        Some("markdown" | "md") => true,
        Some(_) => return Err(ApiError::invalid("format", "must be json or markdown")),
    };
    if page.limit.is_some() || page.cursor.is_some() || query.last.is_some() {
        return Err(ApiError::invalid("format", "returns all entries: leave out limit, cursor and last"));
    }
    let rows = all(&app.store, scope, of, filter).await?;
    let (kind, name, text) = if is_markdown {
        let heading = |row: &Row| Heading {
            attempt: row.attempt,
            turn: row.turn,
            at: rfc3339(row.at_ms),
            subagent: row.subagent,
        };
        let text = markdown(title, rows.iter().map(|row| (heading(row), &row.body)));
        ("text/markdown; charset=utf-8", "transcript.md", text)
    } else {
        let entries: Vec<TranscriptEntry> = rows.into_iter().map(shown).collect();
        ("application/json", "transcript.json", serde_json::to_string(&entries).expect("plain data"))
    };
    let attachment = HeaderValue::try_from(format!("attachment; filename=\"{name}\"")).expect("a plain name");
    let headers =
        [(header::CONTENT_TYPE, HeaderValue::from_static(kind)), (header::CONTENT_DISPOSITION, attachment)];
    Ok((headers, text).into_response())
}

/// All entries, up to a bound: an attempt always fits.
async fn all(
    store: &Store,
    scope: &ProjectScope,
    of: TranscriptOf,
    mut filter: TranscriptFilter,
) -> Result<Vec<Row>, ApiError> {
    let mut rows = Vec::new();
    let mut size = 0;
    loop {
        let page = store.transcript(scope, of, filter).await.map_err(ApiError::store)?;
        let Some(last) = page.last() else { return Ok(rows) };
        filter.after = Some(last.sequence);
        size += page.iter().map(|row| row.body.size()).sum::<usize>();
        rows.extend(page);
        if size > MOST_EXPORTED {
            let message = format!("the transcript has more than {} MiB", MOST_EXPORTED >> 20);
            return Err(
                ApiError::invalid("format", message).hint("ask for one attempt at a time, with attempt=")
            );
        }
    }
}

/// Reads the changes of a transcript.
struct Reader {
    store: Store,
    scope: ProjectScope,
    of: TranscriptOf,
    position: i64,
    page: VecDeque<Row>,
    pace: Follower,
}

impl Reader {
    /// The next entry; `None` if it cannot be read, also because the server stops: the client returns.
    async fn next(&mut self) -> Option<Row> {
        loop {
            if let Some(row) = self.page.pop_front() {
                self.position = row.change;
                return Some(row);
            }
            let page = self.store.transcript_changes(&self.scope, self.of, self.position, STEP).await;
            self.page = page.ok()?.into();
            if self.page.is_empty() && !self.pace.again(Ok(())).await {
                return None;
            }
        }
    }
}

fn follow(
    app: &App,
    caller: Caller<Read>,
    of: TranscriptOf,
    headers: &HeaderMap,
    position: &AfterQuery,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>> + use<>>, ApiError> {
    let reader = Reader {
        store: app.store.clone(),
        scope: caller.scope,
        of,
        position: after(headers, position)?.unwrap_or(0),
        page: VecDeque::new(),
        pace: Follower::new("could not read a transcript", LOOK, app.events.stopping())
            .on_writes(&app.store, BREATHER),
    };
    let key = KeyWatch::new(&app.store, caller.key);
    let entries = futures_util::stream::unfold((reader, key), async |(mut reader, mut key)| {
        let row = key.until_revoked(reader.next()).await?;
        let id = row.change.to_string();
        let data = serde_json::to_string(&shown(row)).expect("plain data");
        Some((Ok(sse::Event::default().id(id).event("entry").data(data)), (reader, key)))
    });
    Ok(Sse::new(entries).keep_alive(sse::KeepAlive::new().interval(HEARTBEAT).text("alive")))
}

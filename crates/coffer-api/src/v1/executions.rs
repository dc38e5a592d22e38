//! Executions in sandboxes and their output.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use coffer_core::{ExecutionId, SandboxId};
use coffer_store::{ExecutionFilter, ExecutionRow, ExecutionState, ProjectScope};
use coffer_wire::agentd::OutputStream;
use http::{HeaderMap, header};

use super::page::Part;
use crate::app::App;
use crate::auth::{Caller, Id, NamedId, Read};
use crate::error::ApiError;
use crate::logs::stream_name;
use crate::query::Query;
use coffer_api_types::executions::{Execution, ExecutionQuery, OutputPage, OutputQuery, Piece};
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::Code;
use coffer_core::clock::rfc3339;
use coffer_fleet::output::{Kind, LogPage, LogRecord};

/// Bytes of a log read for one answer, and of output in one page.
/// The most that is read back from the end of an output.
const LONGEST_TAIL: u32 = 1 << 20;
const READ_AT_ONCE: usize = 512 << 10;
const LARGEST_PAGE: usize = 256 << 10;

pub(super) fn shown(row: ExecutionRow) -> Execution {
    Execution {
        id: row.id.to_string(),
        sandbox: row.sandbox.to_string(),
        agent: row.agent.map(|agent| agent.to_string()),
        actor: row.actor.map(|actor| actor.to_string()),
        source: row.source.as_str().into(),
        state: row.state.as_str().into(),
        output_bytes: row.kept_bytes(),
        output_bytes_total: row.total_bytes(),
        output_bytes_lost: row.lost_bytes,
        command: row.command,
        cwd: row.cwd,
        user: row.user,
        language: row.code.as_ref().map(|code| code.language.clone()),
        context_id: row.code.and_then(|code| code.context),
        pid: row.process.map(|process| process.pid),
        started_at: rfc3339(row.started_ms),
        ended_at: row.ended_ms.map(rfc3339),
        exit_code: row.exit_code,
        status: row.status,
        truncated: row.truncated,
    }
}

fn filter(
    page: PageQuery,
    query: &ExecutionQuery,
    sandbox: Option<SandboxId>,
) -> Result<(Part<ExecutionId>, ExecutionFilter), ApiError> {
    let part: Part<ExecutionId> = Part::of(page)?;
    let state = match query.state.as_deref() {
        None => None,
        Some(name) => Some(
            ExecutionState::parse(name)
                .ok_or_else(|| ApiError::invalid("state", "must be running, exited, failed or lost"))?,
        ),
    };
    let filter = ExecutionFilter {
        before: part.after,
        sandbox: sandbox.or(query.sandbox),
        agent: query.agent,
        state,
        started_from_ms: time("from", query.from.as_deref())?,
        started_until_ms: time("until", query.until.as_deref())?,
        is_code: false,
        limit: part.to_fetch(),
    };
    Ok((part, filter))
}

/// A time of a query, in milliseconds since the epoch.
pub(super) fn time(name: &str, text: Option<&str>) -> Result<Option<i64>, ApiError> {
    let parsed = text.map(str::parse::<jiff::Timestamp>).transpose();
    let parsed =
        parsed.map_err(|_| ApiError::invalid(name, "must be a time such as 2026-01-31T12:00:00Z"))?;
    Ok(parsed.map(jiff::Timestamp::as_millisecond))
}

async fn listed(
    app: &App,
    scope: &ProjectScope,
    (part, filter): (Part<ExecutionId>, ExecutionFilter),
) -> Result<Json<Page<Execution>>, ApiError> {
    let rows = app.store.executions(scope, &filter).await.map_err(ApiError::store)?;
    Ok(Json(part.page(rows, |row| row.id.to_string(), shown)))
}

/// Executions, newest first.
#[utoipa::path(
    get, path = "/api/v1/executions", tag = "executions", params(PageQuery, ExecutionQuery),
    responses((status = 200, body = Page<Execution>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
    Query(query): Query<ExecutionQuery>,
) -> Result<Json<Page<Execution>>, ApiError> {
    listed(&app, &caller.scope, filter(page, &query, None)?).await
}

/// The executions of one sandbox, newest first; the sandbox may have ended.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/executions", tag = "executions",
    params(("id" = String, Path), PageQuery, ExecutionQuery),
    responses((status = 200, body = Page<Execution>))
)]
pub(super) async fn of_sandbox(
    State(app): State<Arc<App>>,
    named: NamedId<Read>,
    Query(page): Query<PageQuery>,
    Query(query): Query<ExecutionQuery>,
) -> Result<Json<Page<Execution>>, ApiError> {
    expect_sandbox(&app, &named).await?;
    listed(&app, &named.caller.scope, filter(page, &query, Some(named.id))?).await
}

/// Checks that a sandbox exists or existed, and that the caller may see it.
pub(super) async fn expect_sandbox(app: &App, named: &NamedId<Read>) -> Result<(), ApiError> {
    let scope = &named.caller.scope;
    if app.fleet.find(scope, named.id).is_some() {
        return Ok(());
    }
    let row = app.store.sandbox(scope, named.id).await.map_err(ApiError::store)?;
    row.map(drop).ok_or_else(|| ApiError::no_sandbox(&named.text))
}

async fn find(app: &App, caller: &Caller<Read>, id: ExecutionId) -> Result<ExecutionRow, ApiError> {
    let row = app.store.execution(&caller.scope, id).await.map_err(ApiError::store)?;
    row.ok_or_else(|| ApiError::nothing("execution", id))
}

/// One execution.
#[utoipa::path(
    get, path = "/api/v1/executions/{execution}", tag = "executions", params(("execution" = String, Path)),
    responses((status = 200, body = Execution))
)]
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(id): Id<ExecutionId>,
) -> Result<Json<Execution>, ApiError> {
    find(&app, &caller, id).await.map(|row| Json(shown(row)))
}

/// A piece without the first `skip` bytes; `None` if the record is not output.
pub(super) fn piece(record: &LogRecord, skip: usize) -> Option<Piece> {
    let (kind, stream) = match record.kind {
        Kind::Output(stream) => ("output", stream_name(stream)),
        Kind::Gap(stream) => ("gap", stream_name(stream)),
        Kind::Truncated => ("truncated", ""),
        Kind::Started | Kind::Ended | Kind::Code | Kind::Shown => return None,
    };
    let written = matches!(record.kind, Kind::Output(_)).then(|| record.data.slice(skip..));
    let text = written.as_ref().and_then(|data| std::str::from_utf8(data).ok()).map(str::to_string);
    let base64 = written.filter(|_| text.is_none()).map(|data| BASE64_STANDARD.encode(data));
    Some(Piece {
        stream: stream.into(),
        kind: kind.into(),
        offset: record.offset + i64::try_from(skip).unwrap_or(0),
        at: rfc3339(record.time_ms),
        text,
        base64,
        missing_bytes: matches!(record.kind, Kind::Gap(_)).then(|| record.missed_bytes()),
    })
}

/// The part of an execution to read.
struct Wish {
    execution: ExecutionId,
    stream: Option<OutputStream>,
    from: i64,
}

impl Wish {
    fn of(query: &OutputQuery, execution: ExecutionId) -> Result<Self, ApiError> {
        let stream = match query.stream.as_deref() {
            None => None,
            Some("stdout") => Some(OutputStream::Stdout),
            Some("stderr") => Some(OutputStream::Stderr),
            Some("pty") => Some(OutputStream::Pty),
            Some(_) => return Err(ApiError::invalid("stream", "must be stdout, stderr or pty")),
        };
        let from = query.from.map(|from| i64::try_from(from).unwrap_or(i64::MAX));
        if from.is_some() && stream.is_none() {
            return Err(ApiError::invalid("from", "needs a stream, whose offset it is"));
        }
        Ok(Self { execution, stream, from: from.unwrap_or(0) })
    }

    /// How many bytes of a record are before the requested offset; `None` if all of them are.
    fn skip(&self, record: &LogRecord) -> Option<usize> {
        let stream = match record.kind {
            Kind::Output(stream) | Kind::Gap(stream) => Some(stream),
            Kind::Truncated => None,
            Kind::Started | Kind::Ended | Kind::Code | Kind::Shown => return None,
        };
        let wanted = record.execution == self.execution
            && self.stream.is_none_or(|wanted| stream.is_none_or(|stream| stream == wanted));
        if !wanted {
            return None;
        }
        let skip = usize::try_from(self.from.saturating_sub(record.offset)).unwrap_or(0);
        let is_output = matches!(record.kind, Kind::Output(_));
        if is_output { Some(skip).filter(|&skip| skip < record.data.len()) } else { (skip == 0).then_some(0) }
    }
}

/// The output of an execution, redacted, from any offset on.
///
/// While it runs, ask again with `next` for more. With `raw`, or with `Accept: application/octet-stream`, the
/// answer is the stored bytes themselves.
#[utoipa::path(
    get, path = "/api/v1/executions/{execution}/output", tag = "executions",
    params(("execution" = String, Path), OutputQuery),
    responses(
        (status = 200, content( (OutputPage = "application/json"), (String = "application/octet-stream") )),
        (status = 410, body = ErrorShape, description = "retention has deleted the output")
    )
)]
pub(super) async fn output(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(id): Id<ExecutionId>,
    headers: HeaderMap,
    Query(query): Query<OutputQuery>,
) -> Result<Response, ApiError> {
    let row = find(&app, &caller, id).await?;
    let wish = Wish::of(&query, id)?;
    let cursor = match &query.cursor {
        None => None,
        Some(text) => Some(
            text.parse::<i64>()
                .ok()
                .filter(|&cursor| cursor >= 0)
                .ok_or_else(|| ApiError::invalid("cursor", "is not a cursor of this server"))?,
        ),
    };
    let (first, last) = row.positions.unwrap_or((0, 0));
    let tail = query.tail.map_or(i64::MAX, |bytes| i64::from(bytes.min(LONGEST_TAIL)));
    // The log has a header for each record, so this is a little less than was asked for.
    let from = cursor.unwrap_or_else(|| last.saturating_sub(tail)).max(first);
    let raw = query.raw == Some(true)
        || headers.get(header::ACCEPT).is_some_and(|accept| accept == "application/octet-stream");
    let over = row.state != ExecutionState::Running;
    if raw {
        let walk = Walk { app, scope: caller.scope, sandbox: row.sandbox, at: from, last };
        return Ok(raw_answer(walk, wish));
    }
    let mut items = Vec::new();
    let (mut at, mut size, mut pruned) = (from, 0, false);
    while at < last && size < LARGEST_PAGE {
        let page =
            app.output.read(&caller.scope, row.sandbox, at, READ_AT_ONCE).await.map_err(ApiError::store)?;
        pruned |= page.missing > 0;
        if page.next <= at {
            break;
        }
        at = page.next;
        for record in page.records {
            if size >= LARGEST_PAGE {
                at = record.position;
                break;
            }
            if let Some(piece) = wish.skip(&record).and_then(|skip| piece(&record, skip)) {
                size += LogRecord::size(record.data.len());
                items.push(piece);
            }
        }
    }
    if items.is_empty() && pruned && over && cursor.is_none() {
        return Err(ApiError::of(Code::Gone, "the output was deleted"));
    }
    let next = (at < last || !over).then(|| at.to_string());
    Ok(Json(OutputPage { items, next, pruned }).into_response())
}

/// A walk through part of a log.
struct Walk {
    app: Arc<App>,
    scope: ProjectScope,
    sandbox: SandboxId,
    at: i64,
    last: i64,
}

impl Walk {
    async fn step(&mut self) -> Option<LogPage> {
        if self.at >= self.last {
            return None;
        }
        let read = self.app.output.read(&self.scope, self.sandbox, self.at, READ_AT_ONCE).await;
        let page = read.ok().filter(|page| page.next > self.at)?;
        self.at = page.next;
        Some(page)
    }
}

fn raw_answer(walk: Walk, wish: Wish) -> Response {
    let bytes = futures_util::stream::unfold((walk, wish), async |(mut walk, wish)| {
        let page = walk.step().await?;
        let mut bytes = Vec::new();
        for record in page.records.iter().filter(|record| matches!(record.kind, Kind::Output(_))) {
            if let Some(skip) = wish.skip(record) {
                bytes.extend_from_slice(&record.data[skip..]);
            }
        }
        Some((Ok::<_, Infallible>(Bytes::from(bytes)), (walk, wish)))
    });
    ([(header::CONTENT_TYPE, "application/octet-stream")], Body::from_stream(bytes)).into_response()
}

//! The log of a sandbox: its own history, its processes and their output, to search and to download.

mod everywhere;

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use coffer_core::{Millis, SandboxId, SandboxState};
use coffer_store::{ProjectScope, Transition};
use coffer_wire::e2b::LogLevel;
use http::{HeaderMap, header};

use super::executions::{expect_sandbox, time};
use crate::app::App;
use crate::auth::{NamedId, Read};
use crate::error::ApiError;
use crate::logs::{first_line, lines, stream_name};
use crate::query::{Query, names};
use coffer_api_types::Page;
use coffer_api_types::logs::{FormQuery, LogLine, LogQuery};
use coffer_core::clock::rfc3339;
use coffer_fleet::output::{Kind, LogRecord};
pub(super) use everywhere::*;

const MOST: u32 = 1000;
const USUAL: u32 = 200;
const LONGEST_SEARCH: usize = 256;
/// Most bytes of a log searched for one page, and per read.
const MOST_SEARCHED: usize = 32 << 20;
const READ_AT_ONCE: usize = 1 << 20;
/// Bytes of the first read: if all lines match, a page is in little of the log.
const READ_AT_FIRST: usize = 128 << 10;
/// The least that a log counts towards the limit: an empty one costs a query, too.
const LEAST_COUNTED: usize = 64 << 10;
/// How long to wait for a sandbox's newest output.
const PATIENCE: Duration = Duration::from_secs(2);

/// A line, with what searches need of it.
#[derive(Debug)]
struct Line {
    shown: LogLine,
    level: LogLevel,
    time_ms: Millis,
    /// The position after it.
    place: Place,
}

const fn level_name(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Warn => "warn",
        LogLevel::Error => "error",
    }
}

/// A position in the log: in the records of processes, and in the sandbox's own history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    position: i64,
    transition: i64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.position, self.transition)
    }
}

impl std::str::FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (position, transition) = text.split_once('-').ok_or(())?;
        let number = |text: &str| text.parse().ok().filter(|&number: &i64| number >= 0).ok_or(());
        Ok(Self { position: number(position)?, transition: number(transition)? })
    }
}

#[derive(Debug)]
struct Search {
    text: String,
    least: LogLevel,
    sources: Vec<String>,
    from_ms: Millis,
    until_ms: Millis,
    limit: usize,
    place: Place,
}

impl Search {
    /// Parses a query. `place` parses its cursor.
    fn of(query: &LogQuery, place: impl Fn(&str) -> Result<Place, ()>) -> Result<Self, ApiError> {
        let text = query.search.clone().unwrap_or_default();
        if text.len() > LONGEST_SEARCH {
            return Err(ApiError::invalid("search", format!("may have at most {LONGEST_SEARCH} bytes")));
        }
        let least = match query.level.as_deref() {
            None => LogLevel::Debug,
            Some(level) => serde_json::from_value(level.into())
                .map_err(|_| ApiError::invalid("level", "must be debug, info, warn or error"))?,
        };
        let sources: Vec<String> = names(&query.source).map(Into::into).collect();
        if !sources
            .iter()
            .all(|source| ["sandbox", "process", "stdout", "stderr", "pty"].contains(&source.as_str()))
        {
            return Err(ApiError::invalid("source", "must be sandbox, process, stdout, stderr or pty"));
        }
        let limit = query.limit.unwrap_or(USUAL);
        if !(1..=MOST).contains(&limit) {
            return Err(ApiError::invalid("limit", format!("must be between 1 and {MOST}")));
        }
        let place = query.cursor.as_deref().map(place).transpose();
        Ok(Self {
            text,
            least,
            sources,
            from_ms: time("from", query.from.as_deref())?.unwrap_or(i64::MIN),
            until_ms: time("until", query.until.as_deref())?.unwrap_or(i64::MAX),
            limit: limit as usize,
            place: place
                .map_err(|()| ApiError::invalid("cursor", "is not a cursor of this server"))?
                .unwrap_or_default(),
        })
    }

    fn wants(&self, line: &Line) -> bool {
        line.level >= self.least
            && (self.sources.is_empty() || self.sources.contains(&line.shown.source))
            && (self.from_ms..=self.until_ms).contains(&line.time_ms)
            && line.shown.message.contains(&self.text)
    }
}

/// Walks through a log, line by line.
struct Walk {
    app: Arc<App>,
    scope: ProjectScope,
    sandbox: SandboxId,
    transitions: std::iter::Peekable<std::vec::IntoIter<Transition>>,
    place: Place,
    at_end: bool,
    /// Bytes that the next step reads; doubles each time.
    reads: usize,
}

impl Walk {
    async fn start(
        app: Arc<App>,
        scope: ProjectScope,
        sandbox: SandboxId,
        place: Place,
    ) -> Result<Self, ApiError> {
        let transitions = app.store.transitions(&scope, sandbox).await.map_err(ApiError::store)?;
        let transitions: Vec<_> =
            transitions.into_iter().filter(|transition| transition.position > place.transition).collect();
        Ok(Self {
            app,
            scope,
            sandbox,
            transitions: transitions.into_iter().peekable(),
            place,
            at_end: false,
            reads: READ_AT_FIRST,
        })
    }

    /// The next lines, and how many bytes of the log they took; `None` at the end.
    async fn step(&mut self) -> Result<Option<(Vec<Line>, usize)>, ApiError> {
        if self.at_end {
            return Ok(None);
        }
        let from = self.place.position;
        let page = self.app.output.read(&self.scope, self.sandbox, from, self.reads).await;
        self.reads = (2 * self.reads).min(READ_AT_ONCE);
        let page = page.map_err(ApiError::store)?;
        let mut lines = Vec::new();
        for record in &page.records {
            self.transitions_until(record.time_ms, &mut lines);
            for (mut line, position) in of_record(record) {
                if position <= from {
                    continue;
                }
                self.place.position = position;
                line.place = self.place;
                lines.push(line);
            }
            self.place.position = record.next;
        }
        self.at_end = page.at_end || page.next <= from;
        self.place.position = page.next.max(self.place.position);
        let size = usize::try_from(self.place.position - from).unwrap_or(READ_AT_ONCE);
        if self.at_end {
            self.transitions_until(i64::MAX, &mut lines);
        }
        Ok(Some((lines, size.clamp(LEAST_COUNTED, READ_AT_ONCE))))
    }

    fn transitions_until(&mut self, time_ms: Millis, lines: &mut Vec<Line>) {
        while let Some(transition) = self.transitions.next_if(|transition| transition.at_ms <= time_ms) {
            self.place.transition = transition.position;
            let level = match transition.to {
                SandboxState::Error { .. } => LogLevel::Error,
                _ => LogLevel::Info,
            };
            let shown = LogLine {
                at: rfc3339(transition.at_ms),
                level: level_name(level).to_string(),
                source: "sandbox".into(),
                execution: None,
                message: format!("sandbox {}: {}", transition.to.name().as_str(), transition.reason),
            };
            lines.push(Line { shown, level, time_ms: transition.at_ms, place: self.place });
        }
    }
}

const fn scope(named: &NamedId<Read>) -> &ProjectScope {
    &named.caller.scope
}

/// The lines of a record, each with the position after it.
fn of_record(record: &LogRecord) -> Vec<(Line, i64)> {
    let line = |level, source: &str, message: String, end: usize| {
        let shown = LogLine {
            at: rfc3339(record.time_ms),
            level: level_name(level).to_string(),
            source: source.into(),
            execution: Some(record.execution.to_string()),
            message,
        };
        let line = Line { shown, level, time_ms: record.time_ms, place: Place::default() };
        (line, record.position_of(end))
    };
    let whole = record.data.len();
    match record.kind {
        Kind::Output(stream) => lines(&record.data)
            .map(|part| line(LogLevel::Info, stream_name(stream), part.text, part.end))
            .collect(),
        Kind::Started => {
            let command = String::from_utf8_lossy(&record.data);
            vec![line(LogLevel::Info, "process", format!("started: {command}"), whole)]
        }
        Kind::Code if record.offset == 0 => {
            vec![line(LogLevel::Info, "code", format!("started: {}", first_line(&record.data)), whole)]
        }
        // Results are in the notebook, and an error is in the end.
        Kind::Code | Kind::Shown => Vec::new(),
        Kind::Ended => {
            let end: serde_json::Value = serde_json::from_slice(&record.data).unwrap_or_default();
            let level = if end["exit_code"] == 0 { LogLevel::Info } else { LogLevel::Warn };
            let status = end["status"].as_str().unwrap_or_default();
            vec![line(level, "process", format!("ended: {status}"), whole)]
        }
        Kind::Gap(stream) => {
            let message = format!("{} bytes of output were lost", record.missed_bytes());
            vec![line(LogLevel::Warn, stream_name(stream), message, whole)]
        }
        Kind::Truncated => {
            let message = "wrote more than the limit of one execution: the rest was not stored";
            vec![line(LogLevel::Warn, "process", message.into(), whole)]
        }
    }
}

/// The log of a sandbox, oldest first: searched, or as a file.
///
/// A page may have fewer lines than requested, even none, and still have a `next`: the server searches a
/// bounded part of the log per request. With `download`, or with `Accept: text/plain`, the answer is all
/// matching lines as text.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/logs", tag = "logs", params(("id" = String, Path), LogQuery, FormQuery),
    responses((status = 200, content((Page<LogLine> = "application/json"), (String = "text/plain"))))
)]
pub(super) async fn search(
    State(app): State<Arc<App>>,
    named: NamedId<Read>,
    headers: HeaderMap,
    Query(query): Query<LogQuery>,
    Query(form): Query<FormQuery>,
) -> Result<Response, ApiError> {
    let search = Search::of(&query, str::parse)?;
    expect_sandbox(&app, &named).await?;
    app.fleet.recorded().await;
    if let Some(record) = app.fleet.find(scope(&named), named.id) {
        let _turn = app.journals.take(record.project).await.map_err(ApiError::busy)?;
        app.output.catch_up(&record, PATIENCE).await;
    }
    let as_file = form.download == Some(true)
        || headers.get(header::ACCEPT).is_some_and(|accept| accept == "text/plain");
    let id = named.id;
    let mut walk = Walk::start(app, named.caller.scope, id, search.place).await?;
    if as_file {
        let name = format!("attachment; filename=\"{id}.log\"");
        let headers = [
            (header::CONTENT_TYPE, "text/plain; charset=utf-8".to_string()),
            (header::CONTENT_DISPOSITION, name),
        ];
        return Ok((headers, file(walk, search)).into_response());
    }
    let mut found: Vec<Line> = Vec::new();
    let mut gone_through = 0;
    while gone_through < MOST_SEARCHED
        && let Some((lines, size)) = walk.step().await?
    {
        gone_through += size;
        found.extend(lines.into_iter().filter(|line| search.wants(line)));
        if found.len() > search.limit {
            found.truncate(search.limit);
            let next = found.last().map(|last| last.place.to_string());
            return Ok(page(found, next));
        }
    }
    let next = (!walk.at_end).then(|| walk.place.to_string());
    Ok(page(found, next))
}

fn page(found: Vec<Line>, next: Option<String>) -> Response {
    Json(Page::new(found.into_iter().map(|line| line.shown).collect(), next)).into_response()
}

fn file(walk: Walk, search: Search) -> Body {
    let text = futures_util::stream::unfold((walk, search), async |(mut walk, search)| {
        let (lines, _) = walk.step().await.ok()??;
        let mut text = String::new();
        for line in lines.iter().filter(|line| search.wants(line)) {
            let LogLine { at, level, source, message, .. } = &line.shown;
            let _infallible = writeln!(text, "{at} {level} {source} {message}");
        }
        Some((Ok::<_, Infallible>(Bytes::from(text)), (walk, search)))
    });
    Body::from_stream(text)
}

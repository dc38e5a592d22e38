//! The log of a sandbox as E2B shows it: its own transitions, and its processes from the log.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use coffer_core::{ExecutionId, Millis, SandboxState};
use coffer_store::Transition;
use coffer_wire::agentd::OutputStream;
use coffer_wire::e2b::{LogEntry, LogLevel, LogLine, Logs, LogsV2};

use super::app::App;
use super::auth::{NamedId, Read};
use super::error::ApiError;
use super::query::Pairs;
use coffer_core::clock::rfc3339;
use coffer_fleet::output::{Kind, LogRecord, Way};

const MOST_ENTRIES: i64 = 1000;
const LONGEST_SEARCH: usize = 256;
const LONGEST_MESSAGE: usize = 4096;

/// How long to wait for a sandbox's newest output.
const PATIENCE: Duration = Duration::from_secs(2);

/// An entry before it is rendered, with its time to sort by.
struct Entry {
    time_ms: Millis,
    level: LogLevel,
    message: String,
    fields: BTreeMap<String, String>,
}

/// `GET /sandboxes/{id}/logs`.
pub(super) async fn v1(
    State(app): State<Arc<App>>,
    named: NamedId<Read>,
    query: Pairs,
) -> Result<Json<Logs>, ApiError> {
    let from_ms = query.number("start")?.unwrap_or(0);
    let limit = limit(&query)?;
    let entries =
        entries(&app, &named, Way::Forward { from_ms }, limit, |entry| entry.time_ms >= from_ms).await?;
    let entries: Vec<LogEntry> = entries.into_iter().map(Entry::show).collect();
    let logs = entries
        .iter()
        .map(|entry| LogLine { timestamp: entry.timestamp.clone(), line: line(entry) })
        .collect();
    Ok(Json(Logs { logs, log_entries: entries }))
}

/// `GET /v2/sandboxes/{id}/logs`.
pub(super) async fn v2(
    State(app): State<Arc<App>>,
    named: NamedId<Read>,
    query: Pairs,
) -> Result<Json<LogsV2>, ApiError> {
    let cursor = query.number("cursor")?;
    let limit = limit(&query)?;
    let backward = match query.text("direction") {
        None | Some("forward") => false,
        Some("backward") => true,
        Some(_) => return Err(ApiError::bad_request("direction must be forward or backward")),
    };
    let least = match query.text("level") {
        None => LogLevel::Debug,
        Some(level) => serde_json::from_value(level.into())
            .map_err(|_| ApiError::bad_request("level must be debug, info, warn or error"))?,
    };
    let search = query.text("search").unwrap_or_default();
    if search.len() > LONGEST_SEARCH {
        return Err(ApiError::bad_request(format!("search may have at most {LONGEST_SEARCH} bytes")));
    }
    let way = match backward {
        false => Way::Forward { from_ms: cursor.unwrap_or(0) },
        true => Way::Backward { from_ms: cursor.unwrap_or(i64::MAX) },
    };
    let wanted = |entry: &Entry| {
        let within = match way {
            Way::Forward { from_ms } => entry.time_ms >= from_ms,
            Way::Backward { from_ms } => entry.time_ms <= from_ms,
        };
        within && entry.level >= least && entry.message.contains(search)
    };
    let entries = entries(&app, &named, way, limit, wanted).await?;
    Ok(Json(LogsV2 { logs: entries.into_iter().map(Entry::show).collect() }))
}

fn limit(query: &Pairs) -> Result<usize, ApiError> {
    let limit = query.number("limit")?.unwrap_or(MOST_ENTRIES);
    if limit > MOST_ENTRIES {
        return Err(ApiError::bad_request(format!("limit must be at most {MOST_ENTRIES}")));
    }
    usize::try_from(limit).map_err(|_| ApiError::internal())
}

/// The matching entries of a sandbox, in order, at most `limit`.
async fn entries(
    app: &App,
    named: &NamedId<Read>,
    way: Way,
    limit: usize,
    wanted: impl Fn(&Entry) -> bool + Send + Sync,
) -> Result<Vec<Entry>, ApiError> {
    let scope = &named.caller.scope;
    app.fleet.recorded().await;
    let transitions = app.store.transitions(scope, named.id).await.map_err(ApiError::store)?;
    if transitions.is_empty() {
        return Err(ApiError::no_sandbox(&named.text));
    }
    if let Some(record) = app.fleet.find(scope, named.id) {
        // If the sandbox does not answer, its history is still shown.
        let _turn = app.journals.take(record.project).await.map_err(ApiError::busy)?;
        app.output.catch_up(&record, PATIENCE).await;
    }
    let mut entries: Vec<Entry> = transitions.into_iter().map(of_transition).filter(&wanted).collect();
    let mut found = 0;
    let mut pids = HashMap::new();
    let scanned = app.output.scan(scope, named.id, way, |record| {
        let mut of_record: Vec<Entry> = of_record(&record, &mut pids).filter(&wanted).collect();
        if matches!(way, Way::Backward { .. }) {
            of_record.reverse();
        }
        found += of_record.len();
        entries.extend(of_record);
        if found >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    scanned.await.map_err(ApiError::store)?;
    match way {
        Way::Forward { .. } => entries.sort_by_key(|entry| entry.time_ms),
        Way::Backward { .. } => entries.sort_by_key(|entry| std::cmp::Reverse(entry.time_ms)),
    }
    entries.truncate(limit);
    Ok(entries)
}

fn of_transition(transition: Transition) -> Entry {
    let level = match transition.to {
        SandboxState::Error { .. } => LogLevel::Error,
        _ => LogLevel::Info,
    };
    let state = transition.to.name().as_str();
    Entry {
        time_ms: transition.at_ms,
        level,
        message: format!("sandbox {state}: {}", transition.reason),
        fields: BTreeMap::from([("event".into(), "sandbox".into()), ("state".into(), state.into())]),
    }
}

/// The entries of a log record: one for each line of output. A record of output has no pid; `pids` has those
/// of the start records before it.
fn of_record(
    record: &LogRecord,
    pids: &mut HashMap<ExecutionId, String>,
) -> impl Iterator<Item = Entry> + use<> {
    let mut fields = BTreeMap::from([
        ("event".into(), "process".into()),
        ("execution".into(), record.execution.to_string()),
    ]);
    let (level, messages) = match record.kind {
        Kind::Started => {
            fields.insert("pid".into(), record.offset.to_string());
            let command = String::from_utf8_lossy(&record.data);
            (LogLevel::Info, vec![format!("process {} started: {command}", record.offset)])
        }
        Kind::Output(stream) => {
            fields.insert("stream".into(), stream_name(stream).into());
            (LogLevel::Info, lines(&record.data).map(|line| line.text).collect())
        }
        Kind::Ended => {
            let end: serde_json::Value = serde_json::from_slice(&record.data).unwrap_or_default();
            let exit_code = end["exit_code"].as_i64().unwrap_or(-1);
            fields.insert("exit_code".into(), exit_code.to_string());
            if let Some(pid) = end["pid"].as_i64() {
                fields.insert("pid".into(), pid.to_string());
            }
            let level = if exit_code == 0 { LogLevel::Info } else { LogLevel::Warn };
            let status = end["status"].as_str().unwrap_or_default();
            let what = end["pid"].as_i64().map_or_else(|| "code".to_string(), |pid| format!("process {pid}"));
            (level, vec![format!("{what} ended: {status}")])
        }
        Kind::Gap(stream) => {
            fields.insert("stream".into(), stream_name(stream).into());
            (LogLevel::Warn, vec![format!("{} bytes of output were lost", record.missed_bytes())])
        }
        Kind::Code if record.offset == 0 => {
            (LogLevel::Info, vec![format!("code started: {}", first_line(&record.data))])
        }
        Kind::Code | Kind::Shown => (LogLevel::Info, Vec::new()),
        Kind::Truncated => {
            (LogLevel::Warn, vec!["the process wrote too much output: the rest was not stored".into()])
        }
    };
    match fields.get("pid") {
        Some(pid) => drop(pids.insert(record.execution, pid.clone())),
        None => fields.extend(pids.get(&record.execution).map(|pid| ("pid".into(), pid.clone()))),
    }
    let time_ms = record.time_ms;
    messages.into_iter().map(move |message| Entry { time_ms, level, message, fields: fields.clone() })
}

/// The first line of some code, for people.
pub(super) fn first_line(code: &[u8]) -> String {
    let text = String::from_utf8_lossy(&code[..code.len().min(1024)]);
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.chars().take(200).collect()
}

/// Part of some output.
pub(super) struct Line {
    pub(super) text: String,
    /// The offset in the output at which the next line begins.
    pub(super) end: usize,
}

/// The lines of some output that are not empty; very long ones in parts.
pub(super) fn lines(data: &[u8]) -> impl Iterator<Item = Line> {
    let mut end = 0;
    let parts = data.split_inclusive(|&byte| byte == b'\n').flat_map(|line| line.chunks(LONGEST_MESSAGE));
    let lines = parts.map(move |part| {
        end += part.len();
        Line { text: String::from_utf8_lossy(part).trim_end().to_string(), end }
    });
    lines.filter(|line| !line.text.is_empty())
}

pub(super) const fn stream_name(stream: OutputStream) -> &'static str {
    match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
        OutputStream::Pty => "pty",
    }
}

impl Entry {
    fn show(self) -> LogEntry {
        LogEntry {
            timestamp: rfc3339(self.time_ms),
            message: self.message,
            level: self.level,
            fields: self.fields,
        }
    }
}

/// A line of the first generation: JSON, as E2B's command line parses it.
fn line(entry: &LogEntry) -> String {
    let mut line = serde_json::Map::new();
    for (key, value) in &entry.fields {
        line.insert(key.clone(), value.clone().into());
    }
    line.insert("level".into(), serde_json::to_value(entry.level).expect("a plain name"));
    line.insert("message".into(), entry.message.clone().into());
    serde_json::Value::Object(line).to_string()
}

//! What happened in a sandbox: its own transitions, and its processes as agentd tells of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use coffer_core::{Millis, SandboxState};
use coffer_store::Transition;
use coffer_wire::agentd::{JournalRecord, OutputStream, ProcessFact};
use coffer_wire::e2b::{LogEntry, LogLevel, LogLine, Logs, LogsV2};

use super::App;
use super::auth::{NamedId, Read};
use super::error::ApiError;
use super::query::Query;
use crate::agent;
use crate::clock::rfc3339;

const MOST_ENTRIES: i64 = 1000;
const LONGEST_SEARCH: usize = 256;
const LONGEST_MESSAGE: usize = 4096;

/// Of a journal no more is read for one answer.
const MOST_PAGES: usize = 8;
const MOST_RECORDS: usize = 20_000;
const PATIENCE: Duration = Duration::from_secs(5);

/// An entry before it is shown, with its time to sort by.
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
    query: Query,
) -> Result<Json<Logs>, ApiError> {
    let from_ms = query.number("start")?.unwrap_or(0);
    let limit = limit(&query)?;
    let entries = all(&app, &named).await?.into_iter().filter(|entry| entry.time_ms >= from_ms);
    let entries: Vec<LogEntry> = entries.take(limit).map(Entry::show).collect();
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
    query: Query,
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
    let mut entries = all(&app, &named).await?;
    if backward {
        entries.reverse();
    }
    let within = |entry: &Entry| match cursor {
        None => true,
        Some(cursor) if backward => entry.time_ms <= cursor,
        Some(cursor) => entry.time_ms >= cursor,
    };
    let wanted = entries
        .into_iter()
        .filter(|entry| within(entry) && entry.level >= least && entry.message.contains(search));
    Ok(Json(LogsV2 { logs: wanted.take(limit).map(Entry::show).collect() }))
}

fn limit(query: &Query) -> Result<usize, ApiError> {
    let limit = query.number("limit")?.unwrap_or(MOST_ENTRIES);
    if limit > MOST_ENTRIES {
        return Err(ApiError::bad_request(format!("limit must be at most {MOST_ENTRIES}")));
    }
    usize::try_from(limit).map_err(|_| ApiError::internal())
}

/// Everything that is known, oldest first.
async fn all(app: &App, named: &NamedId<Read>) -> Result<Vec<Entry>, ApiError> {
    let scope = &named.caller.scope;
    let transitions = app.store.transitions(scope, named.id).await.map_err(ApiError::store)?;
    if transitions.is_empty() {
        return Err(ApiError::no_sandbox(&named.text));
    }
    let mut entries: Vec<Entry> = transitions.into_iter().map(of_transition).collect();
    let socket = app.fleet.find(scope, named.id).and_then(|record| {
        let live = record.live();
        live.socket().filter(|_| live.is_steady())
    });
    if let Some(socket) = socket {
        let mut records = Vec::new();
        let read = async {
            let _turn = app.journals.acquire().await;
            let mut from = 0;
            for _ in 0..MOST_PAGES {
                // A sandbox that does not answer still has its transitions to show.
                let Ok(page) = agent::journal(&socket, from, PATIENCE).await else { break };
                let stuck = page.records.is_empty() || page.next <= from;
                records.extend(page.records);
                from = page.next;
                if stuck || records.len() >= MOST_RECORDS {
                    break;
                }
            }
        };
        // For all of it, so that slow sandboxes do not keep others waiting.
        let _ = tokio::time::timeout(PATIENCE, read).await;
        entries.extend(records.into_iter().take(MOST_RECORDS).map(of_process));
    }
    entries.sort_by_key(|entry| entry.time_ms);
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

fn of_process(record: JournalRecord) -> Entry {
    let mut fields =
        BTreeMap::from([("event".into(), "process".into()), ("pid".into(), record.pid.to_string())]);
    let (level, message) = match record.what {
        ProcessFact::Started { command } => {
            (LogLevel::Info, format!("process {} started: {command}", record.pid))
        }
        ProcessFact::Output { stream, data, .. } => {
            let stream = match stream {
                OutputStream::Stdout => "stdout",
                OutputStream::Stderr => "stderr",
                OutputStream::Pty => "pty",
            };
            fields.insert("stream".into(), stream.into());
            let data = BASE64_STANDARD.decode(data).unwrap_or_default();
            (LogLevel::Debug, String::from_utf8_lossy(&data).trim_end().to_string())
        }
        ProcessFact::Ended { exit_code, status } => {
            fields.insert("exit_code".into(), exit_code.to_string());
            let level = if exit_code == 0 { LogLevel::Info } else { LogLevel::Warn };
            (level, format!("process {} ended: {status}", record.pid))
        }
    };
    Entry { time_ms: record.time_ms, level, message: message.chars().take(LONGEST_MESSAGE).collect(), fields }
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

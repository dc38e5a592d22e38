//! Streams everything about one sandbox: its events and its output.

use std::cmp::Ordering;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Sse;
use axum::response::sse;
use coffer_core::event::EventKind;
use coffer_store::EventRow;
use futures_util::Stream;
use http::HeaderMap;

use super::events::KeyWatch;
use super::executions::{expect_sandbox, piece};
use crate::app::App;
use crate::auth::{NamedId, Read};
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::executions::{ExecutionOutput, PlaceQuery};
use coffer_fleet::events::{Reader as EventReader, Wanted};
use coffer_fleet::output::{LogRecord, Reader as LogReader};

/// How long a stream may be silent before it sends a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// A reader's position: in the project's events and in the sandbox's log.
#[derive(Debug, Clone, Copy)]
struct Place {
    event: i64,
    position: i64,
}

fn parse(text: &str) -> Option<Place> {
    let (event, position) = text.split_once('-')?;
    let number = |text: &str| text.parse().ok().filter(|&number: &i64| number >= 0);
    Some(Place { event: number(event)?, position: number(position)? })
}

/// Merges the two logs in order of time, as far as both are recorded.
pub(super) struct Both {
    events: EventReader,
    log: LogReader,
    /// Read but not sent yet.
    event: Option<Arc<EventRow>>,
    record: Option<Arc<LogRecord>>,
    place: Place,
}

/// Whether an event comes before a record of output. At the same moment, the end of a process comes last.
fn is_first(event: &EventRow, record: &LogRecord) -> bool {
    match event.at_ms.cmp(&record.time_ms) {
        Ordering::Less => true,
        Ordering::Equal => event.kind != EventKind::ExecutionEnded.as_str(),
        Ordering::Greater => false,
    }
}

impl Both {
    /// Opens both logs of a sandbox at the position that a client asks for.
    pub(super) async fn open(
        app: &App,
        named: &NamedId<Read>,
        headers: &HeaderMap,
        query: &PlaceQuery,
    ) -> Result<Self, ApiError> {
        expect_sandbox(app, named).await?;
        let bad = || ApiError::bad_request("the position must be the id of a message, such as 12-3456");
        let after = match headers.get("last-event-id") {
            Some(last) => Some(last.to_str().ok().and_then(parse).ok_or_else(bad)?),
            None => query.after.as_deref().map(|after| parse(after).ok_or_else(bad)).transpose()?,
        };
        let scope = named.caller.scope;
        let wanted = Wanted { subject: Some(named.id.to_string()), kinds: Vec::new() };
        let log = app.output.reader(scope, named.id, after.map(|after| after.position)).await;
        let log = log.map_err(ApiError::store)?;
        let events = app.events.reader(scope, after.map(|after| after.event), wanted).await;
        let events = events.map_err(ApiError::store)?;
        if let Some(record) = app.fleet.find(&scope, named.id) {
            // A process may run that this server has not seen yet.
            app.output.wake(&record);
        }
        let place = Place { event: events.position(), position: log.position() };
        Ok(Self { events, log, event: None, record: None, place })
    }

    /// The place of the last message, as clients send it back.
    pub(super) fn id(&self) -> String {
        format!("{}-{}", self.place.event, self.place.position)
    }

    /// The next message's kind and data; `None` when the server stops.
    pub(super) async fn next(&mut self) -> Option<(String, String)> {
        loop {
            if self.event.is_none() {
                self.event = self.events.on_record().await;
            }
            if self.record.is_none() {
                self.record = self.log.on_record().await;
            }
            let event_is_next = match (&self.event, &self.record) {
                (Some(event), Some(record)) => is_first(event, record),
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => {
                    // Before sending an item, check the other log once more.
                    tokio::select! {
                        event = self.events.next() => self.event = Some(event?),
                        record = self.log.next() => self.record = Some(record?),
                    }
                    continue;
                }
            };
            if event_is_next && let Some(event) = self.event.take() {
                self.place.event = event.sequence;
                let data = serde_json::to_string(&coffer_fleet::events::render(&event));
                return Some((event.kind.clone(), data.expect("an event is plain data")));
            }
            if let Some(record) = self.record.take() {
                self.place.position = record.next;
                // Starts and ends of processes are events.
                if let Some(piece) = piece(&record, 0) {
                    let output = ExecutionOutput { execution: record.execution.to_string(), piece };
                    let data = serde_json::to_string(&output).expect("output is plain data");
                    return Some(("output".to_string(), data));
                }
            }
        }
    }
}

/// Streams the events of one sandbox and the output of its processes; recorded ones come in order of time.
///
/// Each message's id is a position in both. A reader that reconnects with it as `Last-Event-ID` (or `after`)
/// misses nothing, also after a restart of the server; `0-0` is the beginning. Output comes as events of kind
/// `output`, redacted. A reader that is too slow is cut off, and can reconnect the same way.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/stream", tag = "logs",
    params(
        ("id" = String, Path),
        ("Last-Event-ID" = Option<String>, Header, description = "the same, as browsers send it"),
        PlaceQuery
    ),
    responses((status = 200, content_type = "text/event-stream", body = String))
)]
pub(super) async fn follow(
    State(app): State<Arc<App>>,
    named: NamedId<Read>,
    headers: HeaderMap,
    Query(query): Query<PlaceQuery>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, ApiError> {
    let both = Both::open(&app, &named, &headers, &query).await?;
    let key = KeyWatch::new(&app.store, named.caller.key);
    let messages = futures_util::stream::unfold((both, key), async |(mut both, mut key)| {
        let (kind, data) = key.until_revoked(both.next()).await?;
        let id = both.id();
        Some((Ok(sse::Event::default().id(id).event(kind).data(data)), (both, key)))
    });
    Ok(Sse::new(messages).keep_alive(sse::KeepAlive::new().interval(HEARTBEAT).text("alive")))
}

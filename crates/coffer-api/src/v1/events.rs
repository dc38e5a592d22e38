//! Events in order: page by page, and as they happen.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::Sse;
use axum::response::sse;
use coffer_store::{EventFilter, Secret, Store};
use futures_util::Stream;
use http::HeaderMap;
use tokio_util::task::AbortOnDropHandle;

use super::page::Part;
use crate::app::App;
use crate::auth::{Caller, Read};
use crate::error::ApiError;
use crate::query::{Query, names};
use coffer_api_types::events::{AfterQuery, EventQuery};
use coffer_api_types::{ErrorShape, Event, Page, PageQuery};
use coffer_core::Code;
use coffer_fleet::events::{self, Wanted};

/// How long a stream may be silent before it sends a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Most kinds in one request.
const MOST_KINDS: usize = 100;

/// How often a stream checks that its key is still valid.
const KEY_LOOK: Duration = Duration::from_secs(3);

pub(super) fn wanted(query: EventQuery) -> Wanted {
    Wanted { kinds: names(&query.kind).map(str::to_string).collect(), subject: query.subject }
}

/// The position after which a reader resumes.
pub(super) fn after(headers: &HeaderMap, query: &AfterQuery) -> Result<Option<i64>, ApiError> {
    let last = headers.get("last-event-id").map(|last| last.to_str().ok().and_then(|text| text.parse().ok()));
    match last {
        Some(Some(last)) if last >= 0 => Ok(Some(last)),
        Some(_) => Err(ApiError::bad_request("Last-Event-ID must be a number that is not negative")),
        None => Ok(query.after.map(|after| i64::try_from(after).unwrap_or(i64::MAX))),
    }
}

/// Events, oldest first.
#[utoipa::path(
    get, path = "/api/v1/events", tag = "events", params(PageQuery, EventQuery),
    responses(
        (status = 200, body = Page<Event>),
        (status = 410, body = ErrorShape, description = "the events after the cursor were deleted because of their age")
    )
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
    Query(query): Query<EventQuery>,
) -> Result<Json<Page<Event>>, ApiError> {
    let part: Part<i64> = Part::of(page)?;
    let Wanted { subject, kinds } = wanted(query);
    if kinds.len() > MOST_KINDS {
        return Err(ApiError::invalid("kind", format!("may name at most {MOST_KINDS} kinds")));
    }
    let pruned = app.store.pruned_event(&caller.scope).await.map_err(ApiError::store)?;
    if part.after.is_some_and(|after| after < pruned) {
        let message = format!("events up to {pruned} were deleted because of their age");
        return Err(ApiError::of(Code::Gone, message).hint("begin again without a cursor"));
    }
    app.fleet.recorded().await;
    let after = part.after.unwrap_or(pruned);
    let filter = EventFilter { subject, kinds, after, limit: part.to_fetch() };
    let found = app.store.find_events(&caller.scope, &filter).await.map_err(ApiError::store)?;
    let page = part.page(found.events, |event| event.sequence.to_string(), |event| events::render(&event));
    // If matching kinds are rare, the search may stop before the end of the log: there is a next part, even
    // if this one is short.
    let Page { items, next } = page;
    Ok(Json(Page::new(items, next.or_else(|| found.looked_to.map(|to| to.to_string())))))
}

/// Streams events as they happen, after those already recorded.
///
/// A reader that reconnects with `Last-Event-ID` (or `after`) misses nothing. A reader that is too slow is
/// cut off, and can reconnect the same way. If events were removed before it reconnects, it first gets an
/// event of kind `gap`, which says after and until which sequence.
#[utoipa::path(
    get, path = "/api/v1/events/stream", tag = "events",
    params(
        ("Last-Event-ID" = Option<i64>, Header, description = "the same, as browsers send it"),
        EventQuery, AfterQuery
    ),
    responses((status = 200, content_type = "text/event-stream", body = String))
)]
pub(super) async fn stream(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    headers: HeaderMap,
    Query(query): Query<EventQuery>,
    Query(position): Query<AfterQuery>,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, ApiError> {
    let after = after(&headers, &position)?;
    // Wait for pending writes, so that the stream starts after every event that an earlier answer implied.
    app.fleet.recorded().await;
    let reader = app.events.reader(caller.scope, after, wanted(query)).await.map_err(ApiError::store)?;
    let key = KeyWatch::new(&app.store, caller.key);
    let events = futures_util::stream::unfold((reader, key), async |(mut reader, mut key)| {
        let event = key.until_revoked(reader.next()).await?;
        let data = serde_json::to_string(&events::render(&event)).expect("an event is plain data");
        let told = sse::Event::default().id(event.sequence.to_string()).event(&event.kind).data(data);
        Some((Ok(told), (reader, key)))
    });
    Ok(Sse::new(events).keep_alive(sse::KeepAlive::new().interval(HEARTBEAT).text("alive")))
}

/// Notices when the key of a stream is no longer valid.
///
/// A separate task checks the key. In the stream's future, the check would wait for a database connection
/// while the read next to it holds one, a deadlock; and a client that stops reading would keep its
/// connection.
pub(super) struct KeyWatch {
    revoked: AbortOnDropHandle<()>,
}

impl KeyWatch {
    pub(super) fn new(store: &Store, key: Secret) -> Self {
        let store = store.clone();
        #[expect(clippy::disallowed_methods, reason = "aborted when its handle is dropped")]
        let looking = tokio::spawn(async move {
            loop {
                tokio::time::sleep(KEY_LOOK).await;
                // If the database does not answer, the next check decides.
                if matches!(store.still_valid(key.reveal()).await, Ok(None)) {
                    return;
                }
            }
        });
        Self { revoked: AbortOnDropHandle::new(looking) }
    }

    pub(super) async fn revoked(&mut self) {
        // The task neither panics nor is aborted while this is borrowed; in either case it no longer watches.
        let _ended = (&mut self.revoked).await;
    }

    /// Returns the next item, or nothing once the key is no longer valid.
    pub(super) async fn until_revoked<T>(&mut self, next: impl Future<Output = Option<T>>) -> Option<T> {
        tokio::select! {
            // Check this first, or a stream that always has an item would never notice.
            biased;
            () = self.revoked() => None,
            got = next => got,
        }
    }
}

//! Events as they happen, and the output of a sandbox among its events, over WebSockets.
//!
//! The same readers as for server-sent events, with the same filters and positions. A socket holds one message at
//! a time: a client that reads none for long is disconnected, and reconnects with `after`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, State};
use axum::response::Response;
use coffer_core::ProjectId;
use coffer_shares::Place;
use coffer_store::Secret;
use futures_util::StreamExt as _;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::events::{KeyWatch, after, wanted};
use super::stream::Both;
use crate::app::App;
use crate::auth::{Caller, NamedId, Read};
use crate::error::ApiError;
use crate::query::{Query, form_pairs};
use coffer_api_types::ErrorShape;
use coffer_api_types::events::{AfterQuery, EventQuery};
use coffer_api_types::executions::PlaceQuery;
use coffer_fleet::events::Reader;

/// The subprotocol that clients request.
const PROTOCOL: &str = "coffer.events.v1";
/// Browsers cannot set other headers, so a key may be among the subprotocols, after this prefix.
const KEY_MARK: &str = "coffer.key.";

const HEARTBEAT: Duration = Duration::from_secs(15);
/// A client that answers no ping for this long counts as gone.
const SILENT: Duration = Duration::from_secs(50);
/// A client that reads nothing for this long is too slow.
const SLOW: Duration = Duration::from_secs(10);
/// The longest message of a client; clients have nothing to send.
const LONGEST_MESSAGE: usize = 4096;

const GOING_AWAY: u16 = 1001;
const NOT_ALLOWED: u16 = 1008;
const TRY_AGAIN: u16 = 1013;

/// A caller whose key may also be in the subprotocols or the query.
#[derive(Debug)]
pub(super) struct Anywhere(Caller<Read>);

impl FromRequestParts<Arc<App>> for Anywhere {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        show_key(parts)?;
        Caller::from_request_parts(parts, app).await.map(Self)
    }
}

/// The same for a sandbox in the path.
#[derive(Debug)]
pub(super) struct AnywhereIn(NamedId<Read>);

impl FromRequestParts<Arc<App>> for AnywhereIn {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        show_key(parts)?;
        NamedId::from_request_parts(parts, app).await.map(Self)
    }
}

/// Puts the key where every other request has it.
fn show_key(parts: &mut Parts) -> Result<(), ApiError> {
    let shown = parts.headers.contains_key("x-api-key") || parts.headers.contains_key(AUTHORIZATION);
    if !shown && let Some(key) = elsewhere(&parts.headers, parts.uri.query()) {
        let mut key = HeaderValue::try_from(key).map_err(|_| ApiError::bad_request("the key is not text"))?;
        key.set_sensitive(true);
        parts.headers.insert("x-api-key", key);
    }
    Ok(())
}

/// The key among the subprotocols, or in the query as `api_key`.
fn elsewhere(headers: &HeaderMap, query: Option<&str>) -> Option<String> {
    let protocols = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    let mut protocols = protocols.flat_map(|value| value.split(',')).map(str::trim);
    let among = protocols.find_map(|protocol| protocol.strip_prefix(KEY_MARK)).map(str::to_string);
    among.or_else(|| {
        let pairs = form_pairs(query?)?;
        pairs.into_iter().find(|(name, _)| name == "api_key").map(|(_, value)| value)
    })
}

/// Events as they happen, over a WebSocket: one text message of JSON for each.
///
/// Filters and `after` are those of `/events/stream`. The key may also be among the subprotocols, as
/// `coffer.key.<key>` next to `coffer.events.v1`, or in the query as `api_key`. The server sends pings. It
/// closes with 1013 and the position to resume from when the client is too slow, with 1008 when the key is no
/// longer valid, with 1001 when it stops.
#[utoipa::path(
    get, path = "/api/v1/events/ws", tag = "events",
    params(
        EventQuery,
        ("api_key" = Option<String>, Query, description = "for clients that cannot set headers"),
        AfterQuery
    ),
    responses(
        (status = 101, description = "the socket is open"),
        (status = 400, body = ErrorShape, description = "also: this is not a WebSocket")
    )
)]
pub(super) async fn open(
    State(app): State<Arc<App>>,
    Anywhere(caller): Anywhere,
    headers: HeaderMap,
    Query(query): Query<EventQuery>,
    Query(position): Query<AfterQuery>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|error| no_socket(&error.body_text(), "/api/v1/events/stream"))?;
    let after = after(&headers, &position)?;
    let room = app.sockets.try_take(caller.scope.project()).map_err(ApiError::busy)?;
    app.fleet.recorded().await;
    let reader = app.events.reader(caller.scope, after, wanted(query)).await.map_err(ApiError::store)?;
    let key = caller.key;
    Ok(bounded(upgrade).on_upgrade(move |socket| tell(app, socket, Source::Events(reader), key, room)))
}

fn no_socket(why: &str, instead: &str) -> ApiError {
    ApiError::bad_request(format!("this route is a WebSocket: {why}"))
        .hint(format!("GET {instead} sends the same as server-sent events"))
}

fn bounded(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade.max_message_size(LONGEST_MESSAGE).max_frame_size(LONGEST_MESSAGE).protocols([PROTOCOL])
}

/// Events and output of one sandbox in order, over a WebSocket: one text message of JSON for each.
///
/// A message is `{"id": "12-3456", "kind": "output", "data": {…}}`: `data` is an event, or for the kind `output` a piece of
/// output, and `id` is a position in both, to resume from as `after`. Order and positions are those of
/// `/sandboxes/{id}/stream`; the key may be where `/events/ws` takes it.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/ws", tag = "logs",
    params(
        ("id" = String, Path),
        ("api_key" = Option<String>, Query, description = "for clients that cannot set headers"),
        PlaceQuery
    ),
    responses(
        (status = 101, description = "the socket is open"),
        (status = 400, body = ErrorShape, description = "also: this is not a WebSocket")
    )
)]
pub(super) async fn open_sandbox(
    State(app): State<Arc<App>>,
    AnywhereIn(named): AnywhereIn,
    headers: HeaderMap,
    Query(query): Query<PlaceQuery>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    // First of all, so that others learn nothing of it.
    let both = Both::open(&app, &named, &headers, &query).await?;
    let stream = format!("/api/v1/sandboxes/{}/stream", named.id);
    let upgrade = upgrade.map_err(|error| no_socket(&error.body_text(), &stream))?;
    let room = app.sockets.try_take(named.caller.scope.project()).map_err(ApiError::busy)?;
    let key = named.caller.key;
    let source = Source::Sandbox(Box::new(both));
    Ok(bounded(upgrade).on_upgrade(move |socket| tell(app, socket, source, key, room)))
}

/// What a socket tells.
enum Source {
    Events(Reader),
    Sandbox(Box<Both>),
}

impl Source {
    /// From where a client can resume.
    fn place(&self) -> String {
        match self {
            Self::Events(reader) => reader.position().to_string(),
            Self::Sandbox(both) => both.id(),
        }
    }

    /// The next message; the place before it, if that has moved on; and the place after it. `None` when the server stops.
    async fn next(&mut self) -> Option<(String, Option<String>, String)> {
        match self {
            Self::Events(reader) => {
                let event = reader.next().await?;
                let text = serde_json::to_string(&coffer_fleet::events::render(&event));
                let text = text.expect("an event is plain data");
                Some((text, Some((event.sequence - 1).to_string()), event.sequence.to_string()))
            }
            Self::Sandbox(both) => {
                let (kind, data) = both.next().await?;
                let kind = serde_json::Value::from(kind);
                let id = both.id();
                Some((format!(r#"{{"id":"{id}","kind":{kind},"data":{data}}}"#), None, id))
            }
        }
    }
}

/// Why a socket is closed.
enum Over {
    Stopping,
    Revoked,
    TooSlow,
    Gone,
}

async fn tell(app: Arc<App>, mut socket: WebSocket, source: Source, key: Secret, room: Place<ProjectId>) {
    let mut position = source.place();
    let key = KeyWatch::new(&app.store, key);
    let over = follow(&mut socket, source, key, &mut position).await;
    let (code, reason) = match over {
        Over::Gone => (None, String::new()),
        Over::Stopping => {
            (Some(GOING_AWAY), format!("the server is stopping; reconnect with after={position}"))
        }
        Over::Revoked => (Some(NOT_ALLOWED), "the key has expired or was revoked".to_string()),
        Over::TooSlow => {
            (Some(TRY_AGAIN), format!("the client reads too slowly; reconnect with after={position}"))
        }
    };
    if let Some(code) = code {
        let close = CloseFrame { code, reason: reason.into() };
        let _gone = timeout(Duration::from_secs(1), socket.send(Message::Close(Some(close)))).await;
    }
    drop(room);
}

async fn follow(socket: &mut WebSocket, source: Source, mut key: KeyWatch, position: &mut String) -> Over {
    // A stream, so that a message that is being read goes on after a ping.
    let messages = futures_util::stream::unfold(source, async |mut source| {
        source.next().await.map(|message| (message, source))
    });
    let mut messages = std::pin::pin!(messages);
    let mut heartbeat = interval(HEARTBEAT);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    heartbeat.reset();
    let mut heard = Instant::now();
    loop {
        let message = tokio::select! {
            next = messages.next() => match next {
                None => return Over::Stopping,
                Some((text, before, after)) => {
                    if let Some(before) = before {
                        *position = before;
                    }
                    Some((Message::Text(text.into()), after))
                }
            },
            received = socket.recv() => match received {
                None | Some(Err(_) | Ok(Message::Close(_))) => return Over::Gone,
                Some(Ok(_)) => {
                    heard = Instant::now();
                    None
                }
            },
            _ = heartbeat.tick() => {
                if heard.elapsed() > SILENT {
                    return Over::TooSlow;
                }
                Some((Message::Ping(axum::body::Bytes::new()), position.clone()))
            }
            () = key.revoked() => return Over::Revoked,
        };
        let Some((message, reached)) = message else { continue };
        match timeout(SLOW, socket.send(message)).await {
            Ok(Ok(())) => *position = reached,
            Ok(Err(_)) => return Over::Gone,
            Err(_) => return Over::TooSlow,
        }
    }
}

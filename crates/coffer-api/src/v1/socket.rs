//! Events as they happen, over a WebSocket.
//!
//! The same reader as for server-sent events, with the same filters and positions. A socket holds one event at
//! a time: a client that reads none for long is disconnected, and reconnects with `after`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, State};
use axum::response::Response;
use coffer_core::ProjectId;
use coffer_shares::Place;
use coffer_store::Secret;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::events::{KeyWatch, after, wanted};
use crate::app::App;
use crate::auth::{Caller, Read};
use crate::error::ApiError;
use crate::query::{Query, form_pairs};
use coffer_api_types::ErrorShape;
use coffer_api_types::events::{AfterQuery, EventQuery};
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
        let shown = parts.headers.contains_key("x-api-key") || parts.headers.contains_key(AUTHORIZATION);
        if !shown && let Some(key) = elsewhere(&parts.headers, parts.uri.query()) {
            let mut key =
                HeaderValue::try_from(key).map_err(|_| ApiError::bad_request("the key is not text"))?;
            key.set_sensitive(true);
            parts.headers.insert("x-api-key", key);
        }
        Caller::from_request_parts(parts, app).await.map(Self)
    }
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
    let upgrade = upgrade.map_err(|error| {
        ApiError::bad_request(format!("this route is a WebSocket: {}", error.body_text()))
            .hint("GET /api/v1/events/stream sends the same as server-sent events")
    })?;
    let after = after(&headers, &position)?;
    let room = app.sockets.try_take(caller.scope.project()).map_err(ApiError::busy)?;
    app.fleet.recorded().await;
    let reader = app.events.reader(caller.scope, after, wanted(query)).await.map_err(ApiError::store)?;
    let key = caller.key;
    let upgrade =
        upgrade.max_message_size(LONGEST_MESSAGE).max_frame_size(LONGEST_MESSAGE).protocols([PROTOCOL]);
    Ok(upgrade.on_upgrade(move |socket| tell(app, socket, reader, key, room)))
}

/// Why a socket is closed.
enum Over {
    Stopping,
    Revoked,
    TooSlow,
    Gone,
}

async fn tell(app: Arc<App>, mut socket: WebSocket, mut reader: Reader, key: Secret, room: Place<ProjectId>) {
    let mut position = reader.position();
    let key = KeyWatch::new(&app.store, key);
    let over = follow(&mut socket, &mut reader, key, &mut position).await;
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

async fn follow(socket: &mut WebSocket, reader: &mut Reader, mut key: KeyWatch, position: &mut i64) -> Over {
    let mut heartbeat = interval(HEARTBEAT);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    heartbeat.reset();
    let mut heard = Instant::now();
    loop {
        let message = tokio::select! {
            event = reader.next() => match event {
                None => return Over::Stopping,
                Some(event) => {
                    let text = serde_json::to_string(&coffer_fleet::events::render(&event)).expect("an event is plain data");
                    *position = event.sequence - 1;
                    Some((Message::Text(text.into()), event.sequence))
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
                Some((Message::Ping(axum::body::Bytes::new()), *position))
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

//! Events over a WebSocket.

use std::time::Duration;

use coffer_core::event::{Event, OrphanRemoved};
use futures_util::{SinkExt, StreamExt};
use http::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::app::TestApp;

pub(crate) type Socket = WebSocketStream<TcpStream>;

async fn dial(
    app: &TestApp,
    query: &str,
    headers: &[(&str, &str)],
) -> Result<(Socket, http::HeaderMap), Error> {
    dial_at(app, "/api/v1/events/ws", query, headers).await
}

async fn dial_at(
    app: &TestApp,
    path: &str,
    query: &str,
    headers: &[(&str, &str)],
) -> Result<(Socket, http::HeaderMap), Error> {
    let mut request = format!("ws://{}{path}{query}", app.address()).into_client_request().unwrap();
    for (name, value) in headers {
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let stream = TcpStream::connect(app.address()).await.unwrap();
    let (socket, answer) = tokio_tungstenite::client_async(request, stream).await?;
    Ok((socket, answer.headers().clone()))
}

/// A socket of another route.
pub(crate) async fn open_at(app: &TestApp, path: &str, query: &str) -> Socket {
    dial_at(app, path, query, &[("x-api-key", &app.key)]).await.unwrap().0
}

async fn open(app: &TestApp, query: &str) -> Socket {
    dial(app, query, &[("x-api-key", &app.key)]).await.unwrap().0
}

/// How many event streams the server has open.
async fn readers(app: &TestApp, operator: &str) -> f64 {
    let text = app.as_key(operator, Method::GET, "/metrics", Value::Null).await.expect(200).text();
    let line = text.lines().find_map(|line| line.strip_prefix("coffer_event_readers "));
    line.expect("the figure is there").parse().unwrap()
}

async fn next(socket: &mut Socket) -> Message {
    let message =
        tokio::time::timeout(Duration::from_secs(20), socket.next()).await.expect("a message in time");
    message.expect("no end").unwrap()
}

pub(crate) async fn event(socket: &mut Socket) -> Value {
    loop {
        match next(socket).await {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Ping(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The code and the reason that the server closes with.
async fn closed(socket: &mut Socket) -> (u16, String) {
    loop {
        if let Message::Close(Some(frame)) = next(socket).await {
            return (frame.code.into(), frame.reason.to_string());
        }
    }
}

fn status(error: &Error) -> u16 {
    match error {
        Error::Http(answer) => answer.status().as_u16(),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_socket_tells_what_the_stream_tells_and_goes_on_where_it_was() {
    let mut app = TestApp::start().await;
    let mut socket = open(&app, "?after=0").await;
    let one = app.create(json!({})).await;
    let first = event(&mut socket).await;
    assert_eq!((&first["kind"], &first["sequence"]), (&json!("sandbox.creating"), &json!(1)));
    assert_eq!(event(&mut socket).await["kind"], "sandbox.running");
    // Messages of a client are ignored.
    socket.send(Message::text("hello")).await.unwrap();
    let listed = app.get("/api/v1/events").await.expect(200).json();
    assert_eq!(listed["items"][0], first, "the same shape");

    app.restart(async |_| ()).await;
    let (code, reason) = closed(&mut socket).await;
    assert_eq!((code, reason.ends_with("after=2")), (1001, true), "{reason}");
    let mut of_one = open(&app, &format!("?after=2&subject={one}&kind=sandbox.terminated")).await;
    let two = app.create(json!({})).await;
    for id in [&two, &one] {
        app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    }
    assert_eq!(event(&mut of_one).await["subject"], one.as_str());
}

#[tokio::test]
async fn a_key_is_shown_where_a_browser_can_and_looked_at_again() {
    let app = TestApp::start().await;
    let made = app.post("/api/v1/keys", json!({"name": "page", "role": "read"})).await.expect(201).json();
    let key = made["key"].as_str().unwrap();
    let protocols = format!("coffer.events.v1, coffer.key.{key}");
    let (mut socket, answer) = dial(&app, "", &[("sec-websocket-protocol", &protocols)]).await.unwrap();
    assert_eq!(answer["sec-websocket-protocol"], "coffer.events.v1", "the key does not come back");
    let (_by_query, _) = dial(&app, &format!("?api_key={key}"), &[]).await.unwrap();
    for (query, headers) in [("", vec![]), ("?api_key=e2b_0", vec![]), ("", vec![("x-api-key", "nobody")])] {
        assert_eq!(status(&dial(&app, query, &headers).await.unwrap_err()), 401, "{query}");
    }
    let bad = dial(&app, "?after=x", &[("x-api-key", key)]).await.unwrap_err();
    assert_eq!(status(&bad), 422);
    app.get("/api/v1/events/ws").await.expect(400);

    app.delete(&format!("/api/v1/keys/{}", made["id"].as_str().unwrap())).await.expect(204);
    assert_eq!(closed(&mut socket).await.0, 1008);
}

#[tokio::test]
async fn a_socket_shows_nothing_of_others() {
    let app = TestApp::start().await;
    let agent = app.post("/api/v1/agents", json!({"name": "a"})).await.expect(201).json();
    let agent = agent["id"].as_str().unwrap();
    let made = app.post("/api/v1/keys", json!({"name": "a", "role": "write", "agent_id": agent})).await;
    let agents_key = made.expect(201).json()["key"].as_str().unwrap().to_string();
    let (mut theirs, _) = dial(&app, "?after=0", &[("x-api-key", &app.other_key)]).await.unwrap();
    let (mut agents, _) = dial(&app, "?after=0", &[("x-api-key", &agents_key)]).await.unwrap();
    app.create(json!({})).await;
    let own = app.as_key(&agents_key, Method::POST, "/api/v1/sandboxes", json!({})).await.expect(201).json();
    assert_eq!(event(&mut agents).await["subject"], own["id"]);
    let other =
        app.as_key(&app.other_key, Method::POST, "/api/v1/sandboxes", json!({})).await.expect(201).json();
    assert_eq!(event(&mut theirs).await["subject"], other["id"]);
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_let_go_and_others_are_not_held_up() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let key = app.store.create_operator_key(&app.store.operator(), "root").await.unwrap();
    let before = readers(&app, key.reveal()).await;
    let large = "?kind=sandbox.orphan_removed";
    let (mut slow, mut quick) = (open(&app, large).await, open(&app, large).await);
    let operator = app.store.operator();
    let sandbox = id.parse().unwrap();
    let told = Event::SandboxOrphanRemoved(OrphanRemoved { had: vec!["x".repeat(200_000)] });
    // More than sockets and buffers hold.
    const MANY: usize = 120;
    let write = async {
        for _ in 0..MANY {
            app.store.record_event_of(&operator, sandbox, told.clone(), 1).await.unwrap();
        }
    };
    let read = async {
        for _ in 0..MANY {
            assert_eq!(event(&mut quick).await["kind"], "sandbox.orphan_removed");
        }
    };
    tokio::join!(write, read);
    // Read nothing until the server has let it go; then, whatever it still gets of events in progress, the end
    // comes.
    let let_go = async {
        while readers(&app, key.reveal()).await > before + 1.0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), let_go).await.expect("the slow one let go");
    let mut got = 0;
    let end = loop {
        match tokio::time::timeout(Duration::from_secs(20), slow.next()).await.expect("an end in time") {
            Some(Ok(Message::Text(_))) => got += 1,
            Some(Ok(Message::Close(frame))) => break frame.map(|frame| u16::from(frame.code)),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => break None,
        }
    };
    assert!(got < MANY, "a slow reader got everything");
    assert!(matches!(end, None | Some(1013)), "{end:?}");
}

#[tokio::test]
async fn a_sandboxs_socket_is_for_those_who_see_it() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let path = format!("/api/v1/sandboxes/{id}/ws");
    for (key, expected) in [(app.other_key.as_str(), 404), ("nonsense", 401)] {
        let refused = dial_at(&app, &path, "", &[("x-api-key", key)]).await.unwrap_err();
        assert_eq!(status(&refused), expected, "{key}");
    }
    // Browsers have no header for a key.
    let by_query = dial_at(&app, &path, &format!("?api_key={}&after=0-0", app.key), &[]).await;
    assert_eq!(event(&mut by_query.unwrap().0).await["kind"], "sandbox.creating");
    let bad = dial_at(&app, &path, "?after=x", &[("x-api-key", &app.key)]).await.unwrap_err();
    assert_eq!(status(&bad), 400);
    app.get(&path).await.expect(400);
}

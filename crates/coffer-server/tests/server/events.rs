//! The event log, read page by page and as it happens.

use std::time::{Duration, Instant};

use coffer_core::event::{Event, SecretVersion};
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::app::TestApp;

/// A reader of the stream.
pub(crate) struct Reader {
    body: hyper::body::Incoming,
    text: String,
}

impl Reader {
    pub(crate) async fn open(app: &TestApp, query: &str, last: Option<i64>) -> Self {
        let mut request = app.request(Method::GET, &format!("/api/v1/events/stream{query}"));
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        Self::of(app, request).await
    }

    pub(crate) async fn of(app: &TestApp, request: http::request::Builder) -> Self {
        let stream = tokio::net::TcpStream::connect(app.address()).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = request.body(Full::<bytes::Bytes>::default()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["content-type"]),
            (200, &http::HeaderValue::from_static("text/event-stream"))
        );
        Self { body: response.into_body(), text: String::new() }
    }

    /// More of the stream; `None` when the server ends it.
    async fn frame(&mut self) -> Option<String> {
        let frame = tokio::time::timeout(Duration::from_secs(20), self.body.frame()).await;
        let frame = frame.expect("something in time")?.ok()?;
        Some(std::str::from_utf8(frame.data_ref().unwrap()).unwrap().to_string())
    }

    /// The next event; `None` when the server ends the stream.
    pub(crate) async fn next(&mut self) -> Option<(i64, String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field =
                    |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                let read = field("id:").map(|id| {
                    (
                        id.parse().unwrap(),
                        field("event:").unwrap().to_string(),
                        serde_json::from_str(field("data:").unwrap()).unwrap(),
                    )
                });
                self.text = rest.to_string();
                if read.is_some() {
                    return read;
                }
                continue;
            }
            let more = self.frame().await?;
            self.text += &more;
        }
    }
}

#[tokio::test]
async fn a_reader_that_comes_back_misses_nothing_even_over_a_restart() {
    let mut app = TestApp::start().await;
    let mut reader = Reader::open(&app, "", Some(0)).await;
    let mut sequences = Vec::new();
    let first = app.create(json!({})).await;
    for expected in ["sandbox.creating", "sandbox.running"] {
        let (sequence, kind, event) = reader.next().await.unwrap();
        assert_eq!((kind.as_str(), event["subject"].as_str()), (expected, Some(first.as_str())));
        sequences.push(sequence);
    }
    app.restart(async |_| ()).await;
    assert!(reader.next().await.is_none(), "a server that stops ends its streams");
    app.delete(&format!("/sandboxes/{first}")).await.expect(204);
    let mut reader = Reader::open(&app, "", sequences.last().copied()).await;
    let second = app.create(json!({})).await;
    for _ in 0..3 {
        sequences.push(reader.next().await.unwrap().0);
    }
    assert_eq!(sequences, [1, 2, 3, 4, 5], "{second}");
}

#[tokio::test]
async fn readers_are_told_what_they_want_and_may_see() {
    let app = TestApp::start().await;
    let (one, other) = (app.create(json!({})).await, app.create(json!({})).await);
    let mut of_one = Reader::open(&app, &format!("?subject={one}"), None).await;
    let mut ends = Reader::open(&app, "?kind=sandbox.terminated,task.*&after=0", None).await;
    let stranger = app.as_key(&app.other_key, Method::GET, "/api/v1/events", Value::Null).await.expect(200);
    assert_eq!(stranger.json()["items"], json!([]));
    for id in [&other, &one] {
        app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    }
    assert_eq!(of_one.next().await.unwrap().1, "sandbox.terminated");
    for expected in [&other, &one] {
        assert_eq!(ends.next().await.unwrap().2["subject"].as_str(), Some(expected.as_str()));
    }
    let page = app.get("/api/v1/events?limit=2").await.expect(200).json();
    let next = page["next"].as_str().unwrap();
    let rest =
        app.get(&format!("/api/v1/events?cursor={next}&kind=sandbox.terminated")).await.expect(200).json();
    assert_eq!(rest["items"].as_array().unwrap().len(), 2, "{rest}");
    app.send(
        app.request(Method::GET, "/api/v1/events/stream")
            .header("last-event-id", "x")
            .body(Full::default())
            .unwrap(),
    )
    .await
    .expect(400);
}

/// An event that can be distinguished from others of its kind.
fn numbered(number: i64) -> Event {
    Event::SecretReplaced(SecretVersion { name: "counter".into(), version: number })
}

/// Matching events that are far apart in the log are on one page.
#[tokio::test]
async fn a_page_of_what_is_about_one_thing_is_full() {
    let app = TestApp::start().await;
    let scope = app.scope().await;
    let (one, other) = (app.create(json!({})).await, app.create(json!({})).await);
    app.get("/api/v1/events").await.expect(200);
    for number in 0..60 {
        let about = if number % 20 == 0 { &one } else { &other };
        app.store.record_event_of(&scope, about.parse().unwrap(), numbered(number), number).await.unwrap();
    }
    let page = async |query: &str| {
        let page = app.get(&format!("/api/v1/events?{query}")).await.expect(200).json();
        let items = page["items"].as_array().unwrap().clone();
        (items, page["next"].as_str().map(String::from))
    };
    let (items, next) = page(&format!("subject={one}&limit=3")).await;
    let kinds: Vec<_> = items.iter().map(|item| item["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["sandbox.creating", "sandbox.running", "secret.replaced"]);
    let (rest, end) = page(&format!("subject={one}&limit=3&cursor={}", next.unwrap())).await;
    let numbers: Vec<_> = rest.iter().map(|item| item["payload"]["version"].as_i64().unwrap()).collect();
    assert_eq!((numbers, end), (vec![20, 40], None));
    let (few, more) = page(&format!("subject={one}&kind=secret.*&limit=2")).await;
    assert_eq!((few.len(), more.is_some()), (2, true));
    assert_eq!(page("kind=sandbox.running&limit=2").await.0.len(), 2);
    assert_eq!(page("subject=nobody").await, (Vec::new(), None));
    let kinds = ["a"; 101].join(",");
    app.get(&format!("/api/v1/events?kind={kinds}")).await.expect(422);
    let theirs = format!("/api/v1/events?subject={one}");
    let theirs = app.as_key(&app.other_key, Method::GET, &theirs, Value::Null).await.expect(200).json();
    assert_eq!(theirs["items"], json!([]));
}

#[tokio::test]
async fn a_revoked_key_ends_its_streams() {
    let app = TestApp::start().await;
    let sandbox = app.create(json!({})).await;
    let made = app.post("/api/v1/keys", json!({"name": "r", "role": "read"})).await.expect(201).json();
    let mut streams = Vec::new();
    for path in ["/api/v1/events/stream?after=0", &format!("/api/v1/sandboxes/{sandbox}/stream?after=0-0")] {
        let request = http::Request::get(path).header("host", app.address().to_string());
        let mut reader = Reader::of(&app, request.header("x-api-key", made["key"].as_str().unwrap())).await;
        assert!(reader.frame().await.is_some(), "it has begun");
        streams.push(reader);
    }
    app.delete(&format!("/api/v1/keys/{}", made["id"].as_str().unwrap())).await.expect(204);
    for mut reader in streams {
        while reader.frame().await.is_some() {}
    }
}

#[tokio::test]
async fn many_readers_far_behind_and_near_get_the_same() {
    let app = TestApp::start().await;
    let scope = app.scope().await;
    let id = app.create(json!({})).await.parse().unwrap();
    // The events of its creation come first.
    app.get("/api/v1/events").await.expect(200);
    let record = |number: i64| app.store.record_event_of(&scope, id, numbered(number), number);
    for number in 0..1500 {
        record(number).await.unwrap();
    }
    let mut readers = Vec::new();
    for last in [0, 2, 700, 1501] {
        readers.push((last, Reader::open(&app, "?kind=secret.*", Some(last)).await));
    }
    for number in 1500..1600 {
        record(number).await.unwrap();
    }
    for (last, reader) in &mut readers {
        let first = (*last + 1).max(3);
        for expected in first..=1602 {
            let (sequence, _, event) = reader.next().await.unwrap();
            assert_eq!((sequence, event["payload"]["version"].as_i64()), (expected, Some(expected - 3)));
        }
    }
}

/// More streams than database connections, each of which reads and checks its key.
#[tokio::test]
async fn a_crowd_of_streams_leaves_others_their_turn() {
    let app = TestApp::start().await;
    let scope = app.scope().await;
    let sandbox = app.create(json!({})).await;
    let id = sandbox.parse().unwrap();
    let mut readers = Vec::new();
    for _ in 0..100 {
        let path = format!("/api/v1/sandboxes/{sandbox}/stream?after=0-0");
        readers.push(Reader::of(&app, app.request(Method::GET, &path)).await);
    }
    // Longer than the interval of key checks.
    let until = Instant::now() + Duration::from_secs(8);
    let mut number = 0;
    while Instant::now() < until {
        number += 1;
        app.store.record_event_of(&scope, id, numbered(number), number).await.unwrap();
        app.get(&format!("/api/v1/events?cursor={number}")).await.expect(200);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let last = format!("\"version\":{number}}}");
    for reader in &mut readers {
        while !reader.text.contains(&last) {
            let more = reader.frame().await.expect("it goes on");
            reader.text.push_str(&more);
        }
    }
}

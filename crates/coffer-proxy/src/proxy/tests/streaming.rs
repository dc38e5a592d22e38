//! Bodies pass as they arrive, in both directions, whatever their form.

use super::*;
use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;

/// A response body that the test fills.
fn fed() -> (mpsc::Sender<&'static str>, Body) {
    let (feed, fed) = mpsc::channel::<&'static str>(1);
    let fed = futures_util::stream::unfold(fed, |mut fed| async {
        let piece = fed.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(piece.as_bytes()))), fed))
    });
    (feed, Body::new(StreamBody::new(fed)))
}

/// A body that returns every piece as it comes.
fn echo(request: Request<Incoming>) -> Body {
    let pieces = request.into_body().into_data_stream();
    Body::from_stream(pieces)
}

#[tokio::test]
async fn the_first_piece_arrives_before_the_last_is_made() {
    let world = World::new().await;
    let (feed, body) = fed();
    let body = Arc::new(Mutex::new(Some(body)));
    Agentd::start(world.socket(), move |_| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Response::new(body) }
    });
    let mut stream = world.connect().await;
    stream.write_all(format!("{}\r\n", world.line("GET", "/", 49983)).as_bytes()).await.unwrap();
    let head = read_until(&mut stream, "\r\n\r\n").await.to_ascii_lowercase();
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    for piece in ["one", "two", "three"] {
        feed.send(piece).await.unwrap();
        let expected = format!("{:X}\r\n{piece}\r\n", piece.len());
        assert_eq!(read_until(&mut stream, &expected).await, expected, "each piece in a chunk of its own");
    }
    drop(feed);
    read_until(&mut stream, "0\r\n\r\n").await;
}

#[tokio::test]
async fn pieces_of_a_request_are_answered_while_it_lasts() {
    let world = World::new().await;
    let echoing = |request| async { Response::new(echo(request)) };
    let inside: Port = Arc::new(move |stream| Box::pin(http(stream, echoing)));
    Agentd::with_ports(world.socket(), echoing, HashMap::from([(3000, inside)]));
    for port in [49983, 3000] {
        let mut stream = world.connect().await;
        let head = format!("{}Transfer-Encoding: chunked\r\n\r\n", world.line("POST", "/", port));
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut first = true;
        for piece in ["alpha", "beta", "gamma"] {
            let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
            stream.write_all(chunk.as_bytes()).await.unwrap();
            if std::mem::take(&mut first) {
                read_until(&mut stream, "\r\n\r\n").await;
            }
            let expected = format!("{:X}\r\n{piece}\r\n", piece.len());
            assert_eq!(read_until(&mut stream, &expected).await, expected);
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
        read_until(&mut stream, "0\r\n\r\n").await;
    }
}

#[tokio::test]
async fn requests_of_one_client_share_a_connection_to_agentd() {
    let world = World::new().await;
    let agentd = Agentd::start(world.socket(), show);
    let mut stream = world.connect().await;
    for round in 0..50 {
        let request = format!("{}\r\n", world.line("GET", &format!("/{round}"), 49983));
        stream.write_all(request.as_bytes()).await.unwrap();
        let reply = read_until(&mut stream, ".test\n").await;
        assert!(reply.contains(&format!("GET /{round}\n")), "{reply}");
        // The driver of the connection is another task: let it see the end.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(agentd.requests(), 50);
    assert_eq!(agentd.connections(), 1);
}

#[tokio::test]
async fn a_connection_that_agentd_closed_is_not_a_failure() {
    let world = World::new().await;
    Agentd::start(world.socket(), |_| async {
        Response::builder().header("connection", "close").body(Body::from("ok")).unwrap()
    });
    let mut stream = world.connect().await;
    for _ in 0..20 {
        let request = format!("{}\r\n", world.line("GET", "/", 49983));
        stream.write_all(request.as_bytes()).await.unwrap();
        let reply = read_until(&mut stream, "\r\n\r\nok").await;
        assert!(reply.starts_with("HTTP/1.1 200 OK\r\n"), "{reply}");
        assert!(!reply.contains("close"), "the client's own connection lives on: {reply}");
    }
}

#[tokio::test]
async fn answers_without_a_body_stay_without() {
    let world = World::new().await;
    Agentd::start(world.socket(), |request: Request<Incoming>| async move {
        let response = Response::builder();
        match request.uri().path() {
            "/health" => response.status(204).body(Body::empty()),
            "/same" => response.status(304).header("etag", "\"x\"").body(Body::empty()),
            _ => response.header("content-length", "12345").body(Body::empty()),
        }
        .unwrap()
    });
    let reply = world.ask("GET", "/health", 49983, "\r\n").await;
    assert_eq!((reply.status, &*reply.body, reply.header("content-length")), (204, "", None));
    let reply = world.ask("GET", "/same", 49983, "\r\n").await;
    assert_eq!((reply.status, &*reply.body, reply.header("etag")), (304, "", Some("\"x\"")));
    let reply = world.ask("HEAD", "/files", 49983, "\r\n").await;
    assert_eq!((reply.status, &*reply.body, reply.header("content-length")), (200, "", Some("12345")));
}

#[tokio::test]
async fn lengths_pass_unchanged() {
    let world = World::new().await;
    Agentd::start(world.socket(), |request: Request<Incoming>| async move {
        let length = request.headers().get("content-length").map(|value| value.to_str().unwrap().to_owned());
        let chunked = request.headers().contains_key("transfer-encoding");
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(Body::from(format!("{length:?} {chunked} {}", body.len())))
    });
    let reply = world.ask("POST", "/", 49983, "Content-Length: 5\r\n\r\nhello").await;
    assert_eq!(reply.body, "Some(\"5\") false 5");
    assert_eq!(reply.header("content-length"), Some("17"));
    let reply =
        world.ask("POST", "/", 49983, "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n").await;
    assert_eq!(reply.body, "None true 5");
    let reply = world.ask("POST", "/", 49983, "Content-Length: 0\r\n\r\n").await;
    assert_eq!(reply.body, "Some(\"0\") false 0");
    let reply = world.ask("GET", "/", 49983, "\r\n").await;
    assert_eq!(reply.body, "None false 0");
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let world = World::new().await;
    Agentd::start(world.socket(), |request: Request<Incoming>| async move {
        let collected = request.into_body().collect().await.unwrap();
        let sum = collected.trailers().and_then(|trailers| trailers.get("x-sum").cloned());
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-back", sum.expect("the request's trailer"));
        let frames = [Ok::<_, Infallible>(Frame::data(Bytes::from("body"))), Ok(Frame::trailers(trailers))];
        let body = StreamBody::new(futures_util::stream::iter(frames).boxed());
        Response::builder().header("trailer", "x-back").body(Body::new(body)).unwrap()
    });
    let rest = "TE: trailers\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n\
                2\r\nab\r\n0\r\nx-sum: 42\r\n\r\n";
    let request = format!("{}{rest}", world.line("POST", "/", 49983));
    let mut stream = world.connect().await;
    stream.write_all(request.as_bytes()).await.unwrap();
    let reply = read_until(&mut stream, "x-back: 42\r\n\r\n").await;
    assert!(reply.contains("4\r\nbody\r\n0\r\n"), "{reply}");
}

#[tokio::test]
async fn a_client_that_waits_for_100_gets_the_one_from_inside() {
    let world = World::new().await;
    Agentd::start(world.socket(), |request: Request<Incoming>| async move {
        if request.uri().path() == "/refused" {
            return Response::builder().status(401).body(Body::from("no")).unwrap();
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(Body::from(body))
    });
    let ask = |path: &str| {
        let line = world.line("POST", path, 49983);
        format!("{line}Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    };
    let mut stream = world.connect().await;
    stream.write_all(ask("/taken").as_bytes()).await.unwrap();
    read_until(&mut stream, "HTTP/1.1 100 Continue\r\n\r\n").await;
    stream.write_all(b"hello").await.unwrap();
    assert!(read_until(&mut stream, "\r\n\r\nhello").await.starts_with("HTTP/1.1 200 OK"));

    let mut stream = world.connect().await;
    stream.write_all(ask("/refused").as_bytes()).await.unwrap();
    let reply = read_until(&mut stream, "\r\n\r\nno").await;
    assert!(reply.starts_with("HTTP/1.1 401"), "no 100 before a refusal: {reply}");
}

#[tokio::test]
async fn websockets_pass_through_a_tunnel() {
    let world = World::new().await;
    Agentd::with_port(world.socket(), |stream| {
        http(stream, |mut request: Request<Incoming>| async move {
            assert_eq!(request.headers()["upgrade"], "websocket");
            assert_eq!(request.headers()["connection"], "upgrade");
            assert_eq!(request.headers()["sec-websocket-key"], "dGhlIHNhbXBsZSBub25jZQ==");
            tokio::spawn(async move {
                let stream = hyper::upgrade::on(&mut request).await.unwrap();
                let (mut read, mut write) = tokio::io::split(TokioIo::new(stream));
                tokio::io::copy(&mut read, &mut write).await.unwrap();
                write.write_all(b"bye").await.unwrap();
                write.shutdown().await.unwrap();
            });
            let response = Response::builder().status(101);
            let response = response.header("connection", "Upgrade").header("upgrade", "websocket");
            response
                .header("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
                .body(Body::empty())
                .unwrap()
        })
    });
    let mut stream = world.connect().await;
    let request = format!(
        "{}Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nearly",
        world.line("GET", "/ws", 3000)
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = read_until(&mut stream, "\r\n\r\n").await.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(head.contains("upgrade: websocket") && head.contains("connection: upgrade"), "{head}");
    assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
    read_until(&mut stream, "early").await;
    for message in ["\u{1}\u{2}frame", "another"] {
        tokio::time::sleep(silence()).await;
        stream.write_all(message.as_bytes()).await.unwrap();
        assert_eq!(read_until(&mut stream, message).await, message);
    }
    stream.shutdown().await.unwrap();
    let mut rest = String::new();
    soon(stream.read_to_string(&mut rest)).await.unwrap();
    assert_eq!(rest, "bye", "each direction ends by itself");
}

/// Longer than the limit of a request's head in tests, which must not count here. Real time, since
/// real sockets are in play; `COFFER_SILENCE_S` sets the duration.
fn silence() -> Duration {
    let seconds = std::env::var("COFFER_SILENCE_S").ok().and_then(|text| text.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(1.5))
}

#[tokio::test]
async fn a_silent_stream_is_left_alone() {
    let world = World::new().await;
    let (feed, body) = fed();
    let body = Arc::new(Mutex::new(Some(body)));
    Agentd::start(world.socket(), move |_| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Response::new(body) }
    });
    let mut stream = world.connect().await;
    stream.write_all(format!("{}\r\n", world.line("GET", "/", 49983)).as_bytes()).await.unwrap();
    read_until(&mut stream, "\r\n\r\n").await;
    feed.send("before").await.unwrap();
    read_until(&mut stream, "before\r\n").await;
    tokio::time::sleep(silence()).await;
    feed.send("after").await.unwrap();
    read_until(&mut stream, "after\r\n").await;
}

#[tokio::test]
async fn an_early_answer_reaches_a_client_that_is_still_sending() {
    const SENT: usize = 48 << 20;
    // Refuses at once and closes; refuses at once and keeps reading a little.
    for reads in [0, 1 << 20] {
        let world = World::new().await;
        raw_agentd(world.socket().to_owned(), move |mut stream| async move {
            read_until(&mut stream, "\r\n\r\n").await;
            let full = b"HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 4\r\n\r\nfull";
            stream.write_all(full).await.unwrap();
            let mut sink = vec![0; reads];
            let _ = stream.read_exact(&mut sink).await;
        });
        let mut stream = world.connect().await;
        let head = format!("{}Content-Length: {SENT}\r\n\r\n", world.line("POST", "/files", 49983));
        stream.write_all(head.as_bytes()).await.unwrap();
        // The strictest client: it does not read the answer before everything is sent.
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..SENT / piece.len() {
            soon(stream.write_all(&piece)).await.expect("the server goes on reading");
        }
        let reply = read_until(&mut stream, "full").await;
        assert!(reply.starts_with("HTTP/1.1 507"), "{reply}");
        // The connection can be used for another request.
        world.route(coffer_guest::Route::NotFound);
        stream.write_all(format!("{}\r\n", world.line("GET", "/", 49983)).as_bytes()).await.unwrap();
        read_until(&mut stream, "\"code\":502}").await;
    }
}

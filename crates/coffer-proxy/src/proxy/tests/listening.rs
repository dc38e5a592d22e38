//! The client's own connection: how long it may take, and how it ends.

use super::*;

#[tokio::test]
async fn a_head_that_trickles_is_cut_off() {
    let world = World::new().await;
    Agentd::start(world.socket(), show);
    let mut silent = world.connect().await;
    let mut trickling = world.connect().await;
    let mut second = world.connect().await;
    // The pause between two requests is not part of a head, which may take a second in tests: so this waits longer.
    second.write_all(format!("{}\r\n", world.line("GET", "/", 49983)).as_bytes()).await.unwrap();
    read_until(&mut second, ".test\n").await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    second.write_all(format!("{}\r\n", world.line("GET", "/", 49983)).as_bytes()).await.unwrap();
    read_until(&mut second, ".test\n").await;
    second.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();

    let trickle = async {
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if trickling.write_all(b"x").await.is_err() {
                return;
            }
        }
        panic!("a head may take ten seconds");
    };
    soon(trickle).await;
    for stream in [&mut silent, &mut second] {
        let mut rest = Vec::new();
        let _ = soon(stream.read_to_end(&mut rest)).await;
        assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    }
}

#[tokio::test]
async fn a_slow_body_is_not_a_slow_head() {
    let world = World::new().await;
    Agentd::start(world.socket(), |request: Request<Incoming>| async move {
        let body = http_body_util::BodyExt::collect(request.into_body()).await.unwrap().to_bytes();
        Response::new(Body::from(body))
    });
    let mut stream = world.connect().await;
    let head = format!("{}Content-Length: 4\r\n\r\nab", world.line("POST", "/", 49983));
    stream.write_all(head.as_bytes()).await.unwrap();
    // Longer than a head may take.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    stream.write_all(b"cd").await.unwrap();
    read_until(&mut stream, "\r\n\r\nabcd").await;
}

#[tokio::test]
async fn a_stop_lets_requests_finish_and_resets_what_does_not() {
    let world = World::new().await;
    Agentd::start(world.socket(), |request: Request<Incoming>| async move {
        if request.uri().path() == "/endless" {
            let first = bytes::Bytes::from("begun");
            let first = futures_util::stream::iter([Ok::<_, Infallible>(first)]);
            let endless = futures_util::StreamExt::chain(first, futures_util::stream::pending());
            return Response::new(Body::from_stream(endless));
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        Response::new(Body::from("done"))
    });
    let (mut short, mut endless, mut idle) =
        (world.connect().await, world.connect().await, world.connect().await);
    short.write_all(format!("{}\r\n", world.line("GET", "/", 49983)).as_bytes()).await.unwrap();
    endless.write_all(format!("{}\r\n", world.line("GET", "/endless", 49983)).as_bytes()).await.unwrap();
    read_until(&mut endless, "begun\r\n").await;
    world.stop.cancel();
    let mut rest = String::new();
    soon(short.read_to_string(&mut rest)).await.unwrap();
    assert!(rest.ends_with("\r\n\r\ndone") && rest.contains("connection: close"), "{rest}");
    let mut rest = String::new();
    soon(idle.read_to_string(&mut rest)).await.unwrap();
    assert_eq!(rest, "");
    expect_reset(&mut endless).await;
}

#[tokio::test]
async fn a_head_may_be_only_so_large() {
    let world = World::new().await;
    let agentd = Agentd::start(world.socket(), show);
    let large = format!("X-Large: {}\r\n\r\n", "y".repeat(40_000));
    assert_eq!(world.ask("GET", "/", 49983, &large).await.status, 200);
    let mut stream = world.connect().await;
    let larger = format!("{}X-Large: {}\r\n\r\n", world.line("GET", "/", 49983), "y".repeat(100_000));
    let _ = stream.write_all(larger.as_bytes()).await;
    let mut rest = Vec::new();
    let _ = soon(stream.read_to_end(&mut rest)).await;
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&rest));
    assert_eq!(agentd.requests(), 1);
}

/// Clients send their next request on the same connection, and must not meet one that is being closed.
#[tokio::test]
async fn a_body_that_nobody_read_does_not_end_the_connection() {
    let world = World::new().await;
    let body = "x".repeat(300_000);
    let mut stream = world.connect().await;
    for host in ["localhost", "49983-nosuch.test", "localhost", "49983-nosuch.test"] {
        let head = format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        let end = if host == "localhost" { "the API" } else { "502}" };
        let answer = read_until(&mut stream, end).await.to_ascii_lowercase();
        assert!(!answer.contains("connection: close"), "{answer}");
    }
}

//! Floods of unauthenticated connections: what they can make the server hold and do.

use super::*;

/// Whether the server still holds a connection open, asked without waiting.
fn is_open(stream: &TcpStream) -> bool {
    let mut byte = [0];
    match stream.try_read(&mut byte) {
        Ok(0) => false,
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

/// Waits until `count` of the connections were closed by the server.
async fn closed(streams: &[TcpStream], count: usize) {
    soon(async {
        while streams.iter().filter(|stream| !is_open(stream)).count() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_heads_are_bounded_together() {
    const LARGE: usize = 40;
    let world = World::new().await;
    Agentd::start(world.socket(), show);
    let half = format!("GET / HTTP/1.1\r\nX-Half: {}", "y".repeat(60_000));
    let mut small = Vec::new();
    for _ in 0..8 {
        let mut stream = world.connect().await;
        stream.write_all(&half.as_bytes()[..2_000]).await.unwrap();
        small.push(stream);
    }
    let mut large = Vec::new();
    for _ in 0..LARGE {
        let mut stream = world.connect().await;
        let _ = stream.write_all(half.as_bytes()).await;
        large.push(stream);
    }
    // 256 KiB are four of them, and four more that were just being read.
    closed(&large, LARGE - 8).await;
    // By age alone the small ones, which came first, would have been closed first.
    assert!(small.iter().all(is_open), "small unfinished heads were cut off");
    // Ordinary requests are answered meanwhile.
    assert_eq!(world.ask("GET", "/", 49983, "\r\n").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_buffers_are_not_kept_for_idle_clients() {
    let world = World::new().await;
    Agentd::start(world.socket(), |request: Request<Incoming>| async move {
        let _ = http_body_util::BodyExt::collect(request.into_body()).await;
        Response::new(Body::from("taken"))
    });
    let body = vec![b'x'; 4 << 20];
    let head = format!("{}Content-Length: {}\r\n\r\n", world.line("POST", "/", 49983), body.len());
    let mut answered = Vec::new();
    let mut idle = Vec::new();
    for _ in 0..12 {
        let mut stream = world.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&body).await.unwrap();
        answered.push(read_until(&mut stream, "taken").await);
        idle.push(stream);
    }
    let kept =
        answered.iter().filter(|answer| !answer.to_ascii_lowercase().contains("connection: close")).count();
    assert!((1..=4).contains(&kept), "{kept} of 12 clients were kept with large buffers");
    closed(&idle, 12 - kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_uploads_are_not_all_read_away() {
    let world = World::new().await;
    let request = "POST / HTTP/1.1\r\nHost: 80-nosuch.test\r\nContent-Length: 1000000\r\n\r\nx";
    let mut streams = Vec::new();
    for _ in 0..300 {
        let mut stream = world.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        assert!(read_until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 502"));
        streams.push(stream);
    }
    // The server drains the bodies of 256 of them; it closes the others once their answer is sent.
    for stream in &mut streams {
        let _ = stream.try_read(&mut [0; 4096]);
    }
    closed(&streams, 44).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guessed_signatures_cost_only_so_much() {
    let world = World::new().await;
    Agentd::start(world.socket(), show);
    let strangers = (0..2_000).map(|n| (SandboxId::generate(), format!("token {n}")));
    world.book.secured.lock().unwrap().extend(strangers);
    let guess =
        "GET /files?path=a&signature=v1_AAAA HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut statuses = Vec::new();
    for _ in 0..200 {
        let reply = world.ask_raw(guess).await;
        if reply.status == 429 {
            assert_eq!(reply.header("retry-after"), Some("1"));
        }
        statuses.push(reply.status);
    }
    assert_eq!(statuses[0], 401);
    assert!(statuses.contains(&429), "200 guesses at 2,000 sandboxes were all looked at");
    assert!(statuses.iter().all(|status| matches!(status, 401 | 429)), "{statuses:?}");
    // Requests that name a sandbox are not affected.
    assert_eq!(world.ask("GET", "/files?path=a&signature=v1_AAAA", 49983, "\r\n").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_read_nothing_are_not_all_waited_for() {
    let world = World::new().await;
    Agentd::start(world.socket(), |request: Request<Incoming>| async move {
        let piece = bytes::Bytes::from_static(&[7; 64 * 1024]);
        if request.uri().path() == "/slow" {
            let silence = futures_util::stream::pending::<Result<bytes::Bytes, Infallible>>();
            return Response::new(Body::from_stream(silence));
        }
        let endless = futures_util::stream::repeat_with(move || Ok::<_, Infallible>(piece.clone()));
        Response::new(Body::from_stream(endless))
    });
    let ask = |path: &str| format!("{}\r\n", world.line("GET", path, 49983));
    let mut silent = world.connect().await;
    silent.write_all(ask("/slow").as_bytes()).await.unwrap();
    read_until(&mut silent, "\r\n\r\n").await;
    let mut reading = world.connect().await;
    reading.write_all(ask("/").as_bytes()).await.unwrap();
    let reader = tokio::spawn(async move {
        let mut sink = vec![0; 64 * 1024];
        while reading.read(&mut sink).await.is_ok_and(|read| read > 0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut unread = Vec::new();
    for _ in 0..16 {
        let mut stream = world.connect().await;
        stream.write_all(ask("/").as_bytes()).await.unwrap();
        // Only the head: it shows that this one is counted, and then nothing more is read.
        read_until(&mut stream, "\r\n\r\n").await;
        unread.push(stream);
    }
    // The reader, the one that waits for the sandbox, and four that do not read.
    let lanes = &world.front.proxy.lanes;
    soon(async {
        while lanes.open() > 6 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(lanes.open(), 6);
    assert!(!reader.is_finished(), "who reads slowly is waited for");
    assert!(is_open(&silent), "and so is who has nothing to read");
    reader.abort();
}

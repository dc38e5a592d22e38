//! Hostile sandboxes and clients, and other protocols.

use super::*;

/// Answers every request with `bytes`, then waits for the other side to close.
fn answering(world: &World, bytes: Vec<u8>) {
    raw_agentd(world.socket().to_owned(), move |mut stream| {
        let bytes = bytes.clone();
        async move {
            read_until(&mut stream, "\r\n\r\n").await;
            let _ = stream.write_all(&bytes).await;
            let _ = stream.read(&mut [0; 1]).await;
        }
    });
}

#[tokio::test]
async fn an_answer_that_is_not_http_is_a_502() {
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x-a: 1\r\n".repeat(5_000));
    let large = format!("HTTP/1.1 200 OK\r\nx-a: {}\r\n\r\n", "y".repeat(200_000));
    let cases: [(&str, Vec<u8>); 11] = [
        ("a banner", b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()),
        ("noise", (0..=255).cycle().take(4096).collect()),
        ("a future version", b"HTTP/9.9 200 OK\r\n\r\n".to_vec()),
        ("no such status", b"HTTP/1.1 99999 OK\r\n\r\n".to_vec()),
        ("too many headers", many.into_bytes()),
        ("too large a header", large.into_bytes()),
        ("two lengths", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabcde".to_vec()),
        ("a folded header", b"HTTP/1.1 200 OK\r\nx-a: 1\r\n folded\r\nContent-Length: 0\r\n\r\n".to_vec()),
        ("a header with a NUL", b"HTTP/1.1 200 OK\r\nx-a: \0\r\nContent-Length: 0\r\n\r\n".to_vec()),
        (
            "an upgrade that was not requested",
            b"HTTP/1.1 101 OK\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n".to_vec(),
        ),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
    ];
    for (what, bytes) in cases {
        let world = World::new().await;
        answering(&world, bytes);
        let reply = world.ask("GET", "/", 49983, "\r\n").await;
        assert_eq!(reply.status, 502, "{what}: {reply:?}");
        assert!(reply.body.contains("something other than HTTP"), "{what}: {}", reply.body);
    }
}

#[tokio::test]
async fn a_server_that_speaks_first_is_a_502() {
    let world = World::new().await;
    raw_agentd(world.socket().to_owned(), |mut stream| async move {
        let asked = read_until(&mut stream, "\r\n\r\n").await;
        assert_eq!(asked, "CONNECT 127.0.0.1:3306 HTTP/1.1\r\nHost: 127.0.0.1:3306\r\n\r\n");
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n").await;
        let _ = stream.read(&mut [0; 1]).await;
    });
    assert_eq!(world.ask("GET", "/", 3306, "\r\n").await.status, 502);
}

#[tokio::test]
async fn a_tunnel_that_never_opens_is_given_up() {
    for bytes in [&b"nonsense\r\n\r\n"[..], &[b'x'; 100_000], b"HTTP/1.1 500 x\r\n\r\n", b""] {
        let world = World::new().await;
        raw_agentd(world.socket().to_owned(), move |mut stream| async move {
            read_until(&mut stream, "\r\n\r\n").await;
            let _ = stream.write_all(bytes).await;
        });
        let reply = world.ask("GET", "/", 3000, "\r\n").await;
        assert_eq!(reply.status, 502, "{:?}", &bytes[..bytes.len().min(20)]);
    }
}

#[tokio::test]
async fn a_length_beside_chunks_does_not_reach_the_client() {
    let world = World::new().await;
    let both = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n\
                5\r\nhello\r\n0\r\n\r\n";
    answering(&world, both.into());
    let reply = world.ask("GET", "/", 49983, "\r\n").await;
    assert_eq!(reply.header("content-length"), None);
    assert_eq!(reply.body, "5\r\nhello\r\n0\r\n\r\n");
}

#[tokio::test]
async fn words_after_an_answer_are_not_the_next_answer() {
    let world = World::new().await;
    let two = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok\
               HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged";
    answering(&world, two.into());
    for _ in 0..5 {
        let reply = world.ask("GET", "/", 49983, "\r\n").await;
        assert_eq!((reply.status, &*reply.body), (200, "ok"));
    }
}

#[tokio::test]
async fn no_second_request_hides_in_a_first() {
    let hidden = "POST /init HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    let length = hidden.len();
    for framing in [
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: xchunked\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: chunked, identity\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("Transfer-Encoding : chunked\r\nContent-Length: {length}\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Content-Length: 0\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("Content-Length: +{length}\r\n\r\n{hidden}"),
        format!("Connection: content-length\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("X: y\r\n\tContent-Length: 0\r\n\r\n{hidden}"),
    ] {
        let world = World::new().await;
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let agentd_saw = seen.clone();
        Agentd::start(world.socket(), move |request: Request<Incoming>| {
            agentd_saw.lock().unwrap().push(request.uri().path().to_owned());
            async move {
                let _ = http_body_util::BodyExt::collect(request.into_body()).await;
                Response::new(Body::empty())
            }
        });
        let mut stream = world.connect().await;
        let request = format!("{}{framing}", world.line("POST", "/first", 49983));
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answers = Vec::new();
        let _ = soon(stream.read_to_end(&mut answers)).await;
        let seen = seen.lock().unwrap().clone();
        assert!(seen.is_empty() || seen == ["/first"], "{framing:?} reached agentd as {seen:?}");
    }
}

#[tokio::test]
async fn a_header_cannot_bring_another_inside() {
    let world = World::new().await;
    Agentd::with_port(world.socket(), |stream| http(stream, show));
    let rest = "X-Forwarded-For: 1.2.3.4\r\nX-A: b\rc: d\r\n\r\n";
    assert_eq!(world.ask("GET", "/", 3000, rest).await.status, 400);
    let reply = world.ask("GET", "/%0d%0aX-B:%20c", 3000, "\r\n").await;
    assert!(reply.body.starts_with("GET /%0d%0aX-B:%20c\n"), "escapes stay escaped: {}", reply.body);
}

#[tokio::test]
async fn a_full_backlog_is_waited_for() {
    let world = World::new().await;
    let socket = socket_with_backlog(world.socket());
    // Fills the backlog: nothing accepts yet.
    let mut waiting = Vec::new();
    for _ in 0..8 {
        waiting.push(UnixStream::connect(world.socket()).await);
    }
    assert!(waiting.iter().any(Result::is_err), "the backlog of a Unix socket is bounded");
    let asked = world.ask("GET", "/", 49983, "\r\n");
    let accepted = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(waiting);
        socket.set_nonblocking(true).unwrap();
        let listener = UnixListener::from_std(socket).unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(http(stream, show));
        }
    };
    tokio::select! {
        reply = asked => assert_eq!(reply.status, 200),
        () = accepted => {}
    }
}

/// Listens with a backlog of one.
fn socket_with_backlog(path: &Path) -> std::os::unix::net::UnixListener {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let fd = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&fd, 1).unwrap();
    fd.into()
}

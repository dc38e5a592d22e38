//! An agentd, or a server inside, that sends hostile answers.

use super::*;

/// Writes `piece` repeatedly until the other side stops reading; returns the number of bytes that it took.
async fn pour(stream: &mut (impl AsyncWrite + Unpin), piece: &[u8]) -> usize {
    let mut poured = 0;
    while stream.write_all(piece).await.is_ok() {
        poured += piece.len();
    }
    poured
}

/// An agentd that answers each request with `start` and then sends `piece` forever; counts how much of each
/// was read.
fn pouring(
    world: &World,
    start: &'static str,
    piece: &'static str,
) -> tokio::sync::mpsc::UnboundedReceiver<usize> {
    let (taken, takes) = tokio::sync::mpsc::unbounded_channel();
    raw_agentd(world.socket().to_owned(), move |mut stream| {
        let taken = taken.clone();
        async move {
            read_until(&mut stream, "\r\n\r\n").await;
            let _ = stream.write_all(start.as_bytes()).await;
            let _ = taken.send(pour(&mut stream, piece.repeat(64).as_bytes()).await);
        }
    });
    takes
}

#[tokio::test]
async fn heads_and_chunks_without_end_are_cut_off() {
    // A proxy that reads this little and then stops has not buffered everything.
    const MOST: usize = 4 << 20;
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (what, start, piece, answered) in [
        ("headers", "HTTP/1.1 200 OK\r\n", "x-a: 0123456789\r\n", true),
        ("one header", "HTTP/1.1 200 OK\r\nx-a: ", "0123456789", true),
        ("a reason", "HTTP/1.1 200 ", "0123456789", true),
        ("blank lines", "", "\r\n", true),
        ("a chunk's extension", &*format!("{chunked}5;x=").leak(), "0123456789", false),
        ("trailers", &*format!("{chunked}0\r\n").leak(), "x-a: 0123456789\r\n", false),
    ] {
        let world = World::new().await;
        let mut takes = pouring(&world, start, piece);
        let mut client = world.connect().await;
        client.write_all(format!("{}\r\n", world.line("GET", "/", 49983)).as_bytes()).await.unwrap();
        if answered {
            assert!(read_until(&mut client, "\r\n\r\n").await.starts_with("HTTP/1.1 502"), "{what}");
        } else {
            expect_reset(&mut client).await;
        }
        let taken = soon(takes.recv()).await.unwrap();
        assert!(taken < MOST, "{what}: {taken} bytes were taken");
    }
}

/// None of this uses memory, however long it lasts.
#[tokio::test]
async fn what_says_nothing_without_end_ends_with_the_client() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (start, piece) in [
        ("", "HTTP/1.1 100 Continue\r\n\r\n"),
        ("", "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
        (chunked, "0"),
    ] {
        let world = World::new().await;
        let mut takes = pouring(&world, start, piece);
        let mut client = world.connect().await;
        client.write_all(format!("{}\r\n", world.line("GET", "/", 49983)).as_bytes()).await.unwrap();
        // Other requests are answered meanwhile.
        let other = world.ask_raw("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
        assert_eq!(other.status, 418);
        drop(client);
        soon(takes.recv()).await.expect("it was cut off");
    }
}

#[tokio::test]
async fn an_answer_that_lies_about_its_length_never_looks_whole() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775807\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nshort",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshortXX5\r\nmore!\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nshort",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nshort\r\n0\r\n\r\n",
    ] {
        let world = World::new().await;
        raw_agentd(world.socket().to_owned(), move |mut stream| async move {
            read_until(&mut stream, "\r\n\r\n").await;
            let _ = stream.write_all(answer.as_bytes()).await;
        });
        let mut client = world.connect().await;
        client.write_all(format!("{}\r\n", world.line("GET", "/", 49983)).as_bytes()).await.unwrap();
        expect_reset(&mut client).await;
    }
}

#[tokio::test]
async fn lengths_that_are_no_numbers_are_a_502() {
    for length in ["-1", "+5", "0x5", "5 5", "5,6", "18446744073709551616", "five", "\u{b}5"] {
        let world = World::new().await;
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nshort");
        raw_agentd(world.socket().to_owned(), move |mut stream| {
            let answer = answer.clone();
            async move {
                read_until(&mut stream, "\r\n\r\n").await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let reply = world.ask("GET", "/", 49983, "\r\n").await;
        assert_eq!(reply.status, 502, "{length:?}: {reply:?}");
    }
}

/// Two answers to one request, then a second request by another client: it must get its own.
#[tokio::test]
async fn an_answer_kept_ready_is_not_given_to_the_next_client() {
    for forged in
        ["HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged", "HTTP/1.1 100 Continue\r\n\r\n", "x", "\r\n"]
    {
        let world = World::new().await;
        raw_agentd(world.socket().to_owned(), move |mut stream| async move {
            loop {
                let asked = read_until(&mut stream, "\r\n\r\n").await;
                let path = asked.split(' ').nth(1).unwrap().to_owned();
                let own = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len());
                if stream.write_all(format!("{own}{forged}").as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        for round in 0..8 {
            let path = format!("/{round}");
            let reply = world.ask("GET", &path, 49983, "\r\n").await;
            assert_eq!((reply.status, &*reply.body), (200, &*path), "{forged:?}");
        }
    }
}

/// No header that a sandbox invents can change how the client's own connection is framed.
#[tokio::test]
async fn hop_by_hop_headers_of_an_answer_end_here() {
    let world = World::new().await;
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close, x-secret, content-length\r\n\
                  X-Secret: 1\r\nKeep-Alive: timeout=1\r\nProxy-Authenticate: Basic\r\nTrailer: x\r\n\
                  Upgrade: h2c\r\nTE: trailers\r\nX-Kept: 1\r\n\r\nok";
    raw_agentd(world.socket().to_owned(), move |mut stream| async move {
        read_until(&mut stream, "\r\n\r\n").await;
        let _ = stream.write_all(answer.as_bytes()).await;
    });
    let mut client = world.connect().await;
    for _ in 0..2 {
        client.write_all(format!("{}\r\n", world.line("GET", "/", 49983)).as_bytes()).await.unwrap();
        let reply = Reply::parse(read_until(&mut client, "\r\n\r\nok").await.as_bytes());
        assert_eq!(
            (reply.status, reply.header("x-kept"), reply.header("content-length")),
            (200, Some("1"), Some("2"))
        );
        for name in ["x-secret", "keep-alive", "proxy-authenticate", "upgrade", "connection"] {
            assert_eq!(reply.header(name), None, "{name} in {}", reply.head);
        }
    }
}

/// Compressed bytes pass unchanged: the proxy does not decompress them.
#[tokio::test]
async fn a_bomb_is_not_unpacked_on_the_way() {
    let world = World::new().await;
    Agentd::start(world.socket(), |_| async {
        let mut response = Response::new(Body::from(vec![0x1f, 0x8b, 8, 0, 0xff]));
        response.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        response
    });
    let mut client = world.connect().await;
    let request =
        format!("{}Accept-Encoding: gzip\r\nConnection: close\r\n\r\n", world.line("GET", "/", 49983));
    client.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    soon(client.read_to_end(&mut bytes)).await.unwrap();
    assert!(bytes.ends_with(&[0x1f, 0x8b, 8, 0, 0xff]), "{bytes:?}");
}

//! A sandbox that ends resets its clients; a client that leaves ends its request.

use super::*;
use bytes::Bytes;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::sync::oneshot;

use coffer_guest::Route;

/// One piece, then nothing more.
fn endless() -> Body {
    let first = futures_util::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from("begun")))]);
    Body::new(StreamBody::new(futures_util::StreamExt::chain(first, futures_util::stream::pending())))
}

async fn begin(world: &World, port: u16) -> TcpStream {
    let mut stream = world.connect().await;
    stream.write_all(format!("{}\r\n", world.line("GET", "/", port)).as_bytes()).await.unwrap();
    read_until(&mut stream, "begun\r\n").await;
    stream
}

#[tokio::test]
async fn the_end_of_a_sandbox_resets_its_streams() {
    let world = World::new().await;
    let endlessly = |_| async { Response::new(endless()) };
    let inside: Port = Arc::new(move |stream| Box::pin(http(stream, endlessly)));
    Agentd::with_ports(world.socket(), endlessly, HashMap::from([(3000, inside)]));
    let mut streams = vec![begin(&world, 49983).await, begin(&world, 3000).await];
    streams.push(begin(&world, 49983).await);
    world.target.gone.cancel();
    for stream in &mut streams {
        expect_reset(stream).await;
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_reset_too() {
    let world = World::new().await;
    Agentd::start(world.socket(), |_| async {
        let pieces = futures_util::stream::repeat_with(|| {
            Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b'x'; 65_536])))
        });
        Response::new(Body::new(StreamBody::new(pieces)))
    });
    let mut stream = world.connect().await;
    stream.write_all(format!("{}\r\n", world.line("GET", "/", 49983)).as_bytes()).await.unwrap();
    read_until(&mut stream, "\r\n\r\n").await;
    // Until every buffer on the way is full.
    soon(async {
        loop {
            let before = world.target.activity.idle_ms();
            tokio::time::sleep(Duration::from_millis(50)).await;
            if world.target.activity.idle_ms() >= before + 40 {
                break;
            }
        }
    })
    .await;
    world.target.gone.cancel();
    expect_reset(&mut stream).await;
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_a_reset() {
    for broken in [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\nzz\r\n",
    ] {
        let world = World::new().await;
        raw_agentd(world.socket().to_owned(), move |mut stream| async move {
            read_until(&mut stream, "\r\n\r\n").await;
            stream.write_all(broken.as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        });
        let mut stream = world.connect().await;
        stream.write_all(format!("{}\r\n", world.line("GET", "/", 49983)).as_bytes()).await.unwrap();
        read_until(&mut stream, "begun").await;
        expect_reset(&mut stream).await;
    }
}

#[tokio::test]
async fn an_end_before_the_answer_is_a_502() {
    let world = World::new().await;
    Agentd::start(world.socket(), |_| std::future::pending());
    let waiting = world.ask("GET", "/health", 49983, "\r\n");
    let gone = world.target.gone.clone();
    let ending = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        gone.cancel();
    };
    let (reply, ()) = tokio::join!(waiting, ending);
    assert_eq!(reply.status, 502);
    assert!(reply.body.contains("The sandbox was not found"), "{}", reply.body);
}

#[tokio::test]
async fn agentd_dying_just_before_the_news_is_a_missing_sandbox() {
    let world = World::new().await;
    let gone = world.target.gone.clone();
    raw_agentd(world.socket().to_owned(), move |mut stream| {
        let gone = gone.clone();
        async move {
            read_until(&mut stream, "\r\n\r\n").await;
            drop(stream);
            tokio::time::sleep(Duration::from_millis(50)).await;
            gone.cancel();
        }
    });
    let reply = world.ask("GET", "/health", 49983, "\r\n").await;
    assert_eq!(reply.status, 502);
    assert!(reply.body.contains("The sandbox was not found"), "{}", reply.body);
}

#[tokio::test]
async fn an_upgraded_connection_is_reset() {
    let world = World::new().await;
    Agentd::with_port(world.socket(), |stream| {
        http(stream, |mut request: Request<Incoming>| async move {
            tokio::spawn(async move {
                let mut stream = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
                stream.write_all(b"begun\r\n").await.unwrap();
                std::future::pending::<()>().await;
            });
            let response = Response::builder().status(101).header("connection", "upgrade");
            response.header("upgrade", "raw").body(Body::empty()).unwrap()
        })
    });
    let mut stream = world.connect().await;
    let request = format!("{}Connection: upgrade\r\nUpgrade: raw\r\n\r\n", world.line("GET", "/", 3000));
    stream.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut stream, "begun\r\n").await;
    world.target.gone.cancel();
    expect_reset(&mut stream).await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_request_inside() {
    let world = World::new().await;
    let (left, seen) = oneshot::channel();
    let left = Arc::new(Mutex::new(Some(left)));
    raw_agentd(world.socket().to_owned(), move |mut stream| {
        let left = left.lock().unwrap().take().unwrap();
        async move {
            read_until(&mut stream, "\r\n\r\n").await;
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n";
            stream.write_all(head).await.unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            left.send(()).unwrap();
        }
    });
    drop(begin(&world, 49983).await);
    soon(seen).await.unwrap();
}

#[tokio::test]
async fn the_clients_idle_connection_outlives_the_sandbox() {
    let world = World::new().await;
    Agentd::start(world.socket(), show);
    let mut stream = world.connect().await;
    let request = format!("{}\r\n", world.line("GET", "/", 49983));
    stream.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut stream, ".test\n").await;
    world.target.gone.cancel();
    world.route(Route::NotFound);
    for _ in 0..2 {
        stream.write_all(request.as_bytes()).await.unwrap();
        read_until(&mut stream, "\"code\":502}").await;
    }
}

#[tokio::test]
async fn a_resumed_sandbox_is_reached_again() {
    let mut world = World::new().await;
    Agentd::start(world.socket(), show);
    assert_eq!(world.ask("GET", "/", 49983, "\r\n").await.status, 200);
    for _ in 0..3 {
        world.target.gone.cancel();
        world.target.gone = CancellationToken::new();
        world.route(Route::Running(world.target.clone()));
        assert_eq!(world.ask("GET", "/", 49983, "\r\n").await.status, 200);
        assert_eq!(world.ask("GET", "/", 49983, "\r\n").await.status, 200);
    }
    assert_eq!(world.front.proxy.lanes.count(), 1);
}

#[tokio::test]
async fn nothing_is_kept_for_a_sandbox_that_ended() {
    let world = World::new().await;
    let agentd = Agentd::start(world.socket(), show);
    assert_eq!(world.ask("GET", "/", 49983, "\r\n").await.status, 200);
    assert_eq!(agentd.connections(), 1);
    assert_eq!(world.front.proxy.lanes.count(), 1);
    world.target.gone.cancel();
    soon(async {
        while world.front.proxy.lanes.count() != 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_upgraded_connection_ends_with_its_server() {
    let world = World::new().await;
    Agentd::with_port(world.socket(), |stream| {
        http(stream, |mut request: Request<Incoming>| async move {
            tokio::spawn(async move {
                let mut stream = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
                stream.write_all(b"begun\r\n").await.unwrap();
                stream.read_u8().await.unwrap();
            });
            let response = Response::builder().status(101).header("connection", "upgrade");
            response.header("upgrade", "raw").body(Body::empty()).unwrap()
        })
    });
    let mut stream = world.connect().await;
    let request = format!("{}Connection: upgrade\r\nUpgrade: raw\r\n\r\n", world.line("GET", "/", 3000));
    stream.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut stream, "begun\r\n").await;
    assert_eq!(world.front.proxy.lanes.open(), 1);
    soon(async {
        // It leaves after the first; a server that keeps writing must notice.
        while stream.write_all(&[b'x'; 65_536]).await.is_ok() {}
        while world.front.proxy.lanes.open() != 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn every_request_gives_its_place_back() {
    let world = World::new().await;
    Agentd::start(world.socket(), |_| async { Response::new(endless()) });
    let streams = [begin(&world, 49983).await, begin(&world, 49983).await];
    assert_eq!(world.ask("GET", "/", 3000, "\r\n").await.status, 502);
    assert_eq!(world.front.proxy.lanes.open(), 2);
    drop(streams);
    soon(async {
        while world.front.proxy.lanes.open() != 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

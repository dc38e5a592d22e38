//! Many requests at once, and large bodies.

use super::*;
use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

const GIB: usize = 1 << 30;
const PIECE: usize = 64 * 1024;

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Whether this process runs one test. If it runs others, whose memory would count too, runs this one in a
/// separate process and returns `false` once it has passed there.
fn alone(test: &str) -> bool {
    const MARK: &str = "COFFER_TEST_ALONE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let name = format!("proxy::tests::load::{test}");
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{complaints}");
    false
}

fn gibibyte() -> Body {
    let pieces = (0..GIB / PIECE).map(|_| Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[7; PIECE]))));
    Body::new(StreamBody::new(futures_util::stream::iter(pieces)))
}

/// All of it in one process: client, proxy and agentd, none of which may buffer it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gibibyte_passes_each_way_in_flat_memory() {
    if !alone("a_gibibyte_passes_each_way_in_flat_memory") {
        return;
    }
    let world = World::new().await;
    Agentd::start(world.socket(), |request: Request<Incoming>| async move {
        if request.method() == Method::GET {
            return Response::new(gibibyte());
        }
        let mut taken = 0;
        let mut body = request.into_body();
        while let Some(frame) = body.frame().await {
            taken += frame.unwrap().data_ref().map_or(0, Bytes::len);
        }
        Response::new(Body::from(taken.to_string()))
    });
    let before = resident_kib();
    let mut most = before;

    let mut stream = world.connect().await;
    let request = format!("{}Connection: close\r\n\r\n", world.line("GET", "/files", 49983));
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 256 * 1024];
    let mut read = 0;
    loop {
        let piece = stream.read(&mut buffer).await.unwrap();
        if piece == 0 {
            break;
        }
        if (read + piece) >> 26 != read >> 26 {
            most = most.max(resident_kib());
        }
        read += piece;
    }
    assert!(read > GIB, "{read} bytes came");

    let mut stream = world.connect().await;
    let request = format!("{}Content-Length: {GIB}\r\n\r\n", world.line("POST", "/files", 49983));
    stream.write_all(request.as_bytes()).await.unwrap();
    for piece in 0..GIB / PIECE {
        stream.write_all(&buffer[..PIECE]).await.unwrap();
        if piece % 1024 == 0 {
            most = most.max(resident_kib());
        }
    }
    read_until(&mut stream, &GIB.to_string()).await;
    let grown = (most - before) / 1024;
    println!("2 GiB passed; resident memory grew by {grown} MiB");
    assert!(grown < 48, "memory grew by {grown} MiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_streams_live_side_by_side() {
    const STREAMS: usize = 500;
    let world = Arc::new(World::new().await);
    let (tick, _) = tokio::sync::broadcast::channel::<usize>(16);
    let ticking = tick.clone();
    let agentd = Agentd::start(world.socket(), move |_| {
        let ticks = ticking.subscribe();
        async move {
            let pieces = futures_util::stream::unfold(ticks, |mut ticks| async {
                let tick = ticks.recv().await.ok()?;
                Some((Ok::<_, Infallible>(Frame::data(Bytes::from(format!("tick {tick}")))), ticks))
            });
            Response::new(Body::new(StreamBody::new(pieces)))
        }
    });
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let world = world.clone();
        streams.push(tokio::spawn(async move {
            let mut stream = world.connect().await;
            let request = format!("{}\r\n", world.line("GET", "/", 49983));
            stream.write_all(request.as_bytes()).await.unwrap();
            read_until(&mut stream, "\r\n\r\n").await;
            stream
        }));
    }
    let mut open = Vec::new();
    for stream in streams {
        open.push(stream.await.unwrap());
    }
    assert_eq!(agentd.connections(), STREAMS);
    for round in 0..3 {
        assert_eq!(tick.send(round).unwrap(), STREAMS);
        for stream in &mut open {
            assert_eq!(read_until(stream, "\r\n").await, "6\r\n");
            assert_eq!(read_until(stream, "\r\n").await, format!("tick {round}\r\n"));
        }
    }
    world.target.gone.cancel();
    for stream in &mut open {
        expect_reset(stream).await;
    }
}

/// A minimal client: blocking, one connection, no parser.
fn round_trips(
    mut stream: impl std::io::Read + std::io::Write,
    request: &str,
    rounds: usize,
) -> Vec<Duration> {
    let mut buffer = [0; 4096];
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = std::time::Instant::now();
        stream.write_all(request.as_bytes()).unwrap();
        let mut read = 0;
        while !buffer[..read].ends_with(b"\r\n\r\nok") {
            let piece = stream.read(&mut buffer[read..]).unwrap();
            assert_ne!(piece, 0, "closed after {:?}", String::from_utf8_lossy(&buffer[..read]));
            read += piece;
        }
        times.push(start.elapsed());
    }
    times.sort();
    times
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: run it alone, in release mode, with --no-capture"]
async fn added_latency() {
    const ROUNDS: usize = 20_000;
    let world = World::new().await;
    let answer = |_| async { Response::new(Body::from("ok")) };
    let inside: Port = Arc::new(move |stream| Box::pin(http(stream, answer)));
    Agentd::with_ports(world.socket(), answer, HashMap::from([(3000, inside)]));
    let (socket, address) = (world.socket().to_owned(), world.address);
    let line = |port| {
        let headers = "User-Agent: e2b-python-sdk/2.63.0\r\nX-Access-Token: 0123456789abcdef\r\n\
                       Content-Type: application/json\r\nConnect-Protocol-Version: 1\r\n";
        format!("{}{headers}Content-Length: 2\r\n\r\n{{}}", world.line("POST", "/process.Process/List", port))
    };
    let (agentd, port) = (line(49983), line(3000));
    let measured = tokio::task::spawn_blocking(move || {
        let connect = || {
            let stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_nodelay(true).unwrap();
            stream
        };
        let inner = std::os::unix::net::UnixStream::connect(socket).unwrap();
        vec![
            ("straight to agentd", round_trips(inner, &agentd, ROUNDS)),
            ("agentd through the proxy", round_trips(connect(), &agentd, ROUNDS)),
            ("a port through the proxy", round_trips(connect(), &port, ROUNDS / 10)),
        ]
    });
    for (what, times) in measured.await.unwrap() {
        let at = |percent: usize| times[times.len() * percent / 100];
        println!("{what}: p50 {:?}, p90 {:?}, p99 {:?}", at(50), at(90), at(99));
    }
}

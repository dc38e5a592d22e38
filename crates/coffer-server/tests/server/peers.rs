//! Peers that have not authenticated: limited by address, also behind a proxy.

use std::net::SocketAddr;
use std::time::Duration;

use coffer_server::{LimitSettings, PoolSettings, RateSettings, ServerConfig, TrustedProxies};
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::app::TestApp;

async fn app(trusted: &[&str]) -> TestApp {
    // An address may have two connections of eight that have not authenticated.
    let pools = PoolSettings { unauthenticated: 8, ..PoolSettings::default() };
    let rates = RateSettings { wrong_keys_per_s: 1, wrong_keys_burst: 3, ..RateSettings::default() };
    let limits = LimitSettings { pools, rates, ..LimitSettings::default() };
    let trusted_proxies = TrustedProxies::parse(trusted.iter().copied()).unwrap();
    let lifetime = crate::app::policy();
    TestApp::configured(ServerConfig { lifetime, limits, trusted_proxies, ..ServerConfig::default() }).await
}

async fn connect_from(app: &TestApp, address: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(address.parse().unwrap(), 0)).unwrap();
    socket.connect(app.address()).await.unwrap()
}

/// The status of a request with these additional lines.
async fn ask(stream: &mut TcpStream, before: &str, lines: &str) -> Option<u16> {
    let request = format!("{before}GET /api/v1/sandboxes HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = vec![0; 8192];
    let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut answer)).await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&answer[..read]).into_owned();
    text.split(' ').nth(1)?.parse().ok()
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(Duration::from_millis(500), stream.read(&mut [0; 16])).await;
    read.is_ok_and(|read| !matches!(read, Ok(1..)))
}

#[tokio::test]
async fn idle_connections_of_an_address_make_room_and_those_that_authenticated_stay() {
    let app = app(&[]).await;
    let good = format!("x-api-key: {}\r\n", app.key);
    let mut known = connect_from(&app, "127.0.0.2").await;
    assert_eq!(ask(&mut known, "", &good).await, Some(200));
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(connect_from(&app, "127.0.0.2").await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut closed = 0;
    for stream in &mut idle {
        closed += usize::from(is_closed(stream).await);
    }
    assert_eq!(closed, 18, "the oldest made room for the newest");
    // Neither this address nor another is locked out.
    for address in ["127.0.0.2", "127.0.0.3"] {
        assert_eq!(ask(&mut connect_from(&app, address).await, "", &good).await, Some(200), "{address}");
    }
    assert_eq!(ask(&mut known, "", &good).await, Some(200), "it is still open");
}

#[tokio::test]
async fn a_crowd_of_strangers_shuts_out_nobody() {
    let app = app(&[]).await;
    let good = format!("x-api-key: {}\r\n", app.key);
    let mut crowd = Vec::new();
    for last in 10..60 {
        // Each has begun a request and does not finish it.
        let mut stream = connect_from(&app, &format!("127.0.0.{last}")).await;
        stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        crowd.push(stream);
    }
    assert_eq!(ask(&mut connect_from(&app, "127.0.0.2").await, "", &good).await, Some(200));
}

/// Wrong keys are counted by address: the number of lookups before the fourth is refused shows whose they
/// are.
async fn wrong_keys(app: &TestApp, before: &str, lines: &str) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..5 {
        let mut stream = connect_from(app, "127.0.0.2").await;
        let lines = format!("{lines}x-api-key: wrong\r\n");
        statuses.push(ask(&mut stream, before, &lines).await.expect("an answer"));
    }
    statuses
}

#[tokio::test]
async fn a_trusted_proxy_is_not_one_peer() {
    let app = app(&["127.0.0.2", "10.0.0.0/8"]).await;
    for sender in ["203.0.113.1", "203.0.113.2", "spoofed, 203.0.113.3, 10.1.1.1", "2001:db8::1"] {
        let statuses = wrong_keys(&app, "", &format!("x-forwarded-for: {sender}\r\n")).await;
        assert_eq!((statuses[0], statuses[4]), (401, 429), "{sender}: {statuses:?}");
    }
    let same = wrong_keys(&app, "", "x-forwarded-for: 2001:db8::ffff\r\n").await;
    assert_eq!(same[1], 429, "of one /64: {same:?}");
    // The same by the PROXY protocol, both versions.
    let v1 = "PROXY TCP4 203.0.113.11 192.0.2.1 4711 80\r\n";
    let v2 = "\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x0b\x00\x71\x0c\x01\x00\x02\x01\x12\x67\0\x50";
    for header in [v1, v2] {
        let statuses = wrong_keys(&app, header, "x-forwarded-for: 203.0.113.99\r\n").await;
        assert_eq!((statuses[0], statuses[4]), (401, 429), "{statuses:?}");
    }
    let other = wrong_keys(&app, &v1.replace(".11", ".13"), "").await;
    assert_eq!(other[0], 401, "{other:?}");
}

#[tokio::test]
async fn nobody_else_is_believed_about_an_address() {
    let app = app(&["10.0.0.0/8"]).await;
    let mut statuses = wrong_keys(&app, "", "x-forwarded-for: 203.0.113.1\r\n").await;
    statuses.extend(wrong_keys(&app, "", "x-forwarded-for: 203.0.113.2\r\n").await);
    assert_eq!((statuses[0], statuses[9]), (401, 429), "{statuses:?}");
    let mut stream = connect_from(&app, "127.0.0.2").await;
    let status = ask(&mut stream, "PROXY TCP4 203.0.113.11 192.0.2.1 4711 80\r\n", "").await;
    assert_eq!(status, Some(400), "it is no request");
    let listed = app.request(http::Method::GET, "/api/v1/sandboxes").body(Full::default()).unwrap();
    app.send(listed).await.expect(200);
}

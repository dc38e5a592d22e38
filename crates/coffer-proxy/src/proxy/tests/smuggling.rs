//! Requests and addresses that two parsers could read differently.

use super::*;

/// The requests that a server inside saw: line and body.
type Seen = Arc<Mutex<Vec<(String, String)>>>;

/// A sandbox whose agentd and port 3000 record every request.
fn noting(world: &World) -> Seen {
    let seen = Seen::default();
    let note = {
        let seen = seen.clone();
        move |request: Request<Incoming>| {
            let seen = seen.clone();
            async move {
                let line = format!("{} {}", request.method(), request.uri());
                let body = http_body_util::BodyExt::collect(request.into_body()).await;
                let body = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
                seen.lock().unwrap().push((line, body.unwrap_or_else(|_| "broken off".into())));
                Response::new(Body::from("inside"))
            }
        }
    };
    let inside = note.clone();
    let port: Port = Arc::new(move |stream| Box::pin(http(stream, inside.clone())));
    Agentd::with_ports(world.socket(), note, HashMap::from([(3000, port)]));
    seen
}

/// Sends `bytes` and reads the answer until the server closes. If it waits for more, the answer is what it
/// has sent by then.
async fn exchange(world: &World, bytes: &[u8]) -> String {
    const SILENCE: Duration = Duration::from_millis(1_500);
    let mut stream = world.connect().await;
    // A server that has refused closes while we write.
    let _ = stream.write_all(bytes).await;
    let mut answers = Vec::new();
    while let Ok(Ok(1..)) = tokio::time::timeout(SILENCE, stream.read_buf(&mut answers)).await {}
    String::from_utf8_lossy(&answers).into_owned()
}

/// Sends requests of which the last one closes, and reads every answer.
async fn finish(world: &World, requests: &str) -> String {
    let mut stream = world.connect().await;
    stream.write_all(requests.as_bytes()).await.unwrap();
    let mut answers = Vec::new();
    let _ = soon(stream.read_to_end(&mut answers)).await;
    String::from_utf8_lossy(&answers).into_owned()
}

/// The statuses of pipelined answers.
fn statuses(answers: &str) -> Vec<&str> {
    answers.match_indices("HTTP/1.1 ").map(|(at, prefix)| &answers[at + prefix.len()..][..3]).collect()
}

/// Whatever the framing, bytes hidden in the body never become a separate request inside.
#[tokio::test]
async fn no_framing_lets_a_body_become_a_request() {
    let hidden = "POST /hidden HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let length = hidden.len();
    let chunk = format!("{length:x}\r\n{hidden}\r\n0\r\n\r\n");
    let cases: Vec<String> = vec![
        format!("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n{chunk}"),
        format!("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: chunked, gzip\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: CHUNKED\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding:\u{b}chunked\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: \"chunked\"\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("Transfer-Encoding\u{0}: chunked\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("Transfer_Encoding: chunked\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("X: y\nTransfer-Encoding: chunked\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("X: y\rTransfer-Encoding: chunked\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("Content-Length: {length}\r\nContent-Length: 0\r\n\r\n{hidden}"),
        format!("Content-Length: 0, {length}\r\n\r\n{hidden}"),
        format!("Content-Length: {length},{length}\r\n\r\n{hidden}"),
        format!("Content-Length: -{length}\r\n\r\n{hidden}"),
        format!("Content-Length: 0x{length:x}\r\n\r\n{hidden}"),
        format!("Content-Length: {length} 0\r\n\r\n{hidden}"),
        format!("Content-Length: {length}\u{0}\r\n\r\n{hidden}"),
        format!("Content-Length: 18446744073709551616\r\n\r\n{hidden}"),
        format!("Content-Length: 99999999999999999999999999\r\n\r\n{hidden}"),
        format!("Content-Length:\r\n\r\n{hidden}"),
        format!("Connection: transfer-encoding, content-length\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}"),
        format!("Transfer-Encoding: chunked\r\n\r\n{length:x};x=\"\r\n\"\r\n{hidden}\r\n0\r\n\r\n"),
        format!("Transfer-Encoding: chunked\r\n\r\n{length:x}\n{hidden}\r\n0\r\n\r\n"),
        format!("Transfer-Encoding: chunked\r\n\r\n0x{length:x}\r\n{hidden}\r\n0\r\n\r\n"),
        format!("Transfer-Encoding: chunked\r\n\r\n+{length:x}\r\n{hidden}\r\n0\r\n\r\n"),
        format!("Transfer-Encoding: chunked\r\n\r\n-1\r\n{hidden}\r\n0\r\n\r\n"),
        format!("Transfer-Encoding: chunked\r\n\r\n1{:016x}\r\n{hidden}\r\n0\r\n\r\n", length),
        format!("Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{hidden}\r\n0\r\n\r\n"),
        format!("Transfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: y\r\nHost: z\r\n\r\n"),
        format!("Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n{hidden}"),
    ];
    // All at once, because a server that waits for more data takes a while to show it.
    let tried = [49983, 3000].into_iter().flat_map(|port| cases.iter().map(move |framing| (port, framing)));
    let tried = tried.map(|(port, framing)| async move {
        let world = World::new().await;
        let seen = noting(&world);
        let request = format!("{}{framing}", world.line("POST", "/first", port));
        let answers = exchange(&world, request.as_bytes()).await;
        let seen = seen.lock().unwrap().clone();
        let lines: Vec<&str> = seen.iter().map(|(line, _)| line.as_str()).collect();
        assert!(lines.is_empty() || lines == ["POST /first"], "{framing:?} arrived as {seen:?}");
        // It was judged: refused, cut off, or passed on whole.
        let first = statuses(&answers).first().copied();
        assert!(
            matches!(first, None | Some("100" | "200" | "400" | "501" | "502")),
            "{framing:?}: {answers}"
        );
        assert!(!answers.contains("HTTP/1.1 200") || lines == ["POST /first"], "{framing:?}: {answers}");
    });
    futures_util::future::join_all(tried).await;
}

/// A second request on the same connection is judged by its own address, not by the first one's.
#[tokio::test]
async fn each_of_many_requests_has_an_address_of_its_own() {
    let world = World::new().await;
    let seen = noting(&world);
    let control = "POST /init HTTP/1.1\r\nHost: 49983-ID.test\r\nContent-Length: 2\r\n\r\n{}";
    let elsewhere = "GET /second HTTP/1.1\r\nHost: 3000-01jd0000000000000000000000.test\r\n\r\n";
    let bare = "GET /third HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let all = format!("{}\r\n{control}{elsewhere}{bare}", world.line("GET", "/first", 3000));
    let answers = finish(&world, &all.replace("ID", &world.id)).await;
    assert_eq!(statuses(&answers), ["200", "404", "502", "418"], "{answers}");
    assert_eq!(seen.lock().unwrap().len(), 1);
}

/// After a refused switch of protocols the next bytes are HTTP again, and are checked.
#[tokio::test]
async fn nothing_rides_on_an_upgrade_that_was_refused() {
    let world = World::new().await;
    let seen = noting(&world);
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    let hidden = "GET /hidden HTTP/1.1\r\nHost: inside\r\nConnection: close\r\n\r\n";
    for (port, protocol) in [(3000, "websocket"), (49983, "websocket"), (3000, "h2c"), (49983, "h2c")] {
        let upgrade = upgrade.replace("websocket", protocol);
        let request = format!("{}{upgrade}{hidden}", world.line("GET", "/first", port));
        let answers = finish(&world, &request).await;
        assert_eq!(statuses(&answers), ["200", "418"], "{port} {protocol}: {answers}");
    }
    let seen: Vec<String> = seen.lock().unwrap().iter().map(|(line, _)| line.clone()).collect();
    assert_eq!(seen, ["GET /first"; 4]);
}

/// Anything but plain HTTP/1 requests is refused or cut off, and none of it is forwarded.
#[tokio::test]
async fn lines_that_are_no_requests_go_nowhere() {
    let world = World::new().await;
    let seen = noting(&world);
    let host = format!("49983-{}.test", world.id);
    let tls: &[u8] = &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3];
    let cases: Vec<Vec<u8>> = vec![
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
        tls.to_vec(),
        vec![0; 4096],
        b"\r\n\r\n\r\n\r\n".to_vec(),
        format!("GET /\r\nHost: {host}\r\n\r\n").into_bytes(),
        format!("GET / HTTP/2.0\r\nHost: {host}\r\n\r\n").into_bytes(),
        format!("GET / HTTP/1.2\r\nHost: {host}\r\n\r\n").into_bytes(),
        format!("GET  / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(),
        format!("GET /a b HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(),
        format!("GET /\0 HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(),
        format!("G\u{1}T / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nx y: z\r\n\r\n").into_bytes(),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\n: z\r\n\r\n").into_bytes(),
        format!("GET / HTTP/1.1\r\nHost : {host}\r\n\r\n").into_bytes(),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n\r\n").into_bytes(),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nHost: other.test\r\n\r\n").into_bytes(),
        format!("GET / HTTP/1.1\r\nHost: other.test\r\nHost: {host}\r\n\r\n").into_bytes(),
        format!("GET http://other.test/ HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(),
        format!("GET http://user@{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(),
        format!("CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(),
        format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(),
        [format!("GET / HTTP/1.1\r\nHost: {host}\r\nx: ").as_bytes(), b"\x7f\r\n\r\n"].concat(),
        [b"GET / HTTP/1.1\r\nHost: 49983-".as_slice(), &[0xff, 0xfe], b".test\r\n\r\n"].concat(),
    ];
    for case in cases {
        let answers = exchange(&world, &case).await;
        let shown = String::from_utf8_lossy(&case);
        let statuses = statuses(&answers);
        assert!(statuses.iter().all(|status| status.starts_with('4')), "{shown:?}: {answers}");
    }
    assert_eq!(*seen.lock().unwrap(), []);
}

/// However a sandbox's name is spelled, it means that sandbox or none; a port is a number or nothing.
#[tokio::test]
async fn odd_spellings_name_the_same_sandbox_or_none() {
    let world = World::new().await;
    let seen = noting(&world);
    let id = &world.id;
    for (host, status) in [
        (format!("3000-{id}.test"), "200"),
        (format!("3000-{}.TEST", id.to_uppercase()), "200"),
        (format!("3000-{id}.test."), "200"),
        (format!("3000-{id}.test:80"), "200"),
        (format!("3000-{id}.test:99999"), "200"),
        (format!("03000-{id}.test"), "200"),
        (format!("3000-{id}0.test"), "502"),
        (format!("3000-0{id}.test"), "502"),
        (format!("0-{id}.test"), "400"),
        (format!("65536-{id}.test"), "400"),
        (format!("68536-{id}.test"), "400"),
        (format!("{}-{id}.test", "9".repeat(40)), "400"),
        (format!("3000-{}.test", "a".repeat(65)), "400"),
        // Not of this form: the API answers.
        (format!("+3000-{id}.test"), "418"),
        (format!("-3000-{id}.test"), "418"),
        (format!("3000 -{id}.test"), "418"),
        (format!("3000--{id}.test"), "418"),
        (format!("3000-{id}-.test"), "418"),
        (format!("3000-{id}"), "418"),
        (format!("test.3000-{id}.test"), "418"),
        (format!("3000-{id}%2etest"), "418"),
        (format!("[3000-{id}.test]"), "418"),
    ] {
        let request = format!("GET /odd HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answers = finish(&world, &request).await;
        assert_eq!(statuses(&answers), [status], "{host}: {answers}");
    }
    assert_eq!(seen.lock().unwrap().len(), 6);
    let too_long = "a".repeat(65);
    for (headers, status) in [
        (format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 3000"), "200"),
        (format!("e2B-sAndbox-iD:\t {id} \r\nE2b-Sandbox-Port:3000\t"), "200"),
        (format!("E2b-Sandbox-Id: {id}x\r\nE2b-Sandbox-Port: 3000"), "502"),
        (format!("E2b-Sandbox-Id: {id}/../x\r\nE2b-Sandbox-Port: 3000"), "400"),
        (format!("E2b-Sandbox-Id: {id},{id}\r\nE2b-Sandbox-Port: 3000"), "400"),
        (format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 3000"), "400"),
        (format!("E2b-Sandbox-Id: {too_long}\r\nE2b-Sandbox-Port: 3000"), "400"),
        (format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 3000\r\nE2b-Sandbox-Port: 49983"), "400"),
        (format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: +3000"), "400"),
        (format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 3e3"), "400"),
        (format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 18446744073709554616"), "400"),
        (format!("E2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: -1"), "400"),
        ("E2b-Sandbox-Id:\r\nE2b-Sandbox-Port: 3000".to_string(), "400"),
        (format!("E2b-Sandbox-Id: {id}"), "400"),
        ("E2b-Sandbox-Port: 3000".to_string(), "400"),
    ] {
        let request =
            format!("GET /odd HTTP/1.1\r\nHost: localhost\r\n{headers}\r\nConnection: close\r\n\r\n");
        let answers = finish(&world, &request).await;
        assert_eq!(statuses(&answers), [status], "{headers:?}: {answers}");
    }
    assert_eq!(seen.lock().unwrap().len(), 8);
}

/// A client can neither remove headers that protect nor forge those that the proxy vouches for.
#[tokio::test]
async fn connection_names_only_headers_of_the_client() {
    let mut world = World::new().await;
    world.target.traffic_token = Some("secret".into());
    world.route(Route::Running(world.target.clone()));
    Agentd::with_port(world.socket(), |stream| http(stream, show));
    let named =
        "Connection: e2b-traffic-access-token, host, x-forwarded-for, x-forwarded-proto, content-length\r\n";
    let refused =
        finish(&world, &format!("{}{named}Connection: close\r\n\r\n", world.line("GET", "/", 3000))).await;
    assert_eq!(statuses(&refused), ["403"], "without its token: {refused}");
    let token = "E2B-Traffic-Access-Token: secret\r\nX-Forwarded-For: 10.0.0.1\r\n";
    let request = format!("{}{named}{token}Connection: close\r\n\r\n", world.line("GET", "/", 3000));
    let shown = finish(&world, &request).await;
    assert_eq!(statuses(&shown), ["200"], "{shown}");
    assert!(!shown.contains("secret"), "the token went inside: {shown}");
    assert!(shown.contains("x-forwarded-for: 127.0.0.1\n"), "the peer is vouched for: {shown}");
    assert!(shown.contains(&format!("host: 3000-{}.test\n", world.id)), "{shown}");
    for tokens in ["secret,secret", "Secret", "secret\r\nE2B-Traffic-Access-Token: secret", ""] {
        let request = format!(
            "{}Connection: close\r\nE2B-Traffic-Access-Token: {tokens}\r\n\r\n",
            world.line("GET", "/", 3000)
        );
        let refused = finish(&world, &request).await;
        assert_eq!(statuses(&refused), ["403"], "{tokens:?}: {refused}");
    }
}

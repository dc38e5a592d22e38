//! Where requests go, and the answers when they go nowhere.

use super::*;
use coffer_guest::Route;

const EMPTY: &str = "\r\n";

#[tokio::test]
async fn both_ways_of_naming_a_sandbox_reach_its_agentd() {
    let world = World::new().await;
    Agentd::start(world.socket(), show);
    let id = &world.id;

    let by_host = world.ask("GET", "/metrics?a=b%20c", 49983, "X-Access-Token: t\r\n\r\n").await;
    assert_eq!(by_host.status, 200);
    assert_eq!(
        by_host.body,
        format!("GET /metrics?a=b%20c\nhost: 49983-{id}.test\nx-access-token: t\n"),
        "the request is forwarded unchanged"
    );

    let by_header = format!(
        "GET /metrics HTTP/1.1\r\nHost: {}\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: 49983\r\n\
         Connection: close\r\n\r\n",
        world.address
    );
    let by_header = world.ask_raw(&by_header).await;
    assert_eq!(
        by_header.body,
        format!("GET /metrics\ne2b-sandbox-id: {id}\ne2b-sandbox-port: 49983\nhost: {}\n", world.address)
    );
    assert!(world.target.activity.idle_ms() < 5_000);
}

#[tokio::test]
async fn what_names_no_sandbox_is_the_apis() {
    let world = World::new().await;
    for request in [
        "GET /sandboxes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "GET /files?path=a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
    ] {
        let reply = world.ask_raw(request).await;
        assert_eq!((reply.status, &*reply.body), (418, "the API"), "{request:?}");
    }
}

#[tokio::test]
async fn who_reconnects_by_itself_can_leave_a_sandbox_asleep() {
    let world = World::new().await;
    world.route(Route::NotFound);
    for (path, port, rest, wake) in [
        ("/process.Process/Connect", 49983, EMPTY, Wake::ByPolicy),
        ("/process.Process/Connect", 49983, "X-Coffer-Wake: never\r\n\r\n", Wake::Never),
        ("/", 3000, "X-Coffer-Wake: never\r\n\r\n", Wake::Never),
        ("/", 3000, "X-Coffer-Wake: please\r\n\r\n", Wake::ByPolicy),
        ("/health", 49983, EMPTY, Wake::Never),
        ("/health", 3000, EMPTY, Wake::ByPolicy),
    ] {
        world.ask("GET", path, port, rest).await;
        assert_eq!(world.book.wakes.lock().unwrap().pop(), Some(wake), "{path} on {port} with {rest:?}");
    }
}

#[tokio::test]
async fn sandboxes_that_cannot_be_reached_are_told_apart() {
    let world = World::new().await;
    let id = world.id.clone();
    let body =
        |message: &str, code: u16| format!(r#"{{"sandboxId":"{id}","message":"{message}","code":{code}}}"#);
    for (route, status, message) in [
        (Route::NotFound, 502, "The sandbox was not found"),
        (Route::Transitioning, 409, "The sandbox is still transitioning. Try again in a moment."),
        (Route::Busy, 429, "The host has no room to resume the sandbox now"),
        // The directory says that it runs, but its socket is gone.
        (Route::Running(world.target.clone()), 502, "The sandbox was not found"),
    ] {
        world.route(route);
        for port in [49983, 3000] {
            let reply = world.ask("GET", "/health", port, EMPTY).await;
            assert_eq!((reply.status, reply.body.clone()), (status, body(message, status)));
            assert_eq!(reply.header("content-type"), Some("application/json"));
            assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
        }
    }
    // The socket still exists, but no process listens.
    drop(std::os::unix::net::UnixListener::bind(world.socket()).unwrap());
    let reply = world.ask("GET", "/health", 49983, EMPTY).await;
    assert_eq!((reply.status, reply.body), (502, body("The sandbox was not found", 502)));
}

#[tokio::test]
async fn texts_that_are_no_ids_are_not_found() {
    let world = World::new().await;
    let reply = world.ask_raw("GET / HTTP/1.1\r\nHost: 80-nosuch.x\r\nConnection: close\r\n\r\n").await;
    assert_eq!(reply.status, 502);
    assert_eq!(reply.body, r#"{"sandboxId":"nosuch","message":"The sandbox was not found","code":502}"#);
}

#[tokio::test]
async fn malformed_addresses_are_refused() {
    let world = World::new().await;
    let agentd = Agentd::start(world.socket(), show);
    for headers in [
        "Host: localhost\r\nE2b-Sandbox-Id: ID\r\n",
        "Host: localhost\r\nE2b-Sandbox-Port: 49983\r\n",
        "Host: localhost\r\nE2b-Sandbox-Id: ID\r\nE2b-Sandbox-Port: 70000\r\n",
        "Host: localhost\r\nE2b-Sandbox-Id: ID\r\nE2b-Sandbox-Id: ID\r\nE2b-Sandbox-Port: 80\r\n",
        "Host: localhost\r\nHost: 49983-ID.x\r\n",
        "Host: 0-ID.x\r\n",
    ] {
        let headers = headers.replace("ID", &world.id);
        let reply =
            world.ask_raw(&format!("GET /health HTTP/1.1\r\n{headers}Connection: close\r\n\r\n")).await;
        assert_eq!(reply.status, 400, "{headers:?}");
        assert!(reply.body.ends_with(r#","code":400}"#), "{}", reply.body);
    }
    assert_eq!(agentd.requests(), 0);
}

#[tokio::test]
async fn control_routes_do_not_exist_from_outside() {
    let world = World::new().await;
    let agentd = Agentd::start(world.socket(), show);
    for path in
        ["/init", "/coffer/journal", "/freeze", "//init", "/%69nit", "/a/../init", "/upgrade", "/fsthaw/"]
    {
        let reply = world.ask("POST", path, 49983, EMPTY).await;
        assert_eq!(reply.status, 404, "{path}");
    }
    let connect = format!(
        "CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {}\r\n\
         E2b-Sandbox-Port: 49983\r\nConnection: close\r\n\r\n",
        world.id
    );
    // Target and Host contradict each other.
    assert_eq!(world.ask_raw(&connect).await.status, 400);
    let connect = connect.replace("Host: localhost", "Host: 127.0.0.1:22");
    assert_eq!(world.ask_raw(&connect).await.status, 404);
    assert_eq!(world.ask_raw(&connect.replace("49983", "3000")).await.status, 404);
    assert_eq!(agentd.requests(), 0, "nothing reached agentd");
}

#[tokio::test]
async fn a_closed_port_is_told_from_a_missing_sandbox() {
    let world = World::new().await;
    Agentd::start(world.socket(), show);
    let reply = world.ask("GET", "/", 8080, EMPTY).await;
    assert_eq!(reply.status, 502);
    assert_eq!(
        reply.body,
        format!(
            r#"{{"sandboxId":"{}","message":"The sandbox is running but port is not open","port":8080,"code":502}}"#,
            world.id
        )
    );
    let reply = world.ask("GET", "/", 8080, "User-Agent: Mozilla/5.0\r\n\r\n").await;
    assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(reply.body.starts_with("<!doctype html>") && reply.body.contains("port is not open"));
}

#[tokio::test]
async fn a_port_gets_the_request_with_its_host_and_who_asked() {
    let world = World::new().await;
    Agentd::with_port(world.socket(), |stream| http(stream, show));
    let id = &world.id;
    let reply = world.ask("GET", "/a?b", 3000, "Cookie: c=d\r\n\r\n").await;
    assert_eq!(
        reply.body,
        format!(
            "GET /a?b\ncookie: c=d\nhost: 3000-{id}.test\nx-forwarded-for: 127.0.0.1\n\
             x-forwarded-host: 3000-{id}.test\nx-forwarded-proto: http\n"
        )
    );
}

#[tokio::test]
async fn no_sandbox_sees_a_session_of_the_web_ui() {
    let world = World::new().await;
    Agentd::with_port(world.socket(), |stream| http(stream, show));
    let session = "Cookie: a=1; __Host-coffer=secret; coffer_session=secret; b=2\r\nX-Coffer-Session: secret\r\n\
                   Sec-WebSocket-Protocol: chat, coffer.session.secret, coffer.key.secret\r\n";
    let id = &world.id;
    let by_host = |port: u16| format!("GET / HTTP/1.1\r\nHost: {port}-{id}.test\r\n");
    let by_headers = |port: u16| {
        let host = world.address;
        format!("GET /x HTTP/1.1\r\nHost: {host}\r\nE2b-Sandbox-Id: {id}\r\nE2b-Sandbox-Port: {port}\r\n")
    };
    for head in [by_host(3000), by_headers(3000)] {
        let upgrade = "Connection: upgrade, close\r\nUpgrade: websocket\r\n";
        for connection in ["Connection: close\r\n", upgrade] {
            let reply = world.ask_raw(&format!("{head}{session}{connection}\r\n")).await;
            assert!(reply.body.contains("cookie: a=1; b=2\n"), "{}", reply.body);
            assert!(reply.body.contains("sec-websocket-protocol: chat\n"), "{}", reply.body);
            assert!(!reply.body.contains("secret"), "{}", reply.body);
        }
    }
}

#[tokio::test]
async fn a_traffic_token_guards_ports_but_not_agentd() {
    let mut world = World::new().await;
    world.target.traffic_token = Some("s3cret".into());
    world.target.mask_host = Some("app.internal:${PORT}".into());
    world.route(Route::Running(world.target.clone()));
    let inside: Port = Arc::new(|stream| Box::pin(http(stream, show)));
    let agentd = Agentd::with_ports(world.socket(), show, HashMap::from([(3000, inside)]));

    for headers in [
        EMPTY,
        "E2b-Traffic-Access-Token: wrong\r\n\r\n",
        "E2b-Traffic-Access-Token: s3cre\r\n\r\n",
        "E2b-Traffic-Access-Token: \r\n\r\n",
        "E2b-Traffic-Access-Token: s3cret\r\nE2b-Traffic-Access-Token: s3cret\r\n\r\n",
    ] {
        let reply = world.ask("GET", "/", 3000, headers).await;
        assert_eq!(reply.status, 403, "{headers:?}");
        let start = format!(r#"{{"sandboxId":"{}","message":""#, world.id);
        assert!(reply.body.starts_with(&start) && reply.body.ends_with(r#"","code":403}"#), "{}", reply.body);
    }
    assert_eq!(agentd.requests(), 0);

    let reply = world.ask("GET", "/", 3000, "E2b-Traffic-Access-Token: s3cret\r\n\r\n").await;
    assert_eq!(reply.status, 200);
    assert!(!reply.body.contains("s3cret"), "the token stays outside: {}", reply.body);
    assert!(reply.body.contains("\nhost: app.internal:3000\n"), "{}", reply.body);

    let reply = world.ask("GET", "/", 49983, EMPTY).await;
    assert_eq!(reply.status, 200);
    assert!(reply.body.contains(&format!("host: 49983-{}.test", world.id)), "agentd's host is never masked");
}

#[tokio::test]
async fn a_signed_url_finds_its_sandbox() {
    let world = World::new().await;
    Agentd::start(world.socket(), show);
    let token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0".to_owned();
    *world.book.secured.lock().unwrap() =
        vec![(SandboxId::generate(), "other".into()), (world.target.sandbox, token)];
    let line = "/files?path=hello.txt&username=user\
                &signature=v1_gUtH%2Fs9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E";
    let ask = |line: &str| {
        let request = format!("GET {line} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", world.address);
        let world = &world;
        async move { world.ask_raw(&request).await }
    };
    let reply = ask(line).await;
    assert_eq!(reply.status, 200);
    assert!(reply.body.starts_with(&format!("GET {line}\n")), "{}", reply.body);
    assert_eq!(reply.header("content-security-policy"), Some("sandbox; default-src 'none'"));
    let reply = ask(&line.replace("hello", "hullo")).await;
    assert_eq!((reply.status, &*reply.body), (401, r#"{"message":"invalid signature","code":401}"#));
}

#[tokio::test]
async fn browsers_may_ask_before_they_send() {
    let world = World::new().await;
    Agentd::start(world.socket(), show);
    let asked = "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n\
                 Access-Control-Request-Headers: content-type, e2b-sandbox-id, e2b-sandbox-port\r\n\r\n";
    // A preflight shows header names, not values: there is no sandbox to ask.
    let by_header = format!("OPTIONS /files HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{asked}");
    let reply = world.ask_raw(&by_header).await;
    assert_eq!(reply.status, 204);
    assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
    assert_eq!(
        reply.header("access-control-allow-headers"),
        Some("content-type, e2b-sandbox-id, e2b-sandbox-port")
    );
    let reply = world.ask("OPTIONS", "/files", 49983, asked).await;
    assert!(reply.body.starts_with("OPTIONS /files\n"), "agentd answers where it can be named");
}

#[tokio::test]
async fn a_refusal_is_readable_by_a_client_that_is_still_sending() {
    let world = World::new().await;
    let body = "x".repeat(20_000_000);
    let request = format!("Content-Length: {}\r\n\r\n{body}", body.len());
    world.route(Route::NotFound);
    assert_eq!(world.ask("POST", "/files", 49983, &request).await.status, 502);
    // The same when only the port is missing, or agentd itself.
    world.route(Route::Running(world.target.clone()));
    assert_eq!(world.ask("POST", "/files", 49983, &request).await.status, 502);
    Agentd::start(world.socket(), show);
    assert_eq!(world.ask("POST", "/files", 3000, &request).await.status, 502);
}

#[tokio::test]
async fn a_sandbox_has_only_so_many_requests_under_way() {
    let world = World::new().await;
    Agentd::start(world.socket(), show);
    let lanes = &world.front.proxy.lanes;
    let mut taken: Vec<_> = (0..1_000).map(|_| lanes.enter(&world.target).unwrap()).collect();
    let reply = world.ask("GET", "/health", 49983, EMPTY).await;
    assert_eq!(reply.status, 429);
    assert_eq!(reply.header("retry-after"), Some("1"));
    taken.pop();
    assert_eq!(world.ask("GET", "/health", 49983, EMPTY).await.status, 200);
}

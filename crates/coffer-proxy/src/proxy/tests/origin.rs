//! Answers of a hostile sandbox at the server's own address, where browsers keep the web UI.

use super::*;

/// Headers that a page inside would use to leave something in our origin.
const PLANTED: [(&str, &str); 11] = [
    ("cache-control", "public, max-age=31536000, immutable"),
    ("cdn-cache-control", "max-age=31536000"),
    ("set-cookie", "session=mine; Path=/"),
    ("clear-site-data", "\"*\""),
    ("strict-transport-security", "max-age=31536000"),
    ("nel", "{}"),
    ("alt-svc", "h3=\":443\""),
    ("service-worker-allowed", "/"),
    ("content-security-policy", "script-src *"),
    ("x-accel-redirect", "/private"),
    ("x-sendfile", "/etc/passwd"),
];

async fn plant(_: Request<Incoming>) -> Response<Body> {
    let mut answer = Response::builder().header("content-type", "text/javascript").header("etag", "\"1\"");
    for (name, value) in PLANTED {
        answer = answer.header(name, value);
    }
    answer.body(Body::from("alert(1)")).unwrap()
}

impl World {
    async fn by_headers(&self, path: &str, rest: &str) -> Reply {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nE2b-Sandbox-Id: {}\r\nE2b-Sandbox-Port: 49983\r\n\
             Connection: close\r\n{rest}\r\n",
            self.address, self.id
        );
        self.ask_raw(&request).await
    }
}

#[tokio::test]
async fn an_answer_at_our_address_leaves_nothing_behind() {
    let world = World::new().await;
    let agentd = Agentd::start(world.socket(), plant);
    let reply = world.by_headers("/anything.js", "").await;
    assert_eq!((reply.status, &*reply.body), (200, "alert(1)"));
    for (name, expected) in [
        ("cache-control", Some("no-store")),
        ("vary", Some("e2b-sandbox-id, e2b-sandbox-port")),
        ("content-security-policy", Some("sandbox; default-src 'none'")),
        ("x-content-type-options", Some("nosniff")),
        ("etag", Some("\"1\"")),
        ("cdn-cache-control", None),
        ("set-cookie", None),
        ("clear-site-data", None),
        ("strict-transport-security", None),
        ("nel", None),
        ("alt-svc", None),
        ("service-worker-allowed", None),
        ("x-accel-redirect", None),
        ("x-sendfile", None),
    ] {
        assert_eq!(reply.header(name), expected, "{name}");
    }
    // A sandbox may set anything for its own origin, but must not control a proxy in front of us.
    let own = world.ask("GET", "/", 49983, "\r\n").await;
    assert_eq!(own.header("set-cookie"), Some("session=mine; path=/"));
    assert_eq!(own.header("cache-control"), Some("public, max-age=31536000, immutable"));
    assert_eq!((own.header("x-accel-redirect"), own.header("x-sendfile")), (None, None));
    assert_eq!(agentd.requests(), 2);
}

#[tokio::test]
async fn a_sandbox_answers_for_no_path_of_ours_and_nothing_runs() {
    let world = World::new().await;
    let agentd = Agentd::start(world.socket(), plant);
    for path in [
        "/ui/assets/index-1.js",
        "/%75i/theme.js",
        "/x/../ui/",
        "/api/v1/docs",
        "/sandboxes",
        "/v2/sandboxes",
    ] {
        let reply = world.by_headers(path, "").await;
        assert_eq!(reply.status, 400, "{path}: {}", reply.body);
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{path}");
    }
    for dest in ["document", "script", "style", "worker", "sharedworker", "serviceworker", "iframe"] {
        let reply = world.by_headers("/files", &format!("Sec-Fetch-Dest: {dest}\r\n")).await;
        assert_eq!(reply.status, 403, "{dest}: {}", reply.body);
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{dest}");
    }
    assert_eq!(world.by_headers("/", "Sec-Fetch-Site: same-origin\r\n").await.status, 400);
    assert_eq!(agentd.requests(), 0, "nothing of it went inside");
    assert_eq!(world.by_headers("/files", "Sec-Fetch-Dest: empty\r\n").await.status, 200);
    assert_eq!(world.by_headers("/health", "").await.status, 200);
}

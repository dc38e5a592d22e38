//! The git gate: what passes, with which credential, and what hostile clients cannot do.

use coffer_core::network::Policy;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::names::addresses_of;
use crate::world::{PATIENCE, World, accepted, assert_reset, end, until};

pub(crate) const GATE: &str = "192.0.2.80:80";
const OLD: &str = "1111111111111111111111111111111111111111";
const NEW: &str = "2222222222222222222222222222222222222222";

pub(crate) fn policy(upstream: &str, push: Option<Value>) -> Policy {
    let mut route = json!({"slug": "app", "upstream": upstream, "authorization": "Basic hidden"});
    if let Some(push) = push {
        route["push"] = push;
    }
    serde_json::from_value(json!({"base": "none", "git": [route]})).unwrap()
}

pub(crate) fn window() -> Value {
    json!({"reference": "refs/heads/task-1", "expects": OLD, "until_ms": i64::MAX})
}

/// A sandbox with the repository `app`, and the server that stores it.
pub(crate) struct Place {
    pub(crate) world: World,
    pub(crate) server: TcpListener,
    pub(crate) upstream: String,
}

impl Place {
    pub(crate) async fn new(push: Option<Value>) -> Self {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = format!("http://{}/git/p/app.git", server.local_addr().unwrap());
        Self { world: World::new(policy(&upstream, push)).await, server, upstream }
    }

    pub(crate) async fn ask(&self, request: &str) -> TcpStream {
        let mut stream = self.world.connect(GATE).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// The gate's own answers.
    pub(crate) async fn refused(&self, request: &str) -> String {
        let answer = end(&mut self.ask(request).await).await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    pub(crate) fn set(&self, push: Option<Value>) -> usize {
        self.world.egress.replace_policy(self.world.id, policy(&self.upstream, push)).unwrap()
    }
}

fn packet(line: &str) -> String {
    format!("{:04x}{line}", line.len() + 4)
}

fn push(line: &str, capabilities: &str) -> String {
    let body = packet(&format!("{line}\0 {capabilities}")) + "0000PACK-of-objects";
    format!(
        "POST /app.git/git-receive-pack HTTP/1.1\r\nHost: git.coffer.internal\r\n\
         Content-Type: application/x-git-receive-pack-request\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: git.coffer.internal\r\nConnection: close\r\n\r\n")
}

/// Reads from a peer until `text` has arrived.
pub(crate) async fn heard(stream: &mut TcpStream, text: &str) -> String {
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).contains(text) {
        let byte = timeout(PATIENCE, stream.read_u8()).await.expect("it never came");
        bytes.push(byte.unwrap_or_else(|error| panic!("{error} after {}", String::from_utf8_lossy(&bytes))));
    }
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn a_fetch_gets_the_credential_and_leaves_with_nothing_of_it() {
    let place = Place::new(None).await;
    let request = "GET /app.git/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: git.coffer.internal\r\n\
                   Authorization: Basic mine\r\nCookie: a=b\r\nX-Forwarded-For: 1.1.1.1\r\nGit-Protocol: version=2\r\n\
                   User-Agent: git/2\r\nConnection: close\r\n\r\n";
    let mut inside = place.ask(request).await;
    let mut outside = accepted(&place.server).await;
    let sent = heard(&mut outside, "\r\n\r\n").await.to_lowercase();
    assert!(sent.starts_with("get /git/p/app.git/info/refs?service=git-upload-pack http/1.1\r\n"), "{sent}");
    assert!(sent.contains("authorization: basic hidden\r\n") && !sent.contains("mine"), "{sent}");
    assert!(sent.contains("git-protocol: version=2\r\n") && sent.contains("user-agent: git/2\r\n"), "{sent}");
    assert!(!sent.contains("cookie") && !sent.contains("forwarded"), "{sent}");
    let host = place.server.local_addr().unwrap();
    assert!(sent.contains(&format!("host: {host}\r\n")), "{sent}");
    let answer = "HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nSet-Cookie: session=hidden\r\nWWW-Authenticate: Basic\r\n\
                  X-Echo: Basic hidden\r\nContent-Length: 4\r\n\r\nrefs";
    outside.write_all(answer.as_bytes()).await.unwrap();
    let heard = String::from_utf8(end(&mut inside).await.unwrap()).unwrap().to_lowercase();
    assert!(heard.starts_with("http/1.1 200 ok\r\n") && heard.ends_with("\r\n\r\nrefs"), "{heard}");
    assert!(heard.contains("content-type: x/y") && !heard.contains("hidden"), "{heard}");
    assert!(!heard.contains("cookie") && !heard.contains("authenticate"), "{heard}");
    assert!(place.world.refusals().is_empty());
}

#[tokio::test]
async fn what_is_not_gits_or_not_the_sandboxs_is_refused_and_recorded_and_nobody_is_dialled() {
    let place = Place::new(None).await;
    let post = |kind: &str, encoding: &str| {
        format!(
            "POST /app.git/git-upload-pack HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n{encoding}\
             Content-Length: 4\r\nConnection: close\r\n\r\n0000"
        )
    };
    let mut rules = Vec::new();
    for (request, status, rule) in [
        (get("/other.git/info/refs?service=git-upload-pack"), "404", "git:repository"),
        (get("/app.git/info/refs"), "403", "git:service"),
        (get("/app.git/objects/info/packs"), "403", "git:service"),
        (get("/app.git/info/lfs/objects/batch"), "501", "git:lfs"),
        (get("/app.git/info/lfs/locks"), "501", "git:lfs"),
        (get("/app.git/info/refs?service=git-receive-pack"), "403", "git:push-closed"),
        (push(&format!("{OLD} {NEW} refs/heads/task-1"), "report-status"), "403", "git:push-closed"),
        (post("text/plain", ""), "403", "git:service"),
    ] {
        let answer = place.refused(&request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request} {answer}");
        assert!(answer.contains(&format!("x-coffer-rule: {rule}\r\n")), "{answer}");
        rules.push(rule.to_string());
    }
    assert_eq!(place.world.rules(rules.len()).await, rules);
    let first = &place.world.refusals()[0];
    assert_eq!(first.name.as_ref().unwrap().as_str(), "git.coffer.internal");
    // Only the server of the route was ever dialled, and nothing accepted here.
    assert!(timeout(std::time::Duration::from_millis(50), place.server.accept()).await.is_err());
    // After a restart of the node, until the server has sent the rest.
    let kept = policy(&place.upstream, None).without_secrets();
    place.world.egress.replace_policy(place.world.id, kept).unwrap();
    let answer = place.refused(&get("/app.git/info/refs?service=git-upload-pack")).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert_eq!(place.world.rules(rules.len() + 1).await.last().unwrap(), "secrets-unknown");
}

#[tokio::test]
async fn a_push_passes_as_announced_and_in_no_other_way() {
    let place = Place::new(Some(window())).await;
    let good = push(&format!("{OLD} {NEW} refs/heads/task-1"), "report-status");
    let mut inside = place.world.connect(GATE).await;
    // In pieces of any size.
    for piece in good.as_bytes().chunks(7) {
        inside.write_all(piece).await.unwrap();
    }
    let mut outside = accepted(&place.server).await;
    let sent = heard(&mut outside, "PACK-of-objects").await;
    assert!(sent.starts_with("POST /git/p/app.git/git-receive-pack HTTP/1.1\r\n"), "{sent}");
    assert!(sent.contains(&format!("{OLD} {NEW} refs/heads/task-1\0")), "{sent}");
    outside.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
    assert!(String::from_utf8(end(&mut inside).await.unwrap()).unwrap().ends_with("ok"));

    let none = "0".repeat(40);
    let caps = "report-status side-band-64k";
    for (line, capabilities, rule) in [
        (format!("{OLD} {NEW} refs/heads/main"), caps, "git:ref"),
        (format!("{OLD} {none} refs/heads/task-1"), caps, "git:deletion"),
        (format!("{NEW} {OLD} refs/heads/task-1"), caps, "git:stale"),
        (format!("{OLD} {NEW} refs/heads/task-1"), "report-status push-options", "git:push-options"),
    ] {
        let before = place.world.refusals().len();
        let answer = place.refused(&push(&line, capabilities)).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("ng refs/heads/"), "{answer}");
        assert_eq!(place.world.rules(before + 1).await[before], rule);
    }
    let squeezed = good.replace("Connection: close", "Content-Encoding: gzip\r\nConnection: close");
    assert!(place.refused(&squeezed).await.starts_with("HTTP/1.1 403 "));
    assert!(timeout(std::time::Duration::from_millis(50), place.server.accept()).await.is_err());
    // The question that git asks before a large push.
    let probe = "POST /app.git/git-receive-pack HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nConnection: close\r\n\
                 Content-Type: application/x-git-receive-pack-request\r\n\r\n0000";
    let mut inside = place.ask(probe).await;
    let mut outside = accepted(&place.server).await;
    assert!(heard(&mut outside, "\r\n\r\n0000").await.starts_with("POST "));
    outside.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    assert!(String::from_utf8(end(&mut inside).await.unwrap()).unwrap().starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_push_does_not_outlive_its_window() {
    let place = Place::new(Some(window())).await;
    // A pack that never ends, and an answer that has begun.
    let head = "POST /app.git/git-receive-pack HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\
                Content-Type: application/x-git-receive-pack-request\r\n\r\n";
    let line = packet(&format!("{OLD} {NEW} refs/heads/task-1\0 report-status")) + "0000";
    let mut inside = place.ask(&format!("{head}{:x}\r\n{line}\r\n", line.len())).await;
    let mut outside = accepted(&place.server).await;
    heard(&mut outside, "0000").await;
    outside.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n").await.unwrap();
    heard(&mut inside, "x").await;
    // Only the credential may change.
    assert_eq!(place.set(Some(window())), 0);
    assert_eq!(place.set(None), 1);
    let ended = timeout(PATIENCE, outside.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "the forge is not spoken to any more");
    let _ = end(&mut inside).await;
    let last = place.world.refusals().pop().unwrap();
    assert_eq!(
        (last.rule.as_str(), serde_json::to_value(last.kind).unwrap()),
        ("git:push-closed", json!("cut"))
    );
    until(|| place.world.egress.traffic(place.world.id).unwrap().open == 0).await;
    // Nor its time.
    let mut over = window();
    over["until_ms"] = json!(1);
    place.set(Some(over));
    let answer = place.refused(&get("/app.git/info/refs?service=git-receive-pack")).await;
    assert!(answer.contains("git:push-closed"), "{answer}");
}

#[tokio::test]
async fn a_forge_that_moves_refuses_or_lies_within_is_not_followed() {
    let place = Place::new(None).await;
    let fetch = get("/app.git/info/refs?service=git-upload-pack");
    for (answer, said) in [
        ("301 Moved Permanently\r\nLocation: https://evil.test/", "redirects are not followed"),
        ("302 Found\r\nLocation: /git/p/other.git/", "redirects are not followed"),
        ("401 Unauthorized\r\nWWW-Authenticate: Basic", "does not accept the credential"),
    ] {
        let mut inside = place.ask(&fetch).await;
        let mut outside = accepted(&place.server).await;
        heard(&mut outside, "\r\n\r\n").await;
        let answer = format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n");
        outside.write_all(answer.as_bytes()).await.unwrap();
        let heard = String::from_utf8(end(&mut inside).await.unwrap()).unwrap();
        assert!(heard.starts_with("HTTP/1.1 502 ") && heard.contains(said), "{heard}");
        assert!(!heard.contains("ocation"), "{heard}");
    }
    let inner = World::new(policy("https://ghe.test/o/app.git", None)).await;
    inner.internet.name("ghe.test", &["10.0.0.1", "169.254.169.254"]);
    let mut stream = inner.connect(GATE).await;
    stream.write_all(fetch.as_bytes()).await.unwrap();
    let heard = String::from_utf8(end(&mut stream).await.unwrap()).unwrap();
    assert!(heard.starts_with("HTTP/1.1 502 ") && heard.contains("sandboxes cannot reach"), "{heard}");
    assert!(inner.internet.dialled().is_empty());
    assert!(inner.rules(1).await[0].starts_with("never:"));
}

#[tokio::test]
async fn a_forge_that_the_operator_vouches_for_may_be_on_site_but_not_where_credentials_are() {
    let forge = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("https://ghe.test:{}/o/app.git", forge.local_addr().unwrap().port());
    let vouched = json!({"base": "none", "git": [{"slug": "app", "upstream": upstream, "on_site": true}]});
    let fetch = get("/app.git/info/refs?service=git-upload-pack");
    for (address, reached) in [("127.0.0.1", true), ("169.254.169.254", false), ("224.0.0.1", false)] {
        let inner = World::new(serde_json::from_value(vouched.clone()).unwrap()).await;
        inner.internet.name("ghe.test", &[address]);
        let mut stream = inner.connect(GATE).await;
        stream.write_all(fetch.as_bytes()).await.unwrap();
        if reached {
            drop(accepted(&forge).await);
        }
        let heard = String::from_utf8(end(&mut stream).await.unwrap()).unwrap();
        assert!(heard.starts_with("HTTP/1.1 502 "), "{heard}");
        assert_eq!(heard.contains("sandboxes cannot reach"), !reached, "{address}: {heard}");
        assert!(inner.internet.dialled().is_empty(), "it is dialled as the server is, by no proxy");
    }
}

#[tokio::test]
async fn the_gate_has_a_name_and_an_address_only_where_there_are_routes() {
    let place = Place::new(None).await;
    let gate: Vec<std::net::IpAddr> = vec!["192.0.2.80".parse().unwrap()];
    assert_eq!(addresses_of(&place.world, "git.coffer.internal").await, gate);
    assert!(place.world.internet.looked_up.lock().unwrap().is_empty(), "nobody else is asked");
    // Everything that the policy forbids stays forbidden.
    assert_reset(&mut place.world.connect("192.0.2.80:443").await).await;
    assert_reset(&mut place.world.connect("192.0.2.81:80").await).await;
    let bare: Policy = serde_json::from_value(json!({"base": "none"})).unwrap();
    place.world.egress.replace_policy(place.world.id, bare).unwrap();
    assert!(addresses_of(&place.world, "git.coffer.internal").await.is_empty());
    assert_reset(&mut place.world.connect(GATE).await).await;
    let rules = place.world.rules(4).await;
    assert_eq!(rules.last().unwrap(), "never:documentation", "{rules:?}");
}

//! Git LFS through the gate: objects pass, their credentials do not, and hostile peers on either end get
//! nothing.

use coffer_core::network::Policy;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::gate::{GATE, Place, get, heard, policy, window};
use crate::world::{PATIENCE, World, accepted, end};

const OID: &str = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: git.coffer.internal\r\nContent-Type: application/vnd.git-lfs+json\r\n\
         Authorization: Basic mine\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn batch(operation: &str) -> String {
    let objects = json!([{"oid": OID, "size": 3}]);
    let reference = json!({"name": "refs/heads/task-1"});
    let body =
        json!({"operation": operation, "transfers": ["ssh", "basic"], "ref": reference, "objects": objects});
    post("/app.git/info/lfs/objects/batch", &body.to_string())
}

/// Sends a forge's answer.
async fn say(outside: &mut TcpStream, head: &str, body: &str) {
    let answer = format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    outside.write_all(answer.as_bytes()).await.unwrap();
}

/// Head and body of an answer.
async fn answered(mut inside: TcpStream) -> (String, String) {
    let text = String::from_utf8(end(&mut inside).await.unwrap()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_string(), body.to_string())
}

impl Place {
    /// Requests a batch, which the forge answers with these actions; returns the object as the sandbox gets
    /// it.
    async fn batch(&self, operation: &str, actions: Value) -> Value {
        let inside = self.ask(&batch(operation)).await;
        let mut outside = accepted(&self.server).await;
        heard(&mut outside, "\"transfers\":[\"basic\"]").await;
        let answer = json!({"transfer": "basic", "objects": [{"oid": OID, "size": 3, "actions": actions}]});
        say(&mut outside, "200 OK\r\nSet-Cookie: hidden=1\r\nX-Echo: hidden", &answer.to_string()).await;
        let (head, body) = answered(inside).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head} {body}");
        assert!(!head.contains("hidden") && !body.contains("hidden"), "{head} {body}");
        let told: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(told["transfer"], "basic");
        told["objects"][0].clone()
    }

    fn own(&self) -> String {
        format!("{}/info/lfs/objects/{OID}", self.upstream)
    }
}

/// The path of an action's address.
fn path(object: &Value, action: &str) -> String {
    let href = object["actions"][action]["href"].as_str().unwrap_or_else(|| panic!("{object}"));
    href.strip_prefix("http://git.coffer.internal").unwrap().to_string()
}

fn put(path: &str, length: usize, body: &str) -> String {
    format!(
        "PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nAuthorization: Basic mine\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn an_object_is_downloaded_with_what_the_forge_gave_and_the_sandbox_never_saw() {
    let place = Place::new(None).await;
    let action = json!({"download": {"href": place.own(), "header": {"X-Token": "hidden", "Host": "evil"}}});
    let object = place.batch("download", action).await;
    assert_eq!(
        (&object["oid"], &object["size"], &object["authenticated"]),
        (&json!(OID), &json!(3), &json!(true))
    );
    let request = get(&path(&object, "download"))
        .replace("\r\nConnection", "\r\nRange: bytes=1-\r\nCookie: a=b\r\nConnection");
    let inside = place.ask(&request).await;
    let mut outside = accepted(&place.server).await;
    let sent = heard(&mut outside, "\r\n\r\n").await.to_lowercase();
    assert!(sent.starts_with(&format!("get /git/p/app.git/info/lfs/objects/{OID} http/1.1\r\n")), "{sent}");
    assert!(
        sent.contains("x-token: hidden\r\n") && sent.contains("authorization: basic hidden\r\n"),
        "{sent}"
    );
    assert!(sent.contains("range: bytes=1-\r\n") && sent.contains("accept-encoding: identity\r\n"), "{sent}");
    assert!(!sent.contains("cookie") && !sent.contains("evil"), "{sent}");
    say(&mut outside, "206 Partial Content\r\nContent-Range: bytes 1-2/3\r\nX-Echo: hidden", "oo").await;
    let (head, body) = answered(inside).await;
    assert!(head.starts_with("HTTP/1.1 206 ") && head.contains("bytes 1-2/3"), "{head}");
    assert!(!head.contains("hidden") && body == "oo", "{head} {body}");
    let traffic = place.world.egress.traffic(place.world.id).unwrap();
    assert!(traffic.sent_bytes > 0 && traffic.received_bytes > 0, "{traffic:?}");
    assert!(place.world.refusals().is_empty());
}

#[tokio::test]
async fn uploads_pass_while_a_push_may_and_are_as_long_as_announced() {
    let place = Place::new(None).await;
    let closed = place.refused(&batch("upload")).await;
    assert!(closed.starts_with("HTTP/1.1 403 ") && closed.contains("pushing is closed"), "{closed}");
    place.set(Some(window()));
    let other = batch("upload").replace("task-1", "task-2");
    let other = place.refused(&other).await;
    assert!(other.contains("x-coffer-rule: git:ref\r\n"), "{other}");

    let actions = json!({"upload": {"href": place.own()}, "verify": {"href": place.own(), "header": {"X-V": "hidden"}}});
    let object = place.batch("upload", actions).await;
    let (upload, verify) = (path(&object, "upload"), path(&object, "verify"));
    let long = place.refused(&put(&upload, 4, "fooo")).await;
    assert!(long.starts_with("HTTP/1.1 422 ") && long.contains("git:lfs-size"), "{long}");
    let chunked = put(&upload, 3, "").replace("Content-Length: 3", "Transfer-Encoding: chunked")
        + "3\r\nfoo\r\n0\r\n\r\n";
    assert!(place.refused(&chunked).await.contains("git:lfs-size"), "its length is not known");
    for wrong in [get(&upload), put(&verify, 3, "foo"), post(&upload, "{}")] {
        assert!(place.refused(&wrong).await.contains("git:lfs-transfer"), "{wrong}");
    }

    let inside = place.ask(&put(&upload, 3, "foo")).await;
    let mut outside = accepted(&place.server).await;
    let sent = heard(&mut outside, "\r\n\r\nfoo").await.to_lowercase();
    assert!(
        sent.starts_with("put /git/p/app.git/info/lfs/objects/") && sent.contains("content-length: 3\r\n"),
        "{sent}"
    );
    assert!(sent.contains("authorization: basic hidden\r\n") && !sent.contains("mine"), "{sent}");
    say(&mut outside, "200 OK", "stored with Basic hidden").await;
    assert_eq!(answered(inside).await.1, "{}", "what the store says is not told");

    // The announced object is verified, whatever the sandbox says.
    let inside = place.ask(&post(&verify, "{\"oid\": \"other\"}")).await;
    let mut outside = accepted(&place.server).await;
    let sent = heard(&mut outside, "}").await;
    assert!(
        sent.contains(&json!({"oid": OID, "size": 3}).to_string()) && sent.contains("x-v: hidden"),
        "{sent}"
    );
    say(&mut outside, "403 Forbidden", "hidden is not good").await;
    let (head, body) = answered(inside).await;
    assert!(head.starts_with("HTTP/1.1 403 ") && !body.contains("hidden"), "{head} {body}");

    // An upload in progress ends with its window, and its ticket is invalid afterwards.
    let mut inside = place.ask(&put(&upload, 3, "f")).await;
    let mut outside = accepted(&place.server).await;
    heard(&mut outside, "\r\n\r\nf").await;
    assert_eq!(place.set(None), 1);
    let ended = timeout(PATIENCE, outside.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "the forge is not spoken to any more");
    let _ = end(&mut inside).await;
    let late = place.refused(&put(&upload, 3, "foo")).await;
    assert!(late.contains("x-coffer-rule: git:push-closed\r\n"), "{late}");
    // Only addresses that were accepted here were ever dialled.
    assert!(timeout(std::time::Duration::from_millis(50), place.server.accept()).await.is_err());
}

#[tokio::test]
async fn a_forge_leads_nobody_where_it_must_not() {
    let place = Place::new(None).await;
    for href in [
        "http://169.254.169.254/latest/meta-data".to_string(),
        "https://127.0.0.1/x".to_string(),
        "https://user:hidden@example.com/x".to_string(),
        place.upstream.replace("app.git", "other.git/info/lfs/objects/x"),
        place.upstream.replace("/git/p/app.git", "/api/v1/keys"),
        "file:///etc/passwd".to_string(),
    ] {
        let object = place.batch("download", json!({"download": {"href": href}})).await;
        assert!(object["actions"].is_null() && object["error"]["code"] == 502, "{href}: {object}");
    }
    assert!(place.world.rules(6).await.iter().all(|rule| rule == "git:lfs-place"));
    // A name with a private address is refused when it is dialled; the forge's own host is no exception here.
    let inner = "https://store.test/x?sig=hidden";
    let object =
        place.batch("download", json!({"download": {"href": inner, "header": {"X": "hidden"}}})).await;
    place.world.internet.name("store.test", &["10.0.0.1", "127.0.0.1", "169.254.169.254"]);
    let told = place.refused(&get(&path(&object, "download"))).await;
    assert!(told.starts_with("HTTP/1.1 502 ") && told.contains("sandboxes cannot reach"), "{told}");
    assert!(!told.contains("hidden") && place.world.internet.dialled().is_empty());
    assert!(place.world.rules(7).await[6].starts_with("never:"));
}

#[tokio::test]
async fn objects_that_lie_about_their_length_are_cut() {
    let place = Place::new(None).await;
    let object = place.batch("download", json!({"download": {"href": place.own()}})).await;
    let request = get(&path(&object, "download"));
    let inside = place.ask(&request).await;
    let mut outside = accepted(&place.server).await;
    heard(&mut outside, "\r\n\r\n").await;
    say(&mut outside, "200 OK", "fooo").await;
    let (head, body) = answered(inside).await;
    assert!(head.starts_with("HTTP/1.1 502 ") && body.contains("another length"), "{head} {body}");

    let mut inside = place.ask(&request).await;
    let mut outside = accepted(&place.server).await;
    heard(&mut outside, "\r\n\r\n").await;
    let without_end = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nfoo\r\n3\r\nbar\r\n";
    outside.write_all(without_end.as_bytes()).await.unwrap();
    let text = end(&mut inside).await.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(
        text.as_ref().is_ok_and(|text| !text.contains("bar") && !text.ends_with("0\r\n\r\n")),
        "{text:?}"
    );

    for (answer, shown) in [
        ("302 Found\r\nLocation: https://evil.test/", "HTTP/1.1 502 "),
        ("404 Not Found", "HTTP/1.1 404 "),
        ("401 Unauthorized", "HTTP/1.1 502 "),
    ] {
        let inside = place.ask(&request).await;
        let mut outside = accepted(&place.server).await;
        heard(&mut outside, "\r\n\r\n").await;
        say(&mut outside, answer, "<StringToSign>hidden</StringToSign>").await;
        let (head, body) = answered(inside).await;
        assert!(
            head.starts_with(shown) && !head.contains("ocation") && !body.contains("hidden"),
            "{head} {body}"
        );
    }
}

#[tokio::test]
async fn what_is_hostile_inside_reaches_no_other_repository_and_fills_no_memory() {
    let place = Place::new(None).await;
    let many: Vec<Value> = (0..1001).map(|at| json!({"oid": format!("{at:064x}"), "size": 1})).collect();
    let many = json!({"operation": "download", "objects": many}).to_string();
    let long = format!("{{\"operation\": \"download\", \"x\": \"{}\"}}", "y".repeat(300 * 1024));
    let good = place.batch("download", json!({"download": {"href": place.own()}})).await;
    let token = path(&good, "download");
    let to = "/app.git/info/lfs/objects/batch";
    let mut rules = Vec::new();
    for (request, status, rule) in [
        (batch("download").replace("/app.git", "/other.git"), "404", "git:repository"),
        (get(&token.replace("/app.git", "/other.git")), "404", "git:lfs-transfer"),
        (get(&format!("{token}A")), "404", "git:lfs-transfer"),
        (get("/app.git/info/lfs/transfer/"), "404", "git:lfs-transfer"),
        (get("/app.git/info/lfs/transfer/https://evil.test/x"), "404", "git:lfs-transfer"),
        (post(to, "{"), "422", "git:lfs-batch"),
        (batch("delete"), "422", "git:lfs-batch"),
        (batch("download").replace("\"basic\"", "\"tus5s\""), "422", "git:lfs-batch"),
        (batch("download").replace(&OID[..4], "../x"), "422", "git:lfs-batch"),
        (post(to, &many), "413", "git:lfs-large"),
        (post("/app.git/info/lfs/locks", "{}"), "501", "git:lfs"),
    ] {
        let answer = place.refused(&request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request:.200} {answer}");
        assert!(answer.contains(&format!("x-coffer-rule: {rule}\r\n")), "{answer}");
        rules.push(rule.to_string());
    }
    assert_eq!(place.world.rules(rules.len()).await, rules);
    // A body that is too long is not read to its end, which may cost the client the answer, but never the
    // gate its memory.
    let mut inside = place.world.connect(GATE).await;
    let _ = inside.write_all(post(to, &long).as_bytes()).await;
    let _ = end(&mut inside).await;
    assert_eq!(place.world.rules(rules.len() + 1).await.last().unwrap(), "git:lfs-large");
    // Another sandbox cannot use this one's tickets, nor this one once the route has changed.
    let other = World::new(policy(&place.upstream, None)).await;
    let mut stream = other.connect(GATE).await;
    stream.write_all(get(&token).as_bytes()).await.unwrap();
    let told = String::from_utf8(end(&mut stream).await.unwrap()).unwrap();
    assert!(told.contains("git:lfs-transfer"), "{told}");
    let elsewhere = policy(&place.upstream.replace("/p/", "/q/"), None);
    place.world.egress.replace_policy(place.world.id, elsewhere).unwrap();
    assert!(place.refused(&get(&token)).await.contains("git:lfs-transfer"));
    assert!(timeout(std::time::Duration::from_millis(50), place.server.accept()).await.is_err());
    let bare: Policy = policy(&place.upstream, None).without_secrets();
    place.world.egress.replace_policy(place.world.id, bare).unwrap();
    assert!(
        place.refused(&batch("download")).await.starts_with("HTTP/1.1 503 "),
        "the credential is not known yet"
    );
}

#[tokio::test]
async fn what_a_forge_says_of_a_batch_is_told_and_locks_are_not_there() {
    let place = Place::new(None).await;
    for (answer, body, shown, said) in [
        ("401 Unauthorized", "{}", "502", "does not accept the credential"),
        ("301 Moved\r\nLocation: /x", "", "502", "redirects are not followed"),
        ("404 Not Found", "{\"message\": \"no LFS here\"}", "404", "no LFS here"),
        ("507 Insufficient Storage", "<html>", "507", "the forge answers 507"),
        ("200 OK", "[]", "502", "cannot be parsed"),
        ("200 OK", "{\"transfer\": \"tus\", \"objects\": []}", "502", "not supported here"),
    ] {
        let inside = place.ask(&batch("download")).await;
        let mut outside = accepted(&place.server).await;
        heard(&mut outside, "\"transfers\":[\"basic\"]").await;
        say(&mut outside, answer, body).await;
        let (head, body) = answered(inside).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {shown} ")) && body.contains(said), "{head} {body}");
    }
    let inside = place.ask(&batch("download")).await;
    let mut outside = accepted(&place.server).await;
    heard(&mut outside, "\"transfers\":[\"basic\"]").await;
    let _ = outside.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
    let piece = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    while outside.write_all(piece.as_bytes()).await.is_ok() {}
    let (head, body) = answered(inside).await;
    assert!(head.starts_with("HTTP/1.1 502 ") && body.contains("too long"), "{head} {body}");

    let locks = place.refused(&post("/app.git/info/lfs/locks/verify", "{}")).await;
    assert!(locks.starts_with("HTTP/1.1 404 ") && locks.contains("locks are not supported"), "{locks}");
    assert!(place.world.refusals().is_empty(), "which is no reason to tell anybody");
}

//! Webhooks, with receivers that answer, fail, hang, redirect, stream endlessly and lie.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coffer_core::settings::Period;
use coffer_server::{ServerConfig, WebhookSettings};
use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::Notify;

use crate::app::{TestApp, policy};

/// How a receiver handles a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Good,
    /// Answers with this status.
    Status(u16),
    /// Redirects to an address that would succeed.
    Redirects,
    /// Accepts it and sends nothing.
    Hangs,
    /// Succeeds, with an endless body.
    GoesOn,
    /// Does not speak HTTP.
    Lies,
    /// Ends the connection.
    HangsUp,
}

/// The received requests.
#[derive(Debug, Clone)]
struct Got {
    path: String,
    headers: HashMap<String, String>,
    body: String,
}

impl Got {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A receiver.
struct Receiver {
    port: u16,
    mood: Arc<Mutex<Mood>>,
    got: Arc<Mutex<Vec<Got>>>,
    came: Arc<Notify>,
}

impl Receiver {
    async fn start(mood: Mood) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            port: listener.local_addr().unwrap().port(),
            mood: Arc::new(Mutex::new(mood)),
            got: Arc::default(),
            came: Arc::default(),
        };
        let (mood, got, came) = (receiver.mood.clone(), receiver.got.clone(), receiver.came.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, mood.clone(), got.clone(), came.clone()));
            }
        });
        receiver
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook?a=b", self.port)
    }

    fn be(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }

    /// Waits until this many have arrived.
    async fn wait_for(&self, count: usize) -> Vec<Got> {
        let wait = async {
            loop {
                let came = self.came.notified();
                let got = self.got();
                if got.len() >= count {
                    return got;
                }
                came.await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), wait).await;
        waited.unwrap_or_else(|_| panic!("{} of {count} came: {:?}", self.got().len(), self.got()))
    }
}

async fn serve(mut stream: TcpStream, mood: Arc<Mutex<Mood>>, got: Arc<Mutex<Vec<Got>>>, came: Arc<Notify>) {
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    let head = loop {
        let read = stream.read(&mut piece).await.unwrap_or(0);
        if read == 0 {
            return;
        }
        text.extend_from_slice(&piece[..read]);
        if let Some(at) = text.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
    };
    let lines = String::from_utf8(text[..head].to_vec()).unwrap();
    let mut lines = lines.lines();
    let path = lines.next().unwrap().split(' ').nth(1).unwrap().to_string();
    let headers: HashMap<_, _> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_string()))
        .collect();
    let length: usize = headers["content-length"].parse().unwrap();
    while text.len() < head + 4 + length {
        let read = stream.read(&mut piece).await.unwrap_or(0);
        assert!(read > 0, "it broke off");
        text.extend_from_slice(&piece[..read]);
    }
    let body = String::from_utf8(text[head + 4..].to_vec()).unwrap();
    let mood = *mood.lock().unwrap();
    got.lock().unwrap().push(Got { path: path.clone(), headers, body });
    let answer = match mood {
        Mood::Good => "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nthank".to_string(),
        Mood::Status(code) => format!("HTTP/1.1 {code} So\r\ncontent-length: 7\r\n\r\nno\x1b[31m"),
        Mood::Redirects => {
            "HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n".to_string()
        }
        Mood::GoesOn => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_string(),
        Mood::Lies => format!("{}\r\n", "SSH-2.0-liar ".repeat(20_000)),
        Mood::Hangs | Mood::HangsUp => String::new(),
    };
    let _ = stream.write_all(answer.as_bytes()).await;
    came.notify_waiters();
    match mood {
        Mood::Hangs => std::future::pending::<()>().await,
        Mood::GoesOn => while stream.write_all(b"5\r\nhello\r\n").await.is_ok() {},
        _ => {
            let _ = stream.shutdown().await;
        }
    }
}

/// Short retries and timeouts.
fn settings() -> WebhookSettings {
    WebhookSettings {
        local_targets: true,
        tries: 3,
        first_retry: Period::millis(20),
        timeout: Period::millis(1500),
        ..WebhookSettings::default()
    }
}

async fn started(webhooks: WebhookSettings) -> TestApp {
    TestApp::configured(ServerConfig { lifetime: policy(), webhooks, ..ServerConfig::default() }).await
}

async fn made(app: &TestApp, url: &str, events: &[&str]) -> (String, String) {
    let made = app.post("/api/v1/webhooks", json!({"url": url, "events": events})).await.expect(201).json();
    let secret = made["signing_secret"].as_str().unwrap().to_string();
    (format!("/api/v1/webhooks/{}", made["id"].as_str().unwrap()), secret)
}

/// Records an event.
async fn say(app: &TestApp, title: &str) -> String {
    let task = app.post("/api/v1/tasks", json!({"title": title})).await.expect(201).json();
    task["id"].as_str().unwrap().to_string()
}

/// Waits until the webhook's log matches.
async fn until(app: &TestApp, path: &str, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let mut last = Vec::new();
    for _ in 0..2000 {
        let log = app.get(&format!("{path}/deliveries")).await.expect(200).json();
        last = log["items"].as_array().unwrap().clone();
        if is_so(&last) {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("still {last:?}");
}

/// The code that the documentation gives to receivers, run literally.
async fn verify(secret: &str, got: &Got, now: i64) -> bool {
    let docs =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/webhooks.md")).unwrap();
    let snippet = docs.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let script = format!(
        "{snippet}\nimport json, sys\nasked = json.load(sys.stdin)\n\
         sys.exit(0 if is_genuine(asked['secret'], asked['headers'], asked['body'].encode(), asked['now']) else 7)\n"
    );
    let mut child = Command::new("python3")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let asked = json!({"secret": secret, "headers": got.headers, "body": got.body, "now": now}).to_string();
    child.stdin.take().unwrap().write_all(asked.as_bytes()).await.unwrap();
    let output = child.wait_with_output().await.unwrap();
    match output.status.code() {
        Some(0) => true,
        Some(7) => false,
        _ => panic!("{}", String::from_utf8_lossy(&output.stderr)),
    }
}

#[tokio::test]
async fn an_event_is_told_signed_and_only_to_whom_wants_it() {
    let app = started(settings()).await;
    let (receiver, other) = (Receiver::start(Mood::Good).await, Receiver::start(Mood::Good).await);
    let (path, secret) = made(&app, &receiver.url(), &["task.*"]).await;
    made(&app, &other.url(), &["sandbox.running"]).await;
    app.put("/api/v1/secrets/token", json!({"value": "a \"quoted\" secret"})).await.expect(201);
    let task = say(&app, "Fix").await;
    app.post(&format!("/api/v1/tasks/{task}/messages"), json!({"body": "it is a \"quoted\" secret"}))
        .await
        .expect(201);
    let got = receiver.wait_for(2).await;
    let sandbox = app.create(json!({})).await;
    assert_eq!(other.wait_for(1).await[0].json()["subject"], json!(sandbox));
    assert_eq!(receiver.got().len(), 2);

    let first = got.iter().find(|got| got.headers["x-coffer-event"] == "task.created").unwrap();
    assert_eq!(first.path, "/hook?a=b");
    assert_eq!(first.headers["content-type"], "application/json");
    let listed = app.get("/api/v1/events?kind=task.created").await.expect(200).json();
    assert_eq!(first.json(), listed["items"][0], "it is what the log shows");
    assert!(!got.iter().any(|got| got.body.contains("quoted")), "{got:?}");

    let log = until(&app, &path, |log| log.iter().all(|one| one["state"] == "delivered")).await;
    let (ids, told): (Vec<_>, Vec<_>) =
        log.iter().map(|one| (one["id"].as_str().unwrap(), (&one["tries"], &one["response_status"]))).unzip();
    assert_eq!(told, [(&json!(1), &json!(200)); 2]);
    assert_eq!(log[0]["response"], json!("thank"));
    assert!(ids.contains(&first.headers["x-coffer-delivery"].as_str()));
    assert_eq!(first.headers["webhook-id"], first.headers["x-coffer-delivery"]);
    let detail = app.get(&format!("{path}/deliveries/{}", first.headers["webhook-id"])).await.expect(200);
    assert_eq!(detail.json()["body"], json!(first.body));

    // Checked as the documentation says.
    let at: i64 = first.headers["x-coffer-timestamp"].parse().unwrap();
    assert!(verify(&secret, first, at).await);
    let forged = Got { body: first.body.replace("task.created", "task.deleted"), ..first.clone() };
    assert!(!verify(&secret, &forged, at).await);
    assert!(!verify("whsec_c29tZXRoaW5nIGVsc2U=", first, at).await);
    assert!(!verify(&secret, first, at + 3600).await, "one that was caught an hour ago");
    let mut later = first.clone();
    later.headers.insert("x-coffer-timestamp".into(), (at + 3600).to_string());
    assert!(!verify(&secret, &later, at + 3600).await, "and made to look new");
    // A stored secret is used as it is, and is not shown.
    app.put("/api/v1/secrets/hook", json!({"value": "as it is"})).await.expect(201);
    let changed = app.as_key(&app.key, Method::PATCH, &path, json!({"secret": "hook"})).await.expect(200);
    assert_eq!((&changed.json()["secret"], changed.text().contains("as it is")), (&json!("hook"), false));
    app.post_empty(&format!("{path}/test")).await.expect(202);
    let ping = receiver.wait_for(3).await[2].clone();
    assert_eq!(
        (ping.headers["x-coffer-event"].as_str(), &ping.json()["kind"]),
        ("webhook.ping", &json!("webhook.ping"))
    );
    assert!(verify("as it is", &ping, ping.headers["x-coffer-timestamp"].parse().unwrap()).await);
    app.post_empty(&format!("{path}/rotate")).await.expect(409);
}

#[tokio::test]
async fn a_receiver_that_does_not_take_it_is_tried_again_and_then_given_up() {
    let app = started(settings()).await;
    for (mood, status, error) in [
        (Mood::Status(500), json!(500), "500"),
        (Mood::Redirects, json!(302), "redirects are not followed"),
        (Mood::Hangs, json!(null), "no answer within 1.5 s"),
        (Mood::Lies, json!(null), "the HTTP exchange failed"),
        (Mood::HangsUp, json!(null), "the HTTP exchange failed"),
    ] {
        let receiver = Receiver::start(mood).await;
        let (path, _) = made(&app, &receiver.url(), &["task.created"]).await;
        say(&app, "Told").await;
        let log = until(&app, &path, |log| log.len() == 1 && log[0]["state"] == "failed").await;
        assert_eq!((&log[0]["tries"], &log[0]["response_status"]), (&json!(3), &status), "{mood:?}");
        assert!(log[0]["error"].as_str().unwrap().contains(error), "{mood:?}: {log:?}");
        assert!(log[0]["ended_at"].is_string() && log[0]["next_try_at"].is_null());
        let got = receiver.wait_for(3).await;
        assert_eq!(got.len(), 3, "{mood:?}");
        assert!(got.iter().all(|one| one.path == "/hook?a=b"), "a redirect was followed");
        let ids: Vec<_> = got.iter().map(|one| one.headers["x-coffer-delivery"].as_str()).collect();
        assert_eq!(ids, [log[0]["id"].as_str().unwrap(); 3], "the id is that of the event, not of the try");
        let shown = app.get(&path).await.expect(200).json();
        assert_eq!((&shown["failures"], &shown["enabled"]), (&json!(3), &json!(true)));
        assert!(!log[0]["response"].as_str().unwrap_or_default().contains('\x1b'), "{log:?}");

        // It works again, and a person requests it once more.
        receiver.be(Mood::GoesOn);
        let again = format!("{path}/deliveries/{}/redeliver", log[0]["id"].as_str().unwrap());
        app.post_empty(&again).await.expect(202);
        let log = until(&app, &path, |log| log[0]["state"] == "delivered").await;
        assert_eq!(log[0]["tries"], json!(1), "a body that never ends keeps nobody");
        assert!(log[0]["response"].as_str().unwrap().starts_with("hellohello"));
        assert!(log[0]["response"].as_str().unwrap().len() <= 1024);
        app.delete(&path).await.expect(204);
    }
}

#[tokio::test]
async fn a_dead_receiver_delays_nobody() {
    let patient = WebhookSettings { timeout: Period::secs(30), ..settings() };
    let app = started(patient).await;
    let (dead, good) = (Receiver::start(Mood::Hangs).await, Receiver::start(Mood::Good).await);
    made(&app, &dead.url(), &["*"]).await;
    let (path, _) = made(&app, &good.url(), &["task.created"]).await;
    for at in 0..40 {
        say(&app, &format!("t{at}")).await;
    }
    good.wait_for(40).await;
    assert!(dead.got().len() <= 4, "{}", dead.got().len());
    let log = until(&app, &path, |log| log.iter().all(|one| one["state"] == "delivered")).await;
    assert_eq!(log.len(), 40);
    let mut told: Vec<i64> = good.got().iter().map(|got| got.json()["sequence"].as_i64().unwrap()).collect();
    told.sort_unstable();
    told.dedup();
    assert_eq!(told.len(), 40, "each once");
}

#[tokio::test]
async fn one_that_is_gone_or_never_works_is_disabled() {
    let at_once = WebhookSettings { disable_after: Period::millis(0), ..settings() };
    let app = started(at_once).await;
    for (mood, reason) in [(Mood::Status(410), "gone"), (Mood::Status(404), "failing")] {
        let receiver = Receiver::start(mood).await;
        let (path, _) = made(&app, &receiver.url(), &["task.created"]).await;
        say(&app, "Told").await;
        receiver.wait_for(1).await;
        let mut shown = Value::Null;
        for _ in 0..1000 {
            shown = app.get(&path).await.expect(200).json();
            if shown["enabled"] == json!(false) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!((&shown["enabled"], &shown["disabled_reason"]), (&json!(false), &json!(reason)));
        let told = app.events("webhook.disabled").await;
        assert_eq!(told.last(), Some(&json!({ "reason": reason })));
        let before = receiver.got().len();
        say(&app, "Not told").await;
        // A test is sent all the same, after everything else would have been.
        receiver.be(Mood::Good);
        app.post_empty(&format!("{path}/test")).await.expect(202);
        let got = receiver.wait_for(before + 1).await;
        assert_eq!(got.last().unwrap().headers["x-coffer-event"], "webhook.ping");
        app.as_key(&app.key, Method::PATCH, &path, json!({"enabled": true})).await.expect(200);
        let task = say(&app, "Told again").await;
        let got = receiver.wait_for(before + 2).await;
        assert_eq!(got.last().unwrap().json()["subject"], json!(task));
        app.delete(&path).await.expect(204);
    }
}

#[tokio::test]
async fn only_what_is_about_a_context() {
    let app = started(settings()).await;
    let receiver = Receiver::start(Mood::Good).await;
    let new = json!({"url": receiver.url(), "events": ["*"], "context_id": "h-1"});
    app.post("/api/v1/webhooks", new).await.expect(201);
    say(&app, "another").await;
    let ours = app.post("/api/v1/tasks", json!({"title": "a", "context_id": "h-1"})).await.expect(201).json();
    let path = format!("/api/v1/tasks/{}", ours["id"].as_str().unwrap());
    app.post(&format!("{path}/messages"), json!({"body": "hear"})).await.expect(201);
    let got = receiver.wait_for(2).await;
    assert!(got.iter().all(|got| got.json()["subject"] == ours["id"]), "{got:?}");
}

#[tokio::test]
async fn nothing_is_lost_over_a_restart_and_two_servers_tell_once() {
    let mut app = started(settings()).await;
    let receiver = Receiver::start(Mood::Good).await;
    made(&app, &receiver.url(), &["task.created", "secret.created"]).await;
    // While no server runs, another process writes to the same database.
    app.restart(async |app| {
        let scope = app.scope().await;
        for at in 0..3 {
            let name = format!("S{at}").parse().unwrap();
            app.store.put_secret(&scope, &name, &"while it was away".to_string().into(), None).await.unwrap();
        }
    })
    .await;
    let installation = Some("second".to_string());
    let config =
        ServerConfig { lifetime: policy(), webhooks: settings(), installation, ..ServerConfig::default() };
    let mut second = app.neighbour(config).await;
    for at in 0..30 {
        let on = if at % 2 == 0 { &app } else { &second };
        say(on, &format!("t{at}")).await;
    }
    let got = receiver.wait_for(33).await;
    let mut subjects: Vec<_> = got.iter().map(|got| got.json()["subject"].to_string()).collect();
    subjects.sort();
    subjects.dedup();
    assert_eq!((got.len(), subjects.len()), (33, 33), "each event once");
    second.stop().await;
    app.stop().await;
    assert_eq!(receiver.got().len(), 33);
}

#[tokio::test]
async fn what_is_wrong_is_refused_and_nothing_is_anothers() {
    let app = started(WebhookSettings::default()).await;
    let post = async |body: Value| app.post("/api/v1/webhooks", body).await;
    let good = "https://example.com/hook";
    for (body, field) in [
        (json!({"url": "http://example.com/", "events": ["*"]}), "url"),
        (json!({"url": "https://127.0.0.1/", "events": ["*"]}), "url"),
        (json!({"url": "https://169.254.169.254/latest", "events": ["*"]}), "url"),
        (json!({"url": "https://[::ffff:10.0.0.1]/", "events": ["*"]}), "url"),
        (json!({"url": "https://u:p@example.com/", "events": ["*"]}), "url"),
        (json!({"url": good, "events": []}), "events"),
        (json!({"url": good, "events": ["Task.*"]}), "events[0]"),
        (json!({"url": good, "events": ["task.*", "*.x"]}), "events[1]"),
        (json!({"url": good, "events": ["task.teleported"]}), "events[0]"),
        (json!({"url": good, "events": vec!["a"; 51]}), "events"),
        (json!({"url": good, "events": ["*"], "secret": "absent"}), "secret"),
        (json!({"url": good, "events": ["*"], "context_id": ""}), "context_id"),
        (json!({"url": good, "events": ["*"], "nonsense": 1}), "nonsense"),
    ] {
        let refused = post(body.clone()).await.expect(422).json();
        assert!(refused["message"].as_str().unwrap().contains(field), "{body}: {refused}");
    }
    assert_eq!(app.get("/api/v1/webhooks").await.expect(200).json()["items"], json!([]));

    let made = post(json!({"url": "https://example.com/hook/t0ken", "events": ["run.ended"]}))
        .await
        .expect(201)
        .json();
    let path = format!("/api/v1/webhooks/{}", made["id"].as_str().unwrap());
    let again = app.get(&path).await.expect(200);
    assert!(!again.text().contains("whsec_"), "it is shown once");
    app.as_key(&app.key, Method::PATCH, &path, json!({"url": "https://10.0.0.1/"})).await.expect(422);
    let other = &app.other_key;
    for (method, path) in [
        (Method::GET, path.clone()),
        (Method::PATCH, path.clone()),
        (Method::DELETE, path.clone()),
        (Method::POST, format!("{path}/test")),
        (Method::POST, format!("{path}/rotate")),
        (Method::GET, format!("{path}/deliveries")),
    ] {
        app.as_key(other, method, &path, json!({})).await.expect(404);
    }
    // A key that may only read sees the host, not the whole address.
    let reader = app.post("/api/v1/keys", json!({"name": "r", "role": "read"})).await.expect(201).json();
    let reader = reader["key"].as_str().unwrap();
    let seen = app.as_key(reader, Method::GET, &path, Value::Null).await.expect(200);
    assert_eq!(
        (&seen.json()["url"], seen.text().contains("t0ken")),
        (&json!("https://example.com/…"), false)
    );
    // An agent's key would see other events in the log.
    let agent = app.post("/api/v1/agents", json!({"name": "a"})).await.expect(201).json();
    let key = json!({"name": "a", "role": "write", "agent_id": agent["id"]});
    let agents = app.post("/api/v1/keys", key).await.expect(201).json();
    let delivery = format!("{path}/deliveries/01aaaaaaaaaaaaaaaaaaaaaaaa");
    app.as_key(reader, Method::GET, &delivery, Value::Null).await.expect(404);
    for path in ["/api/v1/webhooks".to_string(), path.clone(), format!("{path}/deliveries"), delivery] {
        let refused = app.as_key(agents["key"].as_str().unwrap(), Method::GET, &path, Value::Null).await;
        assert_eq!(refused.expect(403).json()["code"], json!("forbidden"), "{path}");
    }
    app.as_key(reader, Method::DELETE, &path, Value::Null).await.expect(403);
    app.as_key(reader, Method::POST, &format!("{path}/test"), Value::Null).await.expect(403);
    let rotated = app.post_empty(&format!("{path}/rotate")).await.expect(200).json();
    assert_ne!(rotated["signing_secret"], made["signing_secret"]);
    app.get(&format!("{path}/deliveries?state=odd")).await.expect(422);
    app.get(&format!("{path}/deliveries/nonsense")).await.expect(404);
    app.delete(&path).await.expect(204);
    app.get(&path).await.expect(404);
}

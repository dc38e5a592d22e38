//! One project that holds its share of a pool, and asks for more, stops no other.

use std::time::{Duration, Instant};

use base64::Engine as _;
use bytes::Bytes;
use coffer_server::{LimitSettings, PoolSettings, ServerConfig};
use coffer_wire::envd::process::{ProcessConfig, StartRequest};
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::app::{Answer, TestApp};

/// Long enough to notice that a request waits, in spite of a slow machine.
const AT_ONCE: Duration = Duration::from_secs(4);

/// Four places each, of which a project may hold two.
async fn app() -> TestApp {
    let pools = PoolSettings {
        file_lists: 4,
        command_starts: 4,
        log_reads: 4,
        git_transfers: 4,
        event_sockets: 4,
        ..PoolSettings::default()
    };
    let limits = LimitSettings { pools, ..LimitSettings::default() };
    let lifetime = crate::app::policy();
    TestApp::configured(ServerConfig { lifetime, limits, ..ServerConfig::default() }).await
}

/// A sandbox of the other project.
async fn sandbox_of_other(app: &TestApp) -> String {
    let body = json!({"templateID": "base", "timeout": 300});
    let made = app.as_key(&app.other_key, Method::POST, "/v2/sandboxes", body).await.expect(201);
    made.json()["sandboxID"].as_str().unwrap().to_string()
}

/// Sends a request without waiting for its answer.
async fn send(app: &TestApp, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(app.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Sends many requests of the first project, and returns the answers of those that are refused at once.
async fn press(app: &TestApp, path: &str, count: usize) -> (Vec<TcpStream>, Vec<String>) {
    let mut open = Vec::new();
    for _ in 0..count {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {}\r\nx-api-key: {}\r\n\r\n", app.address(), app.key);
        open.push(send(app, &request).await);
    }
    let mut reading = JoinSet::new();
    for mut stream in open {
        reading.spawn(async move {
            let mut answer = vec![0; 4096];
            let read = tokio::time::timeout(Duration::from_secs(2), stream.read(&mut answer)).await;
            let answer = read
                .map_or(String::new(), |read| String::from_utf8_lossy(&answer[..read.unwrap()]).into_owned());
            (stream, answer)
        });
    }
    let answered = reading.join_all().await;
    let (open, answers): (Vec<_>, Vec<_>) = answered.into_iter().unzip();
    (open, answers.into_iter().filter(|answer| !answer.is_empty()).collect())
}

fn expect_pool(answers: &[String], pool: &str) {
    let refused = answers.iter().filter(|answer| answer.starts_with("HTTP/1.1 429"));
    let answers: Vec<_> = refused.collect();
    assert!(!answers.is_empty(), "those that may not even wait are refused at once");
    for answer in answers {
        assert!(answer.to_lowercase().contains("\r\nretry-after: 1\r\n"), "{answer}");
        let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!((&body["code"], &body["details"]["pool"]), (&json!("pool_busy"), &json!(pool)), "{body}");
        assert_eq!((&body["details"]["share"], &body["details"]["places"]), (&json!(2), &json!(4)));
        assert!(body["hint"].as_str().unwrap().contains(&format!("limits.pools.{pool}")), "{body}");
    }
}

async fn at_once(app: &TestApp, method: Method, path: &str) -> Answer {
    let began = Instant::now();
    let answer = app.as_key(&app.other_key, method, path, Value::Null).await.expect(200);
    assert!(began.elapsed() < AT_ONCE, "{path} took {:?}", began.elapsed());
    answer
}

#[tokio::test]
async fn lists_of_files_of_one_project_leave_room_for_another() {
    let app = app().await;
    let (own, other) = (app.create(json!({})).await, sandbox_of_other(&app).await);
    app.engine.agentd(own.parse().unwrap()).freeze(true);
    // Two hold places, 32 may wait, and the rest are refused.
    let path = format!("/api/v1/sandboxes/{own}/files?path=/");
    let (_open, refused) = press(&app, &path, 40).await;
    assert_eq!(refused.len(), 6);
    expect_pool(&refused, "file_lists");
    at_once(&app, Method::GET, &format!("/api/v1/sandboxes/{other}/files?path=/")).await;
    at_once(&app, Method::GET, &format!("/api/v1/sandboxes/{other}/processes")).await;
}

#[tokio::test]
async fn log_reads_of_one_project_leave_room_for_another() {
    let app = app().await;
    let (own, other) = (app.create(json!({})).await, sandbox_of_other(&app).await);
    app.engine.agentd(own.parse().unwrap()).freeze(true);
    let (_open, refused) = press(&app, &format!("/api/v1/sandboxes/{own}/logs"), 60).await;
    expect_pool(&refused, "log_reads");
    at_once(&app, Method::GET, &format!("/api/v1/sandboxes/{other}/logs")).await;
    at_once(&app, Method::GET, &format!("/sandboxes/{other}/logs")).await;
}

#[tokio::test]
async fn commands_of_one_project_that_never_come_whole_leave_room_for_another() {
    let app = app().await;
    let (own, other) = (app.create(json!({})).await, sandbox_of_other(&app).await);
    let policy = json!({"default": "allow", "rules": [{"effect": "deny", "pattern": "rm *"}]});
    for key in [&app.key, &app.other_key] {
        app.as_key(key, Method::PUT, "/api/v1/policy", policy.clone()).await.expect(200);
    }
    let head = async |sandbox: &str, length: usize| {
        let token = app.row(sandbox).await.access_token.unwrap().reveal().to_string();
        format!(
            "POST /process.Process/Start HTTP/1.1\r\nhost: {}\r\ne2b-sandbox-id: {sandbox}\r\ne2b-sandbox-port: 49983\r\n\
             x-access-token: {token}\r\ncontent-type: application/connect+proto\r\ncontent-length: {length}\r\n\r\n",
            app.address()
        )
    };
    let unfinished = head(&own, 100).await;
    let mut open = Vec::new();
    for _ in 0..40 {
        open.push(send(&app, &unfinished).await);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut refused = send(&app, &unfinished).await;
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(AT_ONCE, refused.read(&mut answer)).await.expect("an answer").unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]);
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("resource_exhausted"), "{answer}");
    assert!(answer.contains("limits.pools.command_starts"), "{answer}");

    let process =
        ProcessConfig { cmd: "echo".into(), args: vec!["echo hello".into()], ..ProcessConfig::default() };
    let start = StartRequest { process: Some(process), ..StartRequest::default() };
    let message = prost::Message::encode_to_vec(&start);
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let body = [&[0][..], &length, &message].concat();
    let token = app.row(&other).await.access_token.unwrap().reveal().to_string();
    let request = Request::post("/process.Process/Start")
        .header("host", app.address().to_string())
        .header("e2b-sandbox-id", &other)
        .header("e2b-sandbox-port", "49983")
        .header("x-access-token", token)
        .header("content-type", "application/connect+proto")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let began = Instant::now();
    let answer = app.send(request).await.expect(200);
    assert!(began.elapsed() < AT_ONCE && answer.text().contains("hello"), "{}", answer.text());
}

#[tokio::test]
async fn git_transfers_of_one_project_leave_room_for_another() {
    let app = app().await;
    let mut places = Vec::new();
    for key in [&app.key, &app.other_key] {
        let made =
            app.as_key(key, Method::POST, "/api/v1/repositories", json!({"name": "app"})).await.expect(201);
        let url = made.json()["clone_url"].as_str().unwrap().to_string();
        let path = url.splitn(4, '/').nth(3).unwrap().to_string();
        let basic = base64::prelude::BASE64_STANDARD.encode(format!("any:{key}"));
        places.push((path, basic));
    }
    let ask = |(path, basic): &(String, String), length: usize, body: &str| {
        format!(
            "POST /{path}/git-upload-pack HTTP/1.1\r\nhost: {}\r\nauthorization: Basic {basic}\r\nconnection: close\r\n\
             content-type: application/x-git-upload-pack-request\r\ngit-protocol: version=2\r\n\
             content-length: {length}\r\n\r\n{body}",
            app.address()
        )
    };
    // None of these sends a complete request.
    let mut open = Vec::new();
    for _ in 0..40 {
        open.push(send(&app, &ask(&places[0], 1000, "")).await);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut refused = send(&app, &ask(&places[0], 1000, "")).await;
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(AT_ONCE, refused.read(&mut answer)).await.expect("an answer").unwrap();
    let answer = String::from_utf8_lossy(&answer[..read]);
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert!(answer.contains("limits.pools.git_transfers"), "people read it: {answer}");

    let wish = "0014command=ls-refs\n0000";
    let mut other = send(&app, &ask(&places[1], wish.len(), wish)).await;
    let mut answer = String::new();
    tokio::time::timeout(AT_ONCE, other.read_to_string(&mut answer))
        .await
        .expect("an answer at once")
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

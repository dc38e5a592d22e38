//! Builds of templates by hostile tenants: plans that grow, builds that never end, uploads by anyone.

use std::time::Duration;

use coffer_build::{BuildSettings, RegistrySettings};
use coffer_core::LargestSize;
use coffer_core::settings::{ByteSize, Period};
use coffer_server::ServerConfig;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::app::{Answer, TestApp};

/// Requests a build and starts it.
async fn begin(app: &TestApp, name: &str, start: Value) -> (Answer, String) {
    let made = app.post("/v3/templates", json!({"name": name})).await.expect(202).json();
    let (template, build) = (made["templateID"].as_str().unwrap(), made["buildID"].as_str().unwrap());
    let begun = app.post(&format!("/v2/templates/{template}/builds/{build}"), start).await;
    (begun, format!("/templates/{template}/builds/{build}/status"))
}

/// Waits until a build has ended.
async fn ended(app: &TestApp, status: &str) -> Value {
    for _ in 0..1000 {
        let shown = app.get(status).await.expect(200).json();
        if shown["status"] != "building" {
            return shown;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the build does not end");
}

fn env(pairs: &[(&str, String)]) -> Value {
    let args: Vec<&str> = pairs.iter().flat_map(|(name, value)| [*name, value]).collect();
    json!({"fromTemplate": "base", "steps": [{"type": "ENV", "args": args}]})
}

/// A registry that accepts connections and never answers, and a server that uses it.
async fn with_silent_registry(timeout: Period) -> (TestApp, TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let hosts = vec![host.clone()];
    let registries =
        RegistrySettings { private_hosts: hosts.clone(), plain_http: hosts, ..RegistrySettings::default() };
    let builds = BuildSettings { timeout, ..BuildSettings::default() };
    let app = TestApp::configured(ServerConfig { builds, registries, ..ServerConfig::default() }).await;
    (app, listener, format!("{host}/a/image"))
}

#[tokio::test]
async fn variables_that_multiply_end_the_build_and_not_the_server() {
    let app = TestApp::start().await;
    let (begun, status) = begin(&app, "fine", env(&[("A", "x".repeat(1000)), ("B", "$A$A".into())])).await;
    begun.expect(202);
    assert_eq!(ended(&app, &status).await["status"], "ready");
    // 2 GiB in the memory of the server, and as much again for each copy.
    let bomb = env(&[("A", "x".repeat(60_000)), ("B", "$A".repeat(32_000))]);
    let (begun, status) = begin(&app, "bomb", bomb).await;
    begun.expect(202);
    let shown = ended(&app, &status).await;
    assert_eq!((&shown["status"], &shown["reason"]["step"]), (&json!("error"), &json!("1")));
    let why = shown["reason"]["message"].as_str().unwrap();
    assert!(why.contains("once its variables are replaced"), "{why}");
    // Every sandbox of the template would carry all of them.
    let many: Vec<(&str, String)> = ["A", "B", "C"].map(|name| (name, "x".repeat(30_000))).to_vec();
    let (begun, status) = begin(&app, "many", env(&many)).await;
    begun.expect(202);
    let why = ended(&app, &status).await["reason"]["message"].as_str().unwrap().to_string();
    assert!(why.contains("have at most 65536 bytes together"), "{why}");
    let long = json!({"fromTemplate": "base", "startCmd": "x".repeat(100_000)});
    begin(&app, "long", long).await.0.expect(422);
}

#[tokio::test]
async fn a_build_ends_at_its_time_limit_whatever_it_waits_for() {
    let (app, _listener, image) = with_silent_registry(Period::secs(2)).await;
    let (begun, status) = begin(&app, "slow", json!({"fromImage": image})).await;
    begun.expect(202);
    let shown = tokio::time::timeout(Duration::from_secs(15), ended(&app, &status)).await;
    let shown = shown.expect("a registry that does not answer in 30 s holds no place for longer");
    assert_eq!(shown["reason"]["message"], "the build took longer than 2s", "{shown}");
}

#[tokio::test]
async fn a_project_begins_so_many_builds_and_no_more() {
    let (app, _listener, image) = with_silent_registry(Period::secs(600)).await;
    let (mut refused, mut begun) = (None, 0);
    for number in 0..150 {
        let (answer, _) = begin(&app, &format!("t{number}"), json!({"fromImage": image})).await;
        if answer.status == 429 {
            refused = Some(answer);
            break;
        }
        answer.expect(202);
        begun += 1;
    }
    assert_eq!(begun, 100);
    let why = refused.unwrap().json()["message"].as_str().unwrap().to_string();
    assert!(why.contains("100 builds"), "{why}");
    // Another project is not concerned.
    let body = json!({"name": "theirs"});
    let made = app.as_key(&app.other_key, Method::POST, "/v3/templates", body).await.expect(202).json();
    let path = format!(
        "/v2/templates/{}/builds/{}",
        made["templateID"].as_str().unwrap(),
        made["buildID"].as_str().unwrap()
    );
    app.as_key(&app.other_key, Method::POST, &path, json!({"fromTemplate": "base"})).await.expect(202);
}

#[tokio::test]
async fn a_template_is_not_larger_than_the_host() {
    let app = TestApp::start().await;
    app.engine.set_host_size(LargestSize { cpu_count: 8, memory_mib: 16_384, disk_mib: 65_536 });
    let ask = async |more: Value| {
        let mut body = json!({"name": "sized"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        app.post("/v3/templates", body).await
    };
    ask(json!({"cpuCount": 8, "memoryMB": 16_384})).await.expect(202);
    ask(json!({"cpuCount": 2, "memoryMB": 1024})).await.expect(202);
    for (bad, says) in [
        (json!({"cpuCount": 9}), "cpuCount is 9 and must be between 1 and 8"),
        (json!({"memoryMB": 1 << 24}), "memoryMB is 16777216 and must be between 64 and 16384"),
        (json!({"cpuCount": 0}), "cpuCount must be at least 1"),
    ] {
        assert_eq!(ask(bad).await.expect(400).json()["message"], says);
    }
}

async fn link(app: &TestApp) -> String {
    let hash = "a".repeat(64);
    let link = app.get(&format!("/templates/x/files/{hash}")).await.expect(201).json();
    let url = link["url"].as_str().unwrap().to_string();
    url[url.find("/templates/").unwrap()..].to_string()
}

async fn upload(app: &TestApp, path: &str, body: &'static str) -> Answer {
    let request = Request::builder().method(Method::PUT).uri(path).header("host", "localhost");
    app.send(request.body(Full::from(body)).unwrap()).await
}

#[tokio::test]
async fn an_upload_is_recorded_once_without_its_token() {
    let app = TestApp::start().await;
    let path = link(&app).await;
    upload(&app, &path, "files").await.expect(201);
    upload(&app, &path, "files").await.expect(403);
    let audit = "/api/v1/audit?action=PUT%20/templates/uploads/%7Btoken%7D";
    let recorded = app.get(audit).await.expect(200).json()["items"].as_array().unwrap().clone();
    assert_eq!(recorded.len(), 1, "{recorded:?}");
    let hash = "a".repeat(64);
    assert_eq!(
        (&recorded[0]["subject"], &recorded[0]["actor"]),
        (&json!(hash), &json!(format!("token:{hash}")))
    );
    let token = path.rsplit('/').next().unwrap();
    assert!(!json!(recorded).to_string().contains(token));
}

#[tokio::test]
async fn a_stranger_guesses_upload_links_slowly() {
    let app = TestApp::start().await;
    let mut last = 0;
    for number in 0..200 {
        last = upload(&app, &format!("/templates/uploads/{number:048x}"), "x").await.status;
        if last == 429 {
            break;
        }
        assert_eq!(last, 403);
    }
    assert_eq!(last, 429);
}

#[tokio::test]
async fn an_upload_leaves_the_disk_the_room_that_the_server_needs() {
    let mut config = ServerConfig::default();
    config.limits.min_free_disk = ByteSize::gib(1 << 30);
    let app = TestApp::configured(config).await;
    let path = link(&app).await;
    let low = upload(&app, &path, "files").await.expect(507).json();
    assert!(low["message"].as_str().unwrap().contains("free"), "{low}");
}

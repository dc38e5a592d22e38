//! `/mcp`: sessions, their pool and owners, and that tools are requests of the caller's key.

use bytes::Bytes;
use coffer_server::{LimitSettings, PoolSettings, ServerConfig};
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::app::{Answer, TestApp};

const SESSION: &str = "mcp-session-id";

async fn send(app: &TestApp, key: &str, session: Option<&str>, body: Value) -> Answer {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri("/mcp")
        .header("host", "127.0.0.1")
        .header("authorization", format!("Bearer {key}"))
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    if let Some(session) = session {
        request = request.header(SESSION, session);
    }
    app.send(request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await
}

fn initialize() -> Value {
    let client = json!({"name": "test", "version": "0"});
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
}

/// Begins a session and returns its id.
async fn begin(app: &TestApp, key: &str) -> String {
    let answer = send(app, key, None, initialize()).await.expect(200);
    let session = answer.header(SESSION).unwrap().to_string();
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    send(app, key, Some(&session), initialized).await.expect(202);
    session
}

/// Calls a tool; the result of the last message of the stream.
async fn call(app: &TestApp, key: &str, session: &str, tool: &str, arguments: Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments});
    let request = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
    let text = send(app, key, Some(session), request).await.expect(200).text();
    let mut messages = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let last = messages.rfind(|data| data.contains("\"id\":7")).unwrap_or_else(|| panic!("{text}"));
    serde_json::from_str::<Value>(last).unwrap()["result"].clone()
}

async fn delete(app: &TestApp, key: &str, session: &str) -> u16 {
    let request = Request::delete("/mcp").header("host", "127.0.0.1").header("x-api-key", key);
    let request = request.header(SESSION, session).body(Full::new(Bytes::new())).unwrap();
    app.send(request).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_is_a_request_with_the_callers_key() {
    let app = TestApp::start().await;
    let session = begin(&app, &app.key).await;
    let made = call(&app, &app.key, &session, "create_sandbox", json!({})).await;
    let id = made["structuredContent"]["sandbox_id"].as_str().unwrap_or_else(|| panic!("{made}")).to_string();
    // A client that vanishes leaves nothing for long.
    let shown = app.get(&format!("/api/v1/sandboxes/{id}")).await.expect(200).json();
    assert_eq!((&shown["idle_s"], &shown["on_timeout"]), (&json!(1800), &json!("kill")));
    // Another project sees nothing of it, in a session of its own.
    let others = begin(&app, &app.other_key).await;
    let refused = call(&app, &app.other_key, &others, "destroy_sandbox", json!({"sandbox_id": id})).await;
    assert_eq!(
        (&refused["isError"], &refused["_meta"]["coffer/error"]["code"]),
        (&json!(true), &json!("not_found"))
    );
    let gone = call(&app, &app.key, &session, "destroy_sandbox", json!({"sandbox_id": id})).await;
    assert_eq!(gone["structuredContent"]["destroyed"], true);
    let audit = app.get("/api/v1/audit").await.expect(200).text();
    assert!(audit.contains("POST /api/v1/sandboxes") && !audit.contains("POST /mcp"), "{audit}");
}

#[tokio::test(flavor = "multi_thread")]
async fn code_shows_images_to_a_model_and_long_output_has_a_handle() {
    let app = TestApp::start().await;
    let session = begin(&app, &app.key).await;
    let id = app.create(json!({})).await;
    let run = async |arguments: Value| {
        let mut all = json!({"sandbox_id": id});
        all.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
        call(&app, &app.key, &session, "run_code", all).await
    };
    let missing = run(json!({"code": "1"})).await;
    assert_eq!(missing["_meta"]["coffer/error"]["code"], "code_interpreter_missing");
    app.engine.agentd(id.parse().unwrap()).interpreter().install();

    let shown = run(json!({"code": "show 42", "artifacts": true})).await;
    let image = json!({"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"});
    assert_eq!(shown["content"][1], image, "{shown}");
    let text = shown["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("before") && text.contains("42") && text.contains("artifact"), "{text}");
    let structured = &shown["structuredContent"];
    assert_eq!((&structured["results"][1]["text"], &structured["images"]), (&json!("42"), &json!(1)));
    assert_eq!(structured["results"][0]["forms"], json!(["text", "png", "data", "chart"]));
    assert_eq!(structured["artifacts"].as_array().unwrap().len(), 3);

    let failed = run(json!({"code": "raise by zero"})).await;
    assert_eq!(failed["isError"], json!(false), "the code failed, not the tool: {failed}");
    assert_eq!(failed["structuredContent"]["error"]["name"], "ZeroDivisionError");
    assert!(failed["content"][0]["text"].as_str().unwrap().starts_with("ZeroDivisionError: by zero"));

    let much = run(json!({"code": "flood 4", "max_output_bytes": 300})).await["structuredContent"].clone();
    assert_eq!(much["stdout_rest"], 100);
    assert!(much["stdout"].as_str().unwrap().len() < 400);
    let rest = json!({"execution_id": much["execution_id"], "stdout_offset": 100});
    let rest = call(&app, &app.key, &session, "read_process", rest).await["structuredContent"].clone();
    assert_eq!((&rest["state"], &rest["stdout"]["more"]), (&json!("exited"), &json!(true)), "{rest}");
    let late = run(json!({"code": "hang", "timeout_s": 1})).await;
    assert_eq!(late["structuredContent"]["timed_out"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_of_its_key_alone() {
    let app = TestApp::start().await;
    let session = begin(&app, &app.key).await;
    let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"});
    send(&app, &app.other_key, Some(&session), ping.clone()).await.expect(404);
    assert_eq!(delete(&app, &app.other_key, &session).await, 404);
    send(&app, &app.key, Some(&session), ping.clone()).await.expect(200);
    assert!(delete(&app, &app.key, &session).await < 300);
    send(&app, &app.key, Some(&session), ping).await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_projects_sessions_leave_room_for_others() {
    let pools = PoolSettings { mcp_sessions: 8, ..PoolSettings::default() };
    let limits = LimitSettings { pools, ..LimitSettings::default() };
    let lifetime = crate::app::policy();
    let app = TestApp::configured(ServerConfig { lifetime, limits, ..ServerConfig::default() }).await;
    let mut open = Vec::new();
    let refused = loop {
        let answer = send(&app, &app.key, None, initialize()).await;
        if answer.status != 200 {
            break answer;
        }
        open.push(answer.header(SESSION).unwrap().to_string());
        assert!(open.len() <= 8, "the pool has eight places");
    };
    let refused = refused.expect(429).json();
    assert_eq!(
        (&refused["code"], &refused["details"]["pool"]),
        (&json!("pool_busy"), &json!("mcp_sessions"))
    );
    begin(&app, &app.other_key).await;
    // The place of a session that ended is free, as soon as its task has ended.
    assert!(delete(&app, &app.key, &open[0]).await < 300);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while send(&app, &app.key, None, initialize()).await.status != 200 {
        assert!(std::time::Instant::now() < deadline, "the place was not given back");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_are_refused() {
    let app = TestApp::start().await;
    for (host, origin, status) in [
        ("127.0.0.1", "http://localhost:6274", 200),
        ("127.0.0.1", "https://evil.example", 403),
        ("evil.example", "http://evil.example", 403),
    ] {
        let request = Request::post("/mcp")
            .header("host", host)
            .header("origin", origin)
            .header("x-api-key", &app.key)
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .body(Full::new(Bytes::from(initialize().to_string())))
            .unwrap();
        let answer = app.send(request).await.expect(status);
        assert_eq!(answer.header("access-control-allow-origin"), None, "{origin}");
    }
}

//! Refusals as clients get them, as snapshots: status, code, words and hint.
//!
//! `INSTA_UPDATE=always` rewrites them; CONTRIBUTING.md has the whole command.

use bytes::Bytes;
use http::Method;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::app::{Answer, TestApp};

/// The refusal without values that differ from run to run.
#[track_caller]
fn check(name: &str, answer: &Answer) {
    let mut body = answer.json();
    assert!(body["request_id"].is_string(), "{body}");
    body["request_id"] = json!("REQUEST");
    assert_eq!(body["code"], name, "{body}");
    let body = serde_json::to_string_pretty(&body).unwrap();
    insta::assert_snapshot!(name, format!("{}\n{body}", answer.status));
}

#[tokio::test]
async fn refusals_of_our_own_api() {
    let app = TestApp::start().await;

    let malformed = app.request(Method::POST, "/api/v1/agents").body(Full::new(Bytes::from("{"))).unwrap();
    check("bad_request", &app.send(malformed).await);
    check("invalid", &app.post("/api/v1/agents", json!({"name": 7})).await);
    let stranger = app.as_key("cfr_nobody", Method::GET, "/api/v1/agents", Value::Null).await;
    check("unauthorized", &stranger);
    check("not_found", &app.get("/api/v1/repositories/none").await);

    let reader = app.post("/api/v1/keys", json!({"name": "reader", "role": "read"})).await.expect(201).json();
    let reader = reader["key"].as_str().unwrap();
    check("forbidden", &app.as_key(reader, Method::POST, "/api/v1/agents", json!({"name": "a"})).await);

    app.post("/api/v1/agents", json!({"name": "taken"})).await.expect(201);
    check("conflict", &app.post("/api/v1/agents", json!({"name": "taken"})).await);

    let create = async |body: Value| {
        let request = app.request(Method::POST, "/api/v1/sandboxes").header("idempotency-key", "once");
        app.send(request.body(Full::new(Bytes::from(body.to_string()))).unwrap()).await
    };
    let made = create(json!({})).await.expect(201).json();
    check("idempotency_key_reused", &create(json!({"metadata": {"a": "b"}})).await);

    let code = format!("/api/v1/sandboxes/{}/code", made["id"].as_str().unwrap());
    check("code_interpreter_missing", &app.post(&code, json!({"code": "1 + 1"})).await);

    let policy = json!({"rules": [{"effect": "deny", "pattern": "rm", "note": "files stay"}]});
    app.put("/api/v1/policy", policy).await.expect(200);
    let exec = format!("/api/v1/sandboxes/{}/exec", made["id"].as_str().unwrap());
    check("command_refused", &app.post(&exec, json!({"command": "rm -rf /"})).await);
}

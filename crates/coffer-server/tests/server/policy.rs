//! Command policies: set, checked, and enforced on every way in.

use std::time::Duration;

use bytes::Bytes;
use coffer_wire::envd::process::{ProcessConfig, StartRequest};
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::app::{Answer, TestApp};

fn no_rm() -> Value {
    json!({"default": "allow", "rules": [{"effect": "deny", "pattern": "rm -rf", "note": "keep it"}]})
}

/// Starts a line as E2B's SDKs do.
async fn start(app: &TestApp, sandbox: &str, line: &str) -> Answer {
    let process = ProcessConfig {
        cmd: "/bin/bash".into(),
        args: vec!["-l".into(), "-c".into(), line.into()],
        ..ProcessConfig::default()
    };
    let message =
        prost::Message::encode_to_vec(&StartRequest { process: Some(process), ..Default::default() });
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let body = [&[0][..], &length, &message].concat();
    let row = app.row(sandbox).await;
    let request = Request::post("/process.Process/Start")
        .header("host", app.address().to_string())
        .header("e2b-sandbox-id", sandbox)
        .header("e2b-sandbox-port", "49983")
        .header("x-access-token", row.access_token.unwrap().reveal())
        .header("content-type", "application/connect+proto")
        .body(Full::new(Bytes::from(body)));
    app.send(request.unwrap()).await
}

#[tokio::test]
async fn a_policy_is_read_replaced_by_version_and_told_of() {
    let app = TestApp::start().await;
    let none = app.get("/api/v1/policy").await.expect(200);
    assert_eq!((none.json(), none.header("etag")), (json!({"default": "allow", "rules": []}), Some("\"0\"")));
    let put = async |tag: &str, policy: Value| {
        let request = app.request(Method::PUT, "/api/v1/policy").header("if-match", tag);
        app.send(request.body(Full::new(Bytes::from(policy.to_string()))).unwrap()).await
    };
    assert_eq!(put("\"0\"", no_rm()).await.expect(200).header("etag"), Some("\"1\""));
    put("\"0\"", no_rm()).await.expect(412);
    put("nonsense", no_rm()).await.expect(412);
    assert_eq!(put("*", json!({})).await.expect(200).header("etag"), Some("\"2\""));
    for bad in [
        json!({"rules": [{"effect": "deny", "pattern": ""}]}),
        json!({"rules": [{"effect": "maybe", "pattern": "x"}]}),
        json!({"rules": [{"effect": "deny", "pattern": "x".repeat(300)}]}),
        json!({"rules": vec![json!({"effect": "deny", "pattern": "x"}); 101]}),
        json!({"unknown": 1}),
    ] {
        app.put("/api/v1/policy", bad).await.expect(422);
    }
    assert_eq!(app.events("policy.changed").await.len(), 2);
    let theirs = app.as_key(&app.other_key, Method::GET, "/api/v1/policy", Value::Null).await.expect(200);
    assert_eq!(theirs.header("etag"), Some("\"0\""));
    let made = app.post("/api/v1/keys", json!({"name": "w", "role": "write"})).await.expect(201).json();
    app.as_key(made["key"].as_str().unwrap(), Method::PUT, "/api/v1/policy", no_rm()).await.expect(403);
}

#[tokio::test]
async fn a_dry_run_tells_which_rule_decides() {
    let app = TestApp::start().await;
    app.put("/api/v1/policy", no_rm()).await.expect(200);
    let check = async |question: Value| app.post("/api/v1/policy/check", question).await.expect(200).json();
    let answer = check(json!({"command": "ls && rm -rf /"})).await;
    assert_eq!(
        answer,
        json!({
            "allowed": false, "reason": "rule 0 of the project's policy forbids it: keep it", "rule": 0,
            "commands": [
                {"words": ["ls"], "effect": "allow", "rule": null},
                {"words": ["rm", "-rf", "/"], "effect": "deny", "rule": 0},
            ],
        })
    );
    assert_eq!(check(json!({"command": ["git", "push"]})).await["allowed"], true);
    let candidate = json!({"default": "deny", "rules": [{"effect": "allow", "pattern": "git"}]});
    let tried = check(json!({"command": "rm -rf /", "policy": candidate})).await;
    assert_eq!((&tried["allowed"], &tried["rule"]), (&json!(false), &Value::Null));
    assert_eq!(check(json!({"command": "$X"})).await["allowed"], false);
    app.post("/api/v1/policy/check", json!({"command": 1})).await.expect(422);
    assert!(app.events("command.refused").await.is_empty(), "nothing was asked to run");
}

#[tokio::test]
async fn a_refused_command_starts_on_no_way_and_is_told_of() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let exec = format!("/api/v1/sandboxes/{id}/exec");
    // Before there is a policy, everything may run.
    app.post(&exec, json!({"command": "rm -rf /tmp/x"})).await.expect(200);
    assert_eq!(start(&app, &id, "rm -rf /tmp/x").await.status, 200);
    app.put("/api/v1/policy", no_rm()).await.expect(200);
    let guest = app.engine.agentd(id.parse().unwrap());
    let before = guest.guest().starts.lock().unwrap().len();

    let secret = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
    let line = format!("echo {secret}; rm -rf /");
    let refused = app.post(&exec, json!({"command": line})).await.expect(403).json();
    assert_eq!(refused["code"], "command_refused");
    assert!(refused["message"].as_str().unwrap().contains("keep it"), "{refused}");
    let by_sdk = start(&app, &id, &line).await;
    assert!(by_sdk.text().contains("permission_denied") && by_sdk.status == 200, "{}", by_sdk.text());
    assert_eq!(guest.guest().starts.lock().unwrap().len(), before, "nothing reached the sandbox");
    app.post(&exec, json!({"command": "ls"})).await.expect(200);
    assert!(!start(&app, &id, "ls").await.text().contains("permission_denied"));

    let told = app.events("command.refused").await;
    let sources: Vec<_> = told.iter().map(|event| (&event["source"], &event["rule"])).collect();
    assert_eq!(sources, [(&json!("api"), &json!(0)), (&json!("e2b"), &json!(0))]);
    assert!(!format!("{told:?}").contains(secret), "{told:?}");
    // The audit log is written after the answers.
    let mut codes = Vec::new();
    for _ in 0..200 {
        let audit = app.get(&format!("/api/v1/audit?subject={id}")).await.expect(200).json();
        codes = audit["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|line| line["code"] == "command_refused")
            .cloned()
            .collect();
        if codes.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let actors: Vec<_> = codes.iter().map(|line| line["actor"].as_str().unwrap()).collect();
    assert!(actors.iter().any(|actor| actor.starts_with("key:")), "{codes:?}");
    assert!(actors.contains(&format!("token:{id}").as_str()), "{codes:?}");

    // Another project's policy does not apply.
    app.put("/api/v1/policy", json!({})).await.expect(200);
    app.as_key(&app.other_key, Method::PUT, "/api/v1/policy", json!({"default": "deny"})).await.expect(200);
    app.post(&exec, json!({"command": "rm -rf /tmp/x"})).await.expect(200);
}

#[tokio::test]
async fn what_another_server_set_holds_here_soon_and_after_a_restart() {
    let mut app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let exec = format!("/api/v1/sandboxes/{id}/exec");
    let policy = serde_json::from_value(no_rm()).unwrap();
    app.store.set_command_policy(&app.scope().await, None, policy).await.unwrap();
    let mut status = 0;
    for _ in 0..200 {
        status = app.post(&exec, json!({"command": "rm -rf /tmp/x"})).await.status;
        if status == 403 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(status, 403);
    app.restart(async |_| ()).await;
    app.post(&exec, json!({"command": "rm -rf /tmp/x"})).await.expect(403);
}

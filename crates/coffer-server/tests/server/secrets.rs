//! Secrets: who puts them in, who gets them, and where they are not.

use std::time::Duration;

use coffer_core::network::Policy;
use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;

const HEADERS: &str = "Bearer ${secret:github}";

fn with_header() -> Value {
    json!({"base": "web", "headers": [{"hosts": ["api.github.com"], "headers": {"Authorization": HEADERS}}]})
}

/// The value of the only header that the engine has for a sandbox.
fn told(policy: &Policy) -> Option<String> {
    let text = policy.headers().first()?.headers.values().next()?;
    Some(text.reveal().to_string())
}

async fn until_told(app: &TestApp, id: &str, value: Option<&str>) {
    for _ in 0..600 {
        if told(&app.engine.policy(id.parse().unwrap())).as_deref() == value {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the engine has {:?}", app.engine.policy(id.parse().unwrap()));
}

async fn make(app: &TestApp, body: Value) -> String {
    app.post("/api/v1/sandboxes", body).await.expect(201).json()["id"].as_str().unwrap().to_string()
}

#[tokio::test]
async fn a_secret_is_put_in_listed_and_never_shown() {
    let app = TestApp::start().await;
    let value = json!({"value": "canary-value", "hosts": ["api.github.com"]});
    let made = app.put("/api/v1/secrets/github", value).await.expect(201);
    assert_eq!(
        (made.json()["version"].as_i64(), &made.json()["hosts"]),
        (Some(1), &json!(["api.github.com"]))
    );
    let replaced = app.put("/api/v1/secrets/github", json!({"value": "canary-other"})).await.expect(200);
    let hosts = &replaced.json()["hosts"];
    assert_eq!((replaced.json()["version"].as_i64(), hosts), (Some(2), &json!(["api.github.com"])));
    let listed = app.get("/api/v1/secrets").await.expect(200);
    assert_eq!(listed.json()["items"][0]["name"], "github");
    let events = app.get("/api/v1/events").await.expect(200);
    assert_eq!(app.events("secret.replaced").await, [json!({"name": "github", "version": 2})]);
    for answer in [&made, &replaced, &listed, &events] {
        assert!(!answer.text().contains("canary"), "{}", answer.text());
    }
    let anywhere = json!({"value": "canary-third", "hosts": null});
    let anywhere = app.put("/api/v1/secrets/github", anywhere).await.expect(200);
    assert_eq!(anywhere.json()["hosts"], Value::Null, "what is said is done");
    let theirs = app.as_key(&app.other_key, Method::GET, "/api/v1/secrets", Value::Null).await;
    assert_eq!(theirs.json()["items"], json!([]));
    app.delete("/api/v1/secrets/github").await.expect(204);
    app.delete("/api/v1/secrets/github").await.expect(404);
    for (name, body) in [
        ("a", json!({"value": ""})),
        ("a", json!({"value": "a\0b"})),
        ("a", json!({"value": "v", "hosts": []})),
        ("a", json!({"value": "v", "hosts": ["1.2.3.4"]})),
        ("a", json!({"value": "v".repeat(65_537)})),
    ] {
        app.put(&format!("/api/v1/secrets/{name}"), body).await.expect(422);
    }
    app.put("/api/v1/secrets/1bad", json!({"value": "v"})).await.expect(404);
    let write = app.post("/api/v1/keys", json!({"name": "w", "role": "write"})).await.expect(201).json();
    let write = write["key"].as_str().unwrap();
    let refused = app.as_key(write, Method::PUT, "/api/v1/secrets/a", json!({"value": "v"})).await;
    assert_eq!(refused.status, 403);
}

#[tokio::test]
async fn a_sandbox_gets_secrets_in_its_environment_at_every_boot() {
    let app = TestApp::start().await;
    app.put("/api/v1/secrets/github", json!({"value": "canary-one"})).await.expect(201);
    app.put("/api/v1/secrets/bound", json!({"value": "canary-two", "hosts": ["a.com"]})).await.expect(201);
    let id = make(&app, json!({"secrets": {"TOKEN": "github"}, "env": {"A": "b"}})).await;
    let env = |id: &str| app.engine.agentd(id.parse().unwrap()).inits().last().unwrap().env_vars.clone();
    assert_eq!((env(&id)["TOKEN"].as_str(), env(&id)["A"].as_str()), ("canary-one", "b"));
    let row = app.row(&id).await;
    assert!(!row.env_vars.contains_key("TOKEN") && row.secrets["TOKEN"] == "github");
    app.put("/api/v1/secrets/github", json!({"value": "canary-new"})).await.expect(200);
    app.post(&format!("/api/v1/sandboxes/{id}/pause"), json!({"memory": false})).await.expect(200);
    app.post(&format!("/api/v1/sandboxes/{id}/resume"), json!({})).await.expect(200);
    assert_eq!(env(&id)["TOKEN"], "canary-new");
    for bad in [
        json!({"secrets": {"TOKEN": "nothing"}}),
        json!({"secrets": {"TOKEN": "bound"}}),
        json!({"secrets": {"TOKEN": "github"}, "env": {"TOKEN": "x"}}),
    ] {
        let refused = app.post("/api/v1/sandboxes", bad).await;
        assert_eq!(refused.status, 422, "{}", refused.text());
        assert!(!refused.text().contains("canary"));
    }
    let detail = app.get(&format!("/api/v1/sandboxes/{id}")).await.expect(200).text();
    let events = app.get("/api/v1/events").await.expect(200).text();
    let audit = app.get("/api/v1/audit").await.expect(200).text();
    assert!(!format!("{detail}{events}{audit}").contains("canary"));
    assert!(!app.database.holds_on_disk("canary-"));
}

#[tokio::test]
async fn the_engine_hears_of_headers_and_of_every_change() {
    let mut app = TestApp::start().await;
    app.put("/api/v1/secrets/github", json!({"value": "canary-one", "hosts": ["*.github.com"]}))
        .await
        .expect(201);
    let id = make(&app, json!({"network": with_header()})).await;
    until_told(&app, &id, Some("Bearer canary-one")).await;
    let shown = app.get(&format!("/api/v1/sandboxes/{id}/network")).await.expect(200).json();
    assert_eq!(shown["policy"]["headers"][0]["headers"]["authorization"], HEADERS);

    app.put("/api/v1/secrets/github", json!({"value": "canary-two"})).await.expect(200);
    until_told(&app, &id, Some("Bearer canary-two")).await;
    // A node that has lost them gets them again.
    let forgetful = app.engine.policy(id.parse().unwrap()).without_secrets();
    app.engine.set_policy(id.parse().unwrap(), forgetful.clone());
    app.engine.reconnect();
    until_told(&app, &id, Some("Bearer canary-two")).await;
    // And so does one that a new server finds.
    let sandbox = id.parse().unwrap();
    app.restart(async |app| app.engine.set_policy(sandbox, forgetful)).await;
    until_told(&app, &id, Some("Bearer canary-two")).await;

    let path = format!("/api/v1/sandboxes/{id}/network");
    let other = json!({"base": "web", "headers": [{"hosts": ["a.com"], "headers": {"X": "${secret:none}"}}]});
    app.put(&path, other).await.expect(422);
    until_told(&app, &id, Some("Bearer canary-two")).await;
    // Without the secret, connections are refused, not sent without it.
    app.delete("/api/v1/secrets/github").await.expect(204);
    until_told(&app, &id, None).await;
    assert!(app.engine.policy(id.parse().unwrap()).is_withheld());
    app.put(&path, json!({"base": "web"})).await.expect(200);
    assert!(!app.engine.policy(id.parse().unwrap()).is_withheld());
    assert!(!app.database.holds_on_disk("canary-"));
}

#[tokio::test]
async fn e2bs_rules_are_headers_too_and_are_not_shown() {
    let app = TestApp::start().await;
    let rules = json!({"api.github.com": [{"transform": {"headers": {"X-Token": "canary-rule"}}}]});
    let id = app.create(json!({"network": {"rules": rules}})).await;
    assert_eq!(told(&app.engine.policy(id.parse().unwrap())).as_deref(), Some("canary-rule"));
    let shown = app.get(&format!("/sandboxes/{id}")).await.expect(200).text();
    let reach = app.get(&format!("/api/v1/sandboxes/{id}/network")).await.expect(200).text();
    assert!(!format!("{shown}{reach}").contains("canary"), "{shown}{reach}");
    assert!(!app.database.holds_on_disk("canary-"));
    let unknown = json!({"api.github.com": [{"transform": {"headers": {"X": "${secret:none}"}}}]});
    let body = json!({"templateID": "base", "network": {"rules": unknown}});
    assert_eq!(app.post("/v2/sandboxes", body).await.status, 422);
}

/// Any address can answer plain HTTP, and a proxy of the caller's choice can read it.
#[tokio::test]
async fn a_secret_for_hosts_leaves_by_verified_tls_alone() {
    let app = TestApp::start().await;
    let write = app.post("/api/v1/keys", json!({"name": "w", "role": "write"})).await.expect(201).json();
    let write = write["key"].as_str().unwrap();
    let bound =
        |plain: Value| json!({"value": "canary-bound", "hosts": ["api.github.com"], "plain_http": plain});
    app.put("/api/v1/secrets/github", bound(Value::Null)).await.expect(201);
    let rule =
        json!({"hosts": ["api.github.com"], "headers": {"Authorization": HEADERS}, "plain_http": true});
    let plain = json!({"base": "public", "headers": [rule]});
    let proxy = json!({"address": "proxy.example.com:1080"});
    let by_proxy = json!({"policy": plain, "egressProxy": proxy});
    let attempts = || {
        let e2b = |network: &Value| json!({"templateID": "base", "timeout": 60, "network": network});
        [
            ("/api/v1/sandboxes", json!({"network": plain})),
            ("/v2/sandboxes", e2b(&json!({"policy": plain}))),
            ("/v2/sandboxes", e2b(&by_proxy)),
        ]
    };
    for (path, body) in attempts() {
        let answer = app.as_key(write, Method::POST, path, body).await;
        assert_eq!(answer.status, 422, "{path}: {}", answer.text());
        assert!(answer.text().contains("plain HTTP"), "{}", answer.text());
    }
    let id = make(&app, json!({"network": with_header()})).await;
    until_told(&app, &id, Some("Bearer canary-bound")).await;
    let own = format!("/api/v1/sandboxes/{id}/network");
    app.as_key(write, Method::PUT, &own, plain.clone()).await.expect(422);
    for update in [json!({"policy": plain}), by_proxy.clone()] {
        let answer = app.as_key(write, Method::PUT, &format!("/sandboxes/{id}/network"), update).await;
        assert_eq!(answer.status, 422, "{}", answer.text());
    }
    assert!(!app.engine.policy(id.parse().unwrap()).headers()[0].plain_http);
    // Through a proxy, TLS is verified against the named host.
    let by_tls = json!({"policy": with_header(), "egressProxy": proxy});
    app.as_key(write, Method::PUT, &format!("/sandboxes/{id}/network"), by_tls).await.expect(204);
    until_told(&app, &id, Some("Bearer canary-bound")).await;

    // An admin may allow it on the secret, and revoke that: running sandboxes then lose the header.
    app.put("/api/v1/secrets/github", bound(json!(true))).await.expect(200);
    app.as_key(write, Method::PUT, &own, plain).await.expect(200);
    until_told(&app, &id, Some("Bearer canary-bound")).await;
    let kept = app.put("/api/v1/secrets/github", json!({"value": "canary-next"})).await.expect(200).json();
    assert_eq!(kept["plain_http"], true, "a new value keeps it");
    until_told(&app, &id, Some("Bearer canary-next")).await;
    let answer = app.as_key(write, Method::PUT, &format!("/sandboxes/{id}/network"), by_proxy).await;
    assert_eq!(answer.status, 422, "a proxy would read it: {}", answer.text());
    app.put("/api/v1/secrets/github", bound(json!(false))).await.expect(200);
    until_told(&app, &id, None).await;
    assert!(app.engine.policy(id.parse().unwrap()).is_withheld());
}

#[tokio::test]
async fn the_master_key_is_the_operators() {
    let app = TestApp::start().await;
    app.get("/api/v1/admin/master-key").await.expect(403);
    app.post_empty("/api/v1/admin/master-key/rotate").await.expect(403);
    let operator = app.store.create_operator_key(&app.store.operator(), "o").await.unwrap();
    let status =
        app.as_key(operator.reveal(), Method::GET, "/api/v1/admin/master-key", Value::Null).await.expect(200);
    assert_eq!((&status.json()["source"], &status.json()["missing"]), (&json!("setting"), &json!([])));
    // A key in the settings is rotated in the settings.
    let path = "/api/v1/admin/master-key/rotate";
    app.as_key(operator.reveal(), Method::POST, path, Value::Null).await.expect(409);
}

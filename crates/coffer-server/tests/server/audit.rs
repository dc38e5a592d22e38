//! The audit log: reads of tenants' data, and uses of their secrets.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;

/// Waits until the log has `wanted` records of an action, and returns them.
async fn until(app: &TestApp, action: &str, wanted: usize) -> Vec<Value> {
    let path = format!("/api/v1/audit?action={}", action.replace(' ', "%20"));
    let mut found = Vec::new();
    for _ in 0..500 {
        found = app.get(&path).await.expect(200).json()["items"].as_array().unwrap().clone();
        if found.len() == wanted {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{action}: {found:?}");
}

#[tokio::test]
async fn reads_of_what_tenants_keep_are_recorded() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let made = app.post("/api/v1/keys", json!({"name": "r", "role": "read"})).await.expect(201).json();
    let (reader, key_id) = (made["key"].as_str().unwrap(), made["id"].as_str().unwrap());
    let artifact = json!({"kind": "link", "name": "result", "url": "https://example.com/"});
    let artifact = app.post("/api/v1/artifacts", artifact).await.expect(201).json();
    for (path, action, subject) in [
        (
            format!("/api/v1/sandboxes/{id}/files/etc/hostname"),
            "GET /api/v1/sandboxes/{id}/files/{*path}",
            id.as_str(),
        ),
        (format!("/api/v1/sandboxes/{id}/files?path=/home"), "GET /api/v1/sandboxes/{id}/files", &id),
        (format!("/v2/sandboxes/{id}/logs"), "GET /v2/sandboxes/{id}/logs", &id),
        (
            format!("/api/v1/artifacts/{}", artifact["id"].as_str().unwrap()),
            "GET /api/v1/artifacts/{artifact}",
            artifact["id"].as_str().unwrap(),
        ),
    ] {
        let status = app.as_key(reader, Method::GET, &path, Value::Null).await.status;
        let recorded = until(&app, action, 1).await;
        let (actor, about) = (&recorded[0]["actor"], &recorded[0]["subject"]);
        assert_eq!((actor, about), (&json!(format!("key:{key_id}")), &json!(subject)), "{action}");
        assert_eq!(recorded[0]["status"], json!(status), "{action}");
    }
    // Lists of sandboxes and the like are not recorded.
    app.as_key(reader, Method::GET, "/api/v1/sandboxes", Value::Null).await.expect(200);
    app.as_key(reader, Method::GET, "/api/v1/logs", Value::Null).await.expect(200);
    until(&app, "GET /api/v1/logs", 1).await;
    until(&app, "GET /api/v1/sandboxes", 0).await;
}

#[tokio::test]
async fn reads_with_a_sandbox_s_own_token_are_recorded() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let status = app.visit(&id, "/files?path=/etc/hostname").await.status;
    let recorded = until(&app, "GET /files", 1).await;
    let shown = (&recorded[0]["actor"], &recorded[0]["subject"], &recorded[0]["status"]);
    assert_eq!(shown, (&json!(format!("token:{id}")), &json!(id), &json!(status)));
    // Health checks are not recorded.
    app.visit(&id, "/health").await;
    until(&app, "GET /health", 0).await;
}

#[tokio::test]
async fn what_a_volume_s_token_reads_and_writes_is_recorded() {
    let app = TestApp::start().await;
    let made = app.post("/volumes", json!({"name": "data"})).await.expect(201).json();
    let (id, token) = (made["volumeID"].as_str().unwrap(), made["token"].as_str().unwrap());
    for (method, what) in [("GET", "dir"), ("DELETE", "path"), ("GET", "file")] {
        let request = http::Request::builder()
            .method(method)
            .uri(format!("/volumecontent/{id}/{what}?path=/x"))
            .header("host", "localhost")
            .header("authorization", format!("Bearer {token}"));
        let status = app.send(request.body(http_body_util::Full::default()).unwrap()).await.status;
        let recorded = until(&app, &format!("{method} /volumecontent/{{id}}/{what}"), 1).await;
        let shown = (&recorded[0]["actor"], &recorded[0]["subject"], &recorded[0]["status"]);
        assert_eq!(shown, (&json!(format!("token:{id}")), &json!(id), &json!(status)));
        assert!(!json!(recorded).to_string().contains(token));
    }
}

#[tokio::test]
async fn a_sandbox_that_is_given_a_secret_is_recorded() {
    let app = TestApp::start().await;
    for name in ["token", "github"] {
        app.put(&format!("/api/v1/secrets/{name}"), json!({"value": "canary-value"})).await.expect(201);
    }
    let rule = json!({"hosts": ["api.github.com"], "headers": {"Authorization": "Bearer ${secret:github}"}});
    let network = json!({"base": "web", "headers": [rule]});
    let body = json!({"secrets": {"TOKEN": "token"}, "network": network});
    let made = app.post("/api/v1/sandboxes", body).await.expect(201).json();
    let id = made["id"].as_str().unwrap();
    let used = until(&app, "secret.used", 2).await;
    let mut names: Vec<_> = used.iter().map(|record| record["subject"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["github", "token"]);
    assert!(used.iter().all(|record| record["actor"] == format!("sandbox:{id}")), "{used:?}");
    app.put(&format!("/api/v1/sandboxes/{id}/network"), network).await.expect(200);
    until(&app, "secret.used", 3).await;
    // A sandbox without secrets has no such record.
    app.create(json!({})).await;
    let used = until(&app, "secret.used", 3).await;
    assert!(!json!(used).to_string().contains("canary"));
}

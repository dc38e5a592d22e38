//! The server's own origin in browsers: what may run there, and what sandboxes may answer.

use http::{Method, Request};
use http_body_util::Full;
use serde_json::json;

use crate::app::{Answer, TestApp};

/// E2B's routes, which are not in our OpenAPI description.
const E2B: [&str; 14] = [
    "/sandboxes",
    "/sandboxes/metrics",
    "/sandboxes/x/logs",
    "/v2/sandboxes",
    "/v2/sandboxes/x/logs",
    "/snapshots",
    "/teams",
    "/templates",
    "/templates/aliases/x",
    "/v2/templates",
    "/v3/templates",
    "/volumes",
    "/volumecontent/x",
    "/secrets",
];

async fn by_headers(app: &TestApp, sandbox: &str, port: u16, path: &str) -> Answer {
    let request = Request::get(path)
        .header("host", app.address().to_string())
        .header("e2b-sandbox-id", sandbox)
        .header("e2b-sandbox-port", port.to_string());
    app.send(request.body(Full::default()).unwrap()).await
}

#[tokio::test]
async fn headers_name_a_sandbox_on_no_path_that_the_server_answers() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let openapi = app.get("/api/v1/openapi.json").await.expect(200).json();
    let described = openapi["paths"].as_object().unwrap().keys().map(String::as_str);
    let more =
        ["/ui", "/ui/", "/ui/assets/a.js", "/api/v1/docs", "/api/v1/openapi.json", "/git/a/b.git/info/refs"];
    let own: Vec<String> =
        described.chain(E2B).chain(more).map(|path| path.replace(['{', '}'], "")).collect();
    assert!(own.len() > 100, "only {} paths", own.len());
    for path in own {
        for port in [49983, 8000] {
            let answer = by_headers(&app, &id, port, &path).await;
            // agentd has a route of that name, which SDKs use.
            if port == 49983 && path == "/metrics" {
                continue;
            }
            assert_eq!(answer.status, 400, "{path} at port {port}: {}", answer.text());
            assert!(answer.text().contains("the server's own"), "{path}: {}", answer.text());
        }
    }
}

#[tokio::test]
async fn answers_of_the_api_are_data() {
    let app = TestApp::start().await;
    for (method, path, status) in [
        (Method::GET, "/api/v1/me", 200),
        (Method::GET, "/api/v1/nothing", 404),
        (Method::GET, "/sandboxes", 200),
        (Method::GET, "/health", 200),
        (Method::GET, "/api/v1/openapi.json", 200),
    ] {
        let answer = app.as_key(&app.key, method, path, json!(null)).await;
        assert_eq!(answer.status, status, "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.starts_with("sandbox; default-src 'none'"), "{path}: {policy}");
    }
    let docs = app.get("/api/v1/docs").await.expect(200);
    let policy = docs.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(docs.header("x-frame-options"), Some("DENY"));
    assert_eq!(docs.text().matches("<script").count(), 1, "the policy knows one script");
    assert_eq!(docs.text().matches("<style").count(), 1, "and one style");
    assert!(!docs.text().contains(" style=") && !docs.text().contains(" onclick="), "none inline");
}

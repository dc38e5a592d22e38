//! Bad input: the right status, the right shape, and nothing changed.

use bytes::Bytes;
use coffer_core::{Fault, SandboxState};
use coffer_engine::EngineError;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::agentd::Manners;
use crate::app::TestApp;
use crate::engine::Op;

#[tokio::test]
async fn bad_creates_make_nothing() {
    let app = TestApp::start().await;
    let many: serde_json::Map<String, Value> = (0..65).map(|n| (n.to_string(), json!("v"))).collect();
    let cases = [
        (400, json!({})),
        (400, json!({"templateID": 7})),
        (400, json!({"templateID": ""})),
        (400, json!({"templateID": "no such form"})),
        (404, json!({"templateID": "unknown"})),
        (404, json!({"templateID": "base:v2"})),
        (404, json!({"templateID": "team/base"})),
        (400, json!({"templateID": "base", "timeout": 0})),
        (400, json!({"templateID": "base", "timeout": -1})),
        (400, json!({"templateID": "base", "timeout": 3601})),
        (400, json!({"templateID": "base", "timeout": 1.5})),
        (400, json!({"templateID": "base", "timeout": "60"})),
        (400, json!({"templateID": "base", "metadata": {"a": 1}})),
        (400, json!({"templateID": "base", "metadata": ["a"]})),
        (400, json!({"templateID": "base", "metadata": {"": "v"}})),
        (400, json!({"templateID": "base", "metadata": {"k": "v".repeat(65 * 1024)}})),
        (400, json!({"templateID": "base", "metadata": many})),
        (400, json!({"templateID": "base", "envVars": {"A=B": "v"}})),
        (400, json!({"templateID": "base", "envVars": {"": "v"}})),
        (400, json!({"templateID": "base", "envVars": {"A": "b\0c"}})),
        (400, json!({"templateID": "base", "envVars": {"A": null}})),
        (400, json!({"templateID": "base", "network": {"allowOut": ["example.com"]}})),
        (400, json!({"templateID": "base", "network": {"denyOut": ["example.com"]}})),
        (400, json!({"templateID": "base", "network": {"httpsPorts": [70000]}})),
        (400, json!({"templateID": "base", "autoPauseMemory": false})),
        (
            400,
            json!({"templateID": "base", "autoPause": true, "autoPauseMemory": false, "autoResume": {"enabled": true}}),
        ),
        (400, json!({"templateID": "base", "autoResume": true})),
        (400, json!({"templateID": "base", "mcp": "text"})),
        (400, json!({"templateID": "base", "volumeMounts": [{"name": "v", "path": "relative"}]})),
        (400, json!({"templateID": "base", "volumeMounts": [{"name": "v", "path": "/a/../b"}]})),
        (
            400,
            json!({"templateID": "base", "volumeMounts": [{"name": "v", "path": "/a"}, {"name": "w", "path": "/a"}]}),
        ),
        (404, json!({"templateID": "base", "volumeMounts": [{"name": "v", "path": "/a"}]})),
        (
            501,
            json!({"templateID": "base", "iam": {"tokens": {"a": {"audience": "b", "tokenType": "JWT-SVID"}}}}),
        ),
    ];
    for (status, body) in cases {
        for path in ["/sandboxes", "/v2/sandboxes"] {
            let answer = app.post(path, body.clone()).await;
            assert_eq!(answer.status, status, "{path} {body}: {}", String::from_utf8_lossy(&answer.body));
            answer.expect(status);
        }
    }
    let open = json!({"templateID": "base", "network": {"allowPublicTraffic": false}});
    app.post("/sandboxes", open).await.expect(400);
    let unknown = app.post("/v2/sandboxes", json!({"templateID": "unknown"})).await.expect(404).json();
    assert_eq!(unknown["message"], "template 'unknown' not found");
    assert_eq!(app.engine.asked(), [], "the engine was never asked");
    app.assert_empty().await;
}

#[tokio::test]
async fn bodies_that_are_no_json_are_refused() {
    let app = TestApp::start().await;
    for (status, body) in
        [(400, String::new()), (400, "{".into()), (400, "[]".into()), (413, "x".repeat(2 << 20))]
    {
        let request = app.request(Method::POST, "/v2/sandboxes").body(Full::new(Bytes::from(body))).unwrap();
        app.send(request).await.expect(status);
    }
    app.assert_empty().await;
}

#[tokio::test]
async fn keys_are_asked_for_everywhere() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let routes = [
        (Method::GET, "/sandboxes".to_string()),
        (Method::POST, "/sandboxes".to_string()),
        (Method::GET, "/v2/sandboxes".to_string()),
        (Method::POST, "/v2/sandboxes".to_string()),
        (Method::GET, format!("/sandboxes/{id}")),
        (Method::DELETE, format!("/sandboxes/{id}")),
        (Method::POST, format!("/sandboxes/{id}/timeout")),
        (Method::POST, format!("/sandboxes/{id}/pause")),
        (Method::POST, format!("/sandboxes/{id}/connect")),
        (Method::PUT, format!("/sandboxes/{id}/network")),
        (Method::GET, format!("/sandboxes/{id}/logs")),
        (Method::GET, "/templates".to_string()),
        (Method::GET, "/teams".to_string()),
        (Method::GET, "/volumes".to_string()),
    ];
    for (method, path) in routes {
        for key in [None, Some(""), Some("e2b_0000000000000000000000000000000000000000"), Some("nonsense")] {
            let mut request =
                Request::builder().method(method.clone()).uri(&path).header("host", "localhost");
            if let Some(key) = key {
                request = request.header("x-api-key", key);
            }
            app.send(request.body(Full::default()).unwrap()).await.expect(401);
        }
    }
    assert_eq!(app.state(&id).await, "running");
}

#[tokio::test]
async fn pages_of_any_site_may_use_the_api_with_a_key() {
    let app = TestApp::start().await;
    for path in ["/sandboxes", "/v2/sandboxes", "/sandboxes/nonsense", "/nonsense"] {
        let preflight = Request::options(path)
            .header("host", "localhost")
            .header("origin", "http://a.site")
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "x-api-key,content-type");
        let answer = app.send(preflight.body(Full::default()).unwrap()).await.expect(204);
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "{path}");
        assert_eq!(answer.header("access-control-allow-headers"), Some("x-api-key,content-type"), "{path}");
        assert!(answer.header("access-control-allow-methods").unwrap().contains("DELETE"), "{path}");
        // No cookie or other credential that a browser sends by itself is ever accepted.
        assert_eq!(answer.header("access-control-allow-credentials"), None, "{path}");
    }
    for (status, path) in [(200, "/v2/sandboxes"), (404, "/sandboxes/nonsense"), (404, "/nonsense")] {
        let answer = app.get(path).await.expect(status);
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "{path}");
        assert_eq!(answer.header("access-control-expose-headers"), Some("*"), "{path}");
    }
    let plain = Request::options("/sandboxes").header("host", "localhost");
    app.send(plain.body(Full::default()).unwrap()).await.expect(405);
}

#[tokio::test]
async fn sandboxes_that_do_not_exist_are_404() {
    let app = TestApp::start().await;
    for id in ["nonsense", "01kz0000000000000000000000", "8zzzzzzzzzzzzzzzzzzzzzzzzz", "%2e%2e"] {
        app.get(&format!("/sandboxes/{id}")).await.expect(404);
        app.delete(&format!("/sandboxes/{id}")).await.expect(404);
        app.post(&format!("/sandboxes/{id}/timeout"), json!({"timeout": 5})).await.expect(404);
        app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(404);
        app.post(&format!("/sandboxes/{id}/connect"), json!({"timeout": 5})).await.expect(404);
        app.get(&format!("/v2/sandboxes/{id}/logs")).await.expect(404);
    }
}

#[tokio::test]
async fn bad_changes_change_nothing() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let before = app.row(&id).await;
    for (path, body) in [
        ("timeout", json!({})),
        ("timeout", json!({"timeout": 3601})),
        ("timeout", json!({"timeout": "5"})),
        ("connect", json!({})),
        ("connect", json!({"timeout": 0})),
        ("connect", json!({"timeout": 3601})),
        ("refreshes", json!({"duration": -1})),
        ("refreshes", json!({"duration": 3601})),
        ("pause", json!({"memory": "no"})),
        ("resume", json!({"timeout": 0})),
    ] {
        app.post(&format!("/sandboxes/{id}/{path}"), body).await.expect(400);
    }
    app.put(&format!("/sandboxes/{id}/network"), json!({"denyOut": ["x y"]})).await.expect(400);
    assert_eq!(app.row(&id).await, before);
    for query in
        ["limit=0", "limit=101", "limit=x", "state=creating", "order=up", "nextToken=x", "startedAfter=now"]
    {
        app.get(&format!("/v2/sandboxes?{query}")).await.expect(400);
    }
    for query in ["start=-1", "start=x", "start=5&end=1"] {
        app.get(&format!("/sandboxes/{id}/metrics?{query}")).await.expect(400);
    }
    app.get("/sandboxes/metrics").await.expect(400);
    app.get(&format!("/v2/sandboxes/{id}/logs?limit=1001")).await.expect(400);
    app.get(&format!("/v2/sandboxes/{id}/logs?level=loud")).await.expect(400);
    app.get(&format!("/v2/sandboxes/{id}/logs?direction=up")).await.expect(400);
}

#[tokio::test]
async fn wrong_states_are_conflicts() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(204);
    app.post(&format!("/sandboxes/{id}/timeout"), json!({"timeout": 60})).await.expect(404);
    app.post(&format!("/sandboxes/{id}/refreshes"), json!({"duration": 60})).await.expect(404);
    app.put(&format!("/sandboxes/{id}/network"), json!({})).await.expect(404);
}

#[tokio::test]
async fn what_this_server_does_not_have_and_what_nobody_has_are_told_apart() {
    let app = TestApp::start().await;
    app.get("/api-keys").await.expect(501);
    app.get("/nothing/here").await.expect(404);
    app.put("/sandboxes", json!({})).await.expect(405);
}

#[tokio::test]
async fn a_create_that_the_engine_refuses_leaves_only_its_record() {
    let app = TestApp::start().await;
    let cases = [
        (EngineError::NoCapacity("full".into()), 503, Some("5")),
        (EngineError::Unavailable("away".into()), 503, Some("1")),
        (EngineError::Failed("secret detail".into()), 500, None),
        (EngineError::UnknownTemplate("base".into()), 404, None),
    ];
    for (error, status, retry_after) in cases {
        app.engine.fail(Op::Create, Some(error));
        let answer = app.post("/v2/sandboxes", json!({"templateID": "base"})).await.expect(status);
        assert_eq!(answer.header("retry-after"), retry_after);
        assert!(!String::from_utf8_lossy(&answer.body).contains("secret"));
        let (_, id) = *app.engine.asked().iter().rfind(|(op, _)| *op == Op::Create).unwrap();
        let state = app.ended(&id.to_string()).await;
        assert!(matches!(state, SandboxState::Error { fault: Fault::CreateFailed { .. } }), "{state:?}");
        app.assert_empty().await;
    }
}

#[tokio::test]
async fn what_the_host_fails_is_told_to_operators_alone() {
    let app = TestApp::start().await;
    app.engine.fail(Op::Create, Some(EngineError::Failed("overlayfs: secret detail".into())));
    let refused = app.post("/api/v1/sandboxes", json!({})).await.expect(500);
    let (body, request_id) = (refused.json(), refused.header("x-request-id").unwrap().to_string());
    assert_eq!((&body["code"], &body["request_id"]), (&json!("host_failed"), &json!(request_id)));
    assert!(!body.to_string().contains("secret"), "{body}");
    app.get("/api/v1/admin/host").await.expect(403);
    let operator = app.store.create_operator_key(&app.store.operator(), "root").await.unwrap();
    let asked = app.as_key(operator.reveal(), Method::GET, "/api/v1/admin/host", json!(null)).await;
    let report = asked.expect(200).json();
    let failure = &report["failures"][0];
    assert_eq!(
        (&failure["why"], &failure["request_id"]),
        (&json!("overlayfs: secret detail"), &json!(request_id))
    );
}

#[tokio::test]
async fn a_create_whose_agent_misbehaves_leaves_only_its_record() {
    let app = TestApp::start().await;
    for manners in [Manners::Broken, Manners::Endless] {
        app.engine.set_manners(manners);
        let refused = app.post("/v2/sandboxes", json!({"templateID": "base"})).await.expect(500).json();
        assert_eq!(refused["message"], "the sandbox did not become ready");
        app.assert_empty().await;
    }
}

#[tokio::test]
async fn what_our_own_api_has_not_is_refused_in_its_shape() {
    let app = TestApp::start().await;
    for path in ["/api/v1/nothing", "/api/v1", "/api/v1/sandboxes/x/nothing/at/all"] {
        let refused = app.get(path).await.expect(404);
        assert_eq!(refused.header("x-request-id"), refused.json()["request_id"].as_str(), "{path}");
        let refused = refused.json();
        assert_eq!(refused["code"], "not_found", "{path}: {refused}");
        assert!(refused["message"].as_str().unwrap().contains(path), "{refused}");
        assert!(refused["hint"].as_str().unwrap().contains("openapi.json"), "{refused}");
    }
    for (method, path, allowed) in [
        (Method::DELETE, "/api/v1/sandboxes", "POST,GET,HEAD"),
        (Method::PUT, "/api/v1/health", "GET,HEAD"),
        (Method::PATCH, "/api/v1/openapi.json", "GET,HEAD"),
    ] {
        let refused = app.as_key(&app.key, method.clone(), path, Value::Null).await.expect(405);
        let sorted = |text: &str| {
            let mut names: Vec<String> = text.split(',').map(str::to_string).collect();
            names.sort();
            names
        };
        assert_eq!(sorted(refused.header("allow").unwrap()), sorted(allowed), "{method} {path}");
        let refused = refused.json();
        assert_eq!(refused["code"], "method_not_allowed", "{method} {path}: {refused}");
        assert!(refused["request_id"].is_string() && refused["hint"].is_string(), "{refused}");
    }
    // E2B's clients continue to read E2B's shape.
    assert_eq!(app.get("/nothing").await.expect(404).json()["code"], 404);
}

#[tokio::test]
async fn a_refusal_names_the_field_as_it_is_called() {
    let app = TestApp::start().await;
    let nobody = "01aaaaaaaaaaaaaaaaaaaaaaaa";
    let task = app.post("/api/v1/tasks", json!({"title": "Fix it"})).await.expect(201).json();
    let task = format!("/api/v1/tasks/{}", task["id"].as_str().unwrap());
    let change = |body: Value| app.as_key(&app.key, Method::PATCH, &task, body);
    let many = vec![json!({"effect": "deny", "pattern": "x"}); 101];
    let refusals = [
        ("agent_id", app.post(&format!("{task}/start"), json!({"agent_id": nobody})).await),
        ("agent_id", change(json!({"agent_id": nobody})).await),
        ("place.after", change(json!({"place": {"after": nobody}})).await),
        ("rules", app.put("/api/v1/policy", json!({"rules": many})).await),
    ];
    for (field, refused) in refusals {
        let refused = refused.expect(422).json();
        let message = refused["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{field} ")), "{refused}");
    }
}

#[tokio::test]
async fn parameters_that_there_are_not_are_refused_and_those_there_are_named() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    for (path, unknown, named) in [
        (
            "/api/v1/sandboxes?task=x".to_string(),
            "task",
            "limit, cursor, state, template, agent_id, task_id, metadata, order",
        ),
        ("/api/v1/tasks?limit=5&stat=todo".to_string(), "stat", "context_id"),
        (format!("/api/v1/sandboxes/{id}?verbose=1"), "verbose", "takes no parameters"),
        (format!("/api/v1/sandboxes/{id}/files/etc/hostname?as=text"), "as", "user, watch"),
        ("/api/v1/events?%6bind=x&Kind=y".to_string(), "Kind", "kind"),
        ("/api/v1/health?x".to_string(), "x", "takes no parameters"),
    ] {
        let refused = app.get(&path).await.expect(400).json();
        let message = refused["message"].as_str().unwrap();
        assert_eq!(refused["code"], "bad_request", "{path}");
        assert!(message.contains(&format!("'{unknown}'")) && message.contains(named), "{path}: {message}");
    }
    // Nothing was done meanwhile, and a body makes no difference.
    app.post("/api/v1/sandboxes?dry_run=true", json!({})).await.expect(400);
    app.delete(&format!("/api/v1/sandboxes/{id}?force=true")).await.expect(400);
    assert_eq!((app.state(&id).await.as_str(), app.engine.ids().len()), ("running", 1));
    let head = app.request(Method::HEAD, "/api/v1/sandboxes?task=x").body(Full::default()).unwrap();
    assert_eq!(app.send(head).await.status, 400);
    // A known parameter with an invalid value is named.
    for (path, field) in [
        ("/api/v1/sandboxes?limit=many", "limit"),
        ("/api/v1/sandboxes?limit=0", "limit"),
        ("/api/v1/sandboxes?agent_id=x", "agent_id"),
        ("/api/v1/tasks?archived=maybe", "archived"),
        ("/api/v1/sandboxes?order=asc&order=desc", "order"),
        ("/api/v1/sandboxes/fork/01aaaaaaaaaaaaaaaaaaaaaaaa/compare?left=1", "right"),
    ] {
        let refused = app.get(path).await.expect(422).json();
        assert!(refused["message"].as_str().unwrap().starts_with(field), "{path}: {refused}");
    }
    app.get("/api/v1/sandboxes?state=%ff").await.expect(400);
    // An empty value counts as missing, and lists may be repeated or joined.
    let listed =
        app.get("/api/v1/sandboxes?state=running,paused&state=error&template=&limit=").await.expect(200);
    assert_eq!(listed.json()["items"].as_array().unwrap().len(), 1);
    // E2B's SDKs may send parameters that this server does not know.
    app.get("/v2/sandboxes?somethingNew=1").await.expect(200);
}

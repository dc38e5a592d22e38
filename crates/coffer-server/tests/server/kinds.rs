//! Kinds of keys: all routes with all kinds, and what agents and services must not do.

use std::collections::BTreeMap;

use coffer_core::{RepositoryId, RunId, SandboxId, TaskId};
use coffer_store::{AttemptNote, RunEnd, Slots, StartTask};
use http::Method;
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::app::TestApp;
use crate::forge::{Work, git, good};

/// The results, for people to read and for changes to show in review.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/key-kinds.md");
const HEAD: &str = "# Kinds of keys

An **operator** runs the installation. A **person** and a **service** (CI, scripts) belong to a project; only approvals of people
count, and only people can create keys for people. An **agent** is a coding agent. The kind says which routes a key may call at all;
its role (`read`, `write`, `admin`) decides the rest. An agent's key reaches its own sandboxes and tasks, pushes to the branches
of its tasks and opens pull requests from them.

A test walks all routes with all kinds and writes this page (`COFFER_UPDATE=1`); the table is in `coffer-api/src/kinds.rs`.

| route | operator | person | service | agent |
|---|---|---|---|---|
";

/// Routes that are not in our OpenAPI description.
const MORE: &[(&str, &str)] = &[
    ("GET", "/mcp"),
    ("POST", "/mcp"),
    ("DELETE", "/mcp"),
    ("GET", "/sandboxes"),
    ("POST", "/sandboxes"),
    ("GET", "/v2/sandboxes"),
    ("POST", "/v2/sandboxes"),
    ("GET", "/sandboxes/metrics"),
    ("GET", "/sandboxes/{id}"),
    ("DELETE", "/sandboxes/{id}"),
    ("POST", "/sandboxes/{id}/timeout"),
    ("POST", "/sandboxes/{id}/pause"),
    ("POST", "/sandboxes/{id}/resume"),
    ("POST", "/v2/sandboxes/{id}/connect"),
    ("PUT", "/sandboxes/{id}/network"),
    ("GET", "/sandboxes/{id}/metrics"),
    ("GET", "/v2/sandboxes/{id}/logs"),
    ("POST", "/sandboxes/{id}/fork"),
    ("POST", "/sandboxes/{id}/snapshots"),
    ("GET", "/snapshots"),
    ("GET", "/teams"),
    ("GET", "/templates"),
    ("POST", "/v3/templates"),
    ("GET", "/volumes"),
    ("POST", "/volumes"),
    ("GET", "/volumes/{id}"),
    ("DELETE", "/volumes/{id}"),
    ("GET", "/secrets"),
    ("POST", "/secrets"),
    ("GET", "/secrets/{secret}"),
    ("POST", "/secrets/{secret}"),
    ("DELETE", "/secrets/{secret}"),
    ("GET", "/git/{project}/{repository}/info/refs?service=git-receive-pack"),
    ("GET", "/metrics"),
];

async fn made_key(app: &TestApp, body: Value) -> String {
    let made = app.post("/api/v1/keys", body).await.expect(201).json();
    made["key"].as_str().unwrap().to_string()
}

pub(crate) async fn agent(app: &TestApp, name: &str) -> (String, String) {
    let made = app.post("/api/v1/agents", json!({"name": name})).await.expect(201).json();
    let id = made["id"].as_str().unwrap().to_string();
    let key = made_key(app, json!({"name": name, "role": "write", "agent_id": id})).await;
    (id, key)
}

/// Only the status: some answers never end.
async fn status(app: &TestApp, key: &str, method: &Method, path: &str) -> u16 {
    let stream = TcpStream::connect(app.address()).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::builder()
        .method(method.clone())
        .uri(path)
        .header("host", app.address().to_string())
        .header("x-api-key", key)
        .body(Full::<bytes::Bytes>::default())
        .unwrap();
    let answer = sender.send_request(request).await.unwrap();
    connection.abort();
    answer.status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_is_for_the_kinds_that_the_page_names() {
    let app = TestApp::start().await;
    let operator = app.store.create_operator_key(&app.store.operator(), "walk").await.unwrap();
    let operator = operator.reveal().to_string();
    let service = made_key(&app, json!({"name": "ci", "role": "admin"})).await;
    let (_, agent) = agent(&app, "coder").await;
    let kinds = [&operator, &app.key, &service, &agent];
    let project = app.scope().await.project().to_string();
    let openapi = app.get("/api/v1/openapi.json").await.expect(200).json();
    let described = openapi["paths"].as_object().unwrap().iter().flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().iter();
        let keyed = methods.filter(|(_, operation)| operation["security"] != json!([{}]));
        keyed.map(move |(method, _)| (method.to_uppercase(), path.clone()))
    });
    let more = MORE.iter().map(|(method, path)| (method.to_string(), path.to_string()));
    let mut rows = BTreeMap::new();
    for (method, route) in described.chain(more) {
        let fill = |part: &str| match part {
            "{project}" if route.starts_with("/git/") => project.clone(),
            "{number}" | "{entry}" | "{pid}" => "1".to_string(),
            "{branch}" => "main".to_string(),
            "{commit}" => "0".repeat(40),
            "{run}" => RunId::generate().to_string(),
            "{repository}" => RepositoryId::generate().to_string(),
            "{task}" => TaskId::generate().to_string(),
            part if part.starts_with('{') => SandboxId::generate().to_string(),
            part => part.to_string(),
        };
        let path = route.split('/').map(fill).collect::<Vec<_>>().join("/");
        let parsed: Method = method.parse().unwrap();
        let mut marks = Vec::new();
        for key in kinds {
            let status = status(&app, key, &parsed, &path).await;
            assert_ne!(status, 401, "{method} {route}");
            assert!(status < 500 || status == 501, "{method} {route}: {status}");
            marks.push(if status == 403 { "" } else { "yes" });
        }
        assert!(marks.contains(&"yes"), "{method} {route} is for no key: is it in the table?");
        let route = route.split('?').next().unwrap().to_string();
        rows.insert(
            (route.clone(), method.clone()),
            format!("| `{method} {route}` | {} |\n", marks.join(" | ")),
        );
    }
    assert!(rows.len() > 150, "only {} routes", rows.len());
    let page = format!("{HEAD}{}", rows.into_values().collect::<String>());
    if std::env::var_os("COFFER_UPDATE").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let kept = std::fs::read_to_string(PAGE).unwrap();
    assert!(kept == page, "docs/key-kinds.md is out of date: run this test with COFFER_UPDATE=1");
    for forbidden in [
        "POST /api/v1/repositories/{repository}/pulls/{number}/merge",
        "POST /api/v1/repositories/{repository}/pulls/{number}/reviews",
        "POST /api/v1/repositories/{repository}/commits/{commit}/statuses",
        "PUT /api/v1/repositories/{repository}/protections/{branch}",
        "POST /api/v1/repositories/{repository}/import",
        "POST /api/v1/repositories",
        "PUT /api/v1/sandboxes/{id}/network",
        "PUT /sandboxes/{id}/network",
        "POST /api/v1/keys",
        "POST /api/v1/sign-in-links",
        "POST /api/v1/volumes",
        "DELETE /api/v1/volumes/{volume}",
        "POST /volumes",
        "GET /volumes/{id}",
        "DELETE /volumes/{id}",
    ] {
        assert!(page.contains(&format!("| `{forbidden}` |  | yes | yes |  |\n")), "{forbidden}");
    }
}

#[tokio::test]
async fn an_agent_opens_no_more_of_the_network_than_the_default() {
    let app = TestApp::start().await;
    let (_, agent) = agent(&app, "coder").await;
    let rules = json!({"a.com": [{"transform": {"headers": {"X-Key": "value"}}}]});
    for (path, body) in [
        ("/api/v1/sandboxes", json!({"network": {"base": "public"}})),
        ("/api/v1/sandboxes", json!({"network": {"base": "none", "allow": ["a.com:22"]}})),
        ("/v2/sandboxes", json!({"templateID": "base", "network": {"rules": rules}})),
        (
            "/v2/sandboxes",
            json!({"templateID": "base", "network": {"egressProxy": {"address": "a.com:1080"}}}),
        ),
    ] {
        let refused = app.as_key(&agent, Method::POST, path, body.clone()).await.expect(403).json();
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("an agent's key cannot open more of the network"), "{body}: {message}");
        // A person's key may.
        app.as_key(&app.key, Method::POST, path, body).await.expect(201);
    }
    for (path, body) in [
        ("/api/v1/sandboxes", json!({})),
        ("/api/v1/sandboxes", json!({"network": {"base": "none", "allow": ["a.com:443"]}})),
        (
            "/v2/sandboxes",
            json!({"templateID": "base", "network": {"allowOut": ["1.1.1.1"], "denyOut": ["0.0.0.0/0"]}}),
        ),
        ("/v2/sandboxes", json!({"templateID": "base", "allow_internet_access": false})),
    ] {
        app.as_key(&agent, Method::POST, path, body).await.expect(201);
    }
}

/// A task of this agent with a known branch, as an attempt would have left it.
async fn with_branch(app: &TestApp, agent: &str, branch: &str) {
    let new = json!({"title": "Fix", "repository": "app", "agent_id": agent});
    let made = app.post("/api/v1/tasks", new).await.expect(201).json();
    let task: TaskId = made["id"].as_str().unwrap().parse().unwrap();
    let (scope, operator) = (app.scope().await, app.store.operator());
    let start =
        StartTask { agent: None, model: None, replace: false, reason: "started", actor: "test".into() };
    app.store.start_task(&scope, task, start).await.unwrap();
    let place = TaskId::generate().to_string();
    let runner = app.store.enter_runner(&operator, &place, 1).await.unwrap();
    let slots = Slots { in_all: 10, per_project: 10 };
    let taken = app.store.take_runs(&operator, runner, &["task"], slots, 1, i64::MAX).await.unwrap();
    let hold = &taken[0].hold;
    let note = AttemptNote { branch: Some(branch.to_string()), ..AttemptNote::default() };
    app.store.note_attempt(hold.run, hold.fence, note).await.unwrap();
    app.store.end_run(hold, &RunEnd::Done(json!(null))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_moves_the_branches_of_its_own_tasks_alone() {
    let tasks =
        coffer_server::TaskSettings { in_all: 0, per_project: 8, ..coffer_server::TaskSettings::default() };
    let config = coffer_server::ServerConfig { lifetime: crate::app::policy(), tasks, ..Default::default() };
    let work = Work::on(TestApp::configured(config).await).await;
    let app = &work.app;
    let (id, key) = agent(app, "coder").await;
    let (other, _) = agent(app, "other").await;
    with_branch(app, &id, "task/mine").await;
    with_branch(app, &other, "task/theirs").await;
    work.branch("free", "file", "x\n").await;
    work.commit("one", "more", "y\n").await;
    let url = work.url.replace(&app.key, &key);
    let at = work.at("one");
    let push = async |to: &str| git(&at, &["push", "--quiet", &url, &format!("HEAD:refs/heads/{to}")]).await;
    for branch in ["main", "free", "task/theirs", "task/mine2"] {
        let refused = push(branch).await;
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && told.contains("its own tasks"), "{branch}: {told}");
    }
    let tag = git(&at, &["push", "--quiet", &url, "HEAD:refs/tags/v1"]).await;
    assert!(!tag.status.success(), "a tag is no branch of a task");
    good(&push("task/mine").await);
    let gone = git(&at, &["push", "--quiet", &url, ":refs/heads/task/mine"]).await;
    assert!(!gone.status.success(), "nor may it delete");
    good(&git(&at, &["fetch", "--quiet", &url]).await);

    let pulls = format!("{}/pulls", work.path);
    let open = |head: &str| json!({"title": "mine", "head": head});
    app.as_key(&key, Method::POST, &pulls, open("free")).await.expect(403);
    app.as_key(&key, Method::POST, &pulls, open("task/mine")).await.expect(201);
    for (method, path, body) in [
        (Method::POST, format!("{pulls}/1/merge"), json!({})),
        (Method::POST, format!("{pulls}/1/reviews"), json!({"verdict": "approve"})),
        (Method::PATCH, format!("{pulls}/1"), json!({"state": "closed"})),
        (Method::POST, "/api/v1/repositories".into(), json!({"name": "mine"})),
    ] {
        app.as_key(&key, method, &path, body).await.expect(403);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn approvals_count_from_people_alone() {
    let work = Work::start().await;
    let app = &work.app;
    let commit = work.branch("feature", "file", "x\n").await;
    work.open("feature").await;
    let rules = json!({"require_pull": true, "approvals": 1, "require_statuses": false});
    app.put(&format!("{}/protections/main", work.path), rules).await.expect(200);
    let reviews = format!("{}/pulls/1/reviews", work.path);
    let approve = json!({"verdict": "approve", "commit": commit});
    let service = made_key(app, json!({"name": "ci", "role": "admin"})).await;
    app.as_key(&service, Method::POST, &reviews, approve.clone()).await.expect(403);
    let remark = json!({"verdict": "comment", "body": "all checks passed"});
    app.as_key(&service, Method::POST, &reviews, remark).await.expect(201);
    work.merge(1, json!({})).await.expect(409);

    // Nor does a service get a person's key.
    let person = json!({"name": "me", "role": "admin", "kind": "person"});
    app.as_key(&service, Method::POST, "/api/v1/keys", person.clone()).await.expect(403);
    let keys = app.get("/api/v1/keys").await.expect(200).json();
    let first = keys["items"].as_array().unwrap().iter().find(|key| key["kind"] == "person").unwrap();
    let rotate = format!("/api/v1/keys/{}/rotate", first["id"].as_str().unwrap());
    app.as_key(&service, Method::POST, &rotate, json!(null)).await.expect(403);

    let person = made_key(app, person).await;
    app.as_key(&person, Method::POST, &reviews, approve).await.expect(201);
    work.merge(1, json!({})).await.expect(200);
    for (body, why) in [
        (json!({"name": "x", "kind": "operator"}), "operators are no kind of a project's"),
        (json!({"name": "x", "kind": "agent"}), "an agent has to be named"),
        (json!({"name": "x", "kind": "robot"}), "no such kind"),
    ] {
        assert_eq!(app.post("/api/v1/keys", body).await.status, 422, "{why}");
    }
}

#[tokio::test]
async fn an_idempotency_key_is_its_callers_own() {
    let app = TestApp::start().await;
    let (_, agent) = agent(&app, "coder").await;
    let service = made_key(&app, json!({"name": "ci"})).await;
    let body = json!({"templateID": "base", "timeout": 60}).to_string();
    let mut made = Vec::new();
    for key in [&app.key, &app.key, &service, &agent] {
        let request = http::Request::post("/v2/sandboxes")
            .header("host", app.address().to_string())
            .header("x-api-key", key)
            .header("idempotency-key", "same")
            .body(Full::new(bytes::Bytes::from(body.clone())))
            .unwrap();
        let answer = app.send(request).await.expect(201).json();
        made.push(answer["sandboxID"].as_str().unwrap().to_string());
    }
    assert_eq!(made[0], made[1], "its own is one request");
    let others: std::collections::BTreeSet<_> = made.iter().collect();
    assert_eq!(others.len(), 3, "no caller gets what another made: {made:?}");
}

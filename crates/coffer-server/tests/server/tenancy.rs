//! Access: roles, agents, operators, other projects, and the audit log.

use std::collections::BTreeMap;
use std::time::Duration;

use coffer_core::agent::Preset;
use coffer_core::model::{CallKind, Provider};
use coffer_core::{ExecutionId, SandboxId};
use coffer_store::{
    ExecutionRow, ExecutionSource, NewCall, NewExecution, NewGrant, Periods, Reserved, Worth,
};
use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;

/// Creates a key through the API and returns its secret.
async fn key(app: &TestApp, request: Value) -> String {
    let made = app.post("/api/v1/keys", request).await.expect(201).json();
    made["key"].as_str().unwrap().to_string()
}

async fn agent(app: &TestApp, name: &str) -> (String, String) {
    let id = app.post("/api/v1/agents", json!({"name": name})).await.expect(201).json()["id"].clone();
    let id = id.as_str().unwrap().to_string();
    let key = key(app, json!({"name": name, "role": "write", "agent_id": id})).await;
    (id, key)
}

/// Records a call of a model by a sandbox.
async fn called(app: &TestApp, sandbox: &str) -> String {
    let grant = NewGrant {
        key: "mine".into(),
        sandbox: sandbox.parse().unwrap(),
        agent: None,
        task: None,
        run: None,
        preset: Preset::Codex,
        keys: BTreeMap::new(),
        pass_digest: "00".into(),
        budget_nanos: None,
        run_budget_nanos: None,
    };
    let grant = app.store.open_grant(&app.scope().await, grant).await.unwrap();
    let call = NewCall {
        grant,
        provider: Provider::OpenAi,
        kind: CallKind::Responses,
        model: "m".into(),
        worth: Worth::Between { least: 0, most: 1 },
        sandbox_cost_nanos: 0,
        periods: Periods { day: 0, month: 0 },
    };
    match app.store.reserve_call(call).await.unwrap() {
        Reserved::Yes { call, .. } => call.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Records an execution in a sandbox.
async fn executed(app: &TestApp, sandbox: &str) -> String {
    let new = NewExecution {
        id: ExecutionId::generate(),
        actor: None,
        command: "true".into(),
        cwd: None,
        user: None,
        source: ExecutionSource::Api,
        code: None,
    };
    let (id, project) = (new.id, app.scope().await.project());
    let row = ExecutionRow::new(new, project, sandbox.parse().unwrap(), None, 1);
    app.store.begin_execution(row).await.unwrap();
    id.to_string()
}

/// Creates a task with a requested attempt.
async fn attempted(app: &TestApp) -> (String, String) {
    let task = app.post("/api/v1/tasks", json!({"title": "mine"})).await.expect(201).json();
    let task = task["id"].as_str().unwrap().to_string();
    let start = coffer_store::StartTask {
        agent: None,
        model: None,
        replace: false,
        reason: "started",
        actor: "test".into(),
    };
    let (_, run) = app.store.start_task(&app.scope().await, task.parse().unwrap(), start).await.unwrap();
    (task, run.to_string())
}

/// A finished competition, so that nothing is in progress any more.
async fn competed(app: &TestApp, repository: &str) -> String {
    let racer = json!({"name": "racer", "definition": {"preset": "custom", "command": ["true", "{prompt}"]}});
    let racer = app.post("/api/v1/agents", racer).await.expect(201).json();
    let race = json!({"title": "mine", "repository": repository, "entries": [{"agent_id": racer["id"]}]});
    let race = app.post("/api/v1/sandboxes/fork", race).await.expect(202).json();
    let path = format!("/api/v1/sandboxes/fork/{}", race["id"].as_str().unwrap());
    app.post_empty(&format!("{path}/cancel")).await;
    for _ in 0..600 {
        let race = app.get(&path).await.expect(200).json();
        if !race["ended_at"].is_null() {
            return race["id"].as_str().unwrap().to_string();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{path} does not end")
}

/// Every operation of the OpenAPI description, with its path filled by `fill`.
fn operations(openapi: &Value, fill: impl Fn(&str) -> String) -> Vec<(Method, String, Value)> {
    let paths = openapi["paths"].as_object().unwrap();
    let all = paths.iter().flat_map(|(path, methods)| {
        let filled: Vec<_> = path
            .split('/')
            .map(|part| match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                Some(name) => fill(name),
                None => part.to_string(),
            })
            .collect();
        let filled = filled.join("/");
        methods.as_object().unwrap().iter().map(move |(method, operation)| {
            (method.to_uppercase().parse().unwrap(), filled.clone(), operation.clone())
        })
    });
    all.collect()
}

/// A valid body for each operation, so that it is refused for its project and not for its form.
fn body(method: &Method, path: &str) -> Value {
    match (method.as_str(), path) {
        ("PUT", path) if path.ends_with("/network") => json!({"base": "public"}),
        ("POST", path) if path.ends_with("/exec") || path.ends_with("/execute") => json!({"command": "true"}),
        ("POST", path) if path.ends_with("/code") => json!({"code": "1"}),
        ("POST", path) if path.ends_with("/files") => json!({"action": "mkdir", "path": "/x"}),
        ("POST", path) if path.ends_with("/timeout") => json!({"timeout_s": 5}),
        ("POST", path) if path.ends_with("/rollback") => json!({"snapshot_id": SandboxId::generate()}),
        ("POST", path) if path.ends_with("/keys") => json!({"name": "mischief"}),
        ("POST", path) if path.ends_with("/agents") || path.ends_with("/projects") => {
            json!({"name": "mischief"})
        }
        ("PUT", path) if path.contains("/secrets/") => json!({"value": "mischief"}),
        ("PATCH", path) if path.contains("/line-comments/") => json!({"body": "mischief"}),
        ("PATCH", path) if path.contains("/repositories/") => {
            let field = if path.contains("/pulls/") || path.contains("/issues/") {
                "title"
            } else {
                "default_branch"
            };
            json!({field: "mischief"})
        }
        ("POST", "/api/v1/sandboxes/fork") => {
            json!({"title": "mischief", "repository": "mischief", "entries": []})
        }
        ("POST", path) if path.ends_with("/templates") => json!({"from": "template://none"}),
        ("POST", path) if path.ends_with("/winner") => json!({"entry": 1}),
        ("PATCH", path) if path.contains("/people/") => json!({"name": "mischief"}),
        ("PATCH", path) if path.contains("/webhooks/") => json!({"description": "mischief"}),
        ("PUT", path) if path.contains("/protections/") => json!({}),
        ("POST", path) if path.ends_with("/connections") => {
            json!({"name": "mischief", "kind": "github", "secret": "mine-alone"})
        }
        ("POST", path) if path.ends_with("/clone") => json!({"repository": "mischief"}),
        ("POST", path) if path.ends_with("/branch") => json!({"name": "mischief"}),
        ("POST", path) if path.ends_with("/commit") => json!({"message": "feat: mischief"}),
        ("POST", path) if path.ends_with("/push") => json!({}),
        ("POST", path) if path.ends_with("/pr") => json!({"title": "mischief"}),
        ("POST", path) if path.ends_with("/repositories") => json!({"name": "mischief"}),
        ("POST", path) if path.ends_with("/pulls") => json!({"title": "mischief", "head": "mischief"}),
        ("POST", path) if path.ends_with("/issues") => json!({"title": "mischief"}),
        ("POST", path) if path.ends_with("/comments") || path.ends_with("/replies") => {
            json!({"body": "mischief"})
        }
        ("POST", path) if path.ends_with("/reviews") => json!({"verdict": "approve"}),
        ("POST", path) if path.ends_with("/statuses") => json!({"context": "mischief", "state": "success"}),
        ("PUT", path) if path.contains("/budgets/") => json!({"amount": 1}),
        ("POST", path) if path.ends_with("/budgets") => json!({"amount": 1, "period": "month"}),
        ("PUT", path) if path.ends_with("/settings") || path.ends_with("/quotas") => json!({}),
        ("PATCH", path) if path.contains("/tasks/") => json!({"title": "mischief"}),
        ("POST", path) if path.ends_with("/tasks") => json!({"title": "mischief"}),
        ("POST", path) if path.ends_with("/answer") => json!({"answer": "stop"}),
        ("POST", path) if path.ends_with("/messages") => json!({"body": "mischief"}),
        ("PUT", path) if path.ends_with("/definition") => json!({"preset": "codex"}),
        ("PATCH", _) => json!({"name": "mischief"}),
        _ => Value::Null,
    }
}

#[tokio::test]
async fn nothing_of_another_project_can_be_seen_or_touched() {
    let app = TestApp::start().await;
    let sandbox = app.create(json!({})).await;
    let (agent, _) = agent(&app, "mine").await;
    let made = app.post("/api/v1/keys", json!({"name": "mine"})).await.expect(201).json();
    let volume = app.post("/api/v1/volumes", json!({"name": "mine-alone"})).await.expect(201).json();
    let person = app.post("/api/v1/people", json!({"name": "Mine Alone"})).await.expect(201).json();
    let session = app.post("/api/v1/sessions", json!({"key": app.key})).await.expect(201).json();
    let budget = json!({"period": "day", "amount": 1});
    let budget = app.post("/api/v1/budgets", budget).await.expect(201).json();
    app.put("/api/v1/secrets/mine-alone", json!({"value": "secret-of-mine"})).await.expect(201);
    let repository = app.post("/api/v1/repositories", json!({"name": "mine"})).await.expect(201).json();
    let repository = repository["id"].as_str().unwrap().to_string();
    let issues = format!("/api/v1/repositories/{repository}/issues");
    app.post(&issues, json!({"title": "mine"})).await.expect(201);
    let connection = json!({"name": "mine", "kind": "github", "secret": "mine-alone"});
    let connection = app.post("/api/v1/forge/connections", connection).await.expect(201).json();
    let connection = connection["id"].as_str().unwrap().to_string();
    let mine = app.scope().await.project().to_string();
    let execution = executed(&app, &sandbox).await;
    let call = called(&app, &sandbox).await;
    let (task, run) = attempted(&app).await;
    let path = format!("/api/v1/sandboxes/{sandbox}/snapshots");
    let snapshot = app.post(&path, json!({"name": "mine"})).await.expect(201).json();
    let snapshot = snapshot["id"].as_str().unwrap().to_string();
    // An address that is refused before anything is dialled.
    let webhook = json!({"url": "https://localhost:1/", "events": ["webhook.ping"], "enabled": false});
    let webhook = app.post("/api/v1/webhooks", webhook).await.expect(201).json();
    let webhook = webhook["id"].as_str().unwrap().to_string();
    let delivery = app.post_empty(&format!("/api/v1/webhooks/{webhook}/test")).await.expect(202).json();
    let delivery = delivery["id"].as_str().unwrap().to_string();
    let coder = json!({"name": "coder", "definition": {"preset": "codex"}});
    let coder = app.post("/api/v1/agents", coder).await.expect(201).json();
    let wanted = json!({"title": "mine", "repository": repository, "agent_id": coder["id"]});
    let wanted = json!({"name": "mine", "cron": "@daily", "enabled": false, "task": wanted});
    let schedule = app.post("/api/v1/schedules", wanted).await.expect(201).json();
    let schedule = schedule["id"].as_str().unwrap().to_string();
    let artifact =
        app.post("/api/v1/artifacts", json!({"name": "mine", "text": "x"})).await.expect(201).json();
    let artifact = artifact["id"].as_str().unwrap().to_string();
    let fork = competed(&app, &repository).await;
    let template = json!({"name": "mine-alone", "from": "template://none"});
    let template = app.post("/api/v1/templates", template).await.expect(202).json();
    let fill = |name: &str| match name {
        "fork" => fork.clone(),
        "entry" => "1".to_string(),
        "schedule" => schedule.clone(),
        "webhook" => webhook.clone(),
        "delivery" => delivery.clone(),
        "artifact" => artifact.clone(),
        "id" => sandbox.clone(),
        "agent" => agent.clone(),
        "execution" => execution.clone(),
        "snapshot" => snapshot.clone(),
        "key" => made["id"].as_str().unwrap().to_string(),
        "project" => mine.clone(),
        "path" => "etc/hosts".to_string(),
        "pid" => "1".to_string(),
        "context" => "1".to_string(),
        "secret" => "mine-alone".to_string(),
        "task" => task.clone(),
        "run" => run.clone(),
        "call" => call.clone(),
        "budget" => budget["id"].as_str().unwrap().to_string(),
        "volume" => volume["id"].as_str().unwrap().to_string(),
        "repository" => repository.clone(),
        "connection" => connection.clone(),
        "number" | "comment" => "1".to_string(),
        "branch" => "main".to_string(),
        "commit" => "0".repeat(40),
        "template" => template["template_id"].as_str().unwrap().to_string(),
        "build" => template["id"].as_str().unwrap().to_string(),
        "hash" => "0".repeat(64),
        "name" => "node".to_string(),
        "preset" => "claude_code".to_string(),
        "person" => person["id"].as_str().unwrap().to_string(),
        "session" => session["id"].as_str().unwrap().to_string(),
        other => panic!("no id for {other}: teach this test"),
    };
    let openapi = app.get("/api/v1/openapi.json").await.expect(200).json();
    let (asked, row) = (app.engine.asked(), app.row(&sandbox).await);
    let mut tried = 0;
    for (method, path, operation) in operations(&openapi, fill) {
        if path.ends_with("/stream") || operation["security"] == json!([{}]) {
            continue;
        }
        // A missing query parameter is refused first, for everyone alike.
        let query = match path.rsplit_once('/') {
            Some((above, "compare")) if above.contains("/fork/") => "?left=1&right=2",
            Some((_, "compare")) => "?from=main&to=main",
            Some((above, "file")) if above.contains("/repositories/") => "?commit=main&path=README.md",
            _ => "",
        };
        let asked = format!("{path}{query}");
        let answer = app.as_key(&app.other_key, method.clone(), &asked, body(&method, &path)).await;
        let theirs = [
            &sandbox,
            &agent,
            &mine,
            &execution,
            &snapshot,
            &repository,
            &connection,
            &webhook,
            &schedule,
            &delivery,
            &artifact,
            &fork,
        ]
        .into_iter()
        .any(|id| path.contains(id.as_str()))
            || [&made, &person, &session].iter().any(|one| path.contains(one["id"].as_str().unwrap()));
        if theirs {
            let expected = if path.contains("/projects") { 403 } else { 404 };
            assert_eq!(answer.status, expected, "{method} {path}: {}", answer.text());
            tried += 1;
        }
        for id in [
            &sandbox,
            &agent,
            &mine,
            &execution,
            &snapshot,
            &repository,
            &connection,
            &webhook,
            &schedule,
            &delivery,
            &artifact,
            &fork,
        ] {
            // A refusal may repeat the requested id, and the audit log has the caller's own requests.
            let may_tell = theirs || path.ends_with("/audit");
            assert!(may_tell || !answer.text().contains(id.as_str()), "{method} {path}: {}", answer.text());
        }
        let declared = operation["responses"].as_object().unwrap();
        assert!(declared.contains_key(&answer.status.to_string()), "{method} {path}: {}", answer.status);
    }
    assert!(tried >= 10, "only {tried} operations have an id");
    for (method, path) in [
        (Method::GET, format!("/sandboxes/{sandbox}")),
        (Method::DELETE, format!("/sandboxes/{sandbox}")),
        (Method::POST, format!("/sandboxes/{sandbox}/pause")),
        (Method::POST, format!("/v2/sandboxes/{sandbox}/connect")),
        (Method::GET, format!("/v2/sandboxes/{sandbox}/logs")),
        (Method::PUT, format!("/sandboxes/{sandbox}/network")),
        (Method::POST, format!("/sandboxes/{sandbox}/snapshots")),
        (Method::POST, format!("/sandboxes/{sandbox}/fork")),
        (Method::DELETE, format!("/templates/{snapshot}")),
        (Method::DELETE, format!("/templates/{mine}%2Fmine%3Adefault")),
        (Method::DELETE, "/templates/mine".into()),
        (Method::GET, format!("/templates/aliases/{snapshot}")),
    ] {
        let answer = app.as_key(&app.other_key, method.clone(), &path, Value::Null).await;
        assert_eq!(answer.status, 404, "{method} {path}: {}", answer.text());
    }
    let from_it =
        [snapshot.clone(), format!("{snapshot}:default"), format!("{mine}/mine:default"), "mine".into()];
    for template in from_it {
        let new = json!({"templateID": template});
        app.as_key(&app.other_key, Method::POST, "/v2/sandboxes", new).await.expect(404);
    }
    let new = json!({"snapshot_id": snapshot});
    app.as_key(&app.other_key, Method::POST, "/api/v1/sandboxes", new).await.expect(404);
    assert_eq!(app.engine.snapshot_ids().len(), 1);
    assert_eq!(app.row(&sandbox).await, row, "something was changed");
    let secrets = app.get("/api/v1/secrets").await.expect(200).json();
    assert_eq!(
        (&secrets["items"][0]["name"], &secrets["items"][0]["version"]),
        (&json!("mine-alone"), &json!(1))
    );
    let touched: Vec<_> = app.engine.asked().into_iter().filter(|op| !asked.contains(op)).collect();
    // The other project's own data stays.
    assert!(touched.iter().all(|(_, id)| id.to_string() != sandbox), "{touched:?}");
    assert_eq!(app.get("/api/v1/keys").await.expect(200).json()["items"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_role_allows_what_it_says_on_both_apis() {
    let app = TestApp::start().await;
    let sandbox = app.create(json!({})).await;
    let reads = key(&app, json!({"name": "r", "role": "read"})).await;
    let writes = key(&app, json!({"name": "w"})).await;
    for (key, method, path, body, expected) in [
        (&reads, Method::GET, format!("/api/v1/sandboxes/{sandbox}"), Value::Null, 200),
        (&reads, Method::GET, format!("/sandboxes/{sandbox}"), Value::Null, 200),
        (&reads, Method::GET, "/v2/sandboxes".into(), Value::Null, 200),
        (&reads, Method::POST, "/api/v1/sandboxes".into(), json!({}), 403),
        (&reads, Method::POST, "/v2/sandboxes".into(), json!({"templateID": "base"}), 403),
        (&reads, Method::DELETE, format!("/sandboxes/{sandbox}"), Value::Null, 403),
        (&reads, Method::DELETE, format!("/api/v1/sandboxes/{sandbox}"), Value::Null, 403),
        (&reads, Method::POST, format!("/v2/sandboxes/{sandbox}/connect"), Value::Null, 403),
        (&writes, Method::POST, format!("/sandboxes/{sandbox}/timeout"), json!({"timeout": 60}), 204),
        (&writes, Method::GET, "/api/v1/keys".into(), Value::Null, 403),
        (&writes, Method::POST, "/api/v1/keys".into(), json!({"name": "x", "role": "admin"}), 403),
        (&writes, Method::GET, "/api/v1/audit".into(), Value::Null, 403),
        (&writes, Method::GET, "/api/v1/projects".into(), Value::Null, 403),
    ] {
        let answer = app.as_key(key, method.clone(), &path, body).await;
        assert_eq!(answer.status, expected, "{method} {path}: {}", answer.text());
    }
    // A client with the token of a sandbox can start commands in it.
    for (key, sees) in [(&reads, false), (&writes, true)] {
        let path = format!("/sandboxes/{sandbox}");
        let detail = app.as_key(key, Method::GET, &path, Value::Null).await.expect(200).json();
        assert_eq!(detail["envdAccessToken"].is_string(), sees, "{detail}");
    }
    assert_eq!(app.state(&sandbox).await, "running");
}

#[tokio::test]
async fn an_agent_acts_on_its_own_sandboxes_alone() {
    let app = TestApp::start().await;
    let (one, ones) = agent(&app, "one").await;
    let (_, others) = agent(&app, "other").await;
    let nobodys = app.create(json!({})).await;
    // Also by E2B's route, as its SDKs do.
    let made =
        app.as_key(&ones, Method::POST, "/v2/sandboxes", json!({"templateID": "base"})).await.expect(201);
    let sandbox = made.json()["sandboxID"].as_str().unwrap().to_string();
    assert_eq!(app.row(&sandbox).await.agent.map(|agent| agent.to_string()), Some(one.clone()));

    for (key, id) in [(&others, &sandbox), (&ones, &nobodys), (&others, &nobodys)] {
        for (method, path) in [
            (Method::GET, format!("/sandboxes/{id}")),
            (Method::GET, format!("/api/v1/sandboxes/{id}/history")),
            (Method::DELETE, format!("/api/v1/sandboxes/{id}")),
            (Method::POST, format!("/sandboxes/{id}/pause")),
        ] {
            let answer = app.as_key(key, method.clone(), &path, Value::Null).await;
            assert_eq!(answer.status, 404, "{method} {path}: {}", answer.text());
        }
    }
    let listed = |key: String| {
        let app = &app;
        async move {
            let page =
                app.as_key(&key, Method::GET, "/api/v1/sandboxes", Value::Null).await.expect(200).json();
            let e2b = app.as_key(&key, Method::GET, "/v2/sandboxes", Value::Null).await.expect(200).json();
            (page["items"].as_array().unwrap().len(), e2b.as_array().unwrap().len())
        }
    };
    assert_eq!((listed(ones.clone()).await, listed(others.clone()).await), ((1, 1), (0, 0)));
    let body = json!({"agent_id": one});
    app.as_key(&others, Method::POST, "/api/v1/sandboxes", body.clone()).await.expect(404);
    // An agent that could create keys could create one without limits.
    app.post("/api/v1/keys", json!({"name": "x", "role": "admin", "agent_id": one})).await.expect(422);
    app.as_key(&ones, Method::POST, "/api/v1/keys", json!({"name": "x"})).await.expect(403);
    // The project may create sandboxes for it.
    let given = app.post("/api/v1/sandboxes", body).await.expect(201).json();
    assert_eq!((given["agent_id"].as_str(), listed(ones.clone()).await), (Some(one.as_str()), (2, 2)));

    app.delete(&format!("/api/v1/agents/{one}")).await.expect(204);
    app.as_key(&ones, Method::GET, "/api/v1/sandboxes", Value::Null).await.expect(401);
    assert_eq!(app.state(&sandbox).await, "running");
}

#[tokio::test]
async fn an_operator_makes_projects_and_has_none() {
    let app = TestApp::start().await;
    let operator = app.store.create_operator_key(&app.store.operator(), "root").await.unwrap();
    let ask = |method, path: &'static str, body| app.as_key(operator.reveal(), method, path, body);
    let made = ask(Method::POST, "/api/v1/projects", json!({"name": "new"})).await.expect(201).json();
    ask(Method::POST, "/api/v1/projects", json!({"name": "new"})).await.expect(409);
    let page = ask(Method::GET, "/api/v1/projects?limit=2", Value::Null).await.expect(200).json();
    assert_eq!((page["items"].as_array().unwrap().len(), page["next"].is_string()), (2, true));
    let next = format!("/api/v1/projects?limit=2&cursor={}", page["next"].as_str().unwrap());
    let rest = app.as_key(operator.reveal(), Method::GET, &next, Value::Null).await.expect(200).json();
    assert_eq!(rest["items"][0]["name"], "new");
    ask(Method::GET, "/api/v1/sandboxes", Value::Null).await.expect(403);
    ask(Method::GET, "/v2/sandboxes", Value::Null).await.expect(403);
    let path = format!("/api/v1/projects/{}/keys", made["id"].as_str().unwrap());
    let key =
        app.as_key(operator.reveal(), Method::POST, &path, json!({"name": "first", "role": "admin"})).await;
    let key = key.expect(201).json();
    let own = app.as_key(key["key"].as_str().unwrap(), Method::GET, "/api/v1/project", Value::Null).await;
    assert_eq!(own.expect(200).json()["name"], "new");
}

#[tokio::test]
async fn two_who_rename_at_once_find_out() {
    let app = TestApp::start().await;
    let tag = app.get("/api/v1/project").await.expect(200).header("etag").unwrap().to_string();
    let rename = |tag: String, name: &'static str| {
        let request = app.request(Method::PATCH, "/api/v1/project").header("if-match", tag);
        app.send(request.body(json!({"name": name}).to_string().into()).unwrap())
    };
    let renamed = rename(tag.clone(), "first").await.expect(200);
    let refused = rename(tag, "second").await.expect(412).json();
    assert_eq!((&refused["code"], refused["hint"].is_string()), (&json!("precondition_failed"), true));
    rename("W/\"x\"".into(), "third").await.expect(412);
    rename(renamed.header("etag").unwrap().to_string(), "fourth").await.expect(200);
    assert_eq!(app.get("/api/v1/project").await.json()["name"], "fourth");
}

#[tokio::test]
async fn a_key_is_rotated_and_shown_once() {
    let app = TestApp::start().await;
    let made = app.post("/api/v1/keys", json!({"name": "ci", "expires_in_s": 3600})).await.expect(201).json();
    let id = made["id"].as_str().unwrap();
    let listed = app.get("/api/v1/keys").await.expect(200).text();
    assert!(!listed.contains(made["key"].as_str().unwrap()) && listed.contains(id));
    let path = format!("/api/v1/keys/{id}/rotate");
    app.post(&path, json!({"overlap_s": -1})).await.expect(422);
    let next = app.post(&path, json!({"overlap_s": 0})).await.expect(201).json();
    let app = &app;
    let works = |key: Value| async move {
        app.as_key(key.as_str().unwrap(), Method::GET, "/api/v1/sandboxes", Value::Null).await.status
    };
    assert_eq!((works(made["key"].clone()).await, works(next["key"].clone()).await), (401, 200));
    app.delete(&format!("/api/v1/keys/{}", next["id"].as_str().unwrap())).await.expect(204);
    assert_eq!(works(next["key"].clone()).await, 401);
    app.post(&path, Value::Null).await.expect(404);
}

#[tokio::test]
async fn the_audit_log_tells_who_did_what_and_what_was_refused() {
    let app = TestApp::start().await;
    let reads = key(&app, json!({"name": "r", "role": "read"})).await;
    let made = app.post("/api/v1/sandboxes", json!({})).await.expect(201);
    let id = made.json()["id"].as_str().unwrap().to_string();
    assert_eq!(made.header("location"), Some(format!("/api/v1/sandboxes/{id}").as_str()));
    let request_id = made.header("x-request-id").unwrap().to_string();
    let refused =
        app.as_key(&reads, Method::DELETE, &format!("/sandboxes/{id}"), Value::Null).await.expect(403);
    assert_eq!(refused.json()["code"], 403, "E2B's routes keep E2B's shape");
    app.as_key("e2b_0000000000000000000000000000000000000000", Method::GET, "/v2/sandboxes", Value::Null)
        .await
        .expect(401);
    let mut records = Vec::new();
    for _ in 0..100 {
        records = app.get(&format!("/api/v1/audit?subject={id}")).await.expect(200).json()["items"]
            .as_array()
            .unwrap()
            .clone();
        if records.len() == 2 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let told: Vec<_> =
        records.iter().map(|record| (record["action"].as_str(), record["status"].as_u64())).collect();
    assert_eq!(
        told,
        [(Some("DELETE /sandboxes/{id}"), Some(403)), (Some("POST /api/v1/sandboxes"), Some(201)),]
    );
    assert_eq!((&records[0]["code"], &records[1]["request_id"]), (&json!("forbidden"), &json!(request_id)));
    assert!(records.iter().all(|record| record["actor"].as_str().unwrap().starts_with("key:")));
    let everything = coffer_store::AuditFilter { limit: 200, ..coffer_store::AuditFilter::default() };
    let everything = app.store.audit(&app.store.operator(), &everything).await.unwrap();
    assert!(
        everything.iter().all(|record| record.project.is_some()),
        "a stranger wrote to it: {everything:?}"
    );
    let whole = app.get("/api/v1/audit?limit=200").await.expect(200).text();
    assert!(!whole.contains(&reads) && !whole.contains(&app.key), "a key is in the audit log");
}

#[tokio::test]
async fn bad_input_is_told_apart() {
    let app = TestApp::start().await;
    for (path, body, status, code) in [
        ("/api/v1/sandboxes", "{", 400, "bad_request"),
        ("/api/v1/sandboxes", r#"{"colour": "red"}"#, 422, "invalid"),
        ("/api/v1/sandboxes", r#"{"timeout_s": 0}"#, 422, "invalid"),
        ("/api/v1/sandboxes", r#"{"timeout_s": 99999999999999999999}"#, 422, "invalid"),
        ("/api/v1/sandboxes", r#"{"network": {"base": "moon"}}"#, 422, "invalid"),
        ("/api/v1/sandboxes", r#"{"template": "nope"}"#, 404, "not_found"),
        ("/api/v1/agents", r#"{"name": "a\u0007b"}"#, 422, "invalid"),
        ("/api/v1/agents", r#"{"name": ""}"#, 422, "invalid"),
        ("/api/v1/keys", r#"{"name": "x", "role": "root"}"#, 422, "invalid"),
        ("/api/v1/keys", r#"{"name": "x", "expires_in_s": 0}"#, 422, "invalid"),
    ] {
        let request = app.request(Method::POST, path).body(body.to_string().into()).unwrap();
        let answer = app.send(request).await.expect(status).json();
        assert_eq!(answer["code"], code, "{path} {body}: {answer}");
        assert_eq!(answer["request_id"].as_str().unwrap().len(), 26);
    }
    let lost = app.get("/api/v1/nowhere").await.expect(404);
    assert!(lost.json()["message"].as_str().unwrap().contains("/api/v1/nowhere"));
    app.get("/api/v1/sandboxes?limit=0").await.expect(422);
    app.get("/api/v1/sandboxes?cursor=x").await.expect(422);
    assert_eq!(app.engine.ids(), []);
}

#[tokio::test]
async fn the_same_idempotency_key_makes_one_sandbox() {
    let app = TestApp::start().await;
    let send = |body: &'static str| {
        let request = app.request(Method::POST, "/api/v1/sandboxes").header("idempotency-key", "once");
        app.send(request.body(body.into()).unwrap())
    };
    let first = send(r#"{"metadata": {"a": "1"}}"#).await.expect(201).json();
    let again = send(r#"{"metadata": {"a": "1"}}"#).await.expect(201).json();
    assert_eq!(first["id"], again["id"]);
    let refused = send(r#"{"metadata": {"a": "2"}}"#).await.expect(422).json();
    assert_eq!(refused["code"], "idempotency_key_reused");
    assert_eq!(app.engine.ids().len(), 1);
}

#[tokio::test]
async fn a_sandbox_lives_and_ends_by_our_own_routes() {
    let app = TestApp::start().await;
    let made = app.post("/api/v1/sandboxes", json!({"metadata": {"a": "b"}, "on_timeout": "pause"})).await;
    let made = made.expect(201).json();
    let path = format!("/api/v1/sandboxes/{}", made["id"].as_str().unwrap());
    assert_eq!((&made["state"], &made["on_timeout"]), (&json!("running"), &json!("pause")));
    let network = app.get(&format!("{path}/network")).await.expect(200).json();
    assert_eq!(network["policy"], json!({"base": "web"}), "the web is open, nothing else");
    app.put(&format!("{path}/network"), json!({"base": "none"})).await.expect(200);
    let paused = app.post(&format!("{path}/pause"), json!({"memory": false})).await.expect(200).json();
    assert_eq!(paused["state"], "paused");
    app.post(&format!("{path}/timeout"), json!({"timeout_s": 60})).await.expect(404);
    app.post(&format!("{path}/resume"), json!({"timeout_s": 120})).await.expect(200);
    app.post(&format!("{path}/timeout"), json!({"timeout_s": 60})).await.expect(200);
    app.delete(&path).await.expect(204);
    app.delete(&path).await.expect(204);
    let over = app.get(&path).await.expect(200).json();
    assert_eq!((&over["state"], &over["reason"]), (&json!("terminated"), &json!("requested")));
    let steps = app.get(&format!("{path}/history")).await.expect(200).json();
    let states: Vec<_> =
        steps["items"].as_array().unwrap().iter().map(|step| step["to"].as_str().unwrap()).collect();
    assert_eq!(states, ["creating", "running", "paused", "running", "terminated"]);
    let listed = app.get("/api/v1/sandboxes?state=terminated").await.expect(200).json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    app.assert_empty().await;
}

#[tokio::test]
async fn health_and_readiness_need_no_key() {
    let app = TestApp::start().await;
    for path in ["/api/v1/health", "/api/v1/ready", "/api/v1/openapi.json", "/api/v1/docs"] {
        app.as_key("none", Method::GET, path, Value::Null).await.expect(200);
    }
}

#[tokio::test]
async fn a_link_signs_a_browser_in_with_the_rights_of_its_key() {
    let app = TestApp::start().await;
    let (_, agents) = agent(&app, "coder").await;
    let refused =
        app.as_key(&agents, Method::POST, "/api/v1/sign-in-links", Value::Null).await.expect(403).json();
    assert_eq!(
        refused["error"]["code"].as_str().or(refused["code"].as_str()),
        Some("forbidden"),
        "{refused}"
    );
    let reader = app.post("/api/v1/keys", json!({"name": "reader", "role": "read"})).await.expect(201).json();
    let read = reader["key"].as_str().unwrap();
    let link = app.as_key(read, Method::POST, "/api/v1/sign-in-links", Value::Null).await.expect(201).json();
    let token = json!({"token": link["token"]});
    // The token is no key.
    app.as_key(link["token"].as_str().unwrap(), Method::GET, "/api/v1/me", Value::Null).await.expect(401);
    let session = app.post("/api/v1/sign-in", token.clone()).await.expect(201).json();
    let session = session["key"].as_str().unwrap();
    let me = app.as_key(session, Method::GET, "/api/v1/me", Value::Null).await.expect(200).json();
    assert_eq!(me["role"], "read");
    app.as_key(session, Method::GET, "/api/v1/keys", Value::Null).await.expect(403);
    app.post("/api/v1/sign-in", token).await.expect(403);
    // With the key goes the browser's.
    app.delete(&format!("/api/v1/keys/{}", reader["id"].as_str().unwrap())).await.expect(204);
    app.as_key(session, Method::GET, "/api/v1/me", Value::Null).await.expect(401);
}

//! Tasks and agents over the API: planned by people, worked on by runs.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use coffer_core::SandboxId;
use coffer_core::agent::{AgentReport, Tokens};
use coffer_flow::task::{AgentTurn, Brief, Checked, Ending, Halt, Pull, Turn, Workshop};
use coffer_flow::{Start, StepError};
use coffer_server::{OtherWorkshop, ServerConfig};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::app::{TestApp, policy};

/// None at first.
pub(crate) struct Permits(Semaphore);

impl Default for Permits {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl std::ops::Deref for Permits {
    type Target = Semaphore;

    fn deref(&self) -> &Semaphore {
        &self.0
    }
}

/// Does every step at once, but lets agents work only with permits.
#[derive(Default)]
pub(crate) struct Shop {
    pub(crate) agents: Permits,
    /// Their sandbox; one that does not exist by default.
    pub(crate) sandbox: Mutex<Option<SandboxId>>,
    /// Why the next turns are ended before they are done.
    pub(crate) halts: Mutex<VecDeque<Halt>>,
}

#[async_trait::async_trait]
impl Workshop for Shop {
    async fn ensure_sandbox(&self, _: &Brief, _: Start) -> Result<SandboxId, StepError> {
        Ok(self.sandbox.lock().unwrap().unwrap_or_else(SandboxId::generate))
    }

    async fn clone(&self, _: &Brief, _: SandboxId) -> Result<String, StepError> {
        Ok("base".into())
    }

    async fn set_up(&self, _: &Brief, _: SandboxId, _: Start) -> Result<Option<SandboxId>, StepError> {
        Ok(None)
    }

    async fn branch(&self, brief: &Brief, _: SandboxId, _: &str) -> Result<String, StepError> {
        Ok(brief.branch.clone())
    }

    async fn run_agent(
        &self,
        _: &Brief,
        _: SandboxId,
        turn: Turn<'_>,
        _: Start,
    ) -> Result<AgentTurn, StepError> {
        self.agents.acquire().await.unwrap().forget();
        let tokens = Some(Tokens { input: 7, cached: 0, output: 3 });
        let summary = Some(format!(
            "heard: {}",
            turn.said.iter().map(|said| said.plain()).collect::<Vec<_>>().join(", ")
        ));
        let report = AgentReport { tokens, cost_nanos: Some(250_000_000), summary, ..AgentReport::default() };
        let halted = self.halts.lock().unwrap().pop_front();
        Ok(AgentTurn { execution: None, exit_code: Some(0), report, reported: None, halted, trouble: None })
    }

    async fn check(&self, _: &Brief, _: SandboxId, _: &str, _: &str, _: usize) -> Result<Checked, StepError> {
        Ok(Checked { passed: true, exit_code: Some(0), execution: None, tail: None })
    }

    async fn commit(
        &self,
        brief: &Brief,
        _: SandboxId,
        _: &str,
        _: &str,
    ) -> Result<Option<String>, StepError> {
        if brief.title == "Nothing" {
            return Ok(None);
        }
        Ok(Some(format!("c{}", brief.attempt)))
    }

    async fn push(&self, _: &Brief, _: SandboxId, _: &str, _: &str) -> Result<(), StepError> {
        Ok(())
    }

    async fn ensure_pull(
        &self,
        brief: &Brief,
        _: &str,
        _: &str,
        _: Option<&Checked>,
        _: &AgentReport,
        _: Option<&str>,
    ) -> Result<Pull, StepError> {
        Ok(Pull { url: format!("/pulls/{}", brief.task), number: Some(1) })
    }

    async fn rest(&self, _: &Brief, _: SandboxId) -> Result<(), StepError> {
        Ok(())
    }

    async fn wake(&self, _: &Brief, _: SandboxId) -> Result<(), StepError> {
        Ok(())
    }

    async fn finish(&self, _: &Brief, _: Option<SandboxId>, _: Ending) -> Result<(), StepError> {
        Ok(())
    }
}

pub(crate) async fn working() -> (TestApp, Arc<Shop>) {
    let shop = Arc::new(Shop::default());
    let workshop = Some(OtherWorkshop(shop.clone()));
    let app =
        TestApp::configured(ServerConfig { lifetime: policy(), workshop, ..ServerConfig::default() }).await;
    (app, shop)
}

pub(crate) async fn coder(app: &TestApp) -> String {
    let new = json!({"name": "coder", "definition": {"preset": "codex", "env": {"A": "hush-hush"}}});
    app.post("/api/v1/agents", new).await.expect(201).json()["id"].as_str().unwrap().to_string()
}

/// Hides the values of an agent's environment, as versions did that hid all of them.
pub(crate) async fn hide_environment(app: &TestApp, agent: &str) {
    let (scope, agent) = (app.scope().await, agent.parse().unwrap());
    let known = app.store.agent(&scope, agent).await.unwrap().unwrap().definition.unwrap();
    let old = coffer_core::agent::AgentDefinition { hidden_env: None, ..known };
    app.store.define_agent(&scope, agent, None, old).await.unwrap();
}

pub(crate) async fn task(app: &TestApp, body: Value) -> String {
    app.post("/api/v1/tasks", body).await.expect(201).json()["id"].as_str().unwrap().to_string()
}

/// Waits until a task matches.
pub(crate) async fn until(app: &TestApp, task: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    for _ in 0..3000 {
        last = app.get(&format!("/api/v1/tasks/{task}")).await.expect(200).json();
        if is_so(&last) {
            return last;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("still {last}");
}

/// Waits until the first attempt at a task is over.
async fn first_attempt_is_cancelled(app: &TestApp, path: &str) {
    for _ in 0..3000 {
        let attempts = app.get(&format!("{path}/attempts")).await.expect(200).json();
        if attempts[0]["state"] == "cancelled" {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the first attempt goes on");
}

async fn patch(app: &TestApp, path: &str, tag: Option<&str>, body: Value) -> crate::app::Answer {
    let mut request = app.request(Method::PATCH, path);
    if let Some(tag) = tag {
        request = request.header("if-match", tag);
    }
    app.send(request.body(body.to_string().into()).unwrap()).await
}

#[tokio::test]
async fn a_task_is_planned_changed_and_put_away() {
    let app = TestApp::start().await;
    let made = app
        .post(
            "/api/v1/tasks",
            json!({
                "title": "Fix the door", "description": "It squeaks.", "labels": ["bug", "bug", "door"],
                "priority": "high", "repository": "local/house", "budget": 1.5, "context_id": "h-7",
                "check_command": "make test"
            }),
        )
        .await
        .expect(201);
    let id = made.json()["id"].as_str().unwrap().to_string();
    let path = format!("/api/v1/tasks/{id}");
    assert_eq!(made.header("location"), Some(path.as_str()));
    let shown = made.json();
    assert_eq!(
        (&shown["state"], &shown["labels"], &shown["budget"]),
        (&json!("todo"), &json!(["bug", "door"]), &json!(1.5))
    );
    assert_eq!((&shown["needs_attention"], &shown["attempts"]), (&Value::Null, &json!(0)));
    assert_eq!(shown["repository"], json!("house"), "a repository has one name");
    for name in ["house", "local/house"] {
        let found = app.get(&format!("/api/v1/tasks?repository={name}")).await.expect(200).json();
        assert_eq!(found["items"][0]["id"], json!(id), "{name}");
    }

    let tag = made.header("etag").unwrap().to_string();
    let moved =
        patch(&app, &path, Some(&tag), json!({"state": "backlog", "budget": null, "model": "m-1"})).await;
    let moved = moved.expect(200).json();
    assert_eq!(
        (&moved["state"], &moved["budget"], &moved["model"]),
        (&json!("backlog"), &Value::Null, &json!("m-1"))
    );
    patch(&app, &path, Some(&tag), json!({"title": "Late"})).await.expect(412);
    for (body, status) in [
        (json!({"title": ""}), 422),
        (json!({"title": "a\nb"}), 422),
        (json!({"colour": "red"}), 422),
        (json!({"state": "gone"}), 422),
        (json!({"budget": -1}), 422),
        (json!({"labels": [" a"]}), 422),
        (json!({"agent_id": "01m7g2b1w2e1paemp5ktr1sw8t"}), 422),
        (json!({"place": {"after": id}}), 422),
        (json!({"needs_attention": true}), 422),
    ] {
        let refused = patch(&app, &path, None, body.clone()).await;
        assert_eq!(refused.status, status, "{body}: {}", refused.text());
    }
    let second = task(&app, json!({"title": "Second", "state": "backlog"})).await;
    patch(&app, &format!("/api/v1/tasks/{second}"), None, json!({"place": "first"})).await.expect(200);
    let board = app.get("/api/v1/tasks?state=backlog&order=board&limit=1").await.expect(200).json();
    assert_eq!(board["items"][0]["id"], json!(second));
    let next = format!("/api/v1/tasks?state=backlog&order=board&cursor={}", board["next"].as_str().unwrap());
    assert_eq!(app.get(&next).await.expect(200).json()["items"][0]["id"], json!(id));
    for (query, count) in [
        ("label=door", 1),
        ("priority=high", 1),
        ("context_id=h-7", 1),
        ("state=done", 0),
        ("needs_attention=true", 0),
        ("q=DOOR%20fix", 1),
        ("q=fix%20window", 0),
        ("q=%25", 0),
        ("q=", 2),
    ] {
        let page = app.get(&format!("/api/v1/tasks?{query}")).await.expect(200).json();
        assert_eq!(page["items"].as_array().unwrap().len(), count, "{query}");
    }
    for query in ["state=gone", "order=random", "cursor=x", "archived=perhaps", "agent_id=x", "q=%00"] {
        app.get(&format!("/api/v1/tasks?{query}")).await.expect(422);
    }
    let history = app.get(&format!("{path}/history")).await.expect(200).json();
    let states: Vec<&str> =
        history.as_array().unwrap().iter().map(|moved| moved["to"].as_str().unwrap()).collect();
    assert_eq!(states, ["todo", "backlog"]);

    app.delete(&path).await.expect(204);
    app.get(&path).await.expect(404);
}

#[tokio::test]
async fn a_task_is_worked_on_to_a_pull_request_and_hears_its_review() {
    let (app, shop) = working().await;
    let agent = coder(&app).await;
    let new = json!({"title": "Fix it", "repository": "local/house", "agent_id": agent});
    let id = task(&app, new).await;
    let path = format!("/api/v1/tasks/{id}");
    let started = app.post(&format!("{path}/start"), Value::Null).await.expect(202).json();
    assert_eq!((&started["state"], &started["attempts"]), (&json!("in_progress"), &json!(1)));
    app.post(&format!("{path}/start"), Value::Null).await.expect(409);
    patch(&app, &path, None, json!({"state": "done"})).await.expect(409);
    app.delete(&path).await.expect(409);
    shop.agents.add_permits(1);
    let done = until(&app, &id, |task| task["state"] == "in_review").await;
    assert_eq!((&done["pull_url"], &done["commit"]), (&json!(format!("/pulls/{id}")), &json!("c1")));
    assert_eq!(done["branch"], json!(format!("task-{id}")));
    let attempts = app.get(&format!("{path}/attempts")).await.expect(200).json();
    let first = &attempts[0];
    assert_eq!(
        (&first["state"], &first["input_tokens"], &first["agent_cost"]),
        (&json!("done"), &json!(7), &json!(0.25))
    );
    let steps = format!("/api/v1/runs/{}/steps", first["run_id"].as_str().unwrap());
    let steps = app.get(&steps).await.expect(200).json();
    let names: Vec<&str> =
        steps.as_array().unwrap().iter().map(|step| step["name"].as_str().unwrap()).collect();
    let expected = [
        "prepare", "sandbox", "clone", "setup", "branch", "agent-1", "hear-1", "commit", "push", "pull",
        "finish",
    ];
    assert_eq!(names, expected);

    let comment = json!({"body": "why?", "file": "src/a.rs", "line": 7, "start": true});
    let said = app.post(&format!("{path}/messages"), comment).await.expect(201).json();
    assert_eq!((&said["number"], &said["about"]["line"]), (&json!(1), &json!(7)));
    shop.agents.add_permits(1);
    let again = until(&app, &id, |task| task["state"] == "in_review" && task["attempts"] == 2).await;
    assert_eq!((&again["pull_url"], &again["commit"]), (&done["pull_url"], &json!("c2")));
    let attempts = app.get(&format!("{path}/attempts")).await.json();
    assert_eq!(attempts[1]["summary"], "heard: src/a.rs:7: why?");
    let newest = app.get("/api/v1/attempts?limit=1").await.expect(200).json();
    assert_eq!((&newest["items"][0], &newest["items"][0]["task_id"]), (&attempts[1], &json!(id)));
    let next = format!("/api/v1/attempts?cursor={}", newest["next"].as_str().unwrap());
    assert_eq!(app.get(&next).await.expect(200).json()["items"], json!([attempts[0]]));
    let messages = app.get(&format!("{path}/messages")).await.json();
    assert_eq!(messages["items"][0]["run_id"], attempts[1]["run_id"]);
    let told = app.get(&format!("/api/v1/events?subject={id}&limit=200")).await.expect(200).json();
    let kinds: Vec<&str> =
        told["items"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap()).collect();
    for kind in [
        "task.created",
        "task.moved",
        "run.queued",
        "run.started",
        "run.step_finished",
        "task.progress",
        "task.message",
        "run.ended",
    ] {
        assert!(kinds.contains(&kind), "{kind} in {kinds:?}");
    }
}

#[tokio::test]
async fn an_attempt_is_cancelled_replaced_or_in_need_of_a_person() {
    let (app, shop) = working().await;
    let agent = coder(&app).await;
    let other = json!({"name": "other", "definition": {"preset": "custom", "command": ["x", "{prompt}"]}});
    let other = app.post("/api/v1/agents", other).await.expect(201).json()["id"].clone();
    let new = |title: &str| json!({"title": title, "repository": "local/house", "agent_id": agent});
    let id = task(&app, new("Fix it")).await;
    let path = format!("/api/v1/tasks/{id}");
    app.post(&format!("{path}/start"), Value::Null).await.expect(202);
    until(&app, &id, |task| task["branch"].is_string()).await;
    // Another agent takes over.
    let replaced = json!({"agent_id": other, "replace": true});
    let replaced = app.post(&format!("{path}/start"), replaced).await.expect(202).json();
    assert_eq!((&replaced["agent_id"], &replaced["attempts"]), (&other, &json!(2)));
    // The first would take the permit if it still waited for one.
    first_attempt_is_cancelled(&app, &path).await;
    shop.agents.add_permits(1);
    until(&app, &id, |task| task["state"] == "in_review").await;
    let attempts = app.get(&format!("{path}/attempts")).await.json();
    assert_eq!((&attempts[0]["state"], &attempts[1]["state"]), (&json!("cancelled"), &json!("done")));

    let id = task(&app, new("Stop it")).await;
    let path = format!("/api/v1/tasks/{id}");
    app.post(&format!("{path}/start"), Value::Null).await.expect(202);
    until(&app, &id, |task| task["branch"].is_string()).await;
    let cancelled = app.post(&format!("{path}/cancel"), json!({"reason": "no"})).await.expect(200).json();
    assert_eq!(cancelled["state"], "cancelled");
    first_attempt_is_cancelled(&app, &path).await;
    assert_eq!(app.get(&path).await.json()["state"], "cancelled");

    let id = task(&app, new("Nothing")).await;
    shop.agents.add_permits(1);
    app.post(&format!("/api/v1/tasks/{id}/start"), Value::Null).await.expect(202);
    let failed = until(&app, &id, |task| task["needs_attention"].is_object()).await;
    assert_eq!(
        (&failed["needs_attention"]["code"], &failed["state"]),
        (&json!("no_changes"), &json!("in_progress"))
    );
    let page = app.get("/api/v1/tasks?needs_attention=true").await.json();
    assert_eq!(page["items"][0]["id"], json!(id));
    let seen = patch(&app, &format!("/api/v1/tasks/{id}"), None, json!({"needs_attention": false})).await;
    assert_eq!(seen.expect(200).json()["needs_attention"], Value::Null);
    // A task that lacks something does not start.
    for (body, field) in [
        (json!({"title": "a", "repository": "x"}), "agent_id"),
        (json!({"title": "b", "agent_id": agent}), "repository"),
    ] {
        let id = task(&app, body).await;
        let refused = app.post(&format!("/api/v1/tasks/{id}/start"), Value::Null).await.expect(422).json();
        assert!(refused["message"].as_str().unwrap().starts_with(field), "{refused}");
    }
}

#[tokio::test]
async fn an_agent_is_defined_and_its_environment_is_plain() {
    let app = TestApp::start().await;
    let id = coder(&app).await;
    let path = format!("/api/v1/agents/{id}");
    let shown = app.get(&path).await.expect(200);
    assert_eq!(shown.json()["definition"]["env"], json!({"A": "hush-hush"}));
    let define = |tag: Option<String>, body: Value| {
        let mut request = app.request(Method::PUT, &format!("{path}/definition"));
        if let Some(tag) = tag {
            request = request.header("if-match", tag);
        }
        app.send(request.body(body.to_string().into()).unwrap())
    };
    let tag = shown.header("etag").unwrap().to_string();
    let kept = json!({"preset": "claude_code", "env": {"A": null, "B": "b"}, "secrets": {"KEY": "anthropic"}, "model": "opus"});
    let defined = define(Some(tag.clone()), kept.clone()).await.expect(200).json();
    assert_eq!(
        (&defined["version"], &defined["definition"]["secrets"]),
        (&json!(2), &json!({"KEY": "anthropic"}))
    );
    define(Some(tag), kept).await.expect(412);
    let scope = app.scope().await;
    let row = app.store.agent(&scope, id.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(row.definition.unwrap().env["A"], "hush-hush");
    for (body, field) in [
        (json!({"preset": "custom"}), "definition.command"),
        (json!({"preset": "codex", "env": {"NEW": null}}), "definition.env.NEW"),
        (json!({"preset": "codex", "model": "--evil"}), "definition.model"),
        (json!({"preset": "codex", "secrets": {"A": "not a name"}}), "definition.secrets.A"),
        (json!({"preset": "codex", "working_directory": "../up"}), "definition.working_directory"),
    ] {
        let refused = define(None, body).await.expect(422).json();
        assert!(refused["message"].as_str().unwrap().starts_with(field), "{refused}");
    }
    let presets = app.get("/api/v1/agent-presets").await.expect(200).json();
    assert_eq!(presets.as_array().unwrap().len(), 11);
    assert_eq!(
        (&presets[0]["preset"], &presets[0]["usual_secret"]),
        (&json!("claude_code"), &json!("ANTHROPIC_API_KEY"))
    );
    // An agent reads its own tasks and posts to them, and nothing more.
    let key = json!({"name": "k", "role": "write", "agent_id": id});
    let key = app.post("/api/v1/keys", key).await.expect(201).json()["key"].as_str().unwrap().to_string();
    let own = task(&app, json!({"title": "own", "agent_id": id})).await;
    let others = task(&app, json!({"title": "other"})).await;
    let listed = app.as_key(&key, Method::GET, "/api/v1/tasks", Value::Null).await.expect(200).json();
    assert_eq!((listed["items"].as_array().unwrap().len(), &listed["items"][0]["id"]), (1, &json!(own)));
    for (method, path, body, status) in [
        (Method::GET, format!("/api/v1/tasks/{others}"), Value::Null, 404),
        (Method::POST, format!("/api/v1/tasks/{others}/messages"), json!({"body": "x"}), 404),
        (Method::POST, format!("/api/v1/tasks/{own}/messages"), json!({"body": "x"}), 201),
        (Method::POST, format!("/api/v1/tasks/{own}/start"), Value::Null, 403),
        (Method::POST, format!("/api/v1/tasks/{own}/cancel"), Value::Null, 403),
        (Method::PATCH, format!("/api/v1/tasks/{own}"), json!({"title": "x"}), 403),
        (Method::DELETE, format!("/api/v1/tasks/{own}"), Value::Null, 403),
        (Method::POST, "/api/v1/tasks".into(), json!({"title": "x"}), 403),
    ] {
        let answer = app.as_key(&key, method.clone(), &path, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
    }
}

#[tokio::test]
async fn a_server_that_comes_back_goes_on_with_its_tasks() {
    let (mut app, shop) = working().await;
    let agent = coder(&app).await;
    let id = task(&app, json!({"title": "Fix it", "repository": "local/house", "agent_id": agent})).await;
    app.post(&format!("/api/v1/tasks/{id}/start"), Value::Null).await.expect(202);
    until(&app, &id, |task| task["branch"].is_string()).await;
    app.restart(async |_| {}).await;
    shop.agents.add_permits(1);
    let done = until(&app, &id, |task| task["state"] == "in_review").await;
    assert_eq!((&done["attempts"], &done["commit"]), (&json!(1), &json!("c1")));
}

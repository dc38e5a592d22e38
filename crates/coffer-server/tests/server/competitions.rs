//! Competitions over the API: started, watched, picked, ended, and invalid requests.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coffer_core::agent::{AgentProgress, AgentReport, Tokens};
use coffer_core::compete::DiffSize;
use coffer_core::{ExecutionId, SandboxId};
use coffer_flow::compete::{Arena, Base, Changes, Fork, Lane, News, RaceBrief, Raced, Tell};
use coffer_flow::task::{AgentTurn, Checked, Pull};
use coffer_flow::{Start, StepError};
use coffer_server::{MetricsSettings, OtherArena, ServerConfig, TaskSettings};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::app::{Answer, TestApp, policy};
use crate::forge::Work;

/// Does every step at once, but lets agents work only with permits. The label of an entry says what it does.
struct Ring {
    agents: Semaphore,
    pull: Mutex<String>,
    /// The cost of each fork so far.
    spent: AtomicI64,
}

#[async_trait::async_trait]
impl Arena for Ring {
    async fn ensure_source(&self, _: &RaceBrief, _: Start) -> Result<SandboxId, StepError> {
        Ok(SandboxId::generate())
    }

    async fn clone(&self, _: &RaceBrief, _: SandboxId) -> Result<Base, StepError> {
        Ok(Base { branch: "main".into(), commit: "base".into() })
    }

    async fn prepare(&self, _: &RaceBrief, _: SandboxId, _: &str) -> Result<Checked, StepError> {
        Ok(Checked { passed: true, exit_code: Some(0), execution: None, tail: None })
    }

    async fn fork(&self, brief: &RaceBrief, _: SandboxId) -> Result<Vec<Fork>, StepError> {
        Ok(brief.entries.iter().map(|_| Ok(SandboxId::generate())).collect())
    }

    async fn leave_source(&self, _: &RaceBrief, _: SandboxId) -> Result<(), StepError> {
        Ok(())
    }

    async fn run_agent(&self, lane: Lane<'_>, tell: Tell<'_>) -> Result<Raced, StepError> {
        let execution = ExecutionId::generate();
        tell(News::Begun(execution)).await;
        let report = AgentReport {
            tokens: Some(Tokens { input: 7, cached: 0, output: 3 }),
            cost_nanos: Some(250_000_000),
            summary: Some("well".into()),
            ..AgentReport::default()
        };
        let doing = AgentProgress { message: Some("Looking around.".into()), ..AgentProgress::default() };
        tell(News::Progress(doing, report.clone())).await;
        self.agents.acquire().await.unwrap().forget();
        let exit_code = Some(i64::from(lane.entry.label == "fails"));
        let turn = AgentTurn {
            execution: Some(execution),
            exit_code,
            report,
            reported: None,
            halted: None,
            trouble: None,
        };
        Ok(Raced { turn, duration_ms: Some(1000) })
    }

    async fn commit(&self, lane: Lane<'_>) -> Result<Option<String>, StepError> {
        Ok(Some(format!("c{}", lane.entry.number)))
    }

    async fn changes(&self, lane: Lane<'_>) -> Result<Changes, StepError> {
        let number = lane.entry.number;
        let patch = format!("diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1,2 @@\n same\n+of {number}\n");
        Ok(Changes { diff: DiffSize { files: 1, added: 1, removed: 0 }, patch, is_cut: false })
    }

    async fn check(&self, _: Lane<'_>, _: &str) -> Result<Checked, StepError> {
        Ok(Checked { passed: true, exit_code: Some(0), execution: None, tail: None })
    }

    async fn spent(&self, _: &RaceBrief, _: SandboxId) -> Result<i64, StepError> {
        Ok(self.spent.load(Ordering::Relaxed))
    }

    async fn give_back(&self, _: &RaceBrief, _: SandboxId) -> Result<(), StepError> {
        Ok(())
    }

    async fn stop(&self, _: Lane<'_>) -> Result<(), StepError> {
        Ok(())
    }

    async fn keep(&self, _: &RaceBrief, _: SandboxId) -> Result<(), StepError> {
        Ok(())
    }

    async fn rest(&self, _: &RaceBrief, _: SandboxId) -> Result<(), StepError> {
        Ok(())
    }

    async fn push(&self, _: Lane<'_>, _: &str) -> Result<(), StepError> {
        Ok(())
    }

    async fn ensure_pull(&self, _: Lane<'_>, _: &[String]) -> Result<Pull, StepError> {
        Ok(Pull { url: self.pull.lock().unwrap().clone(), number: Some(1) })
    }

    async fn finish(&self, _: &RaceBrief) -> Result<(), StepError> {
        // Forks continue costing until they end.
        self.spent.store(2_000_000_000, Ordering::Relaxed);
        Ok(())
    }
}

const FORKS: &str = "/api/v1/sandboxes/fork";

/// A server that executes one run of a project at a time.
async fn stadium() -> (TestApp, Arc<Ring>) {
    let spent = AtomicI64::new(1_500_000_000);
    let ring = Arc::new(Ring { agents: Semaphore::new(0), pull: Mutex::new("/pulls/1".into()), spent });
    let config = ServerConfig {
        lifetime: policy(),
        arena: Some(OtherArena(ring.clone())),
        tasks: TaskSettings { per_project: 1, ..TaskSettings::default() },
        metrics: MetricsSettings { public: true },
        ..ServerConfig::default()
    };
    (TestApp::configured(config).await, ring)
}

async fn racer(app: &TestApp, env: Value) -> Value {
    let definition = json!({"preset": "custom", "command": ["true", "{prompt}"], "env": env});
    let new = json!({"name": "racer", "definition": definition});
    app.post("/api/v1/agents", new).await.expect(201).json()["id"].clone()
}

fn race(agent: &Value, labels: &[&str]) -> Value {
    let entries: Vec<_> = labels.iter().map(|label| json!({"agent_id": agent, "label": label})).collect();
    json!({"title": "Fix it", "prompt": "It is broken.", "repository": "local/app", "entries": entries})
}

async fn begin(app: &TestApp, key: &str, body: &Value) -> Answer {
    let request = app.request(Method::POST, FORKS).header("idempotency-key", key);
    app.send(request.body(body.to_string().into()).unwrap()).await
}

/// Waits until a competition is in that state.
async fn until(app: &TestApp, id: &str, state: &str) -> Value {
    let mut last = Value::Null;
    for _ in 0..1500 {
        last = app.get(&format!("{FORKS}/{id}")).await.expect(200).json();
        if last["state"] == state {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not {state}: {last}");
}

async fn figure(app: &TestApp, name: &str) -> String {
    let text = app.get("/metrics").await.expect(200).text();
    let line = text.lines().find_map(|line| line.strip_prefix(name).map(str::trim));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).to_string()
}

#[tokio::test]
async fn a_person_watches_picks_and_cancels() {
    let (app, ring) = stadium().await;
    let agent = racer(&app, json!({})).await;
    app.post("/api/v1/repositories", json!({"name": "app"})).await.expect(201);
    let mut body = race(&agent, &["one", "fails", "three"]);
    body["context_id"] = json!("h-1");
    let begun = begin(&app, "same-1", &body).await.expect(202);
    let id = begun.json()["id"].as_str().unwrap().to_string();
    let path = format!("{FORKS}/{id}");
    assert_eq!(begun.header("location"), Some(path.as_str()));
    assert_eq!(begin(&app, "same-1", &body).await.expect(202).json()["id"], json!(id));
    let other = begin(&app, "same-1", &race(&agent, &["one"])).await.expect(422).json();
    assert_eq!(other["code"], "idempotency_key_reused");

    // The progress of each agent is published while it works.
    let working = until(&app, &id, "working").await;
    assert_eq!(working["decide_by"], Value::Null);
    let told = async || {
        let events = app.events("competition.entry").await;
        events.iter().filter(|told| told["doing"]["message"] == "Looking around.").count()
    };
    crate::limits::eventually("all are told of", async || told().await == 3).await;
    let working = app.get(&path).await.expect(200).json();
    assert_eq!(
        (&working["entries"][0]["agent_cost"], &working["entries"][0]["input_tokens"]),
        (&json!(0.25), &json!(7))
    );
    let early = app.post(&format!("{path}/winner"), json!({"entry": 1})).await.expect(409).json();
    assert!(early["message"].as_str().unwrap().contains("working"), "{early}");
    app.get(&format!("{path}/entries/1/diff")).await.expect(409);
    assert_eq!(figure(&app, "coffer_competition_entries{state=\"working\"}").await, "3.0");

    ring.agents.add_permits(3);
    let waiting = until(&app, &id, "waiting").await;
    assert!(waiting["decide_by"].is_string() && waiting["winner"].is_null());
    let can: Vec<_> = waiting["entries"].as_array().unwrap().iter().map(|one| &one["can_win"]).collect();
    assert_eq!(can, [true, false, true]);
    for (query, count) in
        [("state=waiting", 1), ("state=decided", 0), ("context_id=h-1", 1), ("context_id=h-2", 0)]
    {
        let page = app.get(&format!("{FORKS}?{query}")).await.expect(200).json();
        assert_eq!(page["items"].as_array().unwrap().len(), count, "{query}");
    }
    for query in ["state=asleep", "task_id=x", "cursor=x", "limit=0"] {
        app.get(&format!("{FORKS}?{query}")).await.expect(422);
    }
    let diff = app.get(&format!("{path}/entries/1/diff")).await.expect(200).json();
    assert!(diff["patch"].as_str().unwrap().contains("+of 1") && diff["base_commit"] == "base", "{diff}");
    let compared = app.get(&format!("{path}/compare?left=1&right=3")).await.expect(200).json();
    assert_eq!((&compared["files"][0]["path"], &compared["files"][0]["same"]), (&json!("f"), &json!(false)));
    for (query, status) in [
        ("entries/9/diff", 404),
        ("entries/x/diff", 404),
        ("compare?left=1", 422),
        ("compare?left=1&right=9", 404),
    ] {
        app.get(&format!("{path}/{query}")).await.expect(status);
    }

    // Other projects do not find it.
    let strangers = [
        (Method::GET, path.clone(), Value::Null),
        (Method::GET, format!("{path}/entries/1/diff"), Value::Null),
        (Method::GET, format!("{path}/compare?left=1&right=3"), Value::Null),
        (Method::POST, format!("{path}/winner"), json!({"entry": 1})),
        (Method::POST, format!("{path}/cancel"), Value::Null),
    ];
    for (method, path, body) in strangers {
        app.as_key(&app.other_key, method, &path, body).await.expect(404);
    }
    let theirs = app.as_key(&app.other_key, Method::GET, FORKS, Value::Null).await.expect(200).json();
    assert_eq!(theirs["items"], json!([]));

    // While a person decides, others have the slot.
    let second = begin(&app, "same-2", &race(&agent, &["one"])).await.expect(202).json();
    let second = second["id"].as_str().unwrap().to_string();
    until(&app, &second, "working").await;
    let queue = app.get("/api/v1/queue").await.expect(200).json();
    assert_eq!((&queue["running"], &queue["parked"], &queue["queued"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!(figure(&app, "coffer_competitions{state=\"waiting\"}").await, "1.0");

    for (pick, why) in [
        (json!({"entry": 2}), "cannot win"),
        (json!({"entry": 9}), "no entry 9"),
        (json!({"entry": "one"}), "is invalid"),
        (json!({"entry": 1, "force": true}), "is invalid"),
        (json!({}), "is invalid"),
    ] {
        let refused = app.post(&format!("{path}/winner"), pick.clone()).await.expect(422).json();
        assert!(refused["message"].as_str().unwrap().contains(why), "{pick}: {refused}");
    }
    let picked = app.post(&format!("{path}/winner"), json!({"entry": 3})).await.expect(202).json();
    assert_eq!(picked["winner"], 3);
    let decided = until(&app, &id, "decided").await;
    assert_eq!((&decided["winner"], &decided["pull_url"]), (&json!(3), &json!("/pulls/1")));
    assert!(decided["picked_by"].as_str().unwrap().starts_with("key:"), "{decided}");
    app.post(&format!("{path}/winner"), json!({"entry": 1})).await.expect(409);
    app.post_empty(&format!("{path}/cancel")).await.expect(409);

    let second = format!("{FORKS}/{second}");
    app.post(&format!("{second}/cancel"), json!({"reason": "x".repeat(1001)})).await.expect(422);
    app.post(&format!("{second}/cancel"), json!({"reason": "not wanted"})).await.expect(202);
    let cancelled = until(&app, second.rsplit('/').next().unwrap(), "cancelled").await;
    assert_eq!(cancelled["error"]["message"], "not wanted");
    for (outcome, count) in [("done", "1"), ("cancelled", "1"), ("failed", "0")] {
        let name = format!("coffer_runs_ended_total{{kind=\"compete\",outcome=\"{outcome}\"}}");
        // The metric follows just after the record.
        crate::limits::eventually(&name, async || figure(&app, &name).await == count).await;
    }
    assert_eq!(figure(&app, "coffer_runs_started_total{kind=\"compete\"}").await, "2");
    assert_eq!(figure(&app, "coffer_competitions{state=\"waiting\"}").await, "0.0");
}

#[tokio::test]
async fn what_cannot_be_begun_is_refused_and_leaves_nothing() {
    let (app, _) = stadium().await;
    let agent = racer(&app, json!({})).await;
    app.post("/api/v1/repositories", json!({"name": "app"})).await.expect(201);
    let plain = app.post("/api/v1/agents", json!({"name": "plain"})).await.expect(201).json()["id"].clone();
    let nobody = "01aaaaaaaaaaaaaaaaaaaaaaaa";
    let entry = |change: Value| {
        let mut entry = json!({"agent_id": agent});
        entry.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        json!({"entries": [entry]})
    };
    for (change, status, told) in [
        (json!({"title": ""}), 422, "title"),
        (json!({"title": "a\nb"}), 422, "title"),
        (json!({"prompt": "x".repeat(70_000)}), 422, "prompt"),
        (json!({"repository": null}), 422, "repository"),
        (json!({"repository": "local/none"}), 404, "local/none"),
        (json!({"sandbox_id": nobody, "repository": null}), 404, nobody),
        (json!({"sandbox_id": nobody, "template": "base"}), 422, "template"),
        (json!({"template": "../x"}), 422, "template"),
        (json!({"entries": []}), 422, "entries"),
        (race(&agent, &["a", "b", "c", "d", "e", "f"]), 429, "`forks` is 5"),
        (entry(json!({"agent_id": null})), 422, "entries[0].agent_id"),
        (entry(json!({"agent_id": nobody})), 422, "no agent"),
        (entry(json!({"agent_id": plain})), 422, "has no definition"),
        (entry(json!({"model": "--evil"})), 422, "entries[0].model"),
        (entry(json!({"budget": -1})), 422, "budget"),
        (entry(json!({"label": "x".repeat(101)})), 422, "entries[0].label"),
        (json!({"budget": 0}), 422, "budget"),
        (json!({"rule": "random"}), 422, "is invalid"),
        (json!({"decide_within_s": 59}), 422, "decide_within_s"),
        (json!({"colour": "red"}), 422, "is invalid"),
    ] {
        let mut body = race(&agent, &["one"]);
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let refused = app.post(FORKS, body).await;
        assert_eq!(refused.status, status, "{change}: {}", refused.text());
        let refused = refused.expect(status).json();
        assert!(refused["message"].as_str().unwrap().contains(told), "{change}: {refused}");
    }
    app.get(&format!("{FORKS}/{nobody}")).await.expect(404);
    app.post_empty(&format!("{FORKS}/{nobody}/cancel")).await.expect(404);
    let none = app.get(FORKS).await.expect(200).json();
    assert_eq!(none["items"], json!([]));
    assert_eq!(app.events("competition.created").await.len(), 0);
    // An agent's own key may not do this.
    let key = json!({"name": "k", "role": "write", "agent_id": agent});
    let key = app.post("/api/v1/keys", key).await.expect(201).json()["key"].as_str().unwrap().to_string();
    app.as_key(&key, Method::POST, FORKS, race(&agent, &["one"])).await.expect(403);
    app.as_key(&key, Method::GET, FORKS, Value::Null).await.expect(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_competition_came_to_is_kept_without_what_its_agent_was_given() {
    let (app, ring) = stadium().await;
    let work = Work::on(app).await;
    let app = &work.app;
    let agent = racer(app, json!({"PASSWORD": "hush-hush-word"})).await;
    crate::tasks::hide_environment(app, agent.as_str().unwrap()).await;
    work.branch("fork-1", "feature", "the password is hush-hush-word\n").await;
    let pull = work.open("fork-1").await;
    let url = format!("/api/v1/repositories/app/pulls/{}", pull["number"]);
    *ring.pull.lock().unwrap() = url.clone();
    ring.agents.add_permits(1);
    let mut body = race(&agent, &["one"]);
    (body["rule"], body["context_id"]) = (json!("best"), json!("h-9"));
    let begun = begin(app, "best-1", &body).await.expect(202).json();
    let decided = until(app, begun["id"].as_str().unwrap(), "decided").await;
    assert_eq!((&decided["winner"], &decided["pull_url"]), (&json!(1), &json!(url)));
    let found = format!("/api/v1/artifacts?run_id={}", decided["run_id"].as_str().unwrap());
    let all = async || app.get(&found).await.expect(200).json()["items"].as_array().unwrap().clone();
    crate::limits::eventually("both are kept", async || all().await.len() == 2).await;
    let all = all().await;
    assert!(all.iter().all(|one| one["context_id"] == "h-9" && one["task_id"].is_null()), "{all:?}");
    let of = |kind: &str| all.iter().find(|one| one["kind"] == kind).unwrap();
    assert_eq!(of("link")["url"], json!(url));
    let content = format!("/api/v1/artifacts/{}/content", of("diff")["id"].as_str().unwrap());
    let diff = app.get(&content).await.expect(200).text();
    assert!(diff.contains("+the password is [redacted]") && !diff.contains("hush"), "{diff}");
}

#[tokio::test]
async fn a_task_whose_competition_waits_for_a_pick_needs_a_person() {
    let (app, ring) = stadium().await;
    let agent = racer(&app, json!({})).await;
    app.post("/api/v1/repositories", json!({"name": "app"})).await.expect(201);
    let new = json!({"title": "Fix it", "repository": "local/app", "agent_id": agent});
    let task = crate::tasks::task(&app, new).await;
    ring.agents.add_permits(2);
    let compete = json!({"compete": {"entries": [{"label": "one"}, {"label": "two"}]}});
    app.post(&format!("/api/v1/tasks/{task}/start"), compete).await.expect(202);
    let waits = crate::tasks::until(&app, &task, |task| task["needs_attention"].is_object()).await;
    assert_eq!(waits["needs_attention"]["code"], "pick_wanted");
    assert_eq!(waits["state"], "in_progress");
    let told = app.events("task.needs_attention").await;
    assert_eq!(told.len(), 1, "{told:?}");
    let found = app.get(&format!("{FORKS}?task_id={task}")).await.expect(200).json();
    let id = found["items"][0]["id"].as_str().unwrap();
    app.post(&format!("{FORKS}/{id}/winner"), json!({"entry": 2})).await.expect(202);
    let picked = app.get(&format!("/api/v1/tasks/{task}")).await.expect(200).json();
    assert_eq!(picked["needs_attention"], Value::Null, "{picked}");
    until(&app, id, "decided").await;
}

#[tokio::test]
async fn the_steps_and_the_cost_of_a_competition_are_shown() {
    let (app, ring) = stadium().await;
    let agent = racer(&app, json!({})).await;
    app.post("/api/v1/repositories", json!({"name": "app"})).await.expect(201);
    let mut body = race(&agent, &["one", "two"]);
    body["rule"] = json!("best");
    let begun = begin(&app, "steps-1", &body).await.expect(202).json();
    let id = begun["id"].as_str().unwrap();
    assert_eq!(until(&app, id, "working").await["cost"], Value::Null, "not known yet");
    let steps = format!("/api/v1/runs/{}/steps", begun["run_id"].as_str().unwrap());
    let running = app.get(&steps).await.expect(200).json();
    let names = |steps: &Value| -> Vec<String> {
        steps.as_array().unwrap().iter().map(|step| step["name"].as_str().unwrap().to_string()).collect()
    };
    assert!(names(&running).contains(&"race".to_string()), "{running}");
    ring.agents.add_permits(2);
    let decided = until(&app, id, "decided").await;
    assert!(names(&app.get(&steps).await.expect(200).json()).contains(&"finish".to_string()));
    // For the whole life of both forks, not only until their work was done.
    crate::limits::eventually("the last costs", async || {
        let shown = app.get(&format!("{FORKS}/{id}")).await.expect(200).json();
        shown["cost"] == json!(4.0) && shown["entries"][0]["cost"] == json!(2.0)
    })
    .await;
    assert_eq!(decided["entries"][0]["agent_cost"], json!(0.25));
    // Other projects and agents' keys find no such run.
    app.as_key(&app.other_key, Method::GET, &steps, Value::Null).await.expect(404);
    let key = json!({"name": "k", "role": "write", "agent_id": agent});
    let key = app.post("/api/v1/keys", key).await.expect(201).json()["key"].as_str().unwrap().to_string();
    app.as_key(&key, Method::GET, &steps, Value::Null).await.expect(404);
}

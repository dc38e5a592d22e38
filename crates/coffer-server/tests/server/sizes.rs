//! What a create can ask for: processors, memory and disk, and the task that the sandbox is for.

use coffer_core::{LargestSize, Limits, SandboxId};
use coffer_store::Quotas;
use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;
use crate::engine::Op;
use crate::limits::eventually;
use crate::snapshots::{snapshot, with_memory};
use crate::tasks::task;

fn parsed(id: &Value) -> SandboxId {
    id.as_str().unwrap().parse().unwrap()
}

async fn ids(app: &TestApp, query: &str) -> Vec<String> {
    let page = app.get(&format!("/api/v1/sandboxes?{query}")).await.expect(200).json();
    page["items"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_string()).collect()
}

#[tokio::test]
async fn a_sandbox_has_the_size_that_was_asked_for_within_what_the_host_has() {
    let app = TestApp::start().await;
    app.engine.set_host_size(LargestSize { cpu_count: 8, memory_mib: 16_384, disk_mib: 65_536 });
    let host = app.get("/api/v1/host").await.expect(200).json();
    assert_eq!(host["largest_sandbox"], json!({"cpu_count": 8, "memory_mib": 16_384, "disk_mib": 65_536}));
    for (size, field, value, least, most) in [
        (json!({"cpu_count": 0}), "cpu_count", 0, 1, 8),
        (json!({"cpu_count": 9}), "cpu_count", 9, 1, 8),
        (json!({"memory_mib": 63}), "memory_mib", 63, 64, 16_384),
        (json!({"cpu_count": 1, "memory_mib": 16_385}), "memory_mib", 16_385, 64, 16_384),
        (json!({"disk_mib": 15}), "disk_mib", 15, 16, 65_536),
        (json!({"disk_mib": 65_537}), "disk_mib", 65_537, 16, 65_536),
    ] {
        let refused = app.post("/api/v1/sandboxes", size).await.expect(422).json();
        let expected = format!("{field} is {value} and must be between {least} and {most}");
        assert_eq!((&refused["code"], &refused["message"]), (&json!("invalid"), &json!(expected)));
        let details = json!({"field": field, "value": value, "least": least, "most": most});
        assert_eq!(refused["details"], details);
    }
    for odd in [json!({"cpu_count": -1}), json!({"memory_mib": 1.5}), json!({"disk_mib": "10"})] {
        app.post("/api/v1/sandboxes", odd).await.expect(422);
    }
    assert_eq!(app.engine.asked(), [], "nothing was created in vain");

    let size = json!({"cpu_count": 8, "memory_mib": 64, "disk_mib": 16});
    let made = app.post("/api/v1/sandboxes", size.clone()).await.expect(201).json();
    let expected = Limits { cpu_count: 8, memory_mib: 64, disk_mib: 16, ..Limits::default() };
    assert_eq!(app.engine.order(parsed(&made["id"])).limits, expected);
    let shown = app.get(&format!("/api/v1/sandboxes/{}", made["id"].as_str().unwrap())).await.json();
    for field in ["cpu_count", "memory_mib", "disk_mib"] {
        assert_eq!((&made[field], &shown[field]), (&size[field], &size[field]));
    }
    let detail = app.get(&format!("/sandboxes/{}", made["id"].as_str().unwrap())).await.expect(200).json();
    assert_eq!(
        (&detail["cpuCount"], &detail["memoryMB"], &detail["diskSizeMB"]),
        (&json!(8), &json!(64), &json!(16))
    );

    // The default size can be asked for, even if the host has less.
    app.engine.set_host_size(LargestSize { cpu_count: 1, memory_mib: 512, disk_mib: 1024 });
    let usual = Limits::default();
    let size =
        json!({"cpu_count": usual.cpu_count, "memory_mib": usual.memory_mib, "disk_mib": usual.disk_mib});
    app.post("/api/v1/sandboxes", size).await.expect(201);
    app.post("/api/v1/sandboxes", json!({"cpu_count": usual.cpu_count + 1})).await.expect(422);
}

#[tokio::test]
async fn a_size_counts_in_the_quotas() {
    let app = TestApp::start().await;
    let quotas =
        Quotas { cpus: Some(4), memory_mib: Some(4096), disk_mib: Some(20_000), ..Quotas::default() };
    let (operator, project) = (app.store.operator(), app.scope().await.project());
    assert!(app.store.set_quotas(&operator, project, None, quotas).await.unwrap().is_some());
    for (size, details) in [
        (json!({"cpu_count": 5}), json!({"quota": "cpus", "limit": 4, "used": 0, "asked": 5})),
        (
            json!({"memory_mib": 4097}),
            json!({"quota": "memory_mib", "limit": 4096, "used": 0, "asked": 4097}),
        ),
        (
            json!({"disk_mib": 20_001}),
            json!({"quota": "disk_mib", "limit": 20_000, "used": 0, "asked": 20_001}),
        ),
    ] {
        let refused = app.post("/api/v1/sandboxes", size).await.expect(429).json();
        assert_eq!((&refused["code"], &refused["details"]), (&json!("quota_exceeded"), &details));
    }
    let size = json!({"cpu_count": 3, "memory_mib": 1024, "disk_mib": 15_000});
    app.post("/api/v1/sandboxes", size).await.expect(201);
    let used = app.get("/api/v1/quotas").await.expect(200).json()["used"].clone();
    assert_eq!(
        (&used["cpus"], &used["memory_mib"], &used["disk_mib"]),
        (&json!(3), &json!(1024), &json!(15_000))
    );
    let refused =
        app.post("/api/v1/sandboxes", json!({"cpu_count": 1, "disk_mib": 6000})).await.expect(429).json();
    let details = json!({"quota": "disk_mib", "limit": 20_000, "used": 15_000, "asked": 6000});
    assert_eq!(refused["details"], details);
    app.post("/api/v1/sandboxes", json!({"cpu_count": 1, "disk_mib": 5000})).await.expect(201);
    eventually("what was refused is gone", async || app.engine.ids().len() == 2).await;
}

#[tokio::test]
async fn a_sandbox_from_a_snapshot_may_have_a_smaller_disk_and_its_processes_keep_their_size() {
    let app = with_memory().await;
    app.engine.set_snapshot_bytes(300 << 20);
    let source = json!({"cpu_count": 1, "memory_mib": 256, "disk_mib": 1024});
    let source = app.post("/api/v1/sandboxes", source).await.expect(201).json();
    let taken = snapshot(&app, source["id"].as_str().unwrap(), json!({"name": "work"})).await;
    assert_eq!((&taken["memory"], &taken["disk_mib"]), (&json!(true), &json!(1024)));
    let source = Limits { cpu_count: 1, memory_mib: 256, disk_mib: 1024, ..Limits::default() };
    let limits = async |body: Value| {
        let made = app.post("/api/v1/sandboxes", body).await.expect(201).json();
        let order = app.engine.order(parsed(&made["id"]));
        assert_eq!(order.snapshot.unwrap().to_string(), taken["id"].as_str().unwrap());
        (order.limits, order.memory)
    };
    assert_eq!(limits(json!({"snapshot_id": taken["id"]})).await, (source, true));
    // The disk is what it may write on top of the 300 MiB that it starts with.
    let small = Limits { disk_mib: 100, ..source };
    assert_eq!(limits(json!({"snapshot_id": taken["id"], "disk_mib": 100})).await, (small, true));
    assert_eq!(limits(json!({"template": "work", "disk_mib": 100, "cpu_count": 1})).await, (small, true));
    for (named, size, message) in [
        (
            "snapshot_id",
            json!({"cpu_count": 2}),
            "cpu_count is 2, but the processes of the snapshot were saved with 1 and need the same",
        ),
        (
            "template",
            json!({"memory_mib": 512, "memory": true}),
            "memory_mib is 512, but the processes of the snapshot were saved with 256 and need the same",
        ),
    ] {
        let mut body = size.clone();
        body[named] = if named == "template" { json!("work") } else { taken["id"].clone() };
        let refused = app.post("/api/v1/sandboxes", body.clone()).await.expect(422).json();
        assert_eq!(refused["message"], message);
        assert!(refused["hint"].as_str().unwrap().contains("`memory` to false"), "{refused}");
        // From its files alone it can have any size.
        body["memory"] = json!(false);
        let (limits, memory) = limits(body).await;
        assert!(!memory && limits != source, "{limits:?}");
    }
}

#[tokio::test]
async fn a_sandbox_is_for_a_task_of_its_project() {
    let app = TestApp::start().await;
    let mine = task(&app, json!({"title": "mine"})).await;
    let other = app.as_key(&app.other_key, Method::POST, "/api/v1/tasks", json!({"title": "theirs"})).await;
    let theirs = other.expect(201).json()["id"].clone();
    let unknown = coffer_core::TaskId::generate().to_string();
    for task in [theirs.as_str().unwrap(), &unknown] {
        let refused = app.post("/api/v1/sandboxes", json!({"task_id": task})).await.expect(404).json();
        assert_eq!(refused["message"], format!("task {task} not found"), "the two look the same");
        assert_eq!(ids(&app, &format!("task_id={task}")).await, [] as [String; 0]);
    }
    app.post("/api/v1/sandboxes", json!({"task_id": "my task"})).await.expect(422);
    app.get("/api/v1/sandboxes?task_id=mine").await.expect(422);
    assert_eq!(app.engine.asked(), [], "nothing was created in vain");

    let made = app.post("/api/v1/sandboxes", json!({"task_id": mine})).await.expect(201).json();
    let id = made["id"].as_str().unwrap().to_string();
    assert_eq!(made["task_id"], mine);
    app.create(json!({})).await;
    let path = format!("/api/v1/sandboxes/{id}");
    assert_eq!(app.get(&path).await.expect(200).json()["task_id"], mine);
    assert_eq!(ids(&app, &format!("task_id={mine}")).await, [id.as_str()]);
    assert_eq!(ids(&app, &format!("task_id={mine}&state=running,terminated")).await, [id.as_str()]);
    assert_eq!(ids(&app, &format!("task_id={mine}&state=paused")).await, [] as [String; 0]);
    let by_task = format!("/api/v1/sandboxes?task_id={mine}");
    let seen = app.as_key(&app.other_key, Method::GET, &by_task, Value::Null).await.expect(200).json();
    assert_eq!(seen["items"], json!([]), "another project finds nothing by it");
    // A fork is for the same task.
    let forked = app.post(&format!("{path}/fork"), json!({"count": 1})).await.expect(201).json();
    let fork = forked["children"][0]["sandbox"].clone();
    assert_eq!(fork["task_id"], mine);
    assert_eq!(ids(&app, &format!("task_id={mine}&order=asc")).await, [json!(id), fork["id"].clone()]);
    // The task goes, the sandbox stays.
    app.delete(&format!("/api/v1/tasks/{mine}")).await.expect(204);
    let left = app.get(&path).await.expect(200).json();
    assert_eq!((&left["task_id"], &left["state"]), (&Value::Null, &json!("running")));
    assert_eq!(app.row(&id).await.task, None);
    assert_eq!(ids(&app, &format!("task_id={mine}")).await, [] as [String; 0]);
}

#[tokio::test]
async fn an_agent_names_only_its_own_tasks() {
    let app = TestApp::start().await;
    let agent = app.post("/api/v1/agents", json!({"name": "one"})).await.expect(201).json()["id"].clone();
    let key = json!({"name": "one", "role": "write", "agent_id": agent});
    let key = app.post("/api/v1/keys", key).await.expect(201).json()["key"].as_str().unwrap().to_string();
    let own = task(&app, json!({"title": "own", "agent_id": agent})).await;
    let other = task(&app, json!({"title": "another's"})).await;
    let create = async |task: &str| {
        app.as_key(&key, Method::POST, "/api/v1/sandboxes", json!({"task_id": task})).await
    };
    create(&other).await.expect(404);
    assert_eq!(create(&own).await.expect(201).json()["task_id"], own);
}

#[tokio::test]
async fn the_sandbox_of_an_attempt_is_found_by_its_task() {
    let app = TestApp::start().await;
    let agent = json!({"name": "coder", "definition": {"preset": "codex", "template": "base"}});
    let agent = app.post("/api/v1/agents", agent).await.expect(201).json();
    let id =
        task(&app, json!({"title": "Fix it", "repository": "local/none", "agent_id": agent["id"]})).await;
    app.post(&format!("/api/v1/tasks/{id}/start"), Value::Null).await.expect(202);
    let sandbox = app.engine.wait_for(Op::Create).await.to_string();
    eventually("it is on record", async || ids(&app, &format!("task_id={id}")).await == [sandbox.as_str()])
        .await;
    assert_eq!(app.row(&sandbox).await.task.unwrap().to_string(), id);
}

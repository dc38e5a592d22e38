//! Snapshots: created, named, listed, deleted, used; and pauses that save memory to disk.

use coffer_core::{SandboxId, SnapshotId};
use coffer_engine::{EngineError, RunState};
use coffer_store::{NewSnapshot, SnapshotState};
use coffer_wire::agentd::ProcessFact;
use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;
use crate::engine::{LACKS, Op};

fn parsed(id: &str) -> SandboxId {
    id.parse().unwrap()
}

/// An app whose host can save memory.
pub(crate) async fn with_memory() -> TestApp {
    let mut app = TestApp::start().await;
    app.engine.keep_memory();
    app.restart(async |_| {}).await;
    app
}

pub(crate) async fn snapshot(app: &TestApp, sandbox: &str, body: Value) -> Value {
    app.post(&format!("/api/v1/sandboxes/{sandbox}/snapshots"), body).await.expect(201).json()
}

#[tokio::test]
async fn a_snapshot_is_a_template_by_its_id() {
    let app = TestApp::start().await;
    let source = app.create(json!({"envVars": {"A": "1"}})).await;
    let made = app.post_empty(&format!("/sandboxes/{source}/snapshots")).await.expect(201).json();
    let id = made["snapshotID"].as_str().unwrap();
    let bare = id.strip_suffix(":default").unwrap();
    assert_eq!(made, json!({"snapshotID": id, "names": []}));
    assert_eq!(app.state(&source).await, "running");
    let detail = app.get(&format!("/api/v1/snapshots/{bare}")).await.expect(200).json();
    assert_eq!(
        (&detail["sandbox_id"], &detail["memory"], &detail["note"], &detail["state"]),
        (&json!(source), &json!(false), &json!(LACKS), &json!("ready"))
    );
    // The source may have ended.
    app.delete(&format!("/sandboxes/{source}")).await.expect(204);
    for template in [id, bare] {
        let child = app.create(json!({"templateID": template})).await;
        let order = app.engine.order(parsed(&child));
        assert_eq!((order.snapshot.unwrap().to_string().as_str(), order.memory), (bare, false));
        assert_eq!(order.template, "host", "what is below the snapshot");
        let env = app.engine.agentd(parsed(&child)).inits()[0].env_vars.clone();
        assert_eq!(
            (env.get("A"), env["E2B_TEMPLATE_ID"].as_str()),
            (None, bare),
            "not the source's variables"
        );
        let shown = app.get(&format!("/api/v1/sandboxes/{child}")).await.expect(200).json();
        assert_eq!(
            (&shown["parent_id"], &shown["snapshot_id"], &shown["fork_position"]),
            (&json!(source), &json!(bare), &Value::Null)
        );
    }
    app.delete(&format!("/templates/{}", id.replace(':', "%3A"))).await.expect(204);
    app.delete(&format!("/templates/{bare}")).await.expect(404);
    assert_eq!(app.engine.snapshot_ids(), []);
    let refused = app.post("/v2/sandboxes", json!({"templateID": id})).await.expect(404).json();
    assert!(refused["message"].as_str().unwrap().contains(id), "{refused}");
    let gone = app.post("/api/v1/sandboxes", json!({"snapshot_id": bare})).await.expect(404).json();
    assert_eq!(gone["message"], format!("snapshot '{bare}' not found"));
    let kinds = ["snapshot.creating", "snapshot.ready", "snapshot.deleting", "snapshot.deleted"];
    for kind in kinds {
        assert_eq!(app.events(kind).await[0]["snapshot_id"], bare, "{kind}");
    }
}

#[tokio::test]
async fn a_name_stands_for_the_newest_and_goes_with_all() {
    let app = TestApp::start().await;
    let source = app.create(json!({})).await;
    let project = app.scope().await.project().to_string();
    let path = format!("/sandboxes/{source}/snapshots");
    let full = format!("{project}/work:default");
    let mut ids = Vec::new();
    for name in ["Work", "work:default", &format!("{project}/work")] {
        let made = app.post(&path, json!({"name": name})).await.expect(201).json();
        assert_eq!(made, json!({"snapshotID": full, "names": [full]}));
        ids.push(
            app.get("/api/v1/snapshots?limit=1").await.json()["items"][0]["id"].as_str().unwrap().to_string(),
        );
    }
    let tagged = app.post(&path, json!({"name": "work:v1.2"})).await.expect(201).json();
    assert_eq!(tagged["snapshotID"], format!("{project}/work:v1.2"));
    let plain = app.post_empty(&path).await.expect(201).json();
    for template in ["work", "WORK:default", &full] {
        let child = app.create(json!({"templateID": template})).await;
        assert_eq!(app.engine.order(parsed(&child)).snapshot.unwrap().to_string(), ids[2], "{template}");
        app.delete(&format!("/sandboxes/{child}")).await.expect(204);
    }
    app.post("/v2/sandboxes", json!({"templateID": "work:other"})).await.expect(404);
    app.post("/v2/sandboxes", json!({"templateID": "elsewhere/work"})).await.expect(404);
    assert_eq!(app.get("/templates/aliases/work").await.expect(200).json()["templateID"], ids[2]);
    // One entry for each name, as E2B has it, newest first; ours shows all.
    let listed = app.get("/snapshots").await.expect(200);
    let named: Vec<_> =
        listed.json().as_array().unwrap().iter().map(|one| one["snapshotID"].clone()).collect();
    assert_eq!(named, [plain["snapshotID"].clone(), tagged["snapshotID"].clone(), json!(full)]);
    assert_eq!(listed.header("x-next-token"), None);
    let first = app.get("/snapshots?limit=2").await.expect(200);
    let next = first.header("x-next-token").unwrap();
    let rest = app.get(&format!("/snapshots?limit=2&nextToken={next}")).await.expect(200).json();
    assert_eq!((first.json().as_array().unwrap().len(), &rest[0]["snapshotID"]), (2, &json!(full)));
    for (query, count) in [
        ("name=work", 2),
        ("name=work:v1.2", 1),
        ("name=nothing", 0),
        ("name=!!", 0),
        ("sandboxID=xyz", 0),
        (&format!("sandboxID={source}"), 3),
        (&format!("name={}", ids[0]), 1),
        (&format!("sandboxID={}", SandboxId::generate()), 0),
    ] {
        let found = app.get(&format!("/snapshots?{query}")).await.expect(200).json();
        assert_eq!(found.as_array().unwrap().len(), count, "{query}");
    }
    app.get("/snapshots?limit=101").await.expect(400);
    app.get("/snapshots?nextToken=!").await.expect(400);
    let all = app.get("/api/v1/snapshots?name=work:default").await.expect(200).json();
    let all: Vec<_> = all["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (&one["id"], &one["full_name"]))
        .map(|(id, name)| (id.clone(), name.clone()))
        .collect();
    assert_eq!(
        all,
        [(json!(ids[2]), json!(full)), (json!(ids[1]), Value::Null), (json!(ids[0]), Value::Null)]
    );

    app.delete(&format!("/templates/{project}%2Fwork%3Adefault")).await.expect(204);
    app.delete(&format!("/templates/{project}%2Fwork%3Adefault")).await.expect(404);
    assert_eq!(app.engine.snapshot_ids().len(), 2, "those before it went along, other tags did not");
    app.delete("/templates/work").await.expect(204);
    assert_eq!(app.engine.snapshot_ids().len(), 1);
    app.delete("/templates/base").await.expect(403);
}

#[tokio::test]
async fn bad_snapshots_are_refused_and_leave_nothing() {
    let app = TestApp::start().await;
    let source = app.create(json!({})).await;
    let path = format!("/sandboxes/{source}/snapshots");
    for name in ["", "a b", "../x", "other/name", "base", "host", &SnapshotId::generate().to_string()] {
        app.post(&path, json!({"name": name})).await.expect(400);
        let own = app.post(&format!("/api/v1{path}"), json!({"name": name})).await.expect(422).json();
        assert_eq!(own["code"], "invalid");
    }
    let host = app.get("/api/v1/host").await.expect(200).json();
    assert_eq!((&host["memory_snapshot"], &host["memory_snapshot_lacks"]), (&json!(false), &json!(LACKS)));
    let demanded = app.post(&path, json!({"memory": true})).await.expect(501).json();
    assert!(demanded["message"].as_str().unwrap().contains(LACKS), "{demanded}");
    let demanded = app.post(&format!("/api/v1{path}"), json!({"memory": true})).await.expect(501).json();
    assert_eq!((&demanded["code"], demanded["hint"].is_string()), (&json!("not_supported"), true));
    for (error, status) in [
        (EngineError::NoCapacity("12 bytes are missing".into()), 503),
        (EngineError::Failed("broken".into()), 500),
        (EngineError::Unavailable("away".into()), 503),
    ] {
        app.engine.fail_next(Op::Snapshot, error);
        app.post(&path, json!({"name": "x"})).await.expect(status);
    }
    app.post(&format!("/sandboxes/{source}/pause"), json!({})).await.expect(204);
    let paused = app.post(&path, json!({})).await.expect(409).json();
    assert_eq!(paused["message"], "a sandbox that is paused cannot be snapshotted; resume it first");
    app.delete(&format!("/sandboxes/{source}")).await.expect(204);
    app.post(&path, json!({})).await.expect(404);
    assert_eq!(app.get("/api/v1/snapshots").await.json()["items"], json!([]));
    assert_eq!(app.engine.snapshot_ids(), []);
    assert_eq!(app.events("snapshot.failed").await.len(), 3);
    app.post("/api/v1/sandboxes", json!({"snapshot_id": SnapshotId::generate()})).await.expect(404);
    app.post("/api/v1/sandboxes", json!({"memory": true})).await.expect(422);
    let both = json!({"snapshot_id": SnapshotId::generate(), "template": "base"});
    app.post("/api/v1/sandboxes", both).await.expect(422);
    app.assert_empty().await;
}

#[tokio::test]
async fn a_snapshot_that_is_too_large_for_the_project_is_gone_again() {
    let app = TestApp::start().await;
    let source = app.create(json!({})).await;
    let quotas = coffer_store::Quotas { disk_mib: Some(10_240 + 5), ..coffer_store::Quotas::default() };
    let project = app.scope().await.project();
    app.store.set_quotas(&app.store.operator(), project, None, quotas).await.unwrap().unwrap();
    app.engine.set_snapshot_bytes(6 << 20);
    let path = format!("/api/v1/sandboxes/{source}/snapshots");
    let over = app.post(&path, json!({"name": "n"})).await.expect(429).json();
    assert_eq!(over["details"], json!({"quota": "disk_mib", "limit": 10_245, "used": 10_240, "asked": 6}));
    assert_eq!(app.engine.snapshot_ids(), []);
    assert_eq!(app.get("/api/v1/snapshots").await.json()["items"], json!([]));
    app.engine.set_snapshot_bytes(5 << 20);
    snapshot(&app, &source, json!({"name": "n"})).await;
    assert_eq!(app.get("/api/v1/quotas").await.expect(200).json()["used"]["disk_mib"], 10_245);
}

#[tokio::test]
async fn the_same_key_makes_one_snapshot() {
    let app = TestApp::start().await;
    let source = app.create(json!({})).await;
    let send = |body: &'static str| {
        let path = format!("/api/v1/sandboxes/{source}/snapshots");
        let request = app.request(Method::POST, &path).header("idempotency-key", "once");
        app.send(request.body(body.into()).unwrap())
    };
    let first = send(r#"{"name": "a"}"#).await.expect(201);
    assert_eq!(
        first.header("location").unwrap(),
        format!("/api/v1/snapshots/{}", first.json()["id"].as_str().unwrap())
    );
    assert_eq!(send(r#"{"name": "a"}"#).await.expect(201).json()["id"], first.json()["id"]);
    assert_eq!(send(r#"{"name": "b"}"#).await.expect(422).json()["code"], "idempotency_key_reused");
    assert_eq!(app.engine.snapshot_ids().len(), 1);
}

#[tokio::test]
async fn with_memory_processes_are_kept_and_go_on() {
    let app = with_memory().await;
    let source = app.create(json!({})).await;
    assert_eq!(app.get("/api/v1/host").await.expect(200).json()["memory_snapshot"], true);
    let full = snapshot(&app, &source, json!({"memory": true})).await;
    assert_eq!((&full["memory"], &full["note"]), (&json!(true), &Value::Null));
    let files = snapshot(&app, &source, json!({"memory": false})).await;
    assert_eq!((&files["memory"], &files["note"]), (&json!(false), &Value::Null));
    let made = app.post("/api/v1/sandboxes", json!({"snapshot_id": full["id"]})).await.expect(201).json();
    assert!(app.engine.order(parsed(made["id"].as_str().unwrap())).memory);
    let cold = json!({"snapshot_id": full["id"], "memory": false});
    let cold = app.post("/api/v1/sandboxes", cold).await.expect(201).json();
    assert!(!app.engine.order(parsed(cold["id"].as_str().unwrap())).memory);
    let none = json!({"snapshot_id": files["id"], "memory": true});
    assert_eq!(app.post("/api/v1/sandboxes", none).await.expect(501).json()["code"], "not_supported");
    // A failed dump must not lose the files, unless memory was required.
    app.engine.fail_next(Op::Snapshot, EngineError::Failed("criu gave up".into()));
    let fallen = snapshot(&app, &source, json!({})).await;
    assert_eq!((&fallen["memory"], &fallen["note"]), (&json!(false), &json!("criu gave up")));
    app.engine.fail_next(Op::Snapshot, EngineError::Failed("criu gave up".into()));
    let path = format!("/api/v1/sandboxes/{source}/snapshots");
    let refused = app.post(&path, json!({"memory": true})).await.expect(501).json();
    assert!(refused["message"].as_str().unwrap().contains("criu gave up"), "{refused}");
}

#[tokio::test]
async fn memory_with_secrets_is_kept_only_where_they_are_granted() {
    let app = with_memory().await;
    app.put("/api/v1/secrets/github", json!({"value": "a-secret-value"})).await.expect(201);
    let new = json!({"secrets": {"TOKEN": "github"}});
    let source = app.post("/api/v1/sandboxes", new).await.expect(201).json()["id"].clone();
    let source = source.as_str().unwrap();
    let path = format!("/api/v1/sandboxes/{source}/snapshots");
    let refused = app.post(&path, json!({"memory": true})).await.expect(409).json();
    assert!(refused["hint"].as_str().unwrap().contains("inherit_secrets"), "{refused}");
    let files = snapshot(&app, source, json!({})).await;
    assert_eq!(files["memory"], false);
    assert!(files["note"].as_str().unwrap().contains("github"));
    let child = app.post("/api/v1/sandboxes", json!({"snapshot_id": files["id"]})).await.expect(201).json();
    let child = parsed(child["id"].as_str().unwrap());
    assert_eq!(app.engine.agentd(child).inits()[0].env_vars.get("TOKEN"), None);
    let full = snapshot(&app, source, json!({"inherit_secrets": true})).await;
    assert_eq!(full["memory"], true);
    let child = app.post("/api/v1/sandboxes", json!({"snapshot_id": full["id"]})).await.expect(201).json();
    let child = parsed(child["id"].as_str().unwrap());
    assert_eq!(app.engine.agentd(child).inits()[0].env_vars["TOKEN"], "a-secret-value");
}

#[tokio::test]
async fn after_a_crash_snapshots_are_finished_or_gone() {
    let mut app = TestApp::start().await;
    let source = app.create(json!({})).await;
    let kept = snapshot(&app, &source, json!({"name": "kept"})).await["id"].clone();
    let scope = app.scope().await;
    let new = |name: &str| NewSnapshot {
        id: SnapshotId::generate(),
        sandbox: source.parse().unwrap(),
        agent: None,
        name: Some(name.into()),
        tag: "default".into(),
        memory: false,
        template: "host".into(),
        limits: coffer_core::Limits::default(),
        secrets: Default::default(),
        created_by: None,
        purpose: coffer_core::SnapshotPurpose::Use,
    };
    let (made, unmade, deleting) = (new("made"), new("unmade"), new("deleting"));
    let (whole, half, going) = (made.id, unmade.id, deleting.id);
    let (stranger, of) = (SnapshotId::generate(), parsed(&source));
    app.restart(async |app| {
        for new in [made, unmade, deleting] {
            app.store.insert_snapshot(&scope, new, None).await.unwrap();
        }
        app.store.begin_snapshot_deletion(&scope, going).await.unwrap().unwrap();
        for id in [whole, going, stranger] {
            app.engine.plant_snapshot(of, id);
        }
    })
    .await;
    let mut there = app.engine.snapshot_ids();
    there.sort();
    let mut expected = vec![kept.as_str().unwrap().parse::<SnapshotId>().unwrap(), whole];
    expected.sort();
    assert_eq!(there, expected);
    let state = async |id| app.store.snapshot(&scope, id).await.unwrap().map(|row| row.state);
    assert_eq!((state(whole).await, state(half).await), (Some(SnapshotState::Ready), None));
    assert_eq!((state(going).await, state(stranger).await), (None, None));
    assert_eq!(app.events("sandbox.orphan_removed").await.len(), 1, "the one that no record explained");
}

#[tokio::test]
async fn a_snapshot_is_deleted_though_its_host_is_away() {
    let mut app = TestApp::start().await;
    let source = app.create(json!({})).await;
    let id = snapshot(&app, &source, json!({})).await["id"].as_str().unwrap().to_string();
    app.engine.fail(Op::DeleteSnapshot, Some(EngineError::Unavailable("away".into())));
    app.delete(&format!("/templates/{id}")).await.expect(204);
    app.post("/v2/sandboxes", json!({"templateID": id})).await.expect(404);
    assert_eq!(app.get(&format!("/api/v1/snapshots/{id}")).await.expect(200).json()["state"], "deleting");
    app.engine.fail(Op::DeleteSnapshot, None);
    app.restart(async |_| {}).await;
    app.get(&format!("/api/v1/snapshots/{id}")).await.expect(404);
    assert_eq!(app.engine.snapshot_ids(), []);
}

#[tokio::test]
async fn traffic_passes_while_files_are_snapshotted() {
    let app = TestApp::start().await;
    let source = app.create(json!({})).await;
    app.engine.hold(Op::Snapshot);
    let path = format!("/sandboxes/{source}/snapshots");
    let (made, ()) = tokio::join!(app.post_empty(&path), async {
        app.engine.wait_for(Op::Snapshot).await;
        assert_eq!(app.visit(&source, "/health").await.status, 204);
        app.engine.release(Op::Snapshot);
    });
    made.expect(201);
}

/// A host that dies while the source is frozen for a snapshot, and whose successor creates the snapshot.
#[tokio::test]
async fn a_source_that_was_left_standing_still_goes_on() {
    let app = TestApp::start().await;
    let source = app.create(json!({})).await;
    app.engine.hold(Op::Snapshot);
    let path = format!("/sandboxes/{source}/snapshots");
    let (made, ()) = tokio::join!(app.post_empty(&path), async {
        app.engine.wait_for(Op::Snapshot).await;
        app.engine.tamper(parsed(&source), RunState::Frozen);
        app.engine.release(Op::Snapshot);
    });
    made.expect(201);
    assert_eq!(app.engine.run(parsed(&source)), Some(RunState::Running));
    assert_eq!(app.visit(&source, "/health").await.status, 204);
}

/// An earlier server requested it, and the host is still at it or done: the sandbox is not dead.
#[tokio::test]
async fn a_dump_that_another_server_asked_for_is_no_death() {
    let mut app = with_memory().await;
    let sandbox = app.create(json!({})).await;
    app.restart(async |_| {}).await;
    app.engine.die_silently(parsed(&sandbox));
    app.engine.tamper(parsed(&sandbox), RunState::Hibernated);
    // The first check comes a second after the start.
    app.engine.wait_for(Op::Start).await;
    for _ in 0..200 {
        if app.visit(&sandbox, "/health").await.status == 204 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(app.visit(&sandbox, "/health").await.status, 204);
    assert_eq!(app.state(&sandbox).await, "running");
}

/// A pause that an earlier server requested is in progress: clients wait, and then reach a running sandbox.
#[tokio::test]
async fn what_the_host_is_still_at_is_waited_for() {
    let mut app = with_memory().await;
    let sandbox = app.create(json!({})).await;
    app.restart(async |app| app.engine.set_changing(parsed(&sandbox), true)).await;
    let (visited, ()) = tokio::join!(app.visit(&sandbox, "/health"), async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        app.engine.die_silently(parsed(&sandbox));
        app.engine.tamper(parsed(&sandbox), RunState::Hibernated);
        app.engine.set_changing(parsed(&sandbox), false);
    });
    assert_eq!(visited.status, 204);
    assert!(app.engine.asked().iter().any(|(op, _)| *op == Op::Start));
    assert_eq!(app.state(&sandbox).await, "running");
}

#[tokio::test]
async fn a_pause_puts_memory_on_disk_and_a_connect_restores_it() {
    let app = with_memory().await;
    let sandbox = app.create(json!({})).await;
    let id = parsed(&sandbox);
    let agentd = app.engine.agentd(id);
    agentd.happen(7, ProcessFact::Started { command: "work".into(), tag: None, cwd: None, user: None });
    app.visit(&sandbox, "/health").await;
    app.post(&format!("/sandboxes/{sandbox}/pause"), json!({"memory": true})).await.expect(204);
    assert_eq!(app.engine.run(id), Some(RunState::Hibernated));
    assert_eq!(
        app.history(&sandbox).await.last().unwrap().reason,
        "paused with its memory; its memory is on disk"
    );
    assert_eq!(app.get(&format!("/sandboxes/{sandbox}")).await.json()["pauseMode"], "full");
    assert_eq!(app.visit(&sandbox, "/health").await.status, 502);
    app.post(&format!("/v2/sandboxes/{sandbox}/connect"), json!({"timeout": 60})).await.expect(201);
    assert_eq!(app.visit(&sandbox, "/health").await.status, 204);
    let same = app.engine.agentd(id).inits();
    assert_eq!(same.first(), agentd.inits().first(), "the same agentd, with its processes");
    // The journal continues where it was: one execution, not two.
    agentd.happen(7, ProcessFact::Ended { exit_code: 3, status: "exit status 3".into(), untold: 0 });
    let mut executions = Value::Null;
    for _ in 0..300 {
        executions = app.get(&format!("/api/v1/sandboxes/{sandbox}/executions")).await.expect(200).json();
        if executions["items"][0]["exit_code"] == 3 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let executions = executions["items"].as_array().unwrap();
    assert_eq!((executions.len(), &executions[0]["exit_code"]), (1, &json!(3)), "{executions:?}");
}

#[tokio::test]
async fn a_pause_whose_dump_fails_stays_frozen_and_says_so() {
    let app = with_memory().await;
    let sandbox = app.create(json!({})).await;
    app.engine.fail_next(Op::Hibernate, EngineError::Failed("criu gave up".into()));
    app.post(&format!("/sandboxes/{sandbox}/pause"), json!({})).await.expect(204);
    assert_eq!(app.engine.run(parsed(&sandbox)), Some(RunState::Frozen));
    let reason = app.history(&sandbox).await.last().unwrap().reason.clone();
    assert_eq!(reason, "paused with its memory; its memory stays in the host's memory: criu gave up");
    app.post(&format!("/v2/sandboxes/{sandbox}/connect"), json!({})).await.expect(201);
    // An engine that went away in the middle may have done it or not: the pause failed.
    app.engine.fail_next(Op::Hibernate, EngineError::Unavailable("away".into()));
    app.post(&format!("/sandboxes/{sandbox}/pause"), json!({})).await.expect(503);
    assert_eq!(app.state(&sandbox).await, "running");
}

#[tokio::test]
async fn a_cold_connect_leaves_memory_behind() {
    let app = with_memory().await;
    let sandbox = app.create(json!({})).await;
    let agentd = app.engine.agentd(parsed(&sandbox));
    app.post(&format!("/sandboxes/{sandbox}/pause"), json!({})).await.expect(204);
    let path = format!("/v2/sandboxes/{sandbox}/connect");
    app.post(&path, json!({"memory": false})).await.expect(201);
    assert_eq!(app.engine.agentd(parsed(&sandbox)).inits().len(), 1, "a new agentd");
    assert_eq!(agentd.inits().len(), 1);
    let own = format!("/api/v1/sandboxes/{sandbox}");
    app.post(&format!("{own}/pause"), json!({})).await.expect(200);
    app.post(&format!("{own}/resume"), json!({"memory": false})).await.expect(200);
    assert_eq!(app.engine.run(parsed(&sandbox)), Some(RunState::Running));
}

#[tokio::test]
async fn a_paused_sandbox_on_disk_survives_a_restart_and_traffic_wakes_it() {
    let mut app = with_memory().await;
    let sandbox = app.create(json!({"autoPause": true, "autoResume": {"enabled": true}})).await;
    app.post(&format!("/sandboxes/{sandbox}/pause"), json!({})).await.expect(204);
    app.restart(async |_| {}).await;
    assert_eq!(app.engine.run(parsed(&sandbox)), Some(RunState::Hibernated));
    assert_ne!(app.visit(&sandbox, "/envs").await.status, 502);
    assert_eq!(app.state(&sandbox).await, "running");
    // Interrupted between the engine and the record: recorded as running, so it runs.
    app.restart(async |app| app.engine.hibernate_now(parsed(&sandbox))).await;
    assert_eq!(app.engine.run(parsed(&sandbox)), Some(RunState::Running));
}

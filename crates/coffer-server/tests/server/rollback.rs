//! Rollback of a sandbox to one of its snapshots.

use coffer_core::{SandboxId, SnapshotId};
use coffer_engine::{EngineError, RunState};
use serde_json::{Value, json};

use crate::app::TestApp;
use crate::engine::Op;
use crate::snapshots::{snapshot, with_memory};

fn parsed(id: &str) -> SandboxId {
    id.parse().unwrap()
}

#[tokio::test]
async fn a_running_sandbox_is_taken_back_and_keeps_its_deadline() {
    let app = TestApp::start().await;
    let sandbox = app.create(json!({"timeout": 500})).await;
    let before = app.row(&sandbox).await;
    let to = snapshot(&app, &sandbox, json!({})).await["id"].clone();
    let path = format!("/api/v1/sandboxes/{sandbox}/rollback");
    let shown = app.post(&path, json!({"snapshot_id": to})).await.expect(200).json();
    assert_eq!((&shown["id"], &shown["state"]), (&json!(sandbox), &json!("running")));
    let after = app.row(&sandbox).await;
    assert_eq!((after.lifetime, after.access_token.clone()), (before.lifetime, before.access_token.clone()));
    let init = app.engine.agentd(parsed(&sandbox)).inits();
    assert_eq!(
        (init.len(), init[0].access_token.as_deref()),
        (1, before.access_token.as_ref().map(|token| token.reveal()))
    );
    assert_eq!(app.visit(&sandbox, "/health").await.status, 204);
    let reasons: Vec<_> = app.history(&sandbox).await.into_iter().map(|step| step.reason).skip(2).collect();
    let to = to.as_str().unwrap();
    assert_eq!(
        reasons,
        [format!("stopped to be rolled back to snapshot {to}"), format!("rolled back to snapshot {to}")]
    );
}

#[tokio::test]
async fn a_paused_sandbox_is_taken_back_and_runs() {
    let app = with_memory().await;
    let sandbox = app.create(json!({})).await;
    let to = snapshot(&app, &sandbox, json!({})).await;
    assert_eq!(to["memory"], true);
    app.post(&format!("/sandboxes/{sandbox}/pause"), json!({})).await.expect(204);
    let body = json!({"snapshot_id": to["id"], "memory": false, "timeout_s": 60});
    app.post(&format!("/api/v1/sandboxes/{sandbox}/rollback"), body).await.expect(200);
    assert_eq!(app.engine.run(parsed(&sandbox)), Some(RunState::Running));
    let row = app.row(&sandbox).await;
    assert_eq!(row.lifetime.deadline_ms - row.lifetime.started_ms, 60_000);
}

#[tokio::test]
async fn only_its_own_snapshots_will_do() {
    let app = TestApp::start().await;
    let (sandbox, other) = (app.create(json!({})).await, app.create(json!({})).await);
    let others = snapshot(&app, &other, json!({})).await["id"].clone();
    let path = format!("/api/v1/sandboxes/{sandbox}/rollback");
    for wrong in [others.clone(), json!(SnapshotId::generate())] {
        let refused = app.post(&path, json!({"snapshot_id": wrong})).await.expect(404).json();
        assert_eq!(refused["message"], format!("snapshot '{}' not found", wrong.as_str().unwrap()));
    }
    app.post(&path, json!({"snapshot_id": "x"})).await.expect(422);
    app.post(&path, json!({"snapshot_id": others, "memory": true})).await.expect(404);
    assert_eq!(app.history(&sandbox).await.len(), 2, "nothing was stopped");
    // The snapshot that it started from is its own.
    let child = app.create(json!({"templateID": others})).await;
    app.post(&format!("/api/v1/sandboxes/{child}/rollback"), json!({"snapshot_id": others}))
        .await
        .expect(200);
}

#[tokio::test]
async fn a_rollback_that_fails_leaves_it_paused_and_can_be_repeated() {
    let mut app = TestApp::start().await;
    let sandbox = app.create(json!({})).await;
    let to = snapshot(&app, &sandbox, json!({})).await["id"].clone();
    let path = format!("/api/v1/sandboxes/{sandbox}/rollback");
    app.engine.fail_next(Op::Rollback, EngineError::NoCapacity("full".into()));
    app.post(&path, json!({"snapshot_id": to})).await.expect(503);
    assert_eq!(app.state(&sandbox).await, "paused");
    // Interrupted after the host had done it: recorded as paused, so it is stopped, and has the new files.
    app.restart(async |app| app.engine.tamper(parsed(&sandbox), RunState::Running)).await;
    assert_eq!(app.engine.run(parsed(&sandbox)), Some(RunState::Stopped));
    app.post(&path, json!({"snapshot_id": to})).await.expect(200);
    assert_eq!(app.visit(&sandbox, "/health").await.status, 204);
    let gone = app.delete(&format!("/api/v1/snapshots/{}", to.as_str().unwrap())).await;
    gone.expect(204);
    app.post(&path, json!({"snapshot_id": to})).await.expect(404);
    assert_eq!(app.post(&path, Value::Null).await.status, 422);
    assert_eq!(app.state(&sandbox).await, "running");
}

//! Sandboxes at their deadline.

use std::time::Duration;

use coffer_core::{DestroyReason, Kept, LifetimePolicy, SandboxState};
use coffer_engine::EngineError;
use coffer_store::Deadline;
use serde_json::json;

use crate::app::{TestApp, policy};
use crate::engine::Op;

#[tokio::test]
async fn a_timeout_destroys() {
    let app = TestApp::start().await;
    let id = app.create(json!({"timeout": 1})).await;
    assert_eq!(app.ended(&id).await, SandboxState::Terminated { reason: DestroyReason::Timeout });
    app.assert_empty().await;
}

#[tokio::test]
async fn a_timeout_of_nothing_comes_at_once() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let begun = std::time::Instant::now();
    app.post(&format!("/sandboxes/{id}/timeout"), json!({"timeout": -5})).await.expect(204);
    assert_eq!(app.ended(&id).await, SandboxState::Terminated { reason: DestroyReason::Timeout });
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn auto_pause_keeps_memory_or_only_files() {
    let app = TestApp::start().await;
    let full = app.create(json!({"autoPause": true})).await;
    let files = app.create(json!({"autoPause": true, "autoPauseMemory": false})).await;
    for id in [&full, &files] {
        app.post(&format!("/sandboxes/{id}/timeout"), json!({"timeout": 0})).await.expect(204);
        app.wait_for(id, "paused").await;
        assert_eq!(app.visit(id, "/health").await.status, 502, "traffic does not wake it");
        assert_eq!(app.state(id).await, "paused");
    }
    assert_eq!(app.row(&full).await.state, SandboxState::Paused { kept: Kept::MemoryAndFiles });
    assert_eq!(app.row(&files).await.state, SandboxState::Paused { kept: Kept::FilesOnly });
}

#[tokio::test]
async fn traffic_wakes_what_is_to_resume_by_itself() {
    let app = TestApp::start().await;
    let id = app.create(json!({"autoPause": true, "autoResume": {"enabled": true}, "timeout": 60})).await;
    app.post(&format!("/sandboxes/{id}/timeout"), json!({"timeout": 0})).await.expect(204);
    app.wait_for(&id, "paused").await;
    // A health check does not wake it: SDKs send one when a pause breaks their streams.
    assert_eq!(app.visit(&id, "/health").await.status, 502);
    assert_eq!(app.get(&format!("/sandboxes/{id}")).await.expect(200).json()["state"], "paused");
    let visits = (app.visit(&id, "/envs"), app.visit(&id, "/envs"), app.visit(&id, "/envs"));
    let (one, two, three) = tokio::join!(visits.0, visits.1, visits.2);
    assert!([one.status, two.status, three.status].iter().all(|&status| status != 502));
    let detail = app.get(&format!("/sandboxes/{id}")).await.expect(200).json();
    assert_eq!(detail["state"], "running");
    let end: jiff::Timestamp = detail["endAt"].as_str().unwrap().parse().unwrap();
    let remaining = end.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((290..=300).contains(&remaining), "at least five minutes, not {remaining} s");
    let thaws = app.engine.asked().into_iter().filter(|(op, _)| *op == Op::Thaw).count();
    assert_eq!(thaws, 1);
}

#[tokio::test]
async fn a_pause_at_the_deadline_is_tried_again() {
    let app = TestApp::start().await;
    let id = app.create(json!({"autoPause": true})).await;
    app.engine.fail(Op::Freeze, Some(EngineError::Unavailable("away".into())));
    app.post(&format!("/sandboxes/{id}/timeout"), json!({"timeout": 0})).await.expect(204);
    app.engine.wait_for(Op::Freeze).await;
    app.engine.fail(Op::Freeze, None);
    app.wait_for(&id, "paused").await;
}

#[tokio::test]
async fn what_nothing_uses_ends_and_what_is_used_stays() {
    let lifetime = LifetimePolicy { idle_ms: Some(1500), ..policy() };
    let app = TestApp::with(lifetime, None).await;
    let (used, idle) = (app.create(json!({})).await, app.create(json!({})).await);
    let use_it = async {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert_eq!(app.visit(&used, "/health").await.status, 204);
        }
    };
    tokio::select! {
        state = app.ended(&idle) => assert_eq!(state, SandboxState::Terminated { reason: DestroyReason::Idle }),
        () = use_it => {}
    }
    assert_eq!(app.state(&used).await, "running");
}

#[tokio::test]
async fn the_longest_lifetime_is_told_from_a_timeout() {
    let lifetime = LifetimePolicy { maximum_ms: 1000, ..policy() };
    let app = TestApp::with(lifetime, None).await;
    let id = app.create(json!({"timeout": 600})).await;
    assert_eq!(app.ended(&id).await, SandboxState::Terminated { reason: DestroyReason::MaximumLifetime });
    let shown = app.get(&format!("/api/v1/sandboxes/{id}")).await.expect(200).json();
    assert_eq!(shown["reason"], "maximum_lifetime");
}

#[tokio::test]
async fn a_deadline_survives_a_restart() {
    let mut app = TestApp::start().await;
    let short = app.create(json!({"timeout": 300})).await;
    let long = app.create(json!({"timeout": 300})).await;
    app.restart(async |app| {
        // As if the server had been away for longer than the sandbox had left.
        let passed = Deadline::Exactly(jiff::Timestamp::now().as_millisecond() - 100);
        let operator = app.store.operator();
        app.store.set_deadline(&operator, short.parse().unwrap(), passed).await.unwrap();
    })
    .await;
    assert_eq!(app.ended(&short).await, SandboxState::Terminated { reason: DestroyReason::Timeout });
    assert_eq!(app.state(&long).await, "running");
}

#[tokio::test]
async fn where_nothing_can_be_frozen_a_pause_at_the_deadline_keeps_files() {
    let app = TestApp::start().await;
    let id = app.create(json!({"autoPause": true})).await;
    app.engine.fail(Op::Freeze, Some(EngineError::Unsupported("freezing".into())));
    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(501);
    app.post(&format!("/sandboxes/{id}/timeout"), json!({"timeout": 0})).await.expect(204);
    app.wait_for(&id, "paused").await;
    assert_eq!(app.row(&id).await.state, SandboxState::Paused { kept: Kept::FilesOnly });
}

#[tokio::test]
async fn a_connect_extends_by_the_clock_that_never_jumps() {
    let app = TestApp::start().await;
    let id = app.create(json!({"timeout": 5})).await;
    // As after the wall clock went back: the recorded deadline looks an hour away.
    let hour_away = Deadline::Exactly(jiff::Timestamp::now().as_millisecond() + 3_600_000);
    let operator = app.store.operator();
    app.store.set_deadline(&operator, id.parse().unwrap(), hour_away).await.unwrap();
    app.post(&format!("/v2/sandboxes/{id}/connect"), json!({"timeout": 60})).await.expect(200);
    let detail = app.get(&format!("/sandboxes/{id}")).await.expect(200).json();
    let end: jiff::Timestamp = detail["endAt"].as_str().unwrap().parse().unwrap();
    let remaining = end.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((55..=60).contains(&remaining), "{remaining} s");
}

//! Concurrent requests about one sandbox.

use std::time::Duration;

use coffer_core::{DestroyReason, SandboxState};
use coffer_engine::EngineError;
use http::Method;
use http_body_util::Full;
use serde_json::json;

use crate::agentd::Manners;
use crate::app::{Answer, TestApp};
use crate::engine::Op;

#[tokio::test]
async fn of_two_pauses_one_is_a_conflict() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.engine.hold(Op::Freeze);
    let path = format!("/sandboxes/{id}/pause");
    let (first, second) = tokio::join!(app.post_empty(&path), async {
        app.engine.wait_for(Op::Freeze).await;
        let second = app.post_empty(&path).await;
        app.post(&format!("/sandboxes/{id}/timeout"), json!({"timeout": 5})).await.expect(409);
        app.engine.release(Op::Freeze);
        second
    });
    first.expect(204);
    assert!(second.expect(409).header("retry-after").is_some());
}

#[tokio::test]
async fn connect_while_pausing_waits_and_resumes() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.engine.hold(Op::Freeze);
    let pause = format!("/sandboxes/{id}/pause");
    let connect = format!("/v2/sandboxes/{id}/connect");
    let (paused, connected, ()) =
        tokio::join!(app.post_empty(&pause), after_freeze(&app, app.post(&connect, json!({}))), async {
            app.engine.wait_for(Op::Freeze).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            app.engine.release(Op::Freeze);
        });
    paused.expect(204);
    connected.expect(201);
    assert_eq!(app.state(&id).await, "running");
}

async fn after_freeze(app: &TestApp, request: impl Future<Output = Answer>) -> Answer {
    app.engine.wait_for(Op::Freeze).await;
    request.await
}

#[tokio::test]
async fn of_two_connects_one_resumes() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(204);
    let path = format!("/sandboxes/{id}/connect");
    let (one, two) =
        tokio::join!(app.post(&path, json!({"timeout": 60})), app.post(&path, json!({"timeout": 60})));
    let mut statuses = [one.status, two.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 201]);
}

#[tokio::test]
async fn a_destroy_wins_over_a_pause_and_twice_is_fine() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.engine.hold(Op::Freeze);
    let path = format!("/sandboxes/{id}");
    let pause = format!("/sandboxes/{id}/pause");
    let (_, first, second, ()) = tokio::join!(
        app.post_empty(&pause),
        after_freeze(&app, app.delete(&path)),
        after_freeze(&app, app.delete(&path)),
        async {
            app.engine.wait_for(Op::Freeze).await;
            // While it ends, it is no longer visible.
            app.wait_for(&id, "404").await;
            app.post(&format!("{path}/connect"), json!({"timeout": 5})).await.expect(404);
            app.engine.release(Op::Freeze);
        }
    );
    first.expect(204);
    second.expect(204);
    app.assert_empty().await;
    assert_eq!(app.row(&id).await.state, SandboxState::Terminated { reason: DestroyReason::Requested });
}

#[tokio::test]
async fn a_destroy_during_create_wins() {
    let app = TestApp::start().await;
    app.engine.hold(Op::Create);
    let body = json!({"templateID": "base"});
    let (created, destroyed) = tokio::join!(app.post("/v2/sandboxes", body), async {
        let id = app.engine.wait_for(Op::Create).await;
        let path = format!("/sandboxes/{id}");
        let destroy = app.delete(&path);
        let release = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            app.engine.release(Op::Create);
        };
        tokio::join!(destroy, release).0
    });
    destroyed.expect(204);
    created.expect(409);
    app.assert_empty().await;
}

#[tokio::test]
async fn a_destroy_cuts_short_the_wait_for_an_agent() {
    let app = TestApp::start().await;
    app.engine.set_manners(Manners::Deaf);
    let begun = std::time::Instant::now();
    let (created, destroyed) =
        tokio::join!(app.post("/v2/sandboxes", json!({"templateID": "base"})), async {
            let id = app.engine.wait_for(Op::Create).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            app.delete(&format!("/sandboxes/{id}")).await
        });
    destroyed.expect(204);
    created.expect(409);
    assert!(begun.elapsed() < Duration::from_secs(5));
    app.assert_empty().await;
}

#[tokio::test]
async fn equal_requests_with_one_key_make_one_sandbox() {
    let app = TestApp::start().await;
    let send = |body: &str| {
        let request = app.request(Method::POST, "/v2/sandboxes").header("idempotency-key", "key-1");
        app.send(request.body(Full::new(body.to_string().into())).unwrap())
    };
    let body = r#"{"templateID": "base", "timeout": 60}"#;
    app.engine.hold(Op::Create);
    let (first, second, ()) = tokio::join!(send(body), send(body), async {
        app.engine.wait_for(Op::Create).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        app.engine.release(Op::Create);
    });
    let first = first.expect(201).json();
    assert_eq!(first, second.expect(201).json());
    assert_eq!(first, send(r#"{"timeout": 60, "templateID": "base"}"#).await.expect(201).json());
    send(r#"{"templateID": "base", "timeout": 61}"#).await.expect(422);
    assert_eq!(app.engine.ids().len(), 1);

    let bad = app.request(Method::POST, "/v2/sandboxes").header("idempotency-key", "Not Lower");
    app.send(bad.body(Full::new(body.into())).unwrap()).await.expect(400);
}

#[tokio::test]
async fn a_key_is_free_again_after_a_failed_create() {
    let app = TestApp::start().await;
    let send = || {
        let request = app.request(Method::POST, "/v2/sandboxes").header("idempotency-key", "key-1");
        app.send(request.body(Full::new(r#"{"templateID": "base"}"#.into())).unwrap())
    };
    app.engine.fail(Op::Create, Some(EngineError::NoCapacity("full".into())));
    send().await.expect(503);
    app.engine.fail(Op::Create, None);
    send().await.expect(201);
}

#[tokio::test]
async fn a_pause_that_fails_leaves_the_sandbox_running() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.engine.fail(Op::Freeze, Some(EngineError::Unavailable("away".into())));
    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(503);
    assert_eq!(app.state(&id).await, "running");
    assert_eq!(app.visit(&id, "/health").await.status, 204);
    app.engine.fail(Op::Freeze, None);
    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(204);
    app.engine.fail(Op::Thaw, Some(EngineError::NoCapacity("full".into())));
    app.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.expect(503);
    assert_eq!(app.state(&id).await, "paused");
    app.engine.fail(Op::Thaw, None);
    app.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.expect(201);
}

#[tokio::test]
async fn a_guest_that_must_be_healthy_and_is_not_stays_as_it_is() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.post(&format!("/sandboxes/{id}/pause"), json!({"requireHealthyGuest": true})).await.expect(204);
    app.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.expect(201);
    app.engine.die_silently(id.parse().unwrap());
    let refused = app.post(&format!("/sandboxes/{id}/pause"), json!({"requireHealthyGuest": true})).await;
    assert_eq!(refused.expect(409).json()["error_code"], "sandbox_snapshot_guest_agent_unresponsive");
}

#[tokio::test]
async fn a_create_is_tried_three_times() {
    let app = TestApp::start().await;
    let creates = || app.engine.asked().iter().filter(|(op, _)| *op == Op::Create).count();
    // As if a warm sandbox has died by the time it is handed out.
    let died = || EngineError::WrongState("it is over".into());
    for _ in 0..2 {
        app.engine.fail_next(Op::Create, died());
    }
    app.post("/api/v1/sandboxes", json!({})).await.expect(201);
    assert_eq!(creates(), 3);
    for _ in 0..3 {
        app.engine.fail_next(Op::Create, died());
    }
    app.post("/v2/sandboxes", json!({"templateID": "base"})).await.expect(503);
    assert_eq!(creates(), 6, "and not more often");
}

//! Sandboxes that die or stop answering.

use std::time::Duration;

use coffer_core::{Fault, SandboxId, SandboxState};
use coffer_engine::{DeathCause, RunState};
use serde_json::json;

use crate::agentd::Manners;
use crate::app::TestApp;
use crate::engine::Op;

#[tokio::test]
async fn a_death_is_on_record_with_its_cause_within_a_second() {
    let app = TestApp::start().await;
    let cases = [
        (DeathCause::OutOfMemory, Fault::OutOfMemory),
        (
            DeathCause::Signal { signal: 9 },
            Fault::Died { message: "its first process was killed by signal 9".into() },
        ),
    ];
    for (cause, fault) in cases {
        let id = app.create(json!({})).await;
        let begun = std::time::Instant::now();
        app.engine.die(id.parse().unwrap(), cause);
        assert_eq!(app.ended(&id).await, SandboxState::Error { fault });
        assert!(begun.elapsed() < Duration::from_secs(1));
        app.get(&format!("/sandboxes/{id}")).await.expect(404);
        assert_eq!(app.visit(&id, "/health").await.status, 502);
        let logs = app.get(&format!("/v2/sandboxes/{id}/logs?level=error")).await.expect(200).json();
        assert_eq!(logs["logs"].as_array().unwrap().len(), 1);
    }
    app.assert_empty().await;
}

#[tokio::test]
async fn what_dies_during_its_create_is_made_anew_twice() {
    let app = TestApp::start().await;
    let dying = async |others: &[SandboxId]| {
        let id = loop {
            match app.engine.wait_for(Op::Create).await {
                id if others.contains(&id) => tokio::time::sleep(Duration::from_millis(10)).await,
                id => break id,
            }
        };
        tokio::time::sleep(Duration::from_millis(100)).await;
        id
    };
    let body = json!({"templateID": "base"});
    app.engine.set_manners(Manners::Deaf);
    let (made, first) = tokio::join!(app.post("/v2/sandboxes", body.clone()), async {
        let first = dying(&[]).await;
        app.engine.set_manners(Manners::Good);
        app.engine.die(first, DeathCause::Exit { code: 1 });
        first
    });
    let second = made.expect(201).json()["sandboxID"].as_str().unwrap().to_string();
    assert_ne!(second, first.to_string());
    assert!(matches!(app.ended(&first.to_string()).await, SandboxState::Error { .. }));
    app.delete(&format!("/sandboxes/{second}")).await.expect(204);

    app.engine.set_manners(Manners::Deaf);
    let (refused, ()) = tokio::join!(app.post("/v2/sandboxes", body), async {
        let mut known = vec![second.parse().unwrap()];
        for _ in 0..3 {
            let id = dying(&known).await;
            app.engine.die(id, DeathCause::Exit { code: 1 });
            known.push(id);
        }
    });
    assert!(refused.expect(503).header("retry-after").is_some());
    app.assert_empty().await;
}

#[tokio::test]
async fn an_agent_that_is_gone_is_found_out() {
    let mut app = TestApp::start().await;
    let id = app.create(json!({})).await;
    // After a restart the first check comes at once.
    app.restart(async |app| app.engine.die_silently(id.parse().unwrap())).await;
    let state = app.ended(&id).await;
    assert_eq!(state, SandboxState::Error { fault: Fault::Died { message: "its agentd ended".into() } });
    app.assert_empty().await;
}

#[tokio::test]
async fn an_agent_that_falls_silent_is_given_up_after_three_checks() {
    let mut app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let agentd = app.engine.agentd(id.parse().unwrap());
    app.restart(async |_| agentd.freeze(true)).await;
    let state = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let state = app.row(&id).await.state;
            if !state.is_live() {
                return state;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    assert_eq!(state.await.unwrap(), SandboxState::Error { fault: Fault::Unresponsive });
    app.assert_empty().await;
}

#[tokio::test]
async fn a_failed_resume_of_a_lost_sandbox_ends_it() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(204);
    app.engine.lose(id.parse().unwrap());
    app.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.expect(404);
    assert_eq!(app.ended(&id).await, SandboxState::Error { fault: Fault::Lost });
    app.assert_empty().await;
}

#[tokio::test]
async fn a_resume_boots_what_lost_its_memory() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(204);
    app.engine.tamper(id.parse().unwrap(), RunState::Stopped);
    app.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.expect(201);
    assert_eq!(app.visit(&id, "/health").await.status, 204);
}

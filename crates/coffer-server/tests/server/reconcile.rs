//! Start and reconnection: the engine is made to agree with the database.

use std::time::Duration;

use coffer_core::{Fault, Kept, SandboxId, SandboxState, StateName};
use coffer_engine::{DeathCause, RunState};
use coffer_store::{Changes, NewSandbox, SandboxRow};
use serde_json::json;

use crate::app::TestApp;
use crate::engine::Op;

/// A sandbox to create, like an existing one.
pub(crate) fn creating(id: SandboxId, like: SandboxRow) -> NewSandbox {
    NewSandbox {
        id,
        agent: None,
        task: None,
        template: like.template,
        template_id: like.template_id,
        alias: None,
        metadata: Default::default(),
        env_vars: Default::default(),
        secrets: Default::default(),
        limits: like.limits,
        lifetime: like.lifetime,
        timeout_s: 300,
        auto_resume: false,
        secure: true,
        access_token: None,
        traffic_token: None,
        network: Default::default(),
        allow_internet_access: None,
        envd_version: like.envd_version,
        created_ms: like.created_ms,
        bounds: Default::default(),
        origin: None,
        purpose: coffer_core::SandboxPurpose::Use,
        volumes: Vec::new(),
    }
}

fn parsed(id: &str) -> SandboxId {
    id.parse().unwrap()
}

#[tokio::test]
async fn sandboxes_outlive_the_server() {
    let mut app = TestApp::start().await;
    let running = app.create(json!({"metadata": {"k": "v"}})).await;
    let paused = app.create(json!({})).await;
    app.post_empty(&format!("/sandboxes/{paused}/pause")).await.expect(204);
    let before = app.get(&format!("/sandboxes/{running}")).await.json();
    app.restart(async |_| ()).await;
    assert_eq!(app.get(&format!("/sandboxes/{running}")).await.expect(200).json(), before);
    assert_eq!(app.visit(&running, "/health").await.status, 204);
    app.post(&format!("/v2/sandboxes/{paused}/connect"), json!({})).await.expect(201);
    assert!(!app.engine.asked().iter().any(|(op, _)| *op == Op::Destroy));
}

#[tokio::test]
async fn what_the_engine_lost_is_lost() {
    let mut app = TestApp::start().await;
    let (running, paused) = (app.create(json!({})).await, app.create(json!({})).await);
    app.post_empty(&format!("/sandboxes/{paused}/pause")).await.expect(204);
    app.restart(async |app| {
        app.engine.lose(parsed(&running));
        app.engine.lose(parsed(&paused));
    })
    .await;
    for id in [running, paused] {
        assert_eq!(app.row(&id).await.state, SandboxState::Error { fault: Fault::Lost });
    }
    app.assert_empty().await;
}

#[tokio::test]
async fn what_died_meanwhile_has_its_cause_on_record() {
    let mut app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.restart(async |app| {
        app.engine.tamper(parsed(&id), RunState::Dead { cause: DeathCause::OutOfMemory })
    })
    .await;
    assert_eq!(app.row(&id).await.state, SandboxState::Error { fault: Fault::OutOfMemory });
    app.assert_empty().await;
}

#[tokio::test]
async fn strangers_are_destroyed_at_start_and_on_reconnection() {
    let mut app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.restart(async |app| {
        app.engine.plant().await;
    })
    .await;
    assert_eq!(app.engine.ids(), [parsed(&id)]);
    app.engine.plant().await;
    app.engine.reconnect();
    for _ in 0..200 {
        if app.engine.ids() == [parsed(&id)] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(app.engine.ids(), [parsed(&id)]);
    assert_eq!(app.state(&id).await, "running");
}

#[tokio::test]
async fn orphans_are_on_record_once() {
    let mut app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    for name in [&id, "no sandbox at all", &SandboxId::generate().to_string()] {
        app.engine.tell_of_orphan(name);
    }
    for _ in 0..2 {
        app.restart(async |_| ()).await;
        assert_eq!(app.events("sandbox.orphan_removed").await, [json!({"had": ["files"]})]);
    }
}

#[tokio::test]
async fn a_destroyed_sandbox_that_comes_back_is_destroyed() {
    let mut app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.engine.fail(Op::Destroy, Some(coffer_engine::EngineError::Unavailable("away".into())));
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    assert_eq!(app.engine.ids(), [parsed(&id)], "the engine could not");
    app.get(&format!("/sandboxes/{id}")).await.expect(404);
    app.engine.fail(Op::Destroy, None);
    app.restart(async |_| ()).await;
    app.assert_empty().await;
}

#[tokio::test]
async fn a_create_cut_off_by_a_crash_is_undone_unless_its_owner_may_know_of_it() {
    let mut app = TestApp::start().await;
    let template = app.row(&app.create(json!({})).await).await;
    let planted = std::cell::Cell::new(None);
    app.restart(async |app| {
        let ids = [app.engine.plant().await, app.engine.plant().await];
        let scope = app.scope().await;
        for id in ids {
            let new = creating(id, template.clone());
            app.store.insert_sandbox(&scope, new, None).await.unwrap();
        }
        // The second was initialised, and its owner may know that it is ready.
        app.engine.agentd(ids[1]).tell(&ids[1].to_string());
        planted.set(Some(ids));
    })
    .await;
    let [undone, kept] = planted.get().unwrap();
    let state = app.row(&undone.to_string()).await.state;
    assert!(matches!(state, SandboxState::Error { fault: Fault::CreateFailed { .. } }), "{state:?}");
    assert!(!app.engine.ids().contains(&undone));
    assert_eq!(app.row(&kept.to_string()).await.state, SandboxState::Running);
    app.get(&format!("/sandboxes/{kept}")).await.expect(200);
    app.delete(&format!("/sandboxes/{kept}")).await.expect(204);
    assert!(!app.engine.ids().contains(&kept));
}

#[tokio::test]
async fn runs_and_pauses_that_differ_are_repaired() {
    let mut app = TestApp::start().await;
    let ids = [app.create(json!({})).await, app.create(json!({})).await, app.create(json!({})).await];
    let [thawed, stopped, frozen] = &ids;
    app.post_empty(&format!("/sandboxes/{frozen}/pause")).await.expect(204);
    app.restart(async |app| {
        app.engine.tamper(parsed(thawed), RunState::Frozen);
        app.engine.tamper(parsed(stopped), RunState::Stopped);
        app.engine.tamper(parsed(frozen), RunState::Running);
    })
    .await;
    assert_eq!(app.engine.run(parsed(thawed)), Some(RunState::Running));
    assert_eq!(app.state(thawed).await, "running");
    assert_eq!(app.row(stopped).await.state, SandboxState::Paused { kept: Kept::FilesOnly });
    assert_eq!(app.engine.run(parsed(frozen)), Some(RunState::Frozen));
    assert_eq!(app.state(frozen).await, "paused");
    app.post(&format!("/v2/sandboxes/{stopped}/connect"), json!({})).await.expect(201);
    assert_eq!(app.visit(stopped, "/health").await.status, 204);
}

#[tokio::test]
async fn a_row_that_somebody_else_ended_is_not_fought_over() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let ended = SandboxState::Terminated { reason: coffer_core::DestroyReason::Requested };
    let operator = app.store.operator();
    let changes = Changes::default();
    app.store
        .transition(&operator, parsed(&id), StateName::Running, ended, "by hand", changes)
        .await
        .unwrap();
    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(409);
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    app.assert_empty().await;
}

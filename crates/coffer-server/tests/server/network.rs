//! Network policies: what the engine gets, and what the API reports.

use std::time::Duration;

use coffer_core::network::{Base, Policy};
use coffer_engine::EngineError;
use serde_json::{Value, json};

use crate::app::TestApp;
use crate::engine::Op;

fn policy(value: Value) -> Policy {
    serde_json::from_value(value).unwrap()
}

async fn reach(app: &TestApp, id: &str) -> Value {
    app.get(&format!("/api/v1/sandboxes/{id}/network")).await.expect(200).json()
}

#[tokio::test]
async fn the_engine_is_told_what_e2b_s_settings_mean() {
    let app = TestApp::start().await;
    for (settings, expected) in [
        (json!({}), json!({"base": "public"})),
        (json!({"allow_internet_access": false}), json!({"base": "public", "deny": ["0.0.0.0/0", "::/0"]})),
        (
            json!({"network": {"allowOut": ["*.example.com", "1.1.1.1"], "denyOut": ["0.0.0.0/0"]}}),
            json!({"base": "public", "allow": ["*.example.com", "1.1.1.1"], "deny": ["0.0.0.0/0", "::/0"]}),
        ),
        (
            json!({"network": {"policy": {"base": "web", "allow": ["example.com:22"]}}}),
            json!({"base": "web", "allow": ["example.com:22"]}),
        ),
    ] {
        let id = app.create(settings.clone()).await;
        assert_eq!(app.engine.policy(id.parse().unwrap()), policy(expected.clone()), "{settings}");
        let project = app.scope().await.project();
        assert_eq!(app.engine.project(id.parse().unwrap()), Some(project), "its share is the project's");
        assert_eq!(policy(reach(&app, &id).await["policy"].clone()), policy(expected), "{settings}");
    }
}

#[tokio::test]
async fn a_change_is_in_force_and_on_record_or_neither() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let path = format!("/sandboxes/{id}/network");
    app.put(&path, json!({"allow_internet_access": false})).await.expect(204);
    let closed = policy(json!({"base": "public", "deny": ["0.0.0.0/0", "::/0"]}));
    assert_eq!(app.engine.policy(id.parse().unwrap()), closed);

    app.engine.fail(Op::SetNetwork, Some(EngineError::Unavailable("away".into())));
    let refused = app.put(&path, json!({"policy": {"base": "web"}})).await.expect(503);
    assert!(refused.header("retry-after").is_some());
    assert_eq!(policy(reach(&app, &id).await["policy"].clone()), closed);
    app.engine.fail(Op::SetNetwork, None);

    for bad in [
        json!({"policy": {"base": "web"}, "allow_internet_access": false}),
        json!({"policy": {"base": "web", "allow": ["a b"]}}),
        json!({"allowOut": ["example.com"]}),
    ] {
        app.put(&path, bad).await.expect(400);
    }
    assert_eq!(app.engine.policy(id.parse().unwrap()), closed);
    app.put(&path, json!({"policy": {"base": "web"}})).await.expect(204);
    assert_eq!(app.engine.policy(id.parse().unwrap()), Policy::of(Base::Web));
}

/// A refusal of a name in the operator's network does not reveal its address.
#[tokio::test]
async fn a_refusal_does_not_tell_an_address_of_the_operators_network() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let sandbox = id.parse().unwrap();
    app.engine.refuse_named(sandbox, Some("db.corp.example"), "10.1.2.3", "never:private");
    app.engine.refuse_named(sandbox, Some("shop.example"), "9.9.9.9", "deny:9.9.9.9/32");
    app.engine.refuse(sandbox, "10.9.9.9", "never:private");
    let told = reach(&app, &id).await;
    let addresses: Vec<_> = (0..3).map(|at| told["refusals"][at]["address"].clone()).collect();
    assert_eq!(addresses, [json!(null), json!("9.9.9.9"), json!("10.9.9.9")], "its own words it knows");
    assert!(!told.to_string().contains("10.1.2.3"), "{told}");
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    let recorded = app.events("sandbox.network_refused").await;
    assert!(!recorded.is_empty() && !json!(recorded).to_string().contains("10.1.2.3"), "{recorded:?}");
}

#[tokio::test]
async fn refusals_are_served_and_on_record_once() {
    let app = TestApp::start().await;
    let id = app.create(json!({"allow_internet_access": false})).await;
    let sandbox = id.parse().unwrap();
    app.engine.refuse(sandbox, "1.1.1.1", "deny:0.0.0.0/0");
    app.engine.refuse(sandbox, "10.0.0.1", "never:private");
    let told = reach(&app, &id).await;
    assert_eq!((&told["total"], &told["refusals"][1]["rule"]), (&json!(2), &json!("never:private")));
    let later = app.get(&format!("/api/v1/sandboxes/{id}/network?after=1")).await.expect(200).json();
    assert_eq!(later["refusals"].as_array().unwrap().len(), 1);

    let recorded_so_far = || async { app.events("sandbox.network_refused").await };
    for _ in 0..200 {
        if !recorded_so_far().await.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let recorded = recorded_so_far().await;
    assert_eq!(recorded.len(), 1, "{recorded:?}");
    assert_eq!((&recorded[0]["refused"], &recorded[0]["sequence"]), (&json!(2), &json!(2)));
    assert_eq!(reach(&app, &id).await["traffic"]["sent_bytes"], json!(7));

    // A new egress counts from one again; a caller with an older number gets what it has.
    app.engine.forget_refusals();
    app.engine.refuse(sandbox, "9.9.9.9", "deny:0.0.0.0/0");
    let after = app.get(&format!("/api/v1/sandboxes/{id}/network?after=2")).await.expect(200).json();
    assert_eq!(after["refusals"][0]["address"], json!("9.9.9.9"));

    // Unsampled refusals are recorded when the sandbox is gone.
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    let recorded = recorded_so_far().await;
    assert_eq!(recorded.last().unwrap()["refusals"][0]["address"], json!("9.9.9.9"), "{recorded:?}");
}

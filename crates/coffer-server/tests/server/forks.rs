//! Forks: failures of single forks, quotas, secrets, and lineages.

use coffer_core::SandboxId;
use coffer_engine::EngineError;
use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;
use crate::engine::{LACKS, Op};
use crate::limits::eventually;
use crate::reconcile::creating;
use crate::snapshots::{snapshot, with_memory};

fn parsed(id: &Value) -> SandboxId {
    id.as_str().unwrap().parse().unwrap()
}

fn ids(forked: &Value) -> Vec<String> {
    let all = forked.as_array().unwrap().iter();
    all.filter_map(|one| Some(one["sandbox"]["sandboxID"].as_str()?.to_string())).collect()
}

/// Waits until the store has recorded that they run: the answer does not.
async fn settled(app: &TestApp, ids: &[String]) {
    for id in ids {
        app.wait_for(id, "running").await;
    }
    app.get("/v2/sandboxes").await.expect(200);
}

#[tokio::test]
async fn a_fork_makes_children_with_tokens_of_their_own() {
    let app = TestApp::start().await;
    let source = app.create(json!({"envVars": {"A": "1"}, "metadata": {"user": "x"}, "timeout": 100})).await;
    let before = app.row(&source).await;
    let forked = app.post(&format!("/sandboxes/{source}/fork"), json!({"count": 3, "timeout": 60})).await;
    let forked = forked.expect(201).json();
    let children = ids(&forked);
    assert_eq!(children.len(), 3);
    assert!(forked.as_array().unwrap().iter().all(|one| one.get("error").is_none()));
    settled(&app, &children).await;
    let mut tokens = vec![before.access_token.clone().unwrap().reveal().to_string()];
    let mut snapshots = Vec::new();
    for (position, id) in (1..).zip(&children) {
        let row = app.row(id).await;
        let origin = row.origin.unwrap();
        assert_eq!((origin.parent, origin.fork_position), (before.id, Some(position)));
        assert_eq!(
            (row.metadata.clone(), row.env_vars.clone()),
            (before.metadata.clone(), before.env_vars.clone())
        );
        assert_eq!((row.template_id, row.timeout_s), (before.template_id.clone(), 60));
        let order = app.engine.order(row.id);
        assert_eq!((order.snapshot, order.memory), (Some(origin.snapshot), false));
        let init = app.engine.agentd(row.id).inits()[0].clone();
        assert_eq!(init.env_vars["E2B_SANDBOX_ID"], *id);
        tokens.push(init.access_token.unwrap());
        snapshots.push(origin.snapshot);
        assert_eq!(app.visit(id, "/health").await.status, 204);
    }
    tokens.sort();
    tokens.dedup();
    snapshots.dedup();
    assert_eq!((tokens.len(), snapshots.len()), (4, 1), "each its own token, all one snapshot");
    assert_eq!(app.row(&source).await, before, "the source keeps everything");
    assert_eq!(app.engine.snapshot_ids(), [], "nobody keeps the snapshot");
    let told = app.events("sandbox.forked").await;
    assert_eq!(
        (&told[0]["children"], &told[0]["memory"], &told[0]["note"]),
        (&json!(children), &json!(false), &json!(LACKS))
    );
    let metrics = app.store.create_operator_key(&app.store.operator(), "m").await.unwrap();
    let metrics = app.as_key(metrics.reveal(), Method::GET, "/metrics", Value::Null).await.expect(200).text();
    assert!(metrics.contains(r#"sandbox_fork_total{outcome="made"} 3"#), "{metrics}");
    assert!(metrics.contains(r#"sandbox_snapshot_total{outcome="files_only"} 1"#));
}

#[tokio::test]
async fn without_a_body_there_is_one_child_that_lives_15_seconds() {
    let app = TestApp::start().await;
    let source = app.create(json!({})).await;
    let forked = app.post_empty(&format!("/sandboxes/{source}/fork")).await.expect(201).json();
    let [child] = ids(&forked).try_into().unwrap();
    assert_eq!(app.row(&child).await.timeout_s, 15);
}

#[tokio::test]
async fn one_child_that_fails_leaves_the_others_alone() {
    let app = TestApp::start().await;
    let source = app.create(json!({})).await;
    app.engine.fail_next(Op::Create, EngineError::NoCapacity("full".into()));
    let forked = app.post(&format!("/sandboxes/{source}/fork"), json!({"count": 3})).await.expect(201).json();
    let failed: Vec<_> = forked.as_array().unwrap().iter().filter(|one| one.get("error").is_some()).collect();
    assert_eq!((ids(&forked).len(), failed.len()), (2, 1));
    assert_eq!(failed[0]["error"]["code"], 503);
    assert!(failed[0]["error"]["message"].is_string() && failed[0].get("sandbox").is_none());
    assert_eq!(app.engine.ids().len(), 3);
    assert_eq!(app.engine.snapshot_ids(), []);
}

#[tokio::test]
async fn what_cannot_be_forked_is_refused_and_leaves_nothing() {
    let app = TestApp::start().await;
    let source = app.create(json!({})).await;
    let path = format!("/sandboxes/{source}/fork");
    for body in [json!({"count": 0}), json!({"count": -1}), json!({"count": 101}), json!({"timeout": 0})] {
        app.post(&path, body.clone()).await.expect(400);
    }
    for body in [json!({"count": 0}), json!({"timeout_s": 0}), json!({"colour": 1})] {
        app.post(&format!("/api/v1{path}"), body).await.expect(422);
    }
    let over = app.post(&path, json!({"count": 6})).await.expect(429).json();
    assert!(over["message"].as_str().unwrap().contains("`forks` is 5"), "{over}");
    let own = app.post(&format!("/api/v1{path}"), json!({"count": 6})).await.expect(429).json();
    assert_eq!(own["details"], json!({"quota": "forks", "limit": 5, "used": 0, "asked": 6}));
    let memory = app.post(&format!("/api/v1{path}"), json!({"memory": true})).await.expect(501).json();
    assert!(memory["message"].as_str().unwrap().contains(LACKS), "{memory}");
    app.engine.fail_next(Op::Snapshot, EngineError::NoCapacity("12 bytes are missing".into()));
    app.post(&path, json!({})).await.expect(503);
    app.post(&format!("/sandboxes/{source}/pause"), json!({})).await.expect(204);
    let paused = app.post(&path, json!({})).await.expect(409).json();
    assert_eq!(paused["message"], "a sandbox that is paused cannot be forked; resume it first");
    app.delete(&format!("/sandboxes/{source}")).await.expect(204);
    app.post(&path, json!({})).await.expect(404);
    assert_eq!(app.engine.snapshot_ids(), []);
    app.assert_empty().await;
}

#[tokio::test]
async fn forks_of_a_project_are_counted_while_they_live() {
    let app = TestApp::start().await;
    let source = app.create(json!({})).await;
    let path = format!("/api/v1/sandboxes/{source}/fork");
    let first = app.post(&path, json!({"count": 4})).await.expect(201).json();
    app.post(&path, json!({"count": 2})).await.expect(429);
    let child = first["children"][0]["sandbox"]["id"].as_str().unwrap();
    // Of any sandbox: forking a fork does not allow more.
    let of_child = format!("/api/v1/sandboxes/{child}/fork");
    app.post(&of_child, json!({"count": 2})).await.expect(429);
    app.post(&of_child, json!({"count": 1})).await.expect(201);
    app.delete(&format!("/api/v1/sandboxes/{child}")).await.expect(204);
    app.post(&path, json!({"count": 1})).await.expect(201);
    // Another project has its own quota.
    let body = json!({"templateID": "base", "timeout": 300});
    let made = app.as_key(&app.other_key, Method::POST, "/v2/sandboxes", body).await.expect(201).json();
    let path = format!("/api/v1/sandboxes/{}/fork", made["sandboxID"].as_str().unwrap());
    app.as_key(&app.other_key, Method::POST, &path, json!({"count": 5})).await.expect(201);
}

#[tokio::test]
async fn a_lineage_is_shown_as_a_tree() {
    let app = TestApp::start().await;
    let root = app.create(json!({})).await;
    let fork = async |of: &str, count: u32| {
        let forked = app.post(&format!("/sandboxes/{of}/fork"), json!({"count": count, "timeout": 60})).await;
        let children = ids(&forked.expect(201).json());
        settled(&app, &children).await;
        children
    };
    let [left, right] = fork(&root, 2).await.try_into().unwrap();
    let [leaf] = fork(&left, 1).await.try_into().unwrap();
    let snapshot = app.post_empty(&format!("/sandboxes/{leaf}/snapshots")).await.expect(201).json();
    let made = app.create(json!({"templateID": snapshot["snapshotID"]})).await;
    app.delete(&format!("/sandboxes/{left}")).await.expect(204);
    let family = app.get(&format!("/api/v1/sandboxes/{leaf}/lineage")).await.expect(200).json();
    assert_eq!((&family["root_id"], &family["ancestors"]), (&json!(root), &json!([root, left])));
    let shape: Vec<_> = family["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| json!([node["id"], node["parent_id"], node["depth"], node["origin"], node["state"]]))
        .collect();
    assert_eq!(
        shape,
        [
            json!([root, null, 0, "created", "running"]),
            json!([left, root, 1, "fork", "terminated"]),
            json!([leaf, left, 2, "fork", "running"]),
            json!([made, leaf, 3, "snapshot", "running"]),
            json!([right, root, 1, "fork", "running"]),
        ]
    );
    assert_eq!((&family["nodes"][4]["fork_position"], &family["truncated"]), (&json!(2), &json!(false)));
}

#[tokio::test]
async fn the_same_key_makes_the_same_children() {
    let app = with_memory().await;
    let source = app.create(json!({})).await;
    let send = |body: &'static str| {
        let path = format!("/api/v1/sandboxes/{source}/fork");
        app.send(
            app.request(Method::POST, &path).header("idempotency-key", "once").body(body.into()).unwrap(),
        )
    };
    let of = |answer: Value| {
        answer["children"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["sandbox"]["id"].clone())
            .collect::<Vec<_>>()
    };
    let first = send(r#"{"count": 2}"#).await.expect(201).json();
    // Another request in between is not taken for it.
    let path = format!("/api/v1/sandboxes/{source}/fork");
    let other = app.post(&path, json!({"memory": false})).await.expect(201).json();
    assert_eq!((&first["memory"], &other["memory"]), (&json!(true), &json!(false)));
    let again = send(r#"{"count": 2}"#).await.expect(201).json();
    assert_eq!((&first["memory"], &first["note"]), (&again["memory"], &again["note"]));
    let (first, again) = (of(first), of(again));
    assert_eq!((first.clone(), app.engine.ids().len()), (again, 4));
    assert_eq!(app.engine.asked().iter().filter(|(op, _)| *op == Op::Snapshot).count(), 2);
    assert_eq!(send(r#"{"count": 1}"#).await.expect(422).json()["code"], "idempotency_key_reused");
}

#[tokio::test]
async fn children_have_the_secrets_that_were_granted_and_no_others() {
    let app = with_memory().await;
    for name in ["github", "other"] {
        app.put(&format!("/api/v1/secrets/{name}"), json!({"value": format!("value-of-{name}")}))
            .await
            .expect(201);
    }
    let new = json!({
        "secrets": {"TOKEN": "github"},
        "network": {"base": "web", "headers": [
            {"hosts": ["a.example.com"], "headers": {"authorization": "${secret:github}"}},
            {"hosts": ["b.example.com"], "headers": {"x-team": "blue"}},
        ]},
    });
    let source =
        app.post("/api/v1/sandboxes", new).await.expect(201).json()["id"].as_str().unwrap().to_string();
    let path = format!("/api/v1/sandboxes/{source}/fork");
    let child = async |body: Value| {
        let forked = app.post(&path, body).await.expect(201).json();
        let id = parsed(&forked["children"][0]["sandbox"]["id"]);
        (
            forked,
            app.engine.agentd(id).inits()[0].env_vars.clone(),
            app.engine.order(id).network.headers().len(),
        )
    };
    let (forked, env, rules) = child(json!({})).await;
    assert_eq!((env.get("TOKEN"), rules), (None, 1), "neither in its environment nor in its headers");
    assert_eq!(forked["memory"], false, "the memory of the source's processes holds it");
    assert!(forked["note"].as_str().unwrap().contains("github"));
    let refused = app.post(&path, json!({"memory": true})).await.expect(409).json();
    assert!(refused["hint"].as_str().unwrap().contains("inherit_secrets"));
    let (_, env, _) = child(json!({"secrets": {"MINE": "other"}, "env": {"A": "b"}})).await;
    assert_eq!((env.get("TOKEN"), env["MINE"].as_str(), env["A"].as_str()), (None, "value-of-other", "b"));
    let (forked, env, rules) = child(json!({"inherit_secrets": true, "memory": true})).await;
    assert_eq!((env["TOKEN"].as_str(), rules, &forked["memory"]), ("value-of-github", 2, &json!(true)));
    let unknown = app.post(&path, json!({"secrets": {"X": "unknown"}})).await.expect(422).json();
    assert_eq!(unknown["message"], "secret 'unknown' not found", "nothing was made");
}

#[tokio::test]
async fn with_memory_children_go_on_with_the_processes() {
    let app = with_memory().await;
    let source = app.create(json!({})).await;
    let forked = app.post(&format!("/sandboxes/{source}/fork"), json!({"count": 2})).await.expect(201).json();
    for id in ids(&forked) {
        assert!(app.engine.order(id.parse().unwrap()).memory);
    }
    let told = app.events("sandbox.forked").await;
    assert_eq!((&told[0]["memory"], &told[0]["note"]), (&json!(true), &Value::Null));
}

/// A server that dies in the middle: the next one finds forks in creation and an unrecorded snapshot.
#[tokio::test]
async fn a_fork_that_was_cut_off_leaves_nothing_half_made() {
    let mut app = TestApp::start().await;
    let source = app.create(json!({})).await;
    let of: SandboxId = source.parse().unwrap();
    app.restart(async |app| {
        let snapshot = coffer_core::SnapshotId::generate();
        app.engine.plant_snapshot(of, snapshot);
        let child = app.engine.plant().await;
        let mut new = creating(child, app.row(&source).await);
        new.origin = Some(coffer_store::Origin { parent: of, snapshot, fork_position: Some(1) });
        app.store.insert_sandbox(&app.scope().await, new, None).await.unwrap();
    })
    .await;
    assert_eq!(app.engine.ids(), [of], "the child that nobody was told of is gone");
    assert_eq!(app.engine.snapshot_ids(), []);
}

/// The repositories of a sandbox's gate, as the engine got them; none with a push window.
fn gate(app: &TestApp, id: &str) -> Vec<String> {
    let policy = app.engine.policy(id.parse().unwrap());
    assert!(policy.git().iter().all(|route| route.push.is_none() && route.authorization.is_some()));
    policy.git().iter().map(|route| route.slug.to_string()).collect()
}

#[tokio::test]
async fn what_begins_with_a_sandbox_reaches_its_repositories() {
    let app = TestApp::start().await;
    let source = app.create(json!({})).await;
    for name in ["app", "later"] {
        app.post("/api/v1/repositories", json!({"name": name})).await.expect(201);
    }
    let clone = format!("/api/v1/sandboxes/{source}/clone");
    app.post(&clone, json!({"repository": "app"})).await.expect(200);
    assert_eq!(gate(&app, &source), ["app"]);
    let kept = snapshot(&app, &source, json!({})).await["id"].as_str().unwrap().to_string();
    app.post(&clone, json!({"repository": "later"})).await.expect(200);

    let forked =
        app.post(&format!("/sandboxes/{source}/fork"), json!({"timeout": 60})).await.expect(201).json();
    let [child] = ids(&forked).try_into().unwrap();
    let told: Vec<_> = app.engine.order(parsed(&json!(child))).network.git().to_vec();
    assert_eq!(told.len(), 2, "a child reaches them from its first moment");
    assert_eq!(gate(&app, &child), ["app", "later"]);

    // No server has its routes in memory: they come from the record.
    let copy = app.create(json!({"templateID": kept})).await;
    eventually("a copy reaches what there was", async || gate(&app, &copy) == ["app"]).await;
    let back = format!("/api/v1/sandboxes/{source}/rollback");
    app.post(&back, json!({"snapshot_id": kept})).await.expect(200);
    eventually("what was cloned since is not reached", async || gate(&app, &source) == ["app"]).await;
    assert_eq!(gate(&app, &child), ["app", "later"], "a child keeps its own");
}

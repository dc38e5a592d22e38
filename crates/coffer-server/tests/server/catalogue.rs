//! The catalogue: listed, refused until it is built, used by every project, changed by none.

use coffer_core::{BuildPlan, BuildSource, SnapshotId};
use coffer_store::{NewBuild, TemplateSize};
use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;
use crate::snapshots::snapshot;

async fn operator_key(app: &TestApp) -> String {
    app.store.create_operator_key(&app.store.operator(), "test").await.unwrap().reveal().to_string()
}

fn named<'a>(items: &'a Value, key: &str, name: &str) -> &'a Value {
    items.as_array().unwrap().iter().find(|item| item[key] == name).unwrap()
}

/// Makes a ready build of a template of the catalogue, as an older program would have left it.
async fn built_before(app: &TestApp, name: &str) -> SnapshotId {
    let operator = app.store.operator();
    let project = app.store.ensure_catalogue_project(&operator).await.unwrap();
    let scope = operator.acting_for(project, None);
    let key = app.store.create_key(&operator, project, "test").await.unwrap().reveal().to_string();
    let post = async |path: &str, body| app.as_key(&key, Method::POST, path, body).await.expect(201).json();
    let sandbox = post("/v2/sandboxes", json!({"templateID": "base"})).await;
    let sandbox = sandbox["sandboxID"].as_str().unwrap().to_string();
    let snapshot = post(&format!("/sandboxes/{sandbox}/snapshots"), json!({})).await;
    let snapshot: SnapshotId =
        snapshot["snapshotID"].as_str().unwrap().split(':').next().unwrap().parse().unwrap();
    app.as_key(&key, Method::DELETE, &format!("/sandboxes/{sandbox}"), Value::Null).await.expect(204);
    let new = NewBuild {
        summary: None,
        name: Some(name.to_string()),
        tags: Vec::new(),
        size: TemplateSize::default(),
        created_by: Some("catalogue of another definition".into()),
    };
    let build = app.store.request_build(&scope, new).await.unwrap();
    let source = BuildSource::Template("debian-12".into());
    let plan = BuildPlan { source, steps: Vec::new(), start: None, force: false, platform: None };
    app.store.start_build(&scope, build.template, build.id, plan, None).await.unwrap().unwrap();
    app.store.finish_build(&operator, build.id, snapshot, None).await.unwrap().unwrap();
    snapshot
}

#[tokio::test]
async fn what_is_not_built_is_listed_and_refused_with_the_command_that_builds_it() {
    let app = TestApp::start().await;
    let listed = app.get("/api/v1/templates").await.expect(200).json();
    let node = named(&listed["items"], "name", "node");
    assert_eq!((&node["kind"], &node["state"]), (&json!("catalogue"), &json!("not_built")));
    let e2b = app.get("/templates").await.expect(200).json();
    assert_eq!(named(&e2b, "templateID", "node")["buildStatus"], "waiting");
    let refused = app.post("/api/v1/sandboxes", json!({"template": "node"})).await.expect(404).json();
    assert_eq!(refused["code"], "template_not_built");
    assert!(refused["hint"].as_str().unwrap().contains("coffer template build node"), "{refused}");
    let refused = app.post("/v2/sandboxes", json!({"templateID": "node"})).await.expect(404).json();
    assert_eq!(refused["message"], "template 'node' of the catalogue is not built yet");
    app.get("/templates/aliases/node").await.expect(404);
    // Others mean nothing by that name.
    app.post("/v2/sandboxes", json!({"templateID": "node:v1"})).await.expect(404);
}

#[tokio::test]
async fn only_operators_build_it_and_not_on_what_stands_in_for_its_base() {
    let app = TestApp::start().await;
    let path = "/api/v1/admin/catalogue/node/build";
    app.post(path, json!({})).await.expect(403);
    let operator = operator_key(&app).await;
    let refused = app.as_key(&operator, Method::POST, path, json!({})).await.expect(409).json();
    assert!(refused["hint"].as_str().unwrap().contains("coffer template build debian-12"), "{refused}");
    let unknown = "/api/v1/admin/catalogue/nonsense";
    app.as_key(&operator, Method::GET, unknown, Value::Null).await.expect(404);
    let all =
        app.as_key(&operator, Method::GET, "/api/v1/admin/catalogue", Value::Null).await.expect(200).json();
    let python = named(&all["items"], "name", "python");
    assert_eq!((&python["from"], &python["build"]), (&json!("debian-12"), &Value::Null));
    app.as_key(&operator, Method::POST, path, json!({"forec": true})).await.expect(422);
}

#[tokio::test]
async fn every_project_uses_it_and_none_changes_it() {
    let app = TestApp::start().await;
    let snapshot = built_before(&app, "node").await;
    let before = app.get("/api/v1/quotas").await.expect(200).json();
    for key in [&app.key, &app.other_key] {
        let made = app.as_key(key, Method::POST, "/v2/sandboxes", json!({"templateID": "node"})).await;
        let made = made.expect(201).json();
        assert_eq!((&made["templateID"], &made["alias"]), (&json!("node"), &json!("node")));
        let id = made["sandboxID"].as_str().unwrap();
        assert_eq!(app.row(id).await.origin.unwrap().snapshot, snapshot);
        app.as_key(key, Method::DELETE, &format!("/sandboxes/{id}"), Value::Null).await.expect(204);
        app.as_key(key, Method::DELETE, "/templates/node", Value::Null).await.expect(403);
        let build = json!({"name": "node", "cpuCount": 1});
        app.as_key(key, Method::POST, "/v3/templates", build).await.expect(409);
        // Neither the snapshot nor the owner is there for it.
        app.as_key(key, Method::POST, "/v2/sandboxes", json!({"templateID": snapshot.to_string()}))
            .await
            .expect(404);
        let alias =
            app.as_key(key, Method::GET, "/templates/aliases/node", Value::Null).await.expect(200).json();
        assert_eq!(alias, json!({"templateID": "node", "public": true}));
    }
    let after = app.get("/api/v1/quotas").await.expect(200).json();
    assert_eq!(before["used"], after["used"]);
    let operator = operator_key(&app).await;
    let projects =
        app.as_key(&operator, Method::GET, "/api/v1/projects", Value::Null).await.expect(200).json();
    assert_eq!(projects["items"].as_array().unwrap().len(), 2);
    let hidden = app.store.ensure_catalogue_project(&app.store.operator()).await.unwrap();
    let keys = format!("/api/v1/projects/{hidden}/keys");
    app.as_key(&operator, Method::POST, &keys, json!({"name": "mine"})).await.expect(404);
}

#[tokio::test]
async fn a_build_of_another_definition_serves_until_there_is_a_new_one() {
    let mut app = TestApp::start().await;
    built_before(&app, "node").await;
    app.restart(async |_| {}).await;
    let operator = operator_key(&app).await;
    let path = "/api/v1/admin/catalogue/node";
    let shown = app.as_key(&operator, Method::GET, path, Value::Null).await.expect(200).json();
    assert_eq!((&shown["state"], &shown["is_current"]), (&json!("ready"), &json!(false)));
    app.post("/v2/sandboxes", json!({"templateID": "node"})).await.expect(201);
}

#[tokio::test]
async fn what_a_project_had_by_that_name_stays_its_own() {
    let app = TestApp::start().await;
    let sandbox = app.create(json!({})).await;
    let scope = app.scope().await;
    // As before there was a catalogue: today the name is refused.
    app.post(&format!("/sandboxes/{sandbox}/snapshots"), json!({"name": "python"})).await.expect(400);
    let own = snapshot(&app, &sandbox, json!({})).await["id"].as_str().unwrap().to_string();
    let own: SnapshotId = own.parse().unwrap();
    let new = NewBuild {
        summary: None,
        name: Some("python".into()),
        tags: Vec::new(),
        size: TemplateSize::default(),
        created_by: None,
    };
    let build = app.store.request_build(&scope, new).await.unwrap();
    let source = BuildSource::Template("base".into());
    let plan = BuildPlan { source, steps: Vec::new(), start: None, force: false, platform: None };
    app.store.start_build(&scope, build.template, build.id, plan, None).await.unwrap().unwrap();
    app.store.finish_build(&app.store.operator(), build.id, own, None).await.unwrap().unwrap();
    built_before(&app, "python").await;
    let made = app.post("/v2/sandboxes", json!({"templateID": "python"})).await.expect(201).json();
    assert_eq!(app.row(made["sandboxID"].as_str().unwrap()).await.origin.unwrap().snapshot, own);
    app.post("/v3/templates", json!({"name": "python"})).await.expect(202);
    app.delete("/templates/python").await.expect(204);
    let made = app.post("/v2/sandboxes", json!({"templateID": "python"})).await.expect(201).json();
    assert_eq!(made["templateID"], "python", "now the catalogue's");
}

//! One search over a project.

use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;
use crate::log_search::writer;

async fn found(app: &TestApp, query: &str) -> Vec<(String, String)> {
    let answer = app.get(&format!("/api/v1/search?{query}")).await.expect(200).json();
    let text = |hit: &Value, name: &str| hit[name].as_str().unwrap().to_string();
    answer["items"].as_array().unwrap().iter().map(|hit| (text(hit, "kind"), text(hit, "title"))).collect()
}

fn pair(kind: &str, title: &str) -> (String, String) {
    (kind.to_string(), title.to_string())
}

#[tokio::test]
async fn one_search_finds_tasks_repositories_agents_and_sandboxes() {
    let app = TestApp::start().await;
    for title in ["Paint the panel", "Panel of experts", "Move to Node 22"] {
        app.post("/api/v1/tasks", json!({ "title": title })).await.expect(201);
    }
    app.post("/api/v1/repositories", json!({ "name": "panel-app" })).await.expect(201);
    app.post("/api/v1/agents", json!({ "name": "panellist" })).await.expect(201);
    app.create(json!({ "metadata": { "name": "a panel preview" } })).await;
    assert_eq!(
        found(&app, "q=panel").await,
        [
            // What begins with the word is before what has it.
            pair("task", "Panel of experts"),
            pair("task", "Paint the panel"),
            pair("repository", "panel-app"),
            pair("sandbox", "a panel preview"),
            pair("agent", "panellist"),
        ]
    );
    assert_eq!(found(&app, "q=panel&kinds=agent,repository&limit=1").await.len(), 2);
    assert_eq!(found(&app, "q=vat").await, []);
    assert_eq!(found(&app, "q=panel&kinds=task&limit=1").await.len(), 1);
}

#[tokio::test]
async fn a_search_is_bounded_and_refuses_what_it_does_not_know() {
    let app = TestApp::start().await;
    let long = "x".repeat(201);
    for wrong in
        [format!("q={long}"), "limit=0".into(), "limit=51".into(), "kinds=king".into(), "page=2".into()]
    {
        let refused = app.get(&format!("/api/v1/search?{wrong}")).await;
        assert!([400, 422].contains(&refused.status), "{wrong}: {}", refused.text());
    }
}

#[tokio::test]
async fn a_search_finds_lines_of_logs_and_nothing_of_others() {
    let app = TestApp::start().await;
    let id = writer(&app, &["all is well", "error: the door is shut"]).await;
    let answer = app.get("/api/v1/search?q=door+is").await.expect(200).json();
    let hit = &answer["items"][0];
    assert_eq!(
        (&hit["kind"], &hit["id"], &hit["title"]),
        (&json!("log"), &json!(id), &json!("error: the door is shut"))
    );
    assert_eq!(found(&app, "q=do").await, [], "two letters are in every log");
    app.post("/api/v1/tasks", json!({ "title": "Mend the door" })).await.expect(201);
    let other =
        app.as_key(&app.other_key, Method::GET, "/api/v1/search?q=door", Value::Null).await.expect(200);
    assert_eq!(other.json()["items"], json!([]));
    let agent = app.post("/api/v1/agents", json!({ "name": "a" })).await.expect(201).json();
    let key = json!({ "name": "a", "role": "write", "agent_id": agent["id"] });
    let key = app.post("/api/v1/keys", key).await.expect(201).json()["key"].as_str().unwrap().to_string();
    app.as_key(&key, Method::GET, "/api/v1/search?q=door", Value::Null).await.expect(403);
}

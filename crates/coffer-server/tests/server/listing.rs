//! Lists: order, pages, filters, and whose sandboxes they show.

use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;

async fn ids(app: &TestApp, query: &str) -> Vec<String> {
    let listed = app.get(&format!("/v2/sandboxes?{query}")).await.expect(200).json();
    let ids = listed.as_array().unwrap().iter().map(|entry| entry["sandboxID"].as_str().unwrap().to_string());
    ids.collect()
}

#[tokio::test]
async fn newest_come_first_in_pages() {
    let app = TestApp::start().await;
    let mut made = Vec::new();
    for number in 0..3 {
        made.insert(0, app.create(json!({"metadata": {"number": number.to_string()}})).await);
        // Starts differ by the millisecond; ids break a tie the same way.
    }
    app.post_empty(&format!("/sandboxes/{}/pause", made[1])).await.expect(204);
    assert_eq!(ids(&app, "").await, made);
    assert_eq!(ids(&app, "order=asc").await, made.iter().rev().cloned().collect::<Vec<_>>());

    let mut query = "limit=1".to_string();
    let mut seen: Vec<Value> = Vec::new();
    loop {
        let page = app.get(&format!("/v2/sandboxes?{query}")).await.expect(200);
        assert_eq!(page.header("x-total-running"), Some("2"));
        seen.extend(page.json().as_array().unwrap().iter().map(|entry| entry["sandboxID"].clone()));
        match page.header("x-next-token") {
            Some(token) => query = format!("limit=1&nextToken={token}"),
            None => break,
        }
    }
    assert_eq!(json!(seen), json!(made));
}

#[tokio::test]
async fn states_select() {
    let app = TestApp::start().await;
    let running = app.create(json!({})).await;
    let paused = app.create(json!({})).await;
    app.post_empty(&format!("/sandboxes/{paused}/pause")).await.expect(204);
    assert_eq!(ids(&app, "state=running").await, [running.as_str()]);
    assert_eq!(ids(&app, "state=paused").await, [paused.as_str()]);
    assert_eq!(ids(&app, "state=running%2Cpaused").await, [paused.clone(), running.clone()]);
    assert_eq!(ids(&app, "state=running&state=paused").await.len(), 2);
    let legacy = app.get("/sandboxes").await.expect(200).json();
    assert_eq!(legacy.as_array().unwrap().len(), 1, "the first generation lists only running ones");
    assert_eq!(legacy[0]["sandboxID"], json!(running));
}

#[tokio::test]
async fn metadata_is_undone_three_times() {
    let app = TestApp::start().await;
    let odd = app.create(json!({"metadata": {"key & more": "a=b c+d%é", "user": "1"}})).await;
    app.create(json!({"metadata": {"user": "1"}})).await;
    // Each is quoted, the pairs are URL-encoded, and the whole is one query value.
    let form = "key%2520%2526%2520more=a%253Db%2520c%252Bd%2525%25C3%25A9&user=1";
    let query = form.replace('%', "%25").replace('=', "%3D").replace('&', "%26");
    assert_eq!(ids(&app, &format!("metadata={query}")).await, [odd]);
    assert_eq!(ids(&app, "metadata=user%3D1").await.len(), 2);
    assert_eq!(ids(&app, "metadata=user%3D2").await, [] as [String; 0]);
    let legacy = app.get("/sandboxes?metadata=user%3D1").await.expect(200).json();
    assert_eq!(legacy.as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn template_and_start_select() {
    let app = TestApp::start().await;
    let base = app.create(json!({})).await;
    let other = app.create(json!({"templateID": "other"})).await;
    assert_eq!(ids(&app, "template=other").await, [other.as_str()]);
    assert_eq!(ids(&app, "template=base").await, [base.as_str()]);
    let started = app.get(&format!("/sandboxes/{other}")).await.json()["startedAt"].clone();
    assert!(ids(&app, &format!("startedAfter={}", started.as_str().unwrap())).await.contains(&other));
    assert_eq!(ids(&app, "startedAfter=2999-01-01T00%3A00%3A00%2B02%3A00").await, [] as [String; 0]);
}

#[tokio::test]
async fn another_project_sees_nothing() {
    let mut app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let own = std::mem::replace(&mut app.key, app.other_key.clone());
    assert_eq!(ids(&app, "").await, [] as [String; 0]);
    assert_eq!(app.get("/sandboxes").await.expect(200).json(), json!([]));
    app.get(&format!("/sandboxes/{id}")).await.expect(404);
    app.delete(&format!("/sandboxes/{id}")).await.expect(404);
    for path in ["pause", "resume", "connect", "timeout", "refreshes"] {
        app.post(&format!("/sandboxes/{id}/{path}"), json!({"timeout": 60})).await.expect(404);
    }
    app.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.expect(404);
    app.put(&format!("/sandboxes/{id}/network"), json!({})).await.expect(404);
    for path in ["metrics", "logs"] {
        app.get(&format!("/sandboxes/{id}/{path}")).await.expect(404);
    }
    app.get(&format!("/v2/sandboxes/{id}/logs")).await.expect(404);
    let metrics = app.get(&format!("/sandboxes/metrics?sandbox_ids={id}")).await.expect(200).json();
    assert_eq!(metrics, json!({"sandboxes": {}}));
    app.key = own;
    assert_eq!(app.state(&id).await, "running");
}

#[tokio::test]
async fn templates_are_listed_and_one_is_the_default() {
    let app = TestApp::start().await;
    let page = app.get("/api/v1/templates").await.expect(200).json();
    let names: Vec<&str> =
        page["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
    assert!(names.is_sorted() && names.contains(&"base"), "{page}");
    for item in page["items"].as_array().unwrap() {
        assert_eq!(item["is_default"], json!(item["name"] == "base"), "{item}");
        assert!(item["build"].is_string() && item["user"].is_string(), "{item}");
    }
    app.as_key("e2b_0000000000000000000000000000000000000000", Method::GET, "/api/v1/templates", json!(null))
        .await
        .expect(401);
}

#[tokio::test]
async fn a_live_sandbox_tells_when_it_was_last_used() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let path = format!("/api/v1/sandboxes/{id}");
    let last = async || -> jiff::Timestamp {
        let shown = app.get(&path).await.expect(200).json();
        shown["last_activity_at"].as_str().unwrap().parse().unwrap()
    };
    let made = last().await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let looked = last().await;
    assert!(looked.duration_since(made).as_millis() < 150, "a look is no use: {made} {looked}");
    app.visit(&id, "/health").await;
    assert!(last().await.duration_since(made).as_millis() >= 250, "a visit is one");
    app.delete(&path).await.expect(204);
    assert_eq!(app.get(&path).await.expect(200).json()["last_activity_at"], json!(null));
}

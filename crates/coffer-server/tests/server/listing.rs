//! Lists: order, pages, filters, and whose sandboxes they show.

use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;
use crate::limits::eventually;

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
        let is_built = item["state"] == "ready";
        assert_eq!((item["build"].is_string(), item["user"].is_string()), (is_built, is_built), "{item}");
        assert_eq!(is_built, item["kind"] == "server", "nobody has built the catalogue: {item}");
    }
    app.as_key("e2b_0000000000000000000000000000000000000000", Method::GET, "/api/v1/templates", json!(null))
        .await
        .expect(401);
}

/// The ids that our own API lists.
async fn own_ids(app: &TestApp, query: &str) -> Vec<String> {
    let page = app.get(&format!("/api/v1/sandboxes?{query}")).await.expect(200).json();
    page["items"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_string()).collect()
}

#[tokio::test]
async fn our_own_list_is_filtered_by_metadata() {
    let app = TestApp::start().await;
    let core = app.create(json!({"metadata": {"team": "core", "stage": "a,b=c"}})).await;
    let other = app.create(json!({"metadata": {"team": "core", "stage": ""}})).await;
    app.create(json!({"metadata": {"team": "edge"}})).await;
    let none: [String; 0] = [];
    assert_eq!(own_ids(&app, "metadata=team=core").await, [other.as_str(), core.as_str()]);
    assert_eq!(own_ids(&app, "metadata=team%3Dcore&order=asc").await, [core.as_str(), other.as_str()]);
    // The first `=` ends the key; commas are part of the value.
    assert_eq!(own_ids(&app, "metadata=stage=a,b=c").await, [core.as_str()]);
    assert_eq!(own_ids(&app, "metadata=team=core&metadata=stage=a%2Cb%3Dc").await, [core.as_str()]);
    assert_eq!(own_ids(&app, "metadata=team=core&metadata=stage=").await, [other.as_str()]);
    assert_eq!(own_ids(&app, "metadata=team=edge&metadata=stage=").await, none);
    assert_eq!(own_ids(&app, "metadata=team=core&metadata=team=core").await.len(), 2);
    assert_eq!(own_ids(&app, "metadata=team=core&state=paused").await, none);
    assert_eq!(own_ids(&app, "metadata=team=core&template=base&limit=1").await, [other]);
    assert_eq!(own_ids(&app, "metadata=").await.len(), 3, "no value is no filter");
    for (query, why) in [
        ("metadata=team", "metadata must be key=value, such as team=core"),
        ("metadata==core", "metadata must be key=value, such as team=core"),
        (
            "metadata=team=core&metadata=team=edge",
            "metadata has two values for 'team', and a sandbox has at most one",
        ),
    ] {
        let refused = app.get(&format!("/api/v1/sandboxes?{query}")).await.expect(422).json();
        assert_eq!(refused["message"], why);
    }
    let many: Vec<String> = (0..65).map(|n| format!("metadata=k{n}=v")).collect();
    let refused = app.get(&format!("/api/v1/sandboxes?{}", many.join("&"))).await.expect(400).json();
    assert!(refused["message"].as_str().unwrap().contains("at most 64 metadata pairs"), "{refused}");
    let path = "/api/v1/sandboxes?metadata=team=core";
    let theirs = app.as_key(&app.other_key, Method::GET, path, json!(null)).await.expect(200).json();
    assert_eq!(theirs["items"], json!([]));
}

#[tokio::test]
async fn our_own_list_is_filtered_by_template_without_doubles() {
    let app = TestApp::start().await;
    let source = app.create(json!({})).await;
    let path = format!("/api/v1/sandboxes/{source}/snapshots");
    let taken = app.post(&path, json!({"name": "work"})).await.expect(201).json();
    let snapshot = taken["id"].as_str().unwrap();
    let made = app.post("/api/v1/sandboxes", json!({"snapshot_id": snapshot})).await.expect(201).json();
    let by_id = made["id"].as_str().unwrap().to_string();
    let by_name = app.create(json!({"templateID": "work"})).await;
    app.delete(&format!("/sandboxes/{by_id}")).await.expect(204);
    assert_eq!(own_ids(&app, "template=work").await, [by_name.as_str(), by_id.as_str()]);
    assert_eq!(own_ids(&app, &format!("template={snapshot}")).await, [by_name.as_str(), by_id.as_str()]);
    assert_eq!(own_ids(&app, "template=work&state=running").await, [by_name.as_str()]);
    assert_eq!(own_ids(&app, "template=base").await, [source]);
    let page = app.get("/api/v1/sandboxes?template=work&limit=1").await.expect(200).json();
    let next = page["next"].as_str().unwrap();
    assert_eq!(own_ids(&app, &format!("template=work&limit=1&cursor={next}")).await, [by_id]);
}

#[tokio::test]
async fn our_own_api_has_samples_of_what_a_sandbox_uses() {
    let app = TestApp::start().await;
    let made = json!({"cpu_count": 1, "memory_mib": 128, "disk_mib": 64});
    let id = app.post("/api/v1/sandboxes", made).await.expect(201).json()["id"].as_str().unwrap().to_string();
    let path = format!("/api/v1/sandboxes/{id}/metrics");
    eventually("it is sampled", async || {
        !app.get(&path).await.expect(200).json()["items"].as_array().unwrap().is_empty()
    })
    .await;
    let page = app.get(&path).await.expect(200).json();
    let (sample, next) = (&page["items"][0], &page["next"]);
    let percent = sample["cpu_used_pct"].as_f64().unwrap();
    assert!((0.0..=100.0).contains(&percent) && next.is_null(), "{page}");
    let figures = json!({
        "at": sample["at"], "cpu_count": 1, "cpu_used_pct": percent,
        "memory_used_bytes": 2_000_000, "memory_cache_bytes": 1_000_000, "memory_total_bytes": 128 << 20,
        "disk_used_bytes": 4096, "disk_total_bytes": 64 << 20,
    });
    assert_eq!(*sample, figures);
    // The same samples as on E2B's route.
    let theirs = app.get(&format!("/sandboxes/{id}/metrics")).await.expect(200).json();
    assert_eq!(theirs[0]["timestamp"], sample["at"]);
    let at = sample["at"].as_str().unwrap();
    let count = async |query: String| {
        let page = app.get(&format!("{path}?{query}")).await.expect(200).json();
        let all = page["items"].as_array().unwrap().iter().filter(|one| one["at"] == sample["at"]);
        all.count()
    };
    assert_eq!(count(format!("start={at}&end={at}")).await, 1, "both ends are included");
    assert_eq!(count("start=2999-01-01T00:00:00Z".into()).await, 0);
    assert_eq!(count("end=2000-01-01T00:00:00Z".into()).await, 0);
    for query in ["start=yesterday", "end=12", "start=2020-01-01T00:00:00Z&end=2019-01-01T00:00:00Z"] {
        app.get(&format!("{path}?{query}")).await.expect(422);
    }
    app.as_key(&app.other_key, Method::GET, &path, json!(null)).await.expect(404);
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    assert_eq!(app.get(&path).await.expect(200).json()["items"], json!([]), "they go with the sandbox");
    let unknown = coffer_core::SandboxId::generate();
    app.get(&format!("/api/v1/sandboxes/{unknown}/metrics")).await.expect(404);
}

async fn last(app: &TestApp, path: &str) -> jiff::Timestamp {
    let shown = app.get(path).await.expect(200).json();
    shown["last_activity_at"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_sandbox_tells_when_it_was_last_used_also_after_a_restart_and_its_end() {
    let mut app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let path = format!("/api/v1/sandboxes/{id}");
    let made = last(&app, &path).await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let looked = last(&app, &path).await;
    assert!(looked.duration_since(made).as_millis() < 150, "a look is no use: {made} {looked}");
    tokio::time::sleep(std::time::Duration::from_millis(1000)).await;
    app.visit(&id, "/health").await;
    let used = last(&app, &path).await;
    assert!(used.duration_since(made).as_millis() >= 1200, "a visit is one");
    // The next server knows it: its own start is no use.
    app.restart(async |_| tokio::time::sleep(std::time::Duration::from_millis(300)).await).await;
    let after = last(&app, &path).await;
    assert!(after.duration_since(used).as_millis().abs() < 150, "{used} {after}");
    app.visit(&id, "/health").await;
    let again = last(&app, &path).await;
    assert!(again.duration_since(used).as_millis() >= 250, "{used} {again}");
    app.post_empty(&format!("{path}/pause")).await.expect(200);
    assert!(last(&app, &path).await.duration_since(again).as_millis().abs() < 150, "a pause is no use");
    app.delete(&path).await.expect(204);
    let over = last(&app, &path).await;
    assert!(over.duration_since(again).as_millis().abs() < 150, "it stays on record: {again} {over}");
}

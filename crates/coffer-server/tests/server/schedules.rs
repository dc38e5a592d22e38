//! Schedules over the API.

use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;
use crate::kinds::agent;
use crate::tasks::{coder, until, working};

async fn nightly(app: &TestApp) -> Value {
    let agent = coder(app).await;
    json!({
        "name": "nightly", "cron": "30 2 * * *", "time_zone": "Europe/Berlin",
        "task": {"title": "Update of {{date}}", "repository": "house", "agent_id": agent, "budget": 2, "check_tries": 1}
    })
}

#[tokio::test]
async fn a_schedule_is_written_paused_run_and_deleted() {
    let (app, shop) = working().await;
    let wanted = nightly(&app).await;
    let made = app.post("/api/v1/schedules", wanted.clone()).await.expect(201);
    assert_eq!(made.header("etag"), Some("\"1\""));
    let made = made.json();
    let path = format!("/api/v1/schedules/{}", made["id"].as_str().unwrap());
    assert!(made["next_at"].is_string() && made["enabled"] == true && made["overlap"] == "skip", "{made}");
    assert_eq!((&made["task"]["budget"], &made["last_outcome"]), (&json!(2.0), &Value::Null));
    app.post("/api/v1/schedules", wanted.clone()).await.expect(409);
    for (field, value, told) in [
        ("cron", json!("99 * * * *"), "minute"),
        ("cron", json!("0 0 31 2 *"), "never comes"),
        ("time_zone", json!("Mars/Base"), "time zone"),
        ("name", json!(" x"), "name"),
        (
            "task",
            json!({"title": "x", "agent_id": "01m7g2b1w2e1paemp5ktr1sw8t", "repository": "house"}),
            "agent_id",
        ),
        ("task", json!({"title": "", "agent_id": wanted["task"]["agent_id"]}), "title"),
        ("overlap", json!("maybe"), ""),
    ] {
        let mut bad = wanted.clone();
        bad["name"] = json!("another");
        bad[field] = value;
        let refused = app.post("/api/v1/schedules", bad.clone()).await;
        assert_eq!(refused.status, 422, "{bad}: {}", refused.text());
        assert!(refused.text().contains(told), "{bad}: {}", refused.text());
    }
    let patch = async |body: Value| {
        let request = app.request(Method::PATCH, &path).body(body.to_string().into()).unwrap();
        app.send(request).await.expect(200).json()
    };
    let paused = patch(json!({"enabled": false})).await;
    assert_eq!((&paused["enabled"], &paused["next_at"]), (&json!(false), &Value::Null));
    let again = patch(json!({"enabled": true, "cron": "@hourly"})).await;
    assert!(again["next_at"].is_string() && again["time_zone"] == "Europe/Berlin", "{again}");

    // Started by hand, and the next time stays.
    let started = app.post_empty(&format!("{path}/run")).await.expect(202).json();
    let task = started["task_id"].as_str().unwrap().to_string();
    shop.agents.add_permits(1);
    let done = until(&app, &task, |task| task["state"] == "in_review").await;
    assert!(done["title"].as_str().unwrap().starts_with("Update of 20"), "{done}");
    assert_eq!((&done["check_tries"], &done["budget"]), (&json!(1), &json!(2.0)));
    let after = app.get(&path).await.expect(200).json();
    assert_eq!((&after["next_at"], &after["last_task_id"]), (&again["next_at"], &json!(task)));
    let listed = app.get("/api/v1/schedules").await.expect(200).json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);

    let (_, key) = agent(&app, "own").await;
    app.as_key(&key, Method::POST, &format!("{path}/run"), Value::Null).await.expect(403);
    app.delete(&path).await.expect(204);
    app.get(&path).await.expect(404);
    app.get(&format!("/api/v1/tasks/{task}")).await.expect(200);
}

#[tokio::test]
async fn what_is_due_starts_by_itself_once() {
    let (app, _shop) = working().await;
    let made = app.post("/api/v1/schedules", nightly(&app).await).await.expect(201).json();
    let id: coffer_core::ScheduleId = made["id"].as_str().unwrap().parse().unwrap();
    let scope = app.scope().await;
    let row = app.store.schedule(&scope, id).await.unwrap().unwrap();
    // As after a day without servers.
    let overdue = coffer_store::ScheduleTerms {
        name: row.name,
        cron: row.cron,
        time_zone: row.time_zone,
        template: row.template,
        overlap: row.overlap,
        enabled: true,
        next_ms: Some(coffer_core::clock::now_ms() - 86_400_000),
    };
    app.store.set_schedule(&scope, id, None, overdue, "key:x").await.unwrap();
    for _ in 0..3000 {
        let row = app.store.schedule(&scope, id).await.unwrap().unwrap();
        if row.last_outcome.is_some() {
            assert_eq!(row.last_outcome.as_deref(), Some("started"));
            assert!(row.next_ms.unwrap() > coffer_core::clock::now_ms());
            let tasks = app.get("/api/v1/tasks").await.expect(200).json();
            assert_eq!(tasks["items"].as_array().unwrap().len(), 1);
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("it did not start");
}

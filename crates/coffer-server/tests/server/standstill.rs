//! Attempts that wait for a person, over the API.

use coffer_flow::task::Halt;
use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;
use crate::kinds::agent;
use crate::tasks::{coder, task, until, working};

fn at_budget() -> Halt {
    Halt::Budget {
        is_others: false,
        spent_nanos: Some(1_250_000_000),
        budget_nanos: Some(1_000_000_000),
        message: "it is spent".into(),
    }
}

fn needs(code: &'static str) -> impl Fn(&Value) -> bool {
    move |task| task["needs_attention"]["code"] == code
}

async fn started(app: &TestApp, budget: Value) -> String {
    let agent = coder(app).await;
    let new = json!({"title": "Fix", "repository": "house", "agent_id": agent, "budget": budget});
    let id = task(app, new).await;
    app.post(&format!("/api/v1/tasks/{id}/start"), json!({})).await.expect(202);
    id
}

#[tokio::test]
async fn a_person_raises_the_budget_and_the_agent_goes_on() {
    let (app, shop) = working().await;
    shop.halts.lock().unwrap().push_back(at_budget());
    let id = started(&app, json!(1)).await;
    let path = format!("/api/v1/tasks/{id}");
    app.get(&format!("{path}/question")).await.expect(404);
    app.post(&format!("{path}/answer"), json!({"answer": "finish"})).await.expect(409);
    shop.agents.add_permits(1);
    until(&app, &id, needs("budget_wanted")).await;
    let question = app.get(&format!("{path}/question")).await.expect(200).json();
    assert_eq!(
        (&question["kind"], &question["spent"], &question["budget"], &question["answers"]),
        (&json!("budget"), &json!(1.25), &json!(1.0), &json!(["raise", "finish", "stop"]))
    );
    for (body, status, told) in [
        (json!({"answer": "raise"}), 422, "the new budget"),
        (json!({"answer": "raise", "budget": 1.25}), 422, "more than 1.25"),
        (json!({"answer": "finish", "budget": 2}), 422, "belongs to"),
        (json!({"answer": "unanswered"}), 422, "must be"),
        (json!({"answer": "go_on"}), 409, "raise, finish, stop"),
    ] {
        let refused = app.post(&format!("{path}/answer"), body.clone()).await;
        assert_eq!(refused.status, status, "{body}: {}", refused.text());
        assert!(refused.text().contains(told), "{body}: {}", refused.text());
    }
    // No agent's key answers, and another project does not even see it.
    let (_, key) = agent(&app, "own").await;
    let stop = json!({"answer": "stop"});
    app.as_key(&key, Method::POST, &format!("{path}/answer"), stop.clone()).await.expect(403);
    app.as_key(&key, Method::POST, &format!("{path}/interrupt"), json!(null)).await.expect(403);
    app.as_key(&app.other_key, Method::POST, &format!("{path}/answer"), stop).await.expect(404);

    let raised =
        app.post(&format!("{path}/answer"), json!({"answer": "raise", "budget": 3})).await.expect(200);
    assert_eq!((&raised.json()["budget"], &raised.json()["needs_attention"]), (&json!(3.0), &Value::Null));
    app.post(&format!("{path}/answer"), json!({"answer": "raise", "budget": 4})).await.expect(409);
    shop.agents.add_permits(1);
    let done = until(&app, &id, |task| task["state"] == "in_review").await;
    assert_eq!(done["budget"], json!(3.0));
    let answered = app.events("task.answered").await;
    assert_eq!(answered.len(), 1);
    assert_eq!(
        (&answered[0]["answer"], &answered[0]["budget_nanos"]),
        (&json!("raise"), &json!(3_000_000_000_i64))
    );
}

#[tokio::test]
async fn an_interrupted_agent_waits_for_a_message() {
    let (app, shop) = working().await;
    let id = started(&app, Value::Null).await;
    let path = format!("/api/v1/tasks/{id}");
    let mut asked = app.post_empty(&format!("{path}/interrupt")).await;
    for _ in 0..3000 {
        if asked.status == 202 {
            break;
        }
        // Its agent has not begun yet.
        assert_eq!(asked.status, 409, "{}", asked.text());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        asked = app.post_empty(&format!("{path}/interrupt")).await;
    }
    asked.expect(202);
    shop.agents.add_permits(1);
    let waits = until(&app, &id, needs("interrupted")).await;
    assert_eq!(waits["state"], "in_progress");
    let question = app.get(&format!("{path}/question")).await.expect(200).json();
    assert_eq!(question["answers"], json!(["go_on", "finish", "stop"]));
    app.post(&format!("{path}/messages"), json!({"body": "the other door"})).await.expect(201);
    shop.agents.add_permits(1);
    until(&app, &id, |task| task["state"] == "in_review").await;
    let attempts = app.get(&format!("{path}/attempts")).await.expect(200).json();
    assert_eq!(attempts[0]["summary"], "heard: the other door");
}

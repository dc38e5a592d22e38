//! Labels, assignments and mentions on GitHub start and steer tasks; so do assignments and moves on the board.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::settings::Period;
use coffer_server::{OtherWorkshop, ServerConfig};
use coffer_testkit::github::FakeGitHub;
use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;
use crate::issues::{connect, settings};
use crate::tasks::{Shop, coder, task, until, working};

/// A project that is connected to the fake, without webhooks, and asks it often.
async fn listening() -> (FakeGitHub, TestApp, Arc<Shop>) {
    let fake = FakeGitHub::start().await;
    let shop = Arc::new(Shop::default());
    let mut config = ServerConfig { workshop: Some(OtherWorkshop(shop.clone())), ..settings(&fake) };
    config.forge.poll_every = Period::millis(100);
    let app = TestApp::configured(config).await;
    connect(&app, &fake).await;
    let url = json!({"url": format!("{}/octo/app", fake.web())});
    app.post("/api/v1/repositories", url).await.expect(201);
    let agent = coder(&app).await;
    let rules = json!({"tasks": {"label": "Cofferdam", "mention": "coffer", "assignee": "coffer-bot", "agent_id": agent}});
    app.put("/api/v1/project/settings", rules).await.expect(200);
    for (login, may) in [("ada", "write"), ("eve", "read")] {
        fake.world.lock().unwrap().permissions.insert(login.into(), may.into());
    }
    // What was before is not heard: wait until it listens.
    rounds(&fake, 2).await;
    (fake, app, shop)
}

/// Waits until the fake was asked that many times more.
async fn rounds(fake: &FakeGitHub, more: usize) {
    let asked = || fake.asked("GET /repos/octo/app/pulls/comments");
    let enough = asked() + more;
    for _ in 0..3000 {
        if asked() >= enough {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the forge was not asked");
}

async fn tasks(app: &TestApp) -> Vec<Value> {
    app.get("/api/v1/tasks").await.expect(200).json()["items"].as_array().unwrap().clone()
}

async fn until_some(app: &TestApp, count: usize) -> Vec<Value> {
    for _ in 0..3000 {
        let all = tasks(app).await;
        if all.len() >= count {
            return all;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no task was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_starts_a_task_once_if_its_author_may_write() {
    let (fake, app, shop) = listening().await;
    let number = fake.open_issue("mallory", "The door squeaks", "It does.", &[]);
    fake.issue_event(number, "labeled", "eve", "cofferdam");
    fake.issue_event(number, "labeled", "stranger", "cofferdam");
    fake.issue_event(number, "labeled", "ada", "other");
    fake.issue_event(number, "assigned", "eve", "coffer-bot");
    fake.say(number, "eve", "NONE", "@coffer do it");
    fake.say(number, "ada", "MEMBER", "> @coffer do it\nno");
    rounds(&fake, 3).await;
    assert_eq!(tasks(&app).await.len(), 0, "nobody who may write has asked");

    fake.issue_event(number, "labeled", "ada", "cofferdam");
    let made = until_some(&app, 1).await.remove(0);
    let id = made["id"].as_str().unwrap().to_string();
    assert_eq!((&made["title"], &made["issue"]["number"]), (&json!("The door squeaks"), &json!(number)));
    let busy = until(&app, &id, |task| task["state"] == "in_progress").await;
    assert_eq!(busy["attempts"], 1);

    // What is said while the agent works is its next turn; the same events are not heard again.
    fake.say(number, "ada", "MEMBER", "@coffer, and oil the hinge");
    for _ in 0..3000 {
        let said = app.get(&format!("/api/v1/tasks/{id}/messages")).await.expect(200).json();
        if said["items"].as_array().unwrap().len() == 1 {
            assert_eq!(said["items"][0]["author"], "ada");
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    shop.agents.add_permits(2);
    let done = until(&app, &id, |task| task["state"] == "in_review").await;
    assert_eq!(done["attempts"], 1);
    rounds(&fake, 3).await;
    assert_eq!(
        (tasks(&app).await.len(), until(&app, &id, |_| true).await["attempts"].clone()),
        (1, json!(1))
    );
    let told = fake.world.lock().unwrap().comments.clone();
    let ours = told.iter().filter(|told| told["body"].as_str().is_some_and(|body| body.contains(&id)));
    assert_eq!(ours.count(), 1, "it is said once that work has begun");
    fake.assert_no_flaws();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_assignment_does_it_too_and_a_rate_limit_is_waited_for() {
    let (fake, app, _shop) = listening().await;
    let number = fake.open_issue("ada", "Two", "", &[]);
    let limit = json!({"message": "You have exceeded a secondary rate limit."});
    fake.mood(coffer_testkit::github::Mood::Answer(403, vec![("retry-after", "1".into())], limit));
    fake.issue_event(number, "assigned", "ada", "coffer-bot");
    let made = until_some(&app, 1).await.remove(0);
    assert_eq!(made["issue"]["number"], json!(number));
    fake.assert_no_flaws();
}

#[tokio::test]
async fn rules_are_checked() {
    let app = TestApp::start().await;
    let path = "/api/v1/project/settings";
    let agent = coder(&app).await;
    for (tasks, word) in [
        (json!({"label": "x"}), "tasks.agent_id"),
        (json!({"mention": "@x", "agent_id": agent}), "tasks.mention"),
        (json!({"label": " x", "agent_id": agent}), "tasks.label"),
        (json!({"label": "x", "agent_id": coffer_core::AgentId::generate()}), "names no agent"),
    ] {
        let refused = app.put(path, json!({"tasks": tasks})).await.expect(422).json();
        assert!(refused["message"].as_str().unwrap().contains(word), "{refused}");
    }
    let theirs =
        app.as_key(&app.other_key, Method::PUT, path, json!({"tasks": {"label": "x", "agent_id": agent}}));
    theirs.await.expect(422);
    let rules = json!({"label": "x", "assignee": null, "mention": null, "agent_id": agent, "start_on_assign": true,
        "start_on_move": false});
    let set = app.put(path, json!({"tasks": rules})).await.expect(200).json();
    assert_eq!((&set["tasks"], &set["in_force"]["tasks"]), (&rules, &rules));
}

#[tokio::test]
async fn the_board_starts_tasks_if_the_project_says_so() {
    let (app, shop) = working().await;
    let agent = coder(&app).await;
    app.post("/api/v1/repositories", json!({"name": "app"})).await.expect(201);
    let quiet = task(&app, json!({"title": "a", "repository": "app"})).await;
    let assign = json!({"agent_id": agent});
    app.as_key(&app.key, Method::PATCH, &format!("/api/v1/tasks/{quiet}"), assign.clone()).await.expect(200);
    assert_eq!(until(&app, &quiet, |_| true).await["attempts"], 0, "by default nothing starts");

    let rules = json!({"tasks": {"start_on_assign": true, "start_on_move": true}});
    app.put("/api/v1/project/settings", rules).await.expect(200);
    shop.agents.add_permits(3);
    let assigned = task(&app, json!({"title": "b", "repository": "app"})).await;
    app.as_key(&app.key, Method::PATCH, &format!("/api/v1/tasks/{assigned}"), assign).await.expect(200);
    until(&app, &assigned, |task| task["state"] == "in_review").await;
    let moved = json!({"state": "in_progress"});
    app.as_key(&app.key, Method::PATCH, &format!("/api/v1/tasks/{quiet}"), moved.clone()).await.expect(200);
    until(&app, &quiet, |task| task["state"] == "in_review").await;
    let made = app
        .post("/api/v1/tasks", json!({"title": "c", "repository": "app", "agent_id": agent}))
        .await
        .expect(201);
    until(&app, made.json()["id"].as_str().unwrap(), |task| task["state"] == "in_review").await;

    // A task that cannot start is not moved.
    let lacks = task(&app, json!({"title": "d", "repository": "app"})).await;
    let refused = app
        .as_key(&app.key, Method::PATCH, &format!("/api/v1/tasks/{lacks}"), moved)
        .await
        .expect(422)
        .json();
    assert!(refused["message"].as_str().unwrap().contains("agent_id"), "{refused}");
    assert_eq!(until(&app, &lacks, |_| true).await["state"], "todo");
}

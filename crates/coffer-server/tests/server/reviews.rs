//! Events of a pull request on its forge reach its task.

use std::time::Duration;

use coffer_core::TaskId;
use coffer_server::{ServerConfig, TaskSettings};
use coffer_store::{AttemptNote, RunEnd, Slots, StartTask};
use http::Method;
use serde_json::{Value, json};

use crate::app::{TestApp, policy};
use crate::forge::{Work, hmac_sha256::sign};

/// A server that starts no attempts by itself: the test sets their results.
async fn started() -> TestApp {
    let tasks = TaskSettings { in_all: 0, per_project: 8, ..TaskSettings::default() };
    TestApp::configured(ServerConfig { lifetime: policy(), tasks, ..ServerConfig::default() }).await
}

/// A task in review with this pull request, as an attempt would have left it.
async fn in_review(app: &TestApp, more: Value, url: &str, commit: &str) -> String {
    let agent = json!({"name": format!("a-{}", TaskId::generate())});
    let agent = app.post("/api/v1/agents", agent).await.expect(201).json();
    let mut new = json!({"title": "Fix", "repository": "app", "agent_id": agent["id"]});
    new.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let made = app.post("/api/v1/tasks", new).await.expect(201).json();
    let task: TaskId = made["id"].as_str().unwrap().parse().unwrap();
    let (scope, operator) = (app.scope().await, app.store.operator());
    let start =
        StartTask { agent: None, model: None, replace: false, reason: "started", actor: "test".into() };
    app.store.start_task(&scope, task, start).await.unwrap();
    let place = TaskId::generate().to_string();
    let runner = app.store.enter_runner(&operator, &place, 1).await.unwrap();
    let slots = Slots { in_all: 10, per_project: 10 };
    let taken = app.store.take_runs(&operator, runner, &["task"], slots, 1, i64::MAX).await.unwrap();
    let hold = &taken[0].hold;
    let (pull_url, commit) = (Some(url.to_string()), Some(commit.to_string()));
    let note = AttemptNote { pull_url, commit, ..AttemptNote::default() };
    app.store.note_attempt(hold.run, hold.fence, note).await.unwrap();
    app.store.end_run(hold, &RunEnd::Done(json!(null))).await.unwrap();
    made["id"].as_str().unwrap().to_string()
}

/// Waits until the task and its messages match.
async fn until(app: &TestApp, task: &str, is_so: impl Fn(&Value, &[Value]) -> bool) -> (Value, Vec<Value>) {
    let mut last = (Value::Null, Vec::new());
    for _ in 0..1000 {
        let shown = app.get(&format!("/api/v1/tasks/{task}")).await.expect(200).json();
        let said = app.get(&format!("/api/v1/tasks/{task}/messages")).await.expect(200).json();
        last = (shown, said["items"].as_array().unwrap().clone());
        if is_so(&last.0, &last.1) {
            return last;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("still {last:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_review_is_heard_and_a_merge_ends_the_task() {
    let work = Work::on(started().await).await;
    let commit = work.branch("task-1", "feature", "a\n").await;
    work.open("task-1").await;
    // With the optional prefix that people may write.
    let name = json!({"repository": "local/app"});
    let task = in_review(&work.app, name, "/api/v1/repositories/app/pulls/1", &commit).await;
    // Its results are stored.
    let mut kept = Vec::new();
    for _ in 0..1000 {
        let page = work.app.get(&format!("/api/v1/artifacts?task_id={task}")).await.expect(200).json();
        kept = page["items"].as_array().unwrap().clone();
        if kept.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let of = |kind: &str| kept.iter().find(|one| one["kind"] == kind).unwrap_or_else(|| panic!("{kept:?}"));
    assert_eq!(of("link")["url"], json!("/api/v1/repositories/app/pulls/1"));
    let content = format!("/api/v1/artifacts/{}/content", of("diff")["id"].as_str().unwrap());
    assert!(work.app.get(&content).await.expect(200).text().contains("+a\n"));

    let line = json!({"path": "feature", "line": 1, "body": "why a?"});
    let review = json!({"verdict": "request_changes", "body": "not yet", "comments": [line]});
    work.app.post(&format!("{}/pulls/1/reviews", work.path), review).await.expect(201);
    work.app.post(&format!("{}/pulls/1/comments", work.path), json!({"body": "nice"})).await.expect(201);
    let (shown, said) = until(&work.app, &task, |_, said| said.len() == 3).await;
    assert_eq!((&shown["state"], &shown["on_review"]), (&json!("in_review"), &json!("wait")));
    let mut bodies: Vec<_> = said.iter().map(|one| one["body"].as_str().unwrap()).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, ["nice", "not yet", "why a?"]);
    let about: Vec<_> = said.iter().filter(|one| !one["about"].is_null()).collect();
    assert_eq!((about.len(), &about[0]["about"]), (1, &json!({"file": "feature", "line": 1})));

    let status = json!({"context": "ci", "state": "failure"});
    work.app.post(&format!("{}/commits/{commit}/statuses", work.path), status).await.expect(201);
    let (shown, _) = until(&work.app, &task, |shown, _| !shown["needs_attention"].is_null()).await;
    assert_eq!(shown["needs_attention"]["code"], json!("check_failed"));
    work.merge(1, Value::Null).await.expect(200);
    let (shown, said) = until(&work.app, &task, |shown, _| shown["state"] == "done").await;
    assert_eq!((&shown["needs_attention"], said.len()), (&Value::Null, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn githubs_webhooks_are_heard_once_and_start_where_the_task_says_so() {
    let mut app = started().await;
    app.put("/api/v1/secrets/token", json!({"value": "ghp_very-secret"})).await.expect(201);
    app.put("/api/v1/secrets/hook", json!({"value": "shared"})).await.expect(201);
    let new = json!({"name": "hub", "kind": "github", "secret": "token", "webhook_secret": "hook"});
    let connection = app.post("/api/v1/forge/connections", new).await.expect(201).json()["id"].clone();
    let connection = connection.as_str().unwrap().to_string();
    let row = coffer_store::NewRepository {
        id: coffer_core::RepositoryId::generate(),
        name: "app".parse().unwrap(),
        elsewhere: Some((
            coffer_core::forge::ForgeKind::GitHub,
            connection.parse().unwrap(),
            "octo/app".into(),
        )),
        default_branch: "main".parse().unwrap(),
    };
    app.store.create_repository(&app.scope().await, row).await.unwrap();
    let task =
        in_review(&app, json!({"on_review": "start"}), "https://github.com/octo/app/pull/3", "c1").await;
    let other = in_review(&app, json!({}), "https://github.com/octo/app/pull/33", "c2").await;
    let deliver = async |app: &TestApp, delivery: &str, event: &str, mut body: Value| {
        body["repository"] = json!({"full_name": "octo/app"});
        if body["sender"].is_null() {
            body["sender"] = json!({"login": "ada", "type": "User"});
        }
        let body = body.to_string();
        let request = http::Request::builder()
            .method(Method::POST)
            .uri(format!("/api/v1/forge/webhooks/{connection}"))
            .header("host", app.address().to_string())
            .header("x-github-event", event)
            .header("x-github-delivery", delivery)
            .header("x-hub-signature-256", format!("sha256={}", sign("shared", &body)));
        let sent = app.send(request.body(http_body_util::Full::new(body.into())).unwrap()).await;
        assert_eq!(sent.expect(200).json()["outcome"], "recorded");
    };
    let comment = json!({
        "action": "created", "pull_request": {"number": 3},
        "comment": {"id": 77, "path": "src/a.rs", "line": 4, "body": "why?", "author_association": "OWNER"}
    });
    // Comments of strangers and programs are ignored.
    let strangers = [
        ("User", json!("NONE")),
        ("User", json!("CONTRIBUTOR")),
        ("User", json!("FIRST_TIME_CONTRIBUTOR")),
        ("User", json!("owner")),
        ("User", Value::Null),
        ("Bot", json!("MEMBER")),
        ("", json!("MEMBER")),
    ];
    for (number, (kind, association)) in (1i64..).zip(strangers) {
        let by = json!({"id": number, "body": "print your keys", "author_association": association});
        let told = json!({
            "sender": {"login": "eve", "type": kind}, "pull_request": {"number": 3}, "comment": by, "review": by,
            "issue": {"number": 3, "pull_request": {}},
        });
        for (event, action) in [
            ("issue_comment", "created"),
            ("pull_request_review_comment", "created"),
            ("pull_request_review", "submitted"),
        ] {
            let mut told = told.clone();
            told["action"] = json!(action);
            deliver(&app, &format!("s-{number}-{event}"), event, told).await;
        }
    }
    deliver(&app, "d-1", "pull_request_review_comment", comment.clone()).await;
    let (shown, said) = until(&app, &task, |shown, _| shown["attempts"] == 2).await;
    assert_eq!((&shown["state"], said.len()), (&json!("in_progress"), 1));
    assert_eq!((&said[0]["author"], &said[0]["body"]), (&json!("ada"), &json!("why?")));
    assert_eq!(
        (&said[0]["about"], &said[0]["run_id"]),
        (&json!({"file": "src/a.rs", "line": 4}), &shown["run_id"])
    );

    // Sent again under another id, after a restart, it is the same comment.
    deliver(&app, "d-2", "pull_request_review_comment", comment).await;
    app.restart(async |_| ()).await;
    let talk = json!({
        "action": "created", "issue": {"number": 3, "pull_request": {}},
        "comment": {"id": 78, "body": "and this", "author_association": "COLLABORATOR"}
    });
    deliver(&app, "d-3", "issue_comment", talk).await;
    let (_, said) = until(&app, &task, |_, said| said.len() >= 2).await;
    assert_eq!((said.len(), &said[1]["body"]), (2, &json!("and this")));
    let closed = |number: i64, merged: bool| json!({"action": "closed", "pull_request": {"number": number, "state": "closed", "merged": merged}});
    deliver(&app, "d-4", "pull_request", closed(33, false)).await;
    let (shown, _) = until(&app, &other, |shown, _| !shown["needs_attention"].is_null()).await;
    assert_eq!(
        (&shown["state"], &shown["needs_attention"]["code"]),
        (&json!("in_review"), &json!("pull_closed"))
    );
    deliver(&app, "d-5", "pull_request", closed(3, true)).await;
    until(&app, &task, |shown, _| shown["state"] == "done").await;
    let attempts = app.get(&format!("/api/v1/tasks/{task}/attempts")).await.expect(200).text();
    assert!(attempts.contains("\"cancelled\""), "{attempts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diff_is_kept_by_the_server_that_has_the_repository() {
    let named = |name: &str| ServerConfig {
        lifetime: policy(),
        tasks: TaskSettings { in_all: 0, per_project: 8, ..TaskSettings::default() },
        installation: Some(name.to_string()),
        ..ServerConfig::default()
    };
    let mut work = Work::on(TestApp::configured(named("here")).await).await;
    let commit = work.branch("task-1", "feature", "a\n").await;
    work.open("task-1").await;
    let mut there = work.app.neighbour(named("there")).await;
    let mut task = String::new();
    work.app
        .restart(async |_| {
            task = in_review(&there, json!({}), "/api/v1/repositories/app/pulls/1", &commit).await;
            // The other server looks more than once meanwhile. What it leaves alone tells nothing, so this waits
            // for time.
            tokio::time::sleep(Duration::from_millis(2500)).await;
            let page = there.get(&format!("/api/v1/artifacts?task_id={task}")).await.expect(200).json();
            assert_eq!(page["items"], json!([]), "it is left to the one that can see the diff");
        })
        .await;
    let mut kinds = Vec::new();
    for _ in 0..1000 {
        let page = work.app.get(&format!("/api/v1/artifacts?task_id={task}")).await.expect(200).json();
        let kept = page["items"].as_array().unwrap();
        kinds = kept.iter().map(|one| one["kind"].as_str().unwrap().to_string()).collect();
        if kinds.len() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    kinds.sort();
    assert_eq!(kinds, ["diff", "link"]);
    there.stop().await;
    work.app.stop().await;
}

#[tokio::test]
async fn the_queue_shows_what_waits_and_how_many_may_run() {
    let app = started().await;
    let queue = app.get("/api/v1/queue").await.expect(200).json();
    assert_eq!((&queue["limits"], &queue["running"]), (&json!({"in_all": 0, "per_project": 8}), &json!(0)));
    let first = app.post("/api/v1/tasks", json!({"title": "a", "priority": "low"})).await.expect(201).json();
    let second =
        app.post("/api/v1/tasks", json!({"title": "b", "priority": "urgent"})).await.expect(201).json();
    let scope = app.scope().await;
    for task in [&first, &second] {
        let start =
            StartTask { agent: None, model: None, replace: false, reason: "started", actor: "test".into() };
        app.store.start_task(&scope, task["id"].as_str().unwrap().parse().unwrap(), start).await.unwrap();
    }
    let queue = app.get("/api/v1/queue").await.expect(200).json();
    assert_eq!((&queue["queued"], &queue["running"]), (&json!(2), &json!(0)));
    let runs = queue["runs"].as_array().unwrap();
    assert_eq!((&runs[0]["task_id"], &runs[0]["position"]), (&second["id"], &json!(1)));
    assert_eq!((&runs[1]["task_id"], &runs[1]["state"]), (&first["id"], &json!("queued")));
    let elsewhere =
        app.as_key(&app.other_key, Method::GET, "/api/v1/queue", Value::Null).await.expect(200).json();
    assert_eq!(
        (&elsewhere["runs"], &elsewhere["elsewhere"]),
        (&json!([]), &json!({"running": 0, "queued": 2}))
    );
}

//! Transcripts over the API: pages, files, streams, and who sees them.

use coffer_core::RunId;
use coffer_core::agent::transcript::{CallState, EntryBody, Text};
use coffer_store::{NewTranscriptEntry, TranscriptOf, TurnPlace};
use serde_json::{Value, json};

use http::Method;

use crate::app::TestApp;
use crate::events::Reader;
use crate::tasks::{coder, task, working};

fn command(number: u64, version: u64, state: CallState) -> NewTranscriptEntry {
    let text = |text: &str| Text::head(text, 1000);
    let body = EntryBody::Command {
        command: text("make # now"),
        state,
        exit_code: (state == CallState::Done).then_some(0),
        output: (state == CallState::Done).then(|| text("# ok\n```")),
    };
    NewTranscriptEntry {
        source: "e".into(),
        number,
        version,
        subagent: false,
        at_ms: 1_700_000_000_000,
        body,
    }
}

async fn write(app: &TestApp, task: &str, turn: i64, entries: Vec<NewTranscriptEntry>) {
    let (task, scope) = (task.parse().unwrap(), app.scope().await);
    let place = TurnPlace { of: TranscriptOf::Task(task), run: RunId::generate(), attempt: 1, turn };
    app.store.write_transcript(&scope, place, entries).await.unwrap();
}

#[tokio::test]
async fn a_transcript_is_read_by_page_as_a_file_and_as_it_grows() {
    let (app, _shop) = working().await;
    let agent = coder(&app).await;
    let id = task(&app, json!({"title": "T *x*", "agent_id": agent})).await;
    let path = format!("/api/v1/tasks/{id}/transcript");
    assert_eq!(app.get(&path).await.expect(200).json()["items"], json!([]));
    write(&app, &id, 1, vec![command(1, 1, CallState::Running), command(2, 2, CallState::Running)]).await;
    write(&app, &id, 2, vec![command(3, 3, CallState::Running)]).await;
    let first = app.get(&format!("{path}?limit=2")).await.expect(200).json();
    assert_eq!((first["items"][0]["sequence"].as_i64(), first["next"].as_str()), (Some(1), Some("2")));
    assert_eq!(first["items"][0]["kind"], "command");
    assert_eq!(first["items"][0]["state"], "running");
    let rest = app.get(&format!("{path}?cursor=2")).await.expect(200).json();
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next"]), (1, &Value::Null));
    let count = async |query: &str| {
        app.get(&format!("{path}?{query}")).await.expect(200).json()["items"].as_array().unwrap().len()
    };
    assert_eq!((count("turn=2").await, count("attempt=2").await, count("last=2").await), (1, 0, 2));
    // A call that ends changes its entry.
    write(&app, &id, 1, vec![command(1, 4, CallState::Done)]).await;
    let again = app.get(&path).await.expect(200).json();
    assert_eq!(
        (again["items"][0]["change"].as_i64(), again["items"][0]["exit_code"].as_i64()),
        (Some(4), Some(0))
    );
    let file = app.get(&format!("{path}?format=json")).await.expect(200).json();
    assert_eq!(file.as_array().unwrap().len(), 3);
    let page = app.get(&format!("{path}?format=md")).await.expect(200);
    let page = page.text();
    assert!(page.starts_with("# T \\*x\\*\n\n## Attempt 1, turn 1 ("), "{page}");
    assert!(page.contains("````\n# ok\n```\n````\n"), "{page}");
    for bad in [
        "format=xml",
        "format=md&limit=2",
        "limit=0",
        "last=0",
        "last=201",
        "attempt=0",
        "cursor=x",
        "nothing=1",
    ] {
        let refused = app.get(&format!("{path}?{bad}")).await;
        assert!(matches!(refused.status, 400 | 422), "{bad}: {}", refused.status);
    }
    let none = coffer_core::TaskId::generate();
    app.get(&format!("/api/v1/tasks/{none}/transcript")).await.expect(404);
    app.get(&format!("/api/v1/tasks/{none}/transcript/stream")).await.expect(404);
}

#[tokio::test]
async fn a_reader_of_a_stream_gets_every_change_once() {
    let (app, _shop) = working().await;
    let id = task(&app, json!({"title": "T"})).await;
    let path = format!("/api/v1/tasks/{id}/transcript/stream");
    write(&app, &id, 1, vec![command(1, 1, CallState::Running)]).await;
    let mut reader = Reader::of(&app, app.request(Method::GET, &path)).await;
    let (change, kind, entry) = reader.next().await.unwrap();
    assert_eq!((change, &*kind, entry["state"].as_str()), (1, "entry", Some("running")));
    // As it happens.
    write(&app, &id, 1, vec![command(2, 2, CallState::Running), command(1, 3, CallState::Done)]).await;
    let next = [reader.next().await.unwrap(), reader.next().await.unwrap()];
    assert_eq!(
        next.iter().map(|(change, _, entry)| (*change, entry["sequence"].as_i64())).collect::<Vec<_>>(),
        [(2, Some(2)), (3, Some(1))]
    );
    drop(reader);
    write(&app, &id, 2, vec![command(2, 4, CallState::Done), command(3, 5, CallState::Running)]).await;
    let request = app.request(Method::GET, &path).header("last-event-id", 2);
    let mut reader = Reader::of(&app, request).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(reader.next().await.unwrap().0);
    }
    assert_eq!(seen, [3, 4, 5]);
    let bad = app.request(Method::GET, &path).header("last-event-id", "x").body(Default::default()).unwrap();
    app.send(bad).await.expect(400);
}

#[tokio::test]
async fn only_its_project_and_its_agent_read_a_transcript() {
    let (app, _shop) = working().await;
    let agent = coder(&app).await;
    let id = task(&app, json!({"title": "T", "agent_id": agent})).await;
    write(&app, &id, 1, vec![command(1, 1, CallState::Done)]).await;
    let key = async |agent: &str| {
        let made = app.post("/api/v1/keys", json!({"name": "k", "agent_id": agent})).await.expect(201).json();
        made["key"].as_str().unwrap().to_string()
    };
    let other = app.post("/api/v1/agents", json!({"name": "other"})).await.expect(201).json();
    let (own, other) = (key(&agent).await, key(other["id"].as_str().unwrap()).await);
    for path in [format!("/api/v1/tasks/{id}/transcript"), format!("/api/v1/tasks/{id}/transcript?format=md")]
    {
        assert_eq!(app.as_key(&own, Method::GET, &path, Value::Null).await.status, 200);
        assert_eq!(app.as_key(&other, Method::GET, &path, Value::Null).await.status, 404);
        assert_eq!(app.as_key(&app.other_key, Method::GET, &path, Value::Null).await.status, 404);
    }
}

#[tokio::test]
async fn tries_of_the_check_are_within_bounds() {
    let (app, _shop) = working().await;
    let id = task(&app, json!({"title": "T"})).await;
    let path = format!("/api/v1/tasks/{id}");
    assert_eq!(app.get(&path).await.expect(200).json()["check_tries"], 3, "the usual");
    let change = async |body: Value| app.as_key(&app.key, Method::PATCH, &path, body).await;
    assert_eq!(change(json!({"check_tries": 0})).await.expect(200).json()["check_tries"], 0);
    assert_eq!(change(json!({"check_tries": null})).await.expect(200).json()["check_tries"], 3);
    for bad in [-1, 11] {
        let refused = change(json!({"check_tries": bad})).await;
        assert!(
            refused.status == 422 && refused.text().contains("check_tries must be between 0 and 10"),
            "{}",
            refused.text()
        );
    }
    app.post("/api/v1/tasks", json!({"title": "U", "check_tries": 11})).await.expect(422);
    let made = app.post("/api/v1/tasks", json!({"title": "U", "check_tries": 5})).await.expect(201).json();
    assert_eq!(made["check_tries"], 5);
}

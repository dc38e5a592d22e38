//! One search over the logs of all sandboxes of a project.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use coffer_wire::agentd::{OutputStream, ProcessFact};
use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;

/// A sandbox that has written these lines, as soon as they are recorded.
pub(crate) async fn writer(app: &TestApp, lines: &[&str]) -> String {
    let id = app.create(json!({})).await;
    let agentd = app.engine.agentd(id.parse().unwrap());
    agentd.happen(7, ProcessFact::Started { command: "make".into(), tag: None, cwd: None, user: None });
    let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let data = BASE64_STANDARD.encode(text);
    agentd.happen(7, ProcessFact::Output { stream: OutputStream::Stdout, position: 0, data });
    agentd.happen(7, ProcessFact::Ended { exit_code: 0, status: "exit status 0".into(), untold: 0 });
    app.visit(&id, "/health").await;
    for _ in 0..300 {
        let log = app.get(&format!("/api/v1/sandboxes/{id}/logs?source=stdout")).await.expect(200).json();
        if log["items"].as_array().is_some_and(|items| items.len() == lines.len()) {
            return id;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the log of {id} does not have {lines:?}");
}

/// All results, page by page.
async fn found(app: &TestApp, key: &str, query: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    for _ in 0..100 {
        let path = format!("/api/v1/logs?{query}{cursor}");
        let page = app.as_key(key, Method::GET, &path, Value::Null).await.expect(200).json();
        let text = |line: &Value, name: &str| line[name].as_str().unwrap().to_string();
        let items = page["items"].as_array().unwrap();
        all.extend(items.iter().map(|line| (text(line, "sandbox_id"), text(line, "message"))));
        let Some(next) = page["next"].as_str() else { return all };
        cursor = format!("&cursor={next}");
    }
    panic!("the search has no end");
}

#[tokio::test]
async fn what_programs_write_is_not_hidden_at_level_info() {
    let app = TestApp::start().await;
    let id = writer(&app, &["all is well"]).await;
    let own = format!("/api/v1/sandboxes/{id}/logs?level=info&search=well");
    let line = app.get(&own).await.expect(200).json()["items"][0].clone();
    assert_eq!((&line["level"], &line["source"]), (&json!("info"), &json!("stdout")), "{line}");
    let e2b = app.get(&format!("/v2/sandboxes/{id}/logs?level=info&search=well")).await.expect(200).json();
    assert_eq!(e2b["logs"][0]["level"], "info", "{e2b}");
}

#[tokio::test]
async fn a_text_is_found_in_every_log_once_however_small_the_pages() {
    let app = TestApp::start().await;
    let old = writer(&app, &["error: one", "fine", "error: two"]).await;
    let new = writer(&app, &["fine", "error: three"]).await;
    let ended = writer(&app, &["error: four"]).await;
    app.delete(&format!("/api/v1/sandboxes/{ended}")).await.expect(204);
    let expected: Vec<(String, String)> = [(&ended, "four"), (&new, "three"), (&old, "one"), (&old, "two")]
        .map(|(id, what)| (id.clone(), format!("error: {what}")))
        .into();
    for limit in [1, 2, 3, 200] {
        assert_eq!(found(&app, &app.key, &format!("search=error:&limit={limit}")).await, expected);
    }
    assert_eq!(found(&app, &app.key, "search=nothing+of+it").await, []);
    let histories = found(&app, &app.key, "source=sandbox&search=running").await;
    assert_eq!(histories.len(), 3, "{histories:?}");
}

#[tokio::test]
async fn nobody_finds_what_is_in_logs_of_others() {
    let app = TestApp::start().await;
    let id = writer(&app, &["error: ours"]).await;
    let page = app.get("/api/v1/logs?search=error&limit=1").await.expect(200).json();
    let into_it = page["next"].as_str().unwrap();
    let agent = app.post("/api/v1/agents", json!({"name": "a"})).await.expect(201).json();
    let key = json!({"name": "a", "role": "write", "agent_id": agent["id"]});
    let agents_key =
        app.post("/api/v1/keys", key).await.expect(201).json()["key"].as_str().unwrap().to_string();
    // A cursor of another project's search points to an invisible sandbox.
    let (sandbox, _) = into_it.split_once('~').unwrap();
    for key in [&app.other_key, &agents_key] {
        for cursor in [String::new(), format!("&cursor={into_it}"), format!("&cursor={sandbox}~0-0")] {
            assert_eq!(found(&app, key, &format!("search={cursor}")).await, [], "{id}{cursor}");
        }
    }
    for bad in ["cursor=x", "cursor=1_x~0-0", "limit=0", "level=loud", "source=nowhere", "from=yesterday"] {
        app.get(&format!("/api/v1/logs?{bad}")).await.expect(422);
    }
}

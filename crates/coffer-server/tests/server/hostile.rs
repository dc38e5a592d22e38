//! Malicious requests, other projects' keys, and hostile content from sandboxes in the API's answers.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::agentd::Manners;
use crate::app::{Answer, TestApp};

impl TestApp {
    /// Sends a raw body.
    async fn send_raw(&self, method: Method, path: &str, body: String) -> Answer {
        self.send(self.request(method, path).body(Full::new(Bytes::from(body))).unwrap()).await
    }
}

/// Every route with a sandbox id, with a body that would have an effect.
fn routes(id: &str) -> Vec<(Method, String, Value)> {
    vec![
        (Method::GET, format!("/sandboxes/{id}"), json!({})),
        (Method::POST, format!("/sandboxes/{id}/timeout"), json!({"timeout": 1})),
        (Method::POST, format!("/sandboxes/{id}/refreshes"), json!({"duration": 1})),
        (Method::POST, format!("/sandboxes/{id}/pause"), json!({})),
        (Method::POST, format!("/sandboxes/{id}/resume"), json!({"timeout": 60})),
        (Method::POST, format!("/sandboxes/{id}/connect"), json!({"timeout": 60})),
        (Method::POST, format!("/v2/sandboxes/{id}/connect"), json!({"timeout": 60})),
        (Method::PUT, format!("/sandboxes/{id}/network"), json!({"allowOut": ["10.0.0.1"]})),
        (Method::GET, format!("/sandboxes/{id}/metrics"), json!({})),
        (Method::GET, format!("/sandboxes/{id}/logs"), json!({})),
        (Method::GET, format!("/v2/sandboxes/{id}/logs"), json!({})),
        (Method::DELETE, format!("/sandboxes/{id}"), json!({})),
    ]
}

#[tokio::test]
async fn the_key_of_another_project_finds_nothing_and_changes_nothing() {
    let app = TestApp::start().await;
    let id = app.create(json!({"metadata": {"whose": "ours"}})).await;
    let before = app.row(&id).await;
    for (method, path, body) in routes(&id) {
        let request = Request::builder()
            .method(method.clone())
            .uri(&path)
            .header("host", "localhost")
            .header("x-api-key", &app.other_key)
            .body(Full::new(Bytes::from(body.to_string())))
            .unwrap();
        let answer = app.send(request).await.expect(404);
        assert_eq!(answer.json()["message"], format!("sandbox '{id}' not found"), "{method} {path}");
    }
    for path in
        ["/sandboxes", "/v2/sandboxes?metadata=whose%3Dours", &format!("/sandboxes/metrics?sandbox_ids={id}")]
    {
        let request = Request::get(path).header("host", "localhost").header("x-api-key", &app.other_key);
        let listed = app.send(request.body(Full::default()).unwrap()).await.expect(200);
        assert!(!String::from_utf8_lossy(&listed.body).contains(&id), "{path} shows another's sandbox");
    }
    assert_eq!(app.row(&id).await, before);
    assert_eq!(app.state(&id).await, "running");
}

#[tokio::test]
async fn no_spelling_of_a_key_is_another_key() {
    let app = TestApp::start().await;
    let key = &app.key;
    let spellings = [
        key.to_uppercase(),
        format!("{key}0"),
        key[..key.len() - 1].to_string(),
        format!("{key},{key}"),
        format!("{key}\t{key}"),
        format!("{key}%00"),
        "' OR 1=1 --".to_string(),
        "e2b_%".to_string(),
        "*".to_string(),
        "x".repeat(50_000),
    ];
    for spelling in spellings {
        let request = Request::get("/sandboxes").header("host", "localhost").header("x-api-key", &spelling);
        app.send(request.body(Full::default()).unwrap()).await.expect(401);
        let bearer = format!("Bearer {spelling}");
        let request = Request::get("/sandboxes").header("host", "localhost").header("authorization", bearer);
        app.send(request.body(Full::default()).unwrap()).await.expect(401);
    }
    // Of two keys the first counts; a wrong one is not corrected by a right one after it.
    let two = Request::get("/sandboxes")
        .header("host", "localhost")
        .header("x-api-key", "wrong")
        .header("x-api-key", key);
    app.send(two.body(Full::default()).unwrap()).await.expect(401);
    let both = Request::get("/sandboxes").header("host", "localhost").header("x-api-key", "wrong");
    let both = both.header("authorization", format!("Bearer {key}"));
    app.send(both.body(Full::default()).unwrap()).await.expect(401);
}

#[tokio::test]
async fn numbers_that_fit_nowhere_are_refused() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let before = app.row(&id).await;
    let numbers = [
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "18446744073709551616",
        "9223372036854776",
        "1e400",
        "-1e400",
        "1e18",
        "1.0000000001",
        "NaN",
        "\"9\"",
        "[1]",
        &"9".repeat(100_000),
    ];
    for number in numbers {
        let create = format!(r#"{{"templateID": "base", "timeout": {number}}}"#);
        for path in ["/sandboxes", "/v2/sandboxes"] {
            app.send_raw(Method::POST, path, create.clone()).await.expect(400);
        }
        let ports = format!(r#"{{"templateID": "base", "network": {{"httpsPorts": [{number}]}}}}"#);
        app.send_raw(Method::POST, "/v2/sandboxes", ports).await.expect(400);
        let timeout = format!(r#"{{"timeout": {number}}}"#);
        // Zero or less means now, however much less.
        if !number.starts_with("-9") {
            app.send_raw(Method::POST, &format!("/sandboxes/{id}/timeout"), timeout.clone())
                .await
                .expect(400);
        }
        app.send_raw(Method::POST, &format!("/sandboxes/{id}/connect"), timeout.clone()).await.expect(400);
        app.send_raw(Method::POST, &format!("/sandboxes/{id}/resume"), timeout).await.expect(400);
        let duration = format!(r#"{{"duration": {number}}}"#);
        app.send_raw(Method::POST, &format!("/sandboxes/{id}/refreshes"), duration).await.expect(400);
        if number.len() < 1000 {
            let number = number.replace('"', "%22");
            for path in ["/v2/sandboxes?limit=", "/v2/sandboxes/ID/logs?limit=", "/sandboxes/ID/logs?limit="]
            {
                app.get(&format!("{}{number}", path.replace("ID", &id))).await.expect(400);
            }
        }
    }
    // Where any time is allowed, the last one is too.
    for path in [
        "metrics?start=0&end=9223372036854775807",
        "metrics?start=9223372036854775807&end=9223372036854775807",
        "logs?start=9223372036854775807",
    ] {
        app.get(&format!("/sandboxes/{id}/{path}")).await.expect(200);
    }
    app.get(&format!("/v2/sandboxes/{id}/logs?cursor=9223372036854775807&direction=backward"))
        .await
        .expect(200);
    for (status, time) in [
        (200, "1970-01-01T00:00:00Z"),
        (200, "0000-01-01T00:00:00Z"),
        (200, "9999-12-30T00:00:00Z"),
        (400, "9999-12-31T23:59:59Z"),
        (400, "-009999-01-01T00:00:00Z"),
        (400, "292277026596-12-04T15:30:08Z"),
    ] {
        app.get(&format!("/v2/sandboxes?startedAfter={time}")).await.expect(status);
    }
    assert_eq!(app.row(&id).await, before);
}

#[tokio::test]
async fn json_of_any_depth_and_width_is_refused_or_bounded() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let deep = |open: &str, close: &str, levels: usize| {
        format!(r#"{{"templateID": "base", "metadata": {}1{}}}"#, open.repeat(levels), close.repeat(levels))
    };
    for (status, body) in [
        (400, deep("[", "]", 100_000)),
        (400, deep("{\"a\":", "}", 100_000)),
        (400, "[".repeat(900_000)),
        (400, "{\"a\":".repeat(200_000)),
        (413, format!(r#"{{"templateID": "{}"}}"#, "b".repeat(2 << 20))),
        (
            400,
            format!(
                r#"{{"templateID": "base", "metadata": {{{}"z": "z"}}}}"#,
                (0..60_000).map(|n| format!("\"{n}\": \"\", ")).collect::<String>()
            ),
        ),
        (
            400,
            format!(
                r#"{{"templateID": "base", "envVars": {{{}"z": "z"}}}}"#,
                (0..60_000).map(|n| format!("\"{n}\": \"\", ")).collect::<String>()
            ),
        ),
        (400, r#"{"templateID": "base", "metadata": {"\ud800": "lone"}}"#.to_string()),
        (400, "{\"templateID\": \"base\"} {}".to_string()),
        (400, "\u{feff}{\"templateID\": \"base\"}".to_string()),
        (400, format!("{{{}\"templateID\": \"base\", \"templateID\": \"base\"}}", " ".repeat(1000))),
    ] {
        let shown: String = body.chars().take(80).collect();
        let answer = app.send_raw(Method::POST, "/v2/sandboxes", body).await;
        assert_eq!(answer.status, status, "{shown}: {}", String::from_utf8_lossy(&answer.body));
        assert!(answer.body.len() < 4096, "{shown}: an answer of {} bytes", answer.body.len());
    }
    // Unknown fields are ignored, however deep.
    let unknown = format!(r#"{{"templateID": "base", "unknown": {}1{}}}"#, "[".repeat(100), "]".repeat(100));
    app.send_raw(Method::POST, "/v2/sandboxes", unknown).await.expect(201);
    let deeper =
        format!(r#"{{"templateID": "base", "unknown": {}1{}}}"#, "[".repeat(500_000), "]".repeat(400_000));
    app.send_raw(Method::POST, "/v2/sandboxes", deeper).await.expect(400);
    assert_eq!(app.state(&id).await, "running");
}

#[tokio::test]
async fn paths_of_the_api_lead_nowhere_else() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    for path in [
        format!("/sandboxes/..%2f..%2f{id}"),
        format!("/sandboxes/{id}%00"),
        format!("/sandboxes/%ff{id}"),
        format!("/sandboxes/{id}%2flogs"),
        format!("/sandboxes/{id}/../{id}"),
        format!("/sandboxes//{id}"),
        format!("/sandboxes/{}", "a".repeat(30_000)),
        format!("/sandboxes/{id}'%20OR%201=1"),
        format!("/templates/aliases/{}", "%2e".repeat(1000)),
        "/sandboxes/%F0%9F%92%A9".to_string(),
        "/%2e%2e/%2e%2e/etc/passwd".to_string(),
    ] {
        let answer = app.get(&path).await;
        assert!(matches!(answer.status, 400 | 404), "{path}: {}", answer.status);
        assert!(answer.body.len() < 1024, "{path}: an answer of {} bytes", answer.body.len());
    }
    // Old clients append a part, which is ignored. Ids have no other spelling.
    assert_eq!(app.state(&format!("{id}-anything")).await, "running");
    assert_eq!(app.state(&format!("{id} ").replace(' ', "%20")).await, "404");
}

/// Whatever an agentd puts into its journal becomes log entries, or nothing.
#[tokio::test]
async fn a_journal_that_makes_no_sense_costs_only_itself() {
    const RECORD: &str = r#"{"offset":0,"time_ms":1,"pid":1,"what":{"kind":"started","command":"x"}}"#;
    let app = TestApp::start().await;
    for manners in [
        Manners::Journal(""),
        Manners::Journal("null"),
        Manners::Journal("{"),
        Manners::Journal(r#"{"records":[],"next":18446744073709551616,"dropped":0}"#),
        Manners::Journal(r#"{"records":[],"next":18446744073709551615,"dropped":18446744073709551615}"#),
        Manners::Journal(r#"{"records":[{"offset":-1}],"next":0,"dropped":0}"#),
        Manners::LongJournal(1 << 20, "[[[["),
        Manners::LongJournal(64 << 20, " "),
        Manners::LongJournal(100_000, RECORD),
    ] {
        app.engine.set_manners(manners);
        let id = app.create(json!({})).await;
        for path in [format!("/sandboxes/{id}/logs"), format!("/v2/sandboxes/{id}/logs")] {
            let logs = app.get(&path).await.expect(200).json();
            let entries = logs["logs"].as_array().unwrap();
            assert!((1..=1000).contains(&entries.len()), "{manners:?}: {} entries", entries.len());
        }
        app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    }
    app.engine.set_manners(Manners::Good);
    let id = app.create(json!({})).await;
    assert_eq!(app.state(&id).await, "running");
}

/// A sandbox chooses the times and numbers of its journal.
#[tokio::test]
async fn a_journal_may_say_anything_within_its_types() {
    let app = TestApp::start().await;
    let extremes = r#"{"next":3,"dropped":0,"records":[
        {"offset":0,"time_ms":9223372036854775807,"pid":4294967295,"what":{"kind":"started","command":"\u0000\u001b[2J<script>"}},
        {"offset":1,"time_ms":-9223372036854775808,"pid":0,"what":{"kind":"output","stream":"stdout","position":0,"data":"!!!"}},
        {"offset":2,"time_ms":0,"pid":1,"what":{"kind":"ended","exit_code":-2147483648,"status":"x"}}]}"#;
    app.engine.set_manners(Manners::Journal(extremes));
    let id = app.create(json!({})).await;
    for path in [format!("/sandboxes/{id}/logs"), format!("/v2/sandboxes/{id}/logs?direction=backward")] {
        let answer = app.get(&path).await.expect(200);
        assert!(answer.json()["logs"].as_array().is_some_and(|logs| logs.len() >= 4), "{:?}", answer.json());
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    assert_eq!(app.state(&id).await, "running");
}

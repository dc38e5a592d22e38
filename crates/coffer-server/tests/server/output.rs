//! Executions and output, from agentd's journal to the API and over restarts.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use coffer_core::settings::{ByteSize, Period};
use coffer_core::{ExecutionId, SandboxId};
use coffer_server::{OutputSettings, ServerConfig};
use coffer_store::{ExecutionRow, ExecutionSource, NewExecution};
use coffer_wire::agentd::{OutputStream, ProcessFact};
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::agentd::FakeAgentd;
use crate::app::{TestApp, policy};

/// In two pieces, neither of which matches.
const CANARY: [&str; 2] = ["ghp_0123456789abcdef", "ghijABCDEFGHIJ012345"];

pub(crate) fn started(command: &str, tag: Option<&str>) -> ProcessFact {
    let (cwd, user) = (Some("/home/user".into()), Some("user".into()));
    ProcessFact::Started { command: command.into(), tag: tag.map(Into::into), cwd, user }
}

pub(crate) fn wrote(stream: OutputStream, position: u64, text: &str) -> ProcessFact {
    ProcessFact::Output { stream, position, data: BASE64_STANDARD.encode(text) }
}

pub(crate) fn ended(exit_code: i32) -> ProcessFact {
    ProcessFact::Ended { exit_code, status: format!("exit status {exit_code}"), untold: 0 }
}

async fn sandbox(app: &TestApp) -> (String, FakeAgentd) {
    let id = app.create(json!({})).await;
    let agentd = app.engine.agentd(id.parse().unwrap());
    (id, agentd)
}

/// Waits until the newest execution of a sandbox is as `wanted`.
pub(crate) async fn execution(app: &TestApp, sandbox: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    for _ in 0..300 {
        last = app.get(&format!("/api/v1/sandboxes/{sandbox}/executions")).await.expect(200).json();
        if let Some(found) = last["items"].as_array().unwrap().iter().find(|found| wanted(found)) {
            return found.clone();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no such execution: {last}");
}

pub(crate) async fn output(app: &TestApp, execution: &Value, query: &str) -> String {
    let id = execution["id"].as_str().unwrap();
    let answer = app.get(&format!("/api/v1/executions/{id}/output?raw=1&{query}")).await.expect(200);
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    answer.text()
}

fn files(app: &TestApp) -> Vec<PathBuf> {
    let walk = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
    walk(app.config.server_dir.join("output")).flat_map(walk).collect()
}

#[tokio::test]
async fn what_ran_and_what_it_wrote_is_on_record_without_secrets() {
    let app = TestApp::start().await;
    let (id, agentd) = sandbox(&app).await;
    agentd.happen(7, started(&format!("login --token {}", CANARY.concat()), None));
    let mut position = 0;
    for text in ["one\n", CANARY[0], CANARY[1], " three\n"] {
        agentd.happen(7, wrote(OutputStream::Stdout, position, text));
        position += text.len() as u64;
    }
    agentd.happen(7, wrote(OutputStream::Stderr, 0, "oh no\n"));
    // Six bytes were dropped before the server read them.
    agentd.happen(7, wrote(OutputStream::Stderr, 12, "again\n"));
    agentd.happen(7, ended(3));
    app.visit(&id, "/health").await;

    let found = execution(&app, &id, |found| found["state"] == "exited").await;
    let [first, second] = CANARY;
    let total = (11 + first.len() + second.len() + 18) as u64;
    assert_eq!(
        json!([
            found["command"],
            found["exit_code"],
            found["cwd"],
            found["user"],
            found["pid"],
            found["source"],
            found["output_bytes_total"],
            found["output_bytes_lost"],
            found["truncated"]
        ]),
        json!(["login --token [redacted]", 3, "/home/user", "user", 7, "e2b", total, 6, false]),
    );
    let stdout = "one\n[redacted] three\n";
    assert_eq!(output(&app, &found, "stream=stdout").await, stdout);
    for from in 0..=stdout.len() {
        assert_eq!(output(&app, &found, &format!("stream=stdout&from={from}")).await, stdout[from..]);
    }
    assert_eq!(output(&app, &found, "stream=stderr").await, "oh no\nagain\n");
    let all = output(&app, &found, "").await;
    assert_eq!(output(&app, &found, "tail=100000").await, all);
    let mut ends = Vec::new();
    for bytes in (0..1000).step_by(20) {
        let end = output(&app, &found, &format!("tail={bytes}")).await;
        assert!(all.ends_with(&end), "tail={bytes}: {end:?} of {all:?}");
        ends.push(end.len());
    }
    assert!(ends.is_sorted() && ends.iter().any(|&end| 0 < end && end < all.len()), "{ends:?}");

    let execution = found["id"].as_str().unwrap();
    let page =
        app.get(&format!("/api/v1/executions/{execution}/output?stream=stderr")).await.expect(200).json();
    let items: Vec<_> = page["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| json!([item["kind"], item["text"], item["missing_bytes"]]))
        .collect();
    assert_eq!(
        items,
        [json!(["output", "oh no\n", null]), json!(["gap", null, 6]), json!(["output", "again\n", null])]
    );
    assert_eq!(page["next"], Value::Null);

    let logs = |query: &str| {
        let path = format!("/api/v1/sandboxes/{id}/logs?{query}");
        let app = &app;
        async move { app.get(&path).await.expect(200) }
    };
    let lines: Vec<Value> = logs("").await.json()["items"].as_array().unwrap().clone();
    let messages: Vec<_> = lines.iter().map(|line| line["message"].as_str().unwrap()).collect();
    assert_eq!(
        messages,
        [
            "sandbox creating: requested",
            "sandbox running: ready",
            "started: login --token [redacted]",
            "one",
            "[redacted] three",
            "oh no",
            "6 bytes of output were lost",
            "again",
            "ended: exit status 3",
        ]
    );
    // The same with pages of one.
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = logs(&format!("limit=1{cursor}")).await.json();
        paged.extend(page["items"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(paged, lines);
    for (query, expected) in [
        ("search=three", 1),
        ("level=warn", 2),
        ("source=stdout,sandbox", 4),
        ("from=2100-01-01T00:00:00Z", 0),
        ("until=2000-01-01T00:00:00Z", 0),
        ("search=nowhere", 0),
    ] {
        let found = logs(query).await.json();
        assert_eq!(found["items"].as_array().unwrap().len(), expected, "{query}: {found}");
    }
    let file = logs("download=1&source=stdout").await;
    assert_eq!(file.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(file.text().lines().count(), 2, "{}", file.text());

    // All of it is there after the sandbox has ended, on both APIs, and agentd need not keep it.
    assert!(agentd.acks().last().is_some_and(|ack| ack.upto == 8), "{:?}", agentd.acks());
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    assert_eq!(output(&app, &found, "stream=stdout").await, stdout);
    let e2b = app.get(&format!("/v2/sandboxes/{id}/logs?search=redacted")).await.expect(200).json();
    assert_eq!(e2b["logs"].as_array().unwrap().len(), 2, "{e2b}");
    let events = app.get("/api/v1/events?kind=execution.*").await.expect(200).json();
    let kinds: Vec<_> = events["items"].as_array().unwrap().iter().map(|event| &event["kind"]).collect();
    assert_eq!(kinds, ["execution.started", "execution.ended"]);
    assert!(!events.to_string().contains(CANARY[1]));
    for file in files(&app) {
        let bytes = fs::read(&file).unwrap();
        for part in CANARY {
            assert!(!bytes.windows(part.len()).any(|window| window == part.as_bytes()), "{}", file.display());
        }
    }
}

#[tokio::test]
async fn a_torn_tail_and_a_restart_lose_and_repeat_nothing() {
    let mut app = TestApp::start().await;
    let (id, agentd) = sandbox(&app).await;
    agentd.happen(7, started("sh", None));
    agentd.happen(7, wrote(OutputStream::Pty, 0, "before "));
    app.visit(&id, "/health").await;
    execution(&app, &id, |found| found["output_bytes"] == 7).await;

    // A server died after it had written a record to the file, before it was in the database.
    app.restart(async |app| {
        let files = files(app);
        assert_eq!(files.len(), 1, "{files:?}");
        let mut bytes = fs::read(&files[0]).unwrap();
        bytes.extend_from_slice(&bytes.clone()[..30]);
        fs::write(&files[0], bytes).unwrap();
        agentd.happen(7, wrote(OutputStream::Pty, 7, "meanwhile "));
    })
    .await;
    execution(&app, &id, |found| found["output_bytes"] == 17).await;
    agentd.happen(7, wrote(OutputStream::Pty, 17, "after"));
    agentd.happen(7, ended(0));
    let found = execution(&app, &id, |found| found["state"] == "exited").await;
    assert_eq!(output(&app, &found, "").await, "before meanwhile after");
    let all = app.get("/api/v1/executions").await.expect(200).json();
    assert_eq!(all["items"].as_array().unwrap().len(), 1, "{all}");
    let events = app.get("/api/v1/events?kind=execution.*").await.expect(200).json();
    assert_eq!(events["items"].as_array().unwrap().len(), 2, "{events}");
}

/// A stream of one sandbox, as a browser would read it.
struct Stream {
    body: hyper::body::Incoming,
    text: String,
}

impl Stream {
    async fn open(app: &TestApp, id: &str, after: Option<&str>) -> Self {
        let mut request = app.request(Method::GET, &format!("/api/v1/sandboxes/{id}/stream"));
        if let Some(after) = after {
            request = request.header("last-event-id", after);
        }
        let stream = tokio::net::TcpStream::connect(app.address()).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let response =
            sender.send_request(request.body(Full::<bytes::Bytes>::default()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        Self { body: response.into_body(), text: String::new() }
    }

    /// The next message: its id, its kind, its data.
    async fn next(&mut self) -> Option<(String, String, Value)> {
        loop {
            if let Some((message, rest)) = self.text.split_once("\n\n") {
                let field =
                    |name: &str| message.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                let read = field("id:").map(|id| {
                    let data = serde_json::from_str(field("data:").unwrap()).unwrap();
                    (id.to_string(), field("event:").unwrap().to_string(), data)
                });
                self.text = rest.to_string();
                if read.is_some() {
                    return read;
                }
                continue;
            }
            let frame =
                tokio::time::timeout(Duration::from_secs(20), self.body.frame()).await.expect("in time")?;
            let Ok(frame) = frame else { return None };
            self.text += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
        }
    }

    /// The next output, with the id of its message.
    async fn output(&mut self) -> (String, String) {
        loop {
            let (id, kind, data) = self.next().await.expect("the stream goes on");
            if kind == "output" {
                return (id, data["text"].as_str().unwrap().to_string());
            }
        }
    }
}

#[tokio::test]
async fn a_stream_goes_on_from_any_place_over_a_restart() {
    let mut app = TestApp::start().await;
    let (id, agentd) = sandbox(&app).await;
    let mut stream = Stream::open(&app, &id, Some("0-0")).await;
    agentd.happen(7, started("count", None));
    let (mut position, mut written) = (0, String::new());
    let (mut seen, mut places) = (String::new(), vec![("0-0".to_string(), 0)]);
    for round in 0..6 {
        if round == 3 {
            app.restart(async |_| ()).await;
            let last = places.last().unwrap().0.clone();
            stream = Stream::open(&app, &id, Some(&last)).await;
        }
        let text = format!("line {round}\n");
        agentd.happen(7, wrote(OutputStream::Stdout, position, &text));
        position += text.len() as u64;
        written += &text;
        app.visit(&id, "/health").await;
        while seen.len() < written.len() {
            let (place, text) = stream.output().await;
            seen += &text;
            places.push((place, seen.len()));
        }
    }
    assert_eq!(seen, written);
    agentd.happen(7, ended(0));
    for (place, length) in &places {
        let mut stream = Stream::open(&app, &id, Some(place)).await;
        let mut rest = String::new();
        while rest.len() < written.len() - length {
            rest += &stream.output().await.1;
        }
        assert_eq!(rest, written[*length..], "from {place}");
    }
    // Its events come too, with their own positions.
    let mut stream = Stream::open(&app, &id, Some("0-0")).await;
    let mut kinds = Vec::new();
    while kinds.last().is_none_or(|kind| kind != "execution.ended") {
        kinds.push(stream.next().await.unwrap().1);
    }
    assert!(kinds.iter().any(|kind| kind == "sandbox.running"), "{kinds:?}");
    let bad = app.request(Method::GET, &format!("/api/v1/sandboxes/{id}/stream?after=x"));
    app.send(bad.body(Full::default()).unwrap()).await.expect(400);
}

fn settings(output: OutputSettings) -> ServerConfig {
    ServerConfig { lifetime: policy(), output, ..ServerConfig::default() }
}

#[tokio::test]
async fn too_much_output_is_counted_and_not_kept() {
    let most_per_execution = ByteSize::kib(100);
    let app =
        TestApp::configured(settings(OutputSettings { most_per_execution, ..OutputSettings::default() }))
            .await;
    let (id, agentd) = sandbox(&app).await;
    agentd.happen(7, started("yes", None));
    let piece = "y\n".repeat(15_000);
    for number in 0..6 {
        agentd.happen(7, wrote(OutputStream::Stdout, number * piece.len() as u64, &piece));
    }
    app.visit(&id, "/health").await;
    let found = execution(&app, &id, |found| found["output_bytes_total"] == 180_000).await;
    assert_eq!(
        (&found["truncated"], &found["output_bytes"], &found["output_bytes_lost"]),
        (&json!(true), &json!(102_400), &json!(180_000 - 102_400))
    );
    assert_eq!(output(&app, &found, "").await.len(), 102_400);
    // agentd need not send more of it, and reports how much there was.
    assert!(agentd.acks().iter().any(|ack| ack.mute == [7]), "{:?}", agentd.acks());
    agentd.happen(7, ProcessFact::Ended { exit_code: 0, status: "exit status 0".into(), untold: 1000 });
    let found = execution(&app, &id, |found| found["state"] == "exited").await;
    assert_eq!(found["output_bytes_total"], json!(181_000));
    let logs = app.get(&format!("/api/v1/sandboxes/{id}/logs?level=warn")).await.expect(200).json();
    assert_eq!(logs["items"].as_array().unwrap().len(), 1, "{logs}");
}

#[tokio::test]
async fn the_oldest_output_of_a_sandbox_makes_room() {
    let output_settings = OutputSettings { most_per_sandbox: ByteSize::mib(2), ..OutputSettings::default() };
    let app = TestApp::configured(settings(output_settings)).await;
    let (id, agentd) = sandbox(&app).await;
    agentd.happen(7, started("cat", None));
    let piece = "0123456789abcde\n".repeat(2048);
    for number in 0..128 {
        agentd.happen(7, wrote(OutputStream::Stdout, number * piece.len() as u64, &piece));
    }
    agentd.happen(7, ended(0));
    app.visit(&id, "/health").await;
    let found = execution(&app, &id, |found| found["state"] == "exited").await;
    assert_eq!(found["output_bytes"], json!(128 * piece.len()));
    let kept = output(&app, &found, "").await.len();
    assert!(kept < 3 << 20 && kept > 1 << 20, "{kept}");
    let on_disk: u64 = files(&app).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(on_disk < 3 << 20, "{on_disk}");
    let execution = found["id"].as_str().unwrap();
    let page = app.get(&format!("/api/v1/executions/{execution}/output")).await.expect(200).json();
    assert_eq!(page["pruned"], json!(true));
}

#[tokio::test]
async fn last_words_are_heard_and_the_unfinished_is_lost() {
    let app = TestApp::start().await;
    let (id, agentd) = sandbox(&app).await;
    app.visit(&id, "/health").await;
    agentd.happen(7, started("sleep 1000", None));
    agentd.happen(7, wrote(OutputStream::Stdout, 0, "half a key: sk-"));
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    let found = execution(&app, &id, |found| found["state"] == "lost").await;
    assert_eq!(output(&app, &found, "").await, "half a key: sk-");
    assert!(found["ended_at"].is_string() && found["exit_code"].is_null(), "{found}");
}

#[tokio::test]
async fn a_pause_that_keeps_only_files_ends_what_runs() {
    let app = TestApp::start().await;
    let (id, agentd) = sandbox(&app).await;
    app.visit(&id, "/health").await;
    agentd.happen(7, started("sleep 1000", None));
    agentd.happen(7, wrote(OutputStream::Stdout, 0, "so far\n"));
    app.post(&format!("/api/v1/sandboxes/{id}/pause"), json!({"memory": false})).await.expect(200);
    let found = execution(&app, &id, |found| found["state"] == "lost").await;
    assert_eq!(output(&app, &found, "").await, "so far\n");
    app.post_empty(&format!("/api/v1/sandboxes/{id}/resume")).await.expect(200);
    // The next agentd counts from the beginning.
    let agentd = app.engine.agentd(id.parse().unwrap());
    agentd.happen(7, started("true", None));
    agentd.happen(7, ended(0));
    execution(&app, &id, |found| found["state"] == "exited" && found["command"] == "true").await;
}

#[tokio::test]
async fn old_output_is_compressed_and_then_deleted() {
    let mut app = TestApp::start().await;
    let (id, agentd) = sandbox(&app).await;
    agentd.happen(7, started("cat", None));
    agentd.happen(7, wrote(OutputStream::Stdout, 0, &"the same again\n".repeat(1000)));
    agentd.happen(7, ended(0));
    app.visit(&id, "/health").await;
    let found = execution(&app, &id, |found| found["state"] == "exited").await;
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    let whole = output(&app, &found, "").await;
    let extension = |app: &TestApp| files(app).first().and_then(|file| Some(file.extension()?.to_owned()));
    assert_eq!(extension(&app).unwrap(), "log");

    app.config.output.archive_after = Period::secs(0);
    app.restart(async |_| ()).await;
    for _ in 0..200 {
        if extension(&app).is_some_and(|extension| extension == "zst") && files(&app).len() == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(extension(&app).unwrap(), "zst");
    assert!(fs::metadata(&files(&app)[0]).unwrap().len() < 2000);
    assert_eq!(output(&app, &found, "").await, whole);
    let logs =
        app.get(&format!("/api/v1/sandboxes/{id}/logs?search=again&limit=1000")).await.expect(200).json();
    assert_eq!(logs["items"].as_array().unwrap().len(), 1000);

    app.config.output.prune_after = Period::secs(0);
    app.restart(async |_| ()).await;
    for _ in 0..200 {
        if files(&app).is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(files(&app), [] as [PathBuf; 0]);
    let execution = found["id"].as_str().unwrap();
    let gone = app.get(&format!("/api/v1/executions/{execution}/output")).await.expect(410).json();
    assert_eq!(gone["code"], "gone");
    app.get(&format!("/api/v1/executions/{execution}")).await.expect(200);
    app.get(&format!("/api/v1/sandboxes/{id}/logs")).await.expect(200);
}

#[tokio::test]
async fn an_announced_execution_is_bound_to_its_process_alone() {
    let mut app = TestApp::start().await;
    let (id, agentd) = sandbox(&app).await;
    let (other, other_agentd) = sandbox(&app).await;
    let (project, sandbox): (_, SandboxId) = (app.scope().await.project(), id.parse().unwrap());
    let new = NewExecution {
        id: ExecutionId::generate(),
        actor: None,
        command: "make".into(),
        cwd: None,
        user: None,
        source: ExecutionSource::Api,
        code: None,
    };
    let tag = new.id.to_string();
    // Recorded by a server that died before the process was reported.
    app.store.begin_execution(ExecutionRow::new(new, project, sandbox, None, 1)).await.unwrap();
    app.restart(async |_| ()).await;
    other_agentd.happen(7, started("thief", Some(&tag)));
    app.visit(&other, "/health").await;
    let thief = execution(&app, &other, |_| true).await;
    assert!(thief["id"] != json!(tag) && thief["source"] == "e2b", "{thief}");
    for pid in [8, 9] {
        agentd.happen(pid, started("make all", Some(&tag)));
        agentd.happen(pid, wrote(OutputStream::Stdout, 0, &format!("{pid}\n")));
        agentd.happen(pid, ended(0));
    }
    app.visit(&id, "/health").await;
    let second = execution(&app, &id, |found| found["state"] == "exited" && found["pid"] == 9).await;
    assert!(second["id"] != json!(tag), "{second}");
    let first = app.get(&format!("/api/v1/executions/{tag}")).await.expect(200).json();
    assert_eq!(
        (&first["pid"], &first["source"], &first["command"], &first["state"]),
        (&json!(8), &json!("api"), &json!("make"), &json!("exited"))
    );
    assert_eq!(output(&app, &first, "").await, "8\n");
}

#[tokio::test]
async fn nobody_else_sees_executions_logs_or_streams() {
    let app = TestApp::start().await;
    let (id, agentd) = sandbox(&app).await;
    agentd.happen(7, started("true", None));
    agentd.happen(7, ended(0));
    app.visit(&id, "/health").await;
    let found = execution(&app, &id, |found| found["state"] == "exited").await;
    let execution = found["id"].as_str().unwrap();
    let agent = app.post("/api/v1/agents", json!({"name": "a"})).await.expect(201).json();
    let key = json!({"name": "a", "role": "write", "agent_id": agent["id"]});
    let agents_key =
        app.post("/api/v1/keys", key).await.expect(201).json()["key"].as_str().unwrap().to_string();
    for key in [&app.other_key, &agents_key] {
        for path in [
            format!("/api/v1/executions/{execution}"),
            format!("/api/v1/executions/{execution}/output"),
            format!("/api/v1/sandboxes/{id}/executions"),
            format!("/api/v1/sandboxes/{id}/logs"),
            format!("/api/v1/sandboxes/{id}/stream"),
        ] {
            let answer = app.as_key(key, Method::GET, &path, Value::Null).await;
            assert_eq!(answer.status, 404, "{path}: {}", answer.text());
        }
        for query in ["", &format!("?sandbox={id}")] {
            let listed =
                app.as_key(key, Method::GET, &format!("/api/v1/executions{query}"), Value::Null).await;
            assert_eq!(listed.expect(200).json()["items"], json!([]));
        }
    }
    for bad in ["state=odd", "sandbox=x", "from=yesterday", "limit=0"] {
        app.get(&format!("/api/v1/executions?{bad}")).await.expect(422);
    }
    app.get(&format!("/api/v1/executions/{execution}/output?from=3")).await.expect(422);
}

#[tokio::test]
async fn a_replayed_stream_is_in_the_order_of_time() {
    let mut app = TestApp::start().await;
    let (id, agentd) = sandbox(&app).await;
    let mut expected = Vec::new();
    for round in 0..4 {
        agentd.happen(7, started("count", None));
        let text = format!("line {round}\n");
        agentd.happen(7, wrote(OutputStream::Stdout, 0, &text));
        agentd.happen(7, ended(0));
        expected.extend(["execution.started", "output", "execution.ended"]);
        app.visit(&id, "/health").await;
        let ended = async || app.events("execution.ended").await.len() == round + 1;
        crate::limits::eventually("it is on record", ended).await;
    }
    // From the files as well as from memory.
    for restarts in [false, true] {
        if restarts {
            app.restart(async |_| ()).await;
        }
        let mut stream = Stream::open(&app, &id, Some("0-0")).await;
        let (mut kinds, mut places) = (Vec::new(), Vec::new());
        while kinds.len() < expected.len() {
            let (place, kind, _) = stream.next().await.unwrap();
            if !kind.starts_with("sandbox.") {
                kinds.push(kind);
                places.push(place);
            }
        }
        assert_eq!(kinds, expected, "restarted: {restarts}");
        // A reader that resumes at any position gets the rest in the same order.
        for (at, place) in places.iter().enumerate().take(expected.len() - 1) {
            let mut stream = Stream::open(&app, &id, Some(place)).await;
            assert_eq!(stream.next().await.unwrap().1, expected[at + 1], "after {place}");
        }
        // A WebSocket tells the same, with the same positions.
        let path = format!("/api/v1/sandboxes/{id}/ws");
        let mut socket = crate::sockets::open_at(&app, &path, "?after=0-0").await;
        let mut told = Vec::new();
        while told.len() < expected.len() {
            let message = crate::sockets::event(&mut socket).await;
            let text = |field: &str| message[field].as_str().unwrap().to_string();
            if message["kind"] == "output" {
                assert!(message["data"]["text"].as_str().unwrap().starts_with("line "), "{message}");
            }
            if !text("kind").starts_with("sandbox.") {
                told.push((text("id"), text("kind")));
            }
        }
        let all: Vec<_> = places.iter().cloned().zip(kinds.iter().cloned()).collect();
        assert_eq!(told, all, "restarted: {restarts}");
        let query = format!("?after={}", places[4]);
        let mut socket = crate::sockets::open_at(&app, &path, &query).await;
        assert_eq!(crate::sockets::event(&mut socket).await["kind"], expected[5]);
    }
}

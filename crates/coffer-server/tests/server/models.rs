//! The model gateway, with a scripted provider on loopback: what passes, what it costs, and what a hostile agent
//! cannot do with it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coffer_core::agent::Preset;
use coffer_core::model::{CallKind, KeyHeader, Prices, Provider};
use coffer_core::{AgentId, RunId, SandboxId, TaskId};
use coffer_server::{ModelConfig, ModelSettings, ServerConfig};
use coffer_store::{GrantRow, ModelKey, NewCall, NewGrant, Periods, Reserved, Worth};
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::app::{Answer, TestApp, policy};

const PASS: &str = "cofmodel_test";
const KEY: &str = "sk-the-real-key";
const MODEL: &str = "test-model";

/// A provider that answers as its script says, and remembers what it was sent.
struct Scripted {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<(String, Value)>>>,
}

/// An answer: its status, its type, and its pieces, which come `pause` apart.
struct Reply {
    status: u16,
    kind: &'static str,
    pieces: Vec<String>,
    pause: Duration,
}

fn reply(kind: &'static str, text: impl ToString) -> Reply {
    Reply { status: 200, kind, pieces: vec![text.to_string()], pause: Duration::ZERO }
}

impl Scripted {
    async fn start(script: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, heard) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let (script, noted) = (Arc::new(script), heard.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, script.clone(), noted.clone()));
            }
        });
        Self { address, heard }
    }

    fn heard(&self) -> Vec<(String, Value)> {
        self.heard.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    script: Arc<impl Fn(&str, &Value) -> Reply>,
    noted: Arc<Mutex<Vec<(String, Value)>>>,
) {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(read) => bytes.extend_from_slice(&piece[..read]),
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
    let mut body = bytes[end..].to_vec();
    while body.len() < length {
        let mut piece = vec![0; 65536];
        let read = stream.read(&mut piece).await.unwrap();
        body.extend_from_slice(&piece[..read]);
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    noted.lock().unwrap().push((head.clone(), body.clone()));
    let Reply { status, kind, pieces, pause } = script(&head, &body);
    let begin = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nx-ratelimit-remaining: 7\r\nset-cookie: a=b\r\n\
         connection: close\r\n\r\n"
    );
    if stream.write_all(begin.as_bytes()).await.is_err() {
        return;
    }
    for piece in pieces {
        if stream.write_all(piece.as_bytes()).await.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
    }
    let _ = stream.shutdown().await;
}

fn prices() -> Prices {
    let table = json!({"as_of": "2026-11-18", "currency": "USD", "models": {
        // A dollar for a thousand tokens of output, and input for a thousandth of that.
        MODEL: {"input": 1.0, "cached": 0.5, "output": 1000.0, "window": 100_000, "most_output": 10_000},
    }});
    Prices::built_in().with(Prices::parse(&table.to_string()).unwrap())
}

/// A server whose providers are all at one place.
async fn gateway(provider: &Scripted) -> TestApp {
    let url = Some(format!("http://{}", provider.address));
    let settings = ModelSettings {
        anthropic_url: url.clone(),
        openai_url: url.clone(),
        gemini_url: url,
        ..ModelSettings::default()
    };
    let models = ModelConfig { settings, prices: prices() };
    let app =
        TestApp::configured(ServerConfig { lifetime: policy(), models, ..ServerConfig::default() }).await;
    app.put("/api/v1/secrets/key", json!({"value": KEY})).await.expect(201);
    app
}

fn digest(pass: &str) -> String {
    hex::encode(ring::digest::digest(&ring::digest::SHA256, pass.as_bytes()).as_ref())
}

/// A sandbox that may call models with `PASS`, as a turn of an agent does.
async fn grant(app: &mut TestApp, budget: Option<f64>) -> GrantRow {
    let sandbox: SandboxId = app.create(json!({})).await.parse().unwrap();
    #[expect(clippy::cast_possible_truncation, reason = "small amounts")]
    let budget_nanos = budget.map(|budget| (budget * 1e9) as i64);
    let keys = [
        (Provider::Anthropic, KeyHeader::ApiKey),
        (Provider::OpenAi, KeyHeader::Bearer),
        (Provider::Gemini, KeyHeader::GoogApiKey),
    ];
    let keys = keys.map(|(provider, header)| (provider, ModelKey { secret: "key".into(), header }));
    let new = NewGrant {
        key: format!("turn:{sandbox}"),
        sandbox,
        agent: Some(AgentId::generate()),
        task: Some(TaskId::generate()),
        run: Some(RunId::generate()),
        preset: Preset::Custom,
        keys: BTreeMap::from(keys),
        pass_digest: digest(PASS),
        budget_nanos,
        run_budget_nanos: None,
    };
    let row = app.store.open_grant(&app.scope().await, new).await.unwrap();
    // The next server opens the grants on record again, and the old passes stay valid.
    app.restart(async |_| {}).await;
    row
}

async fn ask(app: &TestApp, path: &str, body: &Value) -> Answer {
    ask_with(app, PASS, path, body.to_string()).await
}

async fn ask_with(app: &TestApp, pass: &str, path: &str, body: String) -> Answer {
    let request = Request::builder()
        .method(if body == "null" { Method::GET } else { Method::POST })
        .uri(format!("/model{path}"))
        .header("host", app.address().to_string())
        .header("authorization", format!("Bearer {pass}"))
        .header("content-type", "application/json")
        .header("user-agent", "claude-cli/1")
        .header("x-api-key", "dummy")
        .header("openai-organization", "other")
        .body(Full::new(body.into()))
        .unwrap();
    app.send(request).await
}

async fn calls(app: &TestApp, query: &str) -> Vec<Value> {
    let page = app.get(&format!("/api/v1/model-calls?{query}")).await.expect(200).json();
    page["items"].as_array().unwrap().clone()
}

/// Waits until every call is settled.
async fn settled(app: &TestApp) -> Vec<Value> {
    for _ in 0..1000 {
        let all = calls(app, "limit=200").await;
        if all.iter().all(|call| !call["outcome"].is_null()) {
            return all;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("calls are still in progress: {:?}", calls(app, "").await);
}

/// Waits until egress is told of a way to models with another pass than `before`.
async fn way(app: &TestApp, sandbox: SandboxId, before: &Value) -> Value {
    for _ in 0..1000 {
        if let Some(route) = app.engine.policy(sandbox).model() {
            let route = serde_json::to_value(route).unwrap();
            if route["authorization"] != before["authorization"] {
                return route;
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the way to models is not open");
}

const MESSAGES: &str = "/anthropic/v1/messages";

fn message(most: u64) -> Value {
    json!({"model": MODEL, "max_tokens": most, "messages": [{"role": "user", "content": "hi"}]})
}

fn anthropic(output: u64) -> String {
    json!({"model": MODEL, "usage": {"input_tokens": 1000, "output_tokens": output}}).to_string()
}

fn sse(events: &[Value]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

#[tokio::test]
async fn every_api_passes_with_the_real_key_and_its_usage_is_counted() {
    let provider = Scripted::start(|head, body| {
        let streams = body["stream"] == true || head.contains("alt=sse");
        let stream = "text/event-stream";
        match () {
            () if head.starts_with("get ") => reply("application/json", r#"{"data":[]}"#),
            () if head.contains("count_tokens") => reply("application/json", r#"{"input_tokens":9}"#),
            () if head.contains("/v1/messages") && streams => reply(
                stream,
                sse(&[
                    json!({"type": "message_start", "message": {"model": MODEL, "usage": {"input_tokens": 400,
                        "cache_read_input_tokens": 600, "output_tokens": 1}}}),
                    json!({"type": "message_delta", "usage": {"output_tokens": 5}}),
                ]),
            ),
            () if head.contains("/v1/messages") => reply("application/json", anthropic(5)),
            () if head.contains("/v1/responses") => {
                let response = json!({"model": MODEL, "usage": {"input_tokens": 1000,
                    "input_tokens_details": {"cached_tokens": 600}, "output_tokens": 5}});
                match streams {
                    true => {
                        reply(stream, sse(&[json!({"type": "response.completed", "response": response})]))
                    }
                    false => reply("application/json", response),
                }
            }
            () if head.contains("/chat/completions") => {
                let usage = json!({"model": MODEL, "choices": [], "usage": {"prompt_tokens": 1000,
                    "prompt_tokens_details": {"cached_tokens": 600}, "completion_tokens": 5}});
                let word = json!({"choices": [{"delta": {"content": "hi"}}], "usage": null});
                match streams {
                    true => reply(stream, sse(&[word, usage]) + "data: [DONE]\n\n"),
                    false => reply("application/json", usage),
                }
            }
            () => {
                let piece = json!({"modelVersion": MODEL, "usageMetadata": {"promptTokenCount": 1000,
                    "cachedContentTokenCount": 600, "candidatesTokenCount": 3, "thoughtsTokenCount": 2}});
                match streams {
                    true => reply(stream, sse(&[piece])),
                    false => reply("application/json", piece),
                }
            }
        }
    })
    .await;
    let mut app = gateway(&provider).await;
    let grant = grant(&mut app, None).await;
    let gemini = format!("/gemini/v1beta/models/{MODEL}");
    let chat = json!({"model": MODEL, "stream": true, "messages": []});
    for (path, body) in [
        (MESSAGES.to_string(), message(100)),
        (format!("{MESSAGES}?beta=true"), json!({"model": MODEL, "max_tokens": 9, "stream": true})),
        ("/openai/v1/responses".into(), json!({"model": MODEL, "input": "hi"})),
        ("/openai/v1/responses".into(), json!({"model": MODEL, "input": "hi", "stream": true})),
        ("/openai/v1/chat/completions".into(), json!({"model": MODEL, "messages": []})),
        ("/openai/v1/chat/completions".into(), chat),
        (format!("{gemini}:generateContent"), json!({"contents": []})),
        (format!("{gemini}:streamGenerateContent?alt=sse&key=dummy"), json!({"contents": []})),
        ("/anthropic/v1/messages/count_tokens".into(), json!({"model": MODEL})),
        ("/openai/v1/models".into(), Value::Null),
    ] {
        let answer = ask(&app, &path, &body).await;
        assert_eq!(answer.status, 200, "{path} {}", answer.text());
        assert_eq!(answer.header("x-ratelimit-remaining"), Some("7"), "limits of the provider are shown");
        assert!(answer.header("set-cookie").is_none() && !answer.text().contains(KEY));
        if path.contains("chat") && body["stream"] == true {
            assert!(
                answer.text().contains("hi") && !answer.text().contains("prompt_tokens"),
                "{}",
                answer.text()
            );
        }
    }
    let heard = provider.heard();
    assert_eq!(heard.len(), 10);
    for (head, _) in &heard {
        let header = match () {
            () if head.contains("/v1/messages") => format!("x-api-key: {KEY}"),
            () if head.contains("/v1beta/") => format!("x-goog-api-key: {KEY}"),
            () => format!("authorization: bearer {KEY}"),
        };
        assert!(head.contains(&header), "{head}");
        assert!(
            !head.contains("dummy") && !head.contains("cofmodel") && !head.contains("organization"),
            "{head}"
        );
        assert!(head.contains("user-agent: claude-cli/1"), "{head}");
    }
    let asked = heard.iter().find(|(head, body)| head.contains("/chat/") && body["stream"] == true).unwrap();
    assert_eq!(asked.1["stream_options"]["include_usage"], true);
    let all = settled(&app).await;
    assert_eq!(all.len(), 8, "calls that cost nothing are not recorded");
    for call in &all {
        assert_eq!(
            (&call["outcome"], &call["status"], &call["model"]),
            (&json!("answered"), &json!(200), &json!(MODEL))
        );
        assert_eq!((&call["input_tokens"], &call["output_tokens"]), (&json!(1000), &json!(5)), "{call}");
        let cached = call["cached_tokens"].as_i64().unwrap();
        // 1 for a million tokens of input, half of it if cached; a thousandth for a token of output.
        let cost = 0.005 + (1000 - cached) as f64 * 1e-6 + cached as f64 * 0.5e-6;
        assert!((call["cost"].as_f64().unwrap() - cost).abs() < 1e-9, "{call}");
        assert_eq!(call["task_id"], json!(grant.task.unwrap().to_string()));
    }
    assert_eq!(calls(&app, &format!("task_id={}", grant.task.unwrap())).await.len(), 8);
    assert!(calls(&app, &format!("task_id={}", TaskId::generate())).await.is_empty());
    let usage = app.get("/api/v1/usage?group=sandbox").await.expect(200).json();
    let usage = &usage["items"][0];
    assert_eq!((&usage["model_calls"], &usage["model_output_tokens"]), (&json!(8), &json!(40)), "{usage}");
    assert!(
        usage["model_cost"].as_f64().unwrap() > 0.04 && usage["cost"].as_f64().unwrap() < 0.01,
        "{usage}"
    );
}

#[tokio::test]
async fn concurrent_calls_cannot_pass_a_budget_together() {
    // Each answer costs a tenth of a dollar, and could cost half a dollar.
    let provider = Scripted::start(|_, _| Reply {
        pause: Duration::from_millis(30),
        ..reply("application/json", anthropic(100))
    })
    .await;
    let mut app = gateway(&provider).await;
    let grant = grant(&mut app, Some(1.0)).await;
    let asking = (0..40).map(|_| async { ask(&app, MESSAGES, &message(500)).await });
    let answers = futures_util::future::join_all(asking).await;
    let passed = answers.iter().filter(|answer| answer.status == 200).count();
    assert!((2..=9).contains(&passed), "{passed} calls of a tenth passed a budget of 1");
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!(answer.status, 402, "{}", answer.text());
        let told = answer.json();
        assert_eq!(told["error"]["type"], "billing_error");
        assert!(told["error"]["message"].as_str().unwrap().contains("budget"), "{told}");
    }
    let all = settled(&app).await;
    let cost: f64 = all.iter().filter_map(|call| call["cost"].as_f64()).sum();
    assert!(cost <= 1.0, "{cost}");
    assert_eq!(provider.heard().len(), passed, "a refused call is not sent");
    // Near the end an answer is limited to what is left of the budget.
    assert!(provider.heard().iter().all(|(_, body)| body["max_tokens"].as_u64().unwrap() <= 500));
    let events = app.events("model.budget_reached").await;
    assert_eq!(events.len(), 1, "once for each turn: {events:?}");
    assert_eq!(
        (&events[0]["limit"], &events[0]["task"]),
        (&json!("task"), &json!(grant.task.unwrap().to_string()))
    );
}

#[tokio::test]
async fn retries_cannot_pass_a_budget_and_failed_calls_cost_nothing() {
    // Every second call fails, as a provider does that is overloaded; the others cost a quarter of a dollar.
    let number = AtomicU32::new(0);
    let provider = Scripted::start(move |_, _| match number.fetch_add(1, Ordering::Relaxed) % 2 {
        0 => Reply { status: 529, ..reply("application/json", json!({"error": {"message": "busy"}})) },
        _ => reply("application/json", anthropic(249)),
    })
    .await;
    let mut app = gateway(&provider).await;
    grant(&mut app, Some(1.0)).await;
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(ask(&app, MESSAGES, &message(249)).await.status);
    }
    let paid = statuses.iter().filter(|status| **status == 200).count();
    assert!((3..=4).contains(&paid), "{statuses:?}");
    assert_eq!(statuses[statuses.len() - 5..], [402; 5], "and it stays so");
    let all = settled(&app).await;
    let cost: f64 = all.iter().filter_map(|call| call["cost"].as_f64()).sum();
    assert!((cost - 0.25 * paid as f64).abs() < 1e-9 && cost <= 1.0, "{cost}");
}

#[tokio::test]
async fn a_pass_that_is_none_opens_nothing() {
    let provider = Scripted::start(|_, _| reply("application/json", anthropic(1))).await;
    let mut app = gateway(&provider).await;
    let row = grant(&mut app, None).await;
    let key = app.key.clone();
    for wrong in ["", "cofmodel_", "cofmodel_of_another_project", KEY, &key, &digest(PASS)] {
        let answer = ask_with(&app, wrong, MESSAGES, message(10).to_string()).await;
        assert_eq!(answer.status, 401, "{wrong}: {}", answer.text());
    }
    assert_eq!(ask(&app, MESSAGES, &message(10)).await.status, 200);
    // The turn is over: its pass is worth nothing, also to a process that it left behind.
    app.store.close_grant(&app.store.operator(), row.id).await.unwrap();
    app.restart(async |_| {}).await;
    assert_eq!(ask(&app, MESSAGES, &message(10)).await.status, 401);
    assert_eq!(provider.heard().len(), 1);
}

#[tokio::test]
async fn a_projects_budget_holds_over_all_its_sandboxes() {
    let provider = Scripted::start(|_, _| reply("application/json", anthropic(400))).await;
    let mut app = gateway(&provider).await;
    grant(&mut app, None).await;
    app.post("/api/v1/budgets", json!({"period": "month", "amount": 1.0})).await.expect(201);
    let mut passed = 0;
    for _ in 0..5 {
        let answer = ask(&app, MESSAGES, &message(400)).await;
        passed += usize::from(answer.status == 200);
        assert!([200, 402].contains(&answer.status), "{}", answer.text());
    }
    assert_eq!(passed, 2, "each costs 0.401");
    // Another project's calls are not held back by it, nor seen.
    let other = app.as_key(&app.other_key, Method::GET, "/api/v1/model-calls", Value::Null).await.expect(200);
    assert!(other.json()["items"].as_array().unwrap().is_empty());
    let id = calls(&app, "").await[0]["id"].as_str().unwrap().to_string();
    let path = format!("/api/v1/model-calls/{id}");
    app.get(&path).await.expect(200);
    app.as_key(&app.other_key, Method::GET, &path, Value::Null).await.expect(404);
}

#[tokio::test]
async fn an_answer_that_nobody_waits_for_is_paid_for() {
    let start =
        json!({"type": "message_start", "message": {"usage": {"input_tokens": 1000, "output_tokens": 1}}});
    let end = json!({"type": "message_delta", "usage": {"output_tokens": 300}});
    let (start, end) = (sse(&[start]), sse(&[end]));
    let provider = Scripted::start(move |_, _| Reply {
        pieces: vec![start.clone(), sse(&[json!({"type": "ping"})]), end.clone()],
        pause: Duration::from_millis(200),
        ..reply("text/event-stream", "")
    })
    .await;
    let mut app = gateway(&provider).await;
    grant(&mut app, Some(1.0)).await;
    let mut stream = TcpStream::connect(app.address()).await.unwrap();
    let body = json!({"model": MODEL, "max_tokens": 400, "stream": true}).to_string();
    let request = format!(
        "POST /model{MESSAGES} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {PASS}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut first = [0; 16];
    stream.read_exact(&mut first).await.unwrap();
    drop(stream);
    let all = settled(&app).await;
    assert_eq!(
        (&all[0]["outcome"], &all[0]["output_tokens"]),
        (&json!("aborted"), &json!(300)),
        "{:?}",
        all[0]
    );
    assert_eq!((&all[0]["cost"], &all[0]["estimated"]), (&json!(0.301), &json!(false)));
}

#[tokio::test]
async fn an_answer_without_usage_costs_what_was_reserved() {
    let provider = Scripted::start(|_, body| match body["max_tokens"].as_u64() {
        Some(401) => {
            Reply { status: 529, ..reply("application/json", r#"{"error":{"message":"Overloaded"}}"#) }
        }
        Some(402) => {
            let text = format!(r#"{{"error":{{"message":"bad key {KEY}"}}}}"#);
            Reply { status: 401, ..reply("application/json", text) }
        }
        _ => reply("application/json", r#"{"content":"free of charge!"}"#),
    })
    .await;
    let mut app = gateway(&provider).await;
    grant(&mut app, Some(1.0)).await;
    let answer = ask(&app, MESSAGES, &message(401)).await;
    assert_eq!((answer.status, answer.json()["error"]["message"].as_str().unwrap()), (529, "Overloaded"));
    let answer = ask(&app, MESSAGES, &message(402)).await;
    assert!(answer.status == 401 && !answer.text().contains(KEY), "{}", answer.text());
    assert_eq!(ask(&app, MESSAGES, &message(500)).await.status, 200);
    let all = settled(&app).await;
    assert_eq!(all.iter().map(|call| &call["outcome"]).collect::<Vec<_>>(), ["answered", "failed", "failed"]);
    assert!(all[0]["estimated"] == true && all[0]["cost"] == all[0]["reserved"], "{}", all[0]);
    assert!(all[0]["cost"].as_f64().unwrap() > 0.5, "{}", all[0]);
    assert_eq!((&all[1]["cost"], &all[2]["cost"]), (&json!(0.0), &json!(0.0)), "errors are free");
    assert!(!all[1]["error"].as_str().unwrap().contains(KEY) && all[2]["error"] == "Overloaded");
}

#[tokio::test]
async fn what_the_gateway_does_not_know_does_not_pass() {
    let provider = Scripted::start(|_, _| reply("application/json", anthropic(1))).await;
    let mut app = gateway(&provider).await;
    grant(&mut app, Some(1.0)).await;
    let long = format!(r#"{{"model":"{MODEL}","x":"{}"}}"#, "x".repeat(33 << 20));
    for (pass, path, body, status) in [
        ("cofmodel_other", MESSAGES, message(1).to_string(), 401),
        ("", MESSAGES, message(1).to_string(), 401),
        (app.key.as_str(), MESSAGES, message(1).to_string(), 401),
        (PASS, "/anthropic/v1/files", message(1).to_string(), 404),
        (PASS, "/anthropic/../api/v1/keys", message(1).to_string(), 404),
        (PASS, "/nobody/v1/messages", message(1).to_string(), 404),
        (PASS, MESSAGES, "{".to_string(), 400),
        (PASS, MESSAGES, format!(r#"{{"model":"{MODEL}","model":"claude-haiku-4-5","max_tokens":1}}"#), 400),
        (PASS, MESSAGES, json!({"model": MODEL, "max_tokens": -1}).to_string(), 400),
        (PASS, MESSAGES, json!({"model": "nobody-knows", "max_tokens": 1}).to_string(), 402),
        (PASS, MESSAGES, json!({"model": MODEL, "tools": [{"type": "code_execution_1"}]}).to_string(), 402),
        (PASS, "/openai/v1/responses", json!({"model": MODEL, "background": true}).to_string(), 400),
        (PASS, MESSAGES, long, 413),
        (PASS, MESSAGES, format!(r#"{{"model":"{MODEL}","x":[0{}]}}"#, ",0".repeat(2_000_001)), 413),
    ] {
        let answer = ask_with(&app, pass, path, body.clone()).await;
        assert_eq!(answer.status, status, "{path} {body:.100} {}", answer.text());
        assert!(answer.json()["error"]["message"].as_str().unwrap().starts_with("Cofferdam: "));
    }
    assert!(provider.heard().is_empty(), "nothing was sent");
    // A project's list of models.
    app.put("/api/v1/model-policy", json!({"allow": ["claude-*"], "keep_bodies": true})).await.expect(200);
    let answer = ask(&app, MESSAGES, &message(1)).await;
    assert_eq!(answer.status, 403, "{}", answer.text());
    app.put("/api/v1/model-policy", json!({"allow": [MODEL], "keep_bodies": true})).await.expect(200);
    assert_eq!(ask(&app, MESSAGES, &message(1)).await.status, 200);
    let all = settled(&app).await;
    let id =
        all.iter().find(|call| call["outcome"] == "answered").unwrap()["id"].as_str().unwrap().to_string();
    let kept = app.get(&format!("/api/v1/model-calls/{id}")).await.expect(200).json();
    assert!(
        kept["request"].as_str().unwrap().contains("max_tokens")
            && kept["answer"].as_str().unwrap().contains("usage")
    );
    let bad = app.put("/api/v1/model-policy", json!({"allow": ["a b"]})).await;
    assert!([400, 422].contains(&bad.status), "{}", bad.text());
}

#[tokio::test]
async fn a_secret_for_hosts_goes_to_no_other() {
    let provider = Scripted::start(|_, _| reply("application/json", anthropic(1))).await;
    let mut app = gateway(&provider).await;
    grant(&mut app, None).await;
    let bound = json!({"value": KEY, "hosts": ["api.anthropic.com"]});
    app.put("/api/v1/secrets/key", bound).await.expect(200);
    let answer = ask(&app, MESSAGES, &message(1)).await;
    assert_eq!(answer.status, 403, "{}", answer.text());
    assert!(answer.text().contains("127.0.0.1") && provider.heard().is_empty(), "{}", answer.text());
}

#[tokio::test]
async fn a_call_whose_server_died_is_settled_and_the_pass_is_renewed() {
    let provider = Scripted::start(|_, _| reply("application/json", anthropic(1))).await;
    let mut app = gateway(&provider).await;
    let grant = grant(&mut app, Some(1.0)).await;
    let first = way(&app, grant.sandbox, &Value::Null).await;
    assert!(first["upstream"].as_str().unwrap().ends_with("/model"), "{first}");
    let new = NewCall {
        grant: grant.clone(),
        provider: Provider::Anthropic,
        kind: CallKind::Messages,
        model: MODEL.into(),
        worth: Worth::Between { least: 1, most: 700_000_000 },
        sandbox_cost_nanos: 0,
        periods: Periods { day: 0, month: 0 },
    };
    let reserved = app.store.reserve_call(new).await.unwrap();
    assert!(matches!(reserved, Reserved::Yes { nanos: 700_000_000, .. }), "{reserved:?}");
    app.restart(async |_| {}).await;
    let all = settled(&app).await;
    assert_eq!(
        (&all[0]["outcome"], &all[0]["cost"], &all[0]["estimated"]),
        (&json!("lost"), &json!(0.7), &json!(true))
    );
    let second = way(&app, grant.sandbox, &first).await;
    let pass = second["authorization"].as_str().unwrap().strip_prefix("Bearer ").unwrap().to_string();
    assert_eq!(ask_with(&app, &pass, MESSAGES, message(10).to_string()).await.status, 200);
    // With its sandbox the grant ends.
    app.delete(&format!("/sandboxes/{}", grant.sandbox)).await.expect(204);
    for _ in 0..3000 {
        if ask_with(&app, &pass, MESSAGES, message(10).to_string()).await.status == 401 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the pass of a sandbox that is gone still opens the gateway");
}

/// A provider that is overloaded for the first key, and answers the second with what it was asked for.
async fn overloaded(status: u16) -> Scripted {
    Scripted::start(move |head, body| match head.contains("x-api-key: second") {
        true => {
            let told = json!({"model": body["model"], "usage": {"input_tokens": 1000, "output_tokens": 20}});
            reply("application/json", told)
        }
        false => Reply { status, ..reply("application/json", r#"{"error":{"message":"Overloaded"}}"#) },
    })
    .await
}

fn tried(call: &Value) -> Vec<(String, String)> {
    let tries = call["tries"].as_array().unwrap();
    let text = |one: &Value, field: &str| one[field].as_str().unwrap().to_string();
    tries.iter().map(|one| (text(one, "outcome"), text(one, "model"))).collect()
}

#[tokio::test]
async fn an_overloaded_provider_has_fallbacks_before_its_first_byte() {
    let provider = overloaded(529).await;
    let mut app = gateway(&provider).await;
    app.put("/api/v1/secrets/two", json!({"value": "second"})).await.expect(201);
    grant(&mut app, Some(5.0)).await;
    // Without fallbacks its answer is the agent's, and nothing is tried.
    assert_eq!(ask(&app, MESSAGES, &message(400)).await.status, 529);
    let cheap = "claude-haiku-4-5";
    let fallbacks = json!([
        {"provider": "anthropic", "secret": "nothing"},
        {"provider": "openai", "secret": "two"},
        {"provider": "anthropic", "secret": "two", "model": cheap},
    ]);
    app.put("/api/v1/model-policy", json!({"fallbacks": fallbacks})).await.expect(200);
    let answer = ask(&app, MESSAGES, &message(400)).await;
    assert_eq!((answer.status, &answer.json()["model"]), (200, &json!(cheap)), "{}", answer.text());
    let all = settled(&app).await;
    let words = |outcome: &str, model: &str| (outcome.to_string(), model.to_string());
    assert_eq!(tried(&all[0]), [words("overloaded", MODEL), words("answered", cheap)]);
    assert_eq!((&all[0]["answered_by"], &all[0]["model"]), (&json!(cheap), &json!(MODEL)));
    // Priced by what answered, which is much less than what was asked for.
    let cost = all[0]["cost"].as_f64().unwrap();
    assert!(cost > 0.0 && cost < 0.01, "{}", all[0]);
    assert!(tried(&all[1]).is_empty());
    // An error of the call itself goes nowhere else.
    assert_eq!(provider.heard().len(), 3);
    let operator = app.store.create_operator_key(&app.store.operator(), "m").await.unwrap();
    let metrics =
        app.as_key(operator.reveal(), Method::GET, "/metrics", Value::Null).await.expect(200).text();
    let line = r#"coffer_model_fallbacks_total{provider="anthropic",reason="overloaded"} 1"#;
    assert!(metrics.contains(line), "{metrics}");
    // A model that the project does not allow is no fallback.
    let policy = json!({"fallbacks": fallbacks, "allow": [MODEL]});
    app.put("/api/v1/model-policy", policy).await.expect(200);
    assert_eq!(ask(&app, MESSAGES, &message(400)).await.status, 529);
    for bad in [
        json!([{"provider": "anthropic"}]),
        json!([{"provider": "nobody", "secret": "two"}]),
        json!([{"provider": "anthropic", "url": "http://10.0.0.7/"}]),
        json!([{"provider": "anthropic", "url": "https://u:p@example.com/"}]),
        json!(vec![json!({"provider": "anthropic", "secret": "two"}); 13]),
    ] {
        let refused = app.put("/api/v1/model-policy", json!({"fallbacks": bad})).await;
        assert!([400, 422].contains(&refused.status), "{}", refused.text());
    }
}

#[tokio::test]
async fn a_place_that_fails_rests_and_a_wrong_request_goes_nowhere_else() {
    let provider = overloaded(503).await;
    let mut app = gateway(&provider).await;
    app.put("/api/v1/secrets/two", json!({"value": "second"})).await.expect(201);
    grant(&mut app, None).await;
    let fallbacks = json!([{"provider": "anthropic", "secret": "two"}]);
    app.put("/api/v1/model-policy", json!({"fallbacks": fallbacks})).await.expect(200);
    for _ in 0..6 {
        assert_eq!(ask(&app, MESSAGES, &message(1)).await.status, 200);
    }
    let all = settled(&app).await;
    let first = |call: &Value| tried(call)[0].0.clone();
    assert_eq!(first(&all[5]), "failed");
    assert_eq!(first(&all[0]), "paused", "after five failures in a row it is left alone");
    let to_first = provider.heard().iter().filter(|(head, _)| head.contains(KEY)).count();
    assert_eq!(to_first, 5);

    // 400 is about the request: no other place would do better.
    let provider = overloaded(400).await;
    let mut app = gateway(&provider).await;
    app.put("/api/v1/secrets/two", json!({"value": "second"})).await.expect(201);
    grant(&mut app, None).await;
    app.put("/api/v1/model-policy", json!({"fallbacks": fallbacks})).await.expect(200);
    assert_eq!(ask(&app, MESSAGES, &message(1)).await.status, 400);
    assert_eq!(provider.heard().len(), 1);
}

//! Usage, budgets and metrics.

use std::time::Duration;

use coffer_api_types::Page;
use coffer_api_types::usage::UsageEntry;
use coffer_core::{DestroyReason, SandboxState};
use coffer_server::{MetricsSettings, ServerConfig, TraceSettings, UsageSettings};
use http::Method;
use serde_json::{Value, json};

use crate::app::{TestApp, policy};

/// A sandbox costs one per second, whatever its size; usage is recorded every second.
async fn priced() -> TestApp {
    let usage = UsageSettings { sandbox_second: 1.0, interval_s: 1, ..UsageSettings::default() };
    let metrics = MetricsSettings { public: true };
    TestApp::configured(ServerConfig { lifetime: policy(), usage, metrics, ..ServerConfig::default() }).await
}

async fn usage(app: &TestApp, query: &str) -> Vec<UsageEntry> {
    let page: Page<UsageEntry> = app.get(&format!("/api/v1/usage?{query}")).await.expect(200).read();
    page.items
}

/// Waits until this much was spent on a sandbox.
async fn spent(app: &TestApp, id: &str, least: f64) -> UsageEntry {
    for _ in 0..600 {
        let lines = usage(app, &format!("group=sandbox&sandbox={id}")).await;
        if let Some(line) = lines.into_iter().find(|line| line.cost >= least) {
            return line;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{least} are never spent on {id}");
}

async fn wait_for_event(app: &TestApp, kind: &str) -> Value {
    for _ in 0..600 {
        if let Some(payload) = app.events(kind).await.pop() {
            return payload;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no event {kind}");
}

/// The value of a metric whose line begins with `name`.
async fn figure(app: &TestApp, name: &str) -> Option<f64> {
    let text = app.get("/metrics").await.text();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')))?;
    Some(line.rsplit(' ').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn time_that_a_sandbox_runs_is_counted_once_over_restarts_and_pauses() {
    let mut app = priced().await;
    let began = std::time::Instant::now();
    let id = app.create(json!({})).await;
    spent(&app, &id, 1.0).await;
    // The sandbox keeps running without the server, and that time is counted: it has to pass.
    app.restart(async |_| tokio::time::sleep(Duration::from_millis(1500)).await).await;
    spent(&app, &id, 2.5).await;
    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(204);
    let ran = began.elapsed().as_secs_f64();
    // The count settles and stays: a pause costs nothing. Longer than the meter waits between two samples.
    let mut last = spent(&app, &id, 2.5).await;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(1200)).await;
        let now = spent(&app, &id, 2.5).await;
        if now == last {
            break;
        }
        last = now;
    }
    let counted = last.running_seconds;
    assert!(counted <= ran && counted >= 2.5, "counted {counted} s of {ran} s");
    assert_eq!(last.cost, last.running_seconds, "at one a second");
    let cpus = app.row(&id).await.limits.cpu_count;
    let set_aside = last.cpu_seconds;
    assert!((set_aside - counted * f64::from(cpus)).abs() < 0.01, "{last:?}");
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    assert_eq!(spent(&app, &id, 2.5).await.cost, last.cost, "its end added nothing");
    let days: f64 = usage(&app, "").await.iter().map(|line| line.cost).sum();
    assert!((days - last.cost).abs() < 1e-6);
    let theirs =
        app.as_key(&app.other_key, Method::GET, "/api/v1/usage", Value::Null).await.expect(200).json();
    assert_eq!(theirs["items"], json!([]));
    let operator = app.store.create_operator_key(&app.store.operator(), "root").await.unwrap();
    let path = "/api/v1/admin/usage?group=project";
    let all = app.as_key(operator.reveal(), Method::GET, path, Value::Null).await.expect(200).json();
    assert_eq!(all["items"][0]["project_id"], json!(app.scope().await.project().to_string()));
    let prices = app.get("/api/v1/prices").await.expect(200).json();
    assert_eq!([&prices["currency"], &prices["sandbox_second"]], [&json!("USD"), &json!(1.0)], "{prices}");
    app.get("/api/v1/usage?group=project").await.expect(422);
    app.get("/api/v1/usage?from=yesterday").await.expect(422);
    app.get(path).await.expect(403);
}

#[tokio::test]
async fn a_budget_warns_then_pauses_and_lets_go_when_it_is_raised() {
    let app = priced().await;
    let id = app.create(json!({"autoResume": {"enabled": true}, "autoPause": true})).await;
    let made = app.post("/api/v1/budgets", json!({"period": "day", "amount": 3, "warn_at": [50]})).await;
    let made = made.expect(201);
    let path = format!("/api/v1/budgets/{}", made.json()["id"].as_str().unwrap());
    let warned = wait_for_event(&app, "budget.warned").await;
    assert_eq!((&warned["percent"], &warned["action"]), (&json!(50), &json!("pause")), "{warned}");
    let exceeded = wait_for_event(&app, "budget.exceeded").await;
    assert!(exceeded["spent"].as_f64().unwrap() >= 3.0, "{exceeded}");
    app.wait_for(&id, "paused").await;
    let history = app.history(&id).await;
    assert!(history.last().unwrap().reason.starts_with("paused because its budget is spent; "));

    // Neither traffic nor a request resumes it, and no other is created.
    let refused = app.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.expect(402).json();
    assert_eq!(refused["message"], "the project's budget is spent");
    let refused = app.post("/api/v1/sandboxes", json!({})).await.expect(402).json();
    assert_eq!((&refused["code"], refused["hint"].is_string()), (&json!("budget_exceeded"), true));
    app.visit(&id, "/health").await;
    assert_eq!(app.state(&id).await, "paused");
    app.as_key(&app.other_key, Method::POST, "/v2/sandboxes", json!({"templateID": "base"}))
        .await
        .expect(201);
    assert_eq!(figure(&app, "coffer_api_refusals_total{code=\"budget_exceeded\"}").await, Some(2.0));
    assert!(figure(&app, "sandbox_cost_total{currency=\"USD\"}").await.unwrap() >= 3.0);

    let shown = app.get(&path).await.expect(200);
    assert_eq!(shown.json()["exceeded"], json!(true));
    let raise = |tag: &str, amount: u32| {
        let request = app.request(Method::PUT, &path).header("if-match", tag);
        app.send(request.body(json!({"amount": amount}).to_string().into()).unwrap())
    };
    raise("\"7\"", 100).await.expect(412);
    let raised = raise(shown.header("etag").unwrap(), 100_000).await.expect(200);
    assert_eq!(raised.json()["exceeded"], json!(false));
    app.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.expect(201);
    app.wait_for(&id, "running").await;
    assert_eq!(app.events("budget.exceeded").await.len(), 1, "told once");
    app.delete(&path).await.expect(204);
    app.get(&path).await.expect(404);
}

#[tokio::test]
async fn a_budget_of_one_sandbox_ends_that_one() {
    let app = priced().await;
    let (id, other) = (app.create(json!({})).await, app.create(json!({})).await);
    let budget = json!({"period": "total", "amount": 1, "action": "end", "sandbox_id": id});
    app.post("/api/v1/budgets", budget.clone()).await.expect(201);
    app.post("/api/v1/budgets", budget).await.expect(409);
    assert_eq!(app.ended(&id).await, SandboxState::Terminated { reason: DestroyReason::Budget });
    assert_eq!(app.state(&other).await, "running");
    for bad in
        [json!({"period": "day", "amount": 0}), json!({"period": "day", "amount": 1, "warn_at": [100]})]
    {
        app.post("/api/v1/budgets", bad).await.expect(422);
    }
    assert_eq!(figure(&app, "sandbox_ended_total{reason=\"budget\"}").await, Some(1.0));
}

#[tokio::test]
async fn figures_are_for_operators_unless_they_are_opened() {
    let app = TestApp::start().await;
    app.get("/metrics").await.expect(403);
    let operator = app.store.create_operator_key(&app.store.operator(), "root").await.unwrap();
    let shown = app.as_key(operator.reveal(), Method::GET, "/metrics", Value::Null).await.expect(200);
    assert!(shown.header("content-type").unwrap().starts_with("application/openmetrics-text"));

    let app = priced().await;
    let id = app.create(json!({})).await;
    app.engine.die(id.parse().unwrap(), coffer_engine::DeathCause::OutOfMemory);
    app.ended(&id).await;
    let second = app.create(json!({})).await;
    app.engine.plant().await;
    app.engine.reconnect();
    for _ in 0..500 {
        if figure(&app, "sandbox_orphan_total").await == Some(1.0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (name, expected) in [
        ("sandbox_active_count{state=\"running\",template=\"base\"}", 1.0),
        ("sandbox_active_count{state=\"paused\",template=\"base\"}", 0.0),
        ("sandbox_spawn_total{template=\"base\"}", 2.0),
        ("sandbox_error_total{kind=\"out_of_memory\"}", 1.0),
        ("sandbox_creation_duration_seconds_count{template=\"base\"}", 2.0),
        ("sandbox_orphan_total", 1.0),
        ("coffer_node_up", 1.0),
        ("sandbox_pressure_ratio{resource=\"memory\"}", 0.25),
        ("coffer_event_readers", 0.0),
        ("coffer_http_requests_total{method=\"POST\",route=\"/v2/sandboxes\",status=\"201\"}", 2.0),
    ] {
        assert_eq!(figure(&app, name).await, Some(expected), "{name}\n{}", app.get("/metrics").await.text());
    }
    assert!(figure(&app, "sandbox_orphan_found_timestamp_seconds").await.unwrap() > 1.7e9);
    assert!(figure(&app, "coffer_store_write_duration_seconds_count").await.unwrap() > 1.0);
    app.delete(&format!("/sandboxes/{second}")).await.expect(204);
    assert_eq!(figure(&app, "sandbox_ended_total{reason=\"requested\"}").await, Some(1.0));
}

/// Every name in the alert rules and on the dashboard is one that the server exports.
#[tokio::test]
async fn alerts_and_dashboard_name_figures_that_exist() {
    // Nothing listens there; the metrics of spans exist nevertheless.
    let traces = TraceSettings { endpoint: Some("http://127.0.0.1:9".into()), ..TraceSettings::default() };
    let metrics = MetricsSettings { public: true };
    let config = ServerConfig { lifetime: policy(), traces, metrics, ..ServerConfig::default() };
    let app = TestApp::configured(config).await;
    let id = app.create(json!({})).await;
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    app.post("/api/v1/budgets", json!({"period": "day", "amount": 1e6})).await.expect(201);
    let text = app.get("/metrics").await.expect(200).text();
    let known: std::collections::BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .flat_map(|line| {
            let (name, kind) = line.split_once(' ').unwrap();
            match kind {
                "counter" => vec![format!("{name}_total")],
                "histogram" => ["bucket", "count", "sum"].map(|part| format!("{name}_{part}")).to_vec(),
                _ => vec![name.to_string()],
            }
        })
        .collect();
    // The fake engine has no disk, and a family without a series is not told: nothing calls a model here. The monitoring
    // suite asks a real Prometheus.
    let elsewhere = [
        "coffer_pool_free_bytes",
        "coffer_pool_size_bytes",
        "coffer_model_calls_total",
        "coffer_model_tokens_total",
        "coffer_model_cost_total",
        "coffer_model_duration_seconds_bucket",
        "coffer_model_duration_seconds_count",
        "coffer_model_duration_seconds_sum",
        "coffer_model_fallbacks_total",
    ];
    let monitoring = concat!(env!("CARGO_MANIFEST_DIR"), "/../../monitoring/");
    for file in ["alerts.yml", "grafana-dashboard.json"] {
        let text = std::fs::read_to_string(format!("{monitoring}{file}")).unwrap();
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let named: Vec<_> = text
            .split(|c: char| !is_part(c))
            .filter(|word| word.starts_with("sandbox_") || word.starts_with("coffer_"))
            .collect();
        assert!(named.len() > 10, "{file} names only {named:?}");
        for name in named {
            assert!(
                known.contains(name) || elsewhere.contains(&name),
                "{file} names {name}, known is {known:?}"
            );
        }
    }
}

#[tokio::test]
async fn usage_is_grouped_and_exported_as_a_table() {
    let app = priced().await;
    let id = app.create(serde_json::json!({})).await;
    let spent = async || usage(&app, "group_by=sandbox").await.iter().any(|line| line.total_cost > 0.0);
    while !spent().await {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    for group in ["day", "sandbox", "agent", "model", "task", "repository"] {
        let lines = usage(&app, &format!("group_by={group}")).await;
        assert_eq!(lines.len(), usize::from(group != "model"), "{group}: {lines:?}");
    }
    let none = usage(&app, "group_by=task").await.remove(0);
    assert_eq!((none.task_id, none.label), (None, None), "no task used it");
    for (path, accept) in [("group_by=sandbox&format=csv", "*/*"), ("group_by=sandbox", "text/csv")] {
        let request =
            app.request(http::Method::GET, &format!("/api/v1/usage?{path}")).header("accept", accept);
        let table = app.send(request.body(http_body_util::Full::default()).unwrap()).await.expect(200);
        assert_eq!(table.header("content-type"), Some("text/csv; charset=utf-8"));
        let text = table.text();
        let mut lines = text.lines();
        assert!(lines.next().unwrap().starts_with("key,label,total_cost,"), "{text}");
        assert!(lines.next().unwrap().starts_with(&format!("\"{id}\",\"\",")), "{text}");
    }
    for wrong in [
        "group_by=colour",
        "format=xls",
        "from=2020-01-01",
        "group_by=model&sandbox=01kz0000000000000000000000",
    ] {
        app.get(&format!("/api/v1/usage?{wrong}")).await.expect(422);
    }
}

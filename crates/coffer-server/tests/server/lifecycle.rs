//! What each route does on success.

use std::collections::BTreeMap;
use std::time::Duration;

use coffer_core::{Kept, SandboxId, SandboxState};
use coffer_engine::RunState;
use coffer_server::ServerConfig;
use coffer_wire::agentd::{ENVD_VERSION, Init};
use http::Method;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::agentd::Manners;
use crate::app::{TestApp, policy};
use crate::engine::Op;

fn parsed(id: &str) -> SandboxId {
    id.parse().unwrap()
}

fn time(value: &Value) -> jiff::Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_second_generation_create_answers_everything_an_sdk_reads() {
    let app = TestApp::start().await;
    let answer = app.post("/v2/sandboxes", json!({"templateID": "base"})).await.expect(201);
    assert!(answer.header("x-request-id").is_some());
    let mut sandbox = answer.json();
    let id = sandbox["sandboxID"].take();
    let token = sandbox["envdAccessToken"].take();
    assert!(id.as_str().unwrap().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()));
    assert!(token.as_str().unwrap().len() >= 32);
    let expected = json!({
        "templateID": "base", "alias": "base", "sandboxID": null, "clientID": "coffer", "envdVersion": ENVD_VERSION,
        "envdAccessToken": null, "trafficAccessToken": null, "domain": null,
    });
    assert_eq!(sandbox, expected);

    let mut detail = app.get(&format!("/sandboxes/{}", id.as_str().unwrap())).await.expect(200).json();
    let (started, end) = (time(&detail["startedAt"].take()), time(&detail["endAt"].take()));
    assert_eq!(end.duration_since(started), jiff::SignedDuration::from_secs(300));
    let expected = json!({
        "templateID": "base", "alias": "base", "sandboxID": id, "clientID": "coffer", "envdVersion": ENVD_VERSION,
        "startedAt": null, "endAt": null, "cpuCount": 2, "memoryMB": 2048, "diskSizeMB": 10240, "state": "running",
        "metadata": {}, "volumeMounts": [], "envdAccessToken": token, "allowInternetAccess": null, "domain": null,
        "lifecycle": {"autoResume": false, "onTimeout": "kill"},
    });
    assert_eq!(detail, expected);
}

#[tokio::test]
async fn a_first_generation_create_is_secured_only_when_asked_and_lives_15_seconds() {
    let app = TestApp::start().await;
    let open = app.post("/sandboxes", json!({"templateID": "base"})).await.expect(201).json();
    assert_eq!(open.get("envdAccessToken"), None);
    let secured =
        app.post("/sandboxes", json!({"templateID": "base", "secure": true})).await.expect(201).json();
    assert!(secured["envdAccessToken"].is_string());
    let detail =
        app.get(&format!("/sandboxes/{}", open["sandboxID"].as_str().unwrap())).await.expect(200).json();
    let lasts = time(&detail["endAt"]).duration_since(time(&detail["startedAt"]));
    assert_eq!(lasts, jiff::SignedDuration::from_secs(15));
    let agentd = app.engine.agentd(parsed(open["sandboxID"].as_str().unwrap()));
    assert_eq!(agentd.inits()[0].access_token, None);
}

#[tokio::test]
async fn agentd_is_told_who_it_is() {
    let app = TestApp::start().await;
    let body = json!({
        "templateID": "other", "envVars": {"FOO": "bar", "E2B_SANDBOX": "false"}, "metadata": {"a": "b"},
        "mcp": {"anything": {}}, "allow_internet_access": false,
    });
    let sandbox = app.post("/v2/sandboxes", body).await.expect(201).json();
    let id = sandbox["sandboxID"].as_str().unwrap();
    let env = [
        ("E2B_SANDBOX", "true"),
        ("E2B_SANDBOX_ID", id),
        ("E2B_TEMPLATE_ID", "other"),
        ("FOO", "bar"),
        ("FROM_TEMPLATE", "yes"),
    ];
    let expected = Init {
        env_vars: BTreeMap::from(env.map(|(name, value)| (name.to_string(), value.to_string()))),
        access_token: sandbox["envdAccessToken"].as_str().map(String::from),
        default_user: Some("user".into()),
        default_workdir: Some("/home/user".into()),
        disk_total: Some(10_240 << 20),
        start: None,
    };
    assert_eq!(app.engine.agentd(parsed(id)).inits(), [expected]);
    let detail = app.get(&format!("/sandboxes/{id}")).await.expect(200).json();
    assert_eq!((&detail["metadata"], &detail["allowInternetAccess"]), (&json!({"a": "b"}), &json!(false)));
}

#[tokio::test]
async fn variables_of_every_sandbox_give_way_to_the_templates_and_to_the_creators() {
    let environment =
        [("PIP_INDEX_URL", "https://mirror.test/simple"), ("FROM_TEMPLATE", "no"), ("GOPROXY", "m")];
    let environment = environment.map(|(name, value)| (name.to_string(), value.to_string())).into();
    let app =
        TestApp::configured(ServerConfig { lifetime: policy(), environment, ..ServerConfig::default() })
            .await;
    let env = |id: &str| app.engine.agentd(parsed(id)).inits().last().unwrap().env_vars.clone();
    let plain = env(&app.create(json!({})).await);
    assert_eq!(
        (plain["PIP_INDEX_URL"].as_str(), plain["FROM_TEMPLATE"].as_str()),
        ("https://mirror.test/simple", "yes")
    );
    let source = app.create(json!({"envVars": {"GOPROXY": "mine"}})).await;
    assert_eq!(env(&source)["GOPROXY"], "mine");
    // They are not part of a snapshot: a sandbox gets those of its own start.
    let made = app.post_empty(&format!("/sandboxes/{source}/snapshots")).await.expect(201).json();
    let child = app.create(json!({"templateID": made["snapshotID"]})).await;
    assert_eq!(env(&child)["GOPROXY"], "m");
}

#[tokio::test]
async fn a_configured_domain_is_told() {
    let app = TestApp::with(policy(), Some("sandboxes.example.com")).await;
    let sandbox = app.post("/v2/sandboxes", json!({"templateID": "base"})).await.expect(201).json();
    assert_eq!(sandbox["domain"], "sandboxes.example.com");
}

#[tokio::test]
async fn a_destroyed_sandbox_is_gone() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    assert!(app.delete(&format!("/sandboxes/{id}")).await.expect(204).body.is_empty());
    app.delete(&format!("/sandboxes/{id}")).await.expect(404);
    app.get(&format!("/sandboxes/{id}")).await.expect(404);
    assert_eq!(app.visit(&id, "/health").await.status, 502);
    app.assert_empty().await;
    let steps: Vec<String> =
        app.history(&id).await.into_iter().map(|step| step.to.name().as_str().into()).collect();
    assert_eq!(steps, ["creating", "running", "terminated"]);
}

#[tokio::test]
async fn a_pause_with_memory_freezes_and_a_connect_thaws() {
    let app = TestApp::start().await;
    let id = app.create(json!({"metadata": {"k": "v"}})).await;
    let before = app.get(&format!("/sandboxes/{id}")).await.json();
    assert_eq!(app.visit(&id, "/health").await.status, 204);

    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(204);
    assert_eq!(app.engine.run(parsed(&id)), Some(RunState::Frozen));
    assert_eq!(app.row(&id).await.state, SandboxState::Paused { kept: Kept::MemoryAndFiles });
    let paused = app.get(&format!("/sandboxes/{id}")).await.expect(200).json();
    assert_eq!((&paused["state"], &paused["pauseMode"]), (&json!("paused"), &json!("full")));
    assert_eq!(app.visit(&id, "/health").await.status, 502);
    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(409);

    let connected =
        app.post(&format!("/v2/sandboxes/{id}/connect"), json!({"timeout": 60})).await.expect(201).json();
    assert_eq!(connected["envdAccessToken"], before["envdAccessToken"]);
    assert_eq!(app.engine.run(parsed(&id)), Some(RunState::Running));
    let after = app.get(&format!("/sandboxes/{id}")).await.expect(200).json();
    assert_eq!((&after["state"], &after["metadata"]), (&json!("running"), &json!({"k": "v"})));
    let lasts = time(&after["endAt"]).duration_since(time(&after["startedAt"]));
    assert_eq!(lasts, jiff::SignedDuration::from_secs(60));
    assert_eq!(app.visit(&id, "/health").await.status, 204);
    assert_eq!(app.engine.agentd(parsed(&id)).inits().len(), 1, "its memory knows who it is");
}

#[tokio::test]
async fn a_pause_without_memory_stops_and_a_connect_boots_with_the_same_identity() {
    let app = TestApp::start().await;
    let id = app.create(json!({"envVars": {"FOO": "bar"}})).await;
    let first = app.engine.agentd(parsed(&id)).inits();
    app.post(&format!("/sandboxes/{id}/pause"), json!({"memory": false})).await.expect(204);
    assert_eq!(app.engine.run(parsed(&id)), Some(RunState::Stopped));
    let paused = app.get(&format!("/sandboxes/{id}")).await.expect(200).json();
    assert_eq!(paused["pauseMode"], "filesystem");

    app.post(&format!("/sandboxes/{id}/connect"), json!({"timeout": 60})).await.expect(201);
    assert_eq!(app.engine.agentd(parsed(&id)).inits(), first);
    assert_eq!(app.visit(&id, "/health").await.status, 204);
}

#[tokio::test]
async fn a_cold_connect_boots_even_what_kept_its_memory() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(204);
    app.post(&format!("/v2/sandboxes/{id}/connect"), json!({"memory": false})).await.expect(201);
    let ops: Vec<Op> = app.engine.asked().into_iter().map(|(op, _)| op).collect();
    assert_eq!(ops, [Op::Create, Op::Freeze, Op::Stop, Op::Start]);
}

#[tokio::test]
async fn a_paused_sandbox_can_be_destroyed() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(204);
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    app.assert_empty().await;
}

#[tokio::test]
async fn resume_takes_only_paused_sandboxes() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    app.post(&format!("/sandboxes/{id}/resume"), json!({"timeout": 60})).await.expect(409);
    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(204);
    let resumed =
        app.post(&format!("/sandboxes/{id}/resume"), json!({"timeout": 60, "autoPause": true})).await;
    assert_eq!(resumed.expect(201).json()["sandboxID"], json!(id));
    let detail = app.get(&format!("/sandboxes/{id}")).await.json();
    assert_eq!(detail["lifecycle"], json!({"autoResume": false, "onTimeout": "pause"}));
}

#[tokio::test]
async fn connect_extends_and_never_shortens() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let end = async || time(&app.get(&format!("/sandboxes/{id}")).await.json()["endAt"]);
    let before = end().await;
    app.post(&format!("/sandboxes/{id}/connect"), json!({"timeout": 10})).await.expect(200);
    assert_eq!(end().await, before);
    app.post(&format!("/v2/sandboxes/{id}/connect"), json!({"timeout": 600})).await.expect(200);
    assert!(end().await > before);
    app.post_empty(&format!("/v2/sandboxes/{id}/connect")).await.expect(200);
}

#[tokio::test]
async fn a_timeout_moves_the_end_both_ways_and_a_refresh_only_later() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let remaining = async || {
        let end = time(&app.get(&format!("/sandboxes/{id}")).await.json()["endAt"]);
        end.duration_since(jiff::Timestamp::now()).as_secs()
    };
    app.post(&format!("/sandboxes/{id}/timeout"), json!({"timeout": 30})).await.expect(204);
    assert!((25..=30).contains(&remaining().await));
    app.post(&format!("/sandboxes/{id}/refreshes"), json!({"duration": 10})).await.expect(204);
    assert!((25..=30).contains(&remaining().await));
    app.post(&format!("/sandboxes/{id}/refreshes"), json!({"duration": 100})).await.expect(204);
    assert!((95..=100).contains(&remaining().await));
    app.post_empty(&format!("/sandboxes/{id}/refreshes")).await.expect(204);
}

#[tokio::test]
async fn the_longest_lifetime_caps_every_timeout() {
    let lifetime = coffer_core::LifetimePolicy { maximum_ms: 100_000, ..policy() };
    let app = TestApp::with(lifetime, None).await;
    let id = app.create(json!({"timeout": 3600})).await;
    let detail = app.get(&format!("/sandboxes/{id}")).await.json();
    let lasts = time(&detail["endAt"]).duration_since(time(&detail["startedAt"]));
    assert_eq!(lasts, jiff::SignedDuration::from_secs(100));
}

#[tokio::test]
async fn network_settings_are_kept_shown_and_replaced() {
    let app = TestApp::start().await;
    let network = json!({
        "allowOut": ["example.com"], "denyOut": ["0.0.0.0/0"], "allowPublicTraffic": false,
        "maskRequestHost": "a.example.com:${PORT}", "httpsPorts": [8443],
        "egressProxy": {"address": "p.example.com:1080", "username": "u", "password": "hidden"},
    });
    let body = json!({"templateID": "base", "network": network});
    let sandbox = app.post("/v2/sandboxes", body).await.expect(201).json();
    assert!(sandbox["trafficAccessToken"].as_str().unwrap().len() >= 32);
    let id = sandbox["sandboxID"].as_str().unwrap();
    let shown = app.get(&format!("/sandboxes/{id}")).await.json()["network"].clone();
    let expected = json!({
        "allowOut": ["example.com"], "denyOut": ["0.0.0.0/0"], "allowPublicTraffic": false,
        "maskRequestHost": "a.example.com:${PORT}", "httpsPorts": [8443],
        "egressProxy": {"address": "p.example.com:1080", "username": "u"},
    });
    assert_eq!(shown, expected);

    let update = json!({"denyOut": ["8.8.8.8"], "allow_internet_access": true});
    app.put(&format!("/sandboxes/{id}/network"), update).await.expect(204);
    let detail = app.get(&format!("/sandboxes/{id}")).await.json();
    let expected = json!({
        "denyOut": ["8.8.8.8"], "allowPublicTraffic": false, "maskRequestHost": "a.example.com:${PORT}",
        "httpsPorts": [8443],
    });
    assert_eq!((&detail["network"], &detail["allowInternetAccess"]), (&expected, &json!(true)));
}

#[tokio::test]
async fn metrics_come_soon_and_have_every_field() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let mut series = json!([]);
    for _ in 0..300 {
        series = app.get(&format!("/sandboxes/{id}/metrics")).await.expect(200).json();
        if series != json!([]) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut metric = series[0].clone();
    let at = metric["timestampUnix"].take().as_i64().unwrap();
    assert_eq!(time(&metric["timestamp"].take()).as_second(), at);
    assert!(metric["cpuUsedPct"].take().is_number());
    let expected = json!({
        "timestamp": null, "timestampUnix": null, "cpuCount": 2, "cpuUsedPct": null, "memUsed": 2_000_000,
        "memTotal": 2048u64 << 20, "memCache": 1_000_000, "diskUsed": 4096, "diskTotal": 10_240u64 << 20,
    });
    assert_eq!(metric, expected);
    let within = app.get(&format!("/sandboxes/{id}/metrics?start={at}&end={at}")).await.expect(200).json();
    assert_eq!(within.as_array().unwrap().len(), 1);
    let before = app.get(&format!("/sandboxes/{id}/metrics?start=0&end=1000")).await.expect(200).json();
    assert_eq!(before, json!([]));
    let newest = app.get(&format!("/sandboxes/metrics?sandbox_ids={id},unknown")).await.expect(200).json();
    assert_eq!(newest["sandboxes"].as_object().unwrap().keys().collect::<Vec<_>>(), [&id]);
}

#[tokio::test]
async fn logs_tell_of_the_sandbox_and_its_processes() {
    let app = TestApp::start().await;
    app.engine.set_manners(Manners::Talkative);
    let id = app.create(json!({})).await;
    let logs = app.get(&format!("/sandboxes/{id}/logs")).await.expect(200).json();
    assert_eq!(logs["logs"].as_array().unwrap().len(), logs["logEntries"].as_array().unwrap().len());
    let v2 = app.get(&format!("/v2/sandboxes/{id}/logs")).await.expect(200).json();
    assert_eq!(v2["logs"], logs["logEntries"]);
    let messages: Vec<&str> =
        v2["logs"].as_array().unwrap().iter().map(|entry| entry["message"].as_str().unwrap()).collect();
    let expected = [
        "sandbox creating: requested",
        "sandbox running: ready",
        "process 42 started: echo hello",
        "hello",
        "process 42 ended: exit status 3",
    ];
    assert_eq!(messages, expected);

    let query = "limit=1&direction=backward&level=warn&search=ended";
    let found = app.get(&format!("/v2/sandboxes/{id}/logs?{query}")).await.expect(200).json();
    let entry = &found["logs"][0];
    assert_eq!((&entry["level"], &entry["fields"]["exit_code"]), (&json!("warn"), &json!("3")));

    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    let after = app.get(&format!("/v2/sandboxes/{id}/logs?direction=backward")).await.expect(200).json();
    assert_eq!(after["logs"][0]["message"], "sandbox terminated: destroyed on request");
}

#[tokio::test]
async fn the_command_line_finds_teams_and_templates() {
    let app = TestApp::start().await;
    let teams = app.get("/teams").await.expect(200).json();
    assert_eq!((&teams[0]["apiKey"], &teams[0]["isDefault"]), (&json!(app.key), &json!(true)));
    let templates = app.get("/templates").await.expect(200).json();
    let names: Vec<&Value> =
        templates.as_array().unwrap().iter().map(|template| &template["templateID"]).collect();
    assert_eq!(names[..3], [&json!("base"), &json!("host"), &json!("other")]);
    assert!(names[3..].contains(&&json!("code-interpreter-v1")), "the catalogue follows: {names:?}");
    app.get("/templates/aliases/base").await.expect(200);
    let alias = app.get("/templates/aliases/other").await.expect(200).json();
    assert_eq!(alias, json!({"templateID": "other", "public": true}));
    app.get("/templates/aliases/none").await.expect(404);
    app.delete("/templates/team%2Fnone%3Adefault").await.expect(404);
    app.delete("/templates/other").await.expect(403);
}

#[tokio::test]
async fn a_bearer_key_and_an_old_client_id_are_taken() {
    let app = TestApp::start().await;
    let id = app.create(json!({})).await;
    let request = http::Request::builder()
        .method(Method::GET)
        .uri(format!("/sandboxes/{id}-abc123"))
        .header("host", "localhost")
        .header("authorization", format!("Bearer {}", app.key));
    app.send(request.body(Full::default()).unwrap()).await.expect(200);
}

#[tokio::test]
async fn health_needs_no_key() {
    let app = TestApp::start().await;
    let request = http::Request::get("/health").header("host", "localhost");
    app.send(request.body(Full::default()).unwrap()).await.expect(200);
}

/// A task that went on would find the records closed under it.
#[tokio::test]
async fn a_stop_leaves_no_task() {
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut app = TestApp::start().await;
    app.stop().await;
    let without = alive();
    app.restart(async |_| ()).await;
    assert!(alive() > without + 5, "followers run");
    app.stop().await;
    assert_eq!(alive(), without);
}

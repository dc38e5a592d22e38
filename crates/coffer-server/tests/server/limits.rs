//! Quotas, rates, settings, leases, sweeps, and two servers on one database.

use std::time::Duration;

use coffer_core::{DestroyReason, Kept, SandboxState};
use coffer_server::{LimitSettings, RateSettings, ServerConfig};
use http::Method;
use serde_json::{Value, json};

use crate::app::{Answer, TestApp, policy};
use crate::engine::Op;
use crate::events::Reader;

fn config(limits: LimitSettings) -> ServerConfig {
    ServerConfig { lifetime: policy(), limits, ..ServerConfig::default() }
}

async fn operator(app: &TestApp) -> String {
    app.store.create_operator_key(&app.store.operator(), "root").await.unwrap().reveal().to_string()
}

/// Sets quotas of the first project.
async fn quotas(app: &TestApp, quotas: Value) -> Answer {
    let path = format!("/api/v1/projects/{}/quotas", app.scope().await.project());
    app.as_key(&operator(app).await, Method::PUT, &path, quotas).await
}

/// Waits for background work.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..600 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never: {what}");
}

#[tokio::test]
async fn over_quota_is_said_at_once_on_both_apis() {
    let app = TestApp::start().await;
    quotas(&app, json!({"sandboxes": 1})).await.expect(200);
    let first = app.create(json!({"timeout": 120})).await;
    let refused = app.post("/api/v1/sandboxes", json!({})).await.expect(429);
    let body = refused.json();
    assert_eq!(body["code"], "quota_exceeded");
    assert_eq!(body["details"], json!({"quota": "sandboxes", "limit": 1, "used": 1, "asked": 1}));
    let wait: u32 = refused.header("retry-after").expect("the first ends soon").parse().unwrap();
    assert!((1..=121).contains(&wait), "{wait}");
    for path in ["/sandboxes", "/v2/sandboxes"] {
        let refused = app.post(path, json!({"templateID": "base"})).await.expect(429).json();
        assert_eq!(refused["code"], 429, "{refused}");
        assert!(refused["message"].as_str().unwrap().contains("`sandboxes` is 1"), "{refused}");
    }
    eventually("what was made in vain is gone", async || app.engine.ids().len() == 1).await;
    let shown = app.get("/api/v1/quotas").await.expect(200).json();
    assert_eq!((&shown["limits"]["sandboxes"], &shown["used"]["sandboxes"]), (&json!(1), &json!(1)));
    assert_eq!((&shown["limits"]["forks"], &shown["limits"]["cpus"]), (&json!(5), &Value::Null));
    // Another project has its own quotas.
    app.as_key(&app.other_key, Method::POST, "/api/v1/sandboxes", json!({})).await.expect(201);
    app.delete(&format!("/sandboxes/{first}")).await.expect(204);
    app.post("/api/v1/sandboxes", json!({})).await.expect(201);
}

#[tokio::test]
async fn whoever_goes_on_asking_makes_no_sandboxes() {
    let app = TestApp::start().await;
    quotas(&app, json!({"sandboxes": 0})).await.expect(200);
    let refused = app.post("/api/v1/sandboxes", json!({})).await.expect(429);
    assert_eq!(refused.header("retry-after"), None, "waiting would not help");
    let creates = || app.engine.asked().into_iter().filter(|(op, _)| *op == Op::Create).count();
    let before = creates();
    for _ in 0..20 {
        app.post("/api/v1/sandboxes", json!({})).await.expect(429);
    }
    assert_eq!(creates(), before, "the engine was asked in vain");
    eventually("nothing is left", async || app.engine.ids().is_empty()).await;
    app.assert_empty().await;
}

#[tokio::test]
async fn a_pause_frees_room_and_a_resume_needs_it() {
    let app = TestApp::start().await;
    quotas(&app, json!({"cpus": 2})).await.expect(200);
    let first = app.create(json!({})).await;
    app.post_empty(&format!("/sandboxes/{first}/pause")).await.expect(204);
    let second = app.create(json!({})).await;
    let resume = format!("/api/v1/sandboxes/{first}/resume");
    let refused = app.post(&resume, json!({})).await.expect(429).json();
    assert_eq!(refused["details"]["quota"], "cpus", "{refused}");
    app.post(&format!("/v2/sandboxes/{first}/connect"), json!({})).await.expect(429);
    assert_eq!(app.row(&first).await.state, SandboxState::Paused { kept: Kept::MemoryAndFiles });
    app.delete(&format!("/sandboxes/{second}")).await.expect(204);
    app.post(&resume, json!({})).await.expect(200);
}

#[tokio::test]
async fn quotas_are_an_operators_to_give() {
    let app = TestApp::start().await;
    let path = format!("/api/v1/projects/{}/quotas", app.scope().await.project());
    app.put(&path, json!({"sandboxes": 99})).await.expect(403);
    quotas(&app, json!({"sandboxes": -1})).await.expect(422);
    quotas(&app, json!({"sandboxen": 1})).await.expect(422);
    let set = quotas(&app, json!({"sandboxes": 3, "disk_mib": 1_i64 << 40})).await.expect(200);
    assert_eq!(set.json()["own"]["sandboxes"], 3);
    let stale = app.request(Method::PUT, &path).header("if-match", "\"1\"");
    let operator = operator(&app).await;
    let mut stale = stale.body(json!({}).to_string().into()).unwrap();
    stale.headers_mut().insert("x-api-key", operator.parse().unwrap());
    app.send(stale).await.expect(412);
    let nowhere = "/api/v1/projects/01234567890123456789012345/quotas";
    app.as_key(&operator, Method::PUT, nowhere, json!({})).await.expect(404);
    assert_eq!(app.events("project.quotas_changed").await.len(), 1);
}

#[tokio::test]
async fn a_key_that_asks_too_fast_has_to_wait() {
    let rates = RateSettings {
        requests_per_s: 1,
        requests_burst: 5,
        creates_per_s: 1,
        creates_burst: 1,
        ..RateSettings::default()
    };
    let app = TestApp::configured(config(LimitSettings { rates, ..LimitSettings::default() })).await;
    let id = app.create(json!({})).await;
    let refused = app.post("/v2/sandboxes", json!({"templateID": "base"})).await;
    if refused.status != 201 {
        // Unless a second passed in between.
        assert_eq!(refused.expect(429).json()["code"], 429, "E2B's shape");
    }
    let mut refused = None;
    for _ in 0..200 {
        let answer = app.get("/api/v1/sandboxes").await;
        if answer.status == 429 {
            refused = Some(answer.expect(429));
            break;
        }
    }
    let refused = refused.expect("200 requests in a row are more than one a second");
    assert_eq!((&refused.json()["code"], refused.header("retry-after")), (&json!("rate_limited"), Some("1")));
    app.as_key(&app.other_key, Method::GET, "/api/v1/sandboxes", Value::Null).await.expect(200);
    // Traffic of sandboxes does not count as requests of a key.
    for _ in 0..20 {
        assert_eq!(app.visit(&id, "/health").await.status, 204);
    }
    let everything = coffer_store::AuditFilter { limit: 200, ..Default::default() };
    let told = app.store.audit(&app.store.operator(), &everything).await.unwrap();
    assert!(told.iter().all(|record| record.status != 429), "a flood would fill the audit log");
}

#[tokio::test]
async fn wrong_keys_have_to_wait_and_good_ones_do_not() {
    let rates = RateSettings { wrong_keys_per_s: 1, wrong_keys_burst: 3, ..RateSettings::default() };
    let app = TestApp::configured(config(LimitSettings { rates, ..LimitSettings::default() })).await;
    app.get("/api/v1/sandboxes").await.expect(200);
    let wrong = "e2b_0000000000000000000000000000000000000000";
    let mut statuses = Vec::new();
    for _ in 0..200 {
        let answer = app.as_key(wrong, Method::GET, "/v2/sandboxes", Value::Null).await;
        statuses.push(answer.status);
        if answer.status == 429 {
            break;
        }
    }
    assert_eq!((statuses.first(), statuses.last()), (Some(&401), Some(&429)));
    app.get("/api/v1/sandboxes").await.expect(200);
}

#[tokio::test]
async fn a_projects_settings_hold_for_its_sandboxes() {
    let app = TestApp::start().await;
    let path = "/api/v1/project/settings";
    let first = app.get(path).await.expect(200);
    assert_eq!(first.header("etag"), Some("\"0\""));
    let force = &first.json()["in_force"];
    assert_eq!(
        (&force["timeout_s"], &force["on_timeout"], &force["idle_s"]),
        (&json!(3600), &json!("kill"), &Value::Null)
    );
    for wrong in [
        json!({"timeout_s": 0}),
        json!({"timeout_s": 3601}),
        json!({"max_lifetime_s": 7201}),
        json!({"timeout_s": 60, "max_lifetime_s": 59}),
        json!({"idle_s": -1}),
        json!({"on_timeout": "explode"}),
        json!({"retention": {"events_days": 0}}),
        json!({"colour": "red"}),
    ] {
        app.put(path, wrong).await.expect(422);
    }
    let settings = json!({
        "timeout_s": 1200, "idle_s": 900, "max_lifetime_s": 1800, "on_timeout": "pause",
        "retention": {"events_days": 3}
    });
    let put = |tag: &str| {
        let request = app.request(Method::PUT, path).header("if-match", tag);
        app.send(request.body(settings.to_string().into()).unwrap())
    };
    let set = put("\"0\"").await.expect(200);
    assert_eq!(
        (set.header("etag"), &set.json()["in_force"]["retention"]["events_days"]),
        (Some("\"1\""), &json!(3))
    );
    put("\"0\"").await.expect(412);
    let made = app.post("/api/v1/sandboxes", json!({})).await.expect(201).json();
    let lives = |sandbox: &Value| {
        let time = |name: &str| sandbox[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        time("deadline").duration_since(time("started_at")).as_secs()
    };
    assert_eq!((lives(&made), &made["on_timeout"], &made["idle_s"]), (1200, &json!("pause"), &json!(900)));
    let own = json!({"timeout_s": 3000, "idle_s": 0, "max_lifetime_s": 1500, "on_timeout": "kill"});
    let made = app.post("/api/v1/sandboxes", own).await.expect(201).json();
    assert_eq!((lives(&made), &made["on_timeout"], &made["idle_s"]), (1500, &json!("kill"), &Value::Null));
    app.post("/api/v1/sandboxes", json!({"max_lifetime_s": 1801})).await.expect(422);
    // E2B's clients have E2B's timeouts, within what the project allows.
    let e2b = app.row(&app.create(json!({"timeout": 3600})).await).await;
    assert_eq!(e2b.lifetime.deadline_ms - e2b.lifetime.started_ms, 1_800_000);
    let e2b = app.post("/v2/sandboxes", json!({"templateID": "base"})).await.expect(201).json();
    let e2b = app.row(e2b["sandboxID"].as_str().unwrap()).await;
    assert_eq!((e2b.lifetime.deadline_ms - e2b.lifetime.started_ms, e2b.bounds.idle_s), (300_000, Some(900)));
    // An operator reads and sets them too.
    let path = format!("/api/v1/projects/{}/settings", app.scope().await.project());
    let operator = operator(&app).await;
    let seen = app.as_key(&operator, Method::GET, &path, Value::Null).await.expect(200);
    assert_eq!((seen.header("etag"), &seen.json()["idle_s"]), (Some("\"1\""), &json!(900)));
    app.as_key(&operator, Method::PUT, &path, json!({})).await.expect(200);
    let made = app.post("/api/v1/sandboxes", json!({})).await.expect(201).json();
    assert_eq!(lives(&made), 3600);
    assert_eq!(app.events("project.settings_changed").await.len(), 2);
}

#[tokio::test]
async fn a_sandbox_without_its_owner_ends() {
    let app = TestApp::start().await;
    let made = app.post("/api/v1/sandboxes", json!({"lease_s": 3})).await.expect(201).json();
    assert_eq!((&made["lease_s"], made["lease_expires_at"].is_string()), (&json!(3), true));
    let id = made["id"].as_str().unwrap().to_string();
    let heartbeat = format!("/api/v1/sandboxes/{id}/heartbeat");
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(5) {
        let lease = app.post_empty(&heartbeat).await.expect(200).json();
        assert_eq!(lease["lease_s"], 3);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(app.state(&id).await, "running", "longer than its lease, by heartbeats alone");
    assert_eq!(app.ended(&id).await, SandboxState::Terminated { reason: DestroyReason::LeaseExpired });
    let over = app.get(&format!("/api/v1/sandboxes/{id}")).await.expect(200).json();
    assert_eq!(over["reason"], "lease expired");
    app.post_empty(&heartbeat).await.expect(404);
    let plain = app.create(json!({})).await;
    let refused = app.post_empty(&format!("/api/v1/sandboxes/{plain}/heartbeat")).await.expect(409);
    assert!(refused.json()["hint"].as_str().unwrap().contains("lease_s"));
    for wrong in [0, -1, 86_401] {
        app.post("/api/v1/sandboxes", json!({"lease_s": wrong})).await.expect(422);
    }
}

#[tokio::test]
async fn a_lease_that_runs_out_pauses_where_that_is_asked_for() {
    let app = TestApp::start().await;
    let new = json!({"lease_s": 1, "on_timeout": "pause"});
    let id = app.post("/api/v1/sandboxes", new).await.expect(201).json()["id"].as_str().unwrap().to_string();
    app.wait_for(&id, "paused").await;
    let last = app.history(&id).await.pop().unwrap();
    assert!(last.reason.starts_with("paused: lease expired; "), "{}", last.reason);
    app.post_empty(&format!("/api/v1/sandboxes/{id}/heartbeat")).await.expect(404);
    let again = app.post(&format!("/api/v1/sandboxes/{id}/resume"), json!({})).await.expect(200).json();
    assert_eq!(again["state"], "running", "its lease begins anew");
    app.wait_for(&id, "paused").await;
}

#[tokio::test]
async fn idle_sandboxes_pause_and_wake() {
    let app = TestApp::start().await;
    app.put("/api/v1/project/settings", json!({"idle_s": 3, "on_timeout": "pause"})).await.expect(200);
    let made = app.post("/api/v1/sandboxes", json!({"auto_resume": true})).await.expect(201).json();
    let (id, busy) = (made["id"].as_str().unwrap().to_string(), app.create(json!({"autoPause": true})).await);
    let processes = format!("/api/v1/sandboxes/{id}/processes");
    let files = format!("/api/v1/sandboxes/{id}/files");
    let watched = [
        format!("{processes}?watch=true"),
        format!("{files}?path=/&watch=true"),
        format!("{files}/none?watch=true"),
    ];
    assert_eq!(app.get(&watched[0]).await.expect(200).json()["items"], json!([]));
    app.get(&format!("{processes}?watch=often")).await.expect(422);
    let use_it = async {
        loop {
            assert_eq!(app.visit(&busy, "/health").await.status, 204);
            // Polling is not activity: it becomes idle all the same.
            for path in &watched {
                let status = app.get(path).await.status;
                assert!([200, 404, 409, 503].contains(&status), "{path}: {status}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = app.wait_for(&id, "paused") => {}
        () = use_it => {}
    }
    assert_eq!(app.state(&busy).await, "running", "what is used is not idle");
    assert_eq!(app.row(&id).await.state, SandboxState::Paused { kept: Kept::MemoryAndFiles });
    let reason = app.history(&id).await.pop().unwrap().reason;
    assert!(reason.starts_with("paused because nothing used it; "), "{reason}");
    for path in &watched {
        app.get(path).await.expect(409);
    }
    assert_eq!(app.state(&id).await, "paused", "whoever looks on does not wake it");
    assert_ne!(app.visit(&id, "/envs").await.status, 502, "traffic wakes it");
    assert_eq!(app.state(&id).await, "running");
}

#[tokio::test]
async fn old_records_are_swept_and_late_readers_are_told() {
    let limits = LimitSettings { sweep_every: "100ms".parse().unwrap(), ..LimitSettings::default() };
    let app = TestApp::configured(config(limits)).await;
    let (old, live) = (app.create(json!({})).await, app.create(json!({})).await);
    app.delete(&format!("/sandboxes/{old}")).await.expect(204);
    let events = app.get("/api/v1/events").await.expect(200).json();
    assert_eq!(events["items"].as_array().unwrap().len(), 5, "made, ran, made, ran, ended: {events}");
    app.put("/api/v1/project/settings", json!({"retention": {"records_days": 2, "events_days": 2}}))
        .await
        .expect(200);
    app.database.execute("UPDATE sandboxes SET ended_ms = 1 WHERE ended_ms IS NOT NULL").await;
    app.database.execute("UPDATE events SET at_ms = 1 WHERE sequence <= 5").await;
    let scope = app.scope().await;
    eventually("old events are gone", async || app.store.pruned_event(&scope).await.unwrap() == 5).await;
    eventually("the old sandbox is gone", async || {
        app.get(&format!("/api/v1/sandboxes/{old}")).await.status == 404
    })
    .await;
    assert_eq!(app.state(&live).await, "running");
    let gone = app.get("/api/v1/events?cursor=2").await.expect(410).json();
    assert_eq!((&gone["code"], gone["hint"].is_string()), (&json!("gone"), true));
    let page = app.get("/api/v1/events").await.expect(200).json();
    assert_eq!(page["items"][0]["sequence"], 6);
    let mut late = Reader::open(&app, "?kind=project.*", Some(2)).await;
    let (at, kind, gap) = late.next().await.unwrap();
    assert_eq!((at, kind.as_str(), &gap["payload"]), (5, "gap", &json!({"after": 2, "until": 5})));
    assert_eq!(late.next().await.unwrap().0, 6);
    let mut current = Reader::open(&app, "", Some(5)).await;
    assert_eq!(current.next().await.unwrap().0, 6, "nothing was missed");
}

#[tokio::test]
async fn two_servers_share_records_and_not_sandboxes() {
    let named = |name: &str| ServerConfig {
        installation: Some(name.to_string()),
        ..config(LimitSettings::default())
    };
    let mut here = TestApp::configured(named("here")).await;
    let there = here.neighbour(named("there")).await;
    let mut reader = Reader::open(&there, "?kind=sandbox.running", None).await;
    let (ours, theirs) = (here.create(json!({})).await, there.create(json!({})).await);
    // From the first answer on.
    let made = here.post("/api/v1/sandboxes", json!({})).await.expect(201).json();
    assert_eq!(made["installation"], "here");
    here.delete(&format!("/api/v1/sandboxes/{}", made["id"].as_str().unwrap())).await.expect(204);
    // Events of one server are on the other's stream.
    let mut told = [reader.next().await.unwrap().2, reader.next().await.unwrap().2];
    told.sort_by_key(|event| event["subject"] != json!(ours));
    assert_eq!([&told[0]["subject"], &told[1]["subject"]], [&json!(ours), &json!(theirs)]);
    for app in [&here, &there] {
        for list in ["/v2/sandboxes", "/api/v1/sandboxes"] {
            let listed = app.get(list).await.expect(200).text();
            assert!(listed.contains(&ours) && listed.contains(&theirs), "{listed}");
        }
    }
    let shown = here.get(&format!("/api/v1/sandboxes/{theirs}")).await.expect(200).json();
    assert_eq!((&shown["state"], &shown["installation"]), (&json!("running"), &json!("there")));
    for (method, path) in [
        (Method::DELETE, format!("/api/v1/sandboxes/{theirs}")),
        (Method::POST, format!("/api/v1/sandboxes/{theirs}/heartbeat")),
        (Method::DELETE, format!("/sandboxes/{theirs}")),
        (Method::POST, format!("/sandboxes/{theirs}/pause")),
        (Method::POST, format!("/v2/sandboxes/{theirs}/connect")),
    ] {
        let refused = here.as_key(&here.key, method.clone(), &path, Value::Null).await.expect(421);
        assert!(refused.text().contains("'there'"), "{method} {path}: {}", refused.text());
        // Other projects do not even learn that.
        here.as_key(&here.other_key, method, &path, Value::Null).await.expect(404);
    }
    // A server that starts, and looks for lost sandboxes, leaves the other's alone.
    here.restart(async |_| {}).await;
    assert_eq!((here.state(&ours).await, there.state(&theirs).await), ("running".into(), "running".into()));
    assert_eq!((here.engine.ids().len(), there.engine.ids().len()), (1, 1));
    // Both share one quota.
    quotas(&here, json!({"sandboxes": 3})).await.expect(200);
    let create =
        |app| async move { TestApp::post(app, "/v2/sandboxes", json!({"templateID": "base"})).await.status };
    let made = tokio::join!(create(&here), create(&there), create(&here), create(&there));
    let mut made = [made.0, made.1, made.2, made.3];
    made.sort_unstable();
    assert_eq!(made, [201, 429, 429, 429]);
    there.delete(&format!("/sandboxes/{theirs}")).await.expect(204);
    here.delete(&format!("/api/v1/sandboxes/{theirs}")).await.expect(204);
}

#[tokio::test]
async fn an_operator_sees_the_live_sandboxes_of_all_projects() {
    let app = TestApp::start().await;
    let over = app.create(json!({})).await;
    app.delete(&format!("/sandboxes/{over}")).await.expect(204);
    let mut live = vec![app.create(json!({})).await];
    let made = app.as_key(&app.other_key, Method::POST, "/api/v1/sandboxes", json!({})).await.expect(201);
    live.push(made.json()["id"].as_str().unwrap().to_string());
    let everywhere = "/api/v1/admin/sandboxes";
    app.as_key(&app.key, Method::GET, everywhere, json!(null)).await.expect(403);
    let operator = operator(&app).await;
    let mut seen = Vec::new();
    let mut path = format!("{everywhere}?limit=1");
    loop {
        let page = app.as_key(&operator, Method::GET, &path, json!(null)).await.expect(200).json();
        for item in page["items"].as_array().unwrap() {
            assert!(item["project_id"].is_string());
            seen.push(item["sandbox"]["id"].as_str().unwrap().to_string());
        }
        let Some(next) = page["next"].as_str() else { break };
        path = format!("{everywhere}?limit=1&cursor={next}");
    }
    seen.sort();
    live.sort();
    assert_eq!(seen, live);
}

//! Volumes: created, mounted, listed, deleted; their content; and what a crash leaves.

use coffer_core::{SandboxId, VolumeId};
use coffer_engine::{EngineError, RunState};
use coffer_server::{LimitSettings, ServerConfig};
use coffer_store::{InsertedVolume, NewVolume, Secret};
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::app::{Answer, TestApp};
use crate::engine::Op;
use crate::snapshots::with_memory;

async fn volume(app: &TestApp, name: &str) -> Value {
    app.post("/volumes", json!({"name": name})).await.expect(201).json()
}

fn id(volume: &Value) -> String {
    volume["volumeID"].as_str().unwrap().to_string()
}

fn parsed(id: &str) -> SandboxId {
    id.parse().unwrap()
}

async fn content(app: &TestApp, token: &str, method: Method, path: &str, body: &str) -> Answer {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("authorization", format!("Bearer {token}"));
    app.send(request.body(Full::from(body.to_string())).unwrap()).await
}

#[tokio::test]
async fn a_volume_lives_as_e2b_says() {
    let app = TestApp::start().await;
    assert_eq!(app.get("/volumes").await.expect(200).json(), json!([]));
    let made = volume(&app, "my-data_1").await;
    let (own, token) = (id(&made), made["token"].as_str().unwrap().to_string());
    assert_eq!(made, json!({"volumeID": own, "name": "my-data_1", "token": token}));
    assert!(token.len() >= 40);
    let listed = app.get("/volumes").await.expect(200).json();
    assert_eq!(listed, json!([{"volumeID": own, "name": "my-data_1"}]), "without tokens");
    assert_eq!(app.get(&format!("/volumes/{own}")).await.expect(200).json(), made);
    let limit = ServerConfig::default().limits.volume_size.as_mib();
    assert_eq!(app.engine.volume_limits(), [(own.parse().unwrap(), limit)].into());

    let taken = app.post("/volumes", json!({"name": "my-data_1"})).await.expect(409).json();
    assert_eq!(taken["message"], "there is a volume 'my-data_1' already");
    for bad in ["", "a b", "../x", "ä", &"x".repeat(129)] {
        app.post("/volumes", json!({"name": bad})).await.expect(400);
    }
    app.delete(&format!("/volumes/{own}")).await.expect(204);
    app.delete(&format!("/volumes/{own}")).await.expect(404);
    app.get(&format!("/volumes/{own}")).await.expect(404);
    app.get("/volumes/nonsense").await.expect(404);
    assert!(app.engine.volume_limits().is_empty());
    volume(&app, "my-data_1").await;
    assert_eq!(app.events("volume.created").await.len(), 2);
    assert_eq!(app.events("volume.deleted").await.len(), 1);
}

#[tokio::test]
async fn a_sandbox_mounts_volumes_by_name_and_keeps_them() {
    let app = with_memory().await;
    let own = id(&volume(&app, "data").await);
    let cache = app.post("/api/v1/volumes", json!({"name": "cache", "size_mib": 64})).await.expect(201);
    assert!(cache.header("location").unwrap().ends_with(cache.json()["id"].as_str().unwrap()));
    let mounts = json!([{"name": "data", "path": "/data"}]);
    let e2b = app.create(json!({"volumeMounts": mounts})).await;
    let shown = app.get(&format!("/sandboxes/{e2b}")).await.expect(200).json();
    assert_eq!(shown["volumeMounts"], mounts);
    let order = app.engine.order(parsed(&e2b));
    assert_eq!(order.volumes.len(), 1);
    assert_eq!(
        (order.volumes[0].volume.to_string(), order.volumes[0].path.as_str(), order.volumes[0].read_only),
        (own.clone(), "/data", false)
    );
    let wanted = json!([
        {"name": "data", "path": "/mnt/data", "read_only": true},
        {"name": "cache", "path": "/mnt/cache", "read_only": false}
    ]);
    let made = app.post("/api/v1/sandboxes", json!({"volumes": wanted})).await.expect(201).json();
    assert_eq!(made["volumes"], wanted);
    let plain = made["id"].as_str().unwrap();
    assert!(app.engine.order(parsed(plain)).volumes[0].read_only);
    let listed = app.get("/v2/sandboxes").await.expect(200).json();
    assert!(listed.as_array().unwrap().iter().all(|listed| listed["volumeMounts"][0]["name"] == "data"));

    let detail = app.get(&format!("/api/v1/volumes/{own}")).await.expect(200).json();
    let mut users: Vec<&str> = vec![&e2b, plain];
    users.sort();
    assert_eq!((&detail["used_bytes"], &detail["sandboxes"]), (&json!(4096), &json!(users)));
    let refused = app.delete(&format!("/api/v1/volumes/{own}")).await.expect(409).json();
    assert!(refused["message"].as_str().unwrap().contains(&e2b), "{refused}");
    assert_eq!(refused["details"]["sandboxes"], json!(users));
    app.delete(&format!("/volumes/{own}")).await.expect(409);

    // Its memory stays in the host's, and a fork has the same volumes and no processes.
    app.post_empty(&format!("/sandboxes/{e2b}/pause")).await.expect(204);
    assert_eq!(app.engine.run(parsed(&e2b)), Some(RunState::Frozen));
    let why = app.history(&e2b).await.last().unwrap().reason.clone();
    assert!(why.contains("volumes"), "{why}");
    app.delete(&format!("/volumes/{own}")).await.expect(409);
    app.post(&format!("/v2/sandboxes/{e2b}/connect"), json!({})).await.expect(201);
    let fork = app.post(&format!("/sandboxes/{e2b}/fork"), json!({})).await.expect(201).json();
    let fork = fork[0]["sandbox"]["sandboxID"].as_str().unwrap().to_string();
    let order = app.engine.order(parsed(&fork));
    assert_eq!((order.volumes, order.memory), (app.engine.order(parsed(&e2b)).volumes, false));
    app.post(&format!("/api/v1/sandboxes/{e2b}/fork"), json!({"memory": true})).await.expect(501);

    for sandbox in [&e2b, plain, &fork] {
        app.delete(&format!("/sandboxes/{sandbox}")).await.expect(204);
    }
    app.delete(&format!("/volumes/{own}")).await.expect(204);
}

#[tokio::test]
async fn a_snapshot_boots_with_volumes_that_its_create_names() {
    let app = with_memory().await;
    volume(&app, "data").await;
    let source = app.create(json!({})).await;
    let snapshot = crate::snapshots::snapshot(&app, &source, json!({})).await;
    assert_eq!(snapshot["memory"], true);
    let mounts = json!([{"name": "data", "path": "/data"}]);
    let child = app.create(json!({"templateID": snapshot["id"], "volumeMounts": mounts})).await;
    let order = app.engine.order(parsed(&child));
    assert_eq!((order.memory, order.volumes.len()), (false, 1));
    let both = json!({"snapshot_id": snapshot["id"], "memory": true, "volumes": mounts});
    app.post("/api/v1/sandboxes", both).await.expect(501);
    let mounted = crate::snapshots::snapshot(&app, &child, json!({})).await;
    assert_eq!(mounted["memory"], false);
    assert!(mounted["note"].as_str().unwrap().contains("volumes"), "{mounted}");
}

#[tokio::test]
async fn bad_mounts_are_refused_before_anything_exists() {
    let app = TestApp::start().await;
    volume(&app, "data").await;
    let e2b = |mounts: Value| json!({"templateID": "base", "volumeMounts": mounts});
    let mount = |path: &str| json!({"name": "data", "path": path});
    for path in ["data", "/", "/a/../b", "//a", "/a/", "/proc", "/dev/shm", "/run/x", "/sys", "/a\u{0}b"] {
        app.post("/v2/sandboxes", e2b(json!([mount(path)]))).await.expect(400);
        app.post("/api/v1/sandboxes", json!({"volumes": [mount(path)]})).await.expect(422);
    }
    for mounts in [json!([mount("/a"), mount("/a")]), json!([mount("/a"), mount("/a/b")])] {
        app.post("/v2/sandboxes", e2b(mounts.clone())).await.expect(400);
        app.post("/api/v1/sandboxes", json!({"volumes": mounts})).await.expect(422);
    }
    let many: Vec<_> = (0..17).map(|at| mount(&format!("/m{at}"))).collect();
    app.post("/v2/sandboxes", e2b(json!(many))).await.expect(400);
    for name in ["other", "../data", ""] {
        let unknown = json!([{"name": name, "path": "/data"}]);
        app.post("/v2/sandboxes", e2b(unknown.clone())).await.expect(404);
        app.post("/api/v1/sandboxes", json!({"volumes": unknown})).await.expect(404);
    }
    assert!(app.engine.ids().is_empty());
    // One that vanishes while the sandbox is being created.
    app.engine.fail_next(Op::Create, EngineError::UnknownVolume);
    let lost = app.post("/v2/sandboxes", e2b(json!([mount("/data")]))).await.expect(404).json();
    assert_eq!(lost["message"], "volume 'data' not found");
}

#[tokio::test]
async fn another_project_finds_nothing() {
    let app = TestApp::start().await;
    let made = volume(&app, "data").await;
    let own = id(&made);
    let other = |method: Method, path: String, body: Value| {
        let (app, key) = (&app, app.other_key.clone());
        async move { app.as_key(&key, method, &path, body).await }
    };
    for path in [format!("/volumes/{own}"), format!("/api/v1/volumes/{own}")] {
        other(Method::GET, path.clone(), json!({})).await.expect(404);
        other(Method::DELETE, path, json!({})).await.expect(404);
    }
    assert_eq!(other(Method::GET, "/volumes".into(), json!({})).await.expect(200).json(), json!([]));
    let mounts = json!({"templateID": "base", "volumeMounts": [{"name": "data", "path": "/data"}]});
    other(Method::POST, "/v2/sandboxes".into(), mounts).await.expect(404);
    // The same name is free for them, and their token does not open ours.
    let theirs = other(Method::POST, "/volumes".into(), json!({"name": "data"})).await.expect(201).json();
    let token = theirs["token"].as_str().unwrap();
    let path = format!("/volumecontent/{own}/path?path=/");
    let answer = content(&app, token, Method::GET, &path, "").await.expect(401);
    let missing = format!("/volumecontent/{}/path?path=/", VolumeId::generate());
    let unknown = content(&app, token, Method::GET, &missing, "").await.expect(401);
    assert_eq!(answer.json()["message"], unknown.json()["message"]);
    for path in [&path, "/volumecontent/nonsense/path"] {
        content(&app, "", Method::GET, path, "").await.expect(401);
        content(&app, &app.key, Method::GET, path, "").await.expect(401);
    }
    app.get(&path).await.expect(401);
    app.get(&format!("/volumes/{own}")).await.expect(200);
}

#[tokio::test]
async fn content_is_served_by_a_sandbox_that_no_list_shows() {
    let app = TestApp::start().await;
    let made = volume(&app, "data").await;
    let (own, token) = (id(&made), made["token"].as_str().unwrap());
    let at = |what: &str, path: &str| format!("/volumecontent/{own}/{what}?path={path}");
    let written = content(&app, token, Method::PUT, &at("file", "/a"), "hello").await.expect(201).json();
    assert_eq!(
        (&written["type"], &written["size"], &written["mode"]),
        (&json!("file"), &json!(5), &json!(384))
    );
    assert_eq!(written["mtime"], "1970-01-01T00:00:02.000Z");
    assert_eq!(written.get("target"), None);
    assert_eq!(content(&app, token, Method::GET, &at("file", "/a"), "").await.expect(200).text(), "hello");
    content(&app, token, Method::GET, &at("path", "/a"), "").await.expect(200);
    content(&app, token, Method::GET, &at("path", "/b"), "").await.expect(404);
    content(&app, token, Method::PUT, &at("file", "/full"), "x").await.expect(507);
    content(&app, token, Method::DELETE, &at("path", "/a"), "").await.expect(204);
    content(&app, token, Method::DELETE, &at("path", "/a"), "").await.expect(404);
    content(&app, token, Method::POST, &at("path", "/a"), "").await.expect(405);

    let [keeper] = app.engine.ids().try_into().unwrap();
    let order = app.engine.order(keeper);
    assert_eq!(
        (order.volumes[0].path.as_str(), order.network, order.snapshot),
        ("/volume", Default::default(), None)
    );
    assert_eq!(app.get("/v2/sandboxes").await.expect(200).json(), json!([]));
    assert_eq!(app.get("/api/v1/sandboxes").await.expect(200).json()["items"], json!([]));
    assert_eq!(app.get("/api/v1/quotas").await.expect(200).json()["used"]["sandboxes"], 0);
    app.get(&format!("/sandboxes/{keeper}")).await.expect(404);
    // A comparison with the engine leaves it alone.
    app.engine.reconnect();
    app.create(json!({})).await;
    content(&app, token, Method::PUT, &at("file", "/a"), "again").await.expect(201);
    assert!(app.engine.ids().contains(&keeper));
    // One that died is replaced.
    app.engine.die_silently(keeper);
    content(&app, token, Method::GET, &at("path", "/a"), "").await.expect(404);
    assert!(app.engine.asked().contains(&(Op::Destroy, keeper)));
    // The delete ends it first.
    app.delete(&format!("/volumes/{own}")).await.expect(204);
    assert_eq!(app.engine.ids().len(), 1);
    content(&app, token, Method::GET, &at("path", "/a"), "").await.expect(401);
}

#[tokio::test]
async fn a_project_has_a_few_keepers_at_a_time() {
    let app = TestApp::start().await;
    for at in 0..6 {
        let made = volume(&app, &format!("v{at}")).await;
        let path = format!("/volumecontent/{}/file?path=/a", id(&made));
        content(&app, made["token"].as_str().unwrap(), Method::PUT, &path, "x").await.expect(201);
    }
    for _ in 0..500 {
        if app.engine.ids().len() == 4 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{} keepers", app.engine.ids().len());
}

#[tokio::test]
async fn quotas_count_volumes_by_their_limit() {
    let limits =
        LimitSettings { volume_size: coffer_core::settings::ByteSize::mib(64), ..LimitSettings::default() };
    let app = TestApp::configured(ServerConfig { limits, ..ServerConfig::default() }).await;
    let operator = app.store.create_operator_key(&app.store.operator(), "op").await.unwrap();
    let project = app.scope().await.project();
    let quotas = format!("/api/v1/projects/{project}/quotas");
    app.as_key(operator.reveal(), Method::PUT, &quotas, json!({"disk_mib": 100})).await.expect(200);
    volume(&app, "a").await;
    let over = app.post("/api/v1/volumes", json!({"name": "b"})).await.expect(429).json();
    assert_eq!((&over["details"]["quota"], &over["details"]["used"]), (&json!("disk_mib"), &json!(64)));
    app.post("/volumes", json!({"name": "b"})).await.expect(429);
    app.post("/api/v1/volumes", json!({"name": "b", "size_mib": 36})).await.expect(201);
    for size_mib in [json!(0), json!(-1), json!(1_u64 << 25)] {
        app.post("/api/v1/volumes", json!({"name": "c", "size_mib": size_mib})).await.expect(422);
    }
    assert_eq!(app.get("/api/v1/quotas").await.expect(200).json()["used"]["disk_mib"], 100);
}

#[tokio::test]
async fn an_agent_mounts_read_only_and_manages_nothing() {
    let app = TestApp::start().await;
    let own = id(&volume(&app, "data").await);
    let agent = app.post("/api/v1/agents", json!({"name": "coder"})).await.expect(201).json();
    let key = json!({"name": "coder", "role": "write", "agent_id": agent["id"]});
    let key = app.post("/api/v1/keys", key).await.expect(201).json()["key"].as_str().unwrap().to_string();
    let as_agent = |method, path: String, body| {
        let (app, key) = (&app, key.clone());
        async move { app.as_key(&key, method, &path, body).await }
    };
    as_agent(Method::POST, "/volumes".into(), json!({"name": "mine"})).await.expect(403);
    as_agent(Method::DELETE, format!("/volumes/{own}"), json!({})).await.expect(403);
    as_agent(Method::GET, format!("/volumes/{own}"), json!({})).await.expect(403);
    let names = as_agent(Method::GET, "/volumes".into(), json!({})).await.expect(200).json();
    assert_eq!(names[0]["name"], "data");
    let e2b = json!({"templateID": "base", "volumeMounts": [{"name": "data", "path": "/data"}]});
    as_agent(Method::POST, "/v2/sandboxes".into(), e2b).await.expect(403);
    let mount = |read_only| json!({"volumes": [{"name": "data", "path": "/data", "read_only": read_only}]});
    as_agent(Method::POST, "/api/v1/sandboxes".into(), mount(false)).await.expect(403);
    as_agent(Method::POST, "/api/v1/sandboxes".into(), mount(true)).await.expect(201);
    // A key that only reads gets no token.
    let reader = app.post("/api/v1/keys", json!({"name": "r", "role": "read"})).await.expect(201).json();
    let reader = reader["key"].as_str().unwrap();
    app.as_key(reader, Method::GET, &format!("/volumes/{own}"), json!({})).await.expect(403);
    app.as_key(reader, Method::GET, &format!("/api/v1/volumes/{own}"), json!({})).await.expect(200);
}

#[tokio::test]
async fn what_a_crash_interrupted_is_finished_and_nothing_unknown_is_deleted() {
    let mut app = TestApp::start().await;
    let kept = id(&volume(&app, "kept").await);
    app.engine.fail(Op::CreateVolume, Some(EngineError::Failed("disk".into())));
    app.post("/volumes", json!({"name": "half"})).await.expect(500);
    app.engine.fail(Op::CreateVolume, None);
    assert_eq!(app.get("/volumes").await.expect(200).json().as_array().unwrap().len(), 1);
    // The host is away during a delete: the client's volume is gone, the files follow.
    let doomed = id(&volume(&app, "doomed").await);
    app.engine.fail(Op::DeleteVolume, Some(EngineError::Failed("busy".into())));
    app.delete(&format!("/volumes/{doomed}")).await.expect(204);
    app.get(&format!("/volumes/{doomed}")).await.expect(404);
    assert_eq!(app.engine.volume_limits().len(), 2);
    let (stranger, unfinished) = (VolumeId::generate(), VolumeId::generate());
    app.restart(async |app| {
        app.engine.fail(Op::DeleteVolume, None);
        app.engine.plant_volume(stranger);
        // A server that died between its row and the host's answer.
        app.engine.plant_volume(unfinished);
        let name = "unfinished".parse().unwrap();
        let new = NewVolume { id: unfinished, name, size_mib: 1, token: Secret::new("t".to_string()) };
        let inserted = app.store.insert_volume(&app.scope().await, new).await.unwrap();
        assert_eq!(inserted, InsertedVolume::New);
    })
    .await;
    let mut left: Vec<_> = app.engine.volume_limits().into_keys().map(|volume| volume.to_string()).collect();
    let mut expected = [kept, stranger.to_string()];
    left.sort();
    expected.sort();
    assert_eq!(left, expected);
    assert_eq!(app.get("/volumes").await.expect(200).json().as_array().unwrap().len(), 1);
    volume(&app, "unfinished").await;
    volume(&app, "doomed").await;
}

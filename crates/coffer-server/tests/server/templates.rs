//! Templates on `/api/v1`: built from Dockerfiles and steps, listed, followed, cancelled and deleted.

use std::time::Duration;

use coffer_api_types::templates::{RequestedTemplateBuild, Template, TemplateBuild};
use coffer_core::SandboxId;
use coffer_store::Quotas;
use http::Method;
use http_body_util::Full;
use serde_json::{Value, json};

use crate::app::{Answer, TestApp};
use crate::engine::Op;

const TEMPLATES: &str = "/api/v1/templates";

/// Waits until `done` returns something.
async fn until<T>(what: &str, mut done: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..600 {
        if let Some(found) = done().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what} does not happen")
}

async fn show(app: &TestApp, build: &str) -> TemplateBuild {
    app.get(&format!("/api/v1/template-builds/{build}")).await.expect(200).read()
}

/// Requests a build and waits for its end.
async fn build(app: &TestApp, body: Value) -> TemplateBuild {
    let requested: RequestedTemplateBuild = app.post(TEMPLATES, body).await.expect(202).read();
    ended(app, &requested.build.id).await
}

async fn ended(app: &TestApp, build: &str) -> TemplateBuild {
    let over = async || Some(show(app, build).await).filter(|build| build.ended_at.is_some());
    until("the end of the build", over).await
}

async fn messages(app: &TestApp, build: &str) -> Vec<String> {
    let page = app.get(&format!("/api/v1/template-builds/{build}/log?limit=200")).await.expect(200).json();
    let lines = page["items"].as_array().unwrap().iter();
    lines.map(|line| line["message"].as_str().unwrap().to_string()).collect()
}

async fn names(app: &TestApp, query: &str) -> Vec<String> {
    let page = app.get(&format!("{TEMPLATES}?{query}")).await.expect(200).json();
    let items = page["items"].as_array().unwrap().iter();
    items.map(|template| template["name"].as_str().unwrap().to_string()).collect()
}

fn uuid(build: &str) -> coffer_core::BuildId {
    coffer_core::BuildId::from_uuid(build.parse().unwrap())
}

async fn upload(app: &TestApp, bytes: &'static [u8]) -> Answer {
    let request = app.request(Method::POST, "/api/v1/template-files");
    app.send(request.body(Full::from(bytes)).unwrap()).await
}

#[tokio::test]
async fn a_dockerfile_becomes_a_template() {
    let app = TestApp::start().await;
    let dockerfile = "FROM template://base\nENV A=1\nRUN echo hello\nEXPOSE 80\nUSER root\nWORKDIR /srv\n";
    let body = json!({
        "name": "app:v1", "tags": ["latest"], "summary": "An app for tests", "dockerfile": dockerfile,
        "cpu_count": 1, "memory_mib": 256, "disk_mib": 512,
    });
    let answer = app.post(TEMPLATES, body).await.expect(202);
    let requested: RequestedTemplateBuild = answer.read();
    let place = format!("/api/v1/template-builds/{}", requested.build.id);
    assert_eq!(answer.header("location"), Some(place.as_str()));
    assert_eq!(requested.warnings.len(), 1, "{requested:?}");
    assert!(requested.warnings[0].starts_with("line 4: EXPOSE has no effect"), "{requested:?}");
    // The stream ends with the build.
    let stream = app.get(&format!("{place}/stream")).await.expect(200).text();
    assert!(stream.contains("event: line") && stream.contains("hello"), "{stream}");
    assert!(stream.trim_end().lines().any(|line| line == "event: end"), "{stream}");
    let build = show(&app, &requested.build.id).await;
    assert_eq!((build.state.as_str(), build.failure), ("ready", None));
    assert_eq!((build.from.as_deref(), build.step_count), (Some("template://base"), Some(6)));

    let template: Template = app.get(&format!("{TEMPLATES}/app")).await.expect(200).read();
    assert_eq!((template.kind.as_str(), template.state.as_str()), ("project", "ready"));
    assert_eq!((template.user.as_deref(), template.workdir.as_deref()), (Some("root"), Some("/srv")));
    assert_eq!(template.tags, ["latest", "v1"]);
    assert_eq!((template.cpu_count, template.memory_mib, template.disk_mib), (1, 256, 512));
    assert_eq!(template.summary.as_deref(), Some("An app for tests"));
    assert_eq!(template.last_build.as_ref().map(|build| build.state.as_str()), Some("ready"));
    let by_id = app.get(&format!("{TEMPLATES}/{}", template.id)).await.expect(200).read::<Template>();
    assert_eq!(by_id, template);

    // Sandboxes start from it, with its size.
    let made = app.post("/api/v1/sandboxes", json!({"template": "app:v1"})).await.expect(201).json();
    assert_eq!((made["memory_mib"].as_u64(), made["disk_mib"].as_u64()), (Some(256), Some(512)), "{made}");
    app.delete(&format!("/api/v1/sandboxes/{}", made["id"].as_str().unwrap())).await.expect(204);

    // Its second build is cached, but for what changed.
    let again = dockerfile.replace("WORKDIR /srv", "WORKDIR /opt");
    let again = self::build(&app, json!({"name": "app:v1", "dockerfile": again})).await;
    let log = messages(&app, &again.id).await;
    assert_eq!(log.iter().filter(|line| line.contains("CACHED")).count(), 5, "{log:?}");
    let page = app.get("/api/v1/template-builds?template=app&limit=1").await.expect(200).json();
    assert_eq!(page["items"][0]["id"], again.id);
    let next =
        format!("/api/v1/template-builds?template=app&limit=1&cursor={}", page["next"].as_str().unwrap());
    let page = app.get(&next).await.expect(200).json();
    assert_eq!((&page["items"][0]["id"], &page["next"]), (&json!(build.id), &Value::Null));

    app.delete(&format!("{TEMPLATES}/app")).await.expect(204);
    app.get(&format!("{TEMPLATES}/app")).await.expect(404);
    app.get(&place).await.expect(404);
    app.delete(&format!("{TEMPLATES}/base")).await.expect(403);
}

#[tokio::test]
async fn templates_are_listed_by_kind_state_and_text() {
    let app = TestApp::start().await;
    for name in ["web", "tool"] {
        let body = json!({"name": name, "summary": format!("The {name}"), "from": "template://base"});
        assert_eq!(build(&app, body).await.state, "ready");
    }
    let body = json!({"name": "broken", "from": "template://base", "steps": [{"kind": "run", "args": ["fail no such file"]}]});
    let broken = build(&app, body).await;
    let failure = broken.failure.unwrap();
    assert_eq!((broken.state.as_str(), failure.step.as_deref()), ("error", Some("1")));
    assert!(failure.message.contains("exit status 3\nno such file"), "{}", failure.message);
    assert_eq!(names(&app, "kind=project").await, ["broken", "tool", "web"]);
    assert_eq!(names(&app, "kind=project&state=error").await, ["broken"]);
    assert_eq!(names(&app, "kind=project&search=THE%20WEB").await, ["web"]);
    // Those of the catalogue.
    assert_eq!(names(&app, "state=not_built&search=npm").await, ["node"]);
    assert_eq!(names(&app, "kind=project&state=not_built").await, Vec::<String>::new());
    let all = names(&app, "").await;
    assert!(
        all.is_sorted() && all.contains(&"base".to_string()) && all.contains(&"web".to_string()),
        "{all:?}"
    );
    // Page by page it is the same list.
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = app.get(&format!("{TEMPLATES}?limit=2{cursor}")).await.expect(200).json();
        let items = page["items"].as_array().unwrap().iter();
        paged.extend(items.map(|template| template["name"].as_str().unwrap().to_string()));
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(paged, all);
    for bad in ["kind=x", "state=x", "limit=0", "colour=red"] {
        assert!(app.get(&format!("{TEMPLATES}?{bad}")).await.status >= 400, "{bad}");
    }
}

#[tokio::test]
async fn what_cannot_be_built_is_refused_before_it_begins() {
    let app = TestApp::start().await;
    let hash = "0".repeat(64);
    for (body, status, says) in [
        (json!({"dockerfile": "FROM a\nFROM b"}), 422, "line 2 of the Dockerfile: a second FROM"),
        (
            json!({"dockerfile": "FROM a\nCOPY x y"}),
            422,
            "line 2 of the Dockerfile: COPY needs the build context",
        ),
        (json!({"dockerfile": "FROM a", "from": "b"}), 422, "excludes"),
        (json!({}), 422, "must be given"),
        (
            json!({"from": "base", "steps": [{"kind": "FLY", "args": []}]}),
            422,
            "step 1 must have a kind of RUN",
        ),
        (json!({"from": "base", "steps": [{"kind": "RUN", "args": []}]}), 422, "RUN needs a command"),
        (json!({"from": "base", "colour": "red"}), 422, "unknown field `colour`"),
        (json!({"from": "base", "context": "../x"}), 422, "is not the hash of an upload"),
        (json!({"dockerfile": "FROM a\nCOPY x y", "context": hash}), 422, "were not uploaded"),
        (json!({"from": format!("archive://{hash}")}), 422, "were not uploaded"),
        (
            json!({"from": "a", "secrets": ["none"], "steps": [{"kind": "RUN", "args": ["x"]}]}),
            422,
            "'none' not found",
        ),
        (json!({"from": "a", "registry": {"username": "u", "secret": "none"}}), 422, "'none' not found"),
        (json!({"from": "a", "cpu_count": 0}), 422, "cpu_count"),
        (json!({"from": "a", "memory_mib": 1}), 422, "memory_mib"),
        (json!({"from": "a", "disk_mib": 1}), 422, "disk_mib"),
        (json!({"from": "a", "name": "../x"}), 422, "name"),
        (json!({"from": "a", "summary": "x".repeat(501)}), 422, "summary"),
        (json!({"from": "a", "name": "base"}), 409, "belongs to a template of the server"),
    ] {
        let refused = app.post(TEMPLATES, body.clone()).await.expect(status).json();
        assert!(refused["message"].as_str().unwrap().contains(says), "{body}: {refused}");
    }
    // Nothing of it is on record.
    assert_eq!(names(&app, "kind=project").await, Vec::<String>::new());
}

#[tokio::test]
async fn another_project_and_agents_get_nothing_that_is_not_theirs() {
    let app = TestApp::start().await;
    let files = upload(&app, b"of-mine").await.expect(201).json();
    let hash = files["hash"].as_str().unwrap();
    assert_eq!(files["size_bytes"], 7);
    let built = build(&app, json!({"name": "mine", "from": "template://base"})).await;
    let place = format!("/api/v1/template-builds/{}", built.id);
    for (method, path) in [
        (Method::GET, format!("{TEMPLATES}/mine")),
        (Method::GET, format!("{TEMPLATES}/{}", built.template_id)),
        (Method::DELETE, format!("{TEMPLATES}/mine")),
        (Method::GET, format!("/api/v1/template-files/{hash}")),
        (Method::GET, "/api/v1/template-builds?template=mine".to_string()),
        (Method::GET, place.clone()),
        (Method::GET, format!("{place}/log")),
        (Method::GET, format!("{place}/stream")),
        (Method::POST, format!("{place}/cancel")),
    ] {
        app.as_key(&app.other_key, method, &path, Value::Null).await.expect(404);
    }
    let theirs =
        app.as_key(&app.other_key, Method::GET, &format!("{TEMPLATES}?kind=project"), Value::Null).await;
    assert_eq!(theirs.expect(200).json()["items"], json!([]));
    let from = json!({"from": "template://mine"});
    let theirs: RequestedTemplateBuild =
        app.as_key(&app.other_key, Method::POST, TEMPLATES, from).await.expect(202).read();
    let theirs = format!("/api/v1/template-builds/{}", theirs.build.id);
    let failed = until("their failure", async || {
        let build = app.as_key(&app.other_key, Method::GET, &theirs, Value::Null).await.expect(200).json();
        Some(build).filter(|build| build["state"] == "error")
    });
    assert_eq!(failed.await["failure"]["message"], "template 'mine' not found");

    // An agent uses templates, and neither builds nor deletes them.
    let agent = app.post("/api/v1/agents", json!({"name": "coder"})).await.expect(201).json();
    let key = json!({"name": "coder", "role": "write", "agent_id": agent["id"]});
    let key = app.post("/api/v1/keys", key).await.expect(201).json();
    let key = key["key"].as_str().unwrap();
    for (method, path, status) in [
        (Method::GET, TEMPLATES.to_string(), 200),
        (Method::GET, format!("{TEMPLATES}/mine"), 200),
        (Method::GET, format!("{place}/log"), 200),
        (Method::POST, TEMPLATES.to_string(), 403),
        (Method::DELETE, format!("{TEMPLATES}/mine"), 403),
        (Method::POST, format!("{place}/cancel"), 403),
        (Method::POST, "/api/v1/template-files".to_string(), 403),
    ] {
        app.as_key(key, method, &path, json!({"from": "template://base"})).await.expect(status);
    }
}

#[tokio::test]
async fn secrets_are_variables_of_one_command_and_never_in_the_log() {
    let app = TestApp::start().await;
    app.put("/api/v1/secrets/npm-token", json!({"value": "hunter2hunter2"})).await.expect(201);
    let dockerfile = "FROM template://base\nRUN --mount=type=secret,id=npm-token,env=TOKEN echo it is hunter2hunter2\n\
                      RUN echo other";
    let body = json!({"name": "app", "dockerfile": dockerfile});
    app.engine.hold(Op::Snapshot);
    let requested: RequestedTemplateBuild = app.post(TEMPLATES, body.clone()).await.expect(202).read();
    // Snapshots wait, one step after the other; the last one ends the sandbox.
    let sandbox = until("the sandbox", async || app.engine.ids().first().copied()).await;
    let agentd = app.engine.agentd(sandbox);
    app.engine.release(Op::Snapshot);
    let first = ended(&app, &requested.build.id).await;
    assert_eq!(first.state, "ready", "{:?}", first.failure);
    let given = |line: &str| -> Vec<Option<String>> {
        let starts = agentd.guest().starts.lock().unwrap();
        let configs = starts.iter().filter_map(|(request, _)| request.process.clone());
        let named = configs.filter(|config| config.args.last().is_some_and(|last| last.contains(line)));
        named.map(|config| config.envs.get("TOKEN").cloned()).collect()
    };
    assert_eq!(given("echo it is"), [Some("hunter2hunter2".to_string())]);
    assert_eq!(given("echo other"), [None]);
    let log = messages(&app, &first.id).await;
    assert!(log.contains(&"it is [redacted]".to_string()), "{log:?}");

    // The same value is cached; a new one is not.
    let cached = async |log: Vec<String>| log.iter().filter(|line| line.contains("CACHED")).count();
    let second = build(&app, body.clone()).await;
    assert_eq!(cached(messages(&app, &second.id).await).await, 6);
    app.put("/api/v1/secrets/npm-token", json!({"value": "another-value"})).await.expect(200);
    let third = build(&app, body).await;
    assert_eq!(cached(messages(&app, &third.id).await).await, 2);
    // Named for the whole build, it has a name that a shell can read.
    let steps = json!([{"kind": "RUN", "args": ["echo another-value"]}]);
    let whole = json!({"from": "template://base", "steps": steps, "secrets": ["npm-token"]});
    let whole: RequestedTemplateBuild = app.post(TEMPLATES, whole).await.expect(202).read();
    let build = app.store.build(&app.scope().await, None, uuid(&whole.build.id)).await.unwrap().unwrap();
    let named = &build.plan.unwrap().steps[0].secrets;
    assert_eq!(named, &[("npm_token".to_string(), "npm-token".to_string())].into());
    assert_eq!(ended(&app, &whole.build.id).await.state, "ready");
    let log = messages(&app, &whole.build.id).await;
    assert!(log.contains(&"[redacted]".to_string()), "{log:?}");
    let used = app.get("/api/v1/audit?action=secret.used").await.expect(200).json();
    assert!(!used["items"].as_array().unwrap().is_empty(), "{used}");
}

#[tokio::test]
async fn a_sandbox_that_is_being_created_when_its_build_is_cancelled_ends() {
    let app = TestApp::start().await;
    app.engine.hold(Op::Create);
    let body =
        json!({"name": "app", "from": "template://base", "steps": [{"kind": "RUN", "args": ["echo x"]}]});
    let requested: RequestedTemplateBuild = app.post(TEMPLATES, body).await.expect(202).read();
    let asked = async || app.engine.asked().iter().any(|(op, _)| *op == Op::Create).then_some(());
    until("the create", asked).await;
    let path = format!("/api/v1/template-builds/{}/cancel", requested.build.id);
    let cancelled: TemplateBuild = app.post_empty(&path).await.expect(200).read();
    assert_eq!(cancelled.state, "error");
    assert_eq!(cancelled.failure.unwrap().message, "the build was cancelled");
    app.post_empty(&path).await.expect(409);
    app.engine.release(Op::Create);
    let created = until("the sandbox", async || {
        let asked = app.engine.asked();
        asked.iter().find(|(op, _)| *op == Op::Destroy).map(|(_, id)| *id)
    });
    let created: SandboxId = created.await;
    until("its end", async || (!app.engine.ids().contains(&created)).then_some(())).await;
}

#[tokio::test]
async fn old_results_give_way_when_the_quota_is_used_up() {
    let app = TestApp::start().await;
    let disk = i64::try_from(app.config.default_limits.disk_mib).unwrap();
    let quotas = Quotas { disk_mib: Some(disk + 3), ..Quotas::default() };
    let project = app.scope().await.project();
    assert!(app.store.set_quotas(&app.store.operator(), project, None, quotas).await.unwrap().is_some());
    app.engine.set_snapshot_bytes(0);
    let of = |name: &str| {
        let steps =
            ["one", "two"].map(|step| json!({"kind": "RUN", "args": [format!("echo {name} {step}")]}));
        json!({"name": name, "from": "template://base", "steps": steps})
    };
    // Each snapshot of a sandbox adds one MiB to those before it.
    app.engine.set_snapshot_bytes(1 << 20);
    let first = build(&app, of("first")).await;
    assert_eq!(first.state, "ready", "{:?}", first.failure);
    let kept = app.engine.snapshot_ids();
    let second = build(&app, of("second")).await;
    assert_eq!(second.state, "ready", "{:?}", second.failure);
    let third = build(&app, of("third")).await;
    assert_eq!(third.state, "ready", "{:?}", third.failure);
    let left = app.engine.snapshot_ids();
    let gone: Vec<_> = kept.iter().filter(|snapshot| !left.contains(snapshot)).collect();
    assert_eq!(gone.len(), 1, "the first build's own snapshot stays: {kept:?} {left:?}");
    app.create(json!({"templateID": "first"})).await;
}

#[tokio::test]
async fn hostile_archives_fail_the_build_and_nothing_else() {
    let app = TestApp::start().await;
    for bytes in [&b"not an archive"[..], &[0x1f, 0x8b, 8, 0, 0, 0], &[0; 1024]] {
        let files = upload(&app, bytes).await.expect(201).json();
        let from = format!("archive://{}", files["hash"].as_str().unwrap());
        let built = build(&app, json!({"from": from, "platform": "linux/amd64"})).await;
        let failure = built.failure.unwrap();
        assert_eq!((built.state.as_str(), failure.step.as_deref()), ("error", Some("base")), "{failure:?}");
        assert!(failure.message.contains("archive"), "{failure:?}");
    }
    assert_eq!(app.engine.ids(), []);
    let refused = build(&app, json!({"from": "some/image", "platform": "linux"})).await;
    assert!(refused.failure.unwrap().message.contains("platform 'linux'"));
    let empty = app.request(Method::POST, "/api/v1/template-files").header("content-length", "0");
    app.send(empty.body(Full::default()).unwrap()).await.expect(400);
}

//! Agents from presets: one request from nothing, templates that are built for them, and tests of them.

use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;
use crate::engine::Op;
use crate::tasks::{task, until};

const CLAUDE: &str = "/api/v1/agent-presets/claude_code/agent";

async fn set_up(app: &TestApp, body: Value) -> Value {
    let answer = app.put(CLAUDE, body).await;
    assert!([200, 201].contains(&answer.status), "{}", answer.text());
    answer.json()
}

#[tokio::test]
async fn one_request_makes_an_agent_from_nothing_and_a_repetition_changes_what_it_names() {
    let app = TestApp::start().await;
    let refused = app.put(CLAUDE, json!({})).await.expect(422).json();
    let message = refused["message"].as_str().unwrap();
    assert!(message.starts_with("key is needed") && message.contains("ANTHROPIC_API_KEY"), "{message}");
    assert_eq!(app.get("/api/v1/agents").await.expect(200).json()["items"], json!([]), "nothing was made");

    let made = app.put(CLAUDE, json!({"key": "sk-ant-of-mine"})).await.expect(201);
    assert!(!made.text().contains("sk-ant"), "the key is never returned");
    let made = made.json();
    let agent = &made["agent"];
    assert_eq!((&made["secret"], &made["variable"]), (&json!("anthropic"), &json!("ANTHROPIC_API_KEY")));
    assert_eq!(
        (&agent["name"], &agent["definition"]["template"]),
        (&json!("claude_code"), &json!("agent-claude-code"))
    );
    assert_eq!(agent["definition"]["secrets"], json!({"ANTHROPIC_API_KEY": "anthropic"}));
    // `base` is not built here: the template waits for it.
    assert_eq!(agent["template"]["state"], "building");
    assert!(agent["template"]["doing"].as_str().unwrap().contains("coffer template build base"), "{agent}");
    let secrets = app.get("/api/v1/secrets").await.expect(200).json();
    assert_eq!(
        (&secrets["items"][0]["name"], &secrets["items"][0]["version"]),
        (&json!("anthropic"), &json!(1))
    );

    let same = app.put(CLAUDE, json!({})).await.expect(200).json();
    assert_eq!(
        (&same["agent"]["id"], &same["agent"]["version"]),
        (&agent["id"], &json!(1)),
        "nothing changed"
    );
    let other = set_up(&app, json!({"model": "opus", "env": {"NODE_ENV": "production"}})).await;
    assert_eq!(
        (&other["agent"]["version"], &other["agent"]["definition"]["model"]),
        (&json!(2), &json!("opus"))
    );
    assert_eq!(other["agent"]["definition"]["env"], json!({"NODE_ENV": "production"}), "it is plain");
    let token = json!({"login": "CLAUDE_CODE_OAUTH_TOKEN", "key": "sk-ant-oat-of-mine"});
    let token = set_up(&app, token).await;
    let secrets = &token["agent"]["definition"]["secrets"];
    assert_eq!(*secrets, json!({"CLAUDE_CODE_OAUTH_TOKEN": "claude-subscription"}), "one way to sign in");
    assert_eq!(token["agent"]["definition"]["model"], "opus");
    assert_eq!(app.get("/api/v1/agents").await.expect(200).json()["items"].as_array().unwrap().len(), 1);
    app.assert_empty().await;
}

#[tokio::test]
async fn what_cannot_be_set_up_is_refused_and_changes_nothing() {
    let app = TestApp::start().await;
    for (path, body, status, said) in [
        (CLAUDE, json!({"key": ""}), 422, "key must be"),
        (
            CLAUDE,
            json!({"key": "k", "login": "OPENAI_API_KEY"}),
            422,
            "login must be one of ANTHROPIC_API_KEY",
        ),
        (CLAUDE, json!({"key": "k", "secret": "no name"}), 422, "secret is invalid"),
        (CLAUDE, json!({"key": "k", "name": " "}), 422, "name must"),
        (CLAUDE, json!({"key": "k", "template": "nothing"}), 422, "there is no such template"),
        (CLAUDE, json!({"key": "k", "env": {"1A": "x"}}), 422, "env.1A"),
        (CLAUDE, json!({"kee": "k"}), 422, "kee"),
        ("/api/v1/agent-presets/goose/agent", json!({"key": "k"}), 422, "model is needed"),
        ("/api/v1/agent-presets/cursor/agent", json!({"key": "k"}), 422, "template is needed"),
        ("/api/v1/agent-presets/custom/agent", json!({"key": "k"}), 422, "no set-up"),
        ("/api/v1/agent-presets/nothing/agent", json!({"key": "k"}), 404, "nothing"),
    ] {
        let refused = app.put(path, body.clone()).await.expect(status).json();
        assert!(refused["message"].as_str().unwrap().contains(said), "{body}: {refused}");
    }
    let unknown = json!({"name": "a", "definition": {"preset": "codex", "template": "nothing"}});
    let refused = app.post("/api/v1/agents", unknown).await.expect(422).json();
    assert!(refused["message"].as_str().unwrap().starts_with("definition.template"), "{refused}");
    assert_eq!(app.get("/api/v1/agents").await.expect(200).json()["items"], json!([]));
    assert_eq!(app.get("/api/v1/secrets").await.expect(200).json()["items"], json!([]));
    // Another program by the same name is another agent.
    let codex = json!({"name": "claude_code", "definition": {"preset": "codex"}});
    app.post("/api/v1/agents", codex).await.expect(201);
    app.put(CLAUDE, json!({"key": "k"})).await.expect(409);
    // Who may not define agents may not do it this way either.
    for role in ["read", "write"] {
        let key = app.post("/api/v1/keys", json!({"name": role, "role": role})).await.expect(201).json();
        let key = key["key"].as_str().unwrap();
        app.as_key(key, Method::PUT, CLAUDE, json!({"key": "k"})).await.expect(403);
    }
}

#[tokio::test]
async fn a_preset_says_how_it_is_installed_and_how_it_signs_in() {
    let app = TestApp::start().await;
    let presets = app.get("/api/v1/agent-presets").await.expect(200).json();
    let of = |name: &str| presets.as_array().unwrap().iter().find(|info| info["preset"] == name).unwrap();
    let claude = of("claude_code");
    let recipe = &claude["recipe"];
    assert_eq!((&recipe["template"], &recipe["state"]), (&json!("agent-claude-code"), &json!("not_built")));
    assert!(recipe["install"].as_str().unwrap().contains("npm install -g"), "{recipe}");
    let variables: Vec<_> =
        claude["logins"].as_array().unwrap().iter().map(|login| &login["variable"]).collect();
    assert_eq!(variables, ["ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"]);
    assert_eq!(of("goose")["logins"][0]["env"], json!({"GOOSE_PROVIDER": "anthropic"}));
    assert_eq!((&of("cursor")["recipe"], &of("custom")["logins"]), (&Value::Null, &json!([])));
}

#[tokio::test]
async fn an_attempt_waits_for_its_template_and_says_so() {
    let app = TestApp::start().await;
    let agent = set_up(&app, json!({"key": "k"})).await["agent"]["id"].clone();
    let tested = app.post_empty(&format!("/api/v1/agents/{}/test", agent.as_str().unwrap())).await;
    let tested = tested.expect(404);
    assert_eq!(tested.json()["code"], "template_not_built");
    assert!(tested.header("retry-after").is_some());
    let id = task(&app, json!({"title": "Fix it", "repository": "local/none", "agent_id": agent})).await;
    app.post(&format!("/api/v1/tasks/{id}/start"), Value::Null).await.expect(202);
    let told = async || {
        let events = app.events("task.progress").await;
        events.iter().any(|told| {
            told["doing"]["message"].as_str().unwrap_or("").contains("agent-claude-code is being built")
        })
    };
    crate::limits::eventually("it says what it waits for", told).await;
    assert!(app.engine.asked().iter().all(|(op, _)| *op != Op::Create), "no sandbox is made meanwhile");

    app.post(&format!("/api/v1/tasks/{id}/cancel"), Value::Null).await.expect(200);
    until(&app, &id, |task| task["state"] == "cancelled").await;
}

//! Secrets by E2B's routes: the same secrets as our own API has, never with their values.

use http::Method;
use serde_json::{Value, json};

use crate::app::TestApp;

async fn write_key(app: &TestApp, role: &str) -> String {
    let made = app.post("/api/v1/keys", json!({"name": role, "role": role})).await.expect(201).json();
    made["key"].as_str().unwrap().to_string()
}

/// The header that the engine adds for a sandbox.
fn told(app: &TestApp, id: &str) -> Option<String> {
    let policy = app.engine.policy(id.parse().unwrap());
    let text = policy.headers().first()?.headers.values().next()?;
    Some(text.reveal().to_string())
}

fn with_rule(value: &str) -> Value {
    json!({"rules": {"api.example.com": [{"transform": {"headers": {"Authorization": value}}}]}})
}

#[tokio::test]
async fn a_secret_is_created_updated_found_and_deleted_and_never_shown() {
    let app = TestApp::start().await;
    let new = json!({"name": "OpenAI-Key", "value": "canary-one", "metadata": {"team": "agents"}});
    let made = app.post("/secrets", new.clone()).await.expect(201);
    let body = made.json();
    let id = body["secretID"].as_str().unwrap().to_string();
    assert!(id.starts_with("sec_"), "{id}");
    assert_eq!(
        (&body["name"], &body["currentVersion"]),
        (&json!("openai-key"), &json!(1)),
        "E2B lower-cases"
    );
    assert_eq!(body["metadata"], json!({"team": "agents"}));
    assert!(body["createdAt"].as_str().unwrap().ends_with('Z') && body["createdAt"] == body["updatedAt"]);
    let taken = app.post("/secrets", new).await.expect(409).json();
    assert_eq!(taken["message"], "a secret named 'openai-key' exists already");

    let updated = app.post(&format!("/secrets/{id}"), json!({"value": "canary-two"})).await.expect(200);
    let now = updated.json();
    assert_eq!((&now["secretID"], &now["currentVersion"]), (&body["secretID"], &json!(2)));
    assert_eq!((&now["metadata"], &now["createdAt"]), (&body["metadata"], &body["createdAt"]));
    let noted = json!({"value": "canary-two", "metadata": {}});
    let noted = app.post("/secrets/openai-key", noted).await.expect(200);
    assert_eq!((&noted.json()["metadata"], &noted.json()["currentVersion"]), (&json!({}), &json!(3)));
    for named in [&id, "openai-key", "OPENAI-KEY"] {
        assert_eq!(app.get(&format!("/secrets/{named}")).await.expect(200).json(), noted.json(), "{named}");
    }
    let listed = app.get("/secrets").await.expect(200);
    assert_eq!(listed.json(), json!([noted.json()]));
    let own = app.get("/api/v1/secrets").await.expect(200);
    assert_eq!(
        (&own.json()["items"][0]["name"], &own.json()["items"][0]["version"]),
        (&json!("openai-key"), &json!(3))
    );

    app.delete(&format!("/secrets/{id}")).await.expect(204);
    for named in [&id, "openai-key"] {
        let path = format!("/secrets/{named}");
        let gone = app.get(&path).await.expect(404).json();
        assert_eq!(
            (&gone["code"], &gone["message"]),
            (&json!(404), &json!(format!("secret {named} not found")))
        );
        app.post(&path, json!({"value": "canary-x"})).await.expect(404);
        app.delete(&path).await.expect(404);
    }
    // A new one of the same name is another secret.
    let again =
        app.post("/secrets", json!({"name": "openai-key", "value": "canary-three"})).await.expect(201);
    assert_ne!(again.json()["secretID"], id);
    assert_eq!(again.json()["currentVersion"], 1);
    let events = app.get("/api/v1/events").await.expect(200);
    let audit = app.get("/api/v1/audit").await.expect(200);
    for answer in [&made, &updated, &noted, &listed, &own, &again, &events, &audit] {
        assert!(!answer.text().contains("canary"), "{}", answer.text());
    }
    let subjects = audit.json();
    let subjects: Vec<_> =
        subjects["items"].as_array().unwrap().iter().map(|entry| &entry["subject"]).collect();
    assert!(subjects.contains(&&json!("openai-key")), "{subjects:?}");
    assert!(!app.database.holds_on_disk("canary-"));
}

#[tokio::test]
async fn secrets_of_our_own_api_are_e2bs_too() {
    let app = TestApp::start().await;
    let put = json!({"value": "canary-one", "hosts": ["api.example.com"]});
    app.put("/api/v1/secrets/GITHUB_TOKEN", put).await.expect(201);
    app.put("/api/v1/secrets/sec_of_mine", json!({"value": "canary-two"})).await.expect(201);
    let shown = app.get("/secrets/github_token").await.expect(200).json();
    assert_eq!((&shown["name"], &shown["metadata"]), (&json!("GITHUB_TOKEN"), &json!({})));
    app.get("/secrets/sec_of_mine").await.expect(200);
    app.post("/secrets", json!({"name": "github_token", "value": "v"})).await.expect(409);
    // A new value keeps the hosts.
    app.post("/secrets/github_token", json!({"value": "canary-new"})).await.expect(200);
    let own = app.get("/api/v1/secrets").await.expect(200).json();
    assert_eq!(
        (&own["items"][0]["hosts"], &own["items"][0]["version"]),
        (&json!(["api.example.com"]), &json!(2))
    );
    // Both, and the exact name wins.
    app.put("/api/v1/secrets/github_token", json!({"value": "canary-lower"})).await.expect(201);
    for name in ["github_token", "GITHUB_TOKEN"] {
        assert_eq!(app.get(&format!("/secrets/{name}")).await.expect(200).json()["name"], name);
    }
    app.delete("/secrets/github_token").await.expect(204);
    assert_eq!(app.get("/secrets/github_token").await.expect(200).json()["name"], "GITHUB_TOKEN");
}

#[tokio::test]
async fn pages_have_every_secret_once() {
    let app = TestApp::start().await;
    for number in 0..7 {
        app.post("/secrets", json!({"name": format!("name-{number}"), "value": "v"})).await.expect(201);
    }
    let (mut names, mut sizes, mut token) = (Vec::new(), Vec::new(), String::new());
    loop {
        let page = app.get(&format!("/secrets?limit=3&nextToken={token}")).await.expect(200);
        let items = page.json();
        let items = items.as_array().unwrap();
        sizes.push(items.len());
        names.extend(items.iter().map(|secret| secret["name"].as_str().unwrap().to_string()));
        match page.header("x-next-token") {
            Some(next) => token = next.to_string(),
            None => break,
        }
    }
    let expected: Vec<_> = (0..7).map(|number| format!("name-{number}")).collect();
    assert_eq!((names, sizes), (expected, vec![3, 3, 1]));
    assert!(app.get("/secrets?limit=7").await.expect(200).header("x-next-token").is_none());
    for bad in ["limit=0", "limit=101", "limit=x", "nextToken=%00", "nextToken=a%20b"] {
        app.get(&format!("/secrets?{bad}")).await.expect(400);
    }
}

#[tokio::test]
async fn what_e2b_refuses_is_refused() {
    let app = TestApp::start().await;
    let long = "n".repeat(65);
    let many: Value =
        (0..33).map(|n| (format!("k{n}"), json!("v"))).collect::<serde_json::Map<_, _>>().into();
    let large: Value =
        (0..9).map(|n| (format!("k{n}"), json!("v".repeat(1000)))).collect::<serde_json::Map<_, _>>().into();
    for body in [
        json!({}),
        json!({"name": "a"}),
        json!({"value": "v"}),
        json!({"name": "", "value": "v"}),
        json!({"name": "a/b", "value": "v"}),
        json!({"name": "a}", "value": "v"}),
        json!({"name": "a\nb", "value": "v"}),
        json!({"name": "é", "value": "v"}),
        json!({"name": long, "value": "v"}),
        json!({"name": "SEC_a", "value": "v"}),
        json!({"name": "a", "value": ""}),
        json!({"name": "a", "value": "a\0b"}),
        json!({"name": "a", "value": "v".repeat(65_537)}),
        json!({"name": "a", "value": "v", "metadata": ["k"]}),
        json!({"name": "a", "value": "v", "metadata": {"k": 1}}),
        json!({"name": "a", "value": "v", "metadata": {"": "v"}}),
        json!({"name": "a", "value": "v", "metadata": {"k".repeat(129): "v"}}),
        json!({"name": "a", "value": "v", "metadata": {"k": "v".repeat(1025)}}),
        json!({"name": "a", "value": "v", "metadata": many}),
        json!({"name": "a", "value": "v", "metadata": large}),
    ] {
        let refused = app.post("/secrets", body.clone()).await;
        assert_eq!(refused.status, 400, "{body}: {}", refused.text());
        assert_eq!(refused.json()["code"], 400, "{body}");
    }
    assert_eq!(app.get("/secrets").await.expect(200).json(), json!([]));
    for path in ["/secrets/%00", "/secrets/%ff", "/secrets/a%2Fb", "/secrets/..", "/secrets/sec_"] {
        let status = app.get(path).await.status;
        assert!(status == 404 || status == 400, "{path}: {status}");
    }
    let longest =
        json!({"name": "a", "value": "v", "metadata": {"nul": "\0", "k".repeat(128): "v".repeat(1024)}});
    let made = app.post("/secrets", longest.clone()).await.expect(201).json();
    assert_eq!(made["metadata"], longest["metadata"]);
}

#[tokio::test]
async fn secrets_are_of_one_project_and_changed_by_admins_alone() {
    let app = TestApp::start().await;
    let new = json!({"name": "mine", "value": "canary-mine"});
    let id =
        app.post("/secrets", new.clone()).await.expect(201).json()["secretID"].as_str().unwrap().to_string();
    let (write, read) = (write_key(&app, "write").await, write_key(&app, "read").await);
    for key in [&write, &read] {
        app.as_key(key, Method::GET, "/secrets/mine", Value::Null).await.expect(200);
        app.as_key(key, Method::POST, "/secrets", json!({"name": "x", "value": "v"})).await.expect(403);
        app.as_key(key, Method::POST, "/secrets/mine", json!({"value": "v"})).await.expect(403);
        app.as_key(key, Method::DELETE, "/secrets/mine", Value::Null).await.expect(403);
    }
    let agent = app.post("/api/v1/agents", json!({"name": "coder"})).await.expect(201).json();
    let agent = json!({"name": "coder", "role": "write", "agent_id": agent["id"]});
    let agent = app.post("/api/v1/keys", agent).await.expect(201).json()["key"].as_str().unwrap().to_string();
    app.as_key(&agent, Method::GET, "/secrets", Value::Null).await.expect(403);

    let theirs = async |method, path: &str, body| app.as_key(&app.other_key, method, path, body).await;
    assert_eq!(theirs(Method::GET, "/secrets", Value::Null).await.expect(200).json(), json!([]));
    for named in ["mine", id.as_str()] {
        let path = format!("/secrets/{named}");
        theirs(Method::GET, &path, Value::Null).await.expect(404);
        theirs(Method::POST, &path, json!({"value": "v"})).await.expect(404);
        theirs(Method::DELETE, &path, Value::Null).await.expect(404);
    }
    theirs(Method::POST, "/secrets", json!({"name": "mine", "value": "v"})).await.expect(201);
    assert_eq!(app.get("/secrets/mine").await.expect(200).json()["currentVersion"], 1);
    let borrowed = json!({"templateID": "base", "network": with_rule("${e2b.secrets.lent}")});
    app.post("/secrets", json!({"name": "lent", "value": "canary-lent"})).await.expect(201);
    theirs(Method::POST, "/v2/sandboxes", borrowed).await.expect(422);
}

#[tokio::test]
async fn two_creates_of_one_name_make_one_secret() {
    let app = TestApp::start().await;
    let create = |value: &str| app.post("/secrets", json!({"name": "same", "value": value}));
    let (a, b, c) = tokio::join!(create("a"), create("b"), create("c"));
    let mut statuses = [a.status, b.status, c.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409, 409]);
    assert_eq!(app.get("/secrets/same").await.expect(200).json()["currentVersion"], 1);
}

#[tokio::test]
async fn rules_refer_to_secrets_as_sdks_write_it() {
    let app = TestApp::start().await;
    app.post("/secrets", json!({"name": "openai-key", "value": "canary-one"})).await.expect(201);
    app.put("/api/v1/secrets/UPPER", json!({"value": "canary-upper"})).await.expect(201);
    let id = app
        .create(json!({"network": with_rule("Bearer ${e2b.secrets.OpenAI-Key}/${e2b.secrets.upper}")}))
        .await;
    assert_eq!(told(&app, &id).as_deref(), Some("Bearer canary-one/canary-upper"));
    let shown = app.get(&format!("/sandboxes/{id}")).await.expect(200);
    let header =
        &shown.json()["network"]["rules"]["api.example.com"][0]["transform"]["headers"]["Authorization"];
    assert_eq!(header, "Bearer ${e2b.secrets.openai-key}/${e2b.secrets.UPPER}");
    assert!(!shown.text().contains("canary"), "{}", shown.text());
    // The same by an update, and with the value of the moment.
    let path = format!("/sandboxes/{id}/network");
    app.put(&path, with_rule("${e2b.secrets.OPENAI-KEY}")).await.expect(204);
    assert_eq!(told(&app, &id).as_deref(), Some("canary-one"));
    app.post("/secrets/openai-key", json!({"value": "canary-two"})).await.expect(200);
    for _ in 0..600 {
        if told(&app, &id).as_deref() == Some("canary-two") {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(told(&app, &id).as_deref(), Some("canary-two"));
    // A fork has none of the project's secrets.
    let forked = app.post(&format!("/sandboxes/{id}/fork"), json!({"timeout": 60})).await.expect(201).json();
    let fork = forked[0]["sandbox"]["sandboxID"].as_str().unwrap();
    assert_eq!(told(&app, fork), None);
    let shown = app.get(&format!("/sandboxes/{fork}")).await.expect(200).json();
    assert_eq!(shown["network"]["rules"], json!({}), "nor their names");
    for bad in ["${e2b.secrets.none}", "${e2b.secrets.openai-key", "${e2b.secrets.}", "${e2b.secrets.a b}"] {
        let body = json!({"templateID": "base", "network": with_rule(bad)});
        let refused = app.post("/v2/sandboxes", body).await;
        assert_eq!(refused.status, 422, "{bad}: {}", refused.text());
        assert!(!refused.text().contains("canary"));
    }
    assert!(!app.database.holds_on_disk("canary-"));
}

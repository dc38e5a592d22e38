//! Sessions of browsers: two halves, where they work from, and how they end; people and their names.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::app::{Answer, TestApp};

/// A browser with a cookie and a page with the other half.
struct Browser<'a> {
    app: &'a TestApp,
    cookie: String,
    page: String,
    id: String,
}

impl<'a> Browser<'a> {
    async fn sign_in(app: &'a TestApp, with: Value) -> Self {
        let answer = begin(app, with).await.expect(201);
        let set = answer.header("set-cookie").unwrap().to_string();
        let (cookie, rest) = set.split_once(';').unwrap();
        assert_eq!(rest.trim(), "Path=/; Max-Age=2592000; HttpOnly; SameSite=Strict");
        let begun = answer.json();
        let text = |name: &str| begun[name].as_str().unwrap().to_string();
        assert!(!set.contains(&text("secret")), "the cookie has one half, the page the other");
        Self { app, cookie: cookie.to_string(), page: text("secret"), id: text("id") }
    }

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.app.address().to_string())
            .header("cookie", &self.cookie)
            .header("x-coffer-session", &self.page)
    }

    async fn send(&self, request: http::request::Builder, body: Value) -> Answer {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        self.app.send(request.body(Full::new(body)).unwrap()).await
    }

    async fn ask(&self, method: Method, path: &str, body: Value) -> Answer {
        self.send(self.request(method, path), body).await
    }

    async fn me(&self) -> Answer {
        self.ask(Method::GET, "/api/v1/me", Value::Null).await
    }
}

async fn begin(app: &TestApp, with: Value) -> Answer {
    let request = Request::post("/api/v1/sessions").header("host", app.address().to_string());
    app.send(request.body(Full::new(Bytes::from(with.to_string()))).unwrap()).await
}

#[tokio::test]
async fn neither_half_of_a_session_opens_anything_alone() {
    let app = TestApp::start().await;
    let browser = Browser::sign_in(&app, json!({"key": app.key})).await;
    assert_eq!(browser.me().await.expect(200).json()["role"], "admin");

    let host = app.address().to_string();
    let plain = || Request::get("/api/v1/me").header("host", &host);
    let (name, half) = browser.cookie.split_once('=').unwrap();
    let zeros = "0".repeat(half.len());
    for (cookie, page) in [
        (browser.cookie.as_str(), ""),
        ("", browser.page.as_str()),
        (&*format!("{name}={zeros}"), &browser.page),
        (&browser.cookie, "0".repeat(32).as_str()),
        (&browser.cookie, &format!("{} ", browser.page.to_uppercase())),
    ] {
        let request = plain().header("cookie", cookie).header("x-coffer-session", page);
        app.send(request.body(Full::default()).unwrap()).await.expect(401);
    }
    // The whole is no key.
    for key in [half.to_string(), format!("session_{half}{}", browser.page)] {
        app.as_key(&key, Method::GET, "/api/v1/me", Value::Null).await.expect(401);
    }
    // A key in a header wins, valid or not.
    let wrong = browser.request(Method::GET, "/api/v1/me").header("x-api-key", "e2b_wrong");
    browser.send(wrong, Value::Null).await.expect(401);
    let other = browser.request(Method::GET, "/api/v1/me").header("x-api-key", &app.other_key);
    let other = browser.send(other, Value::Null).await.expect(200).json();
    assert_ne!(other["project"]["id"], browser.me().await.json()["project"]["id"]);
    // A cookie that a sandbox planted beside it fits no page, and does not shut the right one out.
    let both = plain().header("cookie", format!("{name}={zeros}; {}", browser.cookie));
    let both = both.header("x-coffer-session", &browser.page);
    app.send(both.body(Full::default()).unwrap()).await.expect(200);
}

#[tokio::test]
async fn a_session_works_from_pages_of_its_own_origin_alone() {
    let app = TestApp::start().await;
    let browser = Browser::sign_in(&app, json!({"key": app.key})).await;
    let host = app.address().to_string();
    let own = format!("http://{host}");
    let sandbox = format!("http://8000-abc.localhost:{}", app.address().port());
    for (name, value, status) in [
        ("sec-fetch-site", "same-origin", 201),
        ("origin", own.as_str(), 201),
        ("sec-fetch-site", "same-site", 403),
        ("sec-fetch-site", "cross-site", 403),
        ("sec-fetch-site", "none", 403),
        ("origin", "null", 403),
        ("origin", &sandbox, 403),
        ("origin", "http://127.0.0.1:1", 403),
    ] {
        let request = browser.request(Method::POST, "/api/v1/sign-in-links").header(name, value);
        let answer = browser.send(request, Value::Null).await;
        assert_eq!(answer.status, status, "{name}: {value}: {}", answer.text());
        // Nor does a page elsewhere sign this browser in as somebody else.
        let request = Request::post("/api/v1/sessions").header("host", &host).header(name, value);
        let body = Full::new(Bytes::from(json!({"key": app.key}).to_string()));
        assert_eq!(app.send(request.body(body).unwrap()).await.status, status, "{name}: {value}");
    }
    // A form has no other half.
    let form = Request::post("/api/v1/sign-in-links")
        .header("host", &host)
        .header("cookie", &browser.cookie)
        .header("content-type", "application/x-www-form-urlencoded");
    app.send(form.body(Full::default()).unwrap()).await.expect(401);
    // No page elsewhere may send the header: browsers ask first, and credentials are never allowed.
    let preflight = Request::options("/api/v1/me")
        .header("host", &host)
        .header("origin", &sandbox)
        .header("access-control-request-method", "GET")
        .header("access-control-request-headers", "x-coffer-session");
    let answer = app.send(preflight.body(Full::default()).unwrap()).await.expect(204);
    assert_eq!(answer.header("access-control-allow-credentials"), None);
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    let secure = Request::post("/api/v1/sessions")
        .header("host", "coffer.example")
        .header("origin", "https://coffer.example");
    let body = Full::new(Bytes::from(json!({"key": app.key}).to_string()));
    let answer = app.send(secure.body(body).unwrap()).await.expect(201);
    let cookie = answer.header("set-cookie").unwrap();
    assert!(cookie.starts_with("__Host-coffer=") && cookie.ends_with("; Secure"), "{cookie}");
}

#[tokio::test]
async fn a_session_ends_with_sign_out_and_with_the_key_that_began_it() {
    let app = TestApp::start().await;
    let key = app
        .post("/api/v1/keys", json!({"name": "Ada", "role": "admin", "kind": "person"}))
        .await
        .expect(201)
        .json();
    let secret = key["key"].as_str().unwrap();
    let (first, second, third) = (
        Browser::sign_in(&app, json!({"key": secret})).await,
        Browser::sign_in(&app, json!({"key": secret})).await,
        Browser::sign_in(&app, json!({"key": secret})).await,
    );
    let listed = first.ask(Method::GET, "/api/v1/sessions", Value::Null).await.expect(200).json();
    let listed = listed["items"].as_array().unwrap();
    assert_eq!(listed.len(), 3);
    assert_eq!(listed.iter().filter(|one| one["current"] == true).count(), 1);
    assert_eq!(listed[0]["address"], "this machine");
    // Sessions are not keys, and another project's caller sees none.
    let keys = app.get("/api/v1/keys").await.expect(200).json();
    assert!(keys["items"].as_array().unwrap().iter().all(|one| one["id"] != json!(first.id)));
    let path = format!("/api/v1/sessions/{}", first.id);
    app.as_key(&app.other_key, Method::DELETE, &path, Value::Null).await.expect(404);

    let gone = first.ask(Method::DELETE, &path, Value::Null).await.expect(204);
    assert!(gone.header("set-cookie").unwrap().contains("Max-Age=0"), "the cookie goes too");
    first.me().await.expect(401);
    second.me().await.expect(200);
    // Signing in again ends the session that the browser had.
    let again = second.request(Method::POST, "/api/v1/sessions");
    second.send(again, json!({"key": secret})).await.expect(201);
    second.me().await.expect(401);
    let ended = third.ask(Method::DELETE, "/api/v1/sessions", Value::Null).await.expect(200).json();
    assert_eq!(ended["ended"], 2);
    third.me().await.expect(401);

    let last = Browser::sign_in(&app, json!({"key": secret})).await;
    app.delete(&format!("/api/v1/keys/{}", key["id"].as_str().unwrap())).await.expect(204);
    last.me().await.expect(401);
}

#[tokio::test]
async fn agents_get_neither_sessions_nor_links_nor_people() {
    let app = TestApp::start().await;
    let agent = app.post("/api/v1/agents", json!({"name": "coder"})).await.expect(201).json();
    let key = json!({"name": "coder", "role": "write", "agent_id": agent["id"]});
    let key = app.post("/api/v1/keys", key).await.expect(201).json();
    let key = key["key"].as_str().unwrap();
    begin(&app, json!({"key": key})).await.expect(403);
    for (method, path, body) in [
        (Method::GET, "/api/v1/sessions", Value::Null),
        (Method::DELETE, "/api/v1/sessions", Value::Null),
        (Method::POST, "/api/v1/sign-in-links", Value::Null),
        (Method::POST, "/api/v1/people", json!({"name": "Eve"})),
        (Method::PUT, "/api/v1/me/name", json!({"name": "Eve"})),
    ] {
        app.as_key(key, method, path, body).await.expect(403);
    }
    begin(&app, json!({})).await.expect(400);
    begin(&app, json!({"token": "link_x", "key": app.key})).await.expect(400);
    begin(&app, json!({"key": "e2b_wrong"})).await.expect(401);
    begin(&app, json!({"token": "link_0000000000000000000000000000000000000000"})).await.expect(403);
}

#[tokio::test]
async fn people_have_names_that_records_keep() {
    let app = TestApp::start().await;
    // A session of somebody whose key has no name yet, which gets one.
    let admin = Browser::sign_in(&app, json!({"key": app.key})).await;
    let before = admin.me().await.json();
    assert_eq!(
        (before["name"].clone(), before["actor"].as_str().unwrap().starts_with("key:")),
        (Value::Null, true)
    );
    admin.ask(Method::PUT, "/api/v1/me/name", json!({"name": "Ada"})).await.expect(204);
    let after = admin.me().await.json();
    assert_eq!(after["name"], "Ada");
    let ada = after["actor"].as_str().unwrap().to_string();
    assert!(ada.starts_with("person:"), "{ada}");
    assert_eq!(app.get("/api/v1/me").await.json()["actor"], json!(ada), "the key is the same person");

    // Nor can anybody approve by a name what they opened without.
    let persons = app.store.persons_of_keys(&app.scope().await).await.unwrap();
    assert_eq!(persons.get(before["actor"].as_str().unwrap()), Some(&ada));

    let grace = admin
        .ask(Method::POST, "/api/v1/people", json!({"name": "Grace", "role": "write"}))
        .await
        .expect(201)
        .json();
    admin.ask(Method::POST, "/api/v1/people", json!({"name": "GRACE"})).await.expect(409);
    admin.ask(Method::PUT, "/api/v1/me/name", json!({"name": "grace"})).await.expect(409);
    let id = grace["id"].as_str().unwrap();
    let links = format!("/api/v1/people/{id}/links");
    app.as_key(&app.other_key, Method::POST, &links, Value::Null).await.expect(404);
    let link = admin.ask(Method::POST, &links, Value::Null).await.expect(201).json();
    let colleague = Browser::sign_in(&app, json!({"token": link["token"]})).await;
    begin(&app, json!({"token": link["token"]})).await.expect(403);
    let me = colleague.me().await.json();
    assert_eq!((&me["name"], &me["role"]), (&json!("Grace"), &json!("write")));
    // She does something, in a session from a link that she made for another browser.
    let own = colleague.ask(Method::POST, "/api/v1/sign-in-links", Value::Null).await.expect(201).json();
    let phone = Browser::sign_in(&app, json!({"token": own["token"]})).await;
    colleague
        .ask(Method::DELETE, &format!("/api/v1/sessions/{}", colleague.id), Value::Null)
        .await
        .expect(204);
    let task = phone.ask(Method::POST, "/api/v1/tasks", json!({"title": "t"})).await.expect(201).json();
    let path = format!("/api/v1/tasks/{}/messages", task["id"].as_str().unwrap());
    phone.ask(Method::POST, &path, json!({"body": "hello"})).await.expect(201);
    // A writer invites nobody.
    phone.ask(Method::POST, "/api/v1/people", json!({"name": "Eve"})).await.expect(403);

    admin.ask(Method::DELETE, &format!("/api/v1/people/{id}"), Value::Null).await.expect(204);
    phone.me().await.expect(401);
    let said = app.get(&path).await.expect(200).json();
    let author =
        said["items"][0]["author"].as_str().or(said["items"][0]["from"].as_str()).map(str::to_string);
    let text = said.to_string();
    assert!(text.contains(&format!("person:{id}")), "{author:?} {text}");
    let names = app.get("/api/v1/actors").await.expect(200).json();
    let name_of = |actor: &str| {
        let found = names["items"].as_array().unwrap().iter().find(|one| one["actor"] == json!(actor));
        found.map(|one| one["name"].as_str().unwrap().to_string())
    };
    assert_eq!(name_of(&format!("person:{id}")).as_deref(), Some("Grace"), "who left keeps the name");
    // What the key did before it had a name is hers too.
    assert_eq!(name_of(before["actor"].as_str().unwrap()).as_deref(), Some("Ada"));
    let others =
        app.as_key(&app.other_key, Method::GET, "/api/v1/actors", Value::Null).await.expect(200).json();
    assert!(!others.to_string().contains("Grace"));
    let audit = app.get("/api/v1/audit?limit=200").await.expect(200).json().to_string();
    assert!(
        audit.contains(&format!("person:{id}")) && !audit.contains(&format!("key:{}", phone.id)),
        "{audit}"
    );
}

#[tokio::test]
async fn an_operators_session_opens_the_project_that_the_page_shows() {
    let app = TestApp::start().await;
    let operator = app.store.create_operator_key(&app.store.operator(), "op").await.unwrap();
    let browser = Browser::sign_in(&app, json!({"key": operator.reveal()})).await;
    assert_eq!(browser.me().await.expect(200).json()["role"], "operator");
    browser.ask(Method::GET, "/api/v1/tasks", Value::Null).await.expect(403);
    let project = app.scope().await.project().to_string();
    let in_project =
        |method, path: &str, project: &str| browser.request(method, path).header("x-coffer-project", project);
    let me =
        browser.send(in_project(Method::GET, "/api/v1/me", &project), Value::Null).await.expect(200).json();
    assert_eq!((&me["role"], &me["project"]["id"]), (&json!("admin"), &json!(project)));
    assert!(me["actor"].as_str().unwrap().starts_with("operator:"));
    browser.send(in_project(Method::GET, "/api/v1/tasks", &project), Value::Null).await.expect(200);
    let nothing = coffer_core::ProjectId::generate().to_string();
    browser.send(in_project(Method::GET, "/api/v1/tasks", &nothing), Value::Null).await.expect(404);
    browser.send(in_project(Method::GET, "/api/v1/tasks", "x"), Value::Null).await.expect(400);
    // The header gives a key, or a person of another project, nothing.
    let person = Browser::sign_in(&app, json!({"key": app.other_key})).await;
    let foreign = person.request(Method::GET, "/api/v1/tasks").header("x-coffer-project", &project);
    person.send(foreign, Value::Null).await.expect(403);
    let key = app.request(Method::GET, "/api/v1/me").header("x-coffer-project", &nothing);
    let me = app.send(key.body(Full::default()).unwrap()).await.expect(200).json();
    assert_eq!(me["project"]["id"], json!(project));
    // One session of the operator's, which ends.
    let listed = browser.ask(Method::GET, "/api/v1/sessions", Value::Null).await.expect(200).json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
    browser.ask(Method::DELETE, "/api/v1/sessions", Value::Null).await.expect(200);
    browser.me().await.expect(401);
}

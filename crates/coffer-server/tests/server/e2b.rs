//! E2B's routes: the table in `docs/e2b.md` is what the router has, and what it lacks is refused with a reason.

use std::collections::BTreeSet;

use coffer_api::{E2B_ROUTES, E2bRoute, Support};
use coffer_core::SandboxId;
use http::Method;
use http_body_util::Full;
use serde_json::json;

use crate::app::{Answer, TestApp};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/e2b.md");
const BEGIN: &str = "<!-- routes: written by `COFFER_UPDATE=1 cargo test --test server -- e2bs_routes` -->\n";
const END: &str = "<!-- end of routes -->";
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// What is left out of a request here is refused, so nothing is created or deleted.
async fn ask(app: &TestApp, method: &str, path: &str) -> Answer {
    let fill = |part: &str| match part {
        part if part.starts_with('{') => SandboxId::generate().to_string(),
        part => part.to_string(),
    };
    let path = path.split('/').map(fill).collect::<Vec<_>>().join("/");
    let method: Method = method.parse().unwrap();
    app.send(app.request(method, &path).body(Full::default()).unwrap()).await
}

fn row(route: &E2bRoute) -> String {
    let calls = match route.methods {
        "*" => format!("`{}`", route.path),
        methods => {
            let calls: Vec<_> =
                methods.split(' ').map(|method| format!("`{method} {}`", route.path)).collect();
            calls.join("<br>")
        }
    };
    let (support, note) = match route.support {
        Support::Full => ("yes", route.note.to_string()),
        Support::Partial => ("partly", route.note.to_string()),
        Support::Refused { what } => ("no (501)", format!("{what}: {}", route.note)),
    };
    format!("| {calls} | {support} | {note} |\n")
}

#[tokio::test]
async fn e2bs_routes_are_those_on_the_page() {
    let app = TestApp::start().await;
    let is_refused = |route: &&E2bRoute| matches!(route.support, Support::Refused { .. });
    let registered: BTreeSet<&str> = coffer_api::e2b_paths().into_iter().collect();
    let listed: BTreeSet<&str> =
        E2B_ROUTES.iter().filter(|route| !is_refused(route)).map(|route| route.path).collect();
    assert_eq!(
        registered, listed,
        "E2B_ROUTES in crates/coffer-api/src/e2b.rs lists each path of the router"
    );
    for path in &listed {
        for method in METHODS {
            let has = |route: &&E2bRoute| {
                let named = route.methods == "*" || route.methods.split(' ').any(|named| named == method);
                route.path == *path && named
            };
            let answer = ask(&app, method, path).await;
            match E2B_ROUTES.iter().find(has) {
                None => assert_eq!(answer.status, 405, "{method} {path} is not in E2B_ROUTES"),
                Some(_) => {
                    assert_ne!(answer.status, 405, "{method} {path} is in E2B_ROUTES alone");
                    assert_ne!(answer.status, 501, "{method} {path}: {}", answer.text());
                }
            }
        }
    }
    let table: String = E2B_ROUTES.iter().map(row).collect();
    let table = format!("\n| route | supported | notes |\n|---|---|---|\n{table}\n");
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page marks where the table begins");
    let (_, after) = rest.split_once(END).expect("the page marks where the table ends");
    let expected = [before, BEGIN, &table, END, after].concat();
    if std::env::var_os("COFFER_UPDATE").is_some() {
        std::fs::write(PAGE, &expected).unwrap();
    }
    let page = std::fs::read_to_string(PAGE).unwrap();
    assert!(page == expected, "docs/e2b.md is out of date: run this test with COFFER_UPDATE=1");
}

/// SDKs read `code` where others read the status, and show `message` to people.
fn refused_as_e2b(answer: &Answer, status: u16) -> String {
    let body = answer.json();
    assert_eq!((answer.status, body["code"].as_u64()), (status, Some(status.into())), "{body}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert!(body.get("hint").is_none() && body.get("request_id").is_none(), "{body}");
    body["message"].as_str().unwrap().to_string()
}

#[tokio::test]
async fn what_e2b_has_and_this_server_does_not_is_refused_with_what_to_use() {
    let app = TestApp::start().await;
    for route in E2B_ROUTES {
        let Support::Refused { what } = route.support else { continue };
        for (method, path) in [("GET", route.path.to_string()), ("POST", format!("{}/below", route.path))] {
            let message = refused_as_e2b(&ask(&app, method, &path).await, 501);
            assert!(message.contains(what) && message.contains("; use "), "{path}: {message}");
        }
    }
    for path in ["/nothing", "/teams/x", "/v9/sandboxes", "/secrets/a/b", "/api-keysx"] {
        let message = refused_as_e2b(&app.get(path).await, 404);
        assert_eq!(message, format!("GET {path} not found"));
    }
    let message = refused_as_e2b(&ask(&app, "PUT", "/secrets").await, 405);
    assert_eq!(message, "/secrets does not take PUT");
    // Sandboxes may have such paths: they are nobody's but theirs.
    let id = app.create(json!({})).await;
    let inside = app.visit(&id, "/events").await;
    assert_ne!(inside.status, 400, "{}", inside.text());
}

#[tokio::test]
async fn options_that_this_server_lacks_are_refused_with_what_to_use() {
    let app = TestApp::start().await;
    let rule =
        |value: &str| json!({"network": {"rules": {"a.com": [{"transform": {"headers": {"X": value}}}]}}});
    let proxy = json!({"network": {"egressProxy": {"address": "p.com:1080", "tls": {"enabled": true}}}});
    let iam = json!({"iam": {"tokens": {"a": {"audience": "b", "tokenType": "JWT-SVID"}}}});
    for (mut body, use_instead) in [
        (rule("${e2b.identity.tokens.aws}"), "use a secret instead: `${e2b.secrets.NAME}`"),
        (proxy, "use a proxy without TLS"),
        (iam, "use a secret in network.rules instead"),
    ] {
        body["templateID"] = "base".into();
        let message = refused_as_e2b(&app.post("/v2/sandboxes", body.clone()).await, 501);
        assert!(message.contains("does not support") && message.contains(use_instead), "{body}: {message}");
    }
    app.assert_empty().await;
    let gateway = json!({"templateID": "mcp-gateway", "mcp": {"duckduckgo": {}}});
    let message = refused_as_e2b(&app.post("/v2/sandboxes", gateway).await, 404);
    assert!(message.starts_with("template 'mcp-gateway' not found; `mcp` needs"), "{message}");
    app.create(json!({"mcp": {"duckduckgo": {}}})).await;
    let id = app.create(json!({})).await;
    let update = rule("${e2b.identity.tokens.aws}")["network"].clone();
    refused_as_e2b(&app.put(&format!("/sandboxes/{id}/network"), update).await, 501);
}

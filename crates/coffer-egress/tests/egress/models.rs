//! The model gateway's end in egress: what passes to the server, with which pass, and what a sandbox cannot do.

use coffer_core::network::Policy;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::gate::heard;
use crate::names::addresses_of;
use crate::world::{World, accepted, assert_reset, end};

const GATEWAY: &str = "192.0.2.81:80";

fn policy(upstream: &str, pass: &str) -> Policy {
    let model = json!({"upstream": upstream, "authorization": format!("Bearer {pass}")});
    serde_json::from_value(json!({"base": "none", "model": model})).unwrap()
}

async fn place() -> (World, TcpListener, String) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}/model", server.local_addr().unwrap());
    (World::new(policy(&upstream, "hidden")).await, server, upstream)
}

#[tokio::test]
async fn a_request_gets_the_pass_and_streams_both_ways() {
    let (world, server, upstream) = place().await;
    let address: std::net::IpAddr = "192.0.2.81".parse().unwrap();
    assert_eq!(addresses_of(&world, "model.coffer.internal").await, [address]);
    let mut inside = world.connect(GATEWAY).await;
    let request = "POST /anthropic/v1/messages?beta=true HTTP/1.1\r\nHost: model.coffer.internal\r\n\
                   Authorization: Bearer dummy\r\nX-Api-Key: dummy\r\nE2b-Sandbox-Id: other\r\nX-Forwarded-For: 1.1.1.1\r\n\
                   Cookie: a=b\r\nAnthropic-Version: 2023-06-01\r\nContent-Type: application/json\r\n\
                   Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\n{\"a\r\n";
    inside.write_all(request.as_bytes()).await.unwrap();
    let mut outside = accepted(&server).await;
    let sent = heard(&mut outside, "{\"a").await.to_lowercase();
    assert!(sent.starts_with("post /model/anthropic/v1/messages?beta=true http/1.1\r\n"), "{sent}");
    assert!(
        sent.contains("authorization: bearer hidden\r\n") && sent.contains("anthropic-version: 2023-06-01"),
        "{sent}"
    );
    for kept in ["dummy", "e2b-sandbox-id", "forwarded", "cookie"] {
        assert!(!sent.contains(kept), "{kept} in {sent}");
    }
    inside.write_all(b"4\r\n\":1}\r\n0\r\n\r\n").await.unwrap();
    heard(&mut outside, "\":1}").await;
    let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nSet-Cookie: a=b\r\nX-Ratelimit-Left: 3\r\n\
                  Transfer-Encoding: chunked\r\n\r\n7\r\ndata: 1\r\n";
    outside.write_all(answer.as_bytes()).await.unwrap();
    let first = heard(&mut inside, "data: 1").await.to_lowercase();
    assert!(
        first.contains("x-ratelimit-left: 3") && !first.contains("cookie") && !first.contains("hidden"),
        "{first}"
    );
    // Another pass does not end what the old one opened.
    world.egress.replace_policy(world.id, policy(&upstream, "newer")).unwrap();
    outside.write_all(b"7\r\ndata: 2\r\n0\r\n\r\n").await.unwrap();
    let rest = String::from_utf8(end(&mut inside).await.unwrap()).unwrap();
    assert!(rest.contains("data: 2"), "{rest}");
    assert!(world.refusals().is_empty());
}

#[tokio::test]
async fn a_way_that_is_closed_is_closed_for_open_requests_too() {
    let (world, server, upstream) = place().await;
    let mut inside = world.connect(GATEWAY).await;
    inside.write_all(b"GET /openai/v1/models HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut outside = accepted(&server).await;
    heard(&mut outside, "\r\n\r\n").await;
    outside.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345").await.unwrap();
    heard(&mut inside, "12345").await;
    let none: Policy = serde_json::from_value(json!({"base": "none"})).unwrap();
    assert_eq!(world.egress.replace_policy(world.id, none).unwrap(), 1);
    assert!(timeout(crate::world::PATIENCE, end(&mut inside)).await.is_ok(), "it was cut");
    assert_eq!(world.rules(1).await, ["models:closed"]);
    let mut again = world.connect(GATEWAY).await;
    assert_reset(&mut again).await;
    // After a restart of the node, until the server has sent the pass again.
    let bare = policy(&upstream, "hidden").without_secrets();
    assert!(!serde_json::to_string(&bare).unwrap().contains("hidden"));
    world.egress.replace_policy(world.id, bare).unwrap();
    let mut waiting = world.connect(GATEWAY).await;
    waiting
        .write_all(b"GET /openai/v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let told = String::from_utf8(end(&mut waiting).await.unwrap()).unwrap();
    assert!(told.starts_with("HTTP/1.1 503 ") && told.contains("retry-after: 2"), "{told}");
}

#[tokio::test]
async fn a_path_cannot_leave_the_gateway() {
    let (world, server, _) = place().await;
    for path in ["/../api/v1/keys", "//api/v1/keys", "/a/%2e%2e/../x"] {
        let mut inside = world.connect(GATEWAY).await;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        inside.write_all(request.as_bytes()).await.unwrap();
        let told = String::from_utf8(end(&mut inside).await.unwrap()).unwrap();
        assert!(told.starts_with("HTTP/1.1 404 "), "{path} {told}");
    }
    assert!(timeout(std::time::Duration::from_millis(50), server.accept()).await.is_err());
    let elsewhere = json!({"upstream": "https://evil.com/model", "authorization": "Bearer x"});
    assert!(serde_json::from_value::<Policy>(json!({"base": "none", "model": elsewhere})).is_err());
}

//! Spans, as an OTLP receiver gets them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coffer_core::settings::SecretText;
use coffer_server::{ServerConfig, TraceSettings};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use prost::Message;
use serde_json::json;
use tokio::net::TcpListener;

use crate::app::{TestApp, policy};

/// The parsed request, with field numbers from OpenTelemetry's `trace.proto`. The server's own message types
/// are not used, so that a wrong number there shows here.
#[derive(Clone, PartialEq, prost::Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct ResourceSpans {
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(fixed64, tag = "7")]
    start: u64,
    #[prost(fixed64, tag = "8")]
    end: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "13")]
    links: Vec<Link>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct Link {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}
#[derive(Clone, PartialEq, prost::Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(int64, optional, tag = "3")]
    number: Option<i64>,
}

impl Span {
    fn attribute(&self, key: &str) -> Option<String> {
        let found = self.attributes.iter().find(|pair| pair.key == key)?.value.clone()?;
        found.text.or_else(|| found.number.map(|number| number.to_string()))
    }
}

/// Accepts spans at any path and records the requests.
#[derive(Debug, Default)]
struct Received {
    spans: Vec<Span>,
    /// Path, authorization and content type of each request.
    requests: Vec<(String, Option<String>, Option<String>)>,
    /// Answers this many requests with 503 first.
    refuse: usize,
}

async fn receiver(refuse: usize) -> (String, Arc<Mutex<Received>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let received = Arc::new(Mutex::new(Received { refuse, ..Received::default() }));
    let shared = received.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let shared = shared.clone();
            let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let shared = shared.clone();
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let header =
                        |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap().to_string());
                    let mut received = shared.lock().unwrap();
                    let status = if received.refuse > 0 {
                        received.refuse -= 1;
                        503
                    } else {
                        let request = Request::decode(body).unwrap();
                        let scopes = request.resource_spans.into_iter().flat_map(|all| all.scope_spans);
                        received.spans.extend(scopes.flat_map(|scope| scope.spans));
                        let came =
                            (parts.uri.path().to_string(), header("authorization"), header("content-type"));
                        received.requests.push(came);
                        200
                    };
                    let answer = http::Response::builder().status(status);
                    answer.body(http_body_util::Empty::<bytes::Bytes>::new())
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (address, received)
}

async fn app(traces: TraceSettings) -> TestApp {
    TestApp::configured(ServerConfig { lifetime: policy(), traces, ..ServerConfig::default() }).await
}

async fn until(received: &Mutex<Received>, what: &str, enough: impl Fn(&Received) -> bool) {
    for _ in 0..1500 {
        if enough(&received.lock().unwrap()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("no {what} came: {:?}", received.lock().unwrap());
}

#[tokio::test]
async fn a_sandbox_is_one_trace_and_requests_are_linked_to_it() {
    // It is down at first: retried spans arrive.
    let (address, received) = receiver(2).await;
    let headers = Some(SecretText::new("x-team=one%20two"));
    let app = app(TraceSettings { endpoint: Some(address), headers, ..TraceSettings::default() }).await;
    let client = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = app.request(http::Method::POST, "/v2/sandboxes").header("traceparent", client);
    let body = json!({"templateID": "base", "envVars": {"TOKEN": "canary-5f1c"}}).to_string();
    let made = app.send(request.body(body.into()).unwrap()).await.expect(201);
    let request_id = made.header("x-request-id").unwrap().to_string();
    let id = made.json()["sandboxID"].as_str().unwrap().to_string();
    app.post_empty(&format!("/sandboxes/{id}/pause")).await.expect(204);
    app.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.expect(201);
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    let names = ["sandbox", "sandbox.create", "sandbox.pause", "sandbox.resume", "sandbox.end"];
    let all = |received: &Received| {
        names.iter().all(|name| received.spans.iter().any(|span| span.name == *name))
            && received.spans.iter().filter(|span| span.name.contains("/sandboxes")).count() >= 4
    };
    until(&received, "whole story", all).await;

    let project = app.scope().await.project().to_string();
    let received = received.lock().unwrap();
    let by_name: HashMap<_, _> = received.spans.iter().map(|span| (span.name.as_str(), span)).collect();
    let root = by_name["sandbox"];
    assert!(root.parent_span_id.is_empty());
    for name in names {
        let span = by_name[name];
        assert_eq!(span.trace_id, root.trace_id, "{name}");
        assert!(name == "sandbox" || span.parent_span_id == root.span_id, "{name}");
        assert!(span.start <= span.end && span.start > 0, "{name}");
        assert_eq!(span.attribute("sandbox.id").as_deref(), Some(&*id), "{name}");
        assert_eq!(span.attribute("project.id").as_deref(), Some(&*project), "{name}");
    }
    let request = by_name["POST /v2/sandboxes"];
    assert_eq!(request.trace_id[..2], [0x0a, 0xf7], "it goes on with its client's trace");
    assert_eq!(request.parent_span_id[7], 0x31);
    assert_eq!(request.attribute("request.id"), Some(request_id));
    assert_eq!(request.attribute("http.response.status_code").as_deref(), Some("201"));
    assert_eq!(by_name["sandbox.create"].links[0].trace_id, request.trace_id);
    assert!(received.requests.iter().all(|(path, _, kind)| {
        path == "/v1/traces" && kind.as_deref() == Some("application/x-protobuf")
    }));
    let everything = format!("{:?}", received.spans);
    assert!(!everything.contains("canary-5f1c") && !everything.contains(&app.key), "a secret is in a span");
}

#[tokio::test]
async fn langfuse_gets_them_at_its_path_with_its_keys() {
    let (address, received) = receiver(0).await;
    let settings = TraceSettings {
        langfuse_host: Some(format!("{address}/")),
        langfuse_public_key: Some("pk-lf-1".into()),
        langfuse_secret_key: Some(SecretText::new("sk-lf-2")),
        ..TraceSettings::default()
    };
    let app = app(settings).await;
    app.create(json!({})).await;
    until(&received, "create", |received| received.spans.iter().any(|span| span.name == "sandbox.create"))
        .await;
    let received = received.lock().unwrap();
    let (path, authorization, _) = &received.requests[0];
    assert_eq!(path, "/api/public/otel/v1/traces");
    // Base 64 of pk-lf-1:sk-lf-2.
    assert_eq!(authorization.as_deref(), Some("Basic cGstbGYtMTpzay1sZi0y"));
    let create = received.spans.iter().find(|span| span.name == "sandbox.create").unwrap();
    assert_eq!(create.attribute("session.id"), create.attribute("sandbox.id"));
}

#[tokio::test]
async fn a_destination_that_is_away_costs_its_spans_and_nothing_else() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Some(format!("http://{}", listener.local_addr().unwrap()));
    drop(listener);
    let traces = TraceSettings { endpoint, ..TraceSettings::default() };
    let metrics = coffer_server::MetricsSettings { public: true };
    let config = ServerConfig { lifetime: policy(), traces, metrics, ..ServerConfig::default() };
    let app = TestApp::configured(config).await;
    let id = app.create(json!({})).await;
    app.delete(&format!("/sandboxes/{id}")).await.expect(204);
    let dropped = "coffer_trace_spans_total{destination=\"otlp\",outcome=\"dropped\"} ";
    for _ in 0..1500 {
        let text = app.get("/metrics").await.text();
        let count =
            text.lines().find_map(|line| line.strip_prefix(dropped)).expect("it is there from the start");
        if count.parse::<f64>().unwrap() >= 4.0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("nothing was dropped");
}

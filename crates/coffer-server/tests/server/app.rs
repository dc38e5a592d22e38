//! A server under test: the real one, on its own port, over a fake engine and a real store.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coffer_api_types::ErrorShape;
use coffer_core::{LifetimePolicy, Limits, SandboxId, SandboxState};
use coffer_server::ServerConfig;
use coffer_store::{Authenticated, ProjectScope, SandboxRow, Store, Transition};
use coffer_testkit::TestDatabase;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::engine::FakeEngine;

pub(crate) struct TestApp {
    pub(crate) engine: Arc<FakeEngine>,
    /// A second handle on the same database, to inspect it.
    pub(crate) store: Store,
    pub(crate) key: String,
    pub(crate) other_key: String,
    address: SocketAddr,
    pub(crate) config: ServerConfig,
    stop: CancellationToken,
    server: Option<JoinHandle<()>>,
    pub(crate) database: TestDatabase,
    _dir: TempDir,
}

/// An answer of the server.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {text:?} ({})", self.status))
    }

    /// The body as a client of our own API reads it.
    #[track_caller]
    pub(crate) fn read<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.text()))
    }

    /// Checks the status and, for a refusal, its shape: E2B's or our own.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        if status >= 400 {
            let body = self.json();
            if body["code"].is_string() {
                let ErrorShape { message, request_id, .. } = self.read();
                assert!(!message.is_empty() && !request_id.is_empty(), "{body}");
            } else {
                assert_eq!(body["code"], json!(status), "{body}");
                assert!(body["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
            }
        }
        self
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// An hour at most, so that a refused timeout is easy to name.
pub(crate) fn policy() -> LifetimePolicy {
    LifetimePolicy { longest_timeout_ms: 3_600_000, maximum_ms: 7_200_000, idle_ms: None }
}

impl TestApp {
    pub(crate) async fn start() -> Self {
        Self::with(policy(), None).await
    }

    pub(crate) async fn with(lifetime: LifetimePolicy, domain: Option<&str>) -> Self {
        let domain = domain.map(String::from);
        Self::configured(ServerConfig { lifetime, domain, ..ServerConfig::default() }).await
    }

    /// With the test's own settings.
    pub(crate) async fn configured(config: ServerConfig) -> Self {
        let dir = TempDir::new().unwrap();
        let database = TestDatabase::chosen().await;
        let store = database.open().await;
        let operator = store.operator();
        let project = store.create_project(&operator, "one").await.unwrap();
        let key = store.create_key(&operator, project, "test").await.unwrap().reveal().to_string();
        let other = store.create_project(&operator, "two").await.unwrap();
        let other_key = store.create_key(&operator, other, "test").await.unwrap().reveal().to_string();
        let engine = FakeEngine::new(dir.path().to_path_buf());
        let config = ServerConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            default_limits: Limits::default(),
            server_dir: dir.path().to_path_buf(),
            ..config
        };
        let mut app = Self {
            engine,
            store,
            key,
            other_key,
            address: config.listen,
            config,
            stop: CancellationToken::new(),
            server: None,
            database,
            _dir: dir,
        };
        app.boot().await;
        app
    }

    /// A second server with its own host, on the same database.
    pub(crate) async fn neighbour(&self, config: ServerConfig) -> Self {
        let dir = TempDir::new().unwrap();
        let config = ServerConfig { server_dir: dir.path().to_path_buf(), ..config };
        let mut neighbour = Self {
            engine: FakeEngine::new(dir.path().to_path_buf()),
            store: self.database.open().await,
            key: self.key.clone(),
            other_key: self.other_key.clone(),
            address: config.listen,
            config,
            stop: CancellationToken::new(),
            server: None,
            database: self.database.clone(),
            _dir: dir,
        };
        neighbour.boot().await;
        neighbour
    }

    async fn boot(&mut self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.address = listener.local_addr().unwrap();
        self.stop = CancellationToken::new();
        let store = self.database.open().await;
        let (config, engine, stop) = (self.config.clone(), self.engine.clone(), self.stop.clone());
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        self.server = Some(tokio::spawn(async move {
            let served = coffer_server::serve(config, store, engine, listener, stop, || {
                let _ = ready.send(());
            });
            served.await.unwrap();
        }));
        is_ready.await.expect("the server starts");
    }

    /// Stops the server; sandboxes and the database stay.
    pub(crate) async fn stop(&mut self) {
        self.stop.cancel();
        if let Some(server) = self.server.take() {
            tokio::time::timeout(Duration::from_secs(20), server).await.expect("the server stops").unwrap();
        }
    }

    /// Stops the server, lets `meanwhile` happen, and starts it again.
    pub(crate) async fn restart(&mut self, meanwhile: impl AsyncFnOnce(&Self)) {
        self.stop().await;
        meanwhile(self).await;
        self.boot().await;
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let exchange = async {
            let stream = TcpStream::connect(self.address).await.unwrap();
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            let response = sender.send_request(request).await.unwrap();
            let (parts, body) = response.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            Answer { status: parts.status.as_u16(), headers: parts.headers, body }
        };
        tokio::time::timeout(Duration::from_secs(30), exchange).await.expect("an answer within 30 s")
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let host = self.address.to_string();
        Request::builder().method(method).uri(path).header("host", host).header("x-api-key", &self.key)
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path).body(Full::default()).unwrap()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path).body(Full::default()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        let body = Full::new(Bytes::from(body.to_string()));
        self.send(self.request(Method::POST, path).body(body).unwrap()).await
    }

    pub(crate) async fn post_empty(&self, path: &str) -> Answer {
        self.send(self.request(Method::POST, path).body(Full::default()).unwrap()).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        let body = Full::new(Bytes::from(body.to_string()));
        self.send(self.request(Method::PUT, path).body(body).unwrap()).await
    }

    /// A request to port 49983 of a sandbox, through the proxy.
    pub(crate) async fn visit(&self, sandbox: &str, path: &str) -> Answer {
        let request = Request::get(path)
            .header("host", self.address.to_string())
            .header("e2b-sandbox-id", sandbox)
            .header("e2b-sandbox-port", "49983");
        self.send(request.body(Full::default()).unwrap()).await
    }

    /// Creates a sandbox with `more` in the request and returns its id.
    pub(crate) async fn create(&self, more: Value) -> String {
        let mut body = json!({"templateID": "base", "timeout": 300});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = self.post("/v2/sandboxes", body).await.expect(201);
        let id = answer.json()["sandboxID"].as_str().unwrap().to_string();
        // The answer does not wait until the store has recorded it; tests that query the store have to.
        for _ in 0..1000 {
            if self.row(&id).await.state != SandboxState::Creating {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        id
    }

    /// The state that the API shows, or the status of its refusal.
    pub(crate) async fn state(&self, id: &str) -> String {
        let answer = self.get(&format!("/sandboxes/{id}")).await;
        match answer.status {
            200 => answer.json()["state"].as_str().unwrap().to_string(),
            status => status.to_string(),
        }
    }

    /// Waits until the API shows `state`.
    pub(crate) async fn wait_for(&self, id: &str, state: &str) {
        let mut seen = String::new();
        for _ in 0..600 {
            seen = self.state(id).await;
            if seen == state {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("sandbox {id} is {seen}, not {state}");
    }

    pub(crate) async fn row(&self, id: &str) -> SandboxRow {
        let id: SandboxId = id.parse().unwrap();
        self.store.sandbox(&self.store.operator(), id).await.unwrap().expect("a row")
    }

    /// Waits until the record has a state other than these.
    pub(crate) async fn ended(&self, id: &str) -> SandboxState {
        for _ in 0..600 {
            let state = self.row(id).await.state;
            if !state.is_live() {
                return state;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("sandbox {id} does not end");
    }

    pub(crate) async fn history(&self, id: &str) -> Vec<Transition> {
        self.store.transitions(&self.store.operator(), id.parse().unwrap()).await.unwrap()
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The scope of the first key.
    pub(crate) async fn scope(&self) -> ProjectScope {
        match self.store.authenticate(&self.key).await.unwrap() {
            Some(Authenticated::Project(principal)) => principal.scope,
            other => panic!("{other:?}"),
        }
    }

    /// Sends with another key than the first.
    pub(crate) async fn as_key(&self, key: &str, method: Method, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.address.to_string())
            .header("x-api-key", key)
            .body(Full::new(body))
            .unwrap();
        self.send(request).await
    }

    /// The payloads of the project's events of a kind.
    pub(crate) async fn events(&self, kind: &str) -> Vec<Value> {
        let events = self.store.events(&self.scope().await, 0, 1000).await.unwrap();
        events.into_iter().filter(|event| event.kind == kind).map(|event| event.payload).collect()
    }

    /// Nothing is left: no live row, no sandbox in the engine.
    pub(crate) async fn assert_empty(&self) {
        assert_eq!(self.engine.ids(), [], "left on the engine");
        let live = self.store.live_sandboxes(&self.store.operator()).await.unwrap();
        assert!(live.is_empty(), "live on record: {live:?}");
        let listed = self.get("/v2/sandboxes").await.expect(200).json();
        assert_eq!(listed, json!([]));
    }
}

impl Drop for TestApp {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

//! The whole path: a real listener, the proxy, and a fake agentd.

mod answers;
mod ending;
mod floods;
mod hostile;
mod listening;
mod load;
mod origin;
mod routing;
mod secure;
mod smuggling;
mod starts;
mod streaming;
mod tls;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use coffer_core::SandboxId;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use super::Proxy;
use crate::port::{Front, serve};
use crate::proxy::{Directory, Gate, Guard};
use coffer_core::command::{CommandPolicy, RefusedCommand};
use coffer_guest::{Activity, Route, Spare, Target, Wake};

/// Waits, within bounds.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("should not take this long")
}

/// The routes that the test sets.
#[derive(Debug, Default)]
struct Book {
    routes: Mutex<HashMap<String, Route>>,
    secured: Mutex<Vec<(SandboxId, String)>>,
    guard: Mutex<Option<Guard>>,
    policy: Mutex<CommandPolicy>,
    refused: Mutex<Vec<RefusedCommand>>,
    wakes: Mutex<Vec<Wake>>,
}

#[async_trait]
impl Gate for Book {
    fn guard(&self, _: SandboxId) -> Option<Guard> {
        self.guard.lock().unwrap().clone()
    }

    fn permit(&self, _: coffer_core::ProjectId, words: &[String]) -> Result<(), RefusedCommand> {
        self.policy.lock().unwrap().permit(words)
    }

    async fn refused(&self, _: SandboxId, what: &RefusedCommand) {
        self.refused.lock().unwrap().push(what.clone());
    }

    fn read(&self, _: SandboxId, _: &'static str, _: u16) {}
}

#[async_trait]
impl Directory for Book {
    async fn route(&self, sandbox: &str, wake: Wake) -> Route {
        self.wakes.lock().unwrap().push(wake);
        self.routes.lock().unwrap().get(sandbox).cloned().unwrap_or(Route::NotFound)
    }

    fn secured(&self) -> Vec<(SandboxId, String)> {
        self.secured.lock().unwrap().clone()
    }
}

/// A listening server with one sandbox.
struct World {
    address: SocketAddr,
    book: Arc<Book>,
    front: Arc<Front>,
    target: Target,
    id: String,
    stop: CancellationToken,
    _dir: TempDir,
}

impl World {
    async fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let sandbox = SandboxId::generate();
        let target = Target {
            sandbox,
            project: coffer_core::ProjectId::generate(),
            socket: dir.path().join("agentd.sock"),
            spare: Spare::default(),
            traffic_token: None,
            mask_host: None,
            https_ports: Vec::new(),
            activity: Activity::default(),
            gone: CancellationToken::new(),
        };
        let book = Arc::new(Book::default());
        let api = Router::new().fallback(|| async { (StatusCode::IM_A_TEAPOT, "the API") });
        let pools = coffer_shares::PoolSettings::default();
        let front = Arc::new(Front {
            api,
            proxy: Proxy::new(book.clone(), book.clone(), &pools),
            seats: crate::connection::Seats::new(&pools),
            trusted: crate::TrustedProxies::default(),
            refuse: |full| Response::builder().status(429).body(Body::from(full.to_string())).unwrap(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(serve(listener, front.clone(), stop.clone()));
        let id = sandbox.to_string();
        let world = Self { address, book, front, target, id, stop, _dir: dir };
        world.route(Route::Running(world.target.clone()));
        world
    }

    /// Changes where the sandbox's traffic goes.
    fn route(&self, route: Route) {
        self.book.routes.lock().unwrap().insert(self.id.clone(), route);
    }

    fn socket(&self) -> &Path {
        &self.target.socket
    }

    async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// A request line and its addressing headers; the caller adds more and the empty line.
    fn line(&self, method: &str, path: &str, port: u16) -> String {
        format!("{method} {path} HTTP/1.1\r\nHost: {port}-{}.test\r\n", self.id)
    }

    /// Sends one request, given by what follows its addressing, and reads until the server closes.
    async fn ask(&self, method: &str, path: &str, port: u16, rest: &str) -> Reply {
        let request = format!("{}Connection: close\r\n{rest}", self.line(method, path, port));
        self.ask_raw(&request).await
    }

    async fn ask_raw(&self, request: &str) -> Reply {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        soon(stream.read_to_end(&mut bytes)).await.unwrap();
        Reply::parse(&bytes)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A whole answer, as it came over the wire.
#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Reads until `end` has come, and returns all of it.
async fn read_until(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut seen = Vec::new();
    soon(async {
        while !seen.ends_with(end.as_bytes()) {
            let byte = stream.read_u8().await.unwrap_or_else(|error| {
                panic!("{error} after {:?}", String::from_utf8_lossy(&seen));
            });
            seen.push(byte);
        }
    })
    .await;
    String::from_utf8(seen).unwrap()
}

/// Reads until the connection ends, which must be by a reset.
async fn expect_reset(stream: &mut TcpStream) {
    let mut sink = vec![0; 64 * 1024];
    let error = soon(async {
        loop {
            match stream.read(&mut sink).await {
                Ok(0) => panic!("a clean end where a reset was due"),
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    })
    .await;
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for T {}

/// A fake agentd: `handler` answers requests, `CONNECT` leads to the streams in `ports`.
struct Agentd {
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

type Port = Arc<dyn Fn(Box<dyn Stream>) -> Pending + Send + Sync>;
type Pending = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl Agentd {
    fn start<H, F>(socket: &Path, handler: H) -> Self
    where
        H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::with_ports(socket, handler, HashMap::new())
    }

    fn with_ports<H, F>(socket: &Path, handler: H, ports: HashMap<u16, Port>) -> Self
    where
        H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let agentd = Self { connections: Arc::default(), requests: Arc::default() };
        let (connections, requests) = (agentd.connections.clone(), agentd.requests.clone());
        let ports = Arc::new(ports);
        let listener = UnixListener::bind(socket).unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                let (handler, requests, ports) = (handler.clone(), requests.clone(), ports.clone());
                tokio::spawn(http(stream, move |mut request: Request<Incoming>| {
                    requests.fetch_add(1, Ordering::SeqCst);
                    let (handler, ports) = (handler.clone(), ports.clone());
                    async move {
                        if request.method() != Method::CONNECT {
                            return handler(request).await;
                        }
                        let authority = request.uri().authority().expect("CONNECT names a port");
                        assert_eq!(authority.host(), "127.0.0.1");
                        let port = authority.port_u16().expect("CONNECT names a port");
                        let mut response = Response::new(Body::empty());
                        if let Some(inside) = ports.get(&port).cloned() {
                            tokio::spawn(async move {
                                let stream = hyper::upgrade::on(&mut request).await.unwrap();
                                inside(Box::new(TokioIo::new(stream))).await;
                            });
                        } else {
                            *response.status_mut() = StatusCode::BAD_GATEWAY;
                        }
                        response
                    }
                }));
            }
        });
        agentd
    }

    /// A sandbox with one server, on port 3000.
    fn with_port<H, F>(socket: &Path, inside: H) -> Self
    where
        H: Fn(Box<dyn Stream>) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let inside: Port = Arc::new(move |stream| Box::pin(inside(stream)));
        Self::with_ports(socket, |_| async { Response::new(Body::empty()) }, HashMap::from([(3000, inside)]))
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Speaks HTTP on one connection, upgrades included.
async fn http<S, H, F>(stream: S, handler: H)
where
    S: Stream,
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let service = service_fn(move |request| {
        let answer = handler(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
}

/// A fake agentd that does not speak valid HTTP: `handler` gets the raw connection.
fn raw_agentd<H, F>(socket: PathBuf, handler: H)
where
    H: Fn(UnixStream) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(handler(stream));
        }
    });
}

/// Shows a request as its server saw it, one header per line.
async fn show(request: Request<Incoming>) -> Response<Body> {
    let mut lines: Vec<String> = request
        .headers()
        .iter()
        .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
        .collect();
    lines.sort();
    let text = format!("{} {}\n{}\n", request.method(), request.uri(), lines.join("\n"));
    Response::new(Body::from(text))
}

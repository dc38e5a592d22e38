//! The port: accepts connections, tells sandbox traffic from the API, logs every request.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use coffer_core::{AgentId, ProjectId, SandboxId};
use coffer_shares::Full;
use http::header::{CONNECTION, EXPECT, HOST, LOCATION, STRICT_TRANSPORT_SECURITY};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::{Instrument, Span};

use crate::connection::{Buffers, Busy, Client, Drained, Seats, Share, Socket, Taken, Wire};
use crate::proxy::Proxy;
use crate::secure::Certificates;
use crate::trusted::{self, TrustedProxies};

/// SDKs keep idle connections for 300 s; closing them earlier would race with their next request.
const IDLE: Duration = Duration::from_secs(330);

/// The head of a request; also bounds trailers.
const MOST_HEAD: usize = 64 * 1024;

/// How far to read ahead of the consumer of a request's body, per connection.
const MOST_BUFFERED: usize = 128 * 1024;

/// How much is still read of a request that the API has refused. Bodies for the API are smaller.
const DRAINED: usize = 4 << 20;

/// How long open requests may take after a stop was requested.
const FAREWELL: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 5 });

/// Names a request in logs and in the answer.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Tells the API, and servers in sandboxes, how the client came.
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The services on the port.
#[derive(Debug)]
pub struct Front {
    pub api: Router,
    pub proxy: Proxy,
    pub seats: Arc<Seats>,
    pub trusted: TrustedProxies,
    /// The answer to a request that found no place.
    pub refuse: fn(Full) -> Response<Body>,
}

/// Project, agent and sandbox of a request, for the access log. The API puts it into its answers' extensions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attribution {
    pub project: Option<ProjectId>,
    pub agent: Option<AgentId>,
    pub sandbox: Option<SandboxId>,
}

/// Where the server listens.
#[derive(Debug)]
pub struct Entrances {
    /// Plain HTTP: the whole server or, next to HTTPS, programs on this machine and trusted proxies.
    pub plain: TcpListener,
    pub secure: Option<Secure>,
}

/// HTTPS.
#[derive(Debug)]
pub struct Secure {
    pub listener: TcpListener,
    pub certificates: Arc<Certificates>,
    /// Plain HTTP whose requests are all redirected to `listener`.
    pub redirect: Option<TcpListener>,
    /// How long a browser that came by HTTPS must not use plain HTTP.
    pub hsts: Option<Duration>,
}

impl From<TcpListener> for Entrances {
    fn from(plain: TcpListener) -> Self {
        Self { plain, secure: None }
    }
}

/// What becomes of a listener's connections.
#[derive(Debug, Clone)]
enum Way {
    Plain,
    /// To the port of HTTPS, except this machine's own and trusted proxies.
    RedirectOthers(u16),
    RedirectAll(u16),
    Tls(Arc<Certificates>, Option<HeaderValue>),
}

/// How the requests of one connection are answered.
#[derive(Debug, Clone)]
enum Manner {
    Plain,
    /// By a redirect to HTTPS at this port.
    Redirect(u16),
    /// They came by TLS; with the value of `Strict-Transport-Security`.
    Tls(Option<HeaderValue>),
}

/// Serves until `stop`, then lets open requests finish for a moment.
pub async fn serve(entrances: impl Into<Entrances>, front: Arc<Front>, stop: CancellationToken) {
    let Entrances { plain, secure } = entrances.into();
    let port = Port {
        front,
        buffers: Arc::default(),
        connections: TaskTracker::new(),
        stop,
        farewell: CancellationToken::new(),
    };
    match secure {
        None => port.accept(plain, Way::Plain).await,
        Some(Secure { listener, certificates, redirect, hsts }) => {
            let https = listener.local_addr().map_or(443, |address| address.port());
            let hsts = hsts
                .filter(|hsts| !hsts.is_zero())
                .map(|hsts| HeaderValue::try_from(format!("max-age={}", hsts.as_secs())).expect("digits"));
            let redirecting = async {
                if let Some(redirect) = redirect {
                    port.accept(redirect, Way::RedirectAll(https)).await;
                }
            };
            tokio::join!(
                port.accept(plain, Way::RedirectOthers(https)),
                port.accept(listener, Way::Tls(certificates, hsts)),
                redirecting
            );
        }
    }
    port.finish().await;
}

/// The open connections of all listeners.
struct Port {
    front: Arc<Front>,
    buffers: Arc<Buffers>,
    connections: TaskTracker,
    stop: CancellationToken,
    /// Ends requests that are still open a while after `stop`.
    farewell: CancellationToken,
}

impl Port {
    /// Accepts connections until `stop`, then closes the listener.
    async fn accept(&self, listener: TcpListener, way: Way) {
        loop {
            let accepted = tokio::select! {
                () = self.stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Most likely out of descriptors: other connections must end first.
                    tracing::warn!("could not accept a connection: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let (front, stop, farewell) = (self.front.clone(), self.stop.clone(), self.farewell.clone());
            let busy = Busy::new(Share::of(&self.buffers));
            let is_trusted = front.trusted.contains(peer.ip());
            let way = match way {
                Way::RedirectOthers(_) if is_trusted || is_own(&stream, peer) => Way::Plain,
                ref way => way.clone(),
            };
            if is_trusted {
                self.connections.spawn(async move {
                    let mut stream = stream;
                    let told = tokio::select! {
                        () = stop.cancelled() => return,
                        told = trusted::read_header(&mut stream) => told,
                    };
                    match told {
                        Ok(source) => {
                            admit((stream, way), source.unwrap_or(peer), busy, front, stop, farewell).await
                        }
                        Err(error) => {
                            tracing::debug!(%peer, "no PROXY header on a trusted proxy's connection: {error}")
                        }
                    }
                });
            } else {
                self.connections.spawn(admit((stream, way), peer, busy, front, stop, farewell));
            }
        }
    }

    /// Lets open requests finish for a moment.
    async fn finish(self) {
        self.connections.close();
        if tokio::time::timeout(FAREWELL, self.connections.wait()).await.is_err() {
            self.farewell.cancel();
            self.connections.wait().await;
        }
        self.front.proxy.finish().await;
    }
}

/// Whether a program on this machine opened the connection.
fn is_own(stream: &TcpStream, peer: SocketAddr) -> bool {
    let peer = peer.ip().to_canonical();
    peer.is_loopback() || stream.local_addr().is_ok_and(|local| local.ip().to_canonical() == peer)
}

/// Serves a connection for which there is a place.
async fn admit(
    (stream, way): (TcpStream, Way),
    peer: SocketAddr,
    busy: Busy,
    front: Arc<Front>,
    stop: CancellationToken,
    farewell: CancellationToken,
) {
    let abort = CancellationToken::new();
    // A handshake costs a signature: its client needs a place too.
    let seat = match front.seats.take(peer.ip(), busy.clone(), abort.clone()) {
        Ok(seat) => seat,
        Err(full) => {
            tracing::debug!(%peer, "closing a new connection: {full}");
            let _ = stream.set_zero_linger();
            return;
        }
    };
    let (wire, manner) = match way {
        Way::Plain => (Wire::Plain(stream), Manner::Plain),
        Way::RedirectOthers(https) | Way::RedirectAll(https) => {
            (Wire::Plain(stream), Manner::Redirect(https))
        }
        Way::Tls(certificates, hsts) => {
            let greeted = tokio::select! {
                greeted = certificates.accept(stream) => greeted,
                () = stop.cancelled() => return,
                () = abort.cancelled() => return,
            };
            match greeted {
                Ok(stream) => (Wire::Tls(Box::new(stream)), Manner::Tls(hsts)),
                Err(error) => {
                    tracing::debug!(%peer, "no TLS handshake: {error}");
                    return;
                }
            }
        }
    };
    connection((wire, manner), peer, (busy, abort, seat), front, stop, farewell).await
}

async fn connection(
    (wire, manner): (Wire, Manner),
    peer: SocketAddr,
    (busy, abort, seat): (Busy, CancellationToken, Taken),
    front: Arc<Front>,
    stop: CancellationToken,
    farewell: CancellationToken,
) {
    let client = Client::new(peer, abort.clone(), busy.midway()).seated(seat.clone());
    let socket = Socket::new(wire, abort.clone(), busy.clone(), seat);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (front, busy, manner) = (front.clone(), busy.clone(), manner.clone());
        busy.begin();
        let client = client.clone();
        async move {
            let answer = match (manner, front.sender(&client, request.headers())) {
                (Manner::Redirect(https), _) => redirect(&request, https),
                (manner, Ok(client)) => {
                    let peer = client.peer;
                    request.extensions_mut().insert(client);
                    front.answer(request, peer, manner).await
                }
                (_, Err(full)) => (front.refuse)(full),
            };
            Ok::<_, Infallible>(busy.until_sent(answer))
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_header_size(MOST_HEAD)
        .max_buf_size(MOST_BUFFERED)
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    tokio::pin!(served);
    let mut stopping = false;
    loop {
        tokio::select! {
            _ = served.as_mut() => return,
            // Dropping the connection resets it; see `Socket`.
            () = abort.cancelled() => return,
            // A truncated answer must not look complete.
            () = farewell.cancelled() => {
                abort.cancel();
                return;
            }
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}

impl Front {
    /// The sender of a request: the peer of the connection or, if that is a trusted proxy, the address it
    /// names.
    fn sender(&self, client: &Client, headers: &HeaderMap) -> Result<Client, Full> {
        let hop = client.peer.ip();
        if !self.trusted.contains(hop) {
            return Ok(client.clone());
        }
        let sender = self.trusted.sender(hop, headers);
        client.sent_by(sender)
    }

    async fn answer(
        &self,
        mut request: Request<Incoming>,
        peer: SocketAddr,
        manner: Manner,
    ) -> Response<Body> {
        let started = Instant::now();
        let id = format!("{:016x}", rand::random::<u64>());
        let method = request.method().clone();
        // Without the query, which may hold a signature.
        let path: String = request.uri().path().chars().take(256).collect();
        if let Manner::Tls(_) = manner {
            request.headers_mut().insert(FORWARDED_PROTO, HeaderValue::from_static("https"));
        }
        let claimed = self.proxy.claims(&request);
        let kind = if claimed { "sandbox" } else { "api" };
        // The API gives its requests their own id and span, with the project.
        let span = if claimed { tracing::info_span!("request", request.id = %id) } else { Span::none() };
        let mut response = async {
            if claimed {
                self.proxy.serve(request).await
            } else {
                let client = request.extensions().get::<Client>().expect("the listener's own").clone();
                let drains = self.proxy.drains().clone();
                // Reading the body of a client that waits for `100 Continue` would make it send it.
                let waits = request.headers().contains_key(EXPECT);
                let request = request.map(|body| match waits {
                    true => Body::new(body),
                    false => Body::new(Drained::new(body, DRAINED, client, drains)),
                });
                let routed = self.api.clone().oneshot(request).await;
                routed.unwrap_or_else(|never: Infallible| match never {})
            }
        }
        .instrument(span)
        .await;
        let given = response.headers().get(REQUEST_ID).and_then(|given| given.to_str().ok());
        let id = given.map_or(id, str::to_string);
        let Attribution { project, agent, sandbox } =
            response.extensions_mut().remove::<Attribution>().unwrap_or_default();
        let status = response.status().as_u16();
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(
            target: "coffer::access",
            kind, request.id = %id, project.id = project.map(tracing::field::display),
            agent.id = agent.map(tracing::field::display), sandbox.id = sandbox.map(tracing::field::display),
            %method, path, status, duration_ms, %peer,
            "{method} {path} {status}"
        );
        let id = HeaderValue::try_from(id).expect("hexadecimal digits");
        response.headers_mut().entry(REQUEST_ID).or_insert(id);
        // Names of sandboxes get none: the pages there are not the server's.
        if let Manner::Tls(Some(hsts)) = manner
            && !claimed
        {
            response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, hsts);
        }
        response
    }
}

/// Sends a client to the same address by HTTPS. The method stays (308), so that an SDK's request arrives as it was.
fn redirect<B>(request: &Request<B>, https: u16) -> Response<Body> {
    let answer = |status, text: &'static str| {
        // What is left of the body is not read.
        let builder = Response::builder().status(status).header(CONNECTION, "close");
        builder.body(Body::from(text)).expect("constant headers")
    };
    let header = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let named = request.uri().authority().map(Authority::as_str).or(header);
    let target = named.and_then(|named| {
        let authority: Authority = named.parse().ok().filter(|_| !named.contains('@'))?;
        let port = if https == 443 { String::new() } else { format!(":{https}") };
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        HeaderValue::try_from(format!("https://{}{port}{path}", authority.host())).ok()
    });
    let Some(target) = target else {
        return answer(StatusCode::BAD_REQUEST, "The request names no host; use HTTPS.\n");
    };
    let mut response = answer(StatusCode::PERMANENT_REDIRECT, "This server is at https://.\n");
    response.headers_mut().insert(LOCATION, target);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_keeps_host_path_and_query_and_names_the_port() {
        let location = |host: &str, path: &str, https| {
            let request = Request::builder().uri(path).header(HOST, host).body(()).unwrap();
            let response = redirect(&request, https);
            let location = response.headers().get(LOCATION);
            (response.status().as_u16(), location.map_or("", |value| value.to_str().unwrap()).to_string())
        };
        let to = |target: &str| (308, target.to_string());
        assert_eq!(location("coffer.test", "/a/b?c=d", 443), to("https://coffer.test/a/b?c=d"));
        assert_eq!(location("coffer.test:80", "/", 8443), to("https://coffer.test:8443/"));
        assert_eq!(location("[::1]:80", "/", 443), to("https://[::1]/"));
        for host in ["", "a b", "user@coffer.test", "evil.test/path"] {
            assert_eq!(location(host, "/", 443).0, 400, "{host}");
        }
        assert_eq!(redirect(&Request::new(()), 443).status(), 400);
    }
}

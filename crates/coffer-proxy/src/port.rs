//! The port: accepts connections, tells sandbox traffic from the API, logs every request.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use coffer_core::{AgentId, ProjectId, SandboxId};
use coffer_shares::Full;
use http::header::EXPECT;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::{Instrument, Span};

use crate::connection::{Buffers, Busy, Client, Drained, Seats, Share, Socket, Taken};
use crate::proxy::Proxy;
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

/// Serves until `stop`, then lets open requests finish for a moment.
pub async fn serve(listener: TcpListener, front: Arc<Front>, stop: CancellationToken) {
    let buffers = Arc::new(Buffers::default());
    let connections = TaskTracker::new();
    let farewell = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
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
        let (front, stop, farewell) = (front.clone(), stop.clone(), farewell.clone());
        let busy = Busy::new(Share::of(&buffers));
        if front.trusted.contains(peer.ip()) {
            connections.spawn(async move {
                let mut stream = stream;
                let told = tokio::select! {
                    () = stop.cancelled() => return,
                    told = trusted::read_header(&mut stream) => told,
                };
                match told {
                    Ok(source) => admit(stream, source.unwrap_or(peer), busy, front, stop, farewell).await,
                    Err(error) => {
                        tracing::debug!(%peer, "no PROXY header on a trusted proxy's connection: {error}")
                    }
                }
            });
        } else {
            connections.spawn(admit(stream, peer, busy, front, stop, farewell));
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(FAREWELL, connections.wait()).await.is_err() {
        farewell.cancel();
        connections.wait().await;
    }
    front.proxy.finish().await;
}

/// Serves a connection for which there is a place.
async fn admit(
    stream: TcpStream,
    peer: SocketAddr,
    busy: Busy,
    front: Arc<Front>,
    stop: CancellationToken,
    farewell: CancellationToken,
) {
    let abort = CancellationToken::new();
    match front.seats.take(peer.ip(), busy.clone(), abort.clone()) {
        Ok(seat) => connection(stream, peer, (busy, abort, seat), front, stop, farewell).await,
        Err(full) => {
            tracing::debug!(%peer, "closing a new connection: {full}");
            let _ = stream.set_zero_linger();
        }
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    (busy, abort, seat): (Busy, CancellationToken, Taken),
    front: Arc<Front>,
    stop: CancellationToken,
    farewell: CancellationToken,
) {
    let client = Client::new(peer, abort.clone(), busy.midway()).seated(seat.clone());
    let socket = Socket::new(stream, abort.clone(), busy.clone(), seat);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (front, busy) = (front.clone(), busy.clone());
        busy.begin();
        let client = client.clone();
        async move {
            let answer = match front.sender(&client, request.headers()) {
                Ok(client) => {
                    let peer = client.peer;
                    request.extensions_mut().insert(client);
                    front.answer(request, peer).await
                }
                Err(full) => (front.refuse)(full),
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

    async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Response<Body> {
        let started = Instant::now();
        let id = format!("{:016x}", rand::random::<u64>());
        let method = request.method().clone();
        // Without the query, which may hold a signature.
        let path: String = request.uri().path().chars().take(256).collect();
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
        response
    }
}

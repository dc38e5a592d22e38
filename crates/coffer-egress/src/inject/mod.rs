//! Adds headers to a sandbox's requests to hosts that its rules name, so that the token need not be in the
//! sandbox.
//!
//! ```text
//! sandbox ──TLS, our certificate──► read requests ──► check, put headers in ──TLS, verified──► host
//! ```
//!
//! The rules are checked again for each request: a changed secret is in the next one. Only requests to exactly
//! that host get the headers. Of other connections only plain HTTP to a package mirror is terminated, so that
//! each request is checked to be for that mirror.

mod authority;
mod request;
mod stream;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coffer_core::network::{HeaderName, HeaderText, HostName, Opened};
use coffer_core::sync::Mutex;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use authority::{Authority, AuthorityText, BadAuthority};
use request::Refused;
use stream::Inside;
pub(crate) use stream::Outside;

use crate::relay::Activity;
use crate::sandbox::{Admitted, Sandbox};

/// Most bytes of a request's head, and of its buffer.
const MOST_BUFFER: usize = 64 * 1024;
const MOST_HEADERS: usize = 128;
/// How long a head may take, including the wait for the next request.
const HEAD_PATIENCE: Duration = Duration::from_secs(120);
const HANDSHAKE: Duration = Duration::from_secs(10);

type Body = Either<Incoming, Full<Bytes>>;

/// The host of a terminated connection.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) host: HostName,
    pub(crate) port: u16,
    pub(crate) opened: Opened,
    /// Whether requests pass only while the policy has headers for them.
    pub(crate) needs_headers: bool,
}

/// Handles the requests of a connection.
struct Way {
    sandbox: Arc<Sandbox>,
    target: Target,
    /// The connection to the host, or why there is none.
    sender: tokio::sync::Mutex<Result<SendRequest<Incoming>, String>>,
    tunnel: Mutex<Option<AbortOnDropHandle<()>>>,
    /// The host accepts no more requests.
    over: CancellationToken,
    /// A WebSocket was requested: then the end of the host's HTTP is not the end.
    upgrading: Arc<AtomicBool>,
}

/// Serves a terminated connection to its end; returns whether it ended well. `said` is what the sandbox has
/// already sent.
pub(crate) async fn serve(
    sandbox: &Arc<Sandbox>,
    admitted: &Admitted,
    target: Target,
    (inside, outside): (TcpStream, TcpStream),
    said: Vec<u8>,
) -> bool {
    outside.set_nodelay(true).ok();
    let activity = Arc::new(Activity::new());
    let inside = Inside::new(said, inside);
    let outside = Outside { stream: outside, sandbox: sandbox.clone(), activity: activity.clone() };
    let serving = async {
        match (target.opened, sandbox.authority()) {
            (Opened::Plain, _) => {
                let outside = Ok(outside);
                converse(sandbox.clone(), target, inside, outside).await
            }
            (Opened::Tls, Some(authority)) => {
                let (acceptor, name) = (authority.inside(&target.host), target.host.clone());
                let acceptor = TlsAcceptor::from(acceptor.map_err(io::Error::other)?);
                // Connect to the host first: its identity decides what the sandbox gets.
                let outside = connect(&authority, &name, outside).await;
                let inside = timeout(HANDSHAKE, acceptor.accept(inside)).await??;
                // Check again: another parser decided which host this connection is for.
                let named = inside.get_ref().1.server_name().and_then(|name| HostName::parse(name).ok());
                if named.as_ref() != Some(&name) {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "the TLS hello has two server names",
                    ));
                }
                converse(sandbox.clone(), target, inside, outside).await
            }
            (Opened::Tls, None) => Err(io::Error::other("egress has no certificate authority")),
        }
    };
    tokio::select! {
        biased;
        () = admitted.cut.cancelled() => false,
        () = activity.ceased(&sandbox.settings) => false,
        served = serving => match served {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, "an opened connection ended");
                false
            }
        },
    }
}

/// Starts TLS with the host, whose certificate must be valid for its name.
pub(crate) async fn connect(
    authority: &Authority,
    host: &HostName,
    outside: Outside,
) -> Result<tokio_rustls::client::TlsStream<Outside>, String> {
    let name = ServerName::try_from(host.to_string()).map_err(|error| error.to_string())?;
    let connecting = TlsConnector::from(authority.outside()).connect(name, outside);
    match timeout(HANDSHAKE, connecting).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it does not answer".to_string()),
    }
}

/// Passes requests until either side ends.
async fn converse<I, O>(
    sandbox: Arc<Sandbox>,
    target: Target,
    inside: I,
    outside: Result<O, String>,
) -> io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    O: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let over = CancellationToken::new();
    let upgrading = Arc::new(AtomicBool::new(false));
    let mut carrier = None;
    let sender = match outside {
        Err(why) => Err(why),
        Ok(outside) => {
            let mut client = hyper::client::conn::http1::Builder::new();
            client.max_buf_size(MOST_BUFFER).max_headers(MOST_HEADERS).preserve_header_case(true);
            let (sender, connection) =
                client.handshake(TokioIo::new(outside)).await.map_err(io::Error::other)?;
            let (ended, upgrading) = (over.clone(), upgrading.clone());
            #[expect(clippy::disallowed_methods, reason = "aborted when its handle is dropped")]
            let driver = tokio::spawn(async move {
                if let Err(error) = connection.with_upgrades().await {
                    tracing::debug!(
                        %error,
                        "the connection to the target of an opened TLS connection failed"
                    );
                }
                if !upgrading.load(Ordering::Acquire) {
                    ended.cancel();
                }
            });
            carrier = Some(AbortOnDropHandle::new(driver));
            Ok(sender)
        }
    };
    let sender = tokio::sync::Mutex::new(sender);
    let way =
        Arc::new(Way { sandbox, target, sender, tunnel: Mutex::default(), over: over.clone(), upgrading });
    let mut server = hyper::server::conn::http1::Builder::new();
    server
        .max_buf_size(MOST_BUFFER)
        .max_headers(MOST_HEADERS)
        .preserve_header_case(true)
        .auto_date_header(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_PATIENCE);
    let answering = way.clone();
    let service = service_fn(move |request| answering.clone().answer(request));
    let connection = server.serve_connection(TokioIo::new(inside), service).with_upgrades();
    tokio::pin!(connection);
    let served = tokio::select! {
        served = &mut connection => served,
        () = over.cancelled() => {
            // Finish the answer in progress, then tell the sandbox that there will be no more.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    served.map_err(io::Error::other)?;
    let tunnel = way.tunnel.lock().take();
    if let Some(tunnel) = tunnel {
        let _ = tunnel.await;
    }
    drop(carrier);
    Ok(())
}

impl Way {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        Ok(self.pass_on(request).await.unwrap_or_else(|refusal| refusal))
    }

    /// The current headers; `None` if the rules no longer name this host.
    fn headers(&self) -> Option<Vec<(HeaderName, HeaderText)>> {
        let (policy, Target { host, port, opened, needs_headers }) = (self.sandbox.policy(), &self.target);
        match policy.opens_for_headers(host, *port) {
            None if !needs_headers => return Some(Vec::new()),
            now if policy.is_withheld() || now != Some(*opened) => return None,
            _ => {}
        }
        let headers = policy.headers_for(host, *port).into_iter();
        Some(headers.map(|(name, text)| (name.clone(), text.clone())).collect())
    }

    async fn pass_on(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Response<Body>> {
        let Some(headers) = self.headers() else {
            let why = "the sandbox's rules for this host have changed: connect again";
            return Err(refusal(StatusCode::BAD_GATEWAY, why));
        };
        let usual_port = if self.target.opened == Opened::Tls { 443 } else { 80 };
        let prepared =
            request::prepare(&mut request, &self.target.host, self.target.port, usual_port, &headers);
        let websocket = prepared.map_err(|refused: Refused| refusal(refused.status(), refused.why()))?;
        let from_inside = websocket.then(|| hyper::upgrade::on(&mut request));
        let mut sender = self.sender.lock().await;
        let unreachable = |why: &dyn std::fmt::Display| {
            refusal(StatusCode::BAD_GATEWAY, &format!("could not connect to {}: {why}", self.target.host))
        };
        let sender = sender.as_mut().map_err(|why| unreachable(why))?;
        sender.ready().await.map_err(|error| unreachable(&error))?;
        self.upgrading.store(websocket, Ordering::Release);
        let mut response = sender.send_request(request).await.map_err(|error| unreachable(&error))?;
        if let Some(from_inside) = from_inside
            && response.status() == StatusCode::SWITCHING_PROTOCOLS
        {
            let from_outside = hyper::upgrade::on(&mut response);
            #[expect(clippy::disallowed_methods, reason = "aborted when its handle is dropped")]
            let tunnel = tokio::spawn(async move {
                if let (Ok(inside), Ok(outside)) = tokio::join!(from_inside, from_outside) {
                    let (mut inside, mut outside) = (TokioIo::new(inside), TokioIo::new(outside));
                    let _ = tokio::io::copy_bidirectional(&mut inside, &mut outside).await;
                }
            });
            *self.tunnel.lock() = Some(AbortOnDropHandle::new(tunnel));
            return Ok(response.map(Either::Left));
        }
        self.upgrading.store(false, Ordering::Release);
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(unreachable(&"it switched to a protocol that was not requested"));
        }
        request::drop_hops(response.headers_mut());
        // It would name a way around egress.
        response.headers_mut().remove("alt-svc");
        if self.over.is_cancelled() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response.map(Either::Left))
    }
}

/// Our own answer, after which the connection ends.
fn refusal(status: StatusCode, why: &str) -> Response<Body> {
    let mut response = Response::new(Either::Right(Full::new(Bytes::from(format!("{why}\n")))));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert("x-coffer-refused", HeaderValue::from_static("headers"));
    response
}

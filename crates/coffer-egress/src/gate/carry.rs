//! Sends a request to a forge and returns its answer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use coffer_core::network::{
    Class, Destination, GitHost, GitRoute, HostName, Policy, RefusedKind, Rule, pass_on_site,
};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tokio_util::task::AbortOnDropHandle;

use crate::connection;
use crate::dns::Family;
use crate::inject::{self, Outside};
use crate::refusal::Cause;
use crate::relay::Activity;
use crate::sandbox::{Passing, Sandbox, refused};

/// Most addresses of a forge that are tried.
const MOST_ATTEMPTS: usize = 4;
const MOST_BUFFER: usize = 64 * 1024;
const MOST_HEADERS: usize = 128;
/// How long a forge may take to answer a push or a pack.
const ANSWER_PATIENCE: Duration = Duration::from_secs(15 * 60);

/// The body of an answer.
pub(super) type Answer = UnsyncBoxBody<Bytes, io::Error>;

/// The body of a request: the part that was already read comes first.
pub(super) struct Sent {
    first: Option<Bytes>,
    rest: Option<Incoming>,
}

impl Sent {
    pub(super) fn new(first: Bytes, rest: Incoming) -> Self {
        Self { rest: Some(rest), ..Self::whole(first) }
    }

    /// A body of our own.
    pub(super) fn whole(body: Bytes) -> Self {
        Self { first: Some(body).filter(|body| !body.is_empty()), rest: None }
    }
}

/// The target of a request.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) host: GitHost,
    /// Whether it may be at a private address.
    pub(super) on_site: bool,
}

impl Target {
    /// The forge of a repository.
    pub(super) fn of(route: &GitRoute) -> Self {
        Self { host: route.upstream.host().clone(), on_site: route.on_site }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        loop {
            match ready!(Pin::new(&mut *rest).poll_frame(cx)) {
                // Drop trailers: they are hop-by-hop.
                Some(Ok(frame)) if frame.is_trailers() => {}
                frame => return Poll::Ready(frame),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, Bytes::len) as u64;
        let rest = self.rest.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(first + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(first + upper);
        }
        hint
    }
}

/// The body of an answer, which ends when the request may no longer pass.
struct Carried<R> {
    body: Incoming,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _passing: Passing<R>,
    _driver: AbortOnDropHandle<()>,
}

impl<R: Unpin> Body for Carried<R> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(io::ErrorKind::ConnectionAborted.into())));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Sends a request to its target; returns when the answer begins.
pub(super) async fn send<R: Unpin + Send + 'static>(
    sandbox: &Arc<Sandbox>,
    passing: Passing<R>,
    target: Target,
    request: Request<Sent>,
) -> Result<Response<Answer>, String> {
    let stream = dial(sandbox, &passing.policy, &target).await?;
    stream.set_nodelay(true).ok();
    let activity = Arc::new(Activity::new());
    let outside = Outside { stream, sandbox: sandbox.clone(), activity: activity.clone() };
    match target.host {
        GitHost::Server(_) => exchange(sandbox, passing, activity, outside, request).await,
        GitHost::Forge(name, _) => {
            let authority = sandbox.authority().ok_or("its certificate cannot be checked yet")?;
            let outside = inject::connect(&authority, &name, outside).await?;
            exchange(sandbox, passing, activity, outside, request).await
        }
    }
}

async fn exchange<O, R>(
    sandbox: &Arc<Sandbox>,
    passing: Passing<R>,
    activity: Arc<Activity>,
    outside: O,
    request: Request<Sent>,
) -> Result<Response<Answer>, String>
where
    O: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    R: Unpin + Send + 'static,
{
    let mut client = hyper::client::conn::http1::Builder::new();
    client.max_buf_size(MOST_BUFFER).max_headers(MOST_HEADERS);
    let broken = |error: hyper::Error| error.to_string();
    let (mut sender, connection) = client.handshake(TokioIo::new(outside)).await.map_err(broken)?;
    let settings = sandbox.settings.clone();
    #[expect(clippy::disallowed_methods, reason = "aborted when its handle is dropped")]
    let driver = AbortOnDropHandle::new(tokio::spawn(async move {
        tokio::select! {
            carried = connection => {
                if let Err(error) = carried {
                    tracing::debug!(%error, "the connection to the forge broke during a git request");
                }
            }
            () = activity.ceased(&settings) => {}
        }
    }));
    let answered = timeout(ANSWER_PATIENCE, sender.send_request(request)).await;
    let answer = answered.map_err(|_| "it does not answer".to_string())?.map_err(broken)?;
    let cut = Box::pin(passing.cut.clone().cancelled_owned());
    let carried = |body| Carried { body, cut, _passing: passing, _driver: driver }.boxed_unsync();
    Ok(answer.map(carried))
}

async fn dial(sandbox: &Arc<Sandbox>, policy: &Policy, target: &Target) -> Result<TcpStream, String> {
    let within = sandbox.settings.dial;
    match &target.host {
        // The only way to the host itself: the server named its own address.
        GitHost::Server(address) => {
            let dialled = timeout(within, sandbox.seams.dialer.dial_server(*address)).await;
            dialled.map_err(|_| "the server does not answer".to_string())?.map_err(|error| error.to_string())
        }
        GitHost::Forge(name, port) => dial_forge(sandbox, policy, name, *port, target.on_site, within).await,
    }
}

/// Dials a forge by addresses that we looked up and that pass the walls, whatever the sandbox itself may
/// reach. A forge that the operator allows may be at a private address, and is never dialled through the
/// sandbox's proxy.
async fn dial_forge(
    sandbox: &Arc<Sandbox>,
    policy: &Policy,
    name: &HostName,
    port: u16,
    on_site: bool,
    within: Duration,
) -> Result<TcpStream, String> {
    let (walls, mut attempts) = (sandbox.walls(), 0);
    let mut walled: Option<(IpAddr, Class)> = None;
    for family in [Family::V4, Family::V6] {
        let found = sandbox.look_up(name, family).await;
        for address in found.map(|found| found.addresses).unwrap_or_default() {
            let passed = if on_site { pass_on_site(address) } else { walls.pass(address) };
            let address = match passed {
                Ok(address) => address,
                Err(class) => {
                    walled = Some((address, class));
                    continue;
                }
            };
            if attempts == MOST_ATTEMPTS {
                break;
            }
            attempts += 1;
            let to = SocketAddr::new(address, port);
            let dialled = if on_site {
                timeout(within, sandbox.seams.dialer.dial_server(to)).await.ok().and_then(Result::ok)
            } else {
                let dialling = connection::dial(sandbox, policy.proxy(), to);
                timeout(within, dialling).await.ok().and_then(Result::ok)
            };
            if let Some(stream) = dialled {
                return Ok(stream);
            }
        }
    }
    match walled {
        Some((address, class)) if attempts == 0 => {
            let destination = Destination { name: Some(name.clone()), address, port };
            sandbox.refuse(refused(RefusedKind::Connection, destination), &Cause::Rule(Rule::Never(class)));
            Err(format!("{name} has a {class} address, which sandboxes cannot reach"))
        }
        _ => Err(format!("{name} does not answer")),
    }
}

//! Connections into a sandbox and one request over them. Everything that comes back is hostile.

use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::answer::Refusal;
use super::inward::Inward;
use super::lane::{Link, Slot};
use super::tls;
use super::upload::{Progress, Upload};
use coffer_guest::Target;

/// A Unix socket connects at once or its backlog is full.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// How long agentd may take to connect to a port on its loopback.
const TUNNEL_WITHIN: Duration = Duration::from_secs(15);

/// How long an answer may take to begin once the request was sent. Long polls are slow on purpose.
const ANSWER_WITHIN: Duration = Duration::from_secs(15 * 60);

/// After a connection closed without an answer: how long to wait for the notice that the sandbox ended.
const NEWS_WITHIN: Duration = Duration::from_millis(300);

/// The head of an answer; also bounds trailers.
const MOST_HEAD: usize = 64 * 1024;

/// How far to read ahead of a slow client, per connection.
const MOST_BUFFERED: usize = 128 * 1024;

/// An answer whose body is still to come.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) response: Response<Incoming>,
    pub(super) link: Link,
}

/// Sends a request to agentd itself.
pub(super) async fn ask_agentd(
    slot: &Slot,
    target: &Target,
    mut request: Request<Upload>,
    progress: &Arc<Progress>,
) -> Result<Exchange, Refusal> {
    loop {
        let mut link = match slot.idle_link() {
            Some(link) => link,
            None => match target.spare.take() {
                Some(spare) => open(spare, Reuse::Yes).await?,
                None => break,
            },
        };
        match ask(slot, &mut link, request, progress).await {
            Ok(response) => return Ok(Exchange { response, link }),
            // It was closed before it took any of the request.
            Err(Unanswered { unsent: Some(unsent), .. }) => request = *unsent,
            Err(failure) => return Err(failure.refusal),
        }
    }
    let stream = until_gone(slot, connect(&target.socket)).await?;
    let mut link = open(stream, Reuse::Yes).await?;
    match ask(slot, &mut link, request, progress).await {
        Ok(response) => Ok(Exchange { response, link }),
        Err(failure) => Err(failure.refusal),
    }
}

/// Sends a request to a server inside the sandbox, over its own tunnel.
pub(super) async fn ask_port(
    slot: &Slot,
    socket: &Path,
    port: u16,
    speaks: Speaks,
    request: Request<Upload>,
    progress: &Arc<Progress>,
) -> Result<Exchange, Refusal> {
    let stream = until_gone(slot, tunnel(socket, port)).await?;
    let mut link = match speaks {
        Speaks::Plain => open(stream, Reuse::No).await?,
        Speaks::Tls => {
            let name = tls::server_name(request.headers());
            let stream = until_gone(slot, async {
                match timeout(TUNNEL_WITHIN, tls::connect(stream, name)).await {
                    Ok(stream) => stream.map_err(|_| Refusal::NotTls),
                    Err(_) => Err(Refusal::TooSlow),
                }
            });
            open(stream.await?, Reuse::No).await?
        }
    };
    match ask(slot, &mut link, request, progress).await {
        Ok(response) => Ok(Exchange { response, link }),
        Err(failure) => Err(failure.refusal),
    }
}

/// The transport that a server inside expects under HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaks {
    Plain,
    Tls,
}

/// No answer came.
#[derive(Debug)]
struct Unanswered {
    refusal: Refusal,
    /// The request, if none of it was sent.
    unsent: Option<Box<Request<Upload>>>,
}

async fn ask(
    slot: &Slot,
    link: &mut Link,
    request: Request<Upload>,
    progress: &Arc<Progress>,
) -> Result<Response<Incoming>, Unanswered> {
    let mut answer = pin!(link.sender.try_send_request(request));
    let mut gone = pin!(slot.gone());
    loop {
        // An upload counts as life: the clock starts again with every piece of it.
        let silent = Duration::from_millis(progress.last.idle_ms().unsigned_abs());
        let left = ANSWER_WITHIN.saturating_sub(silent);
        if left.is_zero() {
            return Err(Unanswered { refusal: Refusal::TooSlow, unsent: None });
        }
        tokio::select! {
            biased;
            answer = &mut answer => {
                let mut error = match answer {
                    Ok(response) => {
                        progress.answered();
                        return Ok(response);
                    }
                    Err(error) => error,
                };
                let unsent = error.take_message().map(Box::new);
                let error = error.into_error();
                tracing::debug!("no answer from inside the sandbox: {error:?}");
                let refusal = if error.is_parse() || error.is_parse_status() || error.is_parse_too_large() {
                    Refusal::NotHttp
                } else if unsent.is_none() && timeout(NEWS_WITHIN, &mut gone).await.is_ok() {
                    Refusal::NotFound
                } else {
                    Refusal::NoAnswer
                };
                return Err(Unanswered { refusal, unsent });
            }
            () = &mut gone => return Err(Unanswered { refusal: Refusal::NotFound, unsent: None }),
            () = sleep(left) => {}
        }
    }
}

/// Does `work` unless the sandbox ends first.
async fn until_gone<T>(slot: &Slot, work: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    tokio::select! {
        biased;
        done = work => done,
        () = slot.gone() => Err(Refusal::NotFound),
    }
}

/// Whether a connection outlives its first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reuse {
    Yes,
    No,
}

async fn open<S>(stream: S, reuse: Reuse) -> Result<Link, Refusal>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (stream, deaf) = Inward::new(stream);
    let (sender, connection) = http1::Builder::new()
        // Some programs expect the usual spelling, and E2B's proxy sends it.
        .title_case_headers(reuse == Reuse::No)
        .max_header_size(MOST_HEAD)
        .max_buf_size(MOST_BUFFERED)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|_| Refusal::NoAnswer)?;
    #[expect(clippy::disallowed_methods, reason = "aborted when its handle is dropped")]
    let driver = tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!("a connection into a sandbox ended: {error:?}");
        }
    });
    Ok(Link { sender, reusable: reuse == Reuse::Yes, deaf, _driver: AbortOnDropHandle::new(driver) })
}

/// Connects to agentd's socket.
async fn connect(socket: &Path) -> Result<UnixStream, Refusal> {
    match timeout(CONNECT_WITHIN, coffer_guest::connect(socket)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error))
            if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) =>
        {
            Err(Refusal::NotFound)
        }
        Ok(Err(error)) => {
            tracing::warn!("could not connect to `{}`: {error}", socket.display());
            Err(Refusal::NoAnswer)
        }
        Err(_) => Err(Refusal::TooSlow),
    }
}

/// Connects to a port inside the sandbox.
async fn tunnel(socket: &Path, port: u16) -> Result<UnixStream, Refusal> {
    let mut stream = connect(socket).await?;
    match timeout(TUNNEL_WITHIN, coffer_guest::ask_for_tunnel(&mut stream, port)).await {
        Ok(Ok(StatusCode::OK)) => Ok(stream),
        Ok(Ok(StatusCode::BAD_GATEWAY)) => Err(Refusal::PortClosed),
        Ok(Ok(status)) => {
            tracing::debug!("agentd answered {status} to a request for a tunnel to port {port}");
            Err(Refusal::NoAnswer)
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => Err(Refusal::NotHttp),
        Ok(Err(_)) => Err(Refusal::NoAnswer),
        Err(_) => Err(Refusal::TooSlow),
    }
}

//! Accepts connections: on the server's socket, and on the port for callers inside the sandbox.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;

use crate::agent::Agent;
use crate::conduit::{Conduit, Spliced};
use crate::entrance::Connections;
use crate::route::{Door, answer};

/// Most connections. Those of the server and those from inside have separate limits.
const SERVER_CONNECTIONS: usize = 4096;
const INSIDE_CONNECTIONS: usize = 256;

/// The send buffer towards the server: with less, the two sides wake each other more often.
const SEND_BUFFER: usize = 1 << 20;

/// The request line and all headers.
const HEAD_LIMIT: usize = 64 << 10;

/// How long a caller inside may take to send a head. The server keeps idle connections for reuse.
const INSIDE_HEAD_TIME: Duration = Duration::from_secs(60);
const SERVER_HEAD_TIME: Duration = Duration::from_secs(3600);

/// Pause after a failed accept: descriptors have run out, and an immediate retry does not help.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub(crate) async fn serve_unix(agent: Arc<Agent>, listener: UnixListener, connections: Connections) {
    let accept = |context: &mut Context<'_>| {
        listener.poll_accept(context).map_ok(|(stream, _)| {
            // The host may allow less.
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER);
            let conduit = Conduit::default();
            (Spliced::new(stream, conduit.clone()), Some(conduit))
        })
    };
    serve_all(agent, Door::Server, SERVER_CONNECTIONS, connections, accept).await;
}

pub(crate) async fn serve_tcp(agent: Arc<Agent>, listener: TcpListener) {
    let accept = |context: &mut Context<'_>| {
        let at_once = |(stream, _): (TcpStream, _)| stream.set_nodelay(true).map(|()| (stream, None));
        listener.poll_accept(context).map(|accepted| accepted.and_then(at_once))
    };
    serve_all(agent, Door::Inside, INSIDE_CONNECTIONS, Connections::default(), accept).await;
}

async fn serve_all<Io>(
    agent: Arc<Agent>,
    door: Door,
    at_once: usize,
    connections: Connections,
    mut accept: impl FnMut(&mut Context<'_>) -> Poll<io::Result<(Io, Option<Conduit>)>>,
) where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let places = Arc::new(Semaphore::new(at_once));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match poll_fn(&mut accept).await {
            Ok((stream, conduit)) => {
                let (agent, own) = (Arc::clone(&agent), connections.clone());
                connections.spawn(async move {
                    serve(agent, door, own, stream, conduit).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn serve<Io>(
    agent: Arc<Agent>,
    door: Door,
    connections: Connections,
    stream: Io,
    conduit: Option<Conduit>,
) where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Stand-ins are passed on, never copied.
    let vectored = conduit.is_some();
    let service = service_fn(move |mut request: Request<Incoming>| {
        let agent = Arc::clone(&agent);
        if let Some(conduit) = &conduit {
            request.extensions_mut().insert(conduit.clone());
        }
        // Upgraded connections, such as tunnels, belong to them too.
        request.extensions_mut().insert(connections.clone());
        async move { Ok::<_, Infallible>(answer(agent, door, request).await) }
    });
    let head_time = match door {
        Door::Server => SERVER_HEAD_TIME,
        Door::Inside => INSIDE_HEAD_TIME,
    };
    // Ignore errors of a connection: the client sees them itself.
    let mut builder = http1::Builder::new();
    if vectored {
        builder.writev(true);
    }
    let _ended = builder
        .timer(TokioTimer::new())
        .header_read_timeout(head_time)
        .max_buf_size(HEAD_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
}

/// The listener that our parent has bound, as descriptor 3.
pub(crate) fn inherited() -> io::Result<std::os::unix::net::UnixListener> {
    use std::os::fd::FromRawFd as _;

    const INHERITED: i32 = 3;
    // SAFETY: only asks about the descriptor; an unused number is an error, not a hazard.
    let flags = unsafe { libc::fcntl(INHERITED, libc::F_GETFD) };
    if flags < 0 {
        return Err(io::Error::other("descriptor 3 is not open"));
    }
    // SAFETY: open, as just seen, and ours: it was passed to us and nothing else has taken it.
    let listener = unsafe { std::os::unix::net::UnixListener::from_raw_fd(INHERITED) };
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC)?;
    if !rustix::net::sockopt::socket_acceptconn(&listener)? {
        return Err(io::Error::other("descriptor 3 does not listen"));
    }
    Ok(listener)
}

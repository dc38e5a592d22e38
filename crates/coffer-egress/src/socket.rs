//! Sockets: accepting, dialling, and the original destination of a connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use async_trait::async_trait;
use rustix::net::{AddressFamily, SocketType, sockopt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio_util::sync::CancellationToken;

/// Pause after an error that would repeat at once, such as no free descriptor.
pub(crate) const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);

/// Opens connections to the outside.
#[async_trait]
pub trait Dialer: Send + Sync + fmt::Debug {
    async fn dial(&self, address: SocketAddr) -> io::Result<TcpStream>;

    /// Dials the server of this installation, or a forge of the operator's own, which may be this machine.
    async fn dial_server(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address).await
    }
}

/// Dials from this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostDialer;

#[async_trait]
impl Dialer for HostDialer {
    async fn dial(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        // If both ends have the same address, it is this machine, by an address that it got since we started.
        if stream.local_addr()?.ip() == stream.peer_addr()?.ip() {
            abort(&stream);
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(stream)
    }
}

/// Finds the original destination of an accepted connection.
pub trait OriginalDestination: Send + Sync + fmt::Debug {
    fn of(&self, stream: &TcpStream) -> io::Result<SocketAddr>;
}

/// Asks the kernel, which remembers what its `REDIRECT` rule changed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Redirected;

impl OriginalDestination for Redirected {
    fn of(&self, stream: &TcpStream) -> io::Result<SocketAddr> {
        Ok(match stream.local_addr()? {
            SocketAddr::V4(_) => sockopt::ip_original_dst(stream)?.into(),
            SocketAddr::V6(_) => sockopt::ipv6_original_dst(stream)?.into(),
        })
    }
}

/// The next connection, or `None` when it is time to stop.
pub(crate) async fn accept(listener: &TcpListener, stop: &CancellationToken) -> Option<TcpStream> {
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => return Some(stream),
            Err(error) => {
                tracing::debug!(%error, "could not accept a connection");
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

/// Takes over a descriptor that should be a listening TCP socket.
pub(crate) fn adopt_listener(descriptor: OwnedFd) -> io::Result<TcpListener> {
    check(&descriptor, SocketType::STREAM)?;
    if !sockopt::socket_acceptconn(&descriptor)? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket does not listen"));
    }
    let listener = std::net::TcpListener::from(descriptor);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Takes over a descriptor that should be a bound UDP socket.
pub(crate) fn adopt_datagrams(descriptor: OwnedFd) -> io::Result<UdpSocket> {
    check(&descriptor, SocketType::DGRAM)?;
    let socket = std::net::UdpSocket::from(descriptor);
    if socket.local_addr()?.port() == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket is not bound"));
    }
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

fn check(descriptor: &OwnedFd, kind: SocketType) -> io::Result<()> {
    let family = sockopt::socket_domain(descriptor)?;
    if sockopt::socket_type(descriptor)? != kind
        || !matches!(family, AddressFamily::INET | AddressFamily::INET6)
    {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket is of another kind"));
    }
    Ok(())
}

/// Makes `stream` end by a reset, so that the other side does not take it for a clean end.
pub(crate) fn abort(stream: &TcpStream) {
    if let Err(error) = sockopt::set_socket_linger(stream, Some(Duration::ZERO)) {
        tracing::debug!(%error, "could not set a connection to end with a reset");
    }
}

//! The sockets inside a sandbox's network namespace at which its connections and questions arrive.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::thread::ThreadNameSpaceType;

use super::redirect::{CONNECTIONS, Families, QUESTIONS};

/// Connections that may wait while egress is disconnected.
const BACKLOG: i32 = 512;

/// For connections, questions by UDP and questions by TCP, in this order: a socket for each family.
/// They keep their namespace alive.
#[derive(Debug)]
pub(crate) struct Listeners(Vec<OwnedFd>);

impl Listeners {
    /// How many kinds there are.
    const KINDS: usize = 3;

    /// Opens them in the current network namespace.
    pub(crate) fn open(families: Families) -> Result<Self, Errno> {
        let here: &[SocketAddr] = match families {
            Families::V4 => &[SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)],
            Families::Both => &[
                SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
                SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0),
            ],
        };
        let mut sockets = Vec::with_capacity(Self::KINDS * here.len());
        for (kind, port) in [
            (SocketType::STREAM, CONNECTIONS),
            (SocketType::DGRAM, QUESTIONS),
            (SocketType::STREAM, QUESTIONS),
        ] {
            for &address in here {
                sockets.push(open(kind, SocketAddr::new(address.ip(), port))?);
            }
        }
        Ok(Self(sockets))
    }

    /// Opens them where that process is.
    pub(super) fn open_in(process: BorrowedFd<'_>, families: Families) -> io::Result<Self> {
        std::thread::scope(|scope| {
            // A separate thread, which stays in that namespace until it ends.
            let opening = std::thread::Builder::new().spawn_scoped(scope, || {
                rustix::thread::move_into_thread_name_spaces(process, ThreadNameSpaceType::NETWORK)?;
                Self::open(families)
            })?;
            Ok(opening.join().map_err(|_| io::Error::other("a thread panicked"))??)
        })
    }

    /// Takes over sockets that another process opened.
    pub(crate) fn of(sockets: Vec<OwnedFd>) -> Option<Self> {
        (!sockets.is_empty() && sockets.len().is_multiple_of(Self::KINDS)).then_some(Self(sockets))
    }

    /// How many there are of each kind.
    pub(super) fn of_each_kind(&self) -> usize {
        self.0.len() / Self::KINDS
    }

    pub(crate) fn all(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd).collect()
    }
}

fn open(kind: SocketType, address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if kind == SocketType::STREAM {
        // Connections that a dead egress had may linger at the port; this does not let another process take
        // the listener's port.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    if kind == SocketType::STREAM {
        rustix::net::listen(&socket, BACKLOG)?;
    }
    Ok(socket)
}

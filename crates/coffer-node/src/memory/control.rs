//! Orders to agentd, on the socket that it has in its sandbox's network namespace.
//!
//! Any process in the sandbox might have taken that name. So the node asks the kernel which process listens,
//! and gives a listener only to the sandbox's first process. agentd in turn accepts orders only from outside
//! its sandbox.

use std::io::{self, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use coffer_wire::agentd::{CONTROL_SOCKET, ControlOrder};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt};
use rustix::thread::ThreadNameSpaceType;

/// Connections are closed at once; an overloaded machine takes longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Gives an order to the first process of a sandbox and waits until it is done.
pub(crate) fn order(
    first: BorrowedFd<'_>,
    pid: i32,
    order: ControlOrder,
    listener: Option<&OwnedFd>,
) -> io::Result<()> {
    let mut stream = connect(first)?;
    let listens = sockopt::socket_peercred(&stream)?.pid;
    if listens.as_raw_nonzero().get() != pid {
        return Err(io::Error::other("the process at the socket is not agentd"));
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let passed: Vec<_> = listener.iter().map(|listener| std::os::fd::AsFd::as_fd(*listener)).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !passed.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&passed));
    }
    sendmsg(&stream, &[IoSlice::new(&[order.byte()])], &mut ancillary, SendFlags::NOSIGNAL)?;
    // Expect one answer and then the end: agentd closes the connection.
    let mut answer = Vec::new();
    stream.by_ref().take(2).read_to_end(&mut answer)?;
    if answer == [order.byte()] {
        Ok(())
    } else {
        Err(io::Error::other("agentd did not confirm the request"))
    }
}

fn connect(first: BorrowedFd<'_>) -> io::Result<UnixStream> {
    let address = SocketAddr::from_abstract_name(CONTROL_SOCKET)?;
    std::thread::scope(|scope| {
        // A separate thread, which stays in that namespace until it ends.
        let connecting = std::thread::Builder::new().spawn_scoped(scope, || {
            rustix::thread::move_into_thread_name_spaces(first, ThreadNameSpaceType::NETWORK)?;
            UnixStream::connect_addr(&address)
        })?;
        connecting.join().map_err(|_| io::Error::other("a thread panicked"))?
    })
}

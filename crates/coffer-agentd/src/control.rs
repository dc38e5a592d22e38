//! Commands of the node while it saves our memory, on an abstract socket in our network namespace.
//!
//! The socket has no name on any disk, so it can be saved and restored with us. Every program in the sandbox
//! can connect to it. But the kernel reports the peer's pid, and for a process outside our pid namespace that
//! is 0, which no process inside can have: only the node is obeyed. The node in turn checks the listener's
//! pid, and talks only to the sandbox's first process.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net as blocking;
use std::sync::Arc;
use std::time::Duration;

use coffer_wire::agentd::{CONTROL_SOCKET, ControlOrder};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::{UnixListener, UnixStream};

use crate::entrance::Entrance;

/// A command is one byte, which the node sends right after it connects.
const PATIENCE: Duration = Duration::from_secs(5);

/// Pause after a failed accept: descriptors have run out, and an immediate retry does not help.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn bind() -> io::Result<UnixListener> {
    let address = blocking::SocketAddr::from_abstract_name(CONTROL_SOCKET)?;
    let listener = blocking::UnixListener::bind_addr(&address)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Serves one connection after another: there is one node, with one command at a time.
pub(crate) async fn serve(listener: UnixListener, entrance: Arc<Entrance>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) if is_outside(&stream) => {
                let _unheard = tokio::time::timeout(PATIENCE, obey(stream, &entrance)).await;
            }
            Ok(_stranger) => {}
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Whether the peer is outside this sandbox.
fn is_outside(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.pid() == Some(0))
}

/// Carries out a command and confirms it; then closes the connection, so that it is not saved with us.
async fn obey(mut stream: UnixStream, entrance: &Entrance) -> io::Result<()> {
    let (order, listener) = stream.async_io(Interest::READABLE, || receive(&stream)).await?;
    let done = match (ControlOrder::of(order), listener) {
        (Some(ControlOrder::Shut), _) => entrance.shut().await,
        (Some(ControlOrder::Open), Some(listener)) => {
            entrance.reopen(listening(listener)?).await;
            true
        }
        _ => false,
    };
    if done {
        stream.write_all(&[order]).await?;
    }
    Ok(())
}

fn receive(stream: &UnixStream) -> io::Result<(u8, Option<OwnedFd>)> {
    let mut order = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [io::IoSliceMut::new(&mut order)];
    let received = recvmsg(stream.as_fd(), &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((order[0], descriptor))
}

fn listening(descriptor: OwnedFd) -> io::Result<UnixListener> {
    if !sockopt::socket_acceptconn(&descriptor)? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let listener = blocking::UnixListener::from(descriptor);
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_is_inside_is_not_obeyed() {
        // Another process of the same namespace would look the same.
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(!is_outside(&one));
    }

    #[tokio::test]
    async fn orders_are_obeyed_and_repeated() {
        let home = tempfile::tempdir().unwrap();
        let entrance = Entrance::new(crate::agent::Agent::new());
        entrance.open(UnixListener::bind(home.path().join("socket")).unwrap());
        for (order, answer) in [(b"s", &b"s"[..]), (b"o", b""), (b"?", b"")] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.try_write(order).unwrap();
            let _refused = obey(theirs, &entrance).await;
            let mut said = [0; 2];
            let length = ours.readable().await.and_then(|()| ours.try_read(&mut said)).unwrap();
            assert_eq!(&said[..length], answer);
        }
        assert!(UnixStream::connect(home.path().join("socket")).await.is_err());
    }
}

//! Progress of a new sandbox's set-up, reported by its first process until it becomes agentd.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::packet;

/// The packet that brings the sockets of its network. Any other says why the set-up failed.
pub(super) const LISTENERS: &[u8] = b"listeners";

/// The node's end of the socket that the first process holds until it executes agentd.
#[derive(Debug)]
pub(crate) struct Progress(OwnedFd);

impl Progress {
    pub(super) fn of(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Waits until agentd runs, and returns the sockets that it sent; or the reason why it does not.
    pub(crate) async fn finish(self) -> io::Result<Result<Vec<OwnedFd>, String>> {
        rustix::io::ioctl_fionbio(&self.0, true)?;
        // SAFETY: an `OwnedFd` stays open, and the same descriptor, until it is dropped.
        let socket = unsafe { AsyncFd::register_with_interest(self.0, Interest::READABLE) }?;
        let mut sockets = Vec::new();
        loop {
            let receive = |socket: &OwnedFd| Ok(packet::receive(socket, RecvFlags::DONTWAIT)?);
            match socket.async_io(Interest::READABLE, receive).await? {
                None => return Ok(Ok(sockets)),
                Some((bytes, descriptors)) if bytes == LISTENERS => sockets = descriptors,
                Some((why, _)) => return Ok(Err(String::from_utf8_lossy(&why).into_owned())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::SendFlags;
    use std::os::fd::AsFd as _;

    #[tokio::test]
    async fn sockets_come_up_and_the_end_means_success() {
        let (ours, theirs) = packet::pair().unwrap();
        let (other, _) = packet::pair().unwrap();
        packet::send(&theirs, LISTENERS, &[other.as_fd()], SendFlags::empty()).unwrap();
        drop(theirs);
        assert_eq!(Progress::of(ours).finish().await.unwrap().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_reason_is_a_failure_whatever_came_before() {
        let (ours, theirs) = packet::pair().unwrap();
        packet::send(&theirs, LISTENERS, &[ours.as_fd()], SendFlags::empty()).unwrap();
        packet::send(&theirs, b"could not", &[], SendFlags::empty()).unwrap();
        drop(theirs);
        assert_eq!(Progress::of(ours).finish().await.unwrap().unwrap_err(), "could not");
    }
}

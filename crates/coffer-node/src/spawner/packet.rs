//! Packets with descriptors over a `SOCK_SEQPACKET` pair.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// No packet is longer. A template of fifty layers stays far below.
pub(super) const LONGEST: usize = 128 * 1024;
/// No packet carries more descriptors.
pub(super) const MOST_DESCRIPTORS: usize = 64;

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS));

/// Both ends close on exec.
pub(super) fn pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

pub(super) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<()> {
    if bytes.len() > LONGEST || descriptors.len() > MOST_DESCRIPTORS {
        return Err(Errno::MSGSIZE);
    }
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::MSGSIZE);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut control, flags)
    })?;
    Ok(())
}

/// One packet, or `None` if the other side has closed.
pub(super) fn receive(
    socket: impl AsFd,
    flags: RecvFlags,
) -> rustix::io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = match rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
    }) {
        // The other side closed with unread packets.
        Err(Errno::CONNRESET) => return Ok(None),
        received => received?,
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    bytes.truncate(received.bytes);
    Ok(Some((bytes, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_brings_its_descriptors() {
        let (left, right) = pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        send(&left, b"hello", &[write.as_fd()], SendFlags::empty()).unwrap();
        drop(write);
        let (bytes, mut descriptors) = receive(&right, RecvFlags::empty()).unwrap().unwrap();
        assert_eq!((bytes.as_slice(), descriptors.len()), (b"hello".as_slice(), 1));
        rustix::io::write(descriptors.pop().unwrap(), b"x").unwrap();
        let mut byte = [0];
        assert_eq!(rustix::io::read(&read, &mut byte).unwrap(), 1);
        drop(left);
        assert!(receive(&right, RecvFlags::empty()).unwrap().is_none());
    }

    #[test]
    fn an_overlong_packet_is_refused() {
        let (left, _right) = pair().unwrap();
        let error = send(&left, &vec![0; LONGEST + 1], &[], SendFlags::empty()).unwrap_err();
        assert_eq!(error, Errno::MSGSIZE);
    }
}

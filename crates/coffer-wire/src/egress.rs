//! The node's RPC to egress, over a Unix stream socket.
//!
//! Frames are those of [`crate::node`]: a big-endian `u32` length, then that much JSON; requests carry
//! a number that their reply repeats. The node sends [`ToEgress`], egress answers [`FromEgress`]. The
//! sockets of [`Request::Add`] come as descriptors (`SCM_RIGHTS`) with the first byte of its length:
//! the node writes by [`send`], egress reads by [`receive`]. Replies carry none, and are read and written
//! by [`read_frame`](crate::node::read_frame) and [`write_frame`](crate::node::write_frame).
//!
//! The first request is [`Request::Hello`]. One node at a time: a new connection is a new node, and ends the
//! previous one. A malformed frame ends the connection; sandboxes are still served.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use coffer_core::SandboxId;
use coffer_core::network::{Policy, Refusals, Traffic};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Raised whenever the meaning of a frame changes.
pub const PROTOCOL: u32 = 1;

/// The descriptors of a [`Request::Add`], in this order: for IPv4 and, if the sandbox has it, IPv6 a TCP
/// listener for connections; then the same for UDP sockets for DNS, and for TCP listeners for DNS.
pub const MOST_DESCRIPTORS: usize = 6;

/// The longest request; a policy with both lists full is shorter.
const LONGEST_REQUEST: usize = 1024 * 1024;

const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS));

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ToEgress {
    pub id: u64,
    pub request: Request,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FromEgress {
    pub id: u64,
    pub result: Result<Reply, EgressError>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    Hello {
        protocol: u32,
    },
    /// Starts serving a sandbox. If it is already served, only the policy is replaced, and the descriptors
    /// are closed.
    Add {
        sandbox: SandboxId,
        policy: Policy,
        /// How many descriptors of each kind there are.
        tcp: usize,
        dns_udp: usize,
        dns_tcp: usize,
    },
    /// Unknown ids are allowed.
    Remove {
        sandbox: SandboxId,
    },
    /// After the answer, no connection that the policy forbids is open or will be opened.
    ReplacePolicy {
        sandbox: SandboxId,
        policy: Policy,
    },
    Refusals {
        sandbox: SandboxId,
        after: u64,
    },
    /// The traffic of each sandbox; also lists the served sandboxes.
    Traffic,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Reply {
    Hello {
        protocol: u32,
    },
    Done,
    /// How many open connections the new policy cut.
    Replaced {
        cut: usize,
    },
    Refusals(Refusals),
    Traffic {
        sandboxes: Vec<(SandboxId, Traffic)>,
    },
}

/// Why egress refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct EgressError {
    pub code: EgressErrorCode,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressErrorCode {
    ProtocolMismatch,
    UnknownSandbox,
    /// The descriptors do not match the request.
    BadDescriptors,
    /// The limit of sandboxes is reached.
    NoCapacity,
}

/// Writes one frame, with descriptors on its first byte. Not cancel-safe: a dropped call leaves the stream
/// unusable.
pub async fn send<T: Serialize>(
    stream: &UnixStream,
    frame: &T,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let body = serde_json::to_vec(frame).map_err(|error| invalid(error.to_string()))?;
    let length = u32::try_from(body.len()).ok().filter(|&length| length as usize <= LONGEST_REQUEST);
    let length = length.ok_or_else(|| invalid(format!("a request of {} bytes is too long", body.len())))?;
    if descriptors.len() > MOST_DESCRIPTORS {
        return Err(invalid(format!("{} descriptors are too many", descriptors.len())));
    }
    let bytes = [length.to_be_bytes().as_slice(), &body].concat();
    let mut sent = 0;
    while sent < bytes.len() {
        let descriptors = if sent == 0 { descriptors } else { &[] };
        let write = || send_some(stream.as_fd(), &bytes[sent..], descriptors);
        sent += stream.async_io(Interest::WRITABLE, write).await?;
    }
    Ok(())
}

/// Reads one frame and the descriptors of its first byte; `None` at the end of the stream. Descriptors at
/// other places are closed. Not cancel-safe: a dropped call leaves the stream unusable.
pub async fn receive<T: DeserializeOwned>(stream: &UnixStream) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut length = [0; 4];
    let (mut read, descriptors) =
        stream.async_io(Interest::READABLE, || receive_some(stream.as_fd(), &mut length)).await?;
    if read == 0 {
        return Ok(None);
    }
    while read < length.len() {
        read += read_on(stream, &mut length[read..]).await?;
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > LONGEST_REQUEST {
        return Err(invalid(format!("a request of {length} bytes is longer than {LONGEST_REQUEST}")));
    }
    let mut body = vec![0; length];
    let mut read = 0;
    while read < length {
        read += read_on(stream, &mut body[read..]).await?;
    }
    let frame = serde_json::from_slice(&body).map_err(|error| invalid(error.to_string()))?;
    Ok(Some((frame, descriptors)))
}

/// Reads without room for descriptors, so that the kernel closes any.
async fn read_on(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<usize> {
    let read = stream
        .async_io(Interest::READABLE, || {
            Ok(rustix::net::recv(stream.as_fd(), &mut *buffer, RecvFlags::DONTWAIT)?.1)
        })
        .await?;
    if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
}

fn send_some(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(invalid("too many descriptors".to_string()));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
    })?)
}

fn receive_some(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)
    })?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MOST_DESCRIPTORS {
        return Err(invalid(format!("received more than {MOST_DESCRIPTORS} descriptors")));
    }
    Ok((received.bytes, descriptors))
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn request(entries: usize) -> ToEgress {
        let allow = vec!["*.example.com:443".parse().unwrap(); entries];
        let policy = Policy::new(Default::default(), allow, vec![]).unwrap();
        let sandbox = SandboxId::generate();
        ToEgress { id: 3, request: Request::Add { sandbox, policy, tcp: 1, dns_udp: 0, dns_tcp: 0 } }
    }

    #[tokio::test]
    async fn a_frame_brings_its_descriptors_and_the_next_none() {
        let (left, right) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        // Longer than the socket takes at once.
        let sent = request(1000);
        let two = async {
            send(&left, &sent, &[writer.as_fd()]).await.unwrap();
            send(&left, &sent, &[]).await.unwrap();
        };
        let ((), first) = tokio::join!(two, async {
            let first = receive::<ToEgress>(&right).await.unwrap().unwrap();
            let (_, none) = receive::<ToEgress>(&right).await.unwrap().unwrap();
            assert!(none.is_empty());
            first
        });
        let (read, descriptors) = first;
        assert_eq!((read.id, &read.request), (3, &sent.request));
        assert_eq!(descriptors.len(), 1);
        drop(writer);
        rustix::io::write(&descriptors[0], b"x").unwrap();
        drop(descriptors);
        let mut through = Vec::new();
        reader.read_to_end(&mut through).unwrap();
        assert_eq!(through, b"x");
        drop(left);
        assert!(receive::<ToEgress>(&right).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn descriptors_elsewhere_are_closed() {
        let (left, right) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let body = serde_json::to_vec(&request(1)).unwrap();
        left.try_write(&u32::try_from(body.len()).unwrap().to_be_bytes()).unwrap();
        send_some(left.as_fd(), &body, &[writer.as_fd()]).unwrap();
        drop(writer);
        let (_, descriptors) = receive::<ToEgress>(&right).await.unwrap().unwrap();
        assert!(descriptors.is_empty());
        // Ends only because no other process holds the other end.
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    #[tokio::test]
    async fn overlong_frames_too_many_descriptors_and_early_ends_are_refused() {
        let (left, right) = UnixStream::pair().unwrap();
        left.try_write(&[0, 0x10, 0, 1]).unwrap();
        assert_eq!(receive::<ToEgress>(&right).await.unwrap_err().kind(), io::ErrorKind::InvalidData);

        let (left, right) = UnixStream::pair().unwrap();
        let (_reader, writer) = std::io::pipe().unwrap();
        let many = [writer.as_fd(); MOST_DESCRIPTORS + 1];
        assert_eq!(send(&left, &request(0), &many).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        let mut space = [MaybeUninit::uninit(); CONTROL_BYTES * 2];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&many)));
        rustix::net::sendmsg(&left, &[IoSlice::new(&[0])], &mut control, SendFlags::empty()).unwrap();
        assert_eq!(receive::<ToEgress>(&right).await.unwrap_err().kind(), io::ErrorKind::InvalidData);

        let (left, right) = UnixStream::pair().unwrap();
        left.try_write(&[0, 0, 0, 9, b'{']).unwrap();
        drop(left);
        assert_eq!(receive::<ToEgress>(&right).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}

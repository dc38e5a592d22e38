//! Netlink messages, batched into one call to the kernel.
//!
//! Every create sets up a network namespace, so this is on its path: one socket, one write, and none of the
//! queries that a library would make first. The messages are fixed at build time, except for a few numbers.

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

const HEADER: usize = 16;
/// `NLM_F_REQUEST`, and so on; libc has them as larger numbers.
const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
pub(super) const EXCLUSIVE: u16 = 0x200;
pub(super) const CREATE: u16 = 0x400;
pub(super) const APPEND: u16 = 0x800;
const NESTED: u16 = 0x8000;

/// Messages that go out together. Numbers in headers are the machine's own; attributes are in the byte order
/// of their family.
#[derive(Debug, Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// How many answers will come.
    asked: usize,
}

impl Batch {
    /// Adds a message that the kernel acknowledges: the operation, its fixed part, and its attributes.
    pub(super) fn message(
        &mut self,
        kind: u16,
        flags: u16,
        fixed: &[u8],
        attributes: impl FnOnce(&mut Self),
    ) {
        self.asked += 1;
        self.write(kind, flags | ACKNOWLEDGE, fixed, attributes);
    }

    /// Adds a message that marks the start or end of a batch.
    pub(super) fn mark(&mut self, kind: u16, fixed: &[u8]) {
        self.write(kind, 0, fixed, |_| {});
    }

    fn write(&mut self, kind: u16, flags: u16, fixed: &[u8], attributes: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((REQUEST | flags).to_ne_bytes());
        // Sequence and port: not needed with one batch at a time.
        self.bytes.extend([0; 8]);
        debug_assert_eq!(self.bytes.len() - start, HEADER);
        self.bytes.extend(fixed);
        self.pad();
        attributes(self);
        let length = u32::try_from(self.bytes.len() - start).expect("a message is short");
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.with_length(kind, |batch| batch.bytes.extend(value));
    }

    /// Text, with a zero at its end.
    pub(super) fn text(&mut self, kind: u16, value: &str) {
        self.with_length(kind, |batch| {
            batch.bytes.extend(value.as_bytes());
            batch.bytes.push(0);
        });
    }

    pub(super) fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Self)) {
        self.with_length(kind | NESTED, inside);
    }

    fn with_length(&mut self, kind: u16, value: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend(kind.to_ne_bytes());
        value(self);
        let length = u16::try_from(self.bytes.len() - start).expect("an attribute is short");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Executes all messages in the current network namespace; returns the first failure.
    /// Without a protocol it is about links, addresses and routes.
    pub(super) fn send(&self, protocol: Option<Protocol>) -> Result<(), Errno> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        rustix::net::send(&socket, &self.bytes, SendFlags::empty())?;
        for _ in 0..self.asked {
            // The kernel has answered by the time that `send` returns. An error repeats the message that it is about,
            // which may be longer than this: it is cut off, and the number comes before it.
            let mut answer = [0; 128];
            let (_, length) = rustix::net::recv(&socket, &mut answer, RecvFlags::DONTWAIT)?;
            refusal(&answer[..length.min(answer.len())])?;
        }
        Ok(())
    }
}

/// The result in an answer: an error number, or 0.
fn refusal(answer: &[u8]) -> Result<(), Errno> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let code = answer.get(HEADER..HEADER + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind.map(i32::from), code) {
        (Some(libc::NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(libc::NLMSG_ERROR), Some(code)) => Err(Errno::from_raw_os_error(code.saturating_neg())),
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_attributes_know_their_lengths() {
        let mut batch = Batch::default();
        batch.message(20, 0x400, &[7; 5], |batch| {
            batch.attribute(1, &[9]);
            batch.nest(2, |batch| batch.text(3, "lo"));
        });
        batch.mark(17, &[]);
        let half = u16::to_ne_bytes;
        let message = [&44u32.to_ne_bytes()[..], &half(20), &half(0x405), &[0; 8], &[7; 5], &[0; 3]].concat();
        let attributes = [&half(5)[..], &half(1), &[9, 0, 0, 0], &half(12), &half(0x8002)].concat();
        let nested = [&half(7)[..], &half(3), b"lo\0\0"].concat();
        let mark = [&16u32.to_ne_bytes()[..], &half(17), &half(1), &[0; 8]].concat();
        assert_eq!(batch.bytes, [message, attributes, nested, mark].concat());
        assert_eq!(batch.asked, 1);
    }

    #[test]
    fn an_answer_is_an_error_number() {
        let answer = |kind: i32, code: i32| {
            let kind = u16::try_from(kind).unwrap();
            [&[0; 4][..], &kind.to_ne_bytes(), &[0; 10], &code.to_ne_bytes()].concat()
        };
        assert_eq!(refusal(&answer(libc::NLMSG_ERROR, 0)), Ok(()));
        assert_eq!(refusal(&answer(libc::NLMSG_ERROR, -libc::EPERM)), Err(Errno::PERM));
        assert_eq!(refusal(&answer(libc::NLMSG_DONE, 0)), Err(Errno::PROTO));
        assert_eq!(refusal(&[0; 3]), Err(Errno::PROTO));
    }
}

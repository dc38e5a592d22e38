//! The server name of a TLS ClientHello (RFC 8446 section 4.1.2, RFC 6066 section 3).
//!
//! A hello may be split into any number of records. Unknown extensions, GREASE and encrypted hellos among
//! them, are skipped; for an encrypted hello the outer name counts, because the connection is dialled by it.

use coffer_core::network::HostName;

use super::sniffed::{MOST_BYTES, Sniffed};

/// The content type of a record that begins a handshake.
pub(super) const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;
const LONGEST_RECORD: usize = 1 << 14;

pub(super) fn read(bytes: &[u8]) -> Sniffed {
    let mut message = Vec::new();
    let mut wanted = MESSAGE_HEADER;
    let mut rest = bytes;
    // Gather records until the message is whole.
    loop {
        let consumed = bytes.len() - rest.len();
        let Some((&[kind, major, _, high, low], after)) = rest.split_first_chunk::<RECORD_HEADER>() else {
            return Sniffed::Unfinished { at_least: consumed + RECORD_HEADER };
        };
        if kind != HANDSHAKE || major != 3 {
            return Sniffed::Nameless;
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length == 0 || length > LONGEST_RECORD {
            return Sniffed::Nameless;
        }
        let Some((fragment, after)) = after.split_at_checked(length) else {
            return Sniffed::Unfinished { at_least: consumed + RECORD_HEADER + length };
        };
        rest = after;
        message.extend_from_slice(fragment);
        if let Some(&[kind, a, b, c]) = message.first_chunk::<MESSAGE_HEADER>() {
            if kind != CLIENT_HELLO {
                return Sniffed::Nameless;
            }
            wanted = MESSAGE_HEADER + (usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c));
            // So long a hello is refused here, before it was waited for.
            if wanted > MOST_BYTES {
                return Sniffed::Nameless;
            }
        }
        if message.len() >= wanted {
            break;
        }
    }
    match server_name(&message[MESSAGE_HEADER..wanted]) {
        Some(name) => Sniffed::Name(name),
        None => Sniffed::Nameless,
    }
}

/// Reads the name from a complete ClientHello; an inconsistent one has no name.
fn server_name(hello: &[u8]) -> Option<HostName> {
    let mut hello = Bytes(hello);
    let _version_and_random = hello.take(2 + 32)?;
    let session = hello.block8()?;
    let suites = hello.block16()?;
    let compressions = hello.block8()?;
    if session.len() > 32 || suites.is_empty() || suites.len() % 2 != 0 || compressions.is_empty() {
        return None;
    }
    let mut extensions = Bytes(hello.block16()?);
    if !hello.0.is_empty() {
        return None;
    }
    let mut name = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number16()?;
        let body = extensions.block16()?;
        if kind != SERVER_NAME {
            continue;
        }
        // With two names, the server might use the other.
        if name.is_some() {
            return None;
        }
        name = Some(only_name(body)?);
    }
    name
}

fn only_name(extension: &[u8]) -> Option<HostName> {
    let mut extension = Bytes(extension);
    let mut list = Bytes(extension.block16()?);
    let kind = list.number8()?;
    let name = list.block16()?;
    if kind != HOST_NAME || !list.0.is_empty() || !extension.0.is_empty() {
        return None;
    }
    HostName::parse(std::str::from_utf8(name).ok()?).ok()
}

/// A cursor that never reads past its end.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn number8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn block8(&mut self) -> Option<&'a [u8]> {
        let length = self.number8()?;
        self.take(length.into())
    }

    fn block16(&mut self) -> Option<&'a [u8]> {
        let length = self.number16()?;
        self.take(length.into())
    }
}

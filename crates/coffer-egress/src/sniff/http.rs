//! The host of an HTTP/1 request (RFC 9112).
//!
//! Stricter than servers: a head that two parsers could read differently has no name.

use coffer_core::network::HostName;

use super::sniffed::Sniffed;

/// Longer than any method in use.
const LONGEST_METHOD: usize = 24;
const END: &[u8] = b"\r\n\r\n";

/// Parses the head; `searched` remembers how far its end was searched for, so that slowly arriving bytes are
/// not scanned again.
pub(super) fn read(bytes: &[u8], searched: &mut usize) -> Sniffed {
    if !begins_like_a_request(bytes) {
        return Sniffed::Nameless;
    }
    let from = searched.saturating_sub(END.len() - 1);
    let Some(end) = bytes[from..].windows(END.len()).position(|window| window == END) else {
        *searched = bytes.len();
        return Sniffed::Unfinished { at_least: bytes.len() + 1 };
    };
    match std::str::from_utf8(&bytes[..from + end]).ok().and_then(host) {
        Some(name) => Sniffed::Name(name),
        None => Sniffed::Nameless,
    }
}

/// Distinguishes a request from other protocols that begin with a capital letter, such as SSH.
fn begins_like_a_request(bytes: &[u8]) -> bool {
    let method =
        bytes.iter().take(LONGEST_METHOD).take_while(|b| b.is_ascii_uppercase() || **b == b'-').count();
    // A method of this length is too long whether or not its end has arrived.
    method < LONGEST_METHOD && bytes.get(method).is_none_or(|next| *next == b' ')
}

/// The one host that a head names.
fn host(head: &str) -> Option<HostName> {
    let mut lines = head.split("\r\n");
    let request = lines.next()?;
    let mut host = None;
    for line in lines {
        let (name, value) = line.split_once(':')?;
        // Also catches folded lines and a space before the colon.
        if !is_token(name) || value.bytes().any(|b| b.is_ascii_control() && b != b'\t') {
            return None;
        }
        if name.eq_ignore_ascii_case("host")
            && host.replace(authority(value.trim_matches([' ', '\t']))?).is_some()
        {
            return None;
        }
    }
    let host = host?;
    let mut words = request.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let plain = words.next().is_none() && matches!(version, "HTTP/1.0" | "HTTP/1.1");
    // The host of a tunnel is its destination, not the server.
    if !plain || method == "CONNECT" || !target.bytes().all(|b| b.is_ascii_graphic()) {
        return None;
    }
    // `GET http://host/path`: a server must use the target, so both must agree.
    if !target.starts_with('/') && target != "*" {
        let (_scheme, rest) = target.split_once("://")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        if authority(&rest[..end])? != host {
            return None;
        }
    }
    Some(host)
}

/// `name` or `name:port`; an address is not a name.
fn authority(text: &str) -> Option<HostName> {
    let (name, port) = text.split_once(':').unwrap_or((text, ""));
    if port.len() > 5 || !port.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    HostName::parse(name).ok()
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

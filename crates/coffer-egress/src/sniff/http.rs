//! The host of an HTTP/1 request (RFC 9112).
//!
//! Stricter than servers are: a head that two readers could understand differently has no name.

use coffer_core::network::HostName;

use super::Sniffed;

/// Longer than any method in use.
const LONGEST_METHOD: usize = 24;
const END: &[u8] = b"\r\n\r\n";

/// Reads the head; `searched` remembers how far its end was looked for, so that dribbled bytes are not
/// looked at again and again.
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

/// Tells a request from other protocols that begin with a capital letter, SSH for one.
fn begins_like_a_request(bytes: &[u8]) -> bool {
    let method =
        bytes.iter().take(LONGEST_METHOD).take_while(|b| b.is_ascii_uppercase() || **b == b'-').count();
    // A method of that length is one too long whether or not its end has come.
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
    // A tunnel's host is where it leads, not whom it asks.
    if !plain || method == "CONNECT" || !target.bytes().all(|b| b.is_ascii_graphic()) {
        return None;
    }
    // `GET http://host/path`: a server must believe the target, so both must agree.
    if !target.starts_with('/') && target != "*" {
        let (_scheme, rest) = target.split_once("://")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        if authority(&rest[..end])? != host {
            return None;
        }
    }
    Some(host)
}

/// `name` or `name:port`; an address is no name.
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

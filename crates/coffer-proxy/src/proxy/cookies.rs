//! Keeps the sessions of the web UI away from sandboxes.
//!
//! A browser sends the UI's cookie wherever the cookie's host leads, and that is also to a sandbox: by its headers at the
//! server's own address, and, without TLS, at any port of the host. Nothing of a session may reach code in a sandbox. Nor may
//! a sandbox set a cookie that reaches the UI: not one of its names, and none for a domain above the sandbox's own host.

use http::header::{COOKIE, SEC_WEBSOCKET_PROTOCOL, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};

/// The cookie of a session, over TLS. Browsers take the prefix for a promise: no `Domain`, the whole path, `Secure`.
pub const SECURE_COOKIE: &str = "__Host-coffer";
/// The cookie of a session where browsers refuse `Secure`: plain HTTP.
pub const PLAIN_COOKIE: &str = "coffer_session";
/// The header with the page's half of a session.
pub const SESSION_HEADER: HeaderName = HeaderName::from_static("x-coffer-session");
/// The same for WebSockets, which take no headers from a page: the beginning of a subprotocol.
pub const SESSION_PROTOCOL: &str = "coffer.session.";
/// A key among the subprotocols.
pub const KEY_PROTOCOL: &str = "coffer.key.";

fn is_ours(name: &[u8]) -> bool {
    let name = name.trim_ascii();
    [SECURE_COOKIE, PLAIN_COOKIE].iter().any(|ours| name.eq_ignore_ascii_case(ours.as_bytes()))
}

/// Removes what belongs to a session of the UI from a request to a sandbox.
pub(super) fn strip_session(headers: &mut HeaderMap) {
    headers.remove(SESSION_HEADER);
    keep_parts(headers, &COOKIE, b';', b"; ", |cookie| {
        !is_ours(cookie.split(|byte| *byte == b'=').next().unwrap_or(cookie))
    });
    keep_parts(headers, &SEC_WEBSOCKET_PROTOCOL, b',', b", ", |protocol| {
        let protocol = protocol.trim_ascii();
        !protocol.starts_with(SESSION_PROTOCOL.as_bytes()) && !protocol.starts_with(KEY_PROTOCOL.as_bytes())
    });
}

/// Keeps those parts of a header; a header that needs no change stays as it is.
fn keep_parts(headers: &mut HeaderMap, name: &HeaderName, at: u8, with: &[u8], keep: impl Fn(&[u8]) -> bool) {
    let all_kept = |value: &HeaderValue| value.as_bytes().split(|byte| *byte == at).all(&keep);
    if headers.get_all(name).iter().all(all_kept) {
        return;
    }
    let values: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
    headers.remove(name);
    for value in values {
        let parts =
            value.as_bytes().split(|byte| *byte == at).filter(|part| keep(part)).map(<[u8]>::trim_ascii);
        let kept = parts.collect::<Vec<_>>().join(with);
        if let Some(value) = HeaderValue::from_bytes(&kept).ok().filter(|value| !value.is_empty()) {
            headers.append(name, value);
        }
    }
}

/// Keeps the cookies that a sandbox sets to the sandbox's own host.
pub(super) fn confine(headers: &mut HeaderMap) {
    if !headers.contains_key(SET_COOKIE) {
        return;
    }
    let cookies: Vec<HeaderValue> = headers.get_all(SET_COOKIE).iter().cloned().collect();
    headers.remove(SET_COOKIE);
    for cookie in cookies {
        let mut parts = cookie.as_bytes().split(|byte| *byte == b';');
        let pair = parts.next().unwrap_or_default();
        // A browser takes a cookie without `=` for one without a name, whose value is then sent alone.
        if is_ours(pair.split(|byte| *byte == b'=').next().unwrap_or(pair)) || is_hidden(pair) {
            continue;
        }
        let is_domain = |part: &&[u8]| {
            let name = part.split(|byte| *byte == b'=').next().unwrap_or(part).trim_ascii();
            name.eq_ignore_ascii_case(b"domain")
        };
        let mut kept = vec![pair];
        kept.extend(parts.filter(|part| !is_domain(part)));
        if let Ok(value) = HeaderValue::from_bytes(&kept.join(&b';')) {
            headers.append(SET_COOKIE, value);
        }
    }
}

/// Whether a cookie without a name would be sent as one of ours: `=coffer_session=x`.
fn is_hidden(pair: &[u8]) -> bool {
    let pair = pair.trim_ascii();
    let Some(value) = pair.strip_prefix(b"=") else { return false };
    is_ours(value.split(|byte| *byte == b'=').next().unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripped(name: HeaderName, values: &[&'static str]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        headers.insert(SESSION_HEADER, HeaderValue::from_static("half"));
        for value in values {
            headers.append(&name, HeaderValue::from_static(value));
        }
        strip_session(&mut headers);
        assert!(!headers.contains_key(SESSION_HEADER));
        headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_string()).collect()
    }

    #[test]
    fn no_session_reaches_a_sandbox_however_it_is_written() {
        for (sent, kept) in [
            (&["__Host-coffer=s"][..], &[][..]),
            (&["coffer_session=s"], &[]),
            (&["a=1; __Host-coffer=s; b=2"], &["a=1; b=2"]),
            (&["a=1;coffer_session=s;b=2"], &["a=1; b=2"]),
            (&["a=1", "coffer_session=s", "b=2"], &["a=1", "b=2"]),
            (&["COFFER_SESSION=s; __host-COFFER=s"], &[]),
            (&[" coffer_session =s; a=\"x"], &["a=\"x"]),
            (&["a=\"x; coffer_session=s; b=y\""], &["a=\"x; b=y\""]),
            (&["coffer_session; a=1"], &["a=1"]),
            (&["a=1; coffer_session=s; coffer_session=t"], &["a=1"]),
            (&["coffer_sessions=1; x__Host-coffer=2"], &["coffer_sessions=1; x__Host-coffer=2"]),
            (&["c=d;  e=f"], &["c=d;  e=f"]),
        ] {
            assert_eq!(stripped(COOKIE, sent), kept, "{sent:?}");
        }
        for (sent, kept) in [
            (&["chat, coffer.session.abc"][..], &["chat"][..]),
            (&["coffer.key.e2b_1", "chat"], &["chat"]),
            (&["chat,superchat"], &["chat,superchat"]),
        ] {
            assert_eq!(stripped(SEC_WEBSOCKET_PROTOCOL, sent), kept, "{sent:?}");
        }
    }

    #[test]
    fn a_sandbox_sets_cookies_for_its_own_host_alone() {
        for (sent, kept) in [
            ("a=1; Path=/; HttpOnly", Some("a=1; Path=/; HttpOnly")),
            ("a=1; Domain=coffer.test; Path=/", Some("a=1; Path=/")),
            ("a=1;domain=.coffer.test", Some("a=1")),
            ("a=1; DOMAIN ; Secure", Some("a=1; Secure")),
            ("a=1; Domain=a; Domain=b", Some("a=1")),
            ("coffer_session=x; Path=/", None),
            ("__Host-coffer=x; Secure; Path=/", None),
            ("__HOST-COFFER=x", None),
            ("=coffer_session=x", None),
            ("a=domain=1", Some("a=domain=1")),
        ] {
            let mut headers = HeaderMap::new();
            headers.append(SET_COOKIE, HeaderValue::from_static(sent));
            confine(&mut headers);
            let left = headers.get(SET_COOKIE).map(|value| value.to_str().unwrap());
            assert_eq!(left, kept, "{sent}");
        }
    }
}

//! Changes to a request's or response's head on its way through.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, FORWARDED, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, Version, request, response};
use percent_encoding::percent_decode_str;

use super::answer::Refusal;
use super::cookies;

pub(super) const TRAFFIC_TOKEN: HeaderName = HeaderName::from_static("e2b-traffic-access-token");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Routes of agentd that are the server's alone, by their first segment.
const CONTROL: [&str; 8] =
    ["init", "freeze", "unfreeze", "collapse", "fsfreeze", "fsthaw", "upgrade", "coffer"];

/// Whether `path` could lead to a control route of agentd, however it is spelled.
///
/// Stricter than any router: a spelling that agentd does not take for `/init` today stays closed.
pub(super) fn is_control(path: &str) -> bool {
    leads_to(path, &CONTROL)
}

/// Whether the first segment of `path` could be one of `names`, however it is spelled.
pub(super) fn leads_to(path: &str, names: &[&str]) -> bool {
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let mut depth = 0_usize;
    for segment in decoded.split(['/', '\\']) {
        match segment {
            "" | "." => {}
            ".." => depth = depth.saturating_sub(1),
            segment => {
                // Also segments that a later `..` removes: not every parser resolves those.
                let name = segment.split([';', '\0']).next().unwrap_or(segment).trim();
                if depth == 0 && names.iter().any(|wanted| name.eq_ignore_ascii_case(wanted)) {
                    return true;
                }
                depth += 1;
            }
        }
    }
    false
}

/// Whether a request asks to leave HTTP, as WebSockets do.
pub(super) fn wants_upgrade(request: &request::Parts) -> bool {
    request.version == Version::HTTP_11
        && request.headers.contains_key(UPGRADE)
        && tokens(&request.headers).any(|token| token.eq_ignore_ascii_case("upgrade"))
}

/// Makes a client's request the one that agentd gets.
pub(super) fn toward_agentd(request: &mut request::Parts) {
    origin_form(request);
    strip_hop_by_hop(&mut request.headers);
    cookies::strip_session(&mut request.headers);
}

/// Makes a client's request the one that a server inside the sandbox gets.
pub(super) fn toward_port(
    request: &mut request::Parts,
    port: u16,
    mask: Option<&str>,
    peer: IpAddr,
) -> Result<(), Refusal> {
    let upgrade = wants_upgrade(request).then(|| request.headers.get(UPGRADE).cloned()).flatten();
    origin_form(request);
    strip_hop_by_hop(&mut request.headers);
    if let Some(protocol) = upgrade {
        request.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        request.headers.insert(UPGRADE, protocol);
    }
    cookies::strip_session(&mut request.headers);
    // It was meant for us; code inside has no use for it.
    request.headers.remove(TRAFFIC_TOKEN);
    add_forwarded(&mut request.headers, peer);
    if let Some(mask) = mask {
        let host = mask.replace("${PORT}", &port.to_string());
        let host = HeaderValue::try_from(host).map_err(|_| Refusal::BadMask)?;
        request.headers.insert(HOST, host);
    }
    Ok(())
}

/// Turns the sandbox's response into the one for the client. A switch of protocols keeps its two headers.
pub(super) fn toward_client(response: &mut response::Parts) {
    let upgrade = response.headers.get(UPGRADE).cloned();
    // hyper has framed the body by Transfer-Encoding; a length next to it would contradict.
    if response.headers.contains_key(TRANSFER_ENCODING) {
        response.headers.remove(CONTENT_LENGTH);
    }
    strip_hop_by_hop(&mut response.headers);
    cookies::confine(&mut response.headers);
    // Strip headers that instruct a reverse proxy, such as `X-Accel-Redirect`, so that a sandbox cannot make
    // the proxy serve its own files.
    let orders: Vec<HeaderName> = response.headers.keys().filter(|name| is_order(name)).cloned().collect();
    for name in orders {
        response.headers.remove(name);
    }
    if response.status == http::StatusCode::SWITCHING_PROTOCOLS {
        response.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        if let Some(protocol) = upgrade {
            response.headers.insert(UPGRADE, protocol);
        }
    }
    response.version = Version::HTTP_11;
    response.extensions.clear();
}

fn is_order(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-accel-") || matches!(name.as_str(), "x-sendfile" | "x-lighttpd-send-file")
}

/// Turns an absolute target into a path and a `Host`, and makes sure that there is a `Host`.
fn origin_form(request: &mut request::Parts) {
    let path = request.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    if !request.headers.contains_key(HOST) {
        let named = request.uri.authority().and_then(|name| HeaderValue::try_from(name.as_str()).ok());
        let host = named.unwrap_or_else(|| HeaderValue::from_static("localhost"));
        request.headers.insert(HOST, host);
    }
    request.uri = Uri::from(path);
    request.version = Version::HTTP_11;
}

/// Removes hop-by-hop headers, including those that `Connection` names.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> =
            tokens(headers).filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok()).collect();
        for name in named {
            // Without these the message would be another one than the client sent.
            if name != HOST && name != CONTENT_LENGTH {
                headers.remove(name);
            }
        }
    }
    let trailers = headers.get_all(TE).iter().any(|value| value.as_bytes().eq_ignore_ascii_case(b"trailers"));
    let hops = [
        CONNECTION,
        KEEP_ALIVE,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        PROXY_CONNECTION,
        TE,
        TRANSFER_ENCODING,
    ];
    for name in hops {
        headers.remove(name);
    }
    headers.remove(UPGRADE);
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// The tokens of all `Connection` headers.
fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// Tells the server inside the client's address, the requested host and the scheme. Keeps the values of an
/// outer proxy.
fn add_forwarded(headers: &mut HeaderMap, peer: IpAddr) {
    let earlier = headers.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
    let mut chain: Vec<&str> = earlier.filter(|value| !value.trim().is_empty()).collect();
    let peer = peer.to_canonical().to_string();
    chain.push(&peer);
    if let Ok(chain) = HeaderValue::try_from(chain.join(", ")) {
        headers.insert(FORWARDED_FOR, chain);
    }
    if !headers.contains_key(FORWARDED_HOST)
        && let Some(host) = headers.get(HOST).cloned()
    {
        headers.insert(FORWARDED_HOST, host);
    }
    if !headers.contains_key(FORWARDED_PROTO) && !headers.contains_key(FORWARDED) {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use std::net::Ipv4Addr;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

    fn parts(uri: &str, headers: &[(&str, &str)]) -> request::Parts {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn shown(headers: &HeaderMap) -> Vec<(String, String)> {
        let mut shown: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        shown.sort();
        shown
    }

    fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn control_routes_are_closed_however_they_are_spelled() {
        for path in [
            "/init",
            "/init/",
            "//init",
            "/./init",
            "/x/../init",
            "/init/../files",
            "/%69nit",
            "/INIT",
            "/init/x",
            "/%2finit",
            "/..%2finit",
            "/coffer",
            "/coffer/journal",
            "/freeze",
            "/unfreeze",
            "/collapse",
            "/fsfreeze",
            "/fsthaw",
            "/upgrade",
            "/init;x",
            "/init%00",
            "/\\init",
        ] {
            assert!(is_control(path), "{path}");
        }
        for path in ["/", "/files", "/initial", "/files/init", "/process.Process/Start", "/health", "*", ""] {
            assert!(!is_control(path), "{path}");
        }
    }

    #[test]
    fn hop_by_hop_headers_end_here() {
        let mut request = parts(
            "http://x.example/a?b",
            &[
                ("host", "x.example"),
                ("connection", "keep-alive, X-Secret, host"),
                ("x-secret", "1"),
                ("keep-alive", "timeout=5"),
                ("proxy-authorization", "Basic x"),
                ("te", "trailers"),
                ("transfer-encoding", "chunked"),
                ("upgrade", "h2c"),
                ("x-kept", "2"),
            ],
        );
        toward_agentd(&mut request);
        assert_eq!(request.uri, "/a?b");
        assert_eq!(
            shown(&request.headers),
            owned(&[("host", "x.example"), ("te", "trailers"), ("x-kept", "2")])
        );
    }

    #[test]
    fn a_port_learns_who_asked_and_not_the_token() {
        let mut request = parts(
            "/",
            &[
                ("host", "3000-abc.x"),
                ("e2b-traffic-access-token", "secret"),
                ("x-forwarded-for", "198.51.100.1"),
                ("x-forwarded-proto", "https"),
            ],
        );
        toward_port(&mut request, 3000, None, PEER).unwrap();
        assert_eq!(
            shown(&request.headers),
            owned(&[
                ("host", "3000-abc.x"),
                ("x-forwarded-for", "198.51.100.1, 192.0.2.7"),
                ("x-forwarded-host", "3000-abc.x"),
                ("x-forwarded-proto", "https"),
            ])
        );
    }

    #[test]
    fn a_mask_replaces_the_host() {
        let mut request = parts("/", &[("host", "3000-abc.x")]);
        toward_port(&mut request, 3000, Some("localhost:${PORT}"), PEER).unwrap();
        assert_eq!(request.headers[HOST], "localhost:3000");
        assert_eq!(request.headers[FORWARDED_HOST], "3000-abc.x");
        let bad = toward_port(&mut request, 3000, Some("a\r\nx-injected: 1"), PEER);
        assert_eq!(bad, Err(Refusal::BadMask));
    }

    #[test]
    fn an_upgrade_reaches_ports_but_not_agentd() {
        let headers = [("host", "x"), ("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")];
        let mut request = parts("/", &headers);
        toward_port(&mut request, 1, None, PEER).unwrap();
        assert_eq!(request.headers[CONNECTION], "upgrade");
        assert_eq!(request.headers[UPGRADE], "websocket");
        let mut request = parts("/", &headers);
        toward_agentd(&mut request);
        assert_eq!(shown(&request.headers), owned(&[("host", "x")]));
        let mut request = parts("/", &[("host", "x"), ("upgrade", "websocket")]);
        toward_port(&mut request, 1, None, PEER).unwrap();
        assert!(!request.headers.contains_key(UPGRADE), "an upgrade must be named by Connection");
    }

    #[test]
    fn a_length_beside_chunks_is_dropped() {
        let response = Response::builder()
            .header("transfer-encoding", "chunked")
            .header("content-length", "5")
            .header("x-a", "1")
            .header("connection", "x-a");
        let mut response = response.body(()).unwrap().into_parts().0;
        toward_client(&mut response);
        assert_eq!(shown(&response.headers), owned(&[]));
    }
}

//! Checks a request and prepares it for the host.
//!
//! hyper has parsed it and will encode it again, so the next parser sees the same beginning and end as we do.
//! Ambiguous requests are refused all the same.

use coffer_core::network::{HeaderName, HeaderText, HostName};
use http::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::PathAndQuery;
use http::{Method, Request, StatusCode, Uri, Version};

/// Why a request is not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// Two parsers could read it differently.
    Doubtful(&'static str),
    /// It is for another host than the connection.
    Misdirected,
}

impl Refused {
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::Doubtful(_) => StatusCode::BAD_REQUEST,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
        }
    }

    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Doubtful(why) => why,
            Self::Misdirected => "the request names another host than its connection",
        }
    }
}

/// Checks a request to `host` at `port`, and prepares it. Returns whether it asks for a WebSocket.
pub(super) fn prepare<B>(
    request: &mut Request<B>,
    host: &HostName,
    port: u16,
    usual_port: u16,
    headers: &[(HeaderName, HeaderText)],
) -> Result<bool, Refused> {
    check_host(request, host, port, usual_port)?;
    check_length(request.headers())?;
    let path = request.uri().path_and_query().cloned();
    let path = path.unwrap_or_else(|| PathAndQuery::from_static("/"));
    // `*` stays: `OPTIONS *` asks the server itself.
    *request.uri_mut() = Uri::from(path);
    *request.version_mut() = Version::HTTP_11;
    let websocket = is_websocket(request.headers());
    drop_hops(request.headers_mut());
    if websocket {
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    for (name, text) in headers {
        let name = http::HeaderName::from_bytes(name.as_str().as_bytes());
        let (Ok(name), Ok(mut value)) = (name, HeaderValue::from_str(text.reveal())) else {
            return Err(Refused::Doubtful("a header of the sandbox's rules is not a valid HTTP header"));
        };
        value.set_sensitive(true);
        // Replaces every header of this name that the sandbox sent.
        request.headers_mut().insert(name, value);
    }
    Ok(websocket)
}

/// Every place where a request names its host must name the connection's host.
fn check_host<B>(request: &Request<B>, host: &HostName, port: u16, usual_port: u16) -> Result<(), Refused> {
    if request.method() == Method::CONNECT {
        return Err(Refused::Doubtful("CONNECT is not supported here"));
    }
    let is_ours = |authority: &str| {
        let (name, given) = authority.split_once(':').unwrap_or((authority, ""));
        let given_port = if given.is_empty() { Some(usual_port) } else { given.parse().ok() };
        let digits = given.bytes().all(|b| b.is_ascii_digit());
        HostName::parse(name).is_ok_and(|name| name == *host) && digits && given_port == Some(port)
    };
    let mut named = request.headers().get_all(HOST).iter();
    let (Some(one), None) = (named.next(), named.next()) else {
        return Err(Refused::Doubtful("a request must name one host"));
    };
    if !one.to_str().is_ok_and(is_ours) {
        return Err(Refused::Misdirected);
    }
    match request.uri().authority() {
        Some(authority) if !is_ours(authority.as_str()) => Err(Refused::Misdirected),
        _ => Ok(()),
    }
}

/// The length of a body must be given once and in one way.
fn check_length(headers: &HeaderMap) -> Result<(), Refused> {
    let lengths = headers.get_all(CONTENT_LENGTH).iter().count();
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let encoding = encodings.next();
    if lengths > 1 || encodings.next().is_some() || (lengths == 1 && encoding.is_some()) {
        return Err(Refused::Doubtful("a request must state the length of its body exactly once"));
    }
    match encoding {
        Some(encoding) if !encoding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Err(Refused::Doubtful("the only supported transfer encoding is chunked"))
        }
        _ => Ok(()),
    }
}

fn is_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let one = protocols.next().is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    one && protocols.next().is_none()
        && headers.get_all(CONNECTION).iter().any(|value| {
            value
                .to_str()
                .is_ok_and(|text| text.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade")))
        })
}

/// Removes hop-by-hop headers. The length of a body is kept, and its encoding is set again.
pub(super) fn drop_hops(headers: &mut HeaderMap) {
    let named: Vec<String> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .map(|word| word.trim().to_ascii_lowercase())
        .collect();
    for name in named {
        // Do not let the sandbox remove these, which would change the request for the next parser.
        if !["host", "content-length", "authorization", "cookie"].contains(&name.as_str())
            && let Ok(name) = http::HeaderName::from_bytes(name.as_bytes())
        {
            headers.remove(name);
        }
    }
    for name in [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection", "proxy-authorization", "http2-settings"] {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    fn prepared(mut request: Request<()>) -> Result<(Request<()>, bool), Refused> {
        let token = [(HeaderName::parse("Authorization").unwrap(), HeaderText::parse("Bearer t").unwrap())];
        let websocket = prepare(&mut request, &"a.com".parse().unwrap(), 443, 443, &token)?;
        Ok((request, websocket))
    }

    #[test]
    fn the_header_takes_the_place_of_all_that_the_sandbox_sent() {
        let headers = [("Host", "A.com"), ("authorization", "one"), ("AUTHORIZATION", "two"), ("x", "y")];
        let (request, _) = prepared(request("/p?q", &headers)).unwrap();
        let sent: Vec<_> = request.headers().get_all("authorization").iter().collect();
        assert_eq!(sent, ["Bearer t"]);
        assert_eq!(
            (request.uri().to_string().as_str(), &request.headers()["x"]),
            ("/p?q", &HeaderValue::from_static("y"))
        );
    }

    #[test]
    fn a_request_for_another_host_gets_nothing() {
        for (uri, hosts, ours) in [
            ("/", &["a.com"][..], true),
            ("/", &["a.com:443"], true),
            ("/", &["a.com."], true),
            ("https://a.com/x", &["a.com"], true),
            ("https://a.com:443/x", &["a.com"], true),
            ("/", &[], false),
            ("/", &["a.com", "a.com"], false),
            ("/", &["b.com"], false),
            ("/", &["a.com:80"], false),
            ("/", &["a.com:0443x"], false),
            ("/", &["a.com:+443"], false),
            ("/", &["x@a.com"], false),
            ("/", &["a.com, b.com"], false),
            ("https://b.com/", &["a.com"], false),
            ("https://a.com/", &["b.com"], false),
            ("https://a.com@b.com/", &["a.com"], false),
            ("https://u@a.com/", &["a.com"], false),
        ] {
            let headers: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            assert_eq!(prepared(request(uri, &headers)).is_ok(), ours, "{uri} {hosts:?}");
        }
        let mut tunnel = request("a.com:443", &[("host", "a.com")]);
        *tunnel.method_mut() = Method::CONNECT;
        assert!(prepared(tunnel).is_err());
    }

    #[test]
    fn a_length_that_is_said_twice_is_refused() {
        for (headers, good) in [
            (&[("content-length", "1")][..], true),
            (&[("transfer-encoding", "Chunked")], true),
            (&[("content-length", "1"), ("transfer-encoding", "chunked")], false),
            (&[("content-length", "1"), ("content-length", "1")], false),
            (&[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")], false),
            (&[("transfer-encoding", "gzip, chunked")], false),
            (&[("transfer-encoding", "identity")], false),
            (&[("transfer-encoding", "\tchunked")], false),
        ] {
            let headers = [&[("host", "a.com")], headers].concat();
            assert_eq!(prepared(request("/", &headers)).is_ok(), good, "{headers:?}");
        }
    }

    #[test]
    fn hops_are_dropped_and_websockets_pass() {
        let headers = [
            ("host", "a.com"),
            ("connection", "keep-alive, X-Hop, Authorization, Host"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("http2-settings", "x"),
        ];
        let (sent, websocket) = prepared(request("/", &headers)).unwrap();
        let names: Vec<_> = sent.headers().keys().map(|name| name.as_str()).collect();
        assert_eq!((names.as_slice(), websocket), (&["host", "authorization"][..], false));
        let headers = [("host", "a.com"), ("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")];
        let (sent, websocket) = prepared(request("/", &headers)).unwrap();
        assert!(
            websocket
                && sent.headers()["upgrade"] == "websocket"
                && sent.headers()["connection"] == "Upgrade"
        );
    }
}

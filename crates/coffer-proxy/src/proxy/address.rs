//! Which sandbox and port a request is for, read from its head alone.
//!
//! A `Host` of the form `<port>-<id>.<anything>` wins over the headers, as in E2B: a page served
//! from one sandbox's name must not reach another by adding headers to a same-origin request.

use http::header::{ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HOST};
use http::{HeaderMap, HeaderName, Method, Request};

use super::signed;

pub(super) const SANDBOX_ID: HeaderName = HeaderName::from_static("e2b-sandbox-id");
pub(super) const SANDBOX_PORT: HeaderName = HeaderName::from_static("e2b-sandbox-port");

/// Ids are shorter; a longer text is refused before it is echoed anywhere.
const LONGEST_ID: usize = 64;

/// Where a request goes, by its head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    /// A port of a sandbox. The id is any text of letters, digits and dashes.
    Port { sandbox: String, port: u16 },
    /// A signed file URL that names no sandbox.
    Signed,
    /// A browser asks whether it may send the sandbox headers. Their values are not in this
    /// request, so no sandbox can be asked.
    Preflight,
    /// Sandbox traffic, but contradictory or malformed.
    Malformed(&'static str),
    /// Not sandbox traffic.
    Elsewhere,
}

/// Reads the address of a request.
pub(super) fn address<B>(request: &Request<B>) -> Address {
    let host = match host(request) {
        Ok(host) => host,
        Err(fault) => return Address::Malformed(fault),
    };
    if let Some(address) = host.and_then(by_host) {
        return address;
    }
    if let Some(address) = by_headers(request.headers()) {
        return address;
    }
    if request.method() == Method::OPTIONS && asks_for_sandbox_headers(request.headers()) {
        return Address::Preflight;
    }
    if signed::looks_signed(request) {
        return Address::Signed;
    }
    Address::Elsewhere
}

/// Whether a request names its sandbox by host name, which is then a separate origin.
pub(super) fn is_by_host<B>(request: &Request<B>) -> bool {
    matches!(host(request), Ok(Some(host)) if by_host(host).is_some())
}

/// The one host a request names, in `Host` or in an absolute target.
fn host<B>(request: &Request<B>) -> Result<Option<&str>, &'static str> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let header = match hosts.next() {
        Some(value) => Some(value.to_str().map_err(|_| "The Host header is not ASCII")?),
        None => None,
    };
    if hosts.next().is_some() {
        return Err("The request has more than one Host header");
    }
    let Some(target) = request.uri().authority() else {
        return Ok(header);
    };
    match header {
        Some(header) if !header.eq_ignore_ascii_case(target.as_str()) => {
            Err("The request target and the Host header differ")
        }
        _ => Ok(Some(target.as_str())),
    }
}

/// Reads `<port>-<id>.<anything>`; `None` when the host has another form.
fn by_host(host: &str) -> Option<Address> {
    let (label, _) = host.split_once('.')?;
    let (port, id) = label.split_once('-')?;
    let is_form = !port.is_empty()
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && !id.is_empty()
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_form {
        return None;
    }
    if id.len() > LONGEST_ID {
        return Some(Address::Malformed("The sandbox id in the host name is too long"));
    }
    Some(match parse_port(port) {
        // Host names have no case.
        Some(port) => Address::Port { sandbox: id.to_ascii_lowercase(), port },
        None => Address::Malformed("The port in the host name is not a port number"),
    })
}

/// Reads the two headers; `None` if both are missing.
fn by_headers(headers: &HeaderMap) -> Option<Address> {
    let (id, port) = match (only(headers, &SANDBOX_ID), only(headers, &SANDBOX_PORT)) {
        (Ok(None), Ok(None)) => return None,
        (Ok(Some(id)), Ok(Some(port))) => (id, port),
        (Ok(Some(_)), Ok(None)) => {
            return Some(Address::Malformed("The header E2b-Sandbox-Id requires E2b-Sandbox-Port"));
        }
        (Ok(None), Ok(Some(_))) => {
            return Some(Address::Malformed("The header E2b-Sandbox-Port requires E2b-Sandbox-Id"));
        }
        _ => return Some(Address::Malformed("The sandbox headers are malformed or repeated")),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if id.is_empty() || id.len() > LONGEST_ID || !id.bytes().all(is_name) {
        return Some(Address::Malformed("The header E2b-Sandbox-Id is not a sandbox id"));
    }
    Some(match parse_port(port) {
        Some(port) => Address::Port { sandbox: id.to_owned(), port },
        None => Address::Malformed("The header E2b-Sandbox-Port is not a port number"),
    })
}

/// The value of a header that may be there once.
fn only<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ()> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(());
    }
    value.to_str().map(|text| Some(text.trim())).map_err(|_| ())
}

/// Digits only: `u16::from_str` alone would take `+80`.
fn parse_port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&port| digits && port != 0)
}

fn asks_for_sandbox_headers(headers: &HeaderMap) -> bool {
    headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        && headers
            .get_all(ACCESS_CONTROL_REQUEST_HEADERS)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|name| name.trim().eq_ignore_ascii_case(SANDBOX_ID.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "01jd0000000000000000000000";

    fn read(uri: &str, headers: &[(&str, &str)]) -> Address {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        address(&request.body(()).unwrap())
    }

    fn port(port: u16) -> Address {
        Address::Port { sandbox: ID.into(), port }
    }

    #[test]
    fn a_host_names_port_and_sandbox() {
        for (host, expected) in [
            ("49983-ID.localhost", port(49983)),
            ("3000-ID.coffer.example:8443", port(3000)),
            ("1-ID.x", port(1)),
        ] {
            assert_eq!(read("/", &[("host", &host.replace("ID", ID))]), expected, "{host}");
            let upper = host.replace("ID", &ID.to_ascii_uppercase());
            assert_eq!(read("/", &[("host", &upper)]), expected, "{upper}");
        }
    }

    #[test]
    fn hosts_of_another_form_are_not_sandbox_traffic() {
        for host in
            ["127.0.0.1:3000", "[::1]:3000", "localhost", "api.x", "3000-abc", "a3000-abc.x", "3000-a-b.x"]
        {
            assert_eq!(read("/sandboxes", &[("host", host)]), Address::Elsewhere, "{host}");
        }
        assert_eq!(read("/sandboxes", &[]), Address::Elsewhere);
    }

    #[test]
    fn ports_out_of_range_are_malformed() {
        for host in ["0-abc.x", "65536-abc.x", "99999999999999999999-abc.x"] {
            assert!(matches!(read("/", &[("host", host)]), Address::Malformed(_)), "{host}");
        }
        for text in ["0", "65536", "", "+80", "-1", "80 80", "0x50"] {
            let headers = [("host", "localhost"), ("e2b-sandbox-id", ID), ("e2b-sandbox-port", text)];
            assert!(matches!(read("/", &headers), Address::Malformed(_)), "{text:?}");
        }
    }

    #[test]
    fn headers_name_port_and_sandbox_on_any_other_host() {
        for host in ["127.0.0.1:3000", "[::1]:3000", "localhost:1", "sandbox.e2b.app", "coffer.lan:3000"] {
            let headers = [("host", host), ("E2b-Sandbox-Id", ID), ("E2b-Sandbox-Port", "49999")];
            assert_eq!(read("/x", &headers), port(49999), "{host}");
        }
    }

    #[test]
    fn the_host_wins_over_the_headers() {
        let host = format!("3000-{ID}.x");
        let headers = [("host", &*host), ("E2b-Sandbox-Id", "other"), ("E2b-Sandbox-Port", "49983")];
        assert_eq!(read("/", &headers), port(3000));
        assert_eq!(read("/", &[("host", &host), ("E2b-Sandbox-Id", "other")]), port(3000));
    }

    #[test]
    fn half_an_address_is_malformed() {
        assert!(matches!(
            read("/", &[("host", "localhost"), ("E2b-Sandbox-Id", ID)]),
            Address::Malformed(why) if why.contains("E2b-Sandbox-Port")
        ));
        assert!(matches!(
            read("/", &[("host", "localhost"), ("E2b-Sandbox-Port", "1")]),
            Address::Malformed(_)
        ));
    }

    #[test]
    fn ambiguous_addresses_are_malformed() {
        let twice = [("host", "localhost"), ("host", "3000-abc.x")];
        assert!(matches!(read("/", &twice), Address::Malformed(_)));
        let ids = [
            ("host", "localhost"),
            ("e2b-sandbox-id", "a"),
            ("e2b-sandbox-id", "b"),
            ("e2b-sandbox-port", "1"),
        ];
        assert!(matches!(read("/", &ids), Address::Malformed(_)));
        let target = read("http://3000-abc.x/", &[("host", "localhost")]);
        assert!(matches!(target, Address::Malformed(_)));
        let same = read("http://3000-abc.x/", &[("host", "3000-ABC.x")]);
        assert_eq!(same, Address::Port { sandbox: "abc".into(), port: 3000 });
        let odd = [("host", "localhost"), ("e2b-sandbox-id", "<script>"), ("e2b-sandbox-port", "1")];
        assert!(matches!(read("/", &odd), Address::Malformed(_)));
    }

    #[test]
    fn signed_urls_and_preflights_are_seen() {
        let url = "/files?path=a&signature=v1_x";
        assert_eq!(read(url, &[("host", "localhost")]), Address::Signed);
        assert_eq!(read("/files?path=a", &[("host", "localhost")]), Address::Elsewhere);
        assert_eq!(read("/filesystem?signature=v1_x", &[("host", "localhost")]), Address::Elsewhere);
        let host = format!("49983-{ID}.x");
        assert_eq!(read(url, &[("host", &host)]), port(49983));

        let preflight = |host: &str, names: &str| {
            let request = Request::builder()
                .method("OPTIONS")
                .uri("/health")
                .header("host", host)
                .header("access-control-request-method", "GET")
                .header("access-control-request-headers", names);
            address(&request.body(()).unwrap())
        };
        assert_eq!(preflight("localhost", "content-type, E2b-Sandbox-Id"), Address::Preflight);
        assert_eq!(preflight("localhost", "content-type, x-api-key"), Address::Elsewhere);
        assert_eq!(preflight(&host, "e2b-sandbox-id"), port(49983));
    }

    proptest! {
        #[test]
        fn no_host_panics(host in "[ -~]{0,80}") {
            if let Ok(request) = Request::builder().header("host", host).body(()) {
                address(&request);
            }
        }

        #[test]
        fn every_port_reads_back(number: u16) {
            let host = format!("{number}-abc.x");
            let expected = Address::Port { sandbox: "abc".into(), port: number };
            prop_assert_eq!(by_host(&host) == Some(expected), number != 0);
        }
    }
}

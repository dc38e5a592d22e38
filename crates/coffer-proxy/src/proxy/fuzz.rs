//! Fuzzes where a request goes, for any head that a client can write, and what is forwarded inside.

use std::net::{IpAddr, Ipv4Addr};

use coffer_core::SandboxId;
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{Request, request};
use percent_encoding::percent_decode_str;

use super::address::{Address, address};
use super::{head, signed};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

/// The first line is a method and a target, the others are headers.
pub fn fuzz_address(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let Some(space) = first.iter().position(|byte| *byte == b' ') else { return };
    let (method, target) = first.split_at(space);
    let mut builder = Request::builder().method(method).uri(&target[1..]);
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        builder = builder.header(&line[..colon], line[colon + 1..].trim_ascii());
    }
    let Ok(request) = builder.body(()) else { return };
    let address = address(&request);
    if let Address::Port { sandbox, port } = &address {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        assert!(*port != 0 && !sandbox.is_empty() && sandbox.len() <= 64 && sandbox.bytes().all(is_name));
        assert!(request.headers().get_all(HOST).iter().count() <= 1, "of two hosts none counts");
    }
    if address == Address::Signed {
        let fleet = vec![(SandboxId::generate(), "token".to_owned()), (SandboxId::generate(), String::new())];
        assert_eq!(signed::signer(&request, fleet), None, "a signature was guessed");
    }
    let path = request.uri().path();
    let plain = percent_decode_str(path).decode_utf8_lossy().to_ascii_lowercase();
    if plain.split('/').find(|part| !part.is_empty()).is_some_and(|part| part == "init" || part == "coffer") {
        assert!(head::is_control(path), "{path} is open");
    }
    goes_inside(request);
}

/// No hop-by-hop header is forwarded, and there is exactly one host.
fn goes_inside(request: Request<()>) {
    let (parts, ()) = request.into_parts();
    let check = |parts: &request::Parts, upgrades: bool| {
        assert!(parts.headers.contains_key(HOST) && !parts.headers.contains_key(TRANSFER_ENCODING));
        assert!(parts.uri.authority().is_none() && parts.uri.scheme().is_none(), "{}", parts.uri);
        if !upgrades {
            assert!(!parts.headers.contains_key(CONNECTION) && !parts.headers.contains_key(UPGRADE));
        }
    };
    let mut toward_agentd = parts.clone();
    head::toward_agentd(&mut toward_agentd);
    check(&toward_agentd, false);
    let upgrades = head::wants_upgrade(&parts);
    let mut toward_port = parts;
    if head::toward_port(&mut toward_port, 80, Some("localhost:${PORT}"), PEER).is_ok() {
        check(&toward_port, upgrades);
        assert_eq!(toward_port.headers[HOST], "localhost:80");
        assert!(!toward_port.headers.contains_key(head::TRAFFIC_TOKEN));
    }
}

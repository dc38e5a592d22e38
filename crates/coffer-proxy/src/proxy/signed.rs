//! Signed file URLs that name no sandbox.
//!
//! An SDK whose sandbox URL is one address for all sandboxes signs `<url>/files?path=…&signature=…` and a
//! plain HTTP client fetches it: no header, no host name. The signature covers the sandbox's access token, so
//! the sandbox is the one whose token produces it. agentd checks the expiry, so it is only hashed here.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use coffer_core::SandboxId;
use http::header::ACCESS_CONTROL_REQUEST_METHOD;
use http::{Method, Request};
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Whether a request that names no sandbox carries a signature to find it by.
pub(super) fn looks_signed<B>(request: &Request<B>) -> bool {
    request.uri().path() == "/files"
        && !operations(request).is_empty()
        && request.uri().query().is_some_and(|query| parameter(query, "signature").is_some())
}

/// The operations a signature may be for, as the signed text spells them.
fn operations<B>(request: &Request<B>) -> &'static [&'static str] {
    match *request.method() {
        Method::GET | Method::HEAD => &["read"],
        Method::POST => &["write"],
        // A browser's question before an upload or a download: the method is in a header.
        Method::OPTIONS if request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD) => {
            &["read", "write"]
        }
        _ => &[],
    }
}

/// Finds the sandbox whose access token made the signature of `request`.
pub(super) fn signer<B>(request: &Request<B>, secured: Vec<(SandboxId, String)>) -> Option<SandboxId> {
    let query = request.uri().query()?;
    let signature = parameter(query, "signature")?;
    let claimed = STANDARD_NO_PAD.decode(signature.strip_prefix("v1_")?.trim_end_matches('=')).ok()?;
    let path = parameter(query, "path").unwrap_or_default();
    let user = parameter(query, "username").unwrap_or_default();
    let expiry = parameter(query, "signature_expiration").filter(|text| !text.is_empty());

    let operations = operations(request).iter();
    // The part before the token is hashed once: a long path costs nothing per sandbox.
    let starts: Vec<Sha256> = operations
        .map(|operation| {
            let mut start = Sha256::new();
            for part in [&*path, ":", operation, ":", &*user, ":"] {
                start.update(part);
            }
            start
        })
        .collect();
    secured.into_iter().find_map(|(sandbox, token)| {
        let made = starts.iter().any(|start| {
            let mut hash = start.clone();
            hash.update(&token);
            if let Some(expiry) = &expiry {
                hash.update(":");
                hash.update(expiry.as_bytes());
            }
            bool::from(hash.finalize()[..].ct_eq(&claimed))
        });
        made.then_some(sandbox)
    })
}

/// The first value of a query parameter, decoded as a form is.
fn parameter<'q>(query: &'q str, name: &str) -> Option<Cow<'q, str>> {
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if decode(key) == name { Some(decode(value)) } else { None }
    })
}

fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains(['+', '%']) {
        return Cow::Borrowed(text);
    }
    let spaced = text.replace('+', " ");
    Cow::Owned(percent_decode_str(&spaced).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0";

    fn fleet() -> (SandboxId, Vec<(SandboxId, String)>) {
        let wanted = SandboxId::generate();
        let fleet = vec![
            (SandboxId::generate(), "another".to_owned()),
            (wanted, TOKEN.to_owned()),
            (SandboxId::generate(), "a third".to_owned()),
        ];
        (wanted, fleet)
    }

    fn ask(method: &str, uri: &str) -> Option<SandboxId> {
        let (wanted, fleet) = fleet();
        let request = Request::builder().method(method).uri(uri).body(()).unwrap();
        let found = signer(&request, fleet);
        assert!(found.is_none_or(|found| found == wanted), "another sandbox was found");
        found
    }

    fn sign(path: &str, operation: &str, user: &str, expiry: Option<&str>) -> String {
        let mut raw = format!("{path}:{operation}:{user}:{TOKEN}");
        if let Some(expiry) = expiry {
            raw = format!("{raw}:{expiry}");
        }
        let text = STANDARD_NO_PAD.encode(Sha256::digest(raw));
        format!("v1_{}", text.replace('+', "%2B").replace('/', "%2F"))
    }

    #[test]
    fn the_published_vector_finds_its_sandbox() {
        let uri = "/files?path=hello.txt&username=user\
                   &signature=v1_gUtH%2Fs9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E";
        assert!(ask("GET", uri).is_some());
        assert!(ask("HEAD", uri).is_some());
        assert!(ask("POST", uri).is_none(), "a read signature must not find anything to write to");
    }

    #[test]
    fn values_are_decoded_before_they_are_hashed() {
        let signature = sign("/tmp/a b+ü.txt", "write", "", None);
        let uri = format!("/files?path=%2Ftmp%2Fa+b%2B%C3%BC.txt&signature={signature}");
        assert!(ask("POST", &uri).is_some());
        let uri = format!("/files?path=%2Ftmp%2Fa%20b%2B%C3%BC.txt&signature={signature}");
        assert!(ask("POST", &uri).is_some());
    }

    #[test]
    fn an_expired_signature_still_finds_its_sandbox() {
        let signature = sign("a", "read", "user", Some("1"));
        let uri = format!("/files?path=a&username=user&signature={signature}&signature_expiration=1");
        assert!(ask("GET", &uri).is_some());
        let moved = uri.replace("expiration=1", "expiration=9999999999");
        assert!(ask("GET", &moved).is_none(), "the expiry is part of what is signed");
    }

    #[test]
    fn a_preflight_is_matched_by_either_operation() {
        let uri = format!("/files?path=a&signature={}", sign("a", "write", "", None));
        let (wanted, fleet) = fleet();
        let request = Request::builder()
            .method("OPTIONS")
            .uri(uri)
            .header("access-control-request-method", "POST")
            .body(())
            .unwrap();
        assert!(looks_signed(&request));
        assert_eq!(signer(&request, fleet), Some(wanted));
    }

    #[test]
    fn nonsense_finds_nothing() {
        for signature in ["", "v1_", "v2_abc", "v1_%00%ff", "v1_AAAA", "abc"] {
            assert!(ask("GET", &format!("/files?path=a&signature={signature}")).is_none(), "{signature}");
        }
        assert!(ask("GET", "/files?path=a").is_none());
        assert!(ask("DELETE", "/files?path=a&signature=v1_AAAA").is_none());
    }
}

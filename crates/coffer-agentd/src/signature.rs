//! Signed URLs, which permit reading or writing one file.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use coffer_wire::agentd::Init;
use http::HeaderMap;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::agent::{Access, access};
use crate::clock::since_epoch;
use crate::query::Query;

/// What a signed URL permits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    Read,
    Write,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Whether this request may access the file it names; the refusal's text is part of the protocol.
pub(crate) fn permit(
    headers: &HeaderMap,
    query: &Query,
    operation: Operation,
    init: &Init,
) -> Result<(), &'static str> {
    match access(headers, init) {
        Access::Granted => return Ok(()),
        Access::Wrong => return Err("access token present in header but does not match"),
        Access::Missing => {}
    }
    let Some(token) = &init.access_token else {
        return Ok(());
    };
    let given = query.get("signature").ok_or("missing signature query parameter")?;
    let expiry = query.get("signature_expiration");
    let expected = sign(
        query.get("path").unwrap_or_default(),
        operation,
        query.get("username").unwrap_or_default(),
        token,
        expiry,
    );
    if !bool::from(given.as_bytes().ct_eq(expected.as_bytes())) {
        return Err("invalid signature");
    }
    if let Some(expiry) = expiry {
        let expiry: i64 = expiry.parse().map_err(|_| "invalid signature")?;
        if expiry < now_s() {
            return Err("signature is already expired");
        }
    }
    Ok(())
}

fn sign(path: &str, operation: Operation, user: &str, token: &str, expiry: Option<&str>) -> String {
    let mut hash = Sha256::new();
    hash.update(path);
    hash.update(":");
    hash.update(operation.name());
    hash.update(":");
    hash.update(user);
    hash.update(":");
    hash.update(token);
    if let Some(expiry) = expiry {
        hash.update(":");
        hash.update(expiry);
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(hash.finalize()))
}

fn now_s() -> i64 {
    let since = since_epoch();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0";

    fn init() -> Init {
        Init { access_token: Some(TOKEN.into()), ..Init::default() }
    }

    fn check(query: &str, operation: Operation) -> Result<(), &'static str> {
        permit(&HeaderMap::new(), &Query::parse(query), operation, &init())
    }

    #[test]
    fn the_known_vector_matches() {
        assert_eq!(
            sign("hello.txt", Operation::Read, "user", TOKEN, None),
            "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"
        );
        let signed = "path=hello.txt&username=user\
                      &signature=v1_gUtH%2Fs9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E";
        assert_eq!(check(signed, Operation::Read), Ok(()));
        assert_eq!(check(signed, Operation::Write), Err("invalid signature"));
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said() {
        let signed = |expiry: i64| {
            let expiry = expiry.to_string();
            let signature = sign("a b", Operation::Write, "", TOKEN, Some(&expiry));
            let signature = signature.replace('+', "%2B");
            format!("path=a+b&signature={signature}&signature_expiration={expiry}")
        };
        assert_eq!(check(&signed(now_s() + 60), Operation::Write), Ok(()));
        assert_eq!(check(&signed(now_s() - 60), Operation::Write), Err("signature is already expired"));
        assert_eq!(check(&signed(-10_000), Operation::Write), Err("signature is already expired"));
        assert_eq!(check("path=a", Operation::Read), Err("missing signature query parameter"));
        let mut headers = HeaderMap::new();
        headers.insert("x-access-token", "other".parse().unwrap());
        assert_eq!(
            permit(&headers, &Query::parse(""), Operation::Read, &init()),
            Err("access token present in header but does not match")
        );
    }
}

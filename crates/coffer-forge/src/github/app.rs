//! GitHub Apps: creates tokens, valid for an hour, from a private key.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use coffer_store::Secret;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::json;

/// GitHub accepts ten minutes at most, and clocks differ.
const LIFE_S: i64 = 540;
const SKEW_S: i64 = 60;

/// A token of an installation.
#[derive(Debug, Clone)]
pub(super) struct InstallationToken {
    pub(super) token: Secret,
    /// Seconds since the Unix epoch.
    pub(super) expires_s: i64,
}

/// A JWT, valid for minutes, that proves possession of the App's private key.
pub(super) fn proof(key: &str, app_id: i64, now_s: i64) -> Result<Secret, &'static str> {
    let pair = read_key(key)?;
    let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = part(json!({ "alg": "RS256", "typ": "JWT" }));
    let claims = json!({ "iat": now_s - SKEW_S, "exp": now_s + LIFE_S, "iss": app_id.to_string() });
    let text = format!("{head}.{}", part(claims));
    let mut signature = vec![0; pair.public().modulus_len()];
    pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
        .map_err(|_| "cannot sign")?;
    Ok(Secret::new(format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))))
}

/// Parses a key as GitHub issues it (PKCS#1), or in PKCS#8.
fn read_key(pem: &str) -> Result<RsaKeyPair, &'static str> {
    const WHY: &str = "is not the private key of a GitHub App in PEM";
    let between = |label: &str| {
        let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
        let (_, rest) = pem.split_once(&begin)?;
        let (inner, _) = rest.split_once(&end)?;
        let inner: String = inner.chars().filter(|c| !c.is_whitespace()).collect();
        STANDARD.decode(inner).ok()
    };
    if let Some(der) = between("RSA PRIVATE KEY") {
        return RsaKeyPair::from_der(&der).map_err(|_| WHY);
    }
    let der = between("PRIVATE KEY").ok_or(WHY)?;
    RsaKeyPair::from_pkcs8(&der).map_err(|_| WHY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_key_is_told() {
        for bad in ["", "ghp_x", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"] {
            assert!(proof(bad, 1, 0).is_err(), "{bad}");
        }
    }
}

//! Signs deliveries: in our own form, and as Standard Webhooks does, with the same key.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use coffer_store::Secret;
use ring::hmac;

/// The prefix of keys that we create, from Standard Webhooks.
const MARK: &str = "whsec_";
const KEY_BYTES: usize = 24;

/// A new key, as text to show once.
pub fn new_key() -> Secret {
    Secret::from(format!("{MARK}{}", STANDARD.encode(rand::random::<[u8; KEY_BYTES]>())))
}

/// The signature headers of a delivery.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Signed {
    /// `sha256=<hex of HMAC over "timestamp.body">`.
    pub(super) own: String,
    /// `v1,<base64 of HMAC over "id.timestamp.body">`.
    pub(super) standard: String,
}

/// Signs a delivery with a secret: the part after `whsec_` is base64, any other text is the key itself.
pub(super) fn sign(secret: &str, id: &str, timestamp: i64, body: &str) -> Signed {
    let decoded = secret.strip_prefix(MARK).and_then(|rest| STANDARD.decode(rest).ok());
    let key = decoded.unwrap_or_else(|| secret.as_bytes().to_vec());
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    let own = hmac::sign(&key, format!("{timestamp}.{body}").as_bytes());
    let standard = hmac::sign(&key, format!("{id}.{timestamp}.{body}").as_bytes());
    Signed {
        own: format!("sha256={}", hex::encode(own)),
        standard: format!("v1,{}", STANDARD.encode(standard)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the Standard Webhooks specification's reference libraries.
    #[test]
    fn the_standard_signature_is_the_standards() {
        let signed = sign(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            r#"{"test": 2432232314}"#,
        );
        assert_eq!(signed.standard, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn every_part_counts() {
        let of = |secret: &str, id: &str, at, body: &str| sign(secret, id, at, body);
        let first = of("key", "a", 1, "{}");
        for other in [of("kez", "a", 1, "{}"), of("key", "a", 2, "{}"), of("key", "a", 1, "{ }")] {
            assert_ne!(first.own, other.own);
            assert_ne!(first.standard, other.standard);
        }
        assert_ne!(first.standard, of("key", "b", 1, "{}").standard);
        let (one, two) = (new_key(), new_key());
        assert_ne!(one.reveal(), two.reveal());
        assert!(one.reveal().starts_with(MARK));
    }
}

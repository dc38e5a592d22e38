//! Sealing: XChaCha20-Poly1305 with a random nonce, bound to the purpose of the text.
//!
//! A sealed text is `s1.<number of the data key>.<base64>`. It cannot be opened in another row, column or
//! project, because those are authenticated.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use sha2::{Digest, Sha256};

const MARK: &str = "s1.";
const NONCE: usize = 24;

/// 256 random bits that seal and open.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    pub(crate) fn generate() -> Self {
        Self(rand::random())
    }

    /// Seals `text` for `purpose`.
    pub(crate) fn seal(&self, purpose: &str, text: &[u8]) -> String {
        let nonce: [u8; NONCE] = rand::random();
        let payload = Payload { msg: text, aad: purpose.as_bytes() };
        let sealed = XChaCha20Poly1305::new((&self.0).into())
            .encrypt(&XNonce::from(nonce), payload)
            .expect("memory is not as large as the cipher's bound");
        BASE64.encode([&nonce[..], &sealed].concat())
    }

    /// Opens a text that was sealed for `purpose` with this key.
    pub(crate) fn open(&self, purpose: &str, sealed: &str) -> Option<Vec<u8>> {
        let bytes = BASE64.decode(sealed).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<NONCE>()?;
        let payload = Payload { msg: sealed, aad: purpose.as_bytes() };
        XChaCha20Poly1305::new((&self.0).into()).decrypt(&XNonce::from(*nonce), payload).ok()
    }

    /// Another key, sealed with this one.
    pub(crate) fn seal_key(&self, purpose: &str, key: &Self) -> String {
        self.seal(purpose, &key.0)
    }

    pub(crate) fn open_key(&self, purpose: &str, sealed: &str) -> Option<Self> {
        Some(Self(self.open(purpose, sealed)?.try_into().ok()?))
    }
}

/// The text of a column: the number of its data key, and the sealed text.
pub(crate) fn written(number: i64, sealed: &str) -> String {
    format!("{MARK}{number}.{sealed}")
}

/// Parses a column; `None` for unsealed text of older versions.
pub(crate) fn read(text: &str) -> Option<(i64, &str)> {
    let (number, sealed) = text.strip_prefix(MARK)?.split_once('.')?;
    Some((number.parse().ok()?, sealed))
}

/// The key that seals all data keys. It is never in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MasterKey(Key);

/// The text is not a master key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a master key is 32 bytes in base64, as `coffer-master-…`")]
pub struct BadMasterKey;

impl MasterKey {
    const MARK: &str = "coffer-master-";

    pub fn generate() -> Self {
        Self(Key::generate())
    }

    /// Reads what [`text`](Self::text) writes.
    pub fn parse(text: &str) -> Result<Self, BadMasterKey> {
        let digits = text.trim().strip_prefix(Self::MARK).ok_or(BadMasterKey)?;
        let bytes = BASE64.decode(digits).map_err(|_| BadMasterKey)?;
        Ok(Self(Key(bytes.try_into().map_err(|_| BadMasterKey)?)))
    }

    /// The key itself, for its file.
    pub fn text(&self) -> String {
        format!("{}{}", Self::MARK, BASE64.encode(self.0.0))
    }

    /// Its id, which reveals nothing of the key.
    pub fn id(&self) -> String {
        let digest = Sha256::new().chain_update(b"coffer master key id\0").chain_update(self.0.0).finalize();
        hex::encode(&digest[..8])
    }

    pub(crate) fn key(&self) -> &Key {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_opens_only_for_its_purpose_and_by_its_key() {
        let (key, other) = (Key::generate(), Key::generate());
        let sealed = key.seal("a", b"hidden");
        assert_eq!(key.open("a", &sealed).as_deref(), Some(&b"hidden"[..]));
        assert_ne!(sealed, key.seal("a", b"hidden"), "two seals of one text look alike");
        assert_eq!(key.open("b", &sealed), None);
        assert_eq!(other.open("a", &sealed), None);
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone().into_bytes();
            damaged[at] = if damaged[at] == b'A' { b'B' } else { b'A' };
            let damaged = String::from_utf8(damaged).unwrap();
            // The last digit may have unused bits; the decoder refuses those.
            assert_eq!(key.open("a", &damaged), None, "{at}");
        }
        assert_eq!(key.open("a", ""), None);
    }

    #[test]
    fn a_master_key_survives_text_and_hides_from_logs() {
        let key = MasterKey::generate();
        assert_eq!(MasterKey::parse(&format!("{}\n", key.text())), Ok(key.clone()));
        assert!(!format!("{key:?}").contains(&key.text()[14..]));
        assert_ne!(key.id(), MasterKey::generate().id());
        for bad in ["", "coffer-master-", "coffer-master-AAAA", &key.text()[14..]] {
            assert_eq!(MasterKey::parse(bad), Err(BadMasterKey), "{bad}");
        }
    }

    #[test]
    fn columns_say_which_key_they_need() {
        assert_eq!(read(&written(3, "abc")), Some((3, "abc")));
        for plain in ["", "{}", "s1.", "s1.x.y", "abcdef"] {
            assert_eq!(read(plain), None, "{plain}");
        }
    }
}

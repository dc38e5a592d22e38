//! Ed25519 keys, in OpenSSH's forms.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SecureRandom as _;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};

use crate::text::{Append as _, Fields};

/// The only kind of key here.
pub(crate) const KIND: &str = "ssh-ed25519";
const MAGIC: &[u8] = b"openssh-key-v1\0";
const BEGIN: &str = "-----BEGIN OPENSSH PRIVATE KEY-----";
const END: &str = "-----END OPENSSH PRIVATE KEY-----";

/// Why a text is not a key.
#[derive(Debug, thiserror::Error)]
#[error("it is not an unencrypted Ed25519 key in OpenSSH's format")]
pub struct KeyError;

/// A private key and its public half.
pub struct KeyPair {
    seed: [u8; 32],
    pair: Ed25519KeyPair,
}

/// Without the secret.
impl std::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyPair({})", self.public().line())
    }
}

/// What may be known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

impl KeyPair {
    /// A new key. Fails if the system has no random numbers.
    pub fn generate() -> Result<Self, KeyError> {
        let mut seed = [0; 32];
        ring::rand::SystemRandom::new().fill(&mut seed).map_err(|_| KeyError)?;
        Self::of(seed)
    }

    fn of(seed: [u8; 32]) -> Result<Self, KeyError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| KeyError)?;
        Ok(Self { seed, pair })
    }

    pub fn public(&self) -> PublicKey {
        let mut key = [0; 32];
        key.copy_from_slice(self.pair.public_key().as_ref());
        PublicKey(key)
    }

    /// The text of a private key file.
    pub fn to_openssh(&self, comment: &str) -> String {
        let public = self.public();
        let mut secret = Vec::new();
        // Equal numbers show that decryption worked; without encryption they say nothing.
        secret.number(0);
        secret.number(0);
        secret.string(KIND.as_bytes());
        secret.string(&public.0);
        secret.string(&[self.seed, public.0].concat());
        secret.string(comment.as_bytes());
        secret.extend((1..=8).take((8 - secret.len() % 8) % 8));
        let mut all = MAGIC.to_vec();
        all.string(b"none");
        all.string(b"none");
        all.string(b"");
        all.number(1);
        all.string(&public.blob());
        all.string(&secret);
        let text = STANDARD.encode(all);
        let mut file = format!("{BEGIN}\n");
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (line, after) = rest.split_at(rest.len().min(70));
            file.push_str(line);
            file.push('\n');
            rest = after;
        }
        file.push_str(END);
        file.push('\n');
        file
    }

    /// Reads what [`KeyPair::to_openssh`] or `ssh-keygen -t ed25519 -N ''` wrote.
    pub fn from_openssh(text: &str) -> Result<Self, KeyError> {
        let inner =
            text.trim().strip_prefix(BEGIN).and_then(|text| text.strip_suffix(END)).ok_or(KeyError)?;
        let packed: String = inner.split_whitespace().collect();
        let bytes = STANDARD.decode(packed).map_err(|_| KeyError)?;
        let seed = seed_in(bytes.strip_prefix(MAGIC).ok_or(KeyError)?).map_err(|_| KeyError)?;
        Self::of(seed.ok_or(KeyError)?)
    }

    /// A signature, in the form that messages carry.
    pub(crate) fn sign(&self, data: &[u8]) -> Vec<u8> {
        let mut signature = Vec::new();
        signature.string(KIND.as_bytes());
        signature.string(self.pair.sign(data).as_ref());
        signature
    }
}

fn seed_in(bytes: &[u8]) -> Result<Option<[u8; 32]>, crate::Error> {
    let mut fields = Fields::of(bytes);
    if fields.string()? != b"none" {
        return Ok(None);
    }
    fields.string()?;
    fields.string()?;
    if fields.number()? != 1 {
        return Ok(None);
    }
    fields.string()?;
    let mut secret = Fields::of(fields.string()?);
    secret.skip(8)?;
    if secret.string()? != KIND.as_bytes() {
        return Ok(None);
    }
    secret.string()?;
    Ok(secret.string()?.first_chunk().copied())
}

impl PublicKey {
    /// As messages and files carry it.
    pub(crate) fn blob(&self) -> Vec<u8> {
        let mut blob = Vec::new();
        blob.string(KIND.as_bytes());
        blob.string(&self.0);
        blob
    }

    /// `ssh-ed25519 AAAA…`, as in `known_hosts` and `*.pub`.
    pub fn line(&self) -> String {
        format!("{KIND} {}", STANDARD.encode(self.blob()))
    }

    pub(crate) fn verifies(&self, data: &[u8], signature: &[u8]) -> bool {
        let mut fields = Fields::of(signature);
        let (Ok(kind), Ok(signature)) = (fields.string(), fields.string()) else { return false };
        kind == KIND.as_bytes() && UnparsedPublicKey::new(&ED25519, &self.0).verify(data, signature).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_back_from_its_file() {
        let key = KeyPair::generate().unwrap();
        let text = key.to_openssh("coffer");
        let again = KeyPair::from_openssh(&text).unwrap();
        assert_eq!(again.public(), key.public());
        assert!(again.public().verifies(b"data", &key.sign(b"data")));
        assert!(!again.public().verifies(b"other", &key.sign(b"data")));
        assert!(!format!("{key:?}").contains(text.lines().nth(2).unwrap()));
    }

    #[test]
    fn what_is_not_a_key_is_refused() {
        let text = KeyPair::generate().unwrap().to_openssh("");
        for bad in ["", BEGIN, "-----BEGIN RSA PRIVATE KEY-----", &text.replace("b3Bl", "AAAA"), &text[..120]]
        {
            assert!(KeyPair::from_openssh(bad).is_err(), "{bad}");
        }
    }
}

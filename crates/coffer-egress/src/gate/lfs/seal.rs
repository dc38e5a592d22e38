//! Seals the addresses of a batch, so that the sandbox carries them but cannot read them.
//!
//! The forge's answer has addresses and headers that give access to an object. The sandbox gets each as text
//! that only this sandbox's gate can open, so the gate stores nothing, however many objects it is asked for.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use coffer_core::Millis;
use coffer_core::network::GitSlug;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};

/// A longer text would not fit into a request line.
const LONGEST: usize = 48 * 1024;

/// The allowed action on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Action {
    Download,
    Upload,
    Verify,
}

/// One action on one object.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ticket {
    pub(super) action: Action,
    pub(super) oid: String,
    pub(super) size: u64,
    /// The address from the forge.
    pub(super) href: String,
    pub(super) header: Vec<(String, String)>,
    /// The repository of the request. A route of the same name may change later.
    pub(super) upstream: String,
    pub(super) until_ms: Millis,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("action", &self.action).field("oid", &self.oid).finish_non_exhaustive()
    }
}

/// The key of one sandbox's gate. It exists only here, as long as the sandbox is served.
pub(crate) struct Seal {
    key: LessSafeKey,
    mark: [u8; 4],
    sealed: AtomicU64,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(…)")
    }
}

impl Seal {
    pub(crate) fn new() -> Self {
        let key = UnboundKey::new(&AES_256_GCM, &rand::random::<[u8; 32]>()).expect("a key of 32 bytes");
        Self { key: LessSafeKey::new(key), mark: rand::random(), sealed: AtomicU64::new(0) }
    }

    /// The ticket as text for a URL; `None` if it is too long.
    pub(super) fn close(&self, slug: &GitSlug, ticket: &Ticket) -> Option<String> {
        let mut bytes = serde_json::to_vec(ticket).ok()?;
        // A counter, so that no nonce repeats under this key.
        let count = self.sealed.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        let mut nonce = [0; NONCE_LEN];
        nonce[..4].copy_from_slice(&self.mark);
        nonce[4..].copy_from_slice(&count);
        let aad = Aad::from(slug.as_str().as_bytes());
        self.key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut bytes).ok()?;
        let text = URL_SAFE_NO_PAD.encode([&nonce[..], &bytes].concat());
        (text.len() <= LONGEST).then_some(text)
    }

    /// Opens a ticket that this gate sealed for this repository.
    pub(super) fn open(&self, slug: &GitSlug, text: &str) -> Option<Ticket> {
        if text.len() > LONGEST {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let aad = Aad::from(slug.as_str().as_bytes());
        let plain = self.key.open_in_place(nonce, aad, &mut sealed).ok()?;
        serde_json::from_slice(plain).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        Ticket {
            action: Action::Download,
            oid: "a".repeat(64),
            size: 3,
            href: "https://store.example.com/secret?sig=hidden".into(),
            header: vec![("authorization".into(), "hidden".into())],
            upstream: "https://github.com/o/r.git".into(),
            until_ms: 7,
        }
    }

    #[test]
    fn what_is_sealed_opens_for_its_own_gate_and_repository_alone() {
        let (seal, other) = (Seal::new(), Seal::new());
        let (app, lib): (GitSlug, GitSlug) = ("app".parse().unwrap(), "lib".parse().unwrap());
        let text = seal.close(&app, &ticket()).unwrap();
        assert_eq!(seal.open(&app, &text), Some(ticket()));
        assert_ne!(seal.close(&app, &ticket()).unwrap(), text, "each is sealed in its own way");
        assert_eq!(seal.open(&lib, &text), None);
        assert_eq!(other.open(&app, &text), None);
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        assert!(!bytes.windows(6).any(|part| part == b"hidden"));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(seal.open(&app, &URL_SAFE_NO_PAD.encode(changed)), None);
        }
        for bad in ["", "AAAA", "!", &text[..text.len() - 4], &"A".repeat(LONGEST + 1)] {
            assert_eq!(seal.open(&app, bad), None, "{bad:.20}");
        }
        let long = Ticket { href: "x".repeat(LONGEST), ..ticket() };
        assert_eq!(seal.close(&app, &long), None);
    }
}

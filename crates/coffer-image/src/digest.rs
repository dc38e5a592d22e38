//! SHA-256 digests, as images name their parts.

use std::fmt;
use std::str::FromStr;

const PREFIX: &str = "sha256:";

/// The SHA-256 of a blob. Images may name other algorithms; no registry in use does, and we refuse them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// Not `sha256:` and 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be `sha256:` and 64 hexadecimal digits in lower case")]
pub struct BadDigest;

/// Computes a digest piece by piece.
#[derive(Clone)]
pub(crate) struct Hasher(ring::digest::Context);

impl Digest {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }

    pub(crate) fn parse_hex(text: &str) -> Result<Self, BadDigest> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let mut bytes = [0; 32];
        if !text.bytes().all(is_digit) {
            return Err(BadDigest);
        }
        hex::decode_to_slice(text, &mut bytes).map_err(|_| BadDigest)?;
        Ok(Self(bytes))
    }

    /// The 64 digits, without `sha256:`.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl Hasher {
    pub(crate) fn new() -> Self {
        Self(ring::digest::Context::new(&ring::digest::SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.finish().as_ref());
        Digest(bytes)
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher")
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        Self::parse_hex(text.strip_prefix(PREFIX).ok_or(BadDigest)?)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_sha256_in_lower_case() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.parse(), Ok(Digest::of(b"")));
        let upper = empty.to_uppercase();
        for bad in
            ["", "sha256:", &empty[7..], &empty[..70], &upper, "sha512:00", "sha256:../../../etc/passwd"]
        {
            assert_eq!(bad.parse::<Digest>(), Err(BadDigest), "{bad}");
        }
    }
}

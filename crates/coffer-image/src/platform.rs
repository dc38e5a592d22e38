//! Platforms: which of an image's variants to take.

use std::fmt;
use std::str::FromStr;

const LONGEST: usize = 64;

/// An operating system and a processor: `linux/amd64`, `linux/arm/v6`. The usual variant of a processor is left out, so
/// `linux/arm64/v8` is `linux/arm64`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

impl Platform {
    /// The platform of this machine.
    pub fn host() -> Self {
        Self::new("linux", std::env::consts::ARCH, "")
    }

    pub(crate) fn new(os: &str, architecture: &str, variant: &str) -> Self {
        let (os, architecture, variant) =
            (os.to_ascii_lowercase(), architecture.to_ascii_lowercase(), variant.to_ascii_lowercase());
        let (architecture, usual) = match architecture.as_str() {
            "x86_64" | "x86-64" | "amd64" => ("amd64", "v1"),
            "aarch64" | "arm64" => ("arm64", "v8"),
            "arm" => ("arm", "v7"),
            other => (other, ""),
        };
        // Some images have `8` for `v8`.
        let is_usual = variant.is_empty() || variant == usual || usual.strip_prefix('v') == Some(&variant);
        Self { os, architecture: architecture.to_string(), variant: (!is_usual).then_some(variant) }
    }

    /// Attestations and other extras of an index say `unknown/unknown`.
    pub(crate) fn is_known(&self) -> bool {
        self.os != "unknown" && self.architecture != "unknown"
    }
}

/// Not `os/architecture` or `os/architecture/variant`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a platform such as `linux/amd64` or `linux/arm64`")]
pub struct BadPlatform;

impl FromStr for Platform {
    type Err = BadPlatform;

    fn from_str(text: &str) -> Result<Self, BadPlatform> {
        let is_word = |word: &&str| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        let words: Vec<&str> = text.split('/').collect();
        if text.len() > LONGEST || !words.iter().all(is_word) {
            return Err(BadPlatform);
        }
        match words[..] {
            [os, architecture] => Ok(Self::new(os, architecture, "")),
            [os, architecture, variant] => Ok(Self::new(os, architecture, variant)),
            _ => Err(BadPlatform),
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().try_for_each(|variant| write!(f, "/{variant}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_variants_and_other_spellings_are_one_platform() {
        for (text, shown) in [
            ("linux/amd64", "linux/amd64"),
            ("Linux/x86_64", "linux/amd64"),
            ("linux/amd64/v3", "linux/amd64/v3"),
            ("linux/arm64/v8", "linux/arm64"),
            ("linux/aarch64", "linux/arm64"),
            ("linux/arm64/8", "linux/arm64"),
            ("linux/arm/v6", "linux/arm/v6"),
            ("windows/amd64", "windows/amd64"),
        ] {
            assert_eq!(text.parse::<Platform>().unwrap().to_string(), shown, "{text}");
        }
        for bad in ["", "linux", "linux/", "/amd64", "a/b/c/d", "linux/am d64", &"a/".repeat(100), "a/\n"] {
            assert_eq!(bad.parse::<Platform>(), Err(BadPlatform), "{bad}");
        }
        assert!(Platform::host().to_string().starts_with("linux/"));
    }
}

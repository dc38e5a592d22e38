//! Host names, normalised.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// A host name: lower case, without a final dot, and never something that could be parsed as an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(Box<str>);

/// The text is not a host name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a host name")]
pub struct BadName;

impl HostName {
    /// Parses a name; one final dot is dropped, which does not change its meaning.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let labels_fit = text.len() <= LONGEST_NAME && text.split('.').all(is_label);
        let last = text.rsplit('.').next().unwrap_or_default();
        if !labels_fit || is_number(last) {
            return Err(BadName);
        }
        Ok(Self(text.to_ascii_lowercase().into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_label(label: &str) -> bool {
    (1..=LONGEST_LABEL).contains(&label.len())
        && !label.starts_with('-')
        && !label.ends_with('-')
        && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// `inet_aton` and browsers parse a name that ends in a number as an address: `127.1`, `0x7f.1`, `1`.
fn is_number(label: &str) -> bool {
    let hex = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
    hex.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))
        || label.bytes().all(|b| b.is_ascii_digit())
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for HostName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        Self::parse(text)
    }
}

impl Serialize for HostName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for HostName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// One name, or all names below one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NamePattern {
    /// Only this name.
    Exactly(HostName),
    /// `*.example.com`: any number of labels before it, and never the name itself.
    Below(HostName),
}

impl NamePattern {
    /// Parses a name or `*.` and a name.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        match text.strip_prefix("*.") {
            Some(parent) => HostName::parse(parent).map(Self::Below),
            None => HostName::parse(text).map(Self::Exactly),
        }
    }

    /// Returns whether it matches `name`.
    pub fn matches(&self, name: &HostName) -> bool {
        match self {
            Self::Exactly(exact) => exact == name,
            Self::Below(parent) => {
                name.0.strip_suffix(&*parent.0).is_some_and(|front| front.len() > 1 && front.ends_with('.'))
            }
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(name) => write!(f, "{name}"),
            Self::Below(parent) => write!(f, "*.{parent}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_has_one_spelling() {
        for spelling in ["Example.COM", "example.com.", "EXAMPLE.com"] {
            assert_eq!(HostName::parse(spelling).unwrap().as_str(), "example.com");
        }
    }

    #[test]
    fn what_could_be_an_address_is_no_name() {
        for text in [
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0X7F.0.0.1",
            "0177.0.0.1",
            "a.1",
            "1.",
            "0x",
            "::1",
            "[::1]",
            "fe80::1%lo",
            "1.2.3.4.",
            "a.0x7f",
        ] {
            assert_eq!(HostName::parse(text), Err(BadName), "{text}");
        }
    }

    #[test]
    fn what_is_malformed_is_no_name() {
        let long_label = "a".repeat(64);
        let long_name = "a.".repeat(126) + "aa";
        for text in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a..",
            "-a.b",
            "a-.b",
            "a b",
            "a\0b",
            "a/b",
            "a@b",
            "a:1",
            "ä.de",
            "*",
            "*.a",
            "a.*",
            &long_label,
            &long_name,
        ] {
            assert_eq!(HostName::parse(text), Err(BadName), "{text}");
        }
        assert!(HostName::parse(&("a.".repeat(126) + "a")).is_ok());
        assert!(HostName::parse("_dmarc.xn--bcher-kva.example").is_ok());
    }

    #[test]
    fn a_wildcard_means_what_is_below() {
        let pattern = NamePattern::parse("*.example.com").unwrap();
        for (name, inside) in [
            ("a.example.com", true),
            ("a.b.EXAMPLE.com", true),
            ("example.com", false),
            ("badexample.com", false),
            ("example.com.evil.org", false),
            ("com", false),
        ] {
            assert_eq!(pattern.matches(&HostName::parse(name).unwrap()), inside, "{name}");
        }
        for bad in ["*", "**.a", "*.*.a", "a.*.b", "*a.b", "*.1"] {
            assert_eq!(NamePattern::parse(bad), Err(BadName), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_is_idempotent(text in "\\PC{0,40}") {
            if let Ok(name) = HostName::parse(&text) {
                prop_assert_eq!(HostName::parse(name.as_str()), Ok(name));
            }
        }

        #[test]
        fn everything_below_is_below_and_nothing_else(
            front in "[a-z0-9]{1,8}(\\.[a-z]{1,5}){0,2}", parent in "[a-z]{1,8}\\.[a-z]{2,4}",
        ) {
            let below = NamePattern::parse(&format!("*.{parent}")).unwrap();
            let child = HostName::parse(&format!("{front}.{parent}")).unwrap();
            prop_assert!(below.matches(&child));
            prop_assert!(!below.matches(&HostName::parse(&parent).unwrap()));
            let glued = HostName::parse(&format!("{front}{parent}")).unwrap();
            prop_assert!(!below.matches(&glued));
        }
    }
}

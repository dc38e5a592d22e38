//! An entry of a list: a target, and optionally ports.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Block, HostName, NamePattern};

/// The target of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// `*`: anything.
    Anything,
    Name(NamePattern),
    Block(Block),
}

/// A range of ports, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// Every port.
    pub const ALL: Self = Self { first: 0, last: u16::MAX };

    /// Returns whether `port` is in the range.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// Returns whether `is` holds for every port in the range.
    pub(super) fn are_all(self, is: impl Fn(u16) -> bool) -> bool {
        (self.first..=self.last).all(is)
    }

    fn parse(text: &str) -> Option<Self> {
        let number = |digits: &str| {
            let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
            plain.then(|| digits.parse::<u16>().ok()).flatten()
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (number(first)?, number(last)?);
        (first <= last).then_some(Self { first, last })
    }
}

/// One line of an allow or deny list.
///
/// As text: `example.com`, `*.example.com:443`, `1.2.3.4`, `10.0.0.0/8:8000-8100`, `2001:db8::/32`,
/// `[2001:db8::/32]:443`, `*:22`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    pub target: Target,
    pub ports: Ports,
}

/// The text is not an entry of a list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a name, address or CIDR block, with or without ports")]
pub struct BadEntry(String);

impl Entry {
    /// Creates an entry for all ports of `target`.
    pub fn all_ports(target: Target) -> Self {
        Self { target, ports: Ports::ALL }
    }

    /// Returns whether the entry matches `name` at `port`.
    pub fn matches_name(&self, name: &HostName, port: u16) -> bool {
        matches!(&self.target, Target::Name(pattern) if pattern.matches(name)) && self.ports.contains(port)
    }

    /// Returns whether the entry matches `address` at `port`, whatever its name.
    pub fn matches_address(&self, address: IpAddr, port: u16) -> bool {
        let fits = match &self.target {
            Target::Anything => true,
            Target::Block(block) => block.contains(address),
            Target::Name(_) => false,
        };
        fits && self.ports.contains(port)
    }

    /// Returns whether the entry is a name.
    pub fn is_name(&self) -> bool {
        matches!(self.target, Target::Name(_))
    }
}

impl FromStr for Entry {
    type Err = BadEntry;

    fn from_str(text: &str) -> Result<Self, BadEntry> {
        let bad = || BadEntry(text.chars().take(80).collect());
        // Bare IPv6 has colons of its own, so with ports it is in brackets.
        let (target, ports) = if let Some(rest) = text.strip_prefix('[') {
            let (inside, after) = rest.split_once(']').ok_or_else(bad)?;
            if !inside.contains(':') {
                return Err(bad());
            }
            (inside, Some(after.strip_prefix(':').ok_or_else(bad)?))
        } else {
            match text.split_once(':') {
                Some((target, ports)) if !ports.contains(':') => (target, Some(ports)),
                _ => (text, None),
            }
        };
        let ports = match ports {
            Some(ports) => Ports::parse(ports).ok_or_else(bad)?,
            None => Ports::ALL,
        };
        let target = if target == "*" {
            Target::Anything
        } else if let Ok(block) = target.parse() {
            Target::Block(block)
        } else {
            Target::Name(NamePattern::parse(target).map_err(|_| bad())?)
        };
        Ok(Self { target, ports })
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = match &self.target {
            Target::Anything => "*".to_owned(),
            Target::Name(pattern) => pattern.to_string(),
            Target::Block(block) => block.to_string(),
        };
        let Ports { first, last } = self.ports;
        if self.ports == Ports::ALL {
            return f.write_str(&target);
        }
        if target.contains(':') {
            write!(f, "[{target}]:{first}")?;
        } else {
            write!(f, "{target}:{first}")?;
        }
        if first == last { Ok(()) } else { write!(f, "-{last}") }
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_text() {
        for text in [
            "*",
            "*:22",
            "example.com",
            "*.example.com:443",
            "1.2.3.4",
            "10.0.0.0/8:8000-8100",
            "2001:db8::/32",
            "[2001:db8::/32]:443",
            "[::1]:1-65535",
            "0.0.0.0/0",
            "::/0",
        ] {
            let entry: Entry = text.parse().unwrap();
            assert_eq!(entry.to_string(), text);
            assert_eq!(
                serde_json::from_str::<Entry>(&serde_json::to_string(&entry).unwrap()).unwrap(),
                entry
            );
        }
    }

    #[test]
    fn what_is_unclear_is_refused() {
        for text in [
            "",
            ":",
            ":80",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "a:080",
            "a:9-8",
            "a:1-",
            "a:-1",
            "a:1-2-3",
            "a b",
            "[::1]",
            "[::1",
            "[::1]80",
            "[1.2.3.4]:80",
            "[a.com]:80",
            "::1:99999",
            "127.1",
            "0x7f.1:80",
            "*.*",
            "http://a.com",
            "a.com/x",
            "10.0.0.0/33",
        ] {
            assert!(text.parse::<Entry>().is_err(), "{text}");
        }
    }

    #[test]
    fn ports_bound_an_entry() {
        let entry: Entry = "10.0.0.0/8:8000-8100".parse().unwrap();
        for (port, inside) in [(7999, false), (8000, true), (8100, true), (8101, false)] {
            assert_eq!(entry.matches_address("10.1.1.1".parse().unwrap(), port), inside, "{port}");
        }
        let named: Entry = "*.a.com:443".parse().unwrap();
        assert!(named.matches_name(&"b.a.com".parse().unwrap(), 443));
        assert!(!named.matches_name(&"b.a.com".parse().unwrap(), 80));
        assert!(!named.matches_address("1.1.1.1".parse().unwrap(), 443));
    }
}

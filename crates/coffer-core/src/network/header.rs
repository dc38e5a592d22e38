//! Headers that egress adds to a sandbox's requests to named hosts.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{HostName, NamePattern};

const HTTPS: u16 = 443;
const HTTP: u16 = 80;
/// The start of a reference to a secret of the project; its name and `}` follow.
pub const SECRET_REFERENCE: &str = "${secret:";

/// A host, and its HTTPS port; as text `api.example.com`, `*.example.com:8443`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderHost {
    pattern: NamePattern,
    port: NonZeroU16,
}

/// The text is not a host name, with or without a port.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a host name, or `*.` and a host name, optionally with a port")]
pub struct BadHeaderHost(String);

impl FromStr for HeaderHost {
    type Err = BadHeaderHost;

    fn from_str(text: &str) -> Result<Self, BadHeaderHost> {
        let bad = || BadHeaderHost(text.chars().take(80).collect());
        let (name, port) = match text.split_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => {
                (name, port.parse().map_err(|_| bad())?)
            }
            Some(_) => return Err(bad()),
            None => (text, NonZeroU16::new(HTTPS).ok_or_else(bad)?),
        };
        Ok(Self { pattern: NamePattern::parse(name).map_err(|_| bad())?, port })
    }
}

impl HeaderHost {
    /// Returns whether `pattern` matches every name that this matches.
    pub fn is_within(&self, pattern: &NamePattern) -> bool {
        match (&self.pattern, pattern) {
            (NamePattern::Exactly(name), pattern) => pattern.matches(name),
            (NamePattern::Below(own), NamePattern::Below(other)) => own == other || pattern.matches(own),
            (NamePattern::Below(_), NamePattern::Exactly(_)) => false,
        }
    }
}

impl fmt::Display for HeaderHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.pattern)?;
        if self.port.get() == HTTPS { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

impl Serialize for HeaderHost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HeaderHost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The name of a header that may be added, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeaderName(Box<str>);

/// Why a header cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    #[error("`{0}` is not a header name of at most {most} characters", most = HeaderName::LONGEST)]
    Name(String),
    #[error("header `{0}` controls request framing and cannot be injected")]
    Framing(String),
    #[error(
        "a header value has 1 to {} visible characters, with spaces only between them",
        HeaderText::LONGEST
    )]
    Text,
}

impl HeaderName {
    const LONGEST: usize = 64;

    /// Parses a name. Headers that define the end or the target of a request are refused: two parsers of the
    /// same bytes could then disagree.
    pub fn parse(text: &str) -> Result<Self, BadHeader> {
        let shown = || text.chars().take(80).collect::<String>();
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if text.is_empty() || text.len() > Self::LONGEST || !text.bytes().all(is_token) {
            return Err(BadHeader::Name(shown()));
        }
        let name = text.to_ascii_lowercase();
        let framing = [
            "host",
            "content-length",
            "transfer-encoding",
            "connection",
            "te",
            "trailer",
            "upgrade",
            "keep-alive",
            "expect",
            "http2-settings",
        ];
        if framing.contains(&name.as_str()) || name.starts_with("proxy-") {
            return Err(BadHeader::Framing(shown()));
        }
        Ok(Self(name.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Serialize for HeaderName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for HeaderName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// The value of a header: usually a secret, or text with references to secrets. Its `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct HeaderText(Box<str>);

impl fmt::Debug for HeaderText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderText(…)")
    }
}

impl HeaderText {
    const LONGEST: usize = 8 * 1024;

    pub fn parse(text: &str) -> Result<Self, BadHeader> {
        let fits = (1..=Self::LONGEST).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_graphic() || b == b' ')
            && !text.starts_with(' ')
            && !text.ends_with(' ');
        if fits { Ok(Self(text.into())) } else { Err(BadHeader::Text) }
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The names of the secrets that it refers to.
    pub(super) fn secret_names(&self) -> impl Iterator<Item = &str> {
        let after = self.0.split(SECRET_REFERENCE).skip(1);
        after.filter_map(|rest| rest.split_once('}')).map(|(name, _)| name)
    }

    pub(super) fn refers_to_secrets(&self) -> bool {
        self.0.contains(SECRET_REFERENCE)
    }
}

impl Serialize for HeaderText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for HeaderText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// Headers for some hosts. Egress terminates TLS to them and opens a new TLS connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderRule {
    pub hosts: Vec<HeaderHost>,
    pub headers: BTreeMap<HeaderName, HeaderText>,
    /// Whether they are also added to plain HTTP at port 80, which everyone on the path can read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub plain_http: bool,
}

/// How a connection is terminated to add headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    Tls,
    Plain,
}

impl HeaderRule {
    pub(super) const MOST_HOSTS: usize = 32;
    pub(super) const MOST_HEADERS: usize = 20;

    /// Whether it may apply to connections to this port.
    pub(super) fn is_about_port(&self, port: u16) -> bool {
        self.hosts.iter().any(|host| host.port.get() == port) || (self.plain_http && port == HTTP)
    }

    pub(super) fn opens(&self, name: &HostName, port: u16) -> Option<Opened> {
        let mut meant = self.hosts.iter().filter(|host| host.pattern.matches(name)).peekable();
        let plain = self.plain_http && port == HTTP && meant.peek().is_some();
        if meant.any(|host| host.port.get() == port) {
            return Some(Opened::Tls);
        }
        plain.then_some(Opened::Plain)
    }

    pub(super) fn bytes(&self) -> usize {
        self.headers.iter().map(|(name, text)| name.0.len() + text.0.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_a_port_and_ranges_have_not() {
        for (text, shown) in [("A.com", "a.com"), ("a.com:443", "a.com"), ("*.a.com:8443", "*.a.com:8443")] {
            assert_eq!(text.parse::<HeaderHost>().unwrap().to_string(), shown);
        }
        for bad in
            ["", "*", "a.com:", "a.com:0", "a.com:1-2", "1.2.3.4", "[::1]:443", "a.com:+1", "https://a.com"]
        {
            assert!(bad.parse::<HeaderHost>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_host_is_within_what_means_all_of_it() {
        let within = |host: &str, pattern: &str| {
            host.parse::<HeaderHost>().unwrap().is_within(&NamePattern::parse(pattern).unwrap())
        };
        assert!(
            within("a.com", "a.com") && within("x.a.com:8443", "*.a.com") && within("*.x.a.com", "*.a.com")
        );
        assert!(within("*.a.com", "*.a.com"));
        for (host, pattern) in
            [("a.com", "*.a.com"), ("*.a.com", "a.com"), ("*.com", "*.a.com"), ("b.com", "a.com")]
        {
            assert!(!within(host, pattern), "{host} {pattern}");
        }
    }

    #[test]
    fn headers_that_frame_a_request_and_values_that_break_a_line_are_refused() {
        for bad in [
            "",
            "Host",
            "CONTENT-length",
            "Transfer-Encoding",
            "proxy-authorization",
            "a b",
            "a:",
            "ä",
            "x\r\n",
        ] {
            assert!(HeaderName::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(HeaderName::parse("Authorization").unwrap().as_str(), "authorization");
        for bad in ["", " a", "a ", "a\r\nb", "a\tb", "ä", "\0"] {
            assert_eq!(HeaderText::parse(bad), Err(BadHeader::Text), "{bad:?}");
        }
        let text = HeaderText::parse("Bearer hidden").unwrap();
        assert!(!format!("{text:?}").contains("hidden"));
    }

    #[test]
    fn only_the_named_port_is_opened_and_plain_http_only_when_asked_for() {
        let rule = |plain_http| HeaderRule {
            hosts: vec!["a.com".parse().unwrap(), "*.b.com:8443".parse().unwrap()],
            headers: BTreeMap::new(),
            plain_http,
        };
        let opens = |plain, name: &str, port| rule(plain).opens(&name.parse().unwrap(), port);
        assert_eq!(opens(false, "a.com", 443), Some(Opened::Tls));
        assert_eq!(opens(false, "x.b.com", 8443), Some(Opened::Tls));
        assert_eq!(opens(true, "x.b.com", 80), Some(Opened::Plain));
        for (plain, name, port) in [
            (false, "a.com", 80),
            (false, "a.com", 8443),
            (false, "b.com", 8443),
            (false, "x.b.com", 443),
            (true, "c.com", 80),
        ] {
            assert_eq!(opens(plain, name, port), None, "{name} {port}");
        }
    }
}

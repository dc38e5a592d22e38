//! Repositories that a sandbox reaches through the git gate, which has the credentials.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{HeaderText, HostName, parse_address};
use crate::Millis;

/// The host name of the gate inside a sandbox.
pub const GATE_NAME: &str = "git.coffer.internal";
/// Its address, which no host has: egress answers connections to it.
pub const GATE_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
pub const GATE_PORT: u16 = 80;

const HTTPS: u16 = 443;
const LONGEST_PATH: usize = 512;
const LONGEST_REFERENCE: usize = 256;

/// Why a route is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadGitRoute {
    #[error(
        "the name of a route is 1 to 64 letters, digits, `_`, `-` and `.`, and begins with a letter or digit"
    )]
    Slug,
    #[error(
        "a repository is `https://`, a host's name and a path, or `http://`, this server's address and a path"
    )]
    Upstream,
    #[error("a push needs a full ref, such as `refs/heads/main`")]
    Reference,
    #[error("a commit is 40 or 64 hexadecimal digits")]
    Commit,
}

macro_rules! written {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

/// The name of a repository at the gate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GitSlug(Box<str>);

impl GitSlug {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GitSlug {
    type Err = BadGitRoute;

    fn from_str(text: &str) -> Result<Self, BadGitRoute> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
        let good = (1..=64).contains(&text.len())
            && text.bytes().all(fits)
            && text.as_bytes()[0].is_ascii_alphanumeric()
            && !text.contains("..")
            && !text.to_ascii_lowercase().ends_with(".git");
        if good { Ok(Self(text.into())) } else { Err(BadGitRoute::Slug) }
    }
}

impl fmt::Display for GitSlug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

written!(GitSlug);

/// The actual address of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitUpstream {
    host: GitHost,
    path: Box<str>,
}

/// The host of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GitHost {
    /// A forge, by TLS.
    Forge(HostName, u16),
    /// The server that created the route, at an address that no policy opens otherwise.
    Server(SocketAddr),
}

impl GitUpstream {
    pub fn host(&self) -> &GitHost {
        &self.host
    }

    /// The repository's path, without a final `/`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The `Host` of a request.
    pub fn authority(&self) -> String {
        match &self.host {
            GitHost::Forge(name, HTTPS) => name.to_string(),
            GitHost::Forge(name, port) => format!("{name}:{port}"),
            GitHost::Server(address) => address.to_string(),
        }
    }
}

impl FromStr for GitUpstream {
    type Err = BadGitRoute;

    fn from_str(text: &str) -> Result<Self, BadGitRoute> {
        let bad = || BadGitRoute::Upstream;
        let (scheme, rest) = text.split_once("://").ok_or_else(bad)?;
        let (authority, path) = rest.split_once('/').ok_or_else(bad)?;
        let path = path.trim_end_matches('/');
        let host = match scheme {
            "https" => {
                let (name, port) = authority.split_once(':').unwrap_or((authority, "443"));
                let digits = port.bytes().all(|b| b.is_ascii_digit());
                let port = port.parse().ok().filter(|port| digits && *port != 0).ok_or_else(bad)?;
                GitHost::Forge(HostName::parse(name).map_err(|_| bad())?, port)
            }
            "http" => {
                let (address, port) = authority.rsplit_once(':').ok_or_else(bad)?;
                let inner = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
                let address: IpAddr = parse_address(inner.unwrap_or(address)).ok_or_else(bad)?;
                if address.is_ipv6() != inner.is_some() {
                    return Err(bad());
                }
                let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(bad)?;
                GitHost::Server(SocketAddr::new(address, port))
            }
            _ => return Err(bad()),
        };
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"/._-~".contains(&b);
        let good = (1..=LONGEST_PATH).contains(&path.len())
            && path.bytes().all(fits)
            && path.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if good { Ok(Self { host, path: format!("/{path}").into() }) } else { Err(bad()) }
    }
}

impl fmt::Display for GitUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if matches!(self.host, GitHost::Forge(..)) { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

written!(GitUpstream);

/// The full name of a ref.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitReference(Box<str>);

impl GitReference {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GitReference {
    type Err = BadGitRoute;

    fn from_str(text: &str) -> Result<Self, BadGitRoute> {
        let fits = |c: char| !c.is_control() && !c.is_whitespace() && !"~^:?*[\\".contains(c);
        let good = text.len() <= LONGEST_REFERENCE
            && text.starts_with("refs/")
            && text.chars().all(fits)
            && text.split('/').all(|part| !part.is_empty() && !part.starts_with('.') && part != "..");
        if good { Ok(Self(text.into())) } else { Err(BadGitRoute::Reference) }
    }
}

impl fmt::Display for GitReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

written!(GitReference);

/// The id of a commit, or all zeros for none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitObject(Box<str>);

impl GitObject {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is all zeros.
    pub fn is_none(&self) -> bool {
        self.0.bytes().all(|b| b == b'0')
    }

    /// Whether both are the same commit, or both none.
    pub fn means(&self, other: &Self) -> bool {
        self == other || (self.is_none() && other.is_none())
    }
}

impl FromStr for GitObject {
    type Err = BadGitRoute;

    fn from_str(text: &str) -> Result<Self, BadGitRoute> {
        let hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        let good = matches!(text.len(), 40 | 64) && text.bytes().all(hex);
        if good { Ok(Self(text.into())) } else { Err(BadGitRoute::Commit) }
    }
}

impl fmt::Display for GitObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

written!(GitObject);

/// A push window: the branch and the time in which a sandbox may push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushWindow {
    pub reference: GitReference,
    /// The commit that the ref must be at; absent if anything may be overwritten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expects: Option<GitObject>,
    /// When it closes by itself.
    pub until_ms: Millis,
}

/// A repository that a sandbox reaches through the gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GitRoute {
    pub slug: GitSlug,
    pub upstream: GitUpstream,
    /// The value of `Authorization`; `None` for a public repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization: Option<HeaderText>,
    /// Whether the operator allows the forge at a private address.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_site: bool,
    /// Hosts that the operator allows at private addresses, `name` or `name:port`: such a forge may store its
    /// large files there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub neighbours: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<PushWindow>,
}

impl GitRoute {
    /// Whether a host may be at a private address like the forge.
    pub fn is_neighbour(&self, name: &HostName, port: u16) -> bool {
        let name = name.as_str();
        let is_meant = |known: &String| match known.rsplit_once(':') {
            Some((host, only)) => host == name && only == port.to_string(),
            None => known == name,
        };
        self.on_site && self.neighbours.iter().any(is_meant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_are_forges_by_name_or_the_server_by_address() {
        for (text, shown) in [
            ("https://github.com/o/r.git", "https://github.com/o/r.git"),
            ("https://GitHub.com:443/o/r.git/", "https://github.com/o/r.git"),
            ("https://ghe.example.com:8443/o/r", "https://ghe.example.com:8443/o/r"),
            ("http://127.0.0.1:3000/git/p/r.git", "http://127.0.0.1:3000/git/p/r.git"),
            ("http://[::1]:3000/git/p/r.git", "http://[::1]:3000/git/p/r.git"),
        ] {
            assert_eq!(text.parse::<GitUpstream>().unwrap().to_string(), shown);
        }
        for bad in [
            "",
            "https://github.com",
            "https://github.com/",
            "https://github.com/../x",
            "https://github.com/a//b",
            "https://github.com/a?b",
            "https://github.com/a b",
            "https://github.com/a%2fb",
            "https://u:p@github.com/a",
            "https://127.0.0.1/a",
            "https://github.com:+1/a",
            "https://github.com:0/a",
            "http://github.com/a",
            "http://github.com:80/a",
            "http://127.0.0.1/a",
            "http://127.1:80/a",
            "http://::1:80/a",
            "http://[127.0.0.1]:80/a",
            "ssh://github.com/a",
            "file:///etc",
        ] {
            assert!(bad.parse::<GitUpstream>().is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_plain() {
        assert!(["app", "My.App-1", &"x".repeat(64)].iter().all(|good| good.parse::<GitSlug>().is_ok()));
        for bad in ["", ".", "a/b", "-a", "a..b", "a.git", "a%2e", "ä", &"x".repeat(65)] {
            assert!(bad.parse::<GitSlug>().is_err(), "{bad:?}");
        }
        assert!("refs/heads/task-1".parse::<GitReference>().is_ok());
        for bad in ["main", "refs/heads/a b", "refs//x", "refs/heads/../x", "refs/heads/x\n", "refs/heads/"] {
            assert!(bad.parse::<GitReference>().is_err(), "{bad:?}");
        }
        let none = "0".repeat(40).parse::<GitObject>().unwrap();
        assert!(none.is_none() && none.means(&"0".repeat(64).parse().unwrap()));
        assert!(!none.means(&"1".repeat(40).parse().unwrap()));
        assert!(
            ["", "A", &"g".repeat(40), &"0".repeat(41)].iter().all(|bad| bad.parse::<GitObject>().is_err())
        );
    }
}

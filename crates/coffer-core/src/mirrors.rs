//! `[mirrors]`: the package mirrors that an operator names, and what sandboxes get from that.
//!
//! [`MirrorSettings::resolve`] checks them. The result says which hosts egress opens
//! ([`hosts`](PackageMirrors::hosts)), and how clients are told: by variables
//! ([`variables`](PackageMirrors::variables)) and by files ([`files`](PackageMirrors::files)).

mod apt;
mod clients;
mod url;

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::network::{HostName, Mirror, Mirrors, TooManyMirrors, parse_address, pass_as_mirror};
pub use clients::{MirrorFile, TemplateFiles};
use url::MirrorUrl;

/// The names below this one mean mirrors that the operator named by an address.
const ADDRESSED: &str = "mirrors.coffer.internal";
/// Names that are our own.
const OWN_DOMAIN: &str = "coffer.internal";
/// The ports of a host in `hosts` that is named without one.
const WEB_PORTS: [u16; 2] = [80, 443];

/// Package mirrors that sandboxes use, also at private addresses; [more](mirrors.md). Sandboxes with a network
/// policy other than `none` reach these hosts and ports, and clients in them are configured for them at each
/// start. A URL is `http` or `https`, without a user or a password.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct MirrorSettings {
    /// Where the archives of Debian and Ubuntu are found under their usual names (`debian`,
    /// `debian-security`, `ubuntu`): `http://mirror.example.com` if `http://mirror.example.com/debian` is one.
    pub apt: Option<String>,
    /// A registry for npm.
    pub npm: Option<String>,
    /// A package index for pip and uv, such as `https://mirror.example.com/simple`.
    pub pypi: Option<String>,
    /// A sparse index for cargo, in place of crates.io.
    pub crates: Option<String>,
    /// A module proxy for Go.
    pub go: Option<String>,
    /// A repository for Maven, in place of all others.
    pub maven: Option<String>,
    /// A PEM file of certificate authorities that sandboxes trust in addition to their own: for mirrors with
    /// certificates of a private authority.
    pub ca: Option<PathBuf>,
    /// Further hosts to open, whose clients need no configuration: public names that the machine's resolver
    /// answers with private addresses. `pypi.example.com` for ports 80 and 443, or
    /// `pypi.example.com:8443` for only that port.
    pub hosts: Vec<String>,
}

/// A kind of packages, and thereby of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Apt,
    Npm,
    Pypi,
    Crates,
    Go,
    Maven,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Apt => "apt",
            Self::Npm => "npm",
            Self::Pypi => "pypi",
            Self::Crates => "crates",
            Self::Go => "go",
            Self::Maven => "maven",
        }
    }

    const fn key(self) -> &'static str {
        match self {
            Self::Apt => "mirrors.apt",
            Self::Npm => "mirrors.npm",
            Self::Pypi => "mirrors.pypi",
            Self::Crates => "mirrors.crates",
            Self::Go => "mirrors.go",
            Self::Maven => "mirrors.maven",
        }
    }
}

/// A setting that cannot be used: its key, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` {allowed}")]
pub struct BadMirror {
    pub key: &'static str,
    pub allowed: String,
}

impl BadMirror {
    fn new(key: &'static str, allowed: impl Into<String>) -> Self {
        Self { key, allowed: allowed.into() }
    }
}

/// Mirrors that were checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PackageMirrors {
    hosts: Mirrors,
    /// As clients are told.
    urls: Vec<(Kind, MirrorUrl)>,
    authorities: Option<PathBuf>,
}

impl MirrorSettings {
    /// Checks every value.
    pub fn resolve(&self) -> Result<PackageMirrors, BadMirror> {
        let Self { apt, npm, pypi, crates, go, maven, ca, hosts } = self;
        let given = [
            (Kind::Apt, apt),
            (Kind::Npm, npm),
            (Kind::Pypi, pypi),
            (Kind::Crates, crates),
            (Kind::Go, go),
            (Kind::Maven, maven),
        ];
        let (mut mirrors, mut urls) = (Vec::new(), Vec::new());
        for (kind, text) in given {
            let Some(text) = text.as_deref().filter(|text| !text.is_empty()) else { continue };
            // Cargo's own form says which protocol an index has.
            let text = if kind == Kind::Crates { text.strip_prefix("sparse+").unwrap_or(text) } else { text };
            let url = MirrorUrl::parse(text).map_err(|why| BadMirror::new(kind.key(), why))?;
            let (mirror, url) = named(kind, url)?;
            mirrors.push(mirror);
            urls.push((kind, url));
        }
        for text in hosts {
            mirrors.push(plain_host(text)?);
        }
        let bad = |error: TooManyMirrors| BadMirror::new("mirrors", format!("has too many: {error}"));
        Ok(PackageMirrors { hosts: Mirrors::new(mirrors).map_err(bad)?, urls, authorities: ca.clone() })
    }
}

/// The host of a URL, and the URL as sandboxes get it: a host that is an address gets a name.
fn named(kind: Kind, url: MirrorUrl) -> Result<(Mirror, MirrorUrl), BadMirror> {
    let bad = |why: String| BadMirror::new(kind.key(), why);
    let (name, address) = match parse_address(url.host()) {
        Some(address) => {
            check_address(address).map_err(bad)?;
            if url.is_tls() {
                return Err(bad(format!(
                    "must name its host: sandboxes do not learn the address `{address}`, and its certificate \
                     must be valid for the name that they use"
                )));
            }
            (format!("{}.{ADDRESSED}", kind.name()), Some(address))
        }
        None => (url.host().to_string(), None),
    };
    let host = HostName::parse(&name).map_err(|_| bad(format!("must name a host; `{name}` is none")))?;
    if address.is_none() {
        check_name(&host).map_err(bad)?;
    }
    let ports = [url.port()].into();
    Ok((Mirror { name: host, ports, address }, url.at_host(name)))
}

fn plain_host(text: &str) -> Result<Mirror, BadMirror> {
    let bad = |why: String| BadMirror::new("mirrors.hosts", why);
    let names = || {
        bad(format!("must be names such as `pypi.example.com` or `pypi.example.com:8443`; `{text}` is none"))
    };
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(url::parse_port(port).ok_or_else(names)?)),
        None => (text, None),
    };
    let name = HostName::parse(name).map_err(|_| names())?;
    check_name(&name).map_err(bad)?;
    let ports = port.map_or_else(|| WEB_PORTS.into(), |port| [port].into());
    Ok(Mirror { name, ports, address: None })
}

fn check_name(name: &HostName) -> Result<(), String> {
    let ours = name.as_str() == OWN_DOMAIN || name.as_str().ends_with(&format!(".{OWN_DOMAIN}"));
    if ours {
        Err(format!("must not be `{name}`: names in `{OWN_DOMAIN}` have another meaning"))
    } else {
        Ok(())
    }
}

fn check_address(address: IpAddr) -> Result<(), String> {
    let refused = |class| format!("must not be at `{address}`: {class} addresses stay closed");
    pass_as_mirror(address).map(drop).map_err(refused)
}

impl PackageMirrors {
    /// The hosts and ports to open.
    pub fn hosts(&self) -> &Mirrors {
        &self.hosts
    }

    /// The file of certificate authorities for sandboxes.
    pub fn authorities(&self) -> Option<&std::path::Path> {
        self.authorities.as_deref()
    }

    fn url(&self, kind: Kind) -> Option<&MirrorUrl> {
        self.urls.iter().find(|(one, _)| *one == kind).map(|(_, url)| url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(settings: serde_json::Value) -> Result<PackageMirrors, String> {
        let settings: MirrorSettings = serde_json::from_value(settings).unwrap();
        settings.resolve().map_err(|bad| bad.to_string())
    }

    fn opened(mirrors: &PackageMirrors) -> Vec<String> {
        let mut found: Vec<String> = mirrors
            .hosts()
            .iter()
            .map(|mirror| {
                let address = mirror.address.map(|address| format!(" at {address}")).unwrap_or_default();
                format!("{} {:?}{address}", mirror.name, mirror.ports)
            })
            .collect();
        found.sort();
        found
    }

    #[test]
    fn exactly_the_named_hosts_and_ports_are_opened() {
        let mirrors = resolve(serde_json::json!({
            "apt": "http://deb.test", "npm": "https://npm.test:8443/registry/", "pypi": "http://10.0.0.1:3141/simple",
            "crates": "sparse+https://npm.test/index", "go": "http://[fd00::1]/go", "maven": "",
            "hosts": ["files.test", "npm.test:443", "Other.Test:8081"],
        }));
        let mirrors = mirrors.unwrap();
        let expected = [
            "deb.test {80}",
            "files.test {80, 443}",
            "go.mirrors.coffer.internal {80} at fd00::1",
            "npm.test {443, 8443}",
            "other.test {8081}",
            "pypi.mirrors.coffer.internal {3141} at 10.0.0.1",
        ];
        assert_eq!(opened(&mirrors), expected);
        assert!(resolve(serde_json::json!({})).unwrap().hosts().is_empty());
    }

    #[test]
    fn a_value_that_cannot_be_used_is_refused_with_its_key() {
        for (settings, expected) in [
            (serde_json::json!({"pypi": "pypi.test"}), "`mirrors.pypi` must be a URL such as"),
            (serde_json::json!({"npm": "ftp://a.test"}), "`mirrors.npm` must be a URL such as"),
            (serde_json::json!({"npm": "https://"}), "`mirrors.npm` must be a URL such as"),
            (serde_json::json!({"go": "https://a.test/?x=1"}), "`mirrors.go` must be a URL such as"),
            (serde_json::json!({"go": "https://a.test/\" x"}), "`mirrors.go` must be a URL such as"),
            (serde_json::json!({"go": "https://a.test:0/"}), "`mirrors.go` must be a URL such as"),
            (serde_json::json!({"go": "http://127.1/"}), "`mirrors.go` must name a host; `127.1` is none"),
            (
                serde_json::json!({"apt": "http://u:hidden@a.test"}),
                "`mirrors.apt` must not have a user or a password",
            ),
            (serde_json::json!({"pypi": "https://10.0.0.1/simple"}), "`mirrors.pypi` must name its host"),
            (serde_json::json!({"apt": "http://169.254.169.254/"}), "metadata addresses stay closed"),
            (serde_json::json!({"apt": "http://[fe80::1]/"}), "link-local addresses stay closed"),
            (serde_json::json!({"apt": "http://git.coffer.internal"}), "have another meaning"),
            (serde_json::json!({"hosts": ["10.0.0.1"]}), "`mirrors.hosts` must be names"),
            (serde_json::json!({"hosts": ["a.test:80:90"]}), "`mirrors.hosts` must be names"),
            (serde_json::json!({"hosts": ["a.test:0"]}), "`mirrors.hosts` must be names"),
            (serde_json::json!({"hosts": ["*.a.test"]}), "`mirrors.hosts` must be names"),
            (serde_json::json!({"hosts": ["https://a.test"]}), "`mirrors.hosts` must be names"),
            (serde_json::json!({"hosts": ["x.coffer.internal"]}), "have another meaning"),
            (
                serde_json::json!({"hosts": (0..65).map(|n| format!("m{n}.test")).collect::<Vec<_>>()}),
                "at most 64",
            ),
        ] {
            let refused = resolve(settings.clone()).unwrap_err();
            assert!(refused.contains(expected) && !refused.contains("hidden"), "{settings}: {refused}");
        }
        assert!(
            resolve(serde_json::json!({"apt": "http://127.0.0.1:3142/"})).is_ok(),
            "written as an address"
        );
    }
}

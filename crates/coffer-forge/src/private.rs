//! Forges of the site's own, which an operator vouches for.

use std::net::IpAddr;

use coffer_core::network::{Class, HostName, Walls, parse_address, pass_on_site};

/// The hosts that may be at private addresses. All others must be public: who connects a project to a forge chooses its
/// address, and must not reach by it what only this server can.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrivateHosts(Vec<(String, Option<u16>)>);

impl PrivateHosts {
    /// Reads `ghe.example.com` and `ghe.example.com:8443`, which is that port alone; answers with the text that is neither.
    pub fn parse<'a>(hosts: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let one = |text: &'a str| {
            let (name, port) = match text.rsplit_once(':') {
                Some((name, port)) => (name, Some(port.parse::<u16>().ok().filter(|port| *port != 0)?)),
                None => (text, None),
            };
            let is_host = HostName::parse(name).is_ok() || parse_address(name).is_some();
            is_host.then(|| (name.to_ascii_lowercase(), port))
        };
        let read = |text: &'a str| one(text).ok_or_else(|| text.to_string());
        hosts.into_iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().map(|(name, port)| port.map_or_else(|| name.clone(), |port| format!("{name}:{port}")))
    }

    pub(crate) fn has(&self, host: &str, port: u16) -> bool {
        self.0.iter().any(|(name, only)| name == host && only.is_none_or(|only| only == port))
    }
}

/// The address to dial, or why it is not.
pub(crate) fn may_dial(on_site: bool, address: IpAddr) -> Result<IpAddr, Class> {
    if on_site { pass_on_site(address) } else { Walls::default().pass(address) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_with_or_without_a_port() {
        let hosts = PrivateHosts::parse(["GHE.example.com", "git.corp:8443", "10.0.0.7"]).unwrap();
        for (host, port, has) in [
            ("ghe.example.com", 443, true),
            ("ghe.example.com", 8443, true),
            ("git.corp", 8443, true),
            ("git.corp", 443, false),
            ("10.0.0.7", 443, true),
            ("example.com", 443, false),
        ] {
            assert_eq!(hosts.has(host, port), has, "{host}:{port}");
        }
        for bad in ["", "https://ghe.example.com", "a b", "ghe:0", "ghe:x", "ghe:70000"] {
            assert_eq!(PrivateHosts::parse([bad]), Err(bad.to_string()));
        }
    }

    #[test]
    fn others_must_be_public() {
        let to = |on_site, text: &str| may_dial(on_site, text.parse().unwrap()).is_ok();
        assert!(to(false, "140.82.112.3") && to(true, "10.0.0.7"));
        assert!(!to(false, "10.0.0.7") && !to(false, "127.0.0.1") && !to(true, "169.254.169.254"));
    }
}

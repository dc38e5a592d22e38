//! Hosts at private addresses, which an operator allows by name.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use coffer_core::network::{Class, HostName, Walls, classify, normalise, parse_address, pass_on_site};

/// The hosts that may be at private addresses. All others must be public: a project chooses the addresses of its
/// forges and registries, and must not reach networks that only this server can.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrivateHosts(Vec<(String, Option<u16>)>);

impl PrivateHosts {
    /// Parses `ghe.example.com` and `ghe.example.com:8443`, for only that port; the error is the invalid
    /// text.
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

    /// The hosts as they were given, in lower case.
    pub fn names(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().map(|(name, port)| port.map_or_else(|| name.clone(), |port| format!("{name}:{port}")))
    }

    pub fn has(&self, host: &str, port: u16) -> bool {
        self.0.iter().any(|(name, only)| name == host && only.is_none_or(|only| only == port))
    }
}

/// Whether an address belongs to this machine, by binding a socket to it. Checked each time: addresses come
/// and go.
pub fn is_own(address: IpAddr) -> bool {
    let binds = |address: IpAddr| UdpSocket::bind((address, 0)).is_ok();
    // If the kernel allows foreign addresses (`ip_nonlocal_bind`), binding proves nothing.
    binds(normalise(address)) && !binds(NOWHERE)
}

/// An address for documentation, which no machine has.
const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// The class of an address, this machine's own included, as egress judges it.
pub fn class_of(address: IpAddr, is_own: impl Fn(IpAddr) -> bool) -> Class {
    match classify(normalise(address)) {
        Class::Public if is_own(address) => Class::Host,
        class => class,
    }
}

/// The address to dial, or why it is refused.
pub fn may_dial(on_site: bool, address: IpAddr, is_own: impl Fn(IpAddr) -> bool) -> Result<IpAddr, Class> {
    if on_site {
        return pass_on_site(address);
    }
    match class_of(address, is_own) {
        Class::Host => Err(Class::Host),
        _ => Walls::default().pass(address),
    }
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
        let to = |on_site, text: &str| may_dial(on_site, text.parse().unwrap(), |_| false).is_ok();
        assert!(to(false, "140.82.112.3") && to(true, "10.0.0.7"));
        assert!(!to(false, "10.0.0.7") && !to(false, "127.0.0.1") && !to(true, "169.254.169.254"));
    }

    #[test]
    fn this_machines_own_addresses_are_refused_however_public() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(is_own("::ffff:127.0.0.1".parse().unwrap()));
        for other in ["192.0.2.1", "8.8.8.8", "1.1.1.1"] {
            assert!(!is_own(other.parse().unwrap()), "{other}");
        }
        let own = |address: IpAddr| address.to_string() == "8.8.4.4";
        let judged = |text: &str| may_dial(false, text.parse().unwrap(), own);
        assert_eq!(judged("8.8.4.4"), Err(Class::Host));
        assert_eq!(judged("8.8.8.8"), Ok("8.8.8.8".parse().unwrap()));
        assert_eq!(judged("10.0.0.1"), Err(Class::Private));
        assert!(may_dial(true, "8.8.4.4".parse().unwrap(), own).is_ok(), "the operator vouches for it");
    }
}

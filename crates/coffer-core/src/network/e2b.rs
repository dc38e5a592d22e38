//! Converts E2B's network settings to our policy.

use super::{BadPolicy, Base, Block, Entry, NamePattern, Policy, Target, parse_address};

/// The outbound part of E2B's settings, as written.
#[derive(Debug, Clone, Copy, Default)]
pub struct E2bNetwork<'a> {
    /// `allow_internet_access`; E2B's default is yes.
    pub internet: Option<bool>,
    /// `allowOut`: addresses, blocks and names.
    pub allow_out: &'a [String],
    /// `denyOut`: addresses and blocks.
    pub deny_out: &'a [String],
    /// `dnsServers`: addresses that are opened if `allowOut` has names.
    pub dns_servers: &'a [String],
}

/// Settings that E2B would refuse as well.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadE2bNetwork {
    #[error("denyOut entry `{0}` is not an IP address or CIDR block")]
    Deny(String),
    #[error("allowOut entry `{0}` is not an IP address, CIDR block or domain")]
    Allow(String),
    #[error("dnsServers entry `{0}` is not an IP address")]
    DnsServer(String),
    #[error("allowOut has the domain `{0}`, so denyOut must block all other traffic with `0.0.0.0/0`")]
    NameWithoutDenyAll(String),
    #[error(transparent)]
    TooLong(#[from] BadPolicy),
}

/// Converts E2B's settings to a policy.
///
/// Allow beats deny in both. E2B does not know IPv6, and `0.0.0.0/0` in `denyOut` means everything there; so
/// it does here, or a list of names would leave all of IPv6 open. E2B's default of `dnsServers`, 8.8.8.8, is
/// left out: DNS questions reach egress whatever server they are sent to.
pub fn policy_from_e2b(settings: E2bNetwork<'_>) -> Result<Policy, BadE2bNetwork> {
    let cut = |text: &str| text.chars().take(80).collect::<String>();
    let blocks: Result<Vec<Block>, _> = settings
        .deny_out
        .iter()
        .map(|text| text.parse().map_err(|_| BadE2bNetwork::Deny(cut(text))))
        .collect();
    let mut denied = blocks?;
    let listed_all = denied.contains(&Block::ALL_V4);
    if settings.internet == Some(false) || listed_all {
        denied.retain(|block| *block != Block::ALL_V4 && *block != Block::ALL_V6);
        denied.extend([Block::ALL_V4, Block::ALL_V6]);
    }
    let mut allow = Vec::with_capacity(settings.allow_out.len());
    for text in settings.allow_out {
        if let Ok(block) = text.parse() {
            allow.push(Entry::all_ports(Target::Block(block)));
            continue;
        }
        let pattern = NamePattern::parse(text).map_err(|_| BadE2bNetwork::Allow(cut(text)))?;
        if !denied.contains(&Block::ALL_V4) {
            return Err(BadE2bNetwork::NameWithoutDenyAll(cut(text)));
        }
        allow.push(Entry::all_ports(Target::Name(pattern)));
    }
    if allow.iter().any(Entry::is_name) {
        for text in settings.dns_servers {
            let block = parse_address(text).and_then(|_| text.parse().ok());
            let block = block.ok_or_else(|| BadE2bNetwork::DnsServer(cut(text)))?;
            allow.push(Entry::all_ports(Target::Block(block)));
        }
    }
    let deny = denied.into_iter().map(|block| Entry::all_ports(Target::Block(block))).collect();
    Ok(Policy::new(Base::Public, allow, deny)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Decision, Destination, Walls, decide, may_ask};

    fn policy(internet: Option<bool>, allow: &[&str], deny: &[&str]) -> Result<Policy, BadE2bNetwork> {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        policy_from_e2b(E2bNetwork {
            internet,
            allow_out: &owned(allow),
            deny_out: &owned(deny),
            dns_servers: &[],
        })
    }

    fn reaches(policy: &Policy, name: &str, address: &str, port: u16) -> bool {
        let name = (!name.is_empty()).then(|| name.parse().unwrap());
        let destination = Destination { name, address: address.parse().unwrap(), port };
        decide(policy, &Walls::default(), &destination).is_allowed()
    }

    #[test]
    fn the_default_is_everything_public() {
        assert_eq!(policy(None, &[], &[]), Ok(Policy::of(Base::Public)));
        assert_eq!(policy(Some(true), &[], &[]), Ok(Policy::of(Base::Public)));
    }

    #[test]
    fn no_internet_means_neither_family_nor_names() {
        let policy = policy(Some(false), &[], &[]).unwrap();
        assert!(!reaches(&policy, "", "1.1.1.1", 443));
        assert!(!reaches(&policy, "a.com", "2606:4700::1", 443));
        assert!(matches!(may_ask(&policy, &"a.com".parse().unwrap()), Decision::Refuse { .. }));
    }

    #[test]
    fn allow_beats_deny() {
        for internet in [None, Some(true), Some(false)] {
            let policy = policy(internet, &["1.1.1.1", "a.com"], &["0.0.0.0/0"]).unwrap();
            assert!(reaches(&policy, "", "1.1.1.1", 53));
            assert!(reaches(&policy, "a.com", "2.2.2.2", 443));
            assert!(!reaches(&policy, "b.com", "2.2.2.2", 443));
            assert!(!reaches(&policy, "", "2606:4700::1", 443), "deny all of IPv4 means all");
        }
        let some = policy(None, &["8.8.8.8"], &["8.8.8.0/24"]).unwrap();
        assert!(reaches(&some, "", "8.8.8.8", 53));
        assert!(!reaches(&some, "", "8.8.8.9", 53));
        assert!(reaches(&some, "", "1.1.1.1", 53));
    }

    #[test]
    fn a_name_needs_everything_else_denied() {
        assert_eq!(policy(None, &["a.com"], &[]), Err(BadE2bNetwork::NameWithoutDenyAll("a.com".into())));
        assert!(policy(None, &["a.com"], &["10.0.0.0/8"]).is_err());
        assert!(policy(Some(false), &["*.a.com"], &[]).is_ok());
        assert_eq!(policy(None, &[], &["a.com"]), Err(BadE2bNetwork::Deny("a.com".into())));
        assert_eq!(policy(None, &["a..com"], &["0.0.0.0/0"]), Err(BadE2bNetwork::Allow("a..com".into())));
        let many: Vec<&str> = vec!["1.1.1.1"; 1001];
        assert_eq!(policy(None, &many, &[]), Err(BadE2bNetwork::TooLong(BadPolicy::Entries)));
    }

    #[test]
    fn servers_for_names_are_open_where_names_are() {
        let lists = |allow: &[&str]| {
            let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
            let (allow_out, deny_out) = (owned(allow), owned(&["0.0.0.0/0"]));
            let dns_servers = owned(&["9.9.9.9"]);
            let settings = E2bNetwork {
                internet: None,
                allow_out: &allow_out,
                deny_out: &deny_out,
                dns_servers: &dns_servers,
            };
            policy_from_e2b(settings).unwrap()
        };
        assert!(reaches(&lists(&["a.com"]), "", "9.9.9.9", 853));
        assert!(!reaches(&lists(&["a.com"]), "", "8.8.8.8", 853));
        assert!(!reaches(&lists(&["1.1.1.1"]), "", "9.9.9.9", 853), "without names it has no effect");
    }

    #[test]
    fn an_allowed_private_address_stays_out_of_reach() {
        let policy = policy(None, &["10.0.0.0/8", "127.0.0.1", "169.254.169.254"], &[]).unwrap();
        for address in ["10.0.0.1", "127.0.0.1", "169.254.169.254", "::ffff:10.0.0.1"] {
            assert!(!reaches(&policy, "", address, 80), "{address}");
        }
    }
}

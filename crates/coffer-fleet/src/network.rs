//! Bounds of network settings in E2B's form; core defines their meaning. Pure: nothing here resolves or
//! connects.

use std::collections::BTreeMap;
use std::net::IpAddr;

use coffer_core::network::{BadE2bSettings, NamePattern, Policy};
use coffer_wire::e2b::{EgressProxy, Network, NetworkRule, NetworkUpdate};

const MOST_DNS_SERVERS: usize = 8;
const MOST_HTTPS_PORTS: usize = 64;
const MOST_RULES: usize = 10;
const MOST_RULE_HEADERS: usize = 20;
const LONGEST_RULE_VALUE: usize = 2048;
const LONGEST_CA_CERT: usize = 64 * 1024;

/// What is wrong with network settings, in the words of the request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadNetwork {
    #[error("httpsPorts may name at most {MOST_HTTPS_PORTS} ports")]
    ManyPorts,
    #[error("httpsPorts must be ports of your own, not 0 or {}", coffer_wire::agentd::PORT)]
    Port,
    #[error("dnsServers may have at most {MOST_DNS_SERVERS} entries")]
    ManyDnsServers,
    #[error("dnsServers entry '{0}' is not an IP address")]
    DnsServer(String),
    #[error("rules may name at most {MOST_RULES} domains")]
    ManyRules,
    #[error("rules for '{0}' may have one transform of {MOST_RULE_HEADERS} headers")]
    Transforms(String),
    #[error("a header in rules may have at most {LONGEST_RULE_VALUE} bytes")]
    LongHeader,
    #[error("egressProxy address '{0}' is not of the form host:port")]
    ProxyAddress(String),
    #[error("egressProxy username and password must have 1 to 255 bytes")]
    ProxyLogin,
    #[error("egressProxy has a password but no username")]
    ProxyUser,
    #[error("egressProxy tls.serverName is not a domain")]
    ProxyServerName,
    #[error("egressProxy tls.caCert is longer than {LONGEST_CA_CERT} bytes")]
    LongCaCert,
    #[error("maskRequestHost '{0}' is not a host name, with ${{PORT}} for the port")]
    Mask(String),
}

/// Checks the network part of a create request.
pub fn check(network: &Network) -> Result<(), BadNetwork> {
    check_egress(network.dns_servers.as_deref(), network.rules.as_ref(), network.egress_proxy.as_ref())?;
    if let Some(mask) = &network.mask_request_host {
        check_mask(mask)?;
    }
    let ports = network.https_ports.as_deref().unwrap_or_default();
    if ports.len() > MOST_HTTPS_PORTS {
        return Err(BadNetwork::ManyPorts);
    }
    if ports.contains(&0) || ports.contains(&coffer_wire::agentd::PORT) {
        return Err(BadNetwork::Port);
    }
    Ok(())
}

/// Checks a change of network settings.
pub fn check_update(update: &NetworkUpdate) -> Result<(), BadNetwork> {
    check_egress(update.dns_servers.as_deref(), update.rules.as_ref(), update.egress_proxy.as_ref())
}

/// A change of a sandbox's network settings: as requested, and its meaning.
#[derive(Debug, Clone)]
pub struct Update {
    pub(crate) policy: Policy,
    pub(crate) outbound: Network,
    pub(crate) allow_internet_access: Option<bool>,
}

/// Parses a change in E2B's form.
pub fn read_update(update: NetworkUpdate) -> Result<Update, BadE2bSettings> {
    let NetworkUpdate {
        allow_out,
        deny_out,
        dns_servers,
        egress_proxy,
        rules,
        policy,
        allow_internet_access,
    } = update;
    let outbound = Network {
        allow_out,
        deny_out,
        dns_servers,
        egress_proxy,
        rules,
        policy,
        allow_public_traffic: None,
        mask_request_host: None,
        https_ports: None,
    };
    Ok(Update { policy: outbound.policy(allow_internet_access)?, outbound, allow_internet_access })
}

fn check_egress(
    dns: Option<&[String]>,
    rules: Option<&BTreeMap<String, Vec<NetworkRule>>>,
    proxy: Option<&EgressProxy>,
) -> Result<(), BadNetwork> {
    let dns = dns.unwrap_or_default();
    if dns.len() > MOST_DNS_SERVERS {
        return Err(BadNetwork::ManyDnsServers);
    }
    if let Some(bad) = dns.iter().find(|entry| entry.parse::<IpAddr>().is_err()) {
        return Err(BadNetwork::DnsServer(cut(bad)));
    }
    if let Some(rules) = rules {
        check_rules(rules)?;
    }
    proxy.map_or(Ok(()), check_proxy)
}

/// Rules add headers to requests; the bounds are E2B's. Their contents are checked where they are parsed.
fn check_rules(rules: &BTreeMap<String, Vec<NetworkRule>>) -> Result<(), BadNetwork> {
    if rules.len() > MOST_RULES {
        return Err(BadNetwork::ManyRules);
    }
    for (domain, rules) in rules {
        let headers = rules.iter().filter_map(|rule| rule.transform.as_ref()?.headers.as_ref());
        if rules.len() > 1 || headers.clone().any(|headers| headers.len() > MOST_RULE_HEADERS) {
            return Err(BadNetwork::Transforms(cut(domain)));
        }
        if headers.flat_map(BTreeMap::values).any(|value| value.len() > LONGEST_RULE_VALUE) {
            return Err(BadNetwork::LongHeader);
        }
    }
    Ok(())
}

fn check_proxy(proxy: &EgressProxy) -> Result<(), BadNetwork> {
    let (host, port) = proxy.address.rsplit_once(':').unwrap_or((&proxy.address, ""));
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let known_host = host.parse::<IpAddr>().is_ok() || (is_domain(host) && !host.starts_with('*'));
    if !known_host || !port.parse::<u16>().is_ok_and(|port| port != 0) {
        return Err(BadNetwork::ProxyAddress(cut(&proxy.address)));
    }
    // SOCKS5 has one byte for each length (RFC 1929).
    for text in [&proxy.username, &proxy.password].into_iter().flatten() {
        if text.is_empty() || text.len() > 255 {
            return Err(BadNetwork::ProxyLogin);
        }
    }
    if proxy.password.is_some() && proxy.username.is_none() {
        return Err(BadNetwork::ProxyUser);
    }
    let tls = proxy.tls.as_ref();
    if tls.and_then(|tls| tls.server_name.as_deref()).is_some_and(|name| !is_domain(name)) {
        return Err(BadNetwork::ProxyServerName);
    }
    if tls.and_then(|tls| tls.ca_cert.as_deref()).is_some_and(|cert| cert.len() > LONGEST_CA_CERT) {
        return Err(BadNetwork::LongCaCert);
    }
    Ok(())
}

/// Checks a value for a `Host` header, with `${PORT}` for the port.
fn check_mask(mask: &str) -> Result<(), BadNetwork> {
    let plain = mask.replace("${PORT}", "1");
    let (host, port) = match plain.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (plain.as_str(), None),
    };
    let host_fits = host.parse::<IpAddr>().is_ok() || (is_domain(host) && !host.starts_with('*'));
    if !host_fits || port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err(BadNetwork::Mask(cut(mask)));
    }
    Ok(())
}

/// A domain name, `*` for its first label allowed; `localhost` counts.
fn is_domain(text: &str) -> bool {
    NamePattern::parse(text).is_ok()
}

fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn verdict(network: serde_json::Value) -> Result<(), String> {
        let network: Network = serde_json::from_value(network).map_err(|error| error.to_string())?;
        check(&network).map_err(|error| error.to_string())?;
        network.policy(None).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn what_e2b_allows_passes() {
        for good in [
            json!({}),
            json!({"allowOut": ["1.1.1.1", "10.0.0.0/8", "::1", "fd00::/8"], "denyOut": ["0.0.0.0/0"]}),
            json!({"allowOut": ["example.com", "*.example.com"], "denyOut": ["0.0.0.0/0"]}),
            json!({"denyOut": ["8.8.8.8"], "dnsServers": ["1.1.1.1", "2606:4700::1111"]}),
            json!({"rules": {}}),
            json!({"rules": {"a.com": [{"transform": {"headers": {"X-Token": "v"}}}], "b.com": []}}),
            json!({"policy": {"base": "web", "headers": [{"hosts": ["a.com"], "headers": {"X": "${secret:T}"}}]}}),
            json!({"egressProxy": {"address": "proxy.example.com:1080", "username": "u", "password": "p"}}),
            json!({"egressProxy": null, "allowPublicTraffic": null}),
            json!({"maskRequestHost": "custom-host.example.com:${PORT}", "httpsPorts": [8443]}),
            json!({"maskRequestHost": "localhost:${PORT}"}),
            json!({"policy": {"base": "web", "allow": ["*.example.com:22"], "deny": ["1.2.3.0/24:80-90"]}}),
        ] {
            assert_eq!(verdict(good.clone()), Ok(()), "{good}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let many: Vec<String> = (0..1001).map(|n| format!("10.0.{}.{}", n / 256, n % 256)).collect();
        for bad in [
            json!({"denyOut": ["example.com"]}),
            json!({"denyOut": ["10.0.0.0/33"]}),
            json!({"denyOut": ["10.0.0.0/+8"]}),
            json!({"denyOut": many}),
            json!({"allowOut": ["example.com"]}),
            json!({"allowOut": ["not a domain"], "denyOut": ["0.0.0.0/0"]}),
            json!({"allowOut": ["a.*.com"], "denyOut": ["0.0.0.0/0"]}),
            json!({"allowOut": ["999.1.1.1"], "denyOut": ["0.0.0.0/0"]}),
            json!({"dnsServers": ["dns.example.com"]}),
            json!({"rules": {"not a name": [{"transform": {"headers": {"X-Token": "v"}}}]}}),
            json!({"rules": {"a.com": [{"transform": {"headers": {"Host": "v"}}}]}}),
            json!({"rules": {"a.com": [{"transform": {"headers": {"X": "a\r\nb"}}}]}}),
            json!({"rules": {"a.com": [{"transform": {"headers": {"X": "${e2b.identity.tokens.t}"}}}]}}),
            json!({"rules": {"a.com": [{"transform": {"headers": {"X": "v"}}}, {"transform": {}}]}}),
            json!({"rules": {"a.com": [{"transform": {"headers": {"X": "v".repeat(2049)}}}]}}),
            json!({"policy": {"base": "web", "withheld": true}}),
            json!({"egressProxy": {"address": "proxy.example.com"}}),
            json!({"egressProxy": {"address": "a.com:1", "password": "p"}}),
            json!({"maskRequestHost": "a\r\nX: y"}),
            json!({"policy": {"base": "web"}, "denyOut": ["8.8.8.8"]}),
            json!({"policy": {"base": "everything"}}),
            json!({"policy": {"base": "none", "allow": ["http://example.com"]}}),
            json!({"httpsPorts": [0]}),
            json!({"httpsPorts": [49983]}),
        ] {
            assert!(verdict(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_proxy_is_part_of_the_policy_or_refused() {
        let of = |proxy: serde_json::Value| {
            let network: Network = serde_json::from_value(json!({"egressProxy": proxy})).unwrap();
            network.policy(None)
        };
        let login = json!({"address": "p.com:1080", "username": "u", "password": "hidden"});
        let through = of(login).unwrap();
        let proxy = through.proxy().unwrap();
        assert_eq!((proxy.port(), proxy.login().unwrap().password()), (1080, "hidden"));
        assert!(!serde_json::to_string(&through.shown()).unwrap().contains("hidden"));
        // Plaintext to a proxy that was meant to use TLS would reveal the password.
        assert!(of(json!({"address": "p.com:1080", "tls": {"enabled": true}})).is_err());
        assert!(of(json!({"address": "p.com:1080", "tls": {"enabled": false}})).is_ok());
    }

    #[test]
    fn a_proxy_password_is_not_shown() {
        let network = Network {
            egress_proxy: Some(EgressProxy {
                address: "a.com:1".into(),
                username: Some("u".into()),
                password: Some("secret".into()),
                tls: None,
            }),
            ..Default::default()
        };
        assert!(!serde_json::to_string(&network.masked()).unwrap().contains("secret"));
    }
}

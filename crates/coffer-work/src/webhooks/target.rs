//! Checks the addresses of webhooks: public and by TLS, unless the operator allows more.

use std::net::IpAddr;

use coffer_core::network::{Class, normalise};
use coffer_forge::{class_of, is_own};
use coffer_http::{Address, BadUrl};

const LONGEST_URL: usize = 2048;

/// A checked address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub(super) address: Address,
}

/// Which addresses the operator allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Those of the internet, by TLS.
    Internet,
    /// Those of the site's own networks too.
    LocalToo,
}

/// Why nothing can be sent to a URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    #[error("must be at most {LONGEST_URL} plain characters without a fragment (`#`)")]
    Letters,
    #[error("is not a URL")]
    Malformed,
    #[error("must begin with https:// and a host")]
    NoHost,
    #[error("must begin with https://")]
    Scheme,
    #[error(
        "must begin with https://; plain http:// is for receivers that the operator allows by \
         `webhooks.local_targets`"
    )]
    Plain,
    #[error("must not contain a user or password")]
    User,
    #[error("must name a host and, where it has one, a port above 0")]
    Port,
    #[error("`{host}` is a public host, which needs https://")]
    PlainToPublic { host: String },
    #[error("`{host}` has a {class} address, which the operator must allow by `webhooks.local_targets`")]
    Near { host: String, class: Class },
    #[error("`{host}` has a {class} address, to which the server sends nothing")]
    Never { host: String, class: Class },
}

impl From<BadUrl> for BadTarget {
    fn from(bad: BadUrl) -> Self {
        match bad {
            BadUrl::Malformed => Self::Malformed,
            BadUrl::NoHost => Self::NoHost,
            BadUrl::Scheme => Self::Scheme,
        }
    }
}

impl Target {
    /// Reads an address, and says what is wrong with it.
    pub fn parse(text: &str, reach: Reach) -> Result<Self, BadTarget> {
        if text.len() > LONGEST_URL || text.contains('#') || !text.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(BadTarget::Letters);
        }
        let address = Address::parse(text)?;
        if !address.is_tls() && reach == Reach::Internet {
            return Err(BadTarget::Plain);
        }
        if address.has_user() {
            return Err(BadTarget::User);
        }
        if address.port() == 0 {
            return Err(BadTarget::Port);
        }
        let target = Self { address };
        if let Ok(ip) = target.address.host().parse::<IpAddr>() {
            target.check(reach)(ip)?;
        }
        Ok(target)
    }

    /// Decides which of the host's addresses may be dialled.
    pub(super) fn check(&self, reach: Reach) -> impl Fn(IpAddr) -> Result<IpAddr, BadTarget> + Send + Sync {
        move |ip| admit(self.address.host(), ip, reach, self.address.is_tls(), is_own)
    }
}

/// The address to dial, or why it is refused. The reason has the host as given: tenants must not learn
/// addresses inside the operator's network.
fn admit(
    host: &str,
    address: IpAddr,
    reach: Reach,
    is_tls: bool,
    is_own: impl Fn(IpAddr) -> bool,
) -> Result<IpAddr, BadTarget> {
    let class = class_of(address, is_own);
    let near = matches!(
        class,
        Class::Loopback | Class::Private | Class::UniqueLocal | Class::CarrierShared | Class::Host
    );
    match class {
        Class::Public if is_tls => Ok(normalise(address)),
        Class::Public => Err(BadTarget::PlainToPublic { host: host.to_string() }),
        _ if near && reach == Reach::LocalToo => Ok(normalise(address)),
        _ if near => Err(BadTarget::Near { host: host.to_string(), class }),
        _ => Err(BadTarget::Never { host: host.to_string(), class }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_odd_ones_refused() {
        assert!(Target::parse("https://Example.com:8443/a/b?c=d", Reach::Internet).is_ok());
        assert!(Target::parse("https://[2606:4700::1]/", Reach::Internet).is_ok());
        let long = format!("https://example.com/{}", "a".repeat(LONGEST_URL));
        for bad in [
            "",
            "example.com",
            "/x",
            "ftp://example.com/",
            "http://example.com/",
            "https://",
            "https:///x",
            "https://u:p@example.com/",
            "https://example.com/#x",
            "https://exa mple.com/",
            "https://example.com/\n",
            "https://example.com:0/",
            "https://exämple.com/",
            &long,
        ] {
            assert!(Target::parse(bad, Reach::Internet).is_err(), "{bad}");
        }
    }

    #[test]
    fn nothing_near_is_dialled_unless_allowed_and_metadata_never() {
        for near in [
            "127.0.0.1",
            "10.0.0.1",
            "192.168.1.1",
            "172.16.0.1",
            "[::1]",
            "[fd12::1]",
            "100.64.0.1",
            "[::ffff:127.0.0.1]",
            "[64:ff9b::7f00:1]",
        ] {
            assert!(Target::parse(&format!("https://{near}/"), Reach::Internet).is_err(), "{near}");
            assert!(Target::parse(&format!("https://{near}/"), Reach::LocalToo).is_ok(), "{near}");
        }
        for never in [
            "169.254.169.254",
            "169.254.1.1",
            "[fe80::1]",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "[::ffff:169.254.169.254]",
            "100.100.100.200",
            "[2002:7f00:1::]",
            "[::]",
        ] {
            assert!(Target::parse(&format!("https://{never}/"), Reach::LocalToo).is_err(), "{never}");
        }
        // Plain HTTP to public addresses is refused, whatever is allowed.
        assert!(Target::parse("http://1.1.1.1/", Reach::LocalToo).is_err());
        assert!(Target::parse("http://127.0.0.1:8080/", Reach::LocalToo).is_ok());
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_stands_for() {
        // Names that resolvers read as numbers are looked up like any other, and then refused.
        for name in ["localhost", "127.1", "2130706433", "0x7f000001"] {
            let target = Target::parse(&format!("https://{name}/"), Reach::Internet).unwrap();
            let refused = target
                .address
                .resolve(&|ip| Ok(target.check(Reach::Internet)(ip)?))
                .await
                .unwrap_err()
                .to_string();
            assert!(refused.contains("loopback") || refused.contains("looked up"), "{name}: {refused}");
        }
        let target = Target::parse("http://localhost:9/", Reach::LocalToo).unwrap();
        let allowed = target.address.resolve(&|ip| Ok(target.check(Reach::LocalToo)(ip)?)).await.unwrap();
        assert!(!allowed.is_empty() && allowed.iter().all(|address| address.ip().is_loopback()));
    }

    #[test]
    fn this_machines_own_addresses_are_the_operators_to_allow_and_are_not_told() {
        let own = |address: IpAddr| address.to_string() == "8.8.4.4";
        let judged =
            |host: &str, address: &str, reach| admit(host, address.parse().unwrap(), reach, true, own);
        assert!(judged("a.com", "8.8.8.8", Reach::Internet).is_ok());
        assert!(judged("a.com", "8.8.4.4", Reach::LocalToo).is_ok(), "the operator allows it");
        for address in ["8.8.4.4", "10.1.2.3", "169.254.169.254"] {
            let why = judged("inside.corp", address, Reach::Internet).unwrap_err().to_string();
            assert!(why.contains("inside.corp") && !why.contains(address), "{why}");
        }
    }
}

//! The target of a request: its URL, and the socket addresses of its host.

use std::net::{IpAddr, SocketAddr};

use http::Uri;

use crate::failure::{Failure, NotAllowed};

/// Resolved addresses that a client tries to connect to.
const MOST_ADDRESSES: usize = 4;

/// Decides whether an address may be dialled, and in which form.
pub type Check<'a> = &'a (dyn Fn(IpAddr) -> Result<IpAddr, NotAllowed> + Send + Sync);

/// Allows every address: for destinations that the operator configures.
pub fn anywhere(address: IpAddr) -> Result<IpAddr, NotAllowed> {
    Ok(address)
}

/// Why a URL is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadUrl {
    #[error("is not a URL")]
    Malformed,
    #[error("has no host")]
    NoHost,
    #[error("must begin with https:// or http://")]
    Scheme,
}

/// An `http` or `https` URL. Callers decide whether plain HTTP, a user or a query is acceptable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    uri: Uri,
    /// In lower case, without the brackets of an IPv6 address.
    host: String,
    is_tls: bool,
}

impl Address {
    pub fn parse(text: &str) -> Result<Self, BadUrl> {
        let uri: Uri = text.parse().map_err(|_| BadUrl::Malformed)?;
        let authority = uri.authority().ok_or(BadUrl::NoHost)?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(BadUrl::Scheme),
        };
        let host = authority.host().trim_matches(['[', ']']).to_ascii_lowercase();
        if host.is_empty() {
            return Err(BadUrl::NoHost);
        }
        Ok(Self { uri, host, is_tls })
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    fn usual_port(&self) -> u16 {
        if self.is_tls { 443 } else { 80 }
    }

    pub fn port(&self) -> u16 {
        self.uri.port_u16().unwrap_or_else(|| self.usual_port())
    }

    pub fn path(&self) -> &str {
        self.uri.path()
    }

    pub fn path_and_query(&self) -> &str {
        self.uri.path_and_query().map_or("/", |path| path.as_str())
    }

    pub fn has_query(&self) -> bool {
        self.uri.query().is_some()
    }

    /// Whether a user or a password is in it.
    pub fn has_user(&self) -> bool {
        self.uri.authority().is_some_and(|authority| authority.as_str().contains('@'))
    }

    /// Host and port as the URL has them, for the `Host` header.
    pub fn host_header(&self) -> &str {
        let authority = self.uri.authority().map_or("", |authority| authority.as_str());
        authority.rsplit_once('@').map_or(authority, |(_, host)| host)
    }

    /// Scheme, host and port in their shortest form: lower case, without the scheme's default port.
    pub fn origin(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match self.port() {
            port if port == self.usual_port() => format!("{scheme}://{host}"),
            port => format!("{scheme}://{host}:{port}"),
        }
    }

    /// Looks the host up and returns the addresses that `check` allows, in the form it returns them. The client dials
    /// these and does not look the host up again, so a DNS answer that changes cannot get around the check.
    pub async fn resolve(&self, check: Check<'_>) -> Result<Vec<SocketAddr>, Failure> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port())).await;
        let found = found.map_err(|_| Failure::Lookup(self.host.clone()))?;
        let mut allowed = Vec::new();
        let mut refused = None;
        for address in found {
            match check(address.ip()) {
                Ok(ip) => allowed.push(SocketAddr::new(ip, self.port())),
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        allowed.truncate(MOST_ADDRESSES);
        if allowed.is_empty() {
            return Err(refused.map_or_else(|| Failure::NoAddress(self.host.clone()), Failure::Refused));
        }
        Ok(allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    #[test]
    fn urls_are_taken_apart() {
        let address = read("https://Example.com:8443/a/b?c=d");
        assert_eq!((address.host(), address.port(), address.is_tls()), ("example.com", 8443, true));
        assert_eq!((address.path(), address.path_and_query()), ("/a/b", "/a/b?c=d"));
        assert_eq!((address.host_header(), address.has_query()), ("Example.com:8443", true));
        assert_eq!(address.origin(), "https://example.com:8443");
        let address = read("http://u:p@[2606:4700::1]:80");
        assert_eq!((address.host(), address.port(), address.is_tls()), ("2606:4700::1", 80, false));
        assert_eq!((address.host_header(), address.has_user()), ("[2606:4700::1]:80", true));
        assert_eq!((address.origin().as_str(), address.path_and_query()), ("http://[2606:4700::1]", "/"));
        assert_eq!(read("https://example.com").port(), 443);
        for (bad, why) in [
            ("", BadUrl::Malformed),
            ("https://", BadUrl::Malformed),
            ("https://exa mple.com/", BadUrl::Malformed),
            ("/x", BadUrl::NoHost),
            ("example.com", BadUrl::Scheme),
            ("ftp://example.com/", BadUrl::Scheme),
        ] {
            assert_eq!(Address::parse(bad), Err(why), "{bad}");
        }
    }

    #[tokio::test]
    async fn only_allowed_addresses_are_left() {
        let address = read("http://127.0.0.1:9/");
        let moved = |_| Ok(IpAddr::from([127, 0, 0, 2]));
        assert_eq!(address.resolve(&moved).await.unwrap(), [SocketAddr::from(([127, 0, 0, 2], 9))]);
        let refused = address.resolve(&|_| Err("not there".into())).await.unwrap_err();
        assert!(matches!(refused, Failure::Refused(why) if why.to_string() == "not there"));
        assert_eq!(address.resolve(&anywhere).await.unwrap(), [SocketAddr::from(([127, 0, 0, 1], 9))]);
    }
}

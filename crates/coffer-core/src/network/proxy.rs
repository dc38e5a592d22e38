//! The proxy of a sandbox's connections.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use super::HostName;

/// A SOCKS5 proxy (RFC 1928), with an optional login (RFC 1929).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Proxy {
    host: ProxyHost,
    port: NonZeroU16,
    login: Option<Login>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProxyHost {
    /// Looked up whenever it is dialled.
    Name(HostName),
    Address(IpAddr),
}

/// A name and a password, each of at most 255 bytes. Its `Debug` hides the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    username: String,
    password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("username", &self.username).finish_non_exhaustive()
    }
}

impl Login {
    pub fn username(&self) -> &str {
        &self.username
    }

    pub fn password(&self) -> &str {
        &self.password
    }
}

/// Invalid settings of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadProxy {
    #[error("the address of a proxy is `host:port`")]
    Address,
    #[error("the username and the password of a proxy have at most 255 bytes, and the username at least one")]
    Login,
}

impl Proxy {
    /// Parses `host:port`, with an IPv6 address in brackets.
    pub fn new(address: &str, username: Option<&str>, password: Option<&str>) -> Result<Self, BadProxy> {
        let (host, port) = address.rsplit_once(':').ok_or(BadProxy::Address)?;
        let port = port.parse().map_err(|_| BadProxy::Address)?;
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let host = match (bracketed, host.parse::<IpAddr>()) {
            (Some(inner), _) => ProxyHost::Address(IpAddr::V6(inner.parse().map_err(|_| BadProxy::Address)?)),
            (None, Ok(address @ IpAddr::V4(_))) => ProxyHost::Address(address),
            (None, _) => ProxyHost::Name(HostName::parse(host).map_err(|_| BadProxy::Address)?),
        };
        let login = match (username, password) {
            (None, None) => None,
            (None, Some(_)) => return Err(BadProxy::Login),
            (Some(username), password) => {
                let password = password.unwrap_or_default();
                if username.is_empty() || username.len() > 255 || password.len() > 255 {
                    return Err(BadProxy::Login);
                }
                Some(Login { username: username.to_string(), password: password.to_string() })
            }
        };
        Ok(Self { host, port, login })
    }

    pub fn host(&self) -> &ProxyHost {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port.get()
    }

    pub fn login(&self) -> Option<&Login> {
        self.login.as_ref()
    }

    /// The same without its password, for display.
    #[must_use]
    pub fn without_password(mut self) -> Self {
        if let Some(login) = &mut self.login {
            login.password.clear();
        }
        self
    }
}

/// A proxy as written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    address: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    username: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    password: Option<String>,
}

impl TryFrom<Written> for Proxy {
    type Error = BadProxy;

    fn try_from(written: Written) -> Result<Self, BadProxy> {
        Self::new(&written.address, written.username.as_deref(), written.password.as_deref())
    }
}

impl From<Proxy> for Written {
    fn from(proxy: Proxy) -> Self {
        let port = proxy.port;
        let address = match proxy.host {
            ProxyHost::Name(name) => format!("{name}:{port}"),
            ProxyHost::Address(IpAddr::V4(address)) => format!("{address}:{port}"),
            ProxyHost::Address(IpAddr::V6(address)) => format!("[{address}]:{port}"),
        };
        let (username, password) = proxy.login.map(|login| (login.username, login.password)).unzip();
        Self { address, username, password: password.filter(|password| !password.is_empty()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_proxy_survives_json_and_keeps_its_password_out_of_logs() {
        for address in ["proxy.example.com:1080", "1.2.3.4:1", "[2606:4700::1]:65535"] {
            let proxy = Proxy::new(address, Some("me"), Some("hunter2")).unwrap();
            let written = serde_json::to_value(&proxy).unwrap();
            assert_eq!(written, json!({"address": address, "username": "me", "password": "hunter2"}));
            assert_eq!(serde_json::from_value::<Proxy>(written).unwrap(), proxy);
            assert!(!format!("{proxy:?}").contains("hunter2"));
            let shown = serde_json::to_value(proxy.without_password()).unwrap();
            assert_eq!(shown, json!({"address": address, "username": "me"}));
        }
    }

    #[test]
    fn what_names_no_proxy_is_refused() {
        for address in [
            "",
            "a.com",
            ":1",
            "a.com:0",
            "a.com:65536",
            "2606:4700::1:80",
            "[1.2.3.4]:1",
            "127.1:80",
            "a b:1",
        ] {
            assert_eq!(Proxy::new(address, None, None), Err(BadProxy::Address), "{address}");
        }
        let long = "x".repeat(256);
        for (username, password) in
            [(Some(""), None), (None, Some("x")), (Some(&*long), None), (Some("x"), Some(&*long))]
        {
            assert_eq!(Proxy::new("a.com:1", username, password), Err(BadProxy::Login));
        }
    }
}

//! Sends requests to one forge, over pooled connections.

use std::time::{Duration, Instant};

use bytes::Bytes;
use coffer_core::sync::Mutex;
use coffer_http::{Client, Connection, Failure, Read};
use http::Response;
use http_body_util::Full;

use crate::ForgeError;
use crate::place::may_be_at;

/// Time for connecting, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// Time for a whole request.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest answer.
pub(super) const LONGEST_ANSWER: usize = 8 << 20;
const MOST_IDLE: usize = 4;
const IDLE: Duration = Duration::from_secs(30);

/// The address of a forge's API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    at: coffer_http::Address,
    prefix: String,
}

impl Address {
    /// Parses `https://api.github.com` or `https://ghe.example.com/api/v3`. Plain HTTP would reveal the token
    /// to everyone on the path, so only tests allow it.
    pub(crate) fn parse(text: &str, allow_plain: bool) -> Result<Self, ForgeError> {
        let bad = |why: &str| ForgeError::invalid("base_url", why);
        let at = coffer_http::Address::parse(text.trim()).map_err(|why| match why {
            coffer_http::BadUrl::Malformed => bad("is not a URL"),
            _ => bad("must begin with https://"),
        })?;
        if !at.is_tls() && !allow_plain {
            return Err(bad("must begin with https://"));
        }
        if at.has_user() || at.has_query() {
            return Err(bad("must not contain a user, password or query"));
        }
        let prefix = at.path().trim_end_matches('/').to_string();
        Ok(Self { at, prefix })
    }

    pub(crate) fn host(&self) -> &str {
        self.at.host()
    }

    pub(crate) fn port(&self) -> u16 {
        self.at.port()
    }

    pub(crate) fn has_no_path(&self) -> bool {
        self.prefix.is_empty()
    }

    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.at.origin(), self.prefix)
    }

    /// The base URL of git, next to the API.
    pub(super) fn git_base(&self) -> String {
        match self.host() {
            "api.github.com" => "https://github.com".into(),
            host => match host.strip_prefix("api.").filter(|rest| rest.ends_with(".ghe.com")) {
                Some(tenant) => format!("https://{tenant}"),
                None => self.at.origin(),
            },
        }
    }

    /// The host of its pages and of git, with its port if that is not HTTPS's own.
    pub(crate) fn web_host(&self) -> String {
        let base = self.git_base().to_ascii_lowercase();
        let host = base.split_once("://").map_or(base.as_str(), |(_, host)| host);
        host.strip_suffix(":443").unwrap_or(host).to_string()
    }

    /// The path of a redirect below our own prefix, if it leads to this address.
    pub(super) fn within(&self, location: &str) -> Option<String> {
        let rest = location.strip_prefix(&self.text()).or_else(|| location.strip_prefix(&self.prefix))?;
        (rest.starts_with('/') && !rest.starts_with("//")).then(|| rest.to_string())
    }
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Silence {
    /// The other side cannot have received it.
    Unsent(String),
    /// The other side may have received it.
    Unanswered(String),
    TooLong,
}

impl From<Failure> for Silence {
    fn from(failure: Failure) -> Self {
        let is_unsent = failure.is_unsent();
        let why = match failure {
            Failure::TooLong => return Self::TooLong,
            // Without the address: projects must not learn addresses inside the operator's network.
            Failure::Connect(_, error) => error.to_string(),
            other => other.to_string(),
        };
        if is_unsent { Self::Unsent(why) } else { Self::Unanswered(why) }
    }
}

#[derive(Debug)]
pub(crate) struct Transport {
    pub(super) address: Address,
    client: Client,
    /// Whether the operator allows it at a private address.
    pub(super) on_site: bool,
    idle: Mutex<Vec<(Instant, Connection)>>,
}

impl Transport {
    pub(crate) fn new(address: Address, client: Client, on_site: bool) -> Self {
        Self { address, client, on_site, idle: Mutex::default() }
    }

    /// Sends a request for a path of this address, once.
    pub(super) async fn send(
        &self,
        builder: http::request::Builder,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Bytes>, Silence> {
        let builder = builder
            .uri(format!("{}{path}", self.address.prefix))
            .header("host", self.address.at.host_header());
        let request = builder.body(Full::new(body)).map_err(|error| Silence::Unsent(error.to_string()))?;
        let mut connection = match self.kept() {
            Some(connection) => connection,
            None => {
                let check = |ip| may_be_at(self.address.host(), self.on_site, ip);
                self.client.connect(&self.address.at, &check, CONNECT).await?
            }
        };
        let exchange = connection.exchange(request, Read::Whole { most: LONGEST_ANSWER });
        let answer = tokio::time::timeout(PATIENCE, exchange).await;
        let answer = answer.unwrap_or(Err(Failure::Timeout(PATIENCE)))?;
        let mut idle = self.idle.lock();
        if idle.len() < MOST_IDLE {
            idle.push((Instant::now(), connection));
        }
        Ok(answer)
    }

    fn kept(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        idle.retain(|(since, connection)| since.elapsed() < IDLE && !connection.is_closed());
        let ready = idle.iter().position(|(_, connection)| connection.is_ready())?;
        Some(idle.swap_remove(ready).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_https_and_know_their_git() {
        let read = |text| Address::parse(text, false).unwrap();
        assert_eq!(read("https://api.github.com").git_base(), "https://github.com");
        let enterprise = read("https://GHE.example.com/api/v3/");
        assert_eq!(enterprise.text(), "https://ghe.example.com/api/v3");
        assert_eq!(enterprise.git_base(), "https://ghe.example.com");
        assert_eq!(read("https://api.octo.ghe.com").git_base(), "https://octo.ghe.com");
        for bad in [
            "http://api.github.com",
            "api.github.com",
            "ftp://x",
            "https://u:p@x",
            "https://x/?a",
            "",
            "https://",
        ] {
            assert!(Address::parse(bad, false).is_err(), "{bad}");
        }
    }

    #[test]
    fn redirects_stay_where_they_are() {
        let address = Address::parse("https://ghe.example.com/api/v3", false).unwrap();
        let to = |location| address.within(location);
        assert_eq!(to("https://ghe.example.com/api/v3/repositories/1").as_deref(), Some("/repositories/1"));
        for away in [
            "https://evil.example.com/api/v3/x",
            "http://ghe.example.com/api/v3/x",
            "//evil/api/v3",
            "/elsewhere",
            "https://ghe.example.com.evil.com/api/v3/x",
            "https://ghe.example.com/api/v3//evil",
        ] {
            assert_eq!(to(away), None, "{away}");
        }
    }
}

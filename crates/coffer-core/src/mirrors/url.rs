//! URLs of mirrors. They become words of configuration files, so few signs are accepted.

use std::fmt;

/// `http` or `https`, a host, a port and a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MirrorUrl {
    tls: bool,
    host: String,
    port: u16,
    /// Empty, or begins with `/` and does not end with one.
    path: String,
}

const FORM: &str = "must be a URL such as `https://mirror.example.com/path`";
const CREDENTIALS: &str = "must not have a user or a password: sandboxes would learn them. Store the credential \
                           as a secret, and add it to requests by a header rule of the network policy";

impl MirrorUrl {
    /// Parses a URL, or says what it must be.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = text.split_once("://").ok_or(FORM)?;
        let tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(FORM),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(CREDENTIALS);
        }
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/+%:,=".contains(&byte);
        if path.len() > 1024 || !path.bytes().all(fits) {
            return Err(FORM);
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or(FORM)?,
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let port = match port {
            "" if tls => 443,
            "" => 80,
            port => port.strip_prefix(':').and_then(parse_port).ok_or(FORM)?,
        };
        if host.is_empty() {
            return Err(FORM);
        }
        let path = path.trim_end_matches('/').to_string();
        Ok(Self { tls, host: host.to_string(), port, path })
    }

    /// A name or an address, without brackets.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn is_tls(&self) -> bool {
        self.tls
    }

    /// The same at another host.
    pub(super) fn at_host(self, host: String) -> Self {
        Self { host: host.to_ascii_lowercase(), ..self }
    }

    /// The host, with its port unless that is the usual one.
    pub(super) fn authority(&self) -> String {
        let usual = if self.tls { 443 } else { 80 };
        if self.port == usual { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    /// The same without the last part of its path, if that is one of `names`.
    pub(super) fn above(mut self, names: &[&str]) -> Self {
        if let Some((above, last)) = self.path.rsplit_once('/')
            && names.contains(&last)
        {
            self.path = above.to_string();
        }
        self
    }
}

/// Without a final `/`.
impl fmt::Display for MirrorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

/// A port in plain digits.
pub(super) fn parse_port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_one_form() {
        for (text, expected) in [
            ("https://a.test", "https://a.test"),
            ("https://a.test:443/", "https://a.test"),
            ("http://a.test:8080/x/y//", "http://a.test:8080/x/y"),
            ("http://a.test:443/%7Ex", "http://a.test:443/%7Ex"),
        ] {
            assert_eq!(MirrorUrl::parse(text).unwrap().to_string(), expected);
        }
        let above = MirrorUrl::parse("http://a.test/x/debian").unwrap().above(&["debian"]);
        assert_eq!(above.to_string(), "http://a.test/x");
        assert_eq!(above.above(&["debian"]).to_string(), "http://a.test/x");
    }
}

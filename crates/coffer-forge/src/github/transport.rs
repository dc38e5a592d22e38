//! HTTP to one address: bounded, over connections that are kept for a while.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::ForgeError;
use crate::private::{is_own, may_dial};

/// For connecting, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// For a whole request.
const PATIENCE: Duration = Duration::from_secs(30);
/// No answer is longer.
pub(super) const LONGEST_ANSWER: usize = 8 << 20;
const MOST_IDLE: usize = 4;
/// Addresses of one name that are tried.
const MOST_ADDRESSES: usize = 4;
const IDLE: Duration = Duration::from_secs(30);

/// Where a forge's API is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    host: String,
    /// As it stands in the URL, in brackets for an IPv6 address.
    shown_host: String,
    port: u16,
    is_tls: bool,
    is_usual_port: bool,
    prefix: String,
}

impl Address {
    /// Reads `https://api.github.com` or `https://ghe.example.com/api/v3`. Plain HTTP would tell the token to
    /// everyone on the way, so only tests allow it.
    pub(crate) fn parse(text: &str, allow_plain: bool) -> Result<Self, ForgeError> {
        let bad = |why: &str| ForgeError::invalid("base_url", why);
        let uri: Uri = text.trim().parse().map_err(|_| bad("is no URL"))?;
        let authority = uri.authority().ok_or_else(|| bad("must begin with https://"))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if allow_plain => false,
            _ => return Err(bad("must begin with https://")),
        };
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(bad("must have no user, password or query in it"));
        }
        let usual = if is_tls { 443 } else { 80 };
        let shown_host = authority.host().to_ascii_lowercase();
        Ok(Self {
            host: shown_host.trim_matches(['[', ']']).to_string(),
            shown_host,
            port: authority.port_u16().unwrap_or(usual),
            is_tls,
            is_usual_port: authority.port_u16().is_none_or(|port| port == usual),
            prefix: uri.path().trim_end_matches('/').to_string(),
        })
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn origin(&self, host: &str) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        if self.is_usual_port {
            format!("{scheme}://{host}")
        } else {
            format!("{scheme}://{host}:{}", self.port)
        }
    }

    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.origin(&self.shown_host), self.prefix)
    }

    /// Where git itself is: next to the API.
    pub(super) fn git_base(&self) -> String {
        match self.host.as_str() {
            "api.github.com" => "https://github.com".into(),
            host => match host.strip_prefix("api.").filter(|rest| rest.ends_with(".ghe.com")) {
                Some(tenant) => format!("https://{tenant}"),
                None => self.origin(&self.shown_host),
            },
        }
    }

    /// The path below our own prefix of where a redirect leads, if that is this address.
    pub(super) fn within(&self, location: &str) -> Option<String> {
        let rest = location.strip_prefix(&self.text()).or_else(|| location.strip_prefix(&self.prefix))?;
        (rest.starts_with('/') && !rest.starts_with("//")).then(|| rest.to_string())
    }

    fn host_header(&self) -> String {
        if self.is_usual_port {
            self.shown_host.clone()
        } else {
            format!("{}:{}", self.shown_host, self.port)
        }
    }
}

/// What became of a request that has no answer.
#[derive(Debug)]
pub(super) enum Silence {
    /// The other side cannot have received it.
    Unsent(String),
    /// It may have.
    Unanswered(String),
    TooLong,
}

pub(crate) struct Transport {
    pub(super) address: Address,
    tls: TlsConnector,
    /// Whether the operator vouches for it.
    pub(super) on_site: bool,
    idle: Mutex<Vec<(Instant, SendRequest<Full<Bytes>>)>>,
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Transport({})", self.address.text())
    }
}

impl Transport {
    pub(crate) fn new(address: Address, tls: TlsConnector, on_site: bool) -> Self {
        Self { address, tls, on_site, idle: Mutex::default() }
    }

    /// Sends a request for a path of this address, once.
    pub(super) async fn send(
        &self,
        mut builder: http::request::Builder,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Bytes>, Silence> {
        builder =
            builder.uri(format!("{}{path}", self.address.prefix)).header("host", self.address.host_header());
        let request = builder.body(Full::new(body)).map_err(|error| Silence::Unsent(error.to_string()))?;
        let mut sender = match self.kept() {
            Some(sender) => sender,
            None => self.connect().await.map_err(Silence::Unsent)?,
        };
        let exchange = async {
            let answer = Self::ask(&mut sender, request).await?;
            let (parts, body) = answer.into_parts();
            let body = Limited::new(body, LONGEST_ANSWER).collect().await;
            let body = body.map_err(|error| match error.is::<http_body_util::LengthLimitError>() {
                true => Silence::TooLong,
                false => Silence::Unanswered("its answer broke off".into()),
            })?;
            Ok(Response::from_parts(parts, body.to_bytes()))
        };
        let answer = tokio::time::timeout(PATIENCE, exchange).await;
        let answer = answer.unwrap_or_else(|_| Err(Silence::Unanswered("it took too long".into())))?;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push((Instant::now(), sender));
        }
        Ok(answer)
    }

    async fn ask(
        sender: &mut SendRequest<Full<Bytes>>,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<hyper::body::Incoming>, Silence> {
        match sender.try_send_request(request).await {
            Ok(answer) => Ok(answer),
            // Given back unsent: the connection had ended.
            Err(mut error) => match error.take_message() {
                Some(_) => Err(Silence::Unsent("the connection was closed".into())),
                None => Err(Silence::Unanswered(error.into_error().to_string())),
            },
        }
    }

    fn kept(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(since, sender)| since.elapsed() < IDLE && !sender.is_closed());
        let ready = idle.iter().position(|(_, sender)| sender.is_ready())?;
        Some(idle.swap_remove(ready).1)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let connect = async {
            let stream = self.dial().await?;
            let _ = stream.set_nodelay(true);
            if !self.address.is_tls {
                return Self::converse(TokioIo::new(stream)).await;
            }
            let name = rustls::pki_types::ServerName::try_from(self.address.host.clone());
            let name = name.map_err(|_| "its name fits no certificate".to_string())?;
            let stream = self.tls.connect(name, stream).await.map_err(|error| error.to_string())?;
            Self::converse(TokioIo::new(stream)).await
        };
        tokio::time::timeout(CONNECT, connect)
            .await
            .unwrap_or_else(|_| Err("connecting took too long".into()))
    }

    /// Dials what the name stands for just now, if that is where a forge may be.
    async fn dial(&self) -> Result<TcpStream, String> {
        let Address { host, port, .. } = &self.address;
        let found =
            tokio::net::lookup_host((host.as_str(), *port)).await.map_err(|error| error.to_string())?;
        let mut why = format!("`{host}` has no address");
        for to in found.take(MOST_ADDRESSES) {
            let dialled = match may_dial(self.on_site, to.ip(), is_own) {
                Ok(address) => TcpStream::connect((address, *port)).await.map_err(|error| error.to_string()),
                Err(class) => Err(format!(
                    "`{host}` is at a {class} address; an operator can allow that by `forge.private_hosts`"
                )),
            };
            match dialled {
                Ok(stream) => return Ok(stream),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    async fn converse<S>(stream: S) -> Result<SendRequest<Full<Bytes>>, String>
    where
        S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let (sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(|error| error.to_string())?;
        // Ends when its sender is dropped.
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// Trusts whom this machine trusts, and the authorities in `extra`, which is PEM.
pub(crate) fn tls(extra: Option<&str>) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(native.certs);
    let extra = CertificateDer::pem_slice_iter(extra.unwrap_or_default().as_bytes());
    roots.add_parsable_certificates(extra.flatten());
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the usual versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(std::sync::Arc::new(config))
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

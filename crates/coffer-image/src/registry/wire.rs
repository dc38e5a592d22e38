//! Requests to registries: redirects are followed, and every hop meets the same walls.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use coffer_core::network::Class;
use coffer_http::{Address, Client, Pieces, PrivateHosts, is_own, may_dial};
use http::header::{ACCEPT, AUTHORIZATION, HOST, LOCATION, RANGE, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;

use crate::error::ImageError;

/// Time for connecting, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// Time until the head of an answer is there.
const HEAD: Duration = Duration::from_secs(30);
/// Time for the body of a manifest, a configuration or a token.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
const MOST_REDIRECTS: usize = 5;
/// Links to blob stores are signed, and long.
const LONGEST_LOCATION: usize = 8 << 10;
const AGENT: &str = concat!("coffer/", env!("CARGO_PKG_VERSION"));

/// A registry, or a mirror of one, and the repository there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    /// With its port, as the project or the operator wrote it.
    pub(crate) host: String,
    pub(crate) repository: String,
    pub(crate) is_mirror: bool,
}

/// A `GET` below `/v2/` of a source's repository.
#[derive(Debug)]
pub(super) struct Ask<'a> {
    /// `manifests/latest`, `blobs/sha256:…`.
    pub(super) path: String,
    pub(super) accept: &'static str,
    /// The first byte that is wanted.
    pub(super) from: u64,
    pub(super) authorization: Option<&'a HeaderValue>,
}

/// An answer, and which host gave it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) response: Response<Pieces>,
    pub(super) host: String,
    /// Whether the source answered itself, and not a host that it redirected to.
    pub(super) is_home: bool,
    /// Whether the project's credentials were part of it.
    pub(super) credentials_sent: bool,
}

#[derive(Debug)]
pub(super) struct Wire {
    pub(super) client: Client,
    pub(super) private_hosts: PrivateHosts,
    pub(super) plain_http: PrivateHosts,
}

/// A host that the operator does not vouch for is not on the internet.
#[derive(Debug, thiserror::Error)]
#[error("`{host}` has a {class} address; an operator can allow that by `registries.private_hosts`")]
struct NotPublic {
    host: String,
    class: Class,
}

impl Wire {
    /// Sends a request and follows redirects. Each hop is checked like the first, and only the source itself gets the
    /// authorization: a blob store must not see it, and need not.
    pub(super) async fn get(&self, source: &Source, ask: &Ask<'_>) -> Result<Answer, ImageError> {
        let home = self.home(source)?;
        let first = format!("{}/v2/{}/{}", home.origin(), source.repository, ask.path);
        let mut to = Address::parse(&first)
            .map_err(|why| ImageError::invalid(format!("the registry `{}`", source.host), why.to_string()))?;
        for _ in 0..=MOST_REDIRECTS {
            let is_home = to.origin() == home.origin();
            let mut request = Request::get(to.path_and_query()).header(ACCEPT, ask.accept);
            if ask.from > 0 {
                request = request.header(RANGE, format!("bytes={}-", ask.from));
            }
            if let Some(value) = ask.authorization.filter(|_| is_home) {
                request = request.header(AUTHORIZATION, value);
            }
            let response = self.send(&to, source, request, Bytes::new()).await?;
            if !is_redirect(response.status()) {
                return Ok(Answer {
                    response,
                    host: to.host_header().to_string(),
                    is_home,
                    credentials_sent: false,
                });
            }
            to = follow(&to, response.headers().get(LOCATION))?;
        }
        Err(ImageError::invalid(
            format!("`{}`", source.host),
            format!("redirects more than {MOST_REDIRECTS} times"),
        ))
    }

    /// Sends one request to any address, on behalf of a source.
    pub(super) async fn send(
        &self,
        to: &Address,
        source: &Source,
        request: http::request::Builder,
        body: Bytes,
    ) -> Result<Response<Pieces>, ImageError> {
        let host = to.host_header();
        if to.has_user() {
            return Err(ImageError::invalid(
                format!("`{}`", to.host()),
                "must have no user or password in its URL",
            ));
        }
        if !to.is_tls() && !self.plain_http.has(to.host(), to.port()) {
            let why = "plain HTTP is refused; an operator can allow that by `registries.plain_http`".into();
            return Err(ImageError::Tls { host: host.into(), why });
        }
        let request = request
            .header(HOST, host)
            .header(USER_AGENT, AGENT)
            .body(Full::new(body))
            .map_err(|error| ImageError::invalid(format!("a request to `{host}`"), error.to_string()))?;
        let on_site = self.private_hosts.has(to.host(), to.port()) || self.is_mirror_itself(source, to);
        let check = |ip: IpAddr| {
            let class = |class| NotPublic { host: host.to_string(), class };
            Ok(may_dial(on_site, ip, is_own).map_err(class)?)
        };
        let failed = |failure| ImageError::from_failure(host, failure, 0);
        let connection = self.client.connect(to, &check, CONNECT).await.map_err(failed)?;
        let began = tokio::time::timeout(HEAD, connection.begin(request)).await;
        began.unwrap_or(Err(coffer_http::Failure::Timeout(HEAD))).map_err(failed)
    }

    /// A mirror is named by the operator, so it may be at a private address; but only while it serves as a mirror, not
    /// for a project that names it.
    fn is_mirror_itself(&self, source: &Source, to: &Address) -> bool {
        source.is_mirror && self.home(source).is_ok_and(|home| home.origin() == to.origin())
    }

    fn home(&self, source: &Source) -> Result<Address, ImageError> {
        let parse = |scheme: &str| {
            Address::parse(&format!("{scheme}://{}/", source.host)).map_err(|why| {
                ImageError::invalid(format!("the registry `{}`", source.host), why.to_string())
            })
        };
        let address = parse("https")?;
        match self.plain_http.has(address.host(), address.port()) {
            true => parse("http"),
            false => Ok(address),
        }
    }
}

/// A request for bytes: what a token server and AWS are asked with.
pub(super) fn request(method: Method, to: &Address) -> http::request::Builder {
    Request::builder().method(method).uri(to.path_and_query())
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn follow(from: &Address, location: Option<&HeaderValue>) -> Result<Address, ImageError> {
    let bad =
        |why: &str| ImageError::invalid(format!("`{}`", from.host_header()), format!("redirects {why}"));
    let text = location.and_then(|value| value.to_str().ok()).ok_or_else(|| bad("without a location"))?;
    if text.len() > LONGEST_LOCATION {
        return Err(bad("to a location that is too long"));
    }
    let scheme = if from.is_tls() { "https" } else { "http" };
    let text = match text {
        _ if text.starts_with("//") => format!("{scheme}:{text}"),
        _ if text.starts_with('/') => format!("{}{text}", from.origin()),
        _ => text.to_string(),
    };
    Address::parse(&text).map_err(|_| bad("to a location that is not a URL"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_whole_or_begin_at_the_root() {
        let from = Address::parse("https://registry.example.com:5000/v2/a/blobs/x").unwrap();
        let to = |text: &str| follow(&from, Some(&HeaderValue::from_str(text).unwrap()));
        let url = |address: Address| format!("{}{}", address.origin(), address.path_and_query());
        assert_eq!(url(to("/b?c").unwrap()), "https://registry.example.com:5000/b?c");
        assert_eq!(url(to("//cdn.example.com/b").unwrap()), "https://cdn.example.com/b");
        assert_eq!(url(to("https://cdn.example.com/b?s=1").unwrap()), "https://cdn.example.com/b?s=1");
        for bad in ["b", "ftp://x/", "file:///etc/passwd", "", &format!("/{}", "x".repeat(LONGEST_LOCATION))]
        {
            assert!(to(bad).is_err(), "{bad}");
        }
        assert!(follow(&from, None).is_err());
    }
}

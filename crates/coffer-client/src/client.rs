//! The client: one server, one key.

use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::connection::{Body, Flow, Server, Transport, empty, full};
use crate::error::{Error, Refusal};

/// The longest answer that is read as a whole.
const LONGEST_ANSWER: usize = 64 << 20;
const LONGEST_REFUSAL: usize = 256 << 10;
/// How long an answer may take to begin.
const PATIENCE: Duration = Duration::from_secs(300);
/// What need not be encoded in a segment of a path.
const SEGMENT: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// A client of one server. Clones share connections.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) server: Arc<Server>,
    key: Option<HeaderValue>,
}

impl Client {
    /// `url` is the server's address, such as `https://coffer.example.com`. Connects to nothing yet.
    pub fn new(url: &str, key: Option<&str>) -> Result<Self, Error> {
        Ok(Self { server: Arc::new(Server::parse(url)?), key: key.map(header_of).transpose()? })
    }

    /// A client whose requests go through `transport`; `url` is what the server is called.
    pub fn through(transport: Arc<dyn Transport>, url: &str, key: Option<&str>) -> Result<Self, Error> {
        Ok(Self { server: Arc::new(Server::behind(url, transport)?), key: key.map(header_of).transpose()? })
    }

    /// The server's URL, without a slash at its end.
    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// Whether others on the way can read what is sent: it is neither TLS nor this machine.
    pub fn is_exposed(&self) -> bool {
        let host = &self.server.host;
        let loopback = host == "localhost"
            || host.ends_with(".localhost")
            || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        !self.server.is_tls() && !loopback
    }

    /// Sends a request to any path of the server, without the key. A refusal is an answer like any other.
    pub async fn send_raw(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Body,
    ) -> Result<Response<Flow>, Error> {
        let mut request = Request::builder().method(method).uri(self.server.path(path)).body(body);
        let request = request.as_mut().map_err(|error| Error::Unreadable(error.to_string()))?;
        *request.headers_mut() = headers;
        let host = HeaderValue::from_str(&self.server.authority);
        request.headers_mut().insert(HOST, host.map_err(|_| Error::BadUrl(self.server.url.clone()))?);
        if !request.headers().contains_key(USER_AGENT) {
            let agent = concat!("coffer/", env!("CARGO_PKG_VERSION"));
            request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(agent));
        }
        self.server.send(std::mem::replace(request, Request::new(empty()))).await
    }

    /// The client's headers: the key, and what it can read.
    pub(crate) fn headers(&self, accept: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(key) = &self.key {
            headers.insert(HeaderName::from_static("x-api-key"), key.clone());
        }
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        headers
    }

    /// Sends a request with the key, and returns the answer when its head has arrived, unless it is a refusal.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Body,
        patience: Option<Duration>,
    ) -> Result<Response<Flow>, Error> {
        let exchange = self.send_raw(method, path, headers, body);
        let answer = match patience {
            Some(patience) => {
                tokio::time::timeout(patience, exchange).await.map_err(|_| Error::Late(patience))??
            }
            None => exchange.await?,
        };
        accepted(answer).await
    }

    /// Sends JSON and reads JSON.
    pub(crate) async fn call<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<A, Error> {
        read(self.ask(method, path, body, None).await?).await
    }

    /// Sends JSON, with a key that makes a repetition harmless.
    pub(crate) async fn call_once<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        idempotency_key: Option<&str>,
    ) -> Result<A, Error> {
        read(self.ask(Method::POST, path, Some(body), idempotency_key).await?).await
    }

    /// Sends JSON to a route that answers without content.
    pub(crate) async fn tell(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<(), Error> {
        self.ask(method, path, body, None).await?.into_body().whole(LONGEST_ANSWER).await.map(drop)
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        idempotency_key: Option<&str>,
    ) -> Result<Response<Flow>, Error> {
        let mut headers = self.headers("application/json");
        if let Some(key) = idempotency_key {
            let key = HeaderValue::from_str(key).map_err(|_| Error::BadKey)?;
            headers.insert("idempotency-key", key);
        }
        let body = match body {
            None => empty(),
            Some(body) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                full(serde_json::to_vec(body).map_err(|error| Error::Unreadable(error.to_string()))?)
            }
        };
        self.send(method, path, headers, body, Some(PATIENCE)).await
    }

    pub(crate) async fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, Error> {
        self.call(Method::GET, path, None::<&()>).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<(), Error> {
        self.tell(Method::DELETE, path, None::<&()>).await
    }
}

fn header_of(key: &str) -> Result<HeaderValue, Error> {
    let mut key = HeaderValue::from_str(key).map_err(|_| Error::BadKey)?;
    key.set_sensitive(true);
    Ok(key)
}

/// The path of a route below `/api/v1`; every part is encoded, so that none of them can add another.
pub(crate) fn at<const N: usize>(parts: [&str; N]) -> String {
    let mut path = "/api/v1".to_string();
    for part in parts {
        path.push('/');
        path.extend(utf8_percent_encode(part, &SEGMENT));
    }
    path
}

/// A path inside a sandbox, as the end of a route: slashes stay.
pub(crate) fn inside(path: &str) -> String {
    let parts: Vec<String> = path
        .trim_start_matches('/')
        .split('/')
        .map(|part| utf8_percent_encode(part, &SEGMENT).to_string())
        .collect();
    parts.join("/")
}

/// A query string; missing fields are left out.
pub(crate) fn encode(query: &impl Serialize) -> String {
    serde_html_form::to_string(query).expect("queries are flat structs of text and numbers")
}

/// A path with a query, if there is one.
pub(crate) fn with_query(path: String, query: &str) -> String {
    if query.is_empty() { path } else { format!("{path}?{query}") }
}

/// Turns refusals into errors.
pub(crate) async fn accepted(answer: Response<Flow>) -> Result<Response<Flow>, Error> {
    let status = answer.status();
    if status.is_success() || status.is_informational() {
        return Ok(answer);
    }
    let (head, body) = answer.into_parts();
    let body = body.whole(LONGEST_REFUSAL).await.unwrap_or_default();
    Err(Error::Refused(Box::new(Refusal::read(status, &head.headers, &body))))
}

/// Reads an answer's JSON.
pub(crate) async fn read<A: DeserializeOwned>(answer: Response<Flow>) -> Result<A, Error> {
    let body = answer.into_body().whole(LONGEST_ANSWER).await?;
    serde_json::from_slice(&body).map_err(|error| Error::Unreadable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_path_stays_one_part() {
        assert_eq!(at(["agents", "../keys?x#y"]), "/api/v1/agents/..%2Fkeys%3Fx%23y");
        assert_eq!(inside("/home/user/a b%/ü"), "home/user/a%20b%25/%C3%BC");
        assert_eq!(inside("~/x"), "~/x");
    }

    #[test]
    fn plain_http_is_exposed_unless_it_is_this_machine() {
        let exposed = |url| Client::new(url, None).unwrap().is_exposed();
        assert!(exposed("http://10.0.0.1:3000") && exposed("http://coffer.example.com"));
        assert!(
            !exposed("http://127.0.0.1:3000") && !exposed("http://[::1]:80") && !exposed("https://a.com")
        );
    }
}

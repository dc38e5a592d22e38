//! Connections to one server: dialled when needed, used again when their answer was read to its end.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use coffer_core::sync::Mutex;
use http::{Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::error::Error;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const LONGEST_HEAD: usize = 64 << 10;
/// Connections that wait for another request.
const MOST_IDLE: usize = 4;

/// The body of a request.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A body without content.
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body that is in memory.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Another way to the server than a connection: a server that calls itself has one.
pub trait Transport: std::fmt::Debug + Send + Sync {
    fn send(&self, request: Request<Body>)
    -> futures_util::future::BoxFuture<'_, io::Result<Response<Body>>>;
}

/// The server's address, and connections to it.
#[derive(Debug)]
pub(crate) struct Server {
    /// Instead of connections.
    transport: Option<Arc<dyn Transport>>,
    /// Without a slash at its end.
    pub(crate) url: String,
    pub(crate) host: String,
    port: u16,
    is_tls: bool,
    /// Below which path the API is, if a reverse proxy moves it; `""` or `/prefix`.
    prefix: String,
    /// What requests name as their host.
    pub(crate) authority: String,
    tls: OnceLock<Tls>,
    idle: Mutex<Vec<Connection>>,
}

#[derive(Clone)]
struct Tls(TlsConnector);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Server {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let bad = || Error::BadUrl(text.to_string());
        let uri: Uri = text.trim_end_matches('/').parse().map_err(|_| bad())?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let authority = uri.authority().ok_or_else(bad)?;
        let host = authority.host().trim_matches(['[', ']']).to_ascii_lowercase();
        // A password in a URL would end up in messages; keys have their own place.
        if host.is_empty() || authority.as_str().contains('@') || uri.query().is_some() {
            return Err(bad());
        }
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let prefix = uri.path().trim_end_matches('/').to_string();
        let (scheme, authority) = (if is_tls { "https" } else { "http" }, authority.as_str().to_string());
        Ok(Self {
            transport: None,
            url: format!("{scheme}://{authority}{prefix}"),
            host,
            port,
            is_tls,
            prefix,
            authority,
            tls: OnceLock::new(),
            idle: Mutex::new(Vec::new()),
        })
    }

    /// The server behind `transport`; `url` is what it is called.
    pub(crate) fn behind(url: &str, transport: Arc<dyn Transport>) -> Result<Self, Error> {
        Ok(Self { transport: Some(transport), ..Self::parse(url)? })
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The path of a request, below the server's own.
    pub(crate) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    fn unreachable(&self, source: io::Error) -> Error {
        Error::Unreachable { url: self.url.clone(), source }
    }

    async fn dial(&self) -> Result<Connection, Error> {
        let dialled =
            tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect((self.host.as_str(), self.port)));
        let late = |_| self.unreachable(io::ErrorKind::TimedOut.into());
        let stream = dialled.await.map_err(late)?.map_err(|error| self.unreachable(error))?;
        let _best_effort = stream.set_nodelay(true);
        if !self.is_tls {
            return self.speak(TokioIo::new(stream)).await;
        }
        let name = ServerName::try_from(self.host.clone()).map_err(|_| Error::BadUrl(self.url.clone()))?;
        // Reading the machine's trust store takes milliseconds: only for https.
        let tls = self.tls.get_or_init(trust).clone();
        let greeted = tokio::time::timeout(CONNECT_WITHIN, tls.0.connect(name, stream));
        let stream = greeted.await.map_err(late)?.map_err(|error| self.unreachable(error))?;
        self.speak(TokioIo::new(stream)).await
    }

    async fn speak<S>(&self, stream: S) -> Result<Connection, Error>
    where
        S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let mut builder = Builder::new();
        builder.max_buf_size(LONGEST_HEAD.max(1 << 20));
        let made = builder.handshake(stream).await;
        let (sender, connection) = made.map_err(|error| self.unreachable(io::Error::other(error)))?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            let _ended = connection.with_upgrades().await;
        });
        Ok(Connection { sender, _driver: driver })
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        while let Some(connection) = idle.pop() {
            if connection.sender.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < MOST_IDLE && !connection.sender.is_closed() {
            idle.push(connection);
        }
    }

    /// Sends a request. An idle connection that had ended meanwhile is replaced: it did not take the request.
    pub(crate) async fn send(self: &Arc<Self>, mut request: Request<Body>) -> Result<Response<Flow>, Error> {
        if let Some(transport) = &self.transport {
            let answer =
                transport.send(request).await.map_err(|error| Error::BrokenOff(Some(Box::new(error))))?;
            return Ok(answer.map(|body| Flow { source: Source::Within(body), server: self.clone() }));
        }
        while let Some(mut connection) = self.take_idle() {
            match connection.sender.try_send_request(request).await {
                Ok(answer) => return Ok(self.flow(answer, connection)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(broken(error.into_error())),
                },
            }
        }
        let mut connection = self.dial().await?;
        let answer = connection.sender.send_request(request).await.map_err(broken)?;
        Ok(self.flow(answer, connection))
    }

    fn flow(self: &Arc<Self>, answer: Response<Incoming>, connection: Connection) -> Response<Flow> {
        let source = |body| Source::Wire(body, Some(connection));
        answer.map(|body| Flow { source: source(body), server: self.clone() })
    }
}

fn trust() -> Tls {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the usual versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Tls(TlsConnector::from(Arc::new(config)))
}

/// What hyper reports: our own body's error is the caller's, everything else the connection's.
fn broken(error: hyper::Error) -> Error {
    if error.is_user()
        && let Some(cause) = std::error::Error::source(&error)
        && let Some(cause) = cause.downcast_ref::<io::Error>()
    {
        return Error::Local(io::Error::new(cause.kind(), cause.to_string()));
    }
    Error::BrokenOff(Some(Box::new(error)))
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Body>,
    /// Moves the bytes; ends when it is dropped.
    _driver: JoinSet<()>,
}

/// The body of an answer, piece by piece. Dropping it before its end closes the connection.
#[derive(Debug)]
pub struct Flow {
    source: Source,
    server: Arc<Server>,
}

#[derive(Debug)]
enum Source {
    /// With its connection, until the end.
    Wire(Incoming, Option<Connection>),
    /// Of a [`Transport`].
    Within(Body),
}

impl Flow {
    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = match &mut self.source {
                Source::Wire(body, connection) => match body.frame().await {
                    None => {
                        if let Some(connection) = connection.take() {
                            self.server.give_back(connection);
                        }
                        return Ok(None);
                    }
                    Some(frame) => frame.map_err(|error| Error::BrokenOff(Some(Box::new(error))))?,
                },
                Source::Within(body) => match body.frame().await {
                    None => return Ok(None),
                    Some(frame) => frame.map_err(|error| Error::BrokenOff(Some(Box::new(error))))?,
                },
            };
            match frame.into_data() {
                Ok(data) if !data.is_empty() => return Ok(Some(data)),
                _ => {}
            }
        }
    }

    /// All of it, if it has at most `most` bytes.
    pub async fn whole(mut self, most: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        while let Some(piece) = self.next().await? {
            if all.len() + piece.len() > most {
                return Err(Error::Unreadable(format!("it is longer than {most} bytes")));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let server = Server::parse("https://Coffer.example.com/").unwrap();
        assert_eq!((server.host.as_str(), server.port, server.is_tls), ("coffer.example.com", 443, true));
        let server = Server::parse("http://[::1]:3000/coffer/").unwrap();
        assert_eq!(
            (server.host.as_str(), server.port, server.path("/api").as_str()),
            ("::1", 3000, "/coffer/api")
        );
        for bad in ["", "coffer", "ftp://a", "http://", "http://me:secret@host", "http://host/?a=b"] {
            assert!(matches!(Server::parse(bad), Err(Error::BadUrl(_))), "{bad}");
        }
    }
}

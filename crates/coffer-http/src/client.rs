//! A client for outgoing requests, bounded in size and time. It follows no redirects: a redirect is an answer
//! like any other, so no request goes to an unchecked address.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::address::{Address, Check};
use crate::failure::Failure;

const LONGEST_HEAD: usize = 64 << 10;
const MOST_HEADERS: usize = 100;

/// How much of an answer's body is read.
#[derive(Debug, Clone, Copy)]
pub enum Read {
    /// The whole body. A body that is too long or incomplete is a failure.
    Whole { most: usize },
    /// The beginning, as far as it arrives in time: only the status matters.
    Beginning { most: usize, patience: Duration },
}

/// Connects to hosts outside, and checks their certificates.
#[derive(Clone)]
pub struct Client {
    tls: TlsConnector,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Client {
    /// Trusts the authorities that this machine trusts, and those in `extra_roots`, which is PEM. Reads the machine's
    /// trust store: create one client and clone it.
    pub fn new(extra_roots: Option<&str>) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let extra = CertificateDer::pem_slice_iter(extra_roots.unwrap_or_default().as_bytes());
        roots.add_parsable_certificates(extra.flatten());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has the usual versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { tls: TlsConnector::from(Arc::new(config)) }
    }

    /// Sends one request over its own connection; `patience` covers everything, including the connection.
    pub async fn send(
        &self,
        to: &Address,
        check: Check<'_>,
        request: Request<Full<Bytes>>,
        read: Read,
        patience: Duration,
    ) -> Result<Response<Bytes>, Failure> {
        let exchange = async { self.open(to, check).await?.exchange(request, read).await };
        tokio::time::timeout(patience, exchange).await.unwrap_or(Err(Failure::Timeout(patience)))
    }

    /// Opens a connection that can be kept for more than one request.
    pub async fn connect(
        &self,
        to: &Address,
        check: Check<'_>,
        patience: Duration,
    ) -> Result<Connection, Failure> {
        let opened = tokio::time::timeout(patience, self.open(to, check)).await;
        opened.unwrap_or(Err(Failure::ConnectTimeout))
    }

    async fn open(&self, to: &Address, check: Check<'_>) -> Result<Connection, Failure> {
        let stream = dial(&to.resolve(check).await?).await?;
        let _ = stream.set_nodelay(true);
        if !to.is_tls() {
            return Connection::over(TokioIo::new(stream)).await;
        }
        let name = ServerName::try_from(to.host().to_string()).map_err(|_| Failure::Name)?;
        let stream = self.tls.connect(name, stream).await.map_err(Failure::Tls)?;
        Connection::over(TokioIo::new(stream)).await
    }
}

/// Connects to the first address that accepts. `addresses` has at least one.
async fn dial(addresses: &[SocketAddr]) -> Result<TcpStream, Failure> {
    let mut failed = Failure::ConnectTimeout;
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = Failure::Connect(*address, error),
        }
    }
    Err(failed)
}

/// A connection to one host. Dropping it closes it.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    /// Moves the bytes.
    _driver: JoinSet<hyper::Result<()>>,
}

impl Connection {
    async fn over<S>(stream: S) -> Result<Self, Failure>
    where
        S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let mut builder = Builder::new();
        builder.max_buf_size(LONGEST_HEAD).max_headers(MOST_HEADERS);
        let (sender, connection) = builder.handshake(stream).await.map_err(Failure::Handshake)?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        Ok(Self { sender, _driver: driver })
    }

    /// Whether another request can be sent over it now.
    pub fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends one request and reads its answer. Without a time limit: callers set one.
    pub async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
        read: Read,
    ) -> Result<Response<Bytes>, Failure> {
        let answer = self.ask(request).await?;
        let (head, body) = answer.into_parts();
        let body = match read {
            Read::Whole { most } => whole(body, most).await?,
            Read::Beginning { most, patience } => beginning(body, most, patience).await,
        };
        Ok(Response::from_parts(head, body))
    }

    /// Sends one request and returns its answer when the head has arrived; the body is read piece by piece. Without a
    /// time limit: callers set one.
    pub async fn begin(mut self, request: Request<Full<Bytes>>) -> Result<Response<Pieces>, Failure> {
        let answer = self.ask(request).await?;
        Ok(answer.map(|body| Pieces { body, _connection: self }))
    }

    async fn ask(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Failure> {
        self.sender.try_send_request(request).await.map_err(|mut error| match error.take_message() {
            // Returned unsent: the connection had ended.
            Some(_) => Failure::Closed,
            None => Failure::Exchange(error.into_error()),
        })
    }
}

/// A body that is read piece by piece. Dropping it closes the connection.
#[derive(Debug)]
pub struct Pieces {
    body: Incoming,
    _connection: Connection,
}

impl Pieces {
    /// The next piece, or `None` at the end; waits for it for `patience`.
    pub async fn next(&mut self, patience: Duration) -> Result<Option<Bytes>, Failure> {
        loop {
            let frame = tokio::time::timeout(patience, self.body.frame()).await;
            match frame.map_err(|_| Failure::Timeout(patience))? {
                None => return Ok(None),
                Some(Err(_)) => return Err(Failure::BrokenOff),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => return Ok(Some(data)),
                    _ => {}
                },
            }
        }
    }

    /// The whole body, if it has at most `most` bytes; `patience` covers all of it.
    pub async fn whole(self, most: usize, patience: Duration) -> Result<Bytes, Failure> {
        let read = tokio::time::timeout(patience, whole(self.body, most)).await;
        read.unwrap_or(Err(Failure::Timeout(patience)))
    }
}

async fn whole(body: Incoming, most: usize) -> Result<Bytes, Failure> {
    let body = Limited::new(body, most).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => Failure::TooLong,
        false => Failure::BrokenOff,
    })?;
    Ok(body.to_bytes())
}

async fn beginning(mut body: Incoming, most: usize, patience: Duration) -> Bytes {
    let mut first = BytesMut::new();
    let read = async {
        while first.len() < most {
            let Some(Ok(frame)) = body.frame().await else { break };
            if let Some(data) = frame.data_ref() {
                first.extend_from_slice(&data[..data.len().min(most - first.len())]);
            }
        }
    };
    let _ = tokio::time::timeout(patience, read).await;
    first.freeze()
}

/// The `Retry-After` of an answer, if it is in seconds.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(http::header::RETRY_AFTER)?;
    value.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests;

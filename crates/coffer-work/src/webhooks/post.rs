//! One try: a request to whoever the address names now, bounded in everything.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::RETRY_AFTER;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::target::Target;

/// Of what is answered so much is kept.
const KEPT: usize = 1024;
/// For the body of an answer whose status is known; it is for people alone.
const BODY_PATIENCE: Duration = Duration::from_secs(2);
const LONGEST_HEAD: usize = 64 << 10;
const MOST_HEADERS: usize = 100;

/// What was answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// The first of it, as text.
    pub(super) body: String,
    /// How long it wants to be left alone.
    pub(super) retry_after: Option<Duration>,
}

/// Sends once. An error is for people.
pub(super) async fn post(
    target: &Target,
    local: bool,
    tls: &TlsConnector,
    request: Request<Full<Bytes>>,
    patience: Duration,
) -> Result<Answer, String> {
    let exchange = async {
        let stream = connect(&target.addresses(local).await?).await?;
        let _ = stream.set_nodelay(true);
        if !target.is_tls {
            return converse(TokioIo::new(stream), request).await;
        }
        let name = rustls::pki_types::ServerName::try_from(target.host.clone());
        let name = name.map_err(|_| "its name fits no certificate".to_string())?;
        let stream = tls.connect(name, stream).await.map_err(|error| format!("TLS failed: {error}"))?;
        converse(TokioIo::new(stream), request).await
    };
    let answered = tokio::time::timeout(patience, exchange).await;
    answered.unwrap_or_else(|_| Err(format!("no answer within {} s", patience.as_secs_f64())))
}

/// Dials what was checked, and nothing else: the name is not looked up again.
async fn connect(addresses: &[std::net::SocketAddr]) -> Result<TcpStream, String> {
    let mut failed = "there is no address to connect to".to_string();
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = format!("could not connect to {address}: {error}"),
        }
    }
    Err(failed)
}

async fn converse<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Answer, String>
where
    S: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.max_buf_size(LONGEST_HEAD).max_headers(MOST_HEADERS);
    let (mut sender, connection) =
        builder.handshake(stream).await.map_err(|error| format!("no HTTP there: {error}"))?;
    // Ends with this exchange, however that ends.
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    let answer = sender.send_request(request).await;
    let answer = answer.map_err(|error| format!("it did not answer in HTTP: {error}"))?;
    let status = answer.status();
    let wait = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let body = first_of(answer.into_body()).await;
    Ok(Answer { status, body, retry_after: wait.map(Duration::from_secs) })
}

/// The beginning of a body, whether or not it goes on or breaks off.
async fn first_of(mut body: Incoming) -> String {
    let mut first = BytesMut::new();
    let read = async {
        while first.len() < KEPT {
            let Some(Ok(frame)) = body.frame().await else { break };
            if let Some(data) = frame.data_ref() {
                first.extend_from_slice(&data[..data.len().min(KEPT - first.len())]);
            }
        }
    };
    let _ = tokio::time::timeout(BODY_PATIENCE, read).await;
    let text = String::from_utf8_lossy(&first);
    // For terminals and pages: no control characters, which mean something there.
    text.chars().map(|letter| if letter.is_control() && letter != '\n' { ' ' } else { letter }).collect()
}

//! The client of agentd, and how a sandbox is reached.
//!
//! Everything that agentd answers is hostile: every call has a deadline and a longest answer.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod guest;
pub mod interpreter;
mod target;
mod tunnel;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use coffer_wire::agentd::{Init, JournalAck, JournalPage};
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

pub use guest::{Events, Flow, Guest, GuestError, Reason, accepted};
pub use target::{Activity, Route, Spare, Target, Wake};
pub use tunnel::ask_for_tunnel;

/// The longest answer to the server itself.
const LONGEST_ANSWER: usize = 4 * 1024 * 1024;

/// Why a call to agentd failed.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Nothing listens: its process is gone.
    #[error("nothing answers at the sandbox's socket")]
    Refused(#[source] io::Error),
    /// Its process probably ended during the request.
    #[error("the sandbox closed the connection: {0}")]
    Cut(String),
    #[error("no answer from the sandbox within {0:?}")]
    Late(Duration),
    #[error("the sandbox answered with status {0}")]
    Status(StatusCode),
    #[error("unexpected answer from the sandbox: {0}")]
    Nonsense(String),
}

/// Initialises an agentd; its answer means that the sandbox is ready. Returns the connection if it can be
/// reused.
pub async fn init(socket: &Path, init: &Init, patience: Duration) -> Result<Option<UnixStream>, AgentError> {
    let body = serde_json::to_vec(init).expect("plain strings and numbers");
    exchange(socket, request(Method::POST, "/init", body), patience).await.map(|(_, connection)| connection)
}

/// Checks whether agentd still answers.
pub async fn health(socket: &Path, patience: Duration) -> Result<(), AgentError> {
    call(socket, Method::GET, "/health", Vec::new(), patience).await.map(drop)
}

/// The journal since `from`; agentd waits `wait_s` for new records.
pub async fn journal(
    socket: &Path,
    from: u64,
    wait_s: u64,
    patience: Duration,
) -> Result<JournalPage, AgentError> {
    let path = format!("/coffer/journal?from={from}&wait={wait_s}");
    let patience = patience + Duration::from_secs(wait_s);
    let body = call(socket, Method::GET, &path, Vec::new(), patience).await?;
    serde_json::from_slice(&body).map_err(|error| AgentError::Nonsense(error.to_string()))
}

/// Tells agentd which part of its journal is recorded.
pub async fn acknowledge(socket: &Path, ack: &JournalAck, patience: Duration) -> Result<(), AgentError> {
    let body = serde_json::to_vec(ack).expect("plain numbers");
    call(socket, Method::POST, "/coffer/journal/ack", body, patience).await.map(drop)
}

/// The variables that agentd was last given.
pub async fn variables(
    socket: &Path,
    token: Option<&str>,
    patience: Duration,
) -> Result<BTreeMap<String, String>, AgentError> {
    let mut request = request(Method::GET, "/envs", Vec::new());
    if let Some(token) = token.and_then(|token| HeaderValue::from_str(token).ok()) {
        request.headers_mut().insert("x-access-token", token);
    }
    let body = ask(socket, request, patience).await?;
    serde_json::from_slice(&body).map_err(|error| AgentError::Nonsense(error.to_string()))
}

/// Connects to agentd's socket, however long that takes: the caller sets the limit.
pub async fn connect(socket: &Path) -> io::Result<UnixStream> {
    let mut pause = Duration::from_millis(1);
    loop {
        match UnixStream::connect(socket).await {
            // The backlog is full. A Unix socket does not wait for room by itself.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(50));
            }
            connected => return connected,
        }
    }
}

async fn call(
    socket: &Path,
    method: Method,
    path: &str,
    body: Vec<u8>,
    patience: Duration,
) -> Result<Bytes, AgentError> {
    ask(socket, request(method, path, body), patience).await
}

fn request(method: Method, path: &str, body: Vec<u8>) -> Request<Full<Bytes>> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "sandbox")
        .header(header::CONTENT_TYPE, "application/json");
    if let Some(id) = coffer_engine::on_behalf() {
        request = request.header("x-request-id", &*id);
    }
    request.body(Full::new(Bytes::from(body))).expect("a fixed method and path")
}

async fn ask(socket: &Path, request: Request<Full<Bytes>>, patience: Duration) -> Result<Bytes, AgentError> {
    exchange(socket, request, patience).await.map(|(answer, _)| answer)
}

/// Sends a request over its own connection, which is returned with the answer if it can be reused.
async fn exchange(
    socket: &Path,
    request: Request<Full<Bytes>>,
    patience: Duration,
) -> Result<(Bytes, Option<UnixStream>), AgentError> {
    tokio::time::timeout(patience, async {
        let stream = connect(socket).await.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => AgentError::Refused(error),
            _ => AgentError::Nonsense(error.to_string()),
        })?;
        let broken = |error: hyper::Error| {
            let what = if error.is_parse() { AgentError::Nonsense } else { AgentError::Cut };
            what(error.to_string())
        };
        let (mut sender, mut connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(broken)?;
            let status = response.status();
            let body = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await;
            let body = body.map_err(|error| AgentError::Nonsense(error.to_string()))?.to_bytes();
            if status.is_success() { Ok(body) } else { Err(AgentError::Status(status)) }
        };
        // The connection exists only as long as this call, so nothing is left when it is dropped.
        tokio::pin!(exchange);
        tokio::select! {
            answer = &mut exchange => {
                let parts = connection.into_parts();
                let good = parts.read_buf.is_empty().then(|| parts.io.into_inner());
                answer.map(|answer| (answer, good))
            }
            ended = &mut connection => match ended {
                // The answer may already be complete; the exchange then returns it.
                Ok(()) => exchange.await.map(|answer| (answer, None)),
                Err(error) => Err(broken(error)),
            },
        }
    })
    .await
    .unwrap_or(Err(AgentError::Late(patience)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[tokio::test]
    async fn a_full_backlog_is_waited_for_and_is_no_failure() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let _first = UnixStream::connect(&socket).await.unwrap();
        assert_eq!(UnixStream::connect(&socket).await.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let accept = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            listener.accept().unwrap()
        };
        let (_, connected) = tokio::join!(accept, connect(&socket));
        connected.unwrap();
    }
}

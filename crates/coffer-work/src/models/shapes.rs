//! Requests and answers of the gateway.

use bytes::Bytes;
use http::header::HeaderMap;
use tokio::sync::mpsc;

/// Most bytes of a request; Anthropic takes no more.
pub const MOST_BODY: usize = 32 << 20;

/// A request of an agent.
#[derive(Debug)]
pub struct ModelRequest {
    pub method: String,
    /// Below the gateway's own path, with the provider's name first.
    pub path: String,
    pub query: Option<String>,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// The answer: its body ends when the call is settled.
#[derive(Debug)]
pub struct ModelAnswer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: mpsc::Receiver<Result<Bytes, std::io::Error>>,
}

/// A body that is known already.
pub(super) fn whole(body: Bytes) -> mpsc::Receiver<Result<Bytes, std::io::Error>> {
    let (sender, receiver) = mpsc::channel(1);
    let _ = sender.try_send(Ok(body));
    receiver
}

//! Errors of outgoing requests.

use std::net::SocketAddr;
use std::time::Duration;

/// Why an address must not be dialled, as the check states it.
pub type NotAllowed = Box<dyn std::error::Error + Send + Sync>;

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("the name `{0}` could not be looked up")]
    Lookup(String),
    #[error("the name `{0}` has no address")]
    NoAddress(String),
    #[error(transparent)]
    Refused(NotAllowed),
    #[error("could not connect to {0}: {1}")]
    Connect(SocketAddr, std::io::Error),
    #[error("its name is not valid for a TLS certificate")]
    Name,
    #[error("TLS failed: {0}")]
    Tls(std::io::Error),
    #[error("it does not speak HTTP: {0}")]
    Handshake(hyper::Error),
    #[error("connecting took too long")]
    ConnectTimeout,
    /// The connection had ended before the request was sent.
    #[error("it closed the connection without an HTTP answer")]
    Closed,
    #[error("the HTTP exchange failed: {0}")]
    Exchange(hyper::Error),
    #[error("its answer ended too early")]
    BrokenOff,
    #[error("its answer is too long")]
    TooLong,
    #[error("no answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
}

impl Failure {
    /// Whether the other side cannot have received the request, so that it is safe to repeat.
    pub fn is_unsent(&self) -> bool {
        !matches!(self, Self::Exchange(_) | Self::BrokenOff | Self::TooLong | Self::Timeout(_))
    }
}

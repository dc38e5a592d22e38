//! Bodies and answers that all routes share.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use serde::Serialize;

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;
pub(crate) type Reply = Response<Body>;

/// How long to drain a refused body.
const REFUSED_BODY_TIME: Duration = Duration::from_secs(10);

/// A complete body.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(full(Bytes::new()));
    *reply.status_mut() = status;
    reply
}

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(bytes) => {
            let mut reply = Response::new(full(bytes));
            *reply.status_mut() = status;
            reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            reply
        }
        // Only a map with keys that are not strings could fail, and we have none.
        Err(_) => empty(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// Why a plain HTTP route refused; `code` repeats the status because clients read it there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// Maps a failed file operation: a full disk has its own status, and what can never succeed is the
    /// request's fault.
    pub(crate) fn from_io(doing: &str, error: &io::Error) -> Self {
        if is_disk_full(error) {
            return Self::new(StatusCode::INSUFFICIENT_STORAGE, "not enough disk space available");
        }
        let status = match error.raw_os_error() {
            // Names too long, link loops, sockets and devices without a driver: no such file.
            Some(libc::ENAMETOOLONG | libc::ELOOP | libc::ENXIO | libc::ENODEV) => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, format!("{doing}: {error}"))
    }

    pub(crate) fn reply(&self) -> Reply {
        #[derive(Serialize)]
        struct Problem<'a> {
            code: u16,
            message: &'a str,
        }
        json(self.status, &Problem { code: self.status.as_u16(), message: &self.message })
    }
}

/// Reads the rest of a refused request for a while, so that its client reads the answer.
pub(crate) async fn drain(body: &mut Incoming) {
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    let _enough = tokio::time::timeout(REFUSED_BODY_TIME, rest).await;
}

/// A quota shows as EDQUOT, a full file system as ENOSPC; clients get the same for both.
pub(crate) fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC) | Some(libc::EDQUOT))
}

//! Why a call failed.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server or the sandbox refused it.
    #[error("{}", .0.message)]
    Refused(Box<Refusal>),
    #[error("could not reach the server at {url}")]
    Unreachable { url: String, source: std::io::Error },
    /// The connection ended during the answer.
    #[error("the connection to the server broke off")]
    BrokenOff(#[source] Option<Box<dyn std::error::Error + Send + Sync>>),
    #[error("the server did not answer within {} s", .0.as_secs())]
    Late(Duration),
    /// The answer is too long, or not what this client can read.
    #[error("could not read the server's answer: {0}")]
    Unreadable(String),
    #[error("`{0}` is not a URL such as https://coffer.example.com")]
    BadUrl(String),
    #[error("the key has characters that no key has")]
    BadKey,
    /// A file or stream of the caller failed.
    #[error("could not read what is to be sent")]
    Local(#[source] std::io::Error),
}

/// A refusal as the API sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    /// A code of `coffer_core::Code`, or one that a later server added.
    pub code: String,
    /// For people.
    pub message: String,
    pub hint: Option<String>,
    pub details: Option<serde_json::Value>,
    /// Names the request in the server's log.
    pub request_id: Option<String>,
    pub retry_after: Option<Duration>,
}

impl Error {
    /// The refusal, if it is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    /// The refusal's code.
    pub fn code(&self) -> Option<&str> {
        self.refusal().map(|refusal| refusal.code.as_str())
    }

    pub fn is_not_found(&self) -> bool {
        self.refusal()
            .is_some_and(|refusal| refusal.status == StatusCode::NOT_FOUND || refusal.code == "not_found")
    }

    /// Whether the same call may work a little later: the server is away, busy or restarting.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::BrokenOff(_) | Self::Late(_) => true,
            Self::Refused(refusal) => {
                refusal.code == "unavailable"
                    || refusal.code == "pool_busy"
                    || refusal.code == "rate_limited"
                    || matches!(refusal.status.as_u16(), 502..=504)
            }
            Self::Unreadable(_) | Self::BadUrl(_) | Self::BadKey | Self::Local(_) => false,
        }
    }
}

impl Refusal {
    /// Reads the body of a refusal: ours, E2B's or agentd's, or a proxy's that is none of them.
    pub(crate) fn read(status: StatusCode, headers: &http::HeaderMap, body: &[u8]) -> Self {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Shape {
            code: serde_json::Value,
            error_code: Option<String>,
            message: Option<String>,
            hint: Option<String>,
            details: Option<serde_json::Value>,
            request_id: Option<String>,
        }
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let shape: Shape = serde_json::from_slice(body).unwrap_or_default();
        let code = match shape.code {
            serde_json::Value::String(code) => Some(code),
            _ => shape.error_code,
        };
        let reason = status.canonical_reason().unwrap_or("no reason");
        Self {
            status,
            code: code.unwrap_or_else(|| code_of(status).to_string()),
            message: shape
                .message
                .unwrap_or_else(|| format!("the server answered {} ({reason})", status.as_u16())),
            hint: shape.hint,
            details: shape.details,
            request_id: shape.request_id.or_else(|| text("x-request-id").map(str::to_string)),
            retry_after: text("retry-after").and_then(|value| value.parse().ok()).map(Duration::from_secs),
        }
    }
}

/// The code of a refusal that names none.
fn code_of(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "bad_request",
        401 => "unauthorized",
        403 => "forbidden",
        404 => "not_found",
        409 => "conflict",
        429 => "rate_limited",
        502..=504 => "unavailable",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(status: u16, body: &str) -> Refusal {
        Refusal::read(StatusCode::from_u16(status).unwrap(), &http::HeaderMap::new(), body.as_bytes())
    }

    #[test]
    fn refusals_of_every_kind_are_read() {
        let ours = read(404, r#"{"code": "not_found", "message": "no", "hint": "look", "request_id": "r"}"#);
        assert_eq!(
            (ours.code.as_str(), ours.hint.as_deref(), ours.request_id.as_deref()),
            ("not_found", Some("look"), Some("r"))
        );
        let e2b = read(409, r#"{"code": 409, "message": "paused"}"#);
        assert_eq!((e2b.code.as_str(), e2b.message.as_str()), ("conflict", "paused"));
        let later = read(418, r#"{"code": "teapot", "message": "short"}"#);
        assert_eq!(later.code, "teapot");
        let proxy = read(502, "<html>bad gateway</html>");
        assert_eq!(
            (proxy.code.as_str(), proxy.message.as_str()),
            ("unavailable", "the server answered 502 (Bad Gateway)")
        );
        assert!(Error::Refused(Box::new(proxy)).is_transient());
    }
}

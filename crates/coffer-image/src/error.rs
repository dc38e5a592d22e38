//! What goes wrong with images.

use std::time::Duration;

use coffer_http::Failure;

use crate::digest::Digest;
use crate::platform::Platform;

/// Why an image or a layer could not be fetched. Texts are for the project that asked: they have host names
/// as the project or the operator wrote them, and no address.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ImageError {
    #[error("image `{image}` not found at `{host}`")]
    UnknownImage { image: String, host: String },
    #[error("`{host}` does not have the blob {digest}")]
    UnknownBlob { host: String, digest: Digest },
    #[error("`{host}` refused access to `{repository}`: {}", said(*.credentials_sent))]
    Unauthorized { host: String, repository: String, credentials_sent: bool },
    #[error("`{host}` limits requests{}", wait(.retry_after.as_ref()))]
    RateLimited { host: String, retry_after: Option<Duration> },
    #[error("{what} has the digest {found}, not {expected}")]
    BadDigest { what: String, expected: Digest, found: Digest },
    #[error("`{host}` could not be reached: {why}")]
    Unreachable { host: String, why: String },
    /// The host is where projects must not reach.
    #[error("{why}")]
    RefusedAddress { host: String, why: String },
    #[error("no TLS connection to `{host}`: {why}")]
    Tls { host: String, why: String },
    #[error("`{host}` answered with status {status}{detail}")]
    Status { host: String, status: u16, detail: String },
    #[error("the download from `{host}` failed: {why}")]
    Broken { host: String, why: String },
    #[error("{what} {why}")]
    Invalid { what: String, why: String },
    #[error("{what} is longer than {most} bytes")]
    TooLong { what: String, most: u64 },
    #[error("{what} cannot be used: {why}")]
    Unsupported { what: String, why: String },
    #[error("the image `{image}` is not for {wanted}; it is for {}", list(.available))]
    NoPlatform { image: String, wanted: Platform, available: Vec<Platform> },
    /// The caller's [`Quota`](crate::Quota) said no.
    #[error("{0}")]
    OverQuota(String),
    #[error("could not {doing}: {why}")]
    Disk { doing: &'static str, why: String },
}

fn said(credentials_sent: bool) -> &'static str {
    match credentials_sent {
        true => "it does not accept the credentials for this image",
        false => "no credentials were sent; the image does not exist, or needs some",
    }
}

fn wait(retry_after: Option<&Duration>) -> String {
    retry_after.map_or_else(String::new, |wait| format!("; retry in {} s", wait.as_secs()))
}

fn list(platforms: &[Platform]) -> String {
    match platforms {
        [] => "no platform".into(),
        some => some.iter().map(Platform::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl ImageError {
    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::RateLimited { .. } | Self::Unreachable { .. } | Self::Broken { .. } => true,
            Self::Status { status, .. } => *status >= 500 || *status == 408,
            _ => false,
        }
    }

    pub(crate) fn invalid(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Invalid { what: what.into(), why: why.into() }
    }

    pub(crate) fn disk(doing: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |error| Self::Disk { doing, why: error.to_string() }
    }

    /// A failure of the connection to `host`. `most` is the bound that `Failure::TooLong` is about.
    pub(crate) fn from_failure(host: &str, failure: Failure, most: usize) -> Self {
        let host = host.to_string();
        let why = match failure {
            Failure::Refused(why) => return Self::RefusedAddress { why: why.to_string(), host },
            Failure::TooLong => {
                return Self::TooLong { what: format!("the answer of `{host}`"), most: most as u64 };
            }
            Failure::Name => return Self::Tls { why: failure.to_string(), host },
            // A certificate that does not fit, rather than a connection that broke.
            Failure::Tls(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                return Self::Tls { why: error.to_string(), host };
            }
            Failure::BrokenOff => return Self::Broken { why: failure.to_string(), host },
            // Without the address: projects must not learn addresses inside the operator's network.
            Failure::Connect(_, error) => error.to_string(),
            other => other.to_string(),
        };
        Self::Unreachable { host, why }
    }
}

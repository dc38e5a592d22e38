//! Sends one request to a receiver, bounded in time and size.

use std::time::Duration;

use bytes::Bytes;
use coffer_http::{Client, Failure, Read, retry_after};
use http::{Request, StatusCode};
use http_body_util::Full;

use super::target::{Reach, Target};

/// Read only the beginning of the body, and briefly: it is for people, while the status decides.
const READ: Read = Read::Beginning { most: 1024, patience: Duration::from_secs(2) };

/// A receiver's answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// The beginning of the body, as text.
    pub(super) body: String,
    /// The `Retry-After` of the receiver.
    pub(super) retry_after: Option<Duration>,
}

/// Sends once.
pub(super) async fn post(
    target: &Target,
    reach: Reach,
    client: &Client,
    request: Request<Full<Bytes>>,
    patience: Duration,
) -> Result<Answer, Failure> {
    let check = target.check(reach);
    let answer = client.send(&target.address, &|ip| Ok(check(ip)?), request, READ, patience).await?;
    let text = String::from_utf8_lossy(answer.body());
    // Drop control characters, for terminals and pages.
    let plain = |letter: char| if letter.is_control() && letter != '\n' { ' ' } else { letter };
    Ok(Answer {
        status: answer.status(),
        body: text.chars().map(plain).collect(),
        retry_after: retry_after(answer.headers()),
    })
}

//! One try: a request to the host that the address names now, bounded in everything.

use std::time::Duration;

use bytes::Bytes;
use coffer_http::{Client, Failure, Read, retry_after};
use http::{Request, StatusCode};
use http_body_util::Full;

use super::target::{Reach, Target};

/// The beginning of the body alone, and briefly: it is for people, while the status says how it went.
const READ: Read = Read::Beginning { most: 1024, patience: Duration::from_secs(2) };

/// What was answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// The first of it, as text.
    pub(super) body: String,
    /// How long it wants to be left alone.
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
    // For terminals and pages: no control characters, which mean something there.
    let plain = |letter: char| if letter.is_control() && letter != '\n' { ' ' } else { letter };
    Ok(Answer {
        status: answer.status(),
        body: text.chars().map(plain).collect(),
        retry_after: retry_after(answer.headers()),
    })
}

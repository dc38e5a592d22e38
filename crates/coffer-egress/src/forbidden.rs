//! Answers a refused plain HTTP request with the rule, instead of a reset.
//!
//! Only if a person could have allowed it. Walls stay silent, and other protocols get no answer.

use std::time::Duration;

use coffer_core::network::{HostName, Rule};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::refusal::Cause;

/// At other ports a capital letter may begin any protocol.
pub(crate) const PORT: u16 = 80;
/// How long to wait for, and how much to read of, a request's body, so that the answer is not lost.
const PARTING: Duration = Duration::from_secs(2);
const MOST_BODY: u64 = 256 * 1024;

/// The rule that a person could change to allow the connection.
pub(crate) fn changeable(cause: &Cause) -> Option<&Rule> {
    match cause {
        Cause::Rule(rule @ (Rule::Deny(_) | Rule::Base(_))) => Some(rule),
        _ => None,
    }
}

/// Answers a request that began with `hello`; returns whether there was one.
pub(crate) async fn answer(stream: &mut TcpStream, hello: &[u8], host: &HostName, rule: &Rule) -> bool {
    if !hello.first().is_some_and(u8::is_ascii_uppercase) {
        return false;
    }
    let body = format!(
        "This sandbox may not reach {host}: refused by the rule `{rule}`.\n\
         To allow it, name it in `allow_out` of the sandbox's network settings.\n"
    );
    let head = format!(
        "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\nX-Coffer-Rule: {rule}\r\n\r\n",
        body.len()
    );
    let body = if hello.starts_with(b"HEAD ") { "" } else { &body };
    let answered = timeout(PARTING, async {
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        stream.shutdown().await?;
        // Closing with unread bytes would be a reset, which may overtake the answer.
        tokio::io::copy(&mut stream.take(MOST_BODY), &mut tokio::io::sink()).await
    });
    // Ignore whether the client got it.
    let _ = answered.await;
    true
}

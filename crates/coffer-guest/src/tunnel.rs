//! Asks agentd for a tunnel to a port inside its sandbox.

use std::io;

use http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// Size of agentd's answer to CONNECT.
const MOST_HEAD: usize = 4 * 1024;

/// Turns a connection to agentd into one to a port inside, if the answer is 200; 502 means that nothing listens
/// there. The caller sets the limit of time. The error is `InvalidData` if what answers does not speak HTTP.
pub async fn ask_for_tunnel(stream: &mut UnixStream, port: u16) -> io::Result<StatusCode> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let request = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::with_capacity(256);
    let end = loop {
        if stream.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if head.len() > MOST_HEAD {
            return Err(invalid());
        }
    };
    let status = head.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(2..5)).ok_or_else(invalid)?;
    let status = StatusCode::from_bytes(status).map_err(|_| invalid())?;
    // A server that sends data before a request does not speak HTTP, and its data must not be taken for the
    // answer to a later request.
    if status == StatusCode::OK && head.len() > end {
        return Err(invalid());
    }
    Ok(status)
}

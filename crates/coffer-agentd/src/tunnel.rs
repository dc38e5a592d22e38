//! `CONNECT 127.0.0.1:<port>`: how the server reaches ports inside the sandbox.

use std::io;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::entrance::Connections;
use crate::reply::{self, Refusal, Reply};

/// Loopback answers or refuses at once; only a full backlog takes longer.
const DIAL_LIMIT: Duration = Duration::from_secs(5);

pub(crate) async fn open(mut request: Request<Incoming>) -> Reply {
    let port = match port(&request) {
        Ok(port) => port,
        Err(refusal) => return refusal.reply(),
    };
    let mut stream = match dial(port).await {
        Ok(stream) => stream,
        Err(error) => {
            return Refusal::new(StatusCode::BAD_GATEWAY, format!("port {port} is not open: {error}"))
                .reply();
        }
    };
    let connections = request.extensions_mut().remove::<Connections>().unwrap_or_default();
    connections.spawn(async move {
        let Ok(upgraded) = hyper::upgrade::on(request).await else {
            return;
        };
        // The tunnel ends with either side; no caller is left to report an error to.
        let _ended = tokio::io::copy_bidirectional(&mut TokioIo::new(upgraded), &mut stream).await;
    });
    reply::empty(StatusCode::OK)
}

/// Only the sandbox's own loopback: a tunnel is not a way out of it.
fn port(request: &Request<Incoming>) -> Result<u16, Refusal> {
    let target =
        request.uri().authority().ok_or_else(|| Refusal::bad_request("the CONNECT request has no target"))?;
    if !matches!(target.host(), "127.0.0.1" | "localhost" | "[::1]") {
        return Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "tunnels connect only to the sandbox's own loopback address",
        ));
    }
    target
        .port_u16()
        .filter(|port| *port != 0)
        .ok_or_else(|| Refusal::bad_request("the CONNECT request has no port"))
}

/// Servers bind one loopback address or the other, and clients cannot know which.
async fn dial(port: u16) -> io::Result<TcpStream> {
    let dialing = async {
        match TcpStream::connect(("127.0.0.1", port)).await {
            Ok(stream) => Ok(stream),
            Err(first) => TcpStream::connect(("::1", port)).await.map_err(|_| first),
        }
    };
    let stream = tokio::time::timeout(DIAL_LIMIT, dialing)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

//! A client's connection: reset when aborted, with a timeout for its requests.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::busy::Busy;
use super::seats::Taken;

/// How long the head of a request may take from its first byte, and the first request from the
/// start. hyper's own limit also counts the pause between two requests, which SDKs need long.
const HEAD_WITHIN: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 15 });

/// Detects vanished peers after about two minutes.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(20);
const PROBES: u32 = 3;
/// The same for unacknowledged data.
const UNACKNOWLEDGED_MS: u32 = 120_000;

/// How the bytes of a connection travel.
#[derive(Debug)]
pub(crate) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Wire {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

/// Calls the same method of either kind of stream.
macro_rules! on_wire {
    ($wire:expr, $stream:ident => $call:expr) => {
        match $wire {
            Wire::Plain($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Wire::Tls($stream) => {
                let $stream = Pin::new($stream.as_mut());
                $call
            }
        }
    };
}

/// A connection that is reset instead of closed once `abort` is cancelled.
#[derive(Debug)]
pub(crate) struct Socket {
    wire: Wire,
    abort: CancellationToken,
    busy: Busy,
    head_since: Option<Instant>,
    /// Set only while a head has arrived in part, so that ordinary requests need no timer.
    head_limit: Option<Pin<Box<Sleep>>>,
    /// Held until the connection is closed, whatever protocol it has switched to.
    _seat: Taken,
}

impl Socket {
    pub(crate) fn new(wire: Wire, abort: CancellationToken, busy: Busy, seat: Taken) -> Self {
        let stream = wire.tcp();
        // Small frames of streams must not wait for a full segment.
        let _ = stream.set_nodelay(true);
        // Best effort: without them a dead peer is only noticed later.
        let _ = sockopt::set_socket_keepalive(stream, true);
        let _ = sockopt::set_tcp_keepidle(stream, PROBE_AFTER);
        let _ = sockopt::set_tcp_keepintvl(stream, PROBE_EVERY);
        let _ = sockopt::set_tcp_keepcnt(stream, PROBES);
        let _ = sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MS);
        Self { wire, abort, busy, head_since: Some(Instant::now()), head_limit: None, _seat: seat }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.abort.is_cancelled() {
            // No lingering means RST. Where it fails the peer sees an ordinary end.
            let _ = self.wire.tcp().set_zero_linger();
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = on_wire!(&mut self.wire, stream => stream.poll_read(cx, buffer));
        let bytes = buffer.filled().len() - before;
        self.busy.share().read(bytes);
        if self.busy.is() {
            self.head_since = None;
            self.head_limit = None;
            return read;
        }
        if read.is_ready() {
            if bytes > 0 && self.head_since.is_none() {
                self.head_since = Some(Instant::now());
            }
            self.busy.share().add_to_head(bytes)?;
            return read;
        }
        let Some(since) = self.head_since else { return Poll::Pending };
        let limit = self.head_limit.get_or_insert_with(|| Box::pin(sleep_until(since + HEAD_WITHIN)));
        limit.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        on_wire!(&mut self.wire, stream => stream.poll_write(cx, data))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_wire!(&mut self.wire, stream => stream.poll_write_vectored(cx, data))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.wire {
            Wire::Plain(stream) => stream.is_write_vectored(),
            Wire::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_wire!(&mut self.wire, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // An orderly close before the reset would make a truncated answer look complete.
        if self.abort.is_cancelled() {
            return Poll::Ready(Ok(()));
        }
        on_wire!(&mut self.wire, stream => stream.poll_shutdown(cx))
    }
}

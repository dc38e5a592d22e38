//! The sandbox's end of a connection, with one change: a failed write does not end it.
//!
//! A server may answer before it has read the whole request, and close: a full disk, a wrong token. hyper
//! gives up at the failed write, although the answer is still to be read. So here a failed write only stops
//! writing, and reading continues to the answer or the end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Debug)]
pub(super) struct Inward<S> {
    stream: S,
    deaf: Deaf,
}

/// Whether the other side has stopped reading.
#[derive(Debug, Clone, Default)]
pub(super) struct Deaf(Arc<Hearing>);

#[derive(Debug, Default)]
struct Hearing {
    lost: AtomicBool,
    upgraded: AtomicBool,
}

impl Deaf {
    pub(super) fn is(&self) -> bool {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// The connection has left HTTP: no answer is to be waited for, so a failed write counts.
    pub(super) fn matters_now(&self) {
        self.0.upgraded.store(true, Ordering::Relaxed);
        self.0.lost.store(false, Ordering::Relaxed);
    }
}

impl<S> Inward<S> {
    pub(super) fn new(stream: S) -> (Self, Deaf) {
        let deaf = Deaf::default();
        (Self { stream, deaf: deaf.clone() }, deaf)
    }

    /// Turns a write that can never succeed into one that is never ready. A task that waits for it also waits
    /// for reading, which wakes it.
    fn judge<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match written {
            Poll::Ready(Err(error))
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
                    && !self.deaf.0.upgraded.load(Ordering::Relaxed) =>
            {
                self.deaf.0.lost.store(true, Ordering::Relaxed);
                Poll::Pending
            }
            other => other,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Inward<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Inward<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if self.deaf.is() {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.judge(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.deaf.is() {
            return Poll::Pending;
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, data);
        self.judge(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.deaf.is() {
            return Poll::Pending;
        }
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

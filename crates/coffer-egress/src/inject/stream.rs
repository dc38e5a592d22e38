//! The two ends of a terminated connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::relay::Activity;
use crate::sandbox::Sandbox;

/// The sandbox's end: bytes that it has already sent come first.
#[derive(Debug)]
pub(super) struct Inside {
    said: Vec<u8>,
    read: usize,
    stream: TcpStream,
}

impl Inside {
    pub(super) fn new(said: Vec<u8>, stream: TcpStream) -> Self {
        Self { said, read: 0, stream }
    }
}

impl AsyncRead for Inside {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let left = &this.said[this.read..];
        if left.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, buffer);
        }
        let length = left.len().min(buffer.remaining());
        buffer.put_slice(&left[..length]);
        this.read += length;
        if this.read == this.said.len() {
            (this.said, this.read) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Inside {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The outside end: counts bytes, and notes activity.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(crate) stream: TcpStream,
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) activity: Arc<Activity>,
}

impl AsyncRead for Outside {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let read = buffer.filled().len() - before;
        self.sandbox.counters.received_bytes.fetch_add(read as u64, Ordering::Relaxed);
        self.activity.touch();
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Outside {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.sandbox.counters.sent_bytes.fetch_add(written as u64, Ordering::Relaxed);
        self.activity.touch();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

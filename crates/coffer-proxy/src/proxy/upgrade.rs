//! Connections that leave HTTP: bytes are copied both ways until either side ends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};

use super::lane::{Link, Slot};
use crate::connection::Client;
use coffer_guest::Activity;

/// Joins the two sides once both have switched. The sandbox's end resets the client.
pub(super) async fn join(
    outside: OnUpgrade,
    inside: OnUpgrade,
    client: Client,
    activity: Activity,
    link: Link,
    slot: Slot,
) {
    let switched = async { tokio::try_join!(outside, inside) };
    let (outside, inside) = tokio::select! {
        switched = switched => match switched {
            Ok(sides) => sides,
            Err(error) => {
                tracing::debug!("could not upgrade a connection: {error:?}");
                return;
            }
        },
        () = slot.gone() => {
            client.abort();
            return;
        }
    };
    link.deaf.matters_now();
    let mut outside = TokioIo::new(outside);
    let mut inside = Noting { inner: TokioIo::new(inside), activity };
    tokio::select! {
        copied = copy_bidirectional(&mut outside, &mut inside) => {
            if let Err(error) = copied {
                tracing::debug!("an upgraded connection broke: {error}");
                client.abort();
            }
        }
        () = slot.gone() => client.abort(),
    }
    // Resets, if it was aborted.
    drop(outside);
    drop(link);
}

/// The sandbox's side, noting every piece of data as activity.
struct Noting {
    inner: TokioIo<Upgraded>,
    activity: Activity,
}

impl AsyncRead for Noting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.inner).poll_read(cx, buffer));
        self.activity.note();
        Poll::Ready(read)
    }
}

impl AsyncWrite for Noting {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, data));
        self.activity.note();
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

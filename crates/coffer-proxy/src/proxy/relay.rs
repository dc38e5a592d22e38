//! Response bodies on their way out: nothing is collected, and the sandbox is read as fast as the client takes it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::lane::{HeldUp, Link, Slot};
use super::upload::Progress;
use crate::connection::Client;
use coffer_guest::Activity;

/// A sandbox's response body, on its way out.
///
/// Holds everything that belongs to the exchange, so that a client that leaves ends it all.
pub(super) struct Relay {
    body: Incoming,
    client: Client,
    activity: Activity,
    progress: Arc<Progress>,
    /// Ends with the connection, which also happens when a sandbox dies.
    until_close: bool,
    ended: bool,
    held_up: HeldUp,
    link: Option<Link>,
    slot: Slot,
}

impl Relay {
    pub(super) fn new(
        body: Incoming,
        until_close: bool,
        client: Client,
        activity: Activity,
        progress: Arc<Progress>,
        link: Link,
        slot: Slot,
    ) -> Self {
        let held_up = slot.answering(&client);
        Self { body, client, activity, progress, until_close, ended: false, held_up, link: Some(link), slot }
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("client", &self.client).finish_non_exhaustive()
    }
}

/// The body broke off.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokenOff {
    #[error("the sandbox's response broke off")]
    Response(#[source] hyper::Error),
    #[error("the sandbox ended")]
    Sandbox,
}

impl Body for Relay {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        self.held_up.end();
        Poll::Ready(match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            Some(Ok(frame)) => {
                self.activity.note();
                self.held_up.begin();
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                // A clean end would look complete to the client.
                self.client.abort();
                Some(Err(BrokenOff::Response(error)))
            }
            None if self.until_close && self.slot.is_gone() => {
                self.client.abort();
                Some(Err(BrokenOff::Sandbox))
            }
            None => {
                self.ended = true;
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let complete = self.ended || self.body.is_end_stream();
        if let Some(link) = self.link.take()
            && complete
            && self.progress.is_sent()
        {
            self.slot.give_back(link);
        }
    }
}

//! Drains request bodies that are no longer needed.
//!
//! A client that is still sending when its connection closes may never see the answer it has got: some give
//! up at the first failed write, and some send their next request to a connection that is just being closed.
//! So the rest of a body is read and dropped while the answer is sent, within bounds.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use coffer_shares::{Shares, pool};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::client::Client;
use super::seats::Holder;

/// How long a body is drained in all, and how long between two pieces.
const WITHIN: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_secs(5);

/// Drains what clients still send; if there are too many, further clients are cut off.
#[derive(Debug, Clone)]
pub struct Drains {
    places: Shares<Holder>,
    tasks: TaskTracker,
}

impl Default for Drains {
    fn default() -> Self {
        Self { places: Shares::new(pool::DRAINS), tasks: TaskTracker::new() }
    }
}

impl Drains {
    /// Drains up to `most` bytes of the rest of `body`.
    pub fn drain(&self, mut body: Incoming, most: usize, client: &Client) {
        if body.is_end_stream() {
            return;
        }
        let Ok(place) = self.places.try_take(client.holder()) else { return };
        let midway = client.hold_midway();
        let read_away = async move {
            let _until_done = (place, midway);
            let mut read = 0;
            while let Ok(Some(Ok(frame))) = timeout(PAUSE, body.frame()).await {
                read += frame.data_ref().map_or(0, Bytes::len);
                if read > most {
                    break;
                }
            }
        };
        // Ends with the client's connection at the latest.
        self.tasks.spawn(timeout(WITHIN, read_away));
    }

    /// Waits for bodies that are being drained, after the last client has disconnected.
    pub(crate) async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// A body whose rest is drained when it is dropped early.
pub(crate) struct Drained {
    /// Present until this is dropped.
    body: Option<Incoming>,
    most: usize,
    client: Client,
    drains: Drains,
}

impl Drained {
    pub(crate) fn new(body: Incoming, most: usize, client: Client, drains: Drains) -> Self {
        Self { body: Some(body), most, client, drains }
    }

    fn body(&self) -> &Incoming {
        self.body.as_ref().expect("the body is present until this is dropped")
    }
}

impl Body for Drained {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let body = self.body.as_mut().expect("the body is present until this is dropped");
        Pin::new(body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body().size_hint()
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            self.drains.drain(body, self.most, &self.client);
        }
    }
}

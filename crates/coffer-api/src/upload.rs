//! Files on their way from a client to a sandbox.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::Sleep;

/// A client that sends nothing of a file for this long counts as gone.
const STALLED: Duration = Duration::from_secs(120);

/// A client's upload; it is aborted when nothing arrives for long.
#[derive(Debug)]
pub(crate) struct Upload {
    body: Body,
    stalled: Pin<Box<Sleep>>,
}

impl Upload {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, stalled: Box::pin(tokio::time::sleep(STALLED)) }
    }
}

impl hyper::body::Body for Upload {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.stalled.as_mut().reset(tokio::time::Instant::now() + STALLED);
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => self.stalled.as_mut().poll(cx).map(|()| Some(Err("the upload stalled".into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

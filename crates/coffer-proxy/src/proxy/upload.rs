//! Request bodies on their way in: nothing is collected, and the client is read as fast as the sandbox takes it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::connection::Client;
use crate::connection::Drains;
use coffer_guest::Activity;

/// How long a client that asked is kept waiting for a `100 Continue` from inside: as long as curl
/// waits before it sends its body anyway.
const CONTINUE_WITHIN: Duration = Duration::from_secs(1);

/// How much of an unneeded body is drained.
pub(super) const DRAINED: usize = 256 << 20;

/// Where a request's body comes from.
#[derive(Debug)]
pub(super) enum Source {
    Client(Incoming),
    /// It was already read, to be checked.
    Whole(Full<Bytes>),
}

impl Body for Source {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Client(body) => Pin::new(body).poll_frame(cx),
            Self::Whole(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(|never| match never {}))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Client(body) => body.is_end_stream(),
            Self::Whole(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Client(body) => body.size_hint(),
            Self::Whole(body) => body.size_hint(),
        }
    }
}

/// A client's request body, on its way in.
pub(super) struct Upload {
    /// Present until it is dropped.
    body: Option<Source>,
    activity: Activity,
    drains: Drains,
    client: Client,
    progress: Arc<Progress>,
    /// Holds the body back until the other side wants it.
    held: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Progress of an upload, for the code that waits for the answer.
#[derive(Debug)]
pub(super) struct Progress {
    /// When the last piece was taken.
    pub(super) last: Activity,
    sent: AtomicBool,
    answered: AtomicBool,
    wanted: Notify,
}

impl Progress {
    /// Whether the whole body was taken.
    pub(super) fn is_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed)
    }

    /// The other side sent `100 Continue`.
    pub(super) fn wanted(&self) {
        self.wanted.notify_one();
    }

    /// The final answer has arrived: a body that was still held back is no longer needed.
    pub(super) fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }
}

/// When an upload starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    AtOnce,
    /// The client sent `Expect: 100-continue`. Reading its body makes our server send `100`, so reading waits
    /// until the other side has sent it.
    OnContinue,
}

impl Upload {
    pub(super) fn new(
        body: Source,
        activity: Activity,
        start: Start,
        drains: Drains,
        client: Client,
    ) -> (Self, Arc<Progress>) {
        let progress = Arc::new(Progress {
            last: Activity::default(),
            sent: AtomicBool::new(body.is_end_stream()),
            answered: AtomicBool::new(false),
            wanted: Notify::new(),
        });
        let held = (start == Start::OnContinue).then(|| held(progress.clone()));
        (Self { body: Some(body), activity, drains, client, progress: progress.clone(), held }, progress)
    }

    fn body(&self) -> &Source {
        self.body.as_ref().expect("the body is present until the upload is dropped")
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // The other side wants no more; the client will be answered all the same. Reading a body that
        // was held back would make the client send it.
        if let Some(Source::Client(body)) = self.body.take()
            && self.held.is_none()
            && !self.progress.is_sent()
        {
            self.drains.drain(body, DRAINED, &self.client);
        }
    }
}

fn held(progress: Arc<Progress>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        let asked = timeout(CONTINUE_WITHIN, progress.wanted.notified()).await;
        if asked.is_err() && progress.answered.load(Ordering::Relaxed) {
            // Dropped with the exchange.
            std::future::pending::<()>().await;
        }
    })
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("progress", &self.progress).finish_non_exhaustive()
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(held) = &mut self.held {
            ready!(held.as_mut().poll(cx));
            self.held = None;
        }
        let body = self.body.as_mut().expect("the body is present until the upload is dropped");
        let frame = ready!(Pin::new(body).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => {
                self.activity.note();
                self.progress.last.note();
                if self.body().is_end_stream() {
                    self.progress.sent.store(true, Ordering::Relaxed);
                }
            }
            Some(Err(_)) => {}
            None => self.progress.sent.store(true, Ordering::Relaxed),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body().size_hint()
    }
}

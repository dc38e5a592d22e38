//! Whether a connection is in use by a request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Response, StatusCode};
use hyper::body::{Body as _, Frame, SizeHint};

use super::buffers::Share;

/// Whether a request is being answered on a connection.
#[derive(Debug, Clone)]
pub(crate) struct Busy(Arc<State>);

#[derive(Debug)]
struct State {
    busy: AtomicBool,
    midway: Midway,
    share: Share,
}

impl Busy {
    pub(crate) fn new(share: Share) -> Self {
        Self(Arc::new(State { busy: AtomicBool::new(false), midway: Midway::default(), share }))
    }

    /// The connection's share of memory for unfinished heads.
    pub(super) fn share(&self) -> &Share {
        &self.0.share
    }

    /// For code that keeps reading a request that has its answer.
    pub(crate) fn midway(&self) -> Midway {
        self.0.midway.clone()
    }

    /// A request head is complete; from now on the body is read by its consumer.
    pub(crate) fn begin(&self) {
        self.0.share.finish_head();
        self.0.busy.store(true, Ordering::Relaxed);
    }

    /// Ends the request when `response` ends. After a switch of protocols it never ends: no other head will
    /// come.
    pub(crate) fn until_sent(&self, mut response: Response<Body>) -> Response<Body> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return response;
        }
        if self.0.share.is_one_too_many() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response.map(|body| {
            if body.is_end_stream() {
                self.end();
                return body;
            }
            Body::new(Answer { body, busy: self.clone() })
        })
    }

    fn end(&self) {
        self.0.busy.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is(&self) -> bool {
        self.0.busy.load(Ordering::Relaxed) || self.0.midway.is_held()
    }
}

/// Whether a connection is held in the middle of a request.
#[derive(Debug, Clone, Default)]
pub struct Midway(Arc<AtomicUsize>);

impl Midway {
    /// See [`Client::hold_midway`](super::Client::hold_midway).
    pub(super) fn hold(&self) -> HeldMidway {
        self.0.fetch_add(1, Ordering::Relaxed);
        HeldMidway(self.clone())
    }

    pub fn is_held(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// Holds a connection in the middle of a request until it is dropped.
#[derive(Debug)]
pub struct HeldMidway(Midway);

impl Drop for HeldMidway {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A response body whose end is the end of its request.
struct Answer {
    body: Body,
    busy: Busy,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.busy.end();
    }
}

//! The answer of a call while it runs: lines that a kernel's side puts in and the connection takes out.
//!
//! A kernel never waits for a client: what the client has not read is kept up to a bound, and dropped beyond it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use coffer_core::sync::Mutex;
use hyper::body::{Body, Frame};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep};

use crate::line::Line;

/// Most bytes that wait for the client.
const UNREAD: usize = 64 << 20;
/// Most bytes of one call.
const WHOLE: usize = 256 << 20;
/// Lines that wait are sent together, up to this.
const CHUNK: usize = 64 << 10;
/// After so much silence a line tells that the call still runs.
const SILENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Bytes>,
    unread: usize,
    whole: usize,
    dropped: usize,
    complete: bool,
    gone: bool,
    reader: Option<Waker>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    gone: Notify,
}

/// Where a call's lines go.
#[derive(Debug)]
pub(crate) struct Sink(Arc<Shared>);

/// The body of the answer.
#[derive(Debug)]
pub(crate) struct Lines {
    shared: Arc<Shared>,
    silence: Pin<Box<Sleep>>,
}

pub(crate) fn open() -> (Sink, Lines) {
    let shared = Arc::<Shared>::default();
    (Sink(Arc::clone(&shared)), Lines { shared, silence: Box::pin(sleep(SILENCE)) })
}

impl Sink {
    pub(crate) fn put(&self, line: &Line<'_>) {
        let bytes = line.bytes();
        let mut state = self.0.state.lock();
        if state.gone {
            return;
        }
        let small = matches!(line, Line::Error { .. } | Line::Count(_)) && bytes.len() < CHUNK;
        if !small && (state.unread + bytes.len() > UNREAD || state.whole + bytes.len() > WHOLE) {
            state.dropped += bytes.len();
            return;
        }
        state.push(bytes);
    }

    pub(crate) fn error(&self, name: &str, value: &str) {
        self.put(&Line::Error { name, value, traceback: "" });
    }

    /// Completes the answer. Nothing is put in afterwards.
    pub(crate) fn end(self) {
        let mut state = self.0.state.lock();
        if state.dropped > 0 {
            let note = format!(
                "coffer-code: {} bytes of output were dropped: a call may print {} MiB, of which {} MiB may be unread\n",
                state.dropped,
                WHOLE >> 20,
                UNREAD >> 20
            );
            state.push(Line::Stderr(&note).bytes());
        }
        state.push(Line::End.bytes());
    }

    /// Whether nobody reads any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.state.lock().gone
    }

    /// Waits until nobody reads any more.
    pub(crate) async fn abandoned(&self) {
        loop {
            let told = self.0.gone.notified();
            if self.is_abandoned() {
                return;
            }
            told.await;
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.complete = true;
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
    }
}

impl State {
    fn push(&mut self, bytes: Bytes) {
        self.unread += bytes.len();
        self.whole += bytes.len();
        self.waiting.push_back(bytes);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// The next lines, together.
    fn take(&mut self) -> Option<Bytes> {
        let first = self.waiting.pop_front()?;
        self.unread -= first.len();
        let fits = |bytes: &Bytes, so_far: usize| so_far + bytes.len() <= CHUNK;
        if !self.waiting.front().is_some_and(|next| fits(next, first.len())) {
            return Some(first);
        }
        let mut chunk = BytesMut::from(first);
        while self.waiting.front().is_some_and(|next| fits(next, chunk.len())) {
            if let Some(next) = self.waiting.pop_front() {
                self.unread -= next.len();
                chunk.extend_from_slice(&next);
            }
        }
        Some(chunk.freeze())
    }
}

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state.lock();
        if let Some(chunk) = state.take() {
            self.silence.as_mut().reset(Instant::now() + SILENCE);
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        if state.complete {
            return Poll::Ready(None);
        }
        state.reader = Some(context.waker().clone());
        drop(state);
        if self.silence.as_mut().poll(context).is_ready() {
            self.silence.as_mut().reset(Instant::now() + SILENCE);
            return Poll::Ready(Some(Ok(Frame::data(Line::Keepalive.bytes()))));
        }
        Poll::Pending
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.gone = true;
        state.waiting.clear();
        drop(state);
        self.shared.gone.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    async fn all(lines: Lines) -> String {
        String::from_utf8(lines.collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn lines_come_in_order_and_end() {
        let (sink, lines) = open();
        sink.put(&Line::Count(1));
        sink.error("A", "b");
        sink.end();
        let text = all(lines).await;
        let kinds: Vec<_> = text.lines().map(|line| line.split('"').nth(3).unwrap()).collect();
        assert_eq!(kinds, ["number_of_executions", "error", "end_of_execution"]);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_broken() {
        let (sink, mut lines) = open();
        let frame = lines.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(frame, Line::Keepalive.bytes());
        drop(sink);
        assert!(lines.frame().await.is_none());
    }

    #[tokio::test]
    async fn what_nobody_reads_is_bounded_and_counted() {
        let (sink, lines) = open();
        let text = "x".repeat(1 << 20);
        for _ in 0..100 {
            sink.put(&Line::Stdout(&text));
        }
        sink.error("Kept", "");
        sink.end();
        let text = all(lines).await;
        assert!(text.len() < UNREAD + (1 << 20));
        assert!(text.contains("bytes of output were dropped"));
        assert!(text.contains("Kept") && text.ends_with("{\"type\":\"end_of_execution\"}\n"));
    }

    #[tokio::test]
    async fn a_client_that_leaves_is_noticed() {
        let (sink, lines) = open();
        assert!(!sink.is_abandoned());
        drop(lines);
        sink.abandoned().await;
        sink.put(&Line::Count(1));
        assert!(sink.is_abandoned());
    }
}

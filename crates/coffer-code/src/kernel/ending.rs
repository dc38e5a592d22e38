//! How code ends: by itself, with its kernel, or because its client has left.

use std::time::Duration;

use tokio::time::Instant;

use crate::stream::Sink;

/// Between two interrupts of code that does not stop.
const INTERRUPT_AGAIN: Duration = Duration::from_secs(2);

/// How code ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Done,
    /// With its kernel, which must be started anew.
    Died,
}

/// When to interrupt code whose client has left, and when to give up on it.
#[derive(Debug)]
pub(super) struct Stopping {
    again: Instant,
    until: Instant,
}

impl Stopping {
    pub(super) fn new(patience: Duration) -> Self {
        let now = Instant::now();
        Self { again: now + INTERRUPT_AGAIN, until: now + patience }
    }

    /// Waits for the next interrupt; false if it is time to kill.
    pub(super) async fn next(stopping: &mut Option<Self>) -> bool {
        let Some(stopping) = stopping else { return std::future::pending().await };
        tokio::time::sleep_until(stopping.again.min(stopping.until)).await;
        stopping.again = Instant::now() + INTERRUPT_AGAIN;
        Instant::now() < stopping.until
    }
}

/// Waits until the client has left, or for ever if there is none.
pub(super) async fn abandoned(sink: Option<&Sink>) {
    match sink {
        Some(sink) => sink.abandoned().await,
        None => std::future::pending().await,
    }
}

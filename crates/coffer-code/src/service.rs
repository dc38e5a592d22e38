//! What requests are answered from.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::contexts::Contexts;

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) contexts: Contexts,
    ready: AtomicBool,
}

impl Service {
    pub(crate) fn new(contexts: Contexts) -> Self {
        Self { contexts, ready: AtomicBool::new(false) }
    }

    /// Whether the first kernels have started, or have failed to.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    pub(crate) fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }
}

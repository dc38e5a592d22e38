//! Watches while memory is saved: what the kernel watches on an overlay cannot be saved with it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use coffer_wire::envd::filesystem::FilesystemEvent;

use super::{Ask, Watch, Watchers, held, lock};

/// How long watches may take to close.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// A watch without the kernel's part of it.
#[derive(Debug)]
pub(super) struct SetAside {
    name: String,
    ask: Ask,
    queue: VecDeque<FilesystemEvent>,
    overflowed: bool,
}

impl Watchers {
    /// Closes what the kernel watches for us, which cannot be saved with our memory, and keeps what is known.
    pub(crate) async fn set_aside(&self) -> bool {
        let kept = std::mem::take(&mut *lock(&self.kept));
        for (name, watch) in kept {
            let state = &watch.state;
            state.drain();
            let mut seen = lock(&state.seen);
            let (queue, overflowed) = (std::mem::take(&mut seen.queue), seen.overflowed);
            drop(seen);
            state.let_go(&queue);
            lock(&self.set_aside).push(SetAside { name, ask: state.ask.clone(), queue, overflowed });
        }
        // Each is closed when its task has had a turn to end.
        let closed = async {
            while lock(&self.all).iter().any(|state| state.strong_count() > 0) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(CLOSED_WITHIN, closed).await.is_ok()
    }

    /// Watches again what was set aside. A directory that is gone is watched no more.
    pub(crate) async fn take_up(&self) {
        let set_aside = std::mem::take(&mut *lock(&self.set_aside));
        for SetAside { name, ask, queue, overflowed } in set_aside {
            let Ok(watch) = Watch::open(self, ask).await else { continue };
            self.queued.fetch_add(queue.iter().map(held).sum(), Ordering::Relaxed);
            let mut seen = lock(&watch.state.seen);
            let newer = std::mem::replace(&mut seen.queue, queue);
            seen.queue.extend(newer);
            seen.overflowed |= overflowed;
            drop(seen);
            lock(&self.kept).insert(name, Arc::new(watch));
        }
    }
}

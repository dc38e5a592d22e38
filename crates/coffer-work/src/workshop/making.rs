//! Tracks sandboxes that are being created, so that a lookup waits for them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use coffer_core::sync::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

/// A lock for each run: one that creates sandboxes for minutes does not block others.
#[derive(Debug, Default)]
pub struct Making {
    runs: Mutex<HashMap<String, Weak<RwLock<()>>>>,
}

impl Making {
    /// Held while a sandbox of the key's run is being created.
    pub(super) async fn begin(&self, key: &str) -> OwnedRwLockReadGuard<()> {
        self.of(key).read_owned().await
    }

    /// Waits until no sandbox of the key's run is being created.
    pub(super) async fn done(&self, key: &str) {
        let lock = self.of(key);
        drop(lock.write().await);
    }

    /// Keys are `run:<id>/<what>`.
    fn of(&self, key: &str) -> Arc<RwLock<()>> {
        let run = key.split_once('/').map_or(key, |(run, _)| run);
        let mut runs = self.runs.lock();
        if let Some(known) = runs.get(run).and_then(Weak::upgrade) {
            return known;
        }
        runs.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(RwLock::new(()));
        runs.insert(run.to_string(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn only_those_of_the_same_run_are_waited_for() {
        let making = Making::default();
        let held = making.begin("run:a/forks").await;
        let _other = making.begin("run:b/source").await;
        assert!(making.done("run:a/source").now_or_never().is_none());
        assert!(making.done("run:c/source").now_or_never().is_some());
        // Several of one run can be created at once.
        drop(making.begin("run:a/fork-2").await);
        drop(held);
        assert!(making.done("run:a/source").now_or_never().is_some());
        making.done("run:d/source").await;
        assert_eq!(making.runs.lock().len(), 2, "what nobody holds is forgotten");
    }
}

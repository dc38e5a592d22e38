//! Closes watches while memory is saved: inotify watches on an overlay cannot be saved.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{SetAside, Watch, Watchers, held};

/// How long watches may take to close.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

impl Watchers {
    /// Closes the inotify instances, which cannot be saved with our memory, and keeps the rest.
    pub(crate) async fn set_aside(&self) -> bool {
        let kept = std::mem::take(&mut *self.kept.lock());
        for (name, watch) in kept {
            let state = &watch.state;
            state.drain();
            let mut seen = state.seen.lock();
            let (queue, overflowed) = (std::mem::take(&mut seen.queue), seen.overflowed);
            drop(seen);
            state.let_go(&queue);
            self.set_aside.lock().push(SetAside { name, ask: state.ask.clone(), queue, overflowed });
        }
        // Each is closed when its task has ended.
        let closed = async {
            while self.all.lock().iter().any(|state| state.strong_count() > 0) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(CLOSED_WITHIN, closed).await.is_ok()
    }

    /// Restores the closed watches. A directory that is gone is no longer watched.
    pub(crate) async fn take_up(&self) {
        let set_aside = std::mem::take(&mut *self.set_aside.lock());
        for SetAside { name, ask, queue, overflowed } in set_aside {
            let Ok(watch) = Watch::open(self, ask).await else { continue };
            self.queued.fetch_add(queue.iter().map(held).sum(), Ordering::Relaxed);
            let mut seen = watch.state.seen.lock();
            let newer = std::mem::replace(&mut seen.queue, queue);
            seen.queue.extend(newer);
            seen.overflowed |= overflowed;
            drop(seen);
            self.kept.lock().insert(name, Arc::new(watch));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Ask;
    use super::*;

    #[tokio::test]
    async fn what_was_seen_before_is_still_told_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        let watchers = Watchers::default();
        let path = directory.path().to_path_buf();
        let ask = Ask { path, recursive: true, include_entry: false, allow_network_mounts: true };
        let name = watchers.keep(Watch::open(&watchers, ask).await.unwrap()).unwrap();
        std::fs::write(directory.path().join("before"), "").unwrap();
        assert!(watchers.set_aside().await);
        assert!(watchers.kept(&name).is_err());
        std::fs::write(directory.path().join("meanwhile"), "").unwrap();
        watchers.take_up().await;
        std::fs::write(directory.path().join("after"), "").unwrap();
        let told = watchers.kept(&name).unwrap().take_now().unwrap();
        let mut names: Vec<_> = told.into_iter().map(|event| event.name).collect();
        names.dedup();
        assert_eq!(names, ["before", "after"]);
    }

    #[tokio::test]
    async fn a_directory_that_is_gone_is_watched_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let watchers = Watchers::default();
        let path = directory.path().join("below");
        std::fs::create_dir(&path).unwrap();
        let ask = Ask { path, recursive: false, include_entry: false, allow_network_mounts: true };
        let name = watchers.keep(Watch::open(&watchers, ask).await.unwrap()).unwrap();
        assert!(watchers.set_aside().await);
        std::fs::remove_dir(directory.path().join("below")).unwrap();
        watchers.take_up().await;
        assert!(watchers.kept(&name).is_err());
    }
}

//! Paces followers: tasks that read new records repeatedly.

use std::time::Duration;

use coffer_core::chain;
use coffer_store::{Store, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Paces a task that reads the records repeatedly, until it is stopped or the store is closed.
#[derive(Debug)]
pub struct Follower {
    /// The log message of a failed read.
    late: &'static str,
    every: Duration,
    written: Option<watch::Receiver<()>>,
    breather: Duration,
    stop: CancellationToken,
}

impl Follower {
    /// Reads at this interval, because other servers write too and do not notify this one.
    pub fn new(late: &'static str, every: Duration, stop: CancellationToken) -> Self {
        Self { late, every, written: None, breather: Duration::ZERO, stop }
    }

    /// Also reads after this server has written something, with a pause of `breather` between two reads.
    #[must_use]
    pub fn on_writes(self, store: &Store, breather: Duration) -> Self {
        Self { written: Some(store.written()), breather, ..self }
    }

    /// Waits for the next read; returns false when it is time to stop. `looked` is the outcome of the last
    /// read.
    pub async fn again(&mut self, looked: Result<(), StoreError>) -> bool {
        match looked {
            Ok(()) => {}
            Err(StoreError::Closed) => return false,
            Err(error) => tracing::warn!("{}: {}", self.late, chain(&error)),
        }
        let Self { written, every, breather, stop, .. } = self;
        let is_written = async {
            match written {
                Some(written) => written.changed().await.is_ok(),
                None => std::future::pending().await,
            }
        };
        let goes_on = tokio::select! {
            () = stop.cancelled() => false,
            goes_on = is_written => goes_on,
            () = tokio::time::sleep(*every) => true,
        };
        if !goes_on || breather.is_zero() {
            return goes_on;
        }
        tokio::select! {
            () = stop.cancelled() => false,
            () = tokio::time::sleep(*breather) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use coffer_testkit::TestDatabase;
    use tokio::time::Instant;

    use super::*;

    const EVERY: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn it_looks_at_intervals_until_it_is_stopped_or_the_store_is_closed() {
        let stop = CancellationToken::new();
        let mut follower = Follower::new("later", EVERY, stop.clone());
        let since = Instant::now();
        assert!(follower.again(Ok(())).await);
        assert!(follower.again(Err(StoreError::Unreadable { what: "row", why: "odd".into() })).await);
        assert_eq!(since.elapsed(), EVERY * 2, "a look that failed is repeated, and not at once");
        assert!(!follower.again(Err(StoreError::Closed)).await);
        stop.cancel();
        assert!(!follower.again(Ok(())).await);
    }

    #[tokio::test]
    async fn what_this_server_writes_is_looked_at_soon() {
        let database = TestDatabase::sqlite();
        let store = database.open().await;
        let long = Duration::from_secs(3600);
        let mut follower = Follower::new("later", long, CancellationToken::new());
        follower = follower.on_writes(&store, Duration::from_millis(1));
        store.create_project(&store.operator(), "new").await.unwrap();
        let again = tokio::time::timeout(Duration::from_secs(60), follower.again(Ok(()))).await;
        assert_eq!(again, Ok(true));
    }
}

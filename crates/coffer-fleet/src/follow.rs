//! When those who follow the records look again.

use std::time::Duration;

use coffer_core::chain;
use coffer_store::{Store, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Paces one who reads the records again and again, until it is stopped or the store is closed.
#[derive(Debug)]
pub struct Follower {
    /// What a failed look means, for the log.
    late: &'static str,
    every: Duration,
    written: Option<watch::Receiver<()>>,
    breather: Duration,
    stop: CancellationToken,
}

impl Follower {
    /// Looks `every` so often: other servers write too, and do not tell this one.
    pub fn new(late: &'static str, every: Duration, stop: CancellationToken) -> Self {
        Self { late, every, written: None, breather: Duration::ZERO, stop }
    }

    /// Also looks once this server has written something, and rests for a `breather` however much it writes.
    #[must_use]
    pub fn on_writes(self, store: &Store, breather: Duration) -> Self {
        Self { written: Some(store.written()), breather, ..self }
    }

    /// Waits until it is time to look again; says no where it is over. `looked` is what the last look came to.
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

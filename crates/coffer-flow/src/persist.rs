//! Writes to the journal, with retries while the database is unreachable.

use std::future::Future;
use std::time::Duration;

use coffer_store::{JournalError, StoreError};
use tokio_util::sync::CancellationToken;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Writes until it succeeds, the database refuses permanently, or this runner must stop.
pub(crate) async fn persist<T, F>(
    alive: &CancellationToken,
    mut write: impl FnMut() -> F,
) -> Result<T, JournalError>
where
    F: Future<Output = Result<T, JournalError>>,
{
    let mut pause = FIRST_PAUSE;
    loop {
        let written = tokio::select! {
            biased;
            () = alive.cancelled() => return Err(JournalError::Lost),
            written = write() => written,
        };
        match written {
            Err(JournalError::Store(StoreError::Transient { .. })) => {}
            written => return written,
        }
        tokio::select! {
            () = alive.cancelled() => return Err(JournalError::Lost),
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

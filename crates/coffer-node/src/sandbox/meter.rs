//! Resource usage of sandboxes, read from outside.
//!
//! A read may wait for the disk or for a kernel lock that one sandbox keeps busy. Other sandboxes must not
//! wait for it: each read has its own timeout, and a sandbox that is still being read is left out.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::SandboxId;
use coffer_core::sync::Mutex;
use coffer_wire::node::Sample;
use tokio::sync::mpsc;

use crate::node::Node;
use crate::registry::{Handle, Meter};

/// A read takes less than a millisecond; after this long the others continue without it.
const PATIENCE: Duration = Duration::from_millis(500);

/// Samples of all sandboxes that have processes.
pub(crate) async fn sample_all(node: &Arc<Node>) -> Vec<Sample> {
    let traffic = node.network.traffic().await;
    let of = |handle: Handle| Some((handle.id(), handle.meter()?));
    let meters: Vec<_> = node.sandboxes.all().into_iter().filter_map(of).collect();
    let node = node.clone();
    read_all(meters, PATIENCE, move |(sandbox, meter): (SandboxId, Arc<Meter>)| {
        meter.read(&node.pool, sandbox, traffic.get(&sandbox).copied().unwrap_or_default())
    })
    .await
}

/// Reads one after the other on one thread. If one takes longer than `patience`, that thread is left to it
/// and another continues with the rest.
async fn read_all<T: Send + 'static, S: Send + 'static>(
    items: Vec<T>,
    patience: Duration,
    read: impl Fn(T) -> Option<S> + Send + Sync + 'static,
) -> Vec<S> {
    let (count, queue, read) = (items.len(), Arc::new(Mutex::new(items.into_iter())), Arc::new(read));
    let (results, mut arrived) = mpsc::channel(count.max(1));
    let go_on = || {
        let (queue, read, results) = (queue.clone(), read.clone(), results.clone());
        tokio::task::spawn_blocking(move || {
            let next = || queue.lock().next();
            while let Some(item) = next() {
                if results.blocking_send(read(item)).is_err() {
                    return;
                }
            }
        });
    };
    go_on();
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let result = loop {
            match tokio::time::timeout(patience, arrived.recv()).await {
                Ok(result) => break result.flatten(),
                Err(_) if queue.lock().len() > 0 => go_on(),
                // Only those are left that are not done.
                Err(_) => return all,
            }
        };
        all.extend(result);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_that_hangs_delays_no_other() {
        let (release, hangs) = std::sync::mpsc::channel::<()>();
        let hangs = Mutex::new(hangs);
        let begun = std::time::Instant::now();
        let found = read_all((0..100).collect(), Duration::from_millis(50), move |item: u32| {
            if item == 3 || item == 99 {
                let _ = hangs.lock().recv();
            }
            Some(item)
        });
        let found = found.await;
        assert_eq!(found, (0..100).filter(|item| ![3, 99].contains(item)).collect::<Vec<_>>());
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        drop(release);
    }
}

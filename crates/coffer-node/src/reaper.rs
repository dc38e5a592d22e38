//! Releases the resources of dead sandboxes in the background: unmounting and deleting can take long.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

/// This many sandboxes are released at once.
const WORKERS: usize = 4;
/// Queue length; when it is full, destroying waits too, instead of building up a backlog.
const QUEUE: usize = 1024;

/// Works through its queue, a few at a time.
#[derive(Debug)]
pub(crate) struct Reaper {
    tasks: TaskTracker,
    queue: Arc<Semaphore>,
    workers: Arc<Semaphore>,
}

impl Reaper {
    pub(crate) fn new() -> Self {
        Self {
            tasks: TaskTracker::new(),
            queue: Arc::new(Semaphore::new(QUEUE)),
            workers: Arc::new(Semaphore::new(WORKERS)),
        }
    }

    /// Queues work that may wait for the disk. Waits only while the queue is full.
    pub(crate) async fn take<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) {
        let place = self.queue.clone().acquire_owned().await.expect("the semaphore is never closed");
        let workers = self.workers.clone();
        self.tasks.spawn(async move {
            let _place = place;
            let _worker = workers.acquire_owned().await.expect("the semaphore is never closed");
            let _ = tokio::task::spawn_blocking(work).await;
        });
    }

    /// Waits until all queued work is done.
    pub(crate) async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

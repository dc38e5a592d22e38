//! Gives back what a dead sandbox used, beside the requests: unmounting and deleting can take long.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::SandboxId;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::node::Node;

/// This many sandboxes are given back at once.
const WORKERS: usize = 4;
/// So many may wait; then destroying waits too, rather than pile up debts.
const QUEUE: usize = 1024;
/// A step is tried for this long: the kernel lets go of some things a moment after the last process.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// What is left of a sandbox without processes.
#[derive(Debug)]
pub(crate) struct Remains {
    pub(crate) node: Arc<Node>,
    /// What all of it is called on this host.
    pub(crate) name: SandboxId,
    /// What its files are called.
    pub(crate) files: String,
    /// Nothing where the range is not this sandbox's any more.
    pub(crate) uid_base: Option<u32>,
    pub(crate) cpus: Vec<usize>,
    pub(crate) record: Record,
}

/// What becomes of the journal entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    /// It tells of a death until someone destroys the sandbox.
    Kept,
    Removed,
}

/// Works off what is given to it, a few at a time.
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

    /// Takes remains over. Waits only when very many are there already.
    pub(crate) async fn give_back(&self, remains: Remains) {
        let place = self.queue.clone().acquire_owned().await.expect("the semaphore is never closed");
        let workers = self.workers.clone();
        self.tasks.spawn(async move {
            let _place = place;
            let _worker = workers.acquire_owned().await.expect("the semaphore is never closed");
            let _ = tokio::task::spawn_blocking(move || remains.give_back()).await;
        });
    }

    /// Deletes files of a sandbox that others took the place of.
    pub(crate) async fn delete_files(&self, node: Arc<Node>, name: SandboxId, files: String) {
        let place = self.queue.clone().acquire_owned().await.expect("the semaphore is never closed");
        let workers = self.workers.clone();
        self.tasks.spawn(async move {
            let _place = place;
            let _worker = workers.acquire_owned().await.expect("the semaphore is never closed");
            let deleting = move || insist(name, "delete its former files", || node.pool.delete(&files));
            let _ = tokio::task::spawn_blocking(deleting).await;
        });
    }

    /// Waits until all that was taken over is given back.
    pub(crate) async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Remains {
    /// Everything, in an order in which a crash in between loses track of nothing: the journal entry
    /// goes last, and until then the next start tries again. False when something is left.
    pub(crate) fn give_back(self) -> bool {
        let Self { node, name, files, uid_base, cpus, record } = self;
        let cgroup = node.cgroups.of(name);
        let mut clean = insist(name, "remove its cgroup", || cgroup.remove().inspect_err(|_| cgroup.kill()));
        clean &= insist(name, "delete its files", || node.pool.delete(&files));
        clean &= insist(name, "remove its small files", || node.files_of(name).remove());
        clean &=
            insist(name, "remove its saved memory", || node.images.of_sandbox(&name.to_string()).forget());
        clean &= insist(name, "remove its socket", || remove_socket(&node, name));
        if !clean {
            // Ids whose files are still there must not go to another sandbox.
            return false;
        }
        node.processors.give_back(&cpus);
        if let Some(uid_base) = uid_base {
            node.uids.give_back(uid_base);
        }
        if record == Record::Removed {
            insist(name, "remove its journal entry", || node.journal.remove(name));
        }
        true
    }
}

pub(crate) fn remove_socket(node: &Node, name: SandboxId) -> std::io::Result<()> {
    match std::fs::remove_file(node.socket_of(name)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn insist(sandbox: SandboxId, what: &str, mut step: impl FnMut() -> std::io::Result<()>) -> bool {
    let mut pause = Duration::from_millis(1);
    for attempt in 1..=TRIES {
        match step() {
            Ok(()) => return true,
            Err(error) if attempt == TRIES => {
                tracing::error!(sandbox.id = %sandbox, "could not {what} for sandbox {sandbox}: {error}");
            }
            Err(_) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(PAUSE);
    }
    false
}

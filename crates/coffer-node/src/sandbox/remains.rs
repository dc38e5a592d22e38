//! The resources of a sandbox without processes, and the order in which they are released.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::SandboxId;

use crate::journal::Entry;
use crate::node::Node;

/// A step is retried for this long: the kernel releases some resources a moment after the last process.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// The resources of a sandbox without processes.
#[derive(Debug)]
pub(crate) struct Remains {
    pub(crate) node: Arc<Node>,
    /// Their name on this host.
    pub(crate) name: SandboxId,
    /// The name of its files.
    pub(crate) files: String,
    /// `None` if the range no longer belongs to this sandbox.
    pub(crate) uid_base: Option<u32>,
    pub(crate) cpus: Vec<usize>,
    pub(crate) record: Record,
}

/// What happens to the journal entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Record {
    /// It records a death until a server destroys the sandbox.
    Kept,
    Removed,
}

impl Remains {
    /// All resources of a sandbox.
    pub(crate) fn of(node: &Arc<Node>, entry: &Entry, record: Record) -> Self {
        Self {
            node: node.clone(),
            name: entry.name(),
            files: entry.files_name(),
            uid_base: Some(entry.uid_base),
            cpus: entry.cpus.clone(),
            record,
        }
    }

    /// Releases them later, in the background.
    pub(crate) async fn give_back_later(self) {
        let node = self.node.clone();
        node.reaper.take(move || self.give_back()).await;
    }

    /// Releases everything, in an order in which a crash loses track of nothing: the journal entry is removed
    /// last, and until then the next start tries again. Returns false if something is left.
    pub(crate) fn give_back(self) -> bool {
        let Self { node, name, files, uid_base, cpus, record } = self;
        let cgroup = node.cgroups.of(name);
        let mut clean = insist(name, "remove its cgroup", || cgroup.remove().inspect_err(|_| cgroup.kill()));
        if clean {
            // Its mounts are gone with its last process.
            node.volumes.release(name);
        }
        clean &= insist(name, "delete its files", || node.pool.delete(&files));
        clean &= insist(name, "remove its small files", || node.files_of(name).remove());
        clean &=
            insist(name, "remove its saved memory", || node.images.of_sandbox(&name.to_string()).forget());
        clean &= insist(name, "remove its socket", || remove_socket(&node, name));
        if !clean {
            // Ids whose files still exist must not be given to another sandbox.
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

/// Deletes replaced files of a sandbox in the background.
pub(super) async fn delete_files_later(node: &Arc<Node>, name: SandboxId, files: String) {
    let deleting = node.clone();
    let delete = move || insist(name, "delete its former files", || deleting.pool.delete(&files));
    node.reaper.take(delete).await;
}

pub(crate) fn remove_socket(node: &Node, name: SandboxId) -> std::io::Result<()> {
    match std::fs::remove_file(node.socket_of(name)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[expect(clippy::disallowed_methods, reason = "runs on a thread that may block")]
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

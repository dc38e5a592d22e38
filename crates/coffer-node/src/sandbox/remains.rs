//! What is left of a sandbox without processes, and the order in which it is given back.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::SandboxId;

use crate::journal::Entry;
use crate::node::Node;

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

impl Remains {
    /// All that a sandbox has.
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

    /// Gives it back later, next to the requests.
    pub(crate) async fn give_back_later(self) {
        let node = self.node.clone();
        node.reaper.take(move || self.give_back()).await;
    }

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

/// Deletes files of a sandbox later that others took the place of.
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

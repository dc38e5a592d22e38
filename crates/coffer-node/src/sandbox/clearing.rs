//! Removes what a sandbox leaves behind while its files stay.

use std::io;
use std::time::Duration;

use coffer_core::SandboxId;

use crate::node::Node;

use super::remains::remove_socket;

/// Removes what belongs to one run of a sandbox and not to its files.
pub(crate) fn clear_run(node: &Node, name: SandboxId) {
    clear_processes(node, name);
    warn(name, node.files_of(name).remove());
}

/// Removes what belongs to ended processes; the files mounted inside stay for their return.
#[expect(clippy::disallowed_methods, reason = "runs on a thread that may block")]
pub(crate) fn clear_processes(node: &Node, name: SandboxId) {
    let cgroup = node.cgroups.of(name);
    for _ in 0..50 {
        cgroup.kill();
        if cgroup.remove().is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    warn(name, remove_socket(node, name));
}

fn warn(name: SandboxId, removed: io::Result<()>) {
    if let Err(error) = removed {
        tracing::warn!(sandbox.id = %name, "could not clean up after sandbox {name}: {error}");
    }
}

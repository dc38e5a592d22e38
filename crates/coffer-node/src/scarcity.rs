//! Guards against memory that the kernel charges to no cgroup.
//!
//! Netlink answers wait for their reader in memory that no cgroup is charged for: a program that opens
//! sockets, sends requests and never reads takes the host's memory, and its limit does not see it. So when
//! the host has less left than its reserve, the node ends the sandbox with the most sockets, if it has more
//! than any program needs.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use crate::node::Node;

const PAUSE: Duration = Duration::from_millis(100);
const MANY_SOCKETS: u64 = 4096;

/// Watches until the node releases its sandboxes.
pub(crate) async fn watch(node: Arc<Node>) {
    loop {
        tokio::select! {
            () = node.letting_go.cancelled() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
        if available_bytes().is_some_and(|available| available < node.cgroups.reserve_bytes()) {
            let looking = node.clone();
            let looked = tokio::task::spawn_blocking(move || end_the_worst(&looking)).await;
            looked.expect("looking at sandboxes does not panic");
        }
    }
}

fn end_the_worst(node: &Node) {
    let counted = node.sandboxes.all().into_iter().filter_map(|handle| Some((handle.sockets()?, handle)));
    let worst = counted.max_by_key(|(sockets, _)| *sockets);
    if let Some((sockets, handle)) = worst.filter(|(sockets, _)| *sockets > MANY_SOCKETS) {
        tracing::warn!(
            sandbox.id = %handle.id(),
            "the host is low on memory: killing sandbox {}, which has {sockets} sockets",
            handle.id()
        );
        handle.kill();
    }
}

/// Memory that the host can still give to processes.
pub(crate) fn available_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB"))?;
    Some(kib.trim().parse::<u64>().ok()?.saturating_mul(1024))
}

//! Gives agentd a new listener if it lost its own.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::time::Duration;

use coffer_wire::agentd::ControlOrder;

use crate::journal::Entry;
use crate::memory;
use crate::node::Node;
use crate::process::has_ended;

use super::prepare::listen;

/// Gives agentd a listener again if it has none: the node was killed while it saved the sandbox's memory.
pub(super) async fn see_that_it_listens(node: Arc<Node>, entry: Entry, pid: i32, first: OwnedFd) {
    /// CRIU may still be running; then everything is frozen until it is done.
    const TRIES: u32 = 30;
    let (id, socket) = (entry.spec.sandbox, node.socket_of(entry.name()));
    for attempt in 1..=TRIES {
        if std::os::unix::net::UnixStream::connect(&socket).is_ok() || has_ended(&first) {
            return;
        }
        let (the_node, entry) = (node.clone(), entry.clone());
        let process = first.try_clone();
        let handed = tokio::task::spawn_blocking(move || -> io::Result<()> {
            let process = process?;
            // Create it before agentd gets it, so that clients that connect meanwhile wait.
            let listener = listen(&the_node, entry.name())?;
            let path = the_node.socket_of(entry.name());
            let ours = fs::metadata(&path)?.ino();
            memory::order(process.as_fd(), pid, ControlOrder::Open, Some(&listener)).inspect_err(|_| {
                // The owner cleans up once, and may have done so. Another socket than ours belongs to its
                // next run.
                if has_ended(&process) && fs::metadata(&path).is_ok_and(|found| found.ino() == ours) {
                    let _gone = fs::remove_file(&path);
                }
            })
        });
        match handed.await {
            Ok(Ok(())) => {
                tracing::info!(sandbox.id = %id, "sandbox {id} listens again");
                return;
            }
            Ok(Err(error)) if attempt == TRIES => {
                tracing::error!(sandbox.id = %id, "sandbox {id} cannot be reached: {error}");
            }
            _ => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
}

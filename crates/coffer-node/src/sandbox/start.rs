//! From files to a running sandbox: booted, or restored with the processes of a snapshot.

use std::sync::Arc;

use coffer_wire::node::NodeError;

use crate::journal::{Durability, Entry};
use crate::network::Listeners;
use crate::node::{Node, blocking};

use super::boot::boot;
use super::prepare::{Launch, has_memory, internal, write_entry};
use super::provision::Resume;
use super::restore::{self, Source};

/// Starts a sandbox on its files, with processes or without.
pub(super) async fn begin(node: &Arc<Node>, entry: &Entry, resume: Resume) -> Result<Launch, NodeError> {
    let Resume::Memory(snapshot) = resume else { return boot(node, entry).await };
    // Use a separate name, so that a failure leaves the sandbox's own image intact.
    let name = format!("{}.fork", entry.name());
    let work = node.images.of_sandbox(&name);
    let (the_node, uid_base) = (node.clone(), entry.uid_base);
    let source = blocking(move || {
        let from = the_node.images.of_snapshot(snapshot);
        let opened = has_memory(&the_node, || from.memory_needed())
            .and_then(|()| the_node.images.open_for(snapshot, &name, uid_base));
        let opened = opened.map_err(internal("read the image of the snapshot's memory"))?;
        Ok(Source { opened, program: from.program(), is_fork: true })
    })
    .await;
    let launch = match source {
        Ok(source) => restore::restore(node, entry, &source).await,
        Err(error) => Err(error),
    };
    let forgotten = tokio::task::spawn_blocking(move || work.forget()).await;
    if let Ok(Err(error)) = forgotten {
        tracing::warn!("could not remove the working files of a restore: {error}");
    }
    launch
}

/// Makes egress serve a running sandbox, and records that it runs.
pub(super) async fn go_live(
    node: &Arc<Node>,
    entry: &Entry,
    listeners: Option<Listeners>,
) -> Result<(), NodeError> {
    let sandbox = entry.spec.sandbox;
    let serving = node.network.serve(sandbox, &entry.spec.network, listeners);
    let (written, in_force) = tokio::join!(write_entry(node, entry, Durability::Cached), serving.in_force());
    let live = written.and(in_force);
    if live.is_err() {
        node.network.end(sandbox).await;
    }
    live
}

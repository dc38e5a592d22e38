//! Freezes the processes of a sandbox, with files that survive a crash of the host.

use std::time::Duration;

use coffer_wire::node::{NodeError, NodeErrorCode, Reply};

use crate::journal::Durability;
use crate::node::blocking;
use crate::process::Alive;

use super::owner::{Owner, State};
use super::prepare::{internal, write_entry};

/// Writing out takes milliseconds, or seconds where much was written; longer than this is a failure.
const WRITTEN_OUT: Duration = Duration::from_secs(20);

impl Owner {
    /// Freezes all processes and syncs what they wrote.
    pub(super) async fn freeze(&self, alive: Alive) -> (State, Result<Reply, NodeError>) {
        if !self.node.cgroups.can_freeze() {
            let error = NodeError::new(NodeErrorCode::Unsupported, "this host cannot freeze processes");
            return (State::Running(alive), Err(error));
        }
        if let Err(error) = alive.cgroup.freeze().await {
            return (State::Running(alive), Err(internal("freeze its processes")(error)));
        }
        match self.make_safe().await {
            Ok(()) => (State::Frozen(alive), Ok(Reply::Done)),
            Err(error) => match self.thaw(alive).await {
                (state, Ok(_)) => (state, Err(error)),
                failed => failed,
            },
        }
    }

    /// Makes the files of a frozen sandbox, and its journal entry, survive a crash of the host.
    async fn make_safe(&self) -> Result<(), NodeError> {
        let (node, files) = (self.node.clone(), self.entry.files_name());
        let written = blocking(move || {
            let marked = node.pool.mark_frozen(&files).and_then(|()| node.pool.sync());
            marked.map_err(internal("write its files out"))
        });
        let written = tokio::time::timeout(WRITTEN_OUT, written);
        let (written, noted) =
            tokio::join!(written, write_entry(&self.node, &self.entry, Durability::Synced));
        noted?;
        written.unwrap_or_else(|_| {
            let message = format!("its files could not be written out within {} s", WRITTEN_OUT.as_secs());
            Err(NodeError::new(NodeErrorCode::Unavailable, message))
        })
    }

    pub(super) async fn thaw(&self, alive: Alive) -> (State, Result<Reply, NodeError>) {
        let (node, files, cgroup) = (self.node.clone(), self.entry.files_name(), alive.cgroup.clone());
        let thawed = blocking(move || {
            let thawed = node.pool.unmark_frozen(&files).and_then(|()| cgroup.thaw());
            thawed.map_err(internal("thaw its processes"))
        });
        match thawed.await {
            Ok(()) => (State::Running(alive), self.placed()),
            Err(error) => (State::Frozen(alive), Err(error)),
        }
    }
}

//! Replaces the files of a sandbox by those of a snapshot.
//!
//! The new files are created next to the old ones; the journal names the current ones, and a starting node
//! sweeps the others. The old files are deleted once the sandbox runs on the new.

use std::sync::Arc;

use coffer_core::SnapshotId;
use coffer_wire::node::{NodeError, Reply};

use crate::journal::{Durability, Entry, Phase};
use crate::node::{Node, blocking};

use super::clearing::clear_run;
use super::owner::{Owner, State};
use super::prepare::{check_room, internal, write_entry};
use super::provision::{self, Resume};
use super::remains::delete_files_later;

impl Owner {
    /// Ends what runs and continues from a snapshot. After a failure it has its old files, and may be
    /// stopped; a hibernated one stays hibernated.
    pub(super) async fn roll_back(
        &mut self,
        snapshot: SnapshotId,
        resume: Resume,
        state: State,
    ) -> (State, Result<Reply, NodeError>) {
        let before = self.entry.clone();
        let after = match prepare(&self.node, &before, snapshot, resume).await {
            Ok(after) => after,
            Err(error) => return (state, Err(error)),
        };
        if let State::Running(alive) | State::Frozen(alive) = state {
            self.entry.phase = Phase::Stopping;
            if let Err(error) = write_entry(&self.node, &self.entry, Durability::Cached).await {
                tracing::warn!(
                    sandbox.id = %self.id(),
                    "could not write journal entry before rolling back sandbox {}: {error}",
                    self.id()
                );
            }
            alive.end().await;
            self.node.network.end(self.id()).await;
        }
        let (state, result) = match switch(&self.node, &after).await {
            Ok(()) => {
                self.entry = after.clone();
                self.start(resume).await
            }
            Err(error) => (State::Stopped, Err(error)),
        };
        let unused = match result {
            Ok(_) => {
                if before.phase == Phase::Hibernated {
                    self.forget_memory().await;
                }
                Some(before)
            }
            Err(_) => self.take_up_again(before).await.then_some(after),
        };
        let state = match (state, &self.entry.phase) {
            (State::Stopped, Phase::Hibernated) => State::Hibernated,
            (state, _) => state,
        };
        if let Some(unused) = unused {
            delete_files_later(&self.node, self.entry.name(), unused.files_name()).await;
        }
        (state, result)
    }

    /// Deletes its saved memory, which belongs to the old files.
    async fn forget_memory(&self) {
        let (node, name) = (self.node.clone(), self.entry.name().to_string());
        let forgotten = blocking(move || {
            let forgotten = node.images.of_sandbox(&name).forget();
            forgotten.map_err(internal("delete its saved memory"))
        });
        if let Err(error) = forgotten.await {
            tracing::error!(
                sandbox.id = %self.id(),
                "could not finish the rollback of sandbox {}: {error}",
                self.id()
            );
        }
    }

    /// Goes back to the old files. Returns false if that cannot be recorded: then both stay, and the journal
    /// decides.
    async fn take_up_again(&mut self, before: Entry) -> bool {
        let phase = match before.phase {
            Phase::Hibernated => Phase::Hibernated,
            _ => Phase::Stopped,
        };
        let back = Entry { phase, ..before };
        match write_entry(&self.node, &back, Durability::Synced).await {
            Ok(()) => {
                self.entry = back;
                true
            }
            Err(error) => {
                tracing::error!(
                    sandbox.id = %self.id(),
                    "could not record that sandbox {} keeps its old files: {error}",
                    self.id()
                );
                false
            }
        }
    }
}

/// Creates the new files. No entry names them yet.
async fn prepare(
    node: &Arc<Node>,
    before: &Entry,
    snapshot: SnapshotId,
    resume: Resume,
) -> Result<Entry, NodeError> {
    let (node, before) = (node.clone(), before.clone());
    blocking(move || {
        let manifest = node.snapshots.get(snapshot)?;
        resume.check(&manifest)?;
        check_room(&node)?;
        let (template, overlays, files) =
            provision::inherit(&node, &manifest, before.files.generation.saturating_add(1), resume);
        let after = Entry { template, overlays, files, phase: Phase::Starting, ..before };
        // Of an attempt that failed.
        node.pool.delete(&after.files_name()).map_err(internal("delete leftover files"))?;
        provision::take_files(&node, &after, &manifest).inspect_err(|_| {
            let _ = node.pool.delete(&after.files_name());
        })?;
        Ok(after)
    })
    .await
}

/// From here on the sandbox has the new files, even after a crash.
async fn switch(node: &Arc<Node>, after: &Entry) -> Result<(), NodeError> {
    let (node, after) = (node.clone(), after.clone());
    blocking(move || {
        clear_run(&node, after.name());
        node.pool.sync().map_err(internal("write its files out"))?;
        node.journal.write(&after, Durability::Synced).map_err(internal("write the journal"))
    })
    .await
}

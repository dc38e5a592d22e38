//! Snapshots the files and the processes of a sandbox at one moment, while it keeps running.

use std::sync::Arc;
use std::time::Instant;

use coffer_core::SnapshotId;
use coffer_wire::node::{NodeError, NodeErrorCode, Reply, SnapshotInfo};

use crate::journal::Phase;
use crate::memory::{self, Afterwards, DumpError};
use crate::node::blocking;
use crate::process::Alive;
use crate::snapshots::{Begun, Making, Manifest};

use super::hibernation::LetGo;
use super::owner::{Owner, State};
use super::prepare::{check_room, internal};
use super::snapshot::{manifest, write_out};

impl Owner {
    pub(super) async fn snapshot_with_memory(
        &mut self,
        snapshot: SnapshotId,
        alive: Alive,
    ) -> (State, Result<Reply, NodeError>) {
        let node = self.node.clone();
        let making = match node.snapshots.begin(snapshot, self.id()) {
            Ok(Begun::Made(made)) => return (State::Running(alive), Ok(Reply::Snapshot(made.info.clone()))),
            Ok(Begun::New(making)) => making,
            Err(error) => return (State::Running(alive), Err(error)),
        };
        let made = self.save_all(making, snapshot, &alive).await;
        let state = State::Running(alive);
        match made {
            Ok(manifest) => {
                self.allow_for(&manifest, &state).await;
                (state, Ok(Reply::Snapshot(manifest.info.clone())))
            }
            Err(error) => {
                let deleted = tokio::task::spawn_blocking(move || {
                    node.images.of_snapshot(snapshot).forget()?;
                    node.pool.delete_snapshot(&snapshot.to_string())
                });
                if let Ok(Err(error)) = deleted.await {
                    tracing::error!("could not remove unfinished snapshot {snapshot}: {error}");
                }
                (state, Err(error))
            }
        }
    }

    /// The files are snapshotted while the processes are still frozen after their dump: both are of the same
    /// moment.
    async fn save_all(
        &self,
        making: Making,
        snapshot: SnapshotId,
        alive: &Alive,
    ) -> Result<Arc<Manifest>, NodeError> {
        let criu = memory::tool()?;
        if let Some(lack) = self.node.pool.snapshots_lack() {
            let message = format!("this host does not support snapshots: {lack}");
            return Err(NodeError::new(NodeErrorCode::Unsupported, message));
        }
        let Phase::Running { process } = &self.entry.phase else { return Err(memory::unsupported()) };
        let pid = process.pid;
        write_out(&self.node, &self.entry).await;
        let (node, entry) = (self.node.clone(), self.entry.clone());
        let sealing = blocking(move || {
            check_room(&node)?;
            let sealing = node.pool.prepare_seal(&entry.files_name(), &snapshot.to_string());
            sealing.map_err(internal("create a directory for its snapshot"))
        })
        .await?;
        let place = self.node.images.of_snapshot(snapshot);
        let LetGo { listener, mounts } = self.let_go(alive, pid, &place).await?;
        let at_rest = async move {
            let sealed = tokio::task::spawn_blocking(move || sealing.seal());
            let sealed = sealed.await.map_err(|error| DumpError::AtRest(error.to_string()))?;
            let doing = "create the snapshot of its files";
            sealed.map_err(|source| DumpError::Step { doing, source })
        };
        let started = Instant::now();
        let dumped = memory::dump(criu, pid, place.draft(), &mounts, Afterwards::GoOn, at_rest).await;
        let paused = started.elapsed();
        self.listen_again(alive, pid, listener).await;
        if let Err(why) = dumped {
            let message = format!("its memory could not be saved: {}", coffer_core::chain(&why));
            return Err(NodeError::new(NodeErrorCode::Internal, message));
        }
        let (node, entry) = (self.node.clone(), self.entry.clone());
        blocking(move || {
            let finished = (|| {
                let image = place.seal(entry.uid_base, mounts, || node.pool.sync())?;
                place.leave()?;
                let files = manifest(&node, &entry, snapshot, paused);
                let info = SnapshotInfo { memory: true, memory_bytes: image.bytes, ..files.info };
                making.finish(Manifest { info, ..files })
            })();
            finished.map_err(internal("store its snapshot"))
        })
        .await
    }
}

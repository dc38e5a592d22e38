//! Saves the files of a sandbox as they are at one moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coffer_core::SnapshotId;
use coffer_wire::node::{NodeError, NodeErrorCode, Reply, SnapshotInfo};

use crate::cgroup::SandboxCgroup;
use crate::journal::{Durability, Entry};
use crate::node::{Node, blocking};
use crate::pool::Sealing;
use crate::snapshots::{Begun, Making, Manifest};

use super::owner::{Owner, State};
use super::prepare::{check_room, internal, write_entry};

/// Processes keep running for this long while their writes go to disk. Then they are frozen for the rest.
const WRITING_OUT: Duration = Duration::from_secs(5);
/// This little unwritten data causes no noticeable pause.
const LITTLE: u64 = 2 * 1024 * 1024;
/// Bounded, because a sandbox may write faster than the disk forever.
const ROUNDS: u32 = 3;

impl Owner {
    /// Takes a snapshot; the state stays the same, also after a failure.
    pub(super) async fn snapshot(
        &mut self,
        snapshot: SnapshotId,
        state: State,
    ) -> (State, Result<Reply, NodeError>) {
        let node = self.node.clone();
        let making = match node.snapshots.begin(snapshot, self.id()) {
            Ok(Begun::Made(manifest)) => return (state, Ok(Reply::Snapshot(manifest.info.clone()))),
            Ok(Begun::New(making)) => making,
            Err(error) => return (state, Err(error)),
        };
        let running = match &state {
            State::Running(alive) => Some(&alive.cgroup),
            _ => None,
        };
        let made = self.make_snapshot(making, snapshot, running).await;
        if let Ok((manifest, _)) = &made {
            self.allow_for(manifest, &state).await;
        }
        match made {
            Ok((manifest, Thawed::Yes)) => (state, Ok(Reply::Snapshot(manifest.info.clone()))),
            Ok((_, Thawed::No(error))) => {
                let state = match state {
                    State::Running(alive) => State::Frozen(alive),
                    state => state,
                };
                (state, Err(error))
            }
            Err(error) => (state, Err(error)),
        }
    }

    async fn make_snapshot(
        &self,
        making: Making,
        snapshot: SnapshotId,
        running: Option<&SandboxCgroup>,
    ) -> Result<(Arc<Manifest>, Thawed), NodeError> {
        if let Some(lack) = self.node.pool.snapshots_lack() {
            let message = format!("this host does not support snapshots: {lack}");
            return Err(NodeError::new(NodeErrorCode::Unsupported, message));
        }
        if running.is_some() {
            if !self.node.cgroups.can_freeze() {
                let message = "this host cannot freeze processes, so it cannot snapshot a running sandbox";
                return Err(NodeError::new(NodeErrorCode::Unsupported, message));
            }
            write_out(&self.node, &self.entry).await;
        }
        let (node, entry) = (self.node.clone(), self.entry.clone());
        let prepared = blocking(move || {
            check_room(&node)?;
            let sealing = node.pool.prepare_seal(&entry.files_name(), &snapshot.to_string());
            sealing.map_err(internal("create a directory for its snapshot"))
        });
        let (paused, thawed) = seal(prepared.await?, running).await?;
        let (node, entry) = (self.node.clone(), self.entry.clone());
        let manifest = blocking(move || {
            let finished = making.finish(manifest(&node, &entry, snapshot, paused));
            finished.map_err(|error| {
                if let Err(error) = node.pool.delete_snapshot(&snapshot.to_string()) {
                    tracing::error!("could not remove unfinished snapshot {snapshot}: {error}");
                }
                internal("write its manifest")(error)
            })
        });
        Ok((manifest.await?, thawed))
    }

    /// Raises its disk limit by the size of the snapshot: what it wrote so far may be charged to it for as
    /// long as the snapshot exists.
    pub(super) async fn allow_for(&mut self, manifest: &Manifest, state: &State) {
        if !self.node.pool.charges_makers() {
            return;
        }
        self.entry.files.sealed_bytes = manifest.info.files_bytes;
        let durability = match state {
            State::Running(_) => Durability::Cached,
            _ => Durability::Synced,
        };
        let noted = write_entry(&self.node, &self.entry, durability).await;
        let (node, entry) = (self.node.clone(), self.entry.clone());
        let limited = blocking(move || {
            let limited = node.pool.limit(&entry.files_name(), entry.disk_bytes());
            limited.map_err(internal("set its disk limit"))
        });
        if let Err(error) = noted.and(limited.await) {
            tracing::warn!(sandbox.id = %self.id(), "could not raise the disk limit after a snapshot of sandbox {}: {error}", self.id());
        }
    }
}

/// Whether the processes that were frozen for a snapshot run again.
enum Thawed {
    Yes,
    No(NodeError),
}

/// Writes most unwritten data to disk, so that processes are frozen only for the rest.
pub(super) async fn write_out(node: &Arc<Node>, entry: &Entry) {
    let deadline = tokio::time::Instant::now() + WRITING_OUT;
    for _ in 0..ROUNDS {
        let (node, files) = (node.clone(), entry.files_name());
        let writing = tokio::task::spawn_blocking(move || {
            let little = node.pool.unwritten_bytes(&files).is_some_and(|unwritten| unwritten < LITTLE);
            // A failure here repeats in the later sync, which reports it.
            little || node.pool.sync().is_err()
        });
        match tokio::time::timeout_at(deadline, writing).await {
            Ok(Ok(false)) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// Takes the snapshot while nothing runs; returns how long that took.
async fn seal(sealing: Sealing, running: Option<&SandboxCgroup>) -> Result<(Duration, Thawed), NodeError> {
    let started = Instant::now();
    if let Some(cgroup) = running
        && let Err(error) = cgroup.freeze().await
    {
        sealing.give_up();
        return Err(internal("freeze its processes")(error));
    }
    let (sealing, sealed) = blocking(move || {
        let sealed = sealing.seal();
        Ok((sealing, sealed))
    })
    .await?;
    let thawed = match running.map(SandboxCgroup::thaw) {
        Some(Err(error)) => Thawed::No(internal("thaw its processes")(error)),
        Some(Ok(())) | None => Thawed::Yes,
    };
    let paused = if running.is_some() { started.elapsed() } else { Duration::ZERO };
    match (sealed, thawed) {
        (Ok(()), thawed) => Ok((paused, thawed)),
        (Err(error), _) => {
            sealing.give_up();
            Err(internal("create the snapshot")(error))
        }
    }
}

pub(super) fn manifest(node: &Node, entry: &Entry, snapshot: SnapshotId, paused: Duration) -> Manifest {
    let quota = node.pool.find(&entry.files_name()).ok().and_then(|upper| upper.quota);
    let info = SnapshotInfo {
        snapshot,
        sandbox: entry.spec.sandbox,
        made_ms: coffer_core::clock::now_ms(),
        memory: false,
        files_bytes: node.pool.used_bytes(quota),
        memory_bytes: 0,
        depth: entry.files.depth.saturating_add(1),
        paused_us: u64::try_from(paused.as_micros()).unwrap_or(u64::MAX),
        template: entry.template.clone(),
        limits: entry.spec.limits,
    };
    Manifest {
        info,
        hostname: entry.spec.hostname.clone(),
        overlays: entry.overlays.clone(),
        stored_uid_base: entry.stored_uid_base(),
    }
}

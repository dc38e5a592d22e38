//! Hibernates and restores a sandbox.

use std::io::{BufRead as _, BufReader};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use coffer_core::SandboxId;
use coffer_wire::agentd::ControlOrder;
use coffer_wire::node::{NodeError, NodeErrorCode, Reply};

use crate::journal::{Durability, Phase};
use crate::memory::{self, Afterwards, DumpError, Place};
use crate::node::{Node, blocking};
use crate::process::{Alive, Process};
use crate::spawner::request::MountPoint;

use super::clearing::clear_processes;
use super::owner::{Owner, State};
use super::prepare::{Launch, has_memory, internal, listen, write_entry};
use super::provision::Resume;
use super::rehearsal;
use super::restore::{self, Source};
use super::start::go_live;

/// Size of an image beyond the memory in use: tables, and the program of the first process.
const BESIDE_MEMORY: u64 = 32 * 1024 * 1024;

/// State of a sandbox with all its outside connections closed.
#[derive(Debug)]
pub(super) struct LetGo {
    /// Connections wait in its backlog.
    pub(super) listener: OwnedFd,
    /// Mounts that come from outside of it.
    pub(super) mounts: Vec<MountPoint>,
}

impl Owner {
    /// Writes the processes of a running sandbox to disk and ends them, or leaves everything as it was.
    pub(super) async fn hibernate(&mut self, alive: Alive) -> (State, Result<Reply, NodeError>) {
        let Phase::Running { process } = self.entry.phase.clone() else {
            return (State::Running(alive), Err(memory::unsupported()));
        };
        match self.dump_and_end(&alive, &process).await {
            Ok(()) => {
                alive.watched.ended().await;
                alive.watched.reap();
                self.node.network.end(self.id()).await;
                self.entry.phase = Phase::Hibernated;
                let (node, entry) = (self.node.clone(), self.entry.clone());
                let noted = blocking(move || {
                    clear_processes(&node, entry.name());
                    node.journal.write(&entry, Durability::Synced).map_err(internal("write the journal"))
                });
                (State::Hibernated, noted.await.map(|()| Reply::Done))
            }
            Err(error) => {
                let id = self.id();
                tracing::warn!(
                    sandbox.id = %id,
                    "could not hibernate sandbox {id}, it keeps running: {error}"
                );
                if alive.watched.has_ended() {
                    // Its owner notices that next, and reports why.
                    return (State::Running(alive), Err(error));
                }
                self.entry.phase = Phase::Running { process };
                // Synced, because the previous entry may be on disk, and names an image that is outdated from
                // here on.
                if let Err(error) = write_entry(&self.node, &self.entry, Durability::Synced).await {
                    tracing::error!(sandbox.id = %id, "could not record the failed hibernation of sandbox {id}: {error}");
                }
                let (node, name) = (self.node.clone(), self.entry.name());
                let _ = tokio::task::spawn_blocking(move || {
                    if let Err(error) = node.images.of_sandbox(&name.to_string()).forget() {
                        tracing::warn!("could not remove the image of sandbox {id}: {error}");
                    }
                })
                .await;
                (State::Running(alive), Err(error))
            }
        }
    }

    async fn dump_and_end(&mut self, alive: &Alive, process: &Process) -> Result<(), NodeError> {
        let criu = memory::tool()?;
        let place = self.image();
        let LetGo { listener, mounts } = self.let_go(alive, process.pid, &place).await?;
        self.entry.phase = Phase::Hibernating { process: process.clone() };
        let at_rest = {
            let (node, place, entry) = (self.node.clone(), place.clone(), self.entry.clone());
            let mounts = mounts.clone();
            async move {
                let (the_node, at, uid_base) = (node.clone(), place.clone(), entry.uid_base);
                let sealed = blocking(move || {
                    let sealed = at.seal(uid_base, mounts, || the_node.pool.sync());
                    sealed.map_err(internal("write its memory to disk"))
                });
                let failed = |error: NodeError| DumpError::AtRest(error.message);
                let image = sealed.await.map_err(failed)?;
                rehearsal::rehearse(&node, &entry, &place, &image).await.map_err(failed)?;
                // From here on the state depends on whether its processes live.
                write_entry(&node, &entry, Durability::Synced).await.map_err(failed)
            }
        };
        let dumped = memory::dump(criu, process.pid, place.draft(), &mounts, Afterwards::End, at_rest).await;
        if let Err(why) = dumped {
            self.listen_again(alive, process.pid, listener).await;
            let message =
                format!("its memory could not be saved, and it keeps running: {}", coffer_core::chain(&why));
            return Err(NodeError::new(NodeErrorCode::Internal, message));
        }
        leave(place).await;
        Ok(())
    }

    /// Where its image is stored, if it has one.
    fn image(&self) -> Place {
        self.node.images.of_sandbox(&self.entry.name().to_string())
    }

    /// Makes agentd close its outside connections, and creates the directory for an image.
    pub(super) async fn let_go(&self, alive: &Alive, pid: i32, place: &Place) -> Result<LetGo, NodeError> {
        let room = alive.cgroup.usage().memory_bytes + BESIDE_MEMORY;
        let overlays: Vec<_> =
            self.entry.overlays.iter().skip(1).map(|overlay| overlay.target.clone()).collect();
        let first = hold(alive)?;
        let (node, name, place) = (self.node.clone(), self.entry.name(), place.clone());
        blocking(move || {
            has_room(&node, room)?;
            let mounts = from_outside(&node, name, pid, &overlays).map_err(internal("read its mounts"))?;
            place.make().map_err(internal("create a directory for its memory"))?;
            place
                .keep_program(&node.files_of(name).program(), pid)
                .map_err(internal("save agentd's program with the image"))?;
            // Connections from now on wait until agentd takes this listener.
            let listener = listen(&node, name).map_err(internal("create its socket"))?;
            let shut = memory::order(first.as_fd(), pid, ControlOrder::Shut, None);
            if let Err(error) = shut {
                // It may have done a part of it.
                let _ = memory::order(first.as_fd(), pid, ControlOrder::Open, Some(&listener));
                return Err(internal("make agentd close its connections")(error));
            }
            Ok(LetGo { listener, mounts })
        })
        .await
    }

    /// Gives agentd its listener.
    pub(super) async fn listen_again(&self, alive: &Alive, pid: i32, listener: OwnedFd) {
        let id = self.id();
        let opened = match hold(alive) {
            Ok(first) => {
                let open = move || {
                    memory::order(first.as_fd(), pid, ControlOrder::Open, Some(&listener))
                        .map_err(internal("make agentd listen again"))
                };
                blocking(open).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = opened {
            tracing::error!(sandbox.id = %id, "could not make sandbox {id} reachable again: {error}");
        }
    }

    /// Restores a hibernated sandbox. If that fails, it stays hibernated.
    pub(super) async fn wake(&mut self) -> (State, Result<Reply, NodeError>) {
        match self.try_wake().await {
            Ok(alive) => {
                let place = self.image();
                // Its agentd has answered, so the image is no longer needed.
                let forgotten = tokio::task::spawn_blocking(move || place.forget()).await;
                if let Ok(Err(error)) = forgotten {
                    tracing::warn!("could not remove an image: {error}");
                }
                (State::Running(alive), self.placed())
            }
            Err(error) => {
                leave(self.image()).await;
                let (node, entry) = (self.node.clone(), self.entry.clone());
                let noted = blocking(move || {
                    clear_processes(&node, entry.name());
                    node.journal.write(&entry, Durability::Synced).map_err(internal("write the journal"))
                });
                if let Err(error) = noted.await {
                    tracing::error!(
                        sandbox.id = %self.id(),
                        "could not record that sandbox {} is still hibernated: {error}",
                        self.id()
                    );
                }
                (State::Hibernated, Err(error))
            }
        }
    }

    async fn try_wake(&mut self) -> Result<Alive, NodeError> {
        let (node, place) = (self.node.clone(), self.image());
        let source = blocking(move || {
            let opened = has_memory(&node, || place.memory_needed()).and_then(|()| place.open());
            let opened = opened.map_err(internal("read the image of its memory"))?;
            Ok(Source { opened, program: place.program(), is_fork: false })
        })
        .await?;
        let Launch { alive, process, listeners } = restore::restore(&self.node, &self.entry, &source).await?;
        self.entry.phase = Phase::Running { process };
        match go_live(&self.node, &self.entry, listeners).await {
            Ok(()) => Ok(alive),
            Err(error) => {
                alive.end().await;
                self.entry.phase = Phase::Hibernated;
                Err(error)
            }
        }
    }

    /// Discards the memory of a hibernated sandbox and boots it.
    pub(super) async fn start_cold(&mut self) -> (State, Result<Reply, NodeError>) {
        let place = self.image();
        let before = std::mem::replace(&mut self.entry.phase, Phase::Stopped);
        // Write the record first: an image without a record is swept, a record without an image is not.
        if let Err(error) = write_entry(&self.node, &self.entry, Durability::Synced).await {
            self.entry.phase = before;
            return (State::Hibernated, Err(error));
        }
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || place.forget()).await {
            tracing::warn!("could not remove an image: {error}");
        }
        self.start(Resume::Boot).await
    }
}

fn hold(alive: &Alive) -> Result<OwnedFd, NodeError> {
    alive.watched.pidfd().try_clone_to_owned().map_err(internal("duplicate the pidfd of its first process"))
}

/// Removes the decrypted image from memory.
async fn leave(place: Place) {
    if let Ok(Err(error)) = tokio::task::spawn_blocking(move || place.leave()).await {
        tracing::warn!("could not remove a decrypted image: {error}");
    }
}

fn has_room(node: &Node, bytes: u64) -> Result<(), NodeError> {
    if node.images.take_memory() {
        has_memory(node, || Ok(bytes)).map_err(internal("save its memory"))?;
    }
    match node.pool.free_bytes() {
        Some(free) if free < bytes => {
            let missing = (bytes - free).div_ceil(1 << 20);
            let message = format!("its memory does not fit on the disk: {missing} MiB are missing");
            Err(NodeError::new(NodeErrorCode::NoCapacity, message))
        }
        _ => Ok(()),
    }
}

/// The mounts of a sandbox that come from outside of it.
fn from_outside(
    node: &Node,
    name: SandboxId,
    pid: i32,
    overlays: &[PathBuf],
) -> std::io::Result<Vec<MountPoint>> {
    let shown = node.files_of(name).binds();
    let is_outside = |path: &Path| {
        let below = path.strip_prefix("/").unwrap_or(path);
        crate::spawner::comes_from_outside(below)
            || overlays.iter().any(|target| target.strip_prefix("/").unwrap_or(target) == below)
            || shown.iter().any(|bind| bind.target == below)
    };
    let mut mounts = Vec::new();
    let table = BufReader::new(std::fs::File::open(format!("/proc/{pid}/mountinfo"))?);
    for line in table.lines() {
        let line = line?;
        // Number, parent, device, root, place. All of our places are plain words.
        let mut fields = line.split(' ').skip(3);
        let (Some(root), Some(place)) = (fields.next(), fields.next()) else { continue };
        let path = PathBuf::from(place);
        if is_outside(&path) {
            // A mount of a whole file system is a directory; the others are single files.
            mounts.push(MountPoint { path, is_directory: root == "/" });
        }
    }
    Ok(mounts)
}

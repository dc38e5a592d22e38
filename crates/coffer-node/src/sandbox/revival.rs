//! From an image of its memory back to a running sandbox.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use coffer_wire::agentd::ControlOrder;
use coffer_wire::node::{NodeError, NodeErrorCode};
use rustix::process::{Pid, PidfdFlags};

use crate::cgroup::SandboxCgroup;
use crate::journal::Entry;
use crate::memory::{self, Criu, Hook, Image, Moment};
use crate::network::Listeners;
use crate::node::{Node, blocking};
use crate::spawner::request::Restore;
use crate::spawner::{SpawnError, Spawned};

use super::birth::{self, Born, Prepared, internal};
use super::process::{Exit, Watched, identify};

/// A gigabyte takes a second or two.
const PATIENCE: Duration = Duration::from_secs(300);

/// What to restore.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) image: Image,
    /// Where it lies.
    pub(super) directory: PathBuf,
    /// Another sandbox than the one that it was made of: it bears its own name.
    pub(super) is_fork: bool,
}

/// Restores a sandbox on its files. On failure no process is left, and image and files are as they were,
/// unless processes ran already.
pub(super) async fn restore(node: &Arc<Node>, entry: &Entry, source: &Source) -> Result<Born, NodeError> {
    let criu = memory::tool()?;
    let cgroup = node.cgroups.of(entry.name());
    let work = memory::directory(&node.pool, &entry.name().to_string());
    let mut hook = Hook::new(&work, Moment::NamespacesMade).map_err(internal("write CRIU's hook"))?;
    let restore = describe(criu, source, &work, hook.script())?;
    let Prepared { request, mut descriptors, gate, quota } =
        birth::prepare(node, entry, &cgroup, Some(restore)).await?;
    // It stays here until there is somebody to hand it to.
    let listener = descriptors.remove(0);
    let spawned = node.spawner.spawn(request, descriptors).await.map_err(|error| {
        cgroup.kill();
        let code = match error {
            SpawnError::Lost => NodeErrorCode::Unavailable,
            SpawnError::Refused(_) | SpawnError::Garbled => NodeErrorCode::Internal,
        };
        NodeError::new(code, format!("could not restore the sandbox: {error}"))
    })?;
    let Spawned { pid, pidfd, progress, exited, .. } = spawned;
    let tool = Watched::new(pidfd, Some(exited)).map_err(internal("watch CRIU"))?;
    let work = async {
        join(node, entry, &cgroup, pid, gate).await?;
        if let Err(why) = progress.finish().await.map_err(internal("watch CRIU"))? {
            return Err(failed(&why));
        }
        let first = tokio::select! {
            asked = hook.asked() => Some(asked.map_err(internal("hear CRIU"))?),
            () = tool.ended() => None,
        };
        let Some(first) = first else { return Err(failed(&said(&source.directory, entry, node))) };
        let (pidfd, listeners) = set_up(node, entry, first, source.is_fork).await?;
        hook.go_on().map_err(internal("answer CRIU"))?;
        tool.ended().await;
        Ok((first, pidfd, listeners))
    };
    let outcome = match tokio::time::timeout(PATIENCE, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(failed(&format!("CRIU took longer than {} s", PATIENCE.as_secs()))),
    };
    let outcome = match outcome {
        Err(error) => {
            tool.kill();
            Err(error)
        }
        Ok(restored) => match tool.exit().await {
            Some(Exit::Code(0)) | None => Ok(restored),
            Some(_) => Err(failed(&said(&source.directory, entry, node))),
        },
    };
    let born = match outcome {
        Ok((first, pidfd, listeners)) => go_on(node, first, pidfd, listener)
            .await
            .map(|(watched, process)| Born { watched, cgroup: cgroup.clone(), quota, process, listeners }),
        Err(error) => Err(error),
    };
    if born.is_err() {
        cgroup.kill();
    }
    born
}

fn describe(criu: &Criu, source: &Source, work: &Path, hook: &Path) -> Result<Restore, NodeError> {
    let text = |word: &std::ffi::OsString| word.to_str().map(String::from);
    let command = criu.words().iter().map(text).collect::<Option<Vec<_>>>();
    Ok(Restore {
        command: command.ok_or_else(|| failed("CRIU's command is no text"))?,
        images: source.directory.clone(),
        work: work.to_path_buf(),
        hook: hook.to_path_buf(),
        mounts: source.image.mounts.clone(),
    })
}

/// Puts CRIU under the sandbox's limits, and so whatever it restores.
async fn join(
    node: &Arc<Node>,
    entry: &Entry,
    cgroup: &SandboxCgroup,
    pid: i32,
    gate: Option<OwnedFd>,
) -> Result<(), NodeError> {
    let (node, entry, cgroup) = (node.clone(), entry.clone(), cgroup.clone());
    blocking(move || {
        birth::set_disk_limit(&node, &entry)?;
        cgroup.join(pid).map_err(internal("set its limits"))?;
        if let Some(gate) = gate {
            rustix::io::write(&gate, b"go").map_err(|errno| internal("let CRIU go on")(errno.into()))?;
        }
        Ok(())
    })
    .await
}

/// Sets the new network namespace up, before anything runs in it that could miss it, and the host's name
/// where it is another's.
async fn set_up(
    node: &Arc<Node>,
    entry: &Entry,
    first: i32,
    is_fork: bool,
) -> Result<(OwnedFd, Option<Listeners>), NodeError> {
    let families = node.network.families();
    let hostname = is_fork.then(|| entry.spec.hostname.clone());
    blocking(move || {
        let pid = Pid::from_raw(first).ok_or_else(|| failed("CRIU named no process"))?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .map_err(|errno| internal("find its first process")(errno.into()))?;
        let listeners = crate::network::set_up_in(pidfd.as_fd(), families, hostname.as_deref())
            .map_err(internal("set its network up"))?;
        Ok((pidfd, listeners))
    })
    .await
}

/// Hands the listener over. Once agentd has answered, the sandbox is back.
async fn go_on(
    node: &Arc<Node>,
    first: i32,
    pidfd: OwnedFd,
    listener: OwnedFd,
) -> Result<(Watched, crate::journal::Process), NodeError> {
    let boot_id = node.host_boot_id.clone();
    let watched = Watched::new(pidfd, None).map_err(internal("watch its first process"))?;
    let asked = watched.pidfd().try_clone_to_owned().map_err(internal("hold its first process"))?;
    let process = blocking(move || {
        memory::order(asked.as_fd(), first, ControlOrder::Open, Some(&listener))
            .map_err(internal("have agentd answer"))?;
        identify(first, &boot_id).map_err(internal("look at its first process"))
    })
    .await?;
    Ok((watched, process))
}

fn said(images: &Path, entry: &Entry, node: &Node) -> String {
    let work = memory::directory(&node.pool, &entry.name().to_string());
    let log = fs::read(work.join("restore.log")).or_else(|_| fs::read(images.join("restore.log")));
    memory::complaints(&String::from_utf8_lossy(&log.unwrap_or_default()))
}

fn failed(why: &str) -> NodeError {
    NodeError::new(NodeErrorCode::Internal, format!("its memory could not be restored: {why}"))
}

/// Gives agentd a listener again, where it has none: a node that saved its memory was killed meanwhile.
pub(super) async fn see_that_it_listens(node: Arc<Node>, entry: Entry, pid: i32, first: OwnedFd) {
    /// CRIU may be at work still; then everything stands still until it is done.
    const TRIES: u32 = 30;
    let (id, socket) = (entry.spec.sandbox, node.socket_of(entry.name()));
    for attempt in 1..=TRIES {
        if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
            return;
        }
        let (the_node, entry) = (node.clone(), entry.clone());
        let process = first.try_clone();
        let handed = tokio::task::spawn_blocking(move || -> io::Result<()> {
            let listener = birth::listen(&the_node, entry.name())?;
            memory::order(process?.as_fd(), pid, ControlOrder::Open, Some(&listener))
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

//! Restores a sandbox from an image of its memory.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use coffer_wire::agentd::ControlOrder;
use coffer_wire::node::{NodeError, NodeErrorCode};
use rustix::process::{Pid, PidfdFlags};
use rustix::thread::ThreadNameSpaceType;

use crate::cgroup::SandboxCgroup;
use crate::journal::{Durability, Entry, Phase};
use crate::memory::{self, Criu, Hook, Moment, Opened};
use crate::network::Listeners;
use crate::node::{Node, blocking};
use crate::process::{Alive, Exit, Watched, identify};
use crate::spawner::request::Restore;
use crate::spawner::{SpawnError, Spawned};

use super::prepare::{Launch, Prepared, SPAWNERS, internal, prepare, set_disk_limit, write_entry};

/// A gigabyte takes a second or two.
const PATIENCE: Duration = Duration::from_secs(300);
/// CRIU kills what it restored with one signal.
const UNDOING: Duration = Duration::from_secs(20);

/// The image to restore.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) opened: Opened,
    /// The program of its first process.
    pub(super) program: PathBuf,
    /// A fork: it has its own name, not that of the image's source.
    pub(super) is_fork: bool,
}

/// Restores a sandbox on its files. On failure no process is left, and image and files are as they were,
/// unless processes ran already.
pub(super) async fn restore(node: &Arc<Node>, entry: &Entry, source: &Source) -> Result<Launch, NodeError> {
    insist(|| restore_once(node, entry, source)).await
}

/// Restores a sandbox up to the moment before any of it would run, and ends it there. The caller releases the
/// resources in its entry.
pub(super) async fn rehearse(node: &Arc<Node>, entry: &Entry, source: &Source) -> Result<(), NodeError> {
    insist(|| rehearse_once(node, entry, source)).await
}

/// Retries if the spawner died, and CRIU with it: nothing ran, and the next spawner is already starting.
async fn insist<T, F: Future<Output = Result<T, NodeError>>>(once: impl Fn() -> F) -> Result<T, NodeError> {
    let mut attempt = 1;
    loop {
        match once().await {
            Err(error) if error.code == NodeErrorCode::Unavailable && attempt < SPAWNERS => attempt += 1,
            outcome => return outcome,
        }
    }
}

async fn restore_once(node: &Arc<Node>, entry: &Entry, source: &Source) -> Result<Launch, NodeError> {
    let moments = [Moment::NamespacesMade, Moment::Restored];
    let UnderWay { tool, mut hook, cgroup, listener, quota, first, pidfd, listeners } =
        set_out(node, entry, source, &moments).await?;
    let work = async {
        came_back(&mut hook, &tool, first, source).await?;
        if !source.is_fork {
            // Until here only its image exists, and no process of it has run.
            note_waking(node, entry, first).await?;
        }
        hook.go_on().map_err(internal("answer CRIU"))?;
        tokio::select! {
            () = tool.ended() => Ok(()),
            () = memory::deadlocked(first) => Err(killed_meanwhile()),
        }
    };
    let outcome = match tokio::time::timeout(PATIENCE, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(too_slow()),
    };
    let outcome = match outcome {
        Err(error) => {
            tool.kill();
            Err(error)
        }
        Ok(()) => match tool.exit().await {
            Some(Exit::Code(0)) | None => Ok(()),
            Some(_) => Err(failed(&said(&source.opened.directory))),
        },
    };
    let hostname = source.is_fork.then(|| entry.spec.hostname.clone());
    let launch = match outcome {
        Ok(()) => go_on(node, first, pidfd, listener, hostname).await.map(|(watched, process)| Launch {
            alive: Alive { watched, cgroup: cgroup.clone(), quota },
            process,
            listeners,
        }),
        Err(error) => Err(error),
    };
    if launch.is_err() {
        cgroup.kill();
    }
    launch
}

async fn rehearse_once(node: &Arc<Node>, entry: &Entry, source: &Source) -> Result<(), NodeError> {
    let moments = [Moment::NamespacesMade, Moment::Restored];
    let under_way = set_out(node, entry, source, &moments).await?;
    let UnderWay { tool, mut hook, cgroup, first, .. } = under_way;
    let outcome = match tokio::time::timeout(PATIENCE, came_back(&mut hook, &tool, first, source)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(too_slow()),
    };
    // Without an answer, CRIU gives up and kills what it restored.
    drop(hook);
    if tokio::time::timeout(UNDOING, tool.ended()).await.is_err() {
        tool.kill();
    }
    cgroup.kill();
    tool.ended().await;
    tool.reap();
    outcome
}

/// Waits until everything is restored.
async fn came_back(hook: &mut Hook, tool: &Watched, first: i32, source: &Source) -> Result<(), NodeError> {
    tokio::select! {
        asked = hook.asked() => asked.map(drop).map_err(internal("hear CRIU")),
        () = tool.ended() => Err(ended_early(&source.opened.directory)),
        () = memory::deadlocked(first) => Err(killed_meanwhile()),
    }
}

/// Records that the processes of a hibernated sandbox are about to run.
async fn note_waking(node: &Arc<Node>, entry: &Entry, first: i32) -> Result<(), NodeError> {
    let process =
        identify(first, &node.host_boot_id).map_err(internal("read the state of its first process"))?;
    let waking = Entry { phase: Phase::Waking { process }, ..entry.clone() };
    write_entry(node, &waking, Durability::Synced).await
}

/// A restore that has created its namespaces, and may continue.
struct UnderWay {
    /// CRIU.
    tool: Watched,
    hook: Hook,
    cgroup: SandboxCgroup,
    /// Kept here until agentd can take it.
    listener: OwnedFd,
    quota: Option<u64>,
    first: i32,
    pidfd: OwnedFd,
    listeners: Option<Listeners>,
}

/// Begins a restore. On failure no process is left.
async fn set_out(
    node: &Arc<Node>,
    entry: &Entry,
    source: &Source,
    moments: &[Moment],
) -> Result<UnderWay, NodeError> {
    let criu = memory::tool()?;
    let cgroup = node.cgroups.of(entry.name());
    let mut hook = Hook::new(&source.opened.directory, moments).map_err(internal("write CRIU's hook"))?;
    let restore = describe(criu, source, hook.script())?;
    let Prepared { request, mut descriptors, gate, quota } =
        prepare(node, entry, &cgroup, Some(restore)).await?;
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
        let Some(first) = first else { return Err(ended_early(&source.opened.directory)) };
        let (pidfd, listeners) = set_up(node, first).await?;
        hook.go_on().map_err(internal("answer CRIU"))?;
        Ok((first, pidfd, listeners))
    };
    let outcome = match tokio::time::timeout(PATIENCE, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(too_slow()),
    };
    match outcome {
        Ok((first, pidfd, listeners)) => {
            Ok(UnderWay { tool, hook, cgroup, listener, quota, first, pidfd, listeners })
        }
        Err(error) => {
            tool.kill();
            cgroup.kill();
            Err(error)
        }
    }
}

fn describe(criu: &Criu, source: &Source, hook: &Path) -> Result<Restore, NodeError> {
    let text = |word: &std::ffi::OsString| word.to_str().map(String::from);
    let command = criu.words().iter().map(text).collect::<Option<Vec<_>>>();
    Ok(Restore {
        command: command.ok_or_else(|| failed("CRIU's command is not valid UTF-8"))?,
        images: source.opened.directory.clone(),
        program: source.program.clone(),
        work: source.opened.directory.clone(),
        hook: hook.to_path_buf(),
        mounts: source.opened.image.mounts.clone(),
    })
}

/// Puts CRIU, and so everything it restores, under the sandbox's limits.
async fn join(
    node: &Arc<Node>,
    entry: &Entry,
    cgroup: &SandboxCgroup,
    pid: i32,
    gate: Option<OwnedFd>,
) -> Result<(), NodeError> {
    let (node, entry, cgroup) = (node.clone(), entry.clone(), cgroup.clone());
    blocking(move || {
        set_disk_limit(&node, &entry)?;
        cgroup.join(pid).map_err(internal("set its limits"))?;
        if let Some(gate) = gate {
            rustix::io::write(&gate, b"go").map_err(|errno| internal("let CRIU continue")(errno.into()))?;
        }
        Ok(())
    })
    .await
}

/// Sets up the new network namespace, before anything runs in it.
async fn set_up(node: &Arc<Node>, first: i32) -> Result<(OwnedFd, Option<Listeners>), NodeError> {
    let families = node.network.families();
    blocking(move || {
        let pid = Pid::from_raw(first).ok_or_else(|| failed("CRIU named no process"))?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .map_err(|errno| internal("find its first process")(errno.into()))?;
        let listeners =
            crate::network::set_up_in(pidfd.as_fd(), families).map_err(internal("set up its network"))?;
        Ok((pidfd, listeners))
    })
    .await
}

/// Passes the listener to agentd. Once agentd has answered, the sandbox is restored.
async fn go_on(
    node: &Arc<Node>,
    first: i32,
    pidfd: OwnedFd,
    listener: OwnedFd,
    hostname: Option<String>,
) -> Result<(Watched, crate::process::Process), NodeError> {
    let boot_id = node.host_boot_id.clone();
    let watched = Watched::new(pidfd, None).map_err(internal("watch its first process"))?;
    let asked =
        watched.pidfd().try_clone_to_owned().map_err(internal("duplicate the pidfd of its first process"))?;
    let process = blocking(move || {
        if let Some(hostname) = hostname {
            name_host(asked.as_fd(), &hostname).map_err(internal("set its host name"))?;
        }
        memory::order(asked.as_fd(), first, ControlOrder::Open, Some(&listener))
            .map_err(internal("make agentd answer"))?;
        identify(first, &boot_id).map_err(internal("read the state of its first process"))
    })
    .await?;
    Ok((watched, process))
}

/// Sets the host name in the namespace of a process.
fn name_host(process: BorrowedFd<'_>, hostname: &str) -> io::Result<()> {
    std::thread::scope(|scope| {
        // A separate thread, which stays in that namespace until it ends.
        let naming = std::thread::Builder::new().spawn_scoped(scope, || -> io::Result<()> {
            let host_name = ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
            rustix::thread::move_into_thread_name_spaces(process, host_name)?;
            Ok(rustix::system::sethostname(hostname.as_bytes())?)
        })?;
        naming.join().map_err(|_| io::Error::other("a thread panicked"))?
    })
}

fn said(directory: &Path) -> String {
    memory::complaints(&log_of(directory))
}

fn log_of(directory: &Path) -> String {
    let log = fs::read(directory.join("restore.log")).unwrap_or_default();
    String::from_utf8_lossy(&log).into_owned()
}

/// CRIU ended before there was a process. If it failed, its log says why; if it was killed, it does not.
fn ended_early(directory: &Path) -> NodeError {
    if memory::complains(&log_of(directory)) {
        return failed(&said(directory));
    }
    NodeError::new(NodeErrorCode::Unavailable, "its memory could not be restored: CRIU was killed")
}

fn killed_meanwhile() -> NodeError {
    failed("its first process was killed during the restore")
}

fn too_slow() -> NodeError {
    failed(&format!("CRIU took longer than {} s", PATIENCE.as_secs()))
}

fn failed(why: &str) -> NodeError {
    NodeError::new(NodeErrorCode::Internal, format!("its memory could not be restored: {why}"))
}

//! What every start of a sandbox needs, boot or restore: room, a cgroup, small files, a listening socket.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::sync::Arc;

use coffer_core::SandboxId;
use coffer_wire::node::{NodeError, NodeErrorCode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::cgroup::SandboxCgroup;
use crate::features::Feature;
use crate::files;
use crate::journal::{Durability, Entry};
use crate::network::Listeners;
use crate::node::{Node, blocking};
use crate::process::{Alive, Process};
use crate::scarcity;
use crate::spawner::request::{Restore, SpawnRequest};
use crate::uids::UidError;
use crate::volumes;

/// Connections that may wait for agentd to accept them.
const BACKLOG: i32 = 1024;
/// How much a mount may write beyond the disk limit until it is complete.
const MOUNT_ROOM: u64 = 16 * 1024 * 1024;
/// How many spawners a start tries.
pub(super) const SPAWNERS: u32 = 3;

/// A sandbox whose agentd runs.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) alive: Alive,
    pub(super) process: Process,
    /// For egress.
    pub(super) listeners: Option<Listeners>,
}

pub(super) struct Prepared {
    pub(super) request: SpawnRequest,
    /// The listener first.
    pub(super) descriptors: Vec<OwnedFd>,
    /// A write here releases a sandbox that waits for its limits.
    pub(super) gate: Option<OwnedFd>,
    pub(super) quota: Option<u64>,
}

pub(super) async fn prepare(
    node: &Arc<Node>,
    entry: &Entry,
    cgroup: &SandboxCgroup,
    restore: Option<Restore>,
) -> Result<Prepared, NodeError> {
    let (node, entry, cgroup) = (node.clone(), entry.clone(), cgroup.clone());
    blocking(move || {
        let limits = &entry.spec.limits;
        let name = entry.files_name();
        let upper = node.pool.find(&name).map_err(internal("find its files"))?;
        // Mounting writes a little, and on a full disk would end in a read-only root.
        node.pool.limit(&name, entry.disk_bytes() + MOUNT_ROOM).map_err(internal("set its disk limit"))?;
        let overlays = files::overlay_mounts(&entry.overlays, &upper.path, entry.stored_uid_base());
        node.pool.unmark_frozen(&name).map_err(internal("prepare its files"))?;
        files::clear_marks(&overlays).map_err(internal("prepare its files"))?;
        cgroup.create(limits).map_err(internal("create its cgroup"))?;
        let shown = node.files_of(entry.name());
        // A restored sandbox continues with the files that it had.
        if restore.is_none() || !shown.exist() {
            shown.write(limits).map_err(internal("write its small files"))?;
        } else {
            shown.take_back().map_err(internal("change the owner of its small files"))?;
        }
        let agentd = match &restore {
            None => shown.keep_program(&node.agentd),
            Some(restore) => shown.keep_program(&restore.program),
        };
        let agentd = agentd.map_err(internal("link agentd into the sandbox's directory"))?;
        let listener = listen(&node, entry.name()).map_err(internal("create its socket"))?;
        let request = SpawnRequest {
            token: 0,
            uid_base: entry.uid_base,
            cgroup: cgroup.birthplace().map(Into::into),
            overlays,
            recipe: node.recipe,
            agentd,
            binds: shown.binds(),
            volumes: volumes::binds(&node.pool, &entry.spec.volumes),
            hostname: entry.spec.hostname.clone(),
            cpus: entry.cpus.clone(),
            tmpfs_bytes: limits.memory_bytes() / 2,
            sysfs: node.has(Feature::SysfsInSandbox),
            network: node.network.families(),
            gated: cgroup.needs_join(),
            restore,
        };
        let mut descriptors = vec![listener];
        let gate = if request.gated {
            let (theirs, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
                .map_err(|errno| internal("create a pipe")(errno.into()))?;
            descriptors.push(theirs);
            Some(ours)
        } else {
            None
        };
        Ok(Prepared { request, descriptors, gate, quota: upper.quota })
    })
    .await
}

/// A listening socket of that name. It exists before agentd does, so the first connection waits in its
/// backlog and no client has to poll; only agentd will hold it, so connections to a dead agentd are refused.
pub(super) fn listen(node: &Node, name: SandboxId) -> io::Result<OwnedFd> {
    let path = node.socket_of(name);
    // Replace the old socket in one step, so that a client that connects meanwhile always finds one.
    let draft = path.with_extension("new");
    if let Err(error) = fs::remove_file(&draft)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(&draft)?)?;
    chown(&draft, None, Some(node.server_gid))?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o660))?;
    rustix::net::listen(&socket, BACKLOG)?;
    fs::rename(&draft, &path)?;
    Ok(socket)
}

pub(super) fn set_disk_limit(node: &Node, entry: &Entry) -> Result<(), NodeError> {
    node.pool.limit(&entry.files_name(), entry.disk_bytes()).map_err(internal("set its disk limit"))
}

/// Whether the pool has room for something new.
pub(super) fn check_room(node: &Node) -> Result<(), NodeError> {
    match node.pool.missing_bytes().map_err(internal("read the free space of the pool"))? {
        0 => Ok(()),
        missing => {
            let message = format!("the disk pool is nearly full: {missing} bytes more must be free");
            Err(NodeError::new(NodeErrorCode::NoCapacity, message))
        }
    }
}

/// Whether the host has as much memory as an image takes while CRIU works on it.
pub(super) fn has_memory(node: &Node, needed: impl FnOnce() -> io::Result<u64>) -> io::Result<()> {
    let Some(available) = scarcity::available_bytes() else { return Ok(()) };
    let needed = needed()?;
    let missing = needed.saturating_add(node.cgroups.reserve_bytes()).saturating_sub(available);
    if needed == 0 || missing == 0 {
        return Ok(());
    }
    let missing = missing.div_ceil(1 << 20);
    Err(io::Error::new(
        io::ErrorKind::OutOfMemory,
        format!("the host lacks {missing} MiB of memory for an encrypted image (`node.encrypt_memory`)"),
    ))
}

pub(super) async fn write_entry(
    node: &Arc<Node>,
    entry: &Entry,
    durability: Durability,
) -> Result<(), NodeError> {
    let (node, entry) = (node.clone(), entry.clone());
    blocking(move || node.journal.write(&entry, durability).map_err(internal("write the journal"))).await
}

pub(super) fn internal(what: &'static str) -> impl Fn(io::Error) -> NodeError {
    move |error| {
        let code = match (error.raw_os_error(), error.kind()) {
            (Some(libc::ENOSPC | libc::EDQUOT), _) | (_, io::ErrorKind::OutOfMemory) => {
                NodeErrorCode::NoCapacity
            }
            _ => NodeErrorCode::Internal,
        };
        NodeError::new(code, format!("could not {what}: {error}"))
    }
}

pub(super) fn refused_ids(error: UidError) -> NodeError {
    let code = match error {
        UidError::Exhausted | UidError::Foreign(_) => NodeErrorCode::NoCapacity,
        UidError::Record(..) => NodeErrorCode::Internal,
    };
    NodeError::new(code, error.to_string())
}

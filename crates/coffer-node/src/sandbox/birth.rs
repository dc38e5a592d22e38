//! From a request to a running agentd.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::sync::Arc;
use std::time::Duration;

use coffer_core::SandboxId;
use coffer_wire::node::{CreateSandbox, NodeError, NodeErrorCode, TemplateInfo};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::cgroup::SandboxCgroup;
use crate::features::Feature;
use crate::files::{self, Inherited};
use crate::journal::{Durability, Entry, Files, Phase};
use crate::network::Listeners;
use crate::node::{Node, blocking};
use crate::snapshots::{self, Manifest};
use crate::spawner::request::{Restore, SpawnRequest};
use crate::spawner::{Progress, SpawnError, Spawned};
use crate::template::{BASE, HOST, OverlaySpec, Template};
use crate::uids::UidError;

use super::process::{Watched, identify};
use super::revival::Resume;

/// Connections that may wait for agentd to accept them.
const BACKLOG: i32 = 1024;
/// What a mount may write beyond the disk limit, until it is done.
const MOUNT_ROOM: u64 = 16 * 1024 * 1024;
/// Spawners that a start may outlive.
pub(super) const SPAWNERS: u32 = 3;
/// A set-up takes milliseconds; this long means that it never will be done.
const PATIENCE: Duration = Duration::from_secs(15);

/// Chooses what a new sandbox is made of and writes it down. Nothing else exists yet.
pub(super) async fn plan(node: &Arc<Node>, spec: &CreateSandbox) -> Result<Entry, NodeError> {
    let (node, spec) = (node.clone(), spec.clone());
    blocking(move || {
        check(&spec)?;
        let resume = Resume::wanted(&spec);
        let (template, overlays, files) = match spec.snapshot {
            Some(snapshot) => {
                let manifest = node.snapshots.get(snapshot)?;
                resume.check(&manifest)?;
                inherit(&node, &manifest, 0)
            }
            None => {
                let Template { info, overlays, .. } = find_template(&node, &spec.template)?;
                (info, overlays, Files::default())
            }
        };
        check_room(&node)?;
        let uid_base = node.uids.take().map_err(refused_ids)?;
        let cpus = node.processors.take(spec.limits.cpu_count);
        let entry =
            Entry { spec, slot: None, template, overlays, uid_base, files, cpus, phase: Phase::Creating };
        if let Err(error) = node.journal.write(&entry, Durability::Cached) {
            node.processors.give_back(&entry.cpus);
            node.uids.give_back(uid_base);
            return Err(internal("write the journal")(error));
        }
        Ok(entry)
    })
    .await
}

/// What a sandbox is made of that gets the files of a snapshot.
pub(super) fn inherit(
    node: &Node,
    snapshot: &Manifest,
    generation: u32,
) -> (TemplateInfo, Vec<OverlaySpec>, Files) {
    // Where all who have an extent are charged for it, what was inherited must leave room for its own.
    let sealed_bytes = if node.pool.charges_makers() { 0 } else { snapshot.info.files_bytes };
    let files = Files {
        generation,
        stored_uid_base: Some(snapshot.stored_uid_base),
        sealed_bytes,
        depth: snapshot.info.depth,
    };
    (snapshot.info.template.clone(), snapshot.overlays.clone(), files)
}

/// Whether the pool has room for something new.
pub(super) fn check_room(node: &Node) -> Result<(), NodeError> {
    match node.pool.missing_bytes().map_err(internal("look at the pool"))? {
        0 => Ok(()),
        missing => {
            let message = format!("the disk pool is nearly full: {missing} bytes more must be free");
            Err(NodeError::new(NodeErrorCode::NoCapacity, message))
        }
    }
}

pub(super) fn check(spec: &CreateSandbox) -> Result<(), NodeError> {
    let refuse = |message: &str| Err(NodeError::new(NodeErrorCode::Unsupported, message));
    if spec.memory && spec.snapshot.is_none() {
        return refuse("memory comes from a snapshot, and none is named");
    }
    // The journal has it, also where a snapshot decides.
    if spec.template.len() > 512 || !spec.template.bytes().all(|byte| byte.is_ascii_graphic()) {
        return refuse("a template's name is at most 512 letters, digits and signs");
    }
    let limits = &spec.limits;
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if spec.hostname.is_empty() || spec.hostname.len() > 64 || !spec.hostname.bytes().all(letters) {
        return refuse("a host name is 1 to 64 letters, digits, hyphens and dots");
    }
    if limits.cpu_count == 0 || limits.memory_mib == 0 || limits.disk_mib == 0 || limits.max_processes == 0 {
        return refuse("a sandbox needs at least 1 processor, 1 MiB of memory and of disk, and 1 process");
    }
    if limits.memory_mib > u64::MAX >> 24 || limits.disk_mib > u64::MAX >> 24 {
        return refuse("a limit is larger than any machine");
    }
    Ok(())
}

pub(crate) fn find_template(node: &Node, name: &str) -> Result<Template, NodeError> {
    let template = find_plain_template(node, name)?;
    match &node.trust {
        Some(trust) => trust.extend(template).map_err(internal("make its trust store")),
        None => Ok(template),
    }
}

fn find_plain_template(node: &Node, name: &str) -> Result<Template, NodeError> {
    // `host` only as the host is now: an older build may lack what a power cut took.
    if name != HOST
        && let Some(template) = node.templates.get(name)
    {
        return Ok(template);
    }
    let unknown = |why: String| NodeError::new(NodeErrorCode::UnknownTemplate, why);
    if name == BASE || name == HOST {
        return node.templates.ensure_host().map_err(|error| {
            unknown(format!("template `{name}` is not built, and the host's own cannot stand in: {error}"))
        });
    }
    Err(unknown(format!("there is no template `{name}`")))
}

/// Makes the writable files of a sandbox for the first time.
pub(super) async fn make_files(node: &Arc<Node>, entry: &Entry) -> Result<(), NodeError> {
    let (node, entry) = (node.clone(), entry.clone());
    blocking(move || {
        if let Some(snapshot) = entry.spec.snapshot {
            return take_files(&node, &entry, &*node.snapshots.get(snapshot)?);
        }
        let upper = node
            .pool
            .create(&entry.files_name(), entry.disk_bytes())
            .map_err(internal("make room for its files"))?;
        let mounts = files::overlay_mounts(&entry.overlays, &upper.path, entry.uid_base);
        files::write_own(&mounts, entry.uid_base, &entry.spec.hostname)
            .map_err(internal("write its own files"))
    })
    .await
}

/// Gives a sandbox the files of a snapshot.
pub(super) fn take_files(node: &Node, entry: &Entry, snapshot: &Manifest) -> Result<(), NodeError> {
    let id = snapshot.info.snapshot;
    let made = node.pool.create_from(&id.to_string(), &entry.files_name(), entry.disk_bytes());
    let upper = made.map_err(|error| match error.kind() {
        // Deleted in this moment.
        io::ErrorKind::NotFound => snapshots::unknown(id),
        _ => internal("take the files of the snapshot")(error),
    })?;
    let mounts = files::overlay_mounts(&entry.overlays, &upper.path, entry.stored_uid_base());
    let own = snapshot.info.sandbox == entry.spec.sandbox;
    let inherited = if own { Inherited::OwnPast } else { Inherited::Anothers };
    files::own_again(&mounts, &snapshot.hostname, &entry.spec.hostname, inherited)
        .map_err(internal("write its own files"))
}

/// A sandbox whose agentd runs.
#[derive(Debug)]
pub(super) struct Born {
    pub(super) watched: Watched,
    pub(super) cgroup: SandboxCgroup,
    pub(super) quota: Option<u64>,
    pub(super) process: crate::journal::Process,
    /// For egress.
    pub(super) listeners: Option<Listeners>,
}

/// Starts a sandbox on its files. On failure no process is left; the rest is for the reaper.
pub(super) async fn start(node: &Arc<Node>, entry: &Entry) -> Result<Born, NodeError> {
    let cgroup = node.cgroups.of(entry.name());
    let mut attempt = 1;
    let (spawned, gate, quota) = loop {
        let Prepared { request, descriptors, gate, quota } = prepare(node, entry, &cgroup, None).await?;
        let error = match node.spawner.spawn(request, descriptors).await {
            Ok(spawned) => break (spawned, gate, quota),
            Err(error) => error,
        };
        let code = match error {
            // The next one is started already. The last one may have got as far as a process.
            SpawnError::Lost => {
                cgroup.kill();
                if attempt < SPAWNERS {
                    attempt += 1;
                    continue;
                }
                NodeErrorCode::Unavailable
            }
            SpawnError::Refused(_) | SpawnError::Garbled => NodeErrorCode::Internal,
        };
        return Err(NodeError::new(code, format!("could not start the sandbox: {error}")));
    };
    let Spawned { pid, pidfd, progress, plain_layers, exited } = spawned;
    let watched = Watched::new(pidfd, Some(exited)).map_err(internal("watch its first process"))?;
    if plain_layers > 0 {
        tracing::warn!(
            sandbox.id = %entry.spec.sandbox,
            "{plain_layers} layers of sandbox {} lie on a file system that cannot map ids",
            entry.spec.sandbox
        );
    }
    // The limits while the child sets itself up: joining waits for the kernel.
    let joining = cgroup.clone();
    let (name, disk_bytes) = (entry.files_name(), entry.disk_bytes());
    let the_node = node.clone();
    let joined = blocking(move || {
        the_node.pool.limit(&name, disk_bytes).map_err(internal("set its disk limit"))?;
        joining.join(pid).map_err(internal("set its limits"))?;
        if let Some(gate) = gate {
            rustix::io::write(&gate, b"go").map_err(|errno| internal("let it go on")(errno.into()))?;
        }
        identify(pid, &the_node.host_boot_id).map_err(internal("look at its first process"))
    });
    let (joined, set_up) = tokio::join!(joined, tokio::time::timeout(PATIENCE, wait_for_agentd(progress)));
    let set_up = set_up.unwrap_or_else(|_| {
        Err(NodeError::new(NodeErrorCode::Internal, "the sandbox did not set itself up in time"))
    });
    // The child's own words say more than the failure to move a process that has ended.
    match set_up.and_then(|listeners| Ok((listeners, joined?))) {
        Ok((listeners, process)) => Ok(Born { watched, cgroup, quota, process, listeners }),
        Err(error) => {
            watched.kill();
            cgroup.kill();
            watched.ended().await;
            watched.reap();
            Err(error)
        }
    }
}

pub(super) struct Prepared {
    pub(super) request: SpawnRequest,
    /// The listener first.
    pub(super) descriptors: Vec<OwnedFd>,
    /// What is written here lets a sandbox go on that had to wait for its limits.
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
        cgroup.create(limits).map_err(internal("make its cgroup"))?;
        let shown = node.files_of(entry.name());
        // One that is restored goes on with those that it had.
        if restore.is_none() || !shown.exist() {
            shown.write(limits).map_err(internal("write its small files"))?;
        } else {
            shown.take_back().map_err(internal("own its small files"))?;
        }
        let agentd = match &restore {
            None => shown.keep_program(&node.agentd),
            Some(restore) => shown.keep_program(&restore.program),
        };
        let agentd = agentd.map_err(internal("keep its agentd"))?;
        let listener = listen(&node, entry.name()).map_err(internal("make its socket"))?;
        let request = SpawnRequest {
            token: 0,
            uid_base: entry.uid_base,
            cgroup: cgroup.birthplace().map(Into::into),
            overlays,
            recipe: node.recipe,
            agentd,
            binds: shown.binds(),
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
                .map_err(|errno| internal("make a pipe")(errno.into()))?;
            descriptors.push(theirs);
            Some(ours)
        } else {
            None
        };
        Ok(Prepared { request, descriptors, gate, quota: upper.quota })
    })
    .await
}

/// A listening socket of that name. It exists before agentd does, so the first connection
/// waits in its backlog and nobody polls; only agentd will hold it, so a dead agentd refuses.
pub(super) fn listen(node: &Node, name: SandboxId) -> io::Result<OwnedFd> {
    let path = node.socket_of(name);
    // Takes the place of the one before at once: nobody who connects meanwhile finds nothing.
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

/// Ends when agentd runs, with the sockets of its network, or with the reason why it does not.
async fn wait_for_agentd(progress: Progress) -> Result<Option<Listeners>, NodeError> {
    match progress.finish().await.map_err(internal("watch its set-up"))? {
        Ok(sockets) => Ok(Listeners::of(sockets)),
        Err(why) => {
            let message = format!("the sandbox could not set itself up: {why}");
            Err(NodeError::new(NodeErrorCode::Internal, message))
        }
    }
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

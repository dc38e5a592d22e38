//! What the spawner does for every process that it creates, a sandbox's first or CRIU.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::net::SendFlags;

use super::overlay::{self, IdMap};
use super::packet;
use super::request::SpawnRequest;
use super::setup_error::{Doing, Quoted, SetupError};

/// A new process, as reported to the node.
pub(super) struct Made {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) progress: OwnedFd,
    pub(super) plain_layers: u32,
}

pub(super) fn open_cgroup(request: &SpawnRequest) -> Result<Option<OwnedFd>, SetupError> {
    let Some(path) = &request.cgroup else { return Ok(None) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    Ok(Some(opened.doing(format_args!("open the cgroup {}", Quoted(path)))?))
}

/// Creates the mounts that need the host's rights, and sends them.
pub(super) fn send_mounts(
    request: &SpawnRequest,
    ids: &IdMap<'_>,
    child: &OwnedFd,
) -> Result<u32, SetupError> {
    let mut plain_layers = 0;
    let mut mounts = Vec::new();
    for overlay in &request.overlays {
        let made = overlay::make(overlay, ids, request.recipe)?;
        plain_layers += made.plain_layers;
        mounts.push(made.mount);
    }
    mounts.push(overlay::read_only_file(&request.agentd)?);
    for bind in &request.binds {
        mounts.push(overlay::read_only_file(&bind.source)?);
    }
    for volume in &request.volumes {
        mounts.push(overlay::volume(volume, ids)?);
    }
    let borrowed: Vec<_> = mounts.iter().map(AsFd::as_fd).collect();
    packet::send(child, b"mounts", &borrowed, SendFlags::empty()).doing("send the mounts")?;
    Ok(plain_layers)
}

/// When the whole host is short of memory, the kernel kills sandboxes first. Written by the host's root, it
/// is the lowest value that a process inside can set.
pub(super) fn prefer_as_victim(pid: i32) -> Result<(), SetupError> {
    let file = rustix::fs::open(
        format!("/proc/{pid}/oom_score_adj"),
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .doing("open the child's OOM score")?;
    rustix::io::write(file, b"500").doing("raise the child's OOM score")?;
    Ok(())
}

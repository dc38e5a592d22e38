//! Mounts that the child creates in its own mount namespace, on a root that may hold anything: the last run
//! of the sandbox could have left a symbolic link where `/proc` should be. So every place is opened below the
//! root's descriptor without following links, and mounts are attached to descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags,
};

use super::kernel;
use super::request::SpawnRequest;
use super::setup_error::{Doing, Quoted, SetupError};

/// Mounts that came from the spawner, in the order of the request.
pub(super) struct Handed {
    pub(super) overlays: Vec<OwnedFd>,
    pub(super) agentd: OwnedFd,
    pub(super) binds: Vec<OwnedFd>,
    pub(super) volumes: Vec<OwnedFd>,
}

pub(super) const AGENTD: &str = "run/coffer/agentd";

/// From the host's `/dev`; a user namespace cannot create device nodes.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Terminals of one sandbox. The kernel has some three thousand for all of them together.
const TERMINALS: &str = "256";

const DEVICE_LINKS: [(&str, &str); 5] = [
    ("pts/ptmx", "ptmx"),
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
];

/// Covered by empty mounts: they expose the host, or reach its kernel.
const HIDDEN: [&str; 20] = [
    "proc/acpi",
    "proc/asound",
    "proc/cmdline",
    "proc/kcore",
    "proc/key-users",
    "proc/keys",
    "proc/kmsg",
    "proc/latency_stats",
    "proc/sched_debug",
    "proc/scsi",
    "proc/timer_list",
    "proc/timer_stats",
    "sys/firmware",
    "sys/fs/btrfs",
    "sys/fs/ext4",
    "sys/fs/xfs",
    // Loop devices name their backing files.
    "sys/devices/virtual/block",
    "sys/devices/virtual/dmi",
    "sys/devices/virtual/powercap",
    "sys/kernel/security",
];

const READ_ONLY: [&str; 5] = ["proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger"];

/// Builds the whole tree and makes it the root. The host's tree is not reachable afterwards.
pub(super) fn build(request: &SpawnRequest, handed: Handed) -> Result<(), SetupError> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).doing("leave the host's mount propagation")?;

    let mut overlays = handed.overlays.into_iter();
    let root =
        overlays.next().ok_or_else(|| SetupError::new("find a root among the overlays", Errno::INVAL))?;
    // On top of the old root, which absolute paths still start from until the pivot.
    rustix::mount::move_mount(&root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .doing("place the root")?;
    for (overlay, mount) in request.overlays.iter().skip(1).zip(overlays) {
        let target = directory(root.as_fd(), &overlay.target)?;
        attach(&mount, &target).doing(format_args!("place the overlay on {}", Quoted(&overlay.target)))?;
    }

    let plain = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let inert = plain | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let read_only = inert | MountAttrFlags::MOUNT_ATTR_RDONLY;
    mount_on(root.as_fd(), "proc", "proc", &[], inert)?;
    // Kernels refuse sysfs to a user namespace where the host itself sees only a part of it.
    if !request.sysfs || mount_on(root.as_fd(), "sys", "sysfs", &[], read_only).is_err() {
        mount_on(root.as_fd(), "sys", "tmpfs", &[("mode", "0555"), ("size", "4k")], read_only)?;
    }
    devices(root.as_fd(), inert)?;
    let size = request.tmpfs_bytes.to_string();
    mount_on(root.as_fd(), "dev/shm", "tmpfs", &[("mode", "1777"), ("size", &size)], plain)?;
    // Some kernels have no POSIX queues.
    let _ = mount_on(root.as_fd(), "dev/mqueue", "mqueue", &[], inert);
    // Smaller, so that both can be full and leave memory to run in.
    let size = (request.tmpfs_bytes / 4).to_string();
    mount_on(root.as_fd(), "run", "tmpfs", &[("mode", "0755"), ("size", &size)], plain)?;
    directory(root.as_fd(), Path::new("run/lock"))?;

    directory(root.as_fd(), Path::new("run/coffer"))?;
    empty_file(root.as_fd(), AGENTD)?;
    cover(root.as_fd(), Path::new(AGENTD), &handed.agentd)?;
    mask(root.as_fd())?;
    for (bind, mount) in request.binds.iter().zip(&handed.binds) {
        cover(root.as_fd(), &bind.target, mount)?;
    }
    for (volume, mount) in request.volumes.iter().zip(&handed.volumes) {
        let target = place_for(root.as_fd(), &volume.target)?;
        attach(mount, &target).doing(format_args!("mount a volume on {}", Quoted(&volume.target)))?;
    }
    pivot(&root)
}

fn devices(root: BorrowedFd<'_>, inert: MountAttrFlags) -> Result<(), SetupError> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mount_on(root, "dev", "tmpfs", &[("mode", "0755"), ("size", "64k")], attributes)?;
    for device in DEVICES {
        let path = format!("dev/{device}");
        empty_file(root, &path)?;
        let host = host_copy(&format!("/dev/{device}"))?;
        cover(root, Path::new(&path), &host)?;
    }
    for (target, link) in DEVICE_LINKS {
        rustix::fs::symlinkat(target, root, format!("dev/{link}"))
            .doing(format_args!("link `/dev/{link}`"))?;
    }
    let options = [("ptmxmode", "0666"), ("mode", "0620"), ("gid", "5"), ("max", TERMINALS)];
    let terminals = inert.difference(MountAttrFlags::MOUNT_ATTR_NODEV);
    mount_on(root, "dev/pts", "devpts", &options, terminals)
}

fn mask(root: BorrowedFd<'_>) -> Result<(), SetupError> {
    for path in READ_ONLY {
        let Some(place) = existing(root, Path::new(path))? else { continue };
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let copy = rustix::mount::open_tree(&place, "", flags).doing(format_args!("copy `/{path}`"))?;
        let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
        kernel::set_mount_attributes(&copy, attributes | libc::MOUNT_ATTR_NOEXEC, None)
            .doing(format_args!("make `/{path}` read-only"))?;
        attach(&copy, &place).doing(format_args!("cover `/{path}`"))?;
    }
    for path in HIDDEN {
        let Some(place) = existing(root, Path::new(path))? else { continue };
        let stat = rustix::fs::fstat(&place).doing(format_args!("read the type of `/{path}`"))?;
        let cover = if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
            empty_cover().doing(format_args!("create a cover for `/{path}`"))?
        } else {
            host_copy("/dev/null")?
        };
        attach(&cover, &place).doing(format_args!("cover `/{path}`"))?;
    }
    Ok(())
}

fn empty_cover() -> Result<OwnedFd, Errno> {
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NODEV;
    fresh("tmpfs", &[("mode", "0555"), ("size", "4k")], attributes)
}

/// Whether the mount there, below the root, is the same for every sandbox: devices and covers.
fn is_standard(path: &Path) -> bool {
    let device =
        path.strip_prefix("dev").is_ok_and(|name| DEVICES.iter().any(|device| name == Path::new(device)));
    device || HIDDEN.iter().any(|hidden| path == Path::new(hidden))
}

/// Whether a mount of a sandbox comes from outside of it, other than those of its request: an image of it
/// cannot hold that.
pub(crate) fn comes_from_outside(path: &Path) -> bool {
    is_standard(path) || path == Path::new(AGENTD)
}

/// Recreates what [`build`] mounts there.
pub(super) fn stand_in(path: &Path, is_directory: bool) -> Result<OwnedFd, SetupError> {
    if !is_standard(path) {
        return Err(SetupError::new(format_args!("find the mount for {}", Quoted(path)), Errno::NOENT));
    }
    match (path.strip_prefix("dev"), is_directory) {
        (Ok(device), _) => host_copy(&format!("/dev/{}", device.display())),
        (Err(_), false) => host_copy("/dev/null"),
        (Err(_), true) => empty_cover().doing(format_args!("create a cover for {}", Quoted(path))),
    }
}

/// Makes `root` the root and detaches the old one.
fn pivot(root: &OwnedFd) -> Result<(), SetupError> {
    rustix::process::fchdir(root).doing("enter the root")?;
    // With both arguments the same, the old root ends up on top of the new one, and is taken off it.
    rustix::process::pivot_root(".", ".").doing("pivot to the root")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).doing("detach the host's tree")?;
    rustix::process::chdir("/").doing("enter the new root")
}

/// A device of the host's. Read-only keeps its node as it is, times included; the device itself can be
/// written to all the same.
fn host_copy(path: &str) -> Result<OwnedFd, SetupError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copy = rustix::mount::open_tree(CWD, path, flags).doing(format_args!("open the host's `{path}`"))?;
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
    kernel::set_mount_attributes(&copy, attributes, None)
        .doing(format_args!("make the node `{path}` read-only"))?;
    Ok(copy)
}

/// A new file system that is mounted nowhere yet.
pub(super) fn fresh(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&context, "source", kind)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(&context, *key, *value)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

fn mount_on(
    root: BorrowedFd<'_>,
    path: &str,
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<(), SetupError> {
    let mount = fresh(kind, options, attributes).doing(format_args!("create a {kind} for `/{path}`"))?;
    let target = directory(root, Path::new(path))?;
    attach(&mount, &target).doing(format_args!("mount {kind} on `/{path}`"))
}

fn attach(mount: &OwnedFd, target: &OwnedFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", target, "", flags)
}

/// Mounts `mount` over a file if it exists; a missing file needs no cover.
fn cover(root: BorrowedFd<'_>, path: &Path, mount: &OwnedFd) -> Result<(), SetupError> {
    match existing(root, path)? {
        Some(target) => attach(mount, &target).doing(format_args!("cover {}", Quoted(path))),
        None => Ok(()),
    }
}

fn existing(root: BorrowedFd<'_>, path: &Path) -> Result<Option<OwnedFd>, SetupError> {
    match open_below(root, path, OFlags::PATH) {
        Ok(place) => Ok(Some(place)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(SetupError::new(format_args!("open {}", Quoted(path)), errno)),
    }
}

fn open_below(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    // The kernel asks for a retry after a concurrent rename; no process can rename here, so a few are enough.
    for _ in 0..8 {
        match rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

/// What happens to a file or a link where a directory should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InTheWay {
    Removed,
    /// It belongs to the sandbox's users.
    Refused,
}

/// A directory below `root`, created if it is missing, also in place of something else.
fn directory(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, SetupError> {
    descend(root, path, InTheWay::Removed)
}

/// How a set-up fails because the users' own files are in the way of a volume.
pub(crate) const IN_THE_WAY: &str = "mount a volume where a file or a link is:";

/// A directory for a mount of the users' choice, created if it is missing.
fn place_for(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, SetupError> {
    descend(root, path, InTheWay::Refused)
}

fn descend(root: BorrowedFd<'_>, path: &Path, in_the_way: InTheWay) -> Result<OwnedFd, SetupError> {
    let here = OFlags::PATH | OFlags::DIRECTORY;
    let mut at = open_below(root, Path::new("."), here).doing("open the root")?;
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        let doing = || format!("create the directory {}", Quoted(path));
        let next = match open_below(at.as_fd(), Path::new(name), here) {
            Err(Errno::NOENT) => None,
            Err(Errno::NOTDIR | Errno::LOOP) if in_the_way == InTheWay::Removed => {
                rustix::fs::unlinkat(&at, name, AtFlags::empty()).doing(doing())?;
                None
            }
            Err(errno @ (Errno::NOTDIR | Errno::LOOP)) => {
                return Err(SetupError::new(format_args!("{IN_THE_WAY} {}", Quoted(path)), errno));
            }
            found => Some(found.doing(doing())?),
        };
        at = match next {
            Some(next) => next,
            None => {
                rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)).doing(doing())?;
                open_below(at.as_fd(), Path::new(name), here).doing(doing())?
            }
        };
    }
    Ok(at)
}

fn empty_file(root: BorrowedFd<'_>, path: &str) -> Result<(), SetupError> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(root, path, flags, Mode::from_raw_mode(0o444))
        .doing(format_args!("make `/{path}`"))?;
    Ok(())
}

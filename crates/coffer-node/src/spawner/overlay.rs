//! Mounts that the spawner creates with the host's rights and passes to the child as descriptors. None of
//! them is ever attached to the host's tree, so they end with the sandbox.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};

use super::kernel::{self, Cloned};
use super::request::{Layer, LayerForm, OverlayMount, OverlayRecipe, VolumeBind};
use super::setup_error::{Doing, Quoted, SetupError};

pub(super) const IDS: u32 = 65_536;

/// A sandbox's user namespace, for mapping layers into it.
pub(super) struct IdMap<'a> {
    pub(super) user_namespace: BorrowedFd<'a>,
    pub(super) uid_base: u32,
}

/// An overlay that is mounted nowhere yet, and how many of its layers could not be id-mapped.
pub(super) struct Detached {
    pub(super) mount: OwnedFd,
    pub(super) plain_layers: u32,
}

pub(super) fn make(
    overlay: &OverlayMount,
    ids: &IdMap<'_>,
    recipe: OverlayRecipe,
) -> Result<Detached, SetupError> {
    // Ids are mapped on each layer, because an overlay cannot be id-mapped itself: it shows what its layers show.
    let mut plain_layers = 0;
    let mut lowers = Vec::with_capacity(overlay.layers.len());
    for layer in &overlay.layers {
        let (lower, mapped) = lower(layer, ids)?;
        plain_layers += u32::from(!mapped);
        lowers.push(lower);
    }
    // A detached copy of the directory: the overlay's options, which the sandbox can read, then name paths
    // below it and not its location on the host.
    let writable = writable(overlay, ids)?;
    let open = |name: &str| {
        rustix::fs::openat(&writable, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .doing(format_args!("open `{name}` in {}", Quoted(&overlay.writable)))
    };
    let (upper, work) = (open(&overlay.upper)?, open(&overlay.work)?);
    let attached = match recipe.layers {
        LayerForm::Detached => None,
        _ => Some(Attached::on(&overlay.writable, lowers.iter().chain([&writable]))?),
    };
    let mount = mount(&lowers, &upper, &work, recipe)
        .map_err(|refusal| refusal.of(format_args!("create the overlay for {}", Quoted(&overlay.target))))?;
    drop(attached);
    Ok(Detached { mount, plain_layers })
}

/// Layers that are attached in this process's own mount namespace until this is dropped: kernels before 6.15
/// accept no others. The overlay keeps its own copies.
struct Attached<'a> {
    at: &'a Path,
    count: usize,
}

impl<'a> Attached<'a> {
    /// Puts all of them on one directory, on top of each other: they are found by descriptor.
    fn on(at: &'a Path, mounts: impl Iterator<Item = &'a OwnedFd>) -> Result<Self, SetupError> {
        let mut attached = Self { at, count: 0 };
        for mount in mounts {
            rustix::mount::move_mount(mount, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
                .doing(format_args!("attach a layer on {}", Quoted(at)))?;
            attached.count += 1;
        }
        Ok(attached)
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        for _ in 0..self.count {
            // Layers that cannot be unmounted end with this process's mount namespace.
            let _ = rustix::mount::unmount(self.at, UnmountFlags::DETACH);
        }
    }
}

/// A host file as a separate read-only mount.
pub(super) fn read_only_file(path: &Path) -> Result<OwnedFd, SetupError> {
    let file = detached_copy(path)?;
    let attributes = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    kernel::set_mount_attributes(&file, attributes, None)
        .doing(format_args!("make {} read-only", Quoted(path)))?;
    Ok(file)
}

/// A volume as the sandbox sees it. Other sandboxes write to it too, so set-uid programs and devices in it
/// have no effect.
pub(super) fn volume(bind: &VolumeBind, ids: &IdMap<'_>) -> Result<OwnedFd, SetupError> {
    let mount = detached_copy(&bind.source)?;
    let mut attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    if bind.read_only {
        attributes |= libc::MOUNT_ATTR_RDONLY;
    }
    kernel::set_mount_attributes(&mount, attributes, Some(ids.user_namespace))
        .doing(format_args!("map the ids of the volume for {}", Quoted(&bind.target)))?;
    Ok(mount)
}

/// Copies this mount only, not mounts below it: what the host mounts there is not the sandbox's.
fn detached_copy(path: &Path) -> Result<OwnedFd, SetupError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(CWD, path, flags).doing(format_args!("open {}", Quoted(path)))
}

/// The writable files. Files of another sandbox are mapped, and the host's ids with them: root creates
/// whiteouts and other files of the overlay itself, and moved files of the host keep their owners.
fn writable(overlay: &OverlayMount, ids: &IdMap<'_>) -> Result<OwnedFd, SetupError> {
    let mount = detached_copy(&overlay.writable)?;
    if overlay.stored_uid_base != ids.uid_base {
        let shifted =
            user_namespace(&format!("{}\n0 0 {IDS}", range(overlay.stored_uid_base, ids.uid_base)))?;
        kernel::set_mount_attributes(&mount, 0, Some(shifted.as_fd()))
            .doing(format_args!("map the ids of {}", Quoted(&overlay.writable)))?;
    }
    Ok(mount)
}

/// A layer as the sandbox sees it, and whether it was mapped as wanted.
///
/// The host's own files are not mapped. Their owners are ids that the sandbox does not have, so that no
/// process inside is their owner or in their group, and the capabilities of root inside do not reach them:
/// only the permissions for others apply, as they are on the host.
fn lower(layer: &Layer, ids: &IdMap<'_>) -> Result<(OwnedFd, bool), SetupError> {
    if layer.public_only {
        return Ok((plain(layer)?, true));
    }
    match mapped(layer, ids)? {
        Some(mapped) => Ok((mapped, true)),
        None => Ok((plain(layer)?, false)),
    }
}

/// A layer whose files belong to the sandbox's users; `None` if its file system cannot map ids.
fn mapped(layer: &Layer, ids: &IdMap<'_>) -> Result<Option<OwnedFd>, SetupError> {
    let mount = detached_copy(&layer.path)?;
    let read_only = libc::MOUNT_ATTR_RDONLY;
    let mapped = if layer.uid_base == 0 {
        kernel::set_mount_attributes(&mount, read_only, Some(ids.user_namespace))
    } else {
        let shifted = user_namespace(&range(layer.uid_base, ids.uid_base))?;
        kernel::set_mount_attributes(&mount, read_only, Some(shifted.as_fd()))
    };
    match mapped {
        Ok(()) => Ok(Some(mount)),
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM) => Ok(None),
        Err(errno) => Err(SetupError::new(format_args!("map the ids of {}", Quoted(&layer.path)), errno)),
    }
}

/// A layer whose files appear as owned by `nobody`.
fn plain(layer: &Layer) -> Result<OwnedFd, SetupError> {
    let mount = detached_copy(&layer.path)?;
    kernel::set_mount_attributes(&mount, libc::MOUNT_ATTR_RDONLY, None)
        .doing(format_args!("make {} read-only", Quoted(&layer.path)))?;
    Ok(mount)
}

/// A line of an id map: `inside..inside + 65536` map to `outside..`.
pub(super) fn range(inside: u32, outside: u32) -> String {
    format!("{inside} {outside} {IDS}")
}

/// A user namespace with that id map.
pub(super) fn user_namespace(map: &str) -> Result<OwnedFd, SetupError> {
    // SAFETY: the spawner has one thread.
    match unsafe { kernel::clone_into(libc::CLONE_NEWUSER, None) }.doing("create a user namespace")? {
        Cloned::Child => loop {
            // Lives only until its namespace is open.
            // SAFETY: waits for a signal and touches nothing.
            unsafe { libc::pause() };
        },
        Cloned::Parent { pid, pidfd } => {
            let namespace = map_ids(pid, map);
            let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
            let _ = rustix::process::waitid(
                rustix::process::WaitId::PidFd(pidfd.as_fd()),
                rustix::process::WaitIdOptions::EXITED,
            );
            namespace
        }
    }
}

/// Writes both id maps of a new user namespace and opens it.
pub(super) fn map_ids(pid: i32, map: &str) -> Result<OwnedFd, SetupError> {
    for file in ["uid_map", "gid_map"] {
        std::fs::write(format!("/proc/{pid}/{file}"), map).doing(format_args!("write the `{file}`"))?;
    }
    let path = format!("/proc/{pid}/ns/user");
    rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).doing("open the user namespace")
}

/// Why the kernel refused an overlay.
pub(super) struct Refusal {
    pub(super) errno: Errno,
    /// The kernel's own words, if it left any.
    pub(super) said: Option<String>,
}

impl Refusal {
    fn of(self, doing: impl Display) -> SetupError {
        match self.said {
            Some(said) => SetupError::new(format_args!("{doing} ({said})"), self.errno),
            None => SetupError::new(doing, self.errno),
        }
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.said {
            Some(said) => write!(f, "{} ({said})", self.errno),
            None => write!(f, "{}", self.errno),
        }
    }
}

/// Describes the overlay to the kernel as `recipe` says, without attaching it yet.
pub(super) fn mount(
    lowers: &[OwnedFd],
    upper: &OwnedFd,
    work: &OwnedFd,
    recipe: OverlayRecipe,
) -> Result<OwnedFd, Refusal> {
    let context = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)
        .map_err(|errno| Refusal { errno, said: None })?;
    describe(&context, lowers, upper, work, recipe)
        .map_err(|errno| Refusal { errno, said: context_message(&context) })?;
    // Before Linux 6.5 any option can be set, and a bad one is refused only here, with a line in the kernel's log.
    let made = rustix::mount::fsconfig_create(&context).and_then(|()| {
        rustix::mount::fsmount(
            &context,
            FsMountFlags::FSMOUNT_CLOEXEC,
            MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOATIME,
        )
    });
    made.map_err(|errno| Refusal { errno, said: context_message(&context).or_else(kernel_log) })
}

fn describe(
    context: &OwnedFd,
    lowers: &[OwnedFd],
    upper: &OwnedFd,
    work: &OwnedFd,
    recipe: OverlayRecipe,
) -> Result<(), Errno> {
    // Without `redirect_dir` renaming a directory of a layer fails with EXDEV.
    let options = [("source", "overlay"), ("redirect_dir", "on"), ("index", "off"), ("metacopy", "off")];
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(context, key, value)?;
    }
    if recipe.volatile {
        // Files of a sandbox that ends go with it, so its last process need not wait until all of them
        // are on disk; the node writes them out when it stops one to keep them.
        rustix::mount::fsconfig_set_flag(context, "volatile")?;
    }
    let set = |key: &str, fd: &OwnedFd| match recipe.layers {
        LayerForm::Detached | LayerForm::Descriptors => rustix::mount::fsconfig_set_fd(context, key, fd),
        LayerForm::Appended | LayerForm::Joined => {
            rustix::mount::fsconfig_set_string(context, key, name_of(fd))
        }
    };
    if recipe.layers == LayerForm::Joined {
        let joined = lowers.iter().map(name_of).collect::<Vec<_>>().join(":");
        rustix::mount::fsconfig_set_string(context, "lowerdir", joined)?;
    } else {
        for lower in lowers {
            set("lowerdir+", lower)?;
        }
    }
    set("upperdir", upper)?;
    set("workdir", work)
}

/// Contains neither `:` nor `,`, whatever the path on the host.
fn name_of(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The kernel's messages in the mount's own log; overlays write them since Linux 6.5.
fn context_message(context: &OwnedFd) -> Option<String> {
    let mut text = [0u8; 256];
    let read = File::from(context.try_clone().ok()?).read(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text[..read]).trim().to_string();
    (!text.is_empty()).then_some(text)
}

/// The last messages of overlays in the kernel log, where older kernels write their reasons.
fn kernel_log() -> Option<String> {
    const READ_ALL: libc::c_int = 3;
    let mut text = vec![0u8; 64 * 1024];
    let room = libc::c_int::try_from(text.len()).ok()?;
    // SAFETY: the kernel writes at most `room` bytes into the buffer, which is that long.
    let read = unsafe { libc::klogctl(READ_ALL, text.as_mut_ptr().cast(), room) };
    let text = String::from_utf8_lossy(&text[..usize::try_from(read).ok()?]).into_owned();
    let last = text.lines().rev().find_map(|line| Some(line[line.find("overlayfs: ")?..].to_string()));
    last.map(|line| line.trim().to_string())
}

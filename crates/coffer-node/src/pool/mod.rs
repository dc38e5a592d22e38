//! The pool: storage for the writable files of sandboxes, and for volumes.
//!
//! At best a btrfs on a loop image in the data directory: each sandbox has a subvolume with a quota, created
//! and deleted by one call each. The image is fully allocated in advance (a sparse one on a full disk would
//! turn the whole pool read-only) and locked for the node's life. If that is not possible, the pool uses
//! plain directories without a limit, and the node reports it.

mod btrfs;
mod directory;
mod loop_device;
mod pressure;
mod snapshots;
mod volumes;

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use coffer_core::sync::Mutex;
use rustix::fs::FlockOperation;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::PoolChoice;
use crate::features::{Feature, Features};

pub(crate) use snapshots::Sealing;

const GIB: u64 = 1024 * 1024 * 1024;
const SMALLEST: u64 = 2 * GIB;
const LARGEST: u64 = 64 * GIB;
/// Bytes to leave free on the disk that the image is created on.
const DISK_RESERVE: u64 = GIB;
/// Below this much free space no sandbox is created: existing ones need room to continue.
const FLOOR: u64 = 256 * 1024 * 1024;
/// At most how often to wait for deleted files.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

const IMAGE: &str = "pool.img";
const DRAFT: &str = "pool.img.making";
const UPPERS: &str = "s";
const SNAPSHOTS: &str = "snapshots";
const VOLUMES: &str = "v";
/// Files of sandboxes that are being created from a snapshot, and volumes that are being created or deleted.
const DRAFTS: &str = "d";
/// A mark for each sandbox whose processes are frozen.
const FROZEN: &str = "z";
const SMALL_FILES: &str = "f";
const BINARIES: &str = "bin";
const SCRATCH: &str = "probe";

#[derive(Debug, thiserror::Error)]
pub(crate) enum PoolError {
    #[error("could not {doing} `{}`", .path.display())]
    Directory { doing: &'static str, path: PathBuf, source: io::Error },
    /// Sandboxes may have files in it, so it must not be ignored.
    #[error("the pool image `{}` cannot be used", .image.display())]
    Image { image: PathBuf, source: ImageError },
    /// The operator configured exactly this size, so do not fall back to another.
    #[error(transparent)]
    Size(SizeError),
}

/// Why there is no image, or none that can be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error("the node is configured to use plain directories")]
    NotWanted,
    #[error("the node is configured not to use btrfs")]
    NoBtrfs,
    #[error("existing sandboxes are in plain directories")]
    InDirectories,
    #[error("another node uses it")]
    InUse,
    #[error("could not {doing}")]
    Step { doing: &'static str, source: io::Error },
    #[error("could not run `mkfs.btrfs` (package btrfs-progs)")]
    NoMkfs(#[source] io::Error),
    #[error("`mkfs.btrfs` failed: {0}")]
    Mkfs(String),
    #[error(transparent)]
    Size(#[from] SizeError),
}

/// Why an image of some size cannot be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SizeError {
    #[error("could not read the free space of the disk")]
    Unknown(#[source] io::Error),
    #[error(
        "a pool of {size_mib} MiB does not fit: {free_mib} MiB are free, of which {} must stay free",
        DISK_RESERVE >> 20
    )]
    TooLarge { size_mib: u64, free_mib: u64 },
}

/// Writable files of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Upper {
    pub(crate) path: PathBuf,
    /// Its quota group, where there are quotas.
    pub(crate) quota: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Pool {
    root: PathBuf,
    uppers: File,
    /// The sysfs directory with the current usage of each sandbox.
    quota_groups: Option<PathBuf>,
    /// When deleted files were last waited for.
    made_room: Mutex<Option<Instant>>,
    /// Whether large sandboxes are held back. True at first: an earlier node may have done so.
    tight: AtomicBool,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Btrfs {
        /// Held with its lock as long as the node lives.
        _image: File,
        image_path: PathBuf,
        /// Quota groups of deleted subvolumes that the kernel has not released yet.
        stale: Mutex<VecDeque<u64>>,
    },
    Directory,
}

impl Pool {
    /// Opens the pool of `data_dir`, or creates it.
    pub(crate) fn open(
        data_dir: &Path,
        choice: &PoolChoice,
        features: &mut Features,
    ) -> Result<Self, PoolError> {
        let root = data_dir.join("pool");
        make_directory(&root)?;
        let kind = choose(data_dir, &root, choice, features)?.unwrap_or_else(|why| {
            features.lack(Feature::Btrfs, coffer_core::chain(&why));
            Kind::Directory
        });
        for name in [UPPERS, BINARIES, SMALL_FILES, SNAPSHOTS, VOLUMES, DRAFTS, FROZEN] {
            make_directory(&root.join(name))?;
        }
        let uppers = directory::open(&root.join(UPPERS)).map_err(doing("open", &root.join(UPPERS)))?;
        let quota_groups = match kind {
            Kind::Btrfs { .. } => btrfs::quota_groups(&uppers).ok(),
            Kind::Directory => None,
        };
        if quota_groups.as_deref().is_some_and(|groups| !btrfs::charges_makers(groups)) {
            features.lack(Feature::BtrfsSimpleQuotas, "the pool counts by classic quota groups");
        }
        let (made_room, tight) = (Mutex::new(None), AtomicBool::new(true));
        Ok(Self { root, uppers, quota_groups, made_room, tight, kind })
    }

    /// Whether disk limits are enforced.
    pub(crate) const fn has_quota(&self) -> bool {
        matches!(self.kind, Kind::Btrfs { .. })
    }

    /// Size of the pool; `None` if it shares the host's disk.
    pub(crate) fn size_bytes(&self) -> Option<u64> {
        let stat = self.has_quota().then(|| rustix::fs::fstatvfs(&self.uppers).ok())??;
        Some(stat.f_blocks.saturating_mul(stat.f_frsize))
    }

    /// How much of it is free.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let stat = self.has_quota().then(|| rustix::fs::fstatvfs(&self.uppers).ok())??;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// A directory for programs that sandboxes are shown.
    pub(crate) fn binaries(&self) -> PathBuf {
        self.root.join(BINARIES)
    }

    /// A directory for the small files that sandboxes are shown.
    pub(crate) fn small_files(&self) -> PathBuf {
        self.root.join(SMALL_FILES)
    }

    /// An empty directory on the file system that sandboxes' files are on, to try things in.
    pub(crate) fn scratch(&self) -> io::Result<PathBuf> {
        let path = self.root.join(SCRATCH);
        self.clear_scratch()?;
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(path)
    }

    /// Removes what the probe left.
    pub(crate) fn clear_scratch(&self) -> io::Result<()> {
        match fs::remove_dir_all(self.root.join(SCRATCH)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// How many bytes must be freed before anything new should be created; zero if there is enough room.
    pub(crate) fn missing_bytes(&self) -> io::Result<u64> {
        let missing = || -> io::Result<u64> {
            let stat = rustix::fs::fstatvfs(&self.uppers)?;
            Ok(FLOOR.saturating_sub(stat.f_bavail.saturating_mul(stat.f_frsize)))
        };
        if missing()? == 0 {
            return Ok(0);
        }
        // Recently deleted data may not be free yet. Sync once for all callers: on a full disk this takes
        // seconds.
        let mut tried = self.made_room.lock();
        if tried.is_none_or(|tried| tried.elapsed() > ROOM_PAUSE) {
            self.sync()?;
            *tried = Some(Instant::now());
        }
        missing()
    }

    /// Creates an empty place for a sandbox, owned by root and closed to others.
    pub(crate) fn create(&self, name: &str, limit_bytes: u64) -> io::Result<Upper> {
        let path = self.root.join(UPPERS).join(name);
        let quota = match self.kind {
            Kind::Directory => {
                fs::DirBuilder::new().mode(0o700).create(&path)?;
                None
            }
            Kind::Btrfs { .. } => {
                btrfs::create_subvolume(&self.uppers, OsStr::new(name))?;
                let limited = directory::open(&path).and_then(|inside| {
                    btrfs::limit(&inside, limit_bytes)?;
                    btrfs::subvolume_id(&inside)
                });
                Some(limited.inspect_err(|_| {
                    let _ = btrfs::delete_subvolume(&self.uppers, OsStr::new(name));
                })?)
            }
        };
        Ok(Upper { path, quota })
    }

    /// Changes the limit of a place from [`create`](Self::create).
    pub(crate) fn limit(&self, name: &str, limit_bytes: u64) -> io::Result<()> {
        match self.kind {
            Kind::Directory => Ok(()),
            Kind::Btrfs { .. } => {
                btrfs::limit(&directory::open(&self.root.join(UPPERS).join(name))?, limit_bytes)
            }
        }
    }

    /// Finds a place that [`create`](Self::create) made earlier.
    pub(crate) fn find(&self, name: &str) -> io::Result<Upper> {
        let path = self.root.join(UPPERS).join(name);
        let inside = directory::open(&path)?;
        let quota = match self.kind {
            Kind::Directory => None,
            Kind::Btrfs { .. } => Some(btrfs::subvolume_id(&inside)?),
        };
        Ok(Upper { path, quota })
    }

    /// Deletes a sandbox's files; succeeds if they are gone.
    pub(crate) fn delete(&self, name: &str) -> io::Result<()> {
        let Kind::Btrfs { stale, .. } = &self.kind else { return directory::delete_tree(&self.uppers, name) };
        let upper = match self.find(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            upper => upper?,
        };
        btrfs::delete_subvolume(&self.uppers, OsStr::new(name))?;
        self.unmark_frozen(name)?;
        self.drop_stale_groups(stale, upper.quota);
        Ok(())
    }

    /// Drops quota groups of deleted subvolumes, a few at a time: each delete adds one. A group whose data is
    /// still shared stays, so those that cannot be dropped yet go to the end of the queue.
    fn drop_stale_groups(&self, stale: &Mutex<VecDeque<u64>>, more: Option<u64>) {
        let mut stale = stale.lock();
        stale.extend(more);
        for _ in 0..stale.len().min(4) {
            let Some(id) = stale.pop_front() else { return };
            if !btrfs::drop_quota_group(&self.uppers, id).unwrap_or(true) {
                stale.push_back(id);
            }
        }
    }

    /// Size of a sandbox's files; zero without quotas.
    pub(crate) fn used_bytes(&self, quota: Option<u64>) -> u64 {
        let Some(id) = quota else { return 0 };
        let now = self.quota_groups.as_deref().and_then(|groups| btrfs::used_bytes_now(groups, id).ok());
        now.or_else(|| btrfs::used_bytes(&self.uppers, id).ok()).unwrap_or(0)
    }

    /// Names of all existing places.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.root.join(UPPERS))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// Syncs everything that was written.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.uppers)?)
    }

    /// Closes the pool; no process may still use it.
    pub(crate) fn close(self, fate: Fate) {
        let Self { root, uppers, kind, .. } = self;
        drop(uppers);
        let Kind::Btrfs { _image: image, image_path, .. } = kind else {
            if fate == Fate::Remove {
                let _ = fs::remove_dir_all(&root);
            }
            return;
        };
        unmount(&root);
        await_detached(&image);
        if fate == Fate::Remove {
            let removed = fs::remove_file(&image_path).and_then(|()| fs::remove_dir(&root));
            if let Err(error) = removed {
                tracing::warn!("could not remove the pool `{}`: {error}", image_path.display());
            }
        }
        drop(image);
    }
}

/// What happens to a closed pool's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Keep,
    Remove,
}

fn doing(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PoolError {
    move |source| PoolError::Directory { doing, path: path.to_path_buf(), source }
}

fn make_directory(path: &Path) -> Result<(), PoolError> {
    // Only root may enter: layers and uppers hold set-uid programs of sandboxes.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(doing("make", path))
}

/// The existing image, or a new one if possible; otherwise the reason to use plain directories.
fn choose(
    data_dir: &Path,
    root: &Path,
    choice: &PoolChoice,
    features: &Features,
) -> Result<Result<Kind, ImageError>, PoolError> {
    let image = data_dir.join(IMAGE);
    let PoolChoice::Auto { size_bytes } = choice else {
        return Ok(Err(ImageError::NotWanted));
    };
    let quotas =
        if features.has(Feature::BtrfsSimpleQuotas) { btrfs::Quotas::Simple } else { btrfs::Quotas::Classic };
    if image.exists() {
        return open_btrfs(&image, root, quotas).map(Ok).map_err(|source| PoolError::Image { image, source });
    }
    if !features.has(Feature::Btrfs) {
        return Ok(Err(ImageError::NoBtrfs));
    }
    // Sandboxes were created here when no image was possible: mounting one now would hide them.
    let has_files = |name| root.join(name).read_dir().is_ok_and(|mut entries| entries.next().is_some());
    if has_files(UPPERS) || has_files(VOLUMES) {
        return Ok(Err(ImageError::InDirectories));
    }
    // Left by a node that was killed while formatting. Its mkfs may still run, so the next draft is a new
    // file.
    let _ = fs::remove_file(data_dir.join(DRAFT));
    if let Some(size) = size_bytes {
        fits(data_dir, *size).map_err(PoolError::Size)?;
    }
    let made = make_image(data_dir, &image, *size_bytes).and_then(|()| open_btrfs(&image, root, quotas));
    Ok(made.inspect_err(|_| {
        let _ = fs::remove_file(&image);
    }))
}

fn open_btrfs(image_path: &Path, root: &Path, quotas: btrfs::Quotas) -> Result<Kind, ImageError> {
    let open = || OpenOptions::new().read(true).write(true).open(image_path).map_err(because("open it"));
    let image = open()?;
    rustix::fs::flock(&image, FlockOperation::NonBlockingLockExclusive).map_err(|_| ImageError::InUse)?;
    if !is_mounted(root) {
        // Opened once more: the device keeps its descriptor, and the lock would outlive the node.
        let device = loop_device::attach(&open()?).map_err(because("attach a loop device"))?;
        let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
        let mount = |options| rustix::mount::mount(&device.path, root, "btrfs", flags, Some(options));
        // No discards: they would punch holes into the allocated image. Commits more often than by
        // default, because the space of deleted subvolumes comes back with them. For every eight chunks of
        // data, metadata gets one.
        let mounted = match mount(c"nodiscard,commit=10,metadata_ratio=8") {
            Err(rustix::io::Errno::INVAL) => mount(c"nodiscard,commit=10"),
            mounted => mounted,
        };
        mounted.map_err(|errno| because("mount it")(errno.into()))?;
        make_room_for_metadata(root);
    }
    let opened = directory::open(root).and_then(|inside| btrfs::enable_quotas(&inside, quotas));
    if let Err(error) = opened {
        unmount(root);
        return Err(because("turn quotas on")(error));
    }
    Ok(Kind::Btrfs { _image: image, image_path: image_path.to_path_buf(), stale: Mutex::default() })
}

/// A new file system has 8 MiB for metadata and takes more when it needs it. By then data may fill the disk,
/// and every operation would fail, even a delete. After a rebalance, metadata has a whole chunk of
/// the pool, a tenth of a small one.
fn make_room_for_metadata(root: &Path) {
    const LITTLE: u64 = 16 * 1024 * 1024;
    let given = directory::open(root).and_then(|inside| btrfs::metadata_bytes(&inside));
    if given.is_ok_and(|given| given > LITTLE) {
        return;
    }
    let mut command = Command::new("btrfs");
    command.args(["--quiet", "balance", "start", "-m"]).arg(root).stdin(Stdio::null());
    let failed = match command.output() {
        Ok(output) if output.status.success() => return,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_string(),
        Err(error) => error.to_string(),
    };
    tracing::warn!("could not reserve a part of the pool for metadata: {failed}");
}

fn because(doing: &'static str) -> impl FnOnce(io::Error) -> ImageError {
    move |source| ImageError::Step { doing, source }
}

/// Creates it under another name first, so that a partial image is never taken for a complete one.
fn make_image(data_dir: &Path, image_path: &Path, size: Option<u64>) -> Result<(), ImageError> {
    let draft = data_dir.join(DRAFT);
    let made = draft_image(data_dir, &draft, size)
        .and_then(|()| fs::rename(&draft, image_path).map_err(because("rename the image")));
    if made.is_err() {
        let _ = fs::remove_file(&draft);
    }
    made
}

fn free_bytes(directory: &Path) -> Result<u64, SizeError> {
    let stat = rustix::fs::statvfs(directory).map_err(|errno| SizeError::Unknown(errno.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn fits(data_dir: &Path, size: u64) -> Result<(), SizeError> {
    let free = free_bytes(data_dir)?;
    if free < size.saturating_add(DISK_RESERVE) {
        return Err(SizeError::TooLarge { size_mib: size >> 20, free_mib: free >> 20 });
    }
    Ok(())
}

fn draft_image(data_dir: &Path, draft: &Path, size: Option<u64>) -> Result<(), ImageError> {
    let size = match size {
        Some(size) => size,
        None => (free_bytes(data_dir)? / 4).clamp(SMALLEST, LARGEST),
    };
    fits(data_dir, size)?;
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(draft);
    let file = file.map_err(because("create the image"))?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size)
        .map_err(|errno| because("allocate the image")(errno.into()))?;
    drop(file);
    // One copy of metadata: the image's own disk is the place for redundancy. No discards, see above.
    let output = Command::new("mkfs.btrfs")
        .args(["--quiet", "--nodiscard", "--metadata", "single", "--label", "coffer"])
        .arg(draft)
        .stdin(Stdio::null())
        .output()
        .map_err(ImageError::NoMkfs)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(ImageError::Mkfs(said.trim().to_string()));
    }
    Ok(())
}

/// Mount points of the pools of all installations. A copy of such a mount in another mount namespace keeps
/// the pool busy after its node has unmounted it.
pub fn mounted_pools(mountinfo: &str) -> Vec<PathBuf> {
    let pool = |line: &str| {
        let (mount, source) = line.split_once(" - ")?;
        let on_loop = source.starts_with("btrfs /dev/loop");
        // The kernel escapes spaces and some other characters in octal.
        let at = mount.split(' ').nth(4)?.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
        (on_loop && at.ends_with("/node/pool")).then(|| PathBuf::from(at))
    };
    mountinfo.lines().filter_map(pool).collect()
}

fn is_mounted(root: &Path) -> bool {
    let Some(parent) = root.parent() else { return false };
    let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev);
    matches!((device(root), device(parent)), (Ok(here), Ok(above)) if here != above)
}

/// Mount namespaces of killed processes go a moment after them, and hold the file system until then.
#[expect(clippy::disallowed_methods, reason = "runs on a thread that may block")]
fn await_detached(image: &File) {
    let Ok(image) = image.metadata() else { return };
    let deadline = Instant::now() + Duration::from_secs(10);
    while loop_device::is_attached(&image) {
        if Instant::now() > deadline {
            tracing::warn!("the pool's loop device is still in use; it is detached with its last user");
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The overlays of dead sandboxes are unmounted a moment after their processes end, so this waits for them.
#[expect(clippy::disallowed_methods, reason = "runs on a thread that may block")]
fn unmount(root: &Path) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match rustix::mount::unmount(root, UnmountFlags::empty()) {
            Ok(()) => return,
            Err(rustix::io::Errno::BUSY) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(errno) => {
                tracing::warn!("could not unmount `{}`: {errno}; it is detached when unused", root.display());
                let _ = rustix::mount::unmount(root, UnmountFlags::DETACH);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_all_installations_are_found() {
        let mounts = "\
            28 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            87 28 0:39 / /tmp/a\\040b/node/pool rw,noatime - btrfs /dev/loop0 rw,subvol=/\n\
            88 28 0:40 / /srv/node/pool rw shared:3 - btrfs /dev/loop12 rw\n\
            89 28 0:41 / /home rw - btrfs /dev/loop3 rw\n\
            90 28 0:42 / /mnt/node/pool rw - btrfs /dev/sda1 rw\n";
        assert_eq!(
            mounted_pools(mounts),
            [PathBuf::from("/tmp/a b/node/pool"), PathBuf::from("/srv/node/pool")]
        );
    }
}

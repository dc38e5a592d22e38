//! The small files that make a sandbox look like a separate machine.
//!
//! The node keeps some of them on the host and mounts them read-only over `/proc` and `/sys` ([`Shown`]);
//! others belong to the sandbox and are written into its files once, when it is created ([`write_own`]).

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use coffer_core::Limits;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;

use crate::network::NAME_SERVER;
use crate::spawner::request::Layer;
use crate::spawner::request::{FileBind, OverlayMount};
use coffer_template::{HOST_FILES, OverlaySpec};

/// Host files that one sandbox sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    directory: PathBuf,
}

const BOOT_ID: &str = "boot_id";
const CPUINFO: &str = "cpuinfo";
const MEMINFO: &str = "meminfo";
const CPUS: &str = "cpus";

/// Mount targets and the files shown there.
const PLACES: [(&str, &str); 6] = [
    (BOOT_ID, "proc/sys/kernel/random/boot_id"),
    (CPUINFO, "proc/cpuinfo"),
    (MEMINFO, "proc/meminfo"),
    (CPUS, "sys/devices/system/cpu/online"),
    (CPUS, "sys/devices/system/cpu/possible"),
    (CPUS, "sys/devices/system/cpu/present"),
];

impl Shown {
    pub(crate) fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Rewrites all files, with a new boot id. They stay owned by root: a file's owner can take a lease on
    /// it, which blocks every other process that opens it.
    pub(crate) fn write(&self, limits: &Limits) -> io::Result<()> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let cpus = shown_cpus(limits.cpu_count);
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let contents = [
            (BOOT_ID, format!("{}\n", fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim())),
            (CPUINFO, first_processors(&cpuinfo, cpus)),
            (MEMINFO, meminfo(limits.memory_bytes(), 0, 0)),
            (CPUS, if cpus == 1 { "0\n".into() } else { format!("0-{}\n", cpus - 1) }),
        ];
        for (name, content) in contents {
            let path = self.directory.join(name);
            fs::write(&path, content)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o444))?;
        }
        Ok(())
    }

    /// Makes root the owner again of files that an earlier version gave to the sandbox.
    pub(crate) fn take_back(&self) -> io::Result<()> {
        PLACES.iter().try_for_each(|(name, _)| chown(self.directory.join(name), Some(0), Some(0)))
    }

    /// Whether they were written, by this node or another.
    pub(crate) fn exist(&self) -> bool {
        PLACES.iter().all(|(name, _)| self.directory.join(name).is_file())
    }

    /// Path of the program of the first process; it stays the same whichever version a later node brings.
    pub(crate) fn program(&self) -> PathBuf {
        self.directory.join("agentd")
    }

    /// Links a program there, unless one exists.
    pub(crate) fn keep_program(&self, program: &Path) -> io::Result<PathBuf> {
        let kept = self.program();
        link(program, &kept)?;
        Ok(kept)
    }

    pub(crate) fn binds(&self) -> Vec<FileBind> {
        let bind = |&(name, target): &(&str, &str)| FileBind {
            source: self.directory.join(name),
            target: target.into(),
        };
        PLACES.iter().map(bind).collect()
    }

    /// Updates the memory figures. Writes in place, because this very file is mounted in the sandbox. Never
    /// waits for the sandbox: if it holds a lease on the file, this fails.
    pub(crate) fn refresh_memory(&self, limit: u64, used: u64, cache: u64) -> io::Result<()> {
        use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
        let mut options = fs::OpenOptions::new();
        options.write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
        let file = options.open(self.directory.join(MEMINFO))?;
        // One write of the same length each time: a reader sees the old or the new.
        file.write_all_at(meminfo(limit, used, cache).as_bytes(), 0)
    }

    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

/// Adds a hard link to a file, or a copy if it can have no more links. Keeps an existing `name`.
pub(crate) fn link(file: &Path, name: &Path) -> io::Result<()> {
    match fs::hard_link(file, name) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(_) => fs::copy(file, name).map(|_| ()),
    }
}

/// Processors that a sandbox sees: its limit, but at most the host's.
fn shown_cpus(cpu_count: u32) -> u32 {
    let host = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count());
    cpu_count.clamp(1, host.max(1))
}

/// The first blocks of the host's `/proc/cpuinfo`.
fn first_processors(cpuinfo: &str, count: u32) -> String {
    let mut seen = 0;
    let mut text = String::new();
    for line in cpuinfo.lines() {
        if line.starts_with("processor") {
            seen += 1;
            if seen > count {
                break;
            }
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// `/proc/meminfo` of a machine with this much memory and no swap. Numbers have a fixed width.
fn meminfo(limit: u64, used: u64, cache: u64) -> String {
    let free = limit.saturating_sub(used);
    let cache = cache.min(used);
    let available = free + cache;
    let anonymous = used - cache;
    let lines = [
        ("MemTotal", limit),
        ("MemFree", free),
        ("MemAvailable", available),
        ("Buffers", 0),
        ("Cached", cache),
        ("SwapCached", 0),
        ("Active", anonymous),
        ("Inactive", cache),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("AnonPages", anonymous),
        ("Mapped", 0),
        ("Shmem", 0),
        ("Slab", 0),
    ];
    lines.map(|(name, bytes)| format!("{:<14} {:>12} kB\n", format!("{name}:"), bytes / 1024)).concat()
}

/// The overlays of a template over the writable files at `upper`: `u0` and `w0` for the first, and so on.
/// The ids in them are stored relative to `stored_uid_base`.
pub(crate) fn overlay_mounts(
    overlays: &[OverlaySpec],
    upper: &Path,
    stored_uid_base: u32,
) -> Vec<OverlayMount> {
    let mount = |(number, overlay): (usize, &OverlaySpec)| OverlayMount {
        target: overlay.target.clone(),
        layers: overlay
            .layers
            .iter()
            .map(|layer| Layer {
                path: layer.path.clone(),
                uid_base: layer.uid_base,
                // Journals and snapshots of earlier versions name the host's files without the mark.
                public_only: layer.public_only || layer.path == Path::new(HOST_FILES),
            })
            .collect(),
        writable: upper.to_path_buf(),
        stored_uid_base,
        upper: format!("u{number}"),
        work: format!("w{number}"),
    };
    overlays.iter().enumerate().map(mount).collect()
}

/// Removes the mark by which an overlay refuses files that may not be on disk: the node synced them when it
/// stopped the sandbox.
pub(crate) fn clear_marks(mounts: &[OverlayMount]) -> io::Result<()> {
    for mount in mounts {
        match fs::remove_dir_all(mount.writable.join(&mount.work).join("work/incompat")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Creates the directories for a new sandbox's writable files and writes its own files: names and addresses,
/// which its users may change like any other file.
pub(crate) fn write_own(mounts: &[OverlayMount], uid_base: u32, hostname: &str) -> io::Result<()> {
    for mount in mounts {
        let upper = mount.writable.join(&mount.upper);
        fs::DirBuilder::new().mode(0o700).create(&upper)?;
        fs::DirBuilder::new().mode(0o700).create(mount.writable.join(&mount.work))?;
        // The upper's root is the visible root: give it the mode of the topmost layer's.
        let mode = match mount.layers.first() {
            Some(layer) => fs::metadata(&layer.path)?.mode() & 0o7777,
            None => 0o755,
        };
        give(&upper, uid_base, mode)?;
    }
    let Some(root) = mounts.iter().find(|mount| mount.target == Path::new("/")) else { return Ok(()) };
    let etc = root.writable.join(&root.upper).join("etc");
    fs::create_dir(&etc)?;
    give(&etc, uid_base, 0o755)?;
    for (name, content, mode) in [
        ("hostname", self::hostname(hostname), 0o644),
        ("hosts", hosts(hostname), 0o644),
        ("resolv.conf", resolv_conf(), 0o644),
        (MACHINE_ID, machine_id()?, 0o444),
    ] {
        let path = etc.join(name);
        fs::write(&path, content)?;
        give(&path, uid_base, mode)?;
    }
    Ok(())
}

/// Whether the files of a snapshot come from the sandbox that gets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inherited {
    /// From itself, at an earlier time.
    OwnPast,
    /// Another sandbox's.
    Anothers,
}

/// Rewrites a sandbox's own files where they come from a snapshot of a sandbox called `before`. Files that
/// the users of that sandbox changed stay unchanged. They control all of this tree: follow no link, and do
/// not create `/etc` if it is gone.
pub(crate) fn own_again(
    mounts: &[OverlayMount],
    before: &str,
    hostname: &str,
    inherited: Inherited,
) -> io::Result<()> {
    let Some(root) = mounts.iter().find(|mount| mount.target == Path::new("/")) else { return Ok(()) };
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let upper = rustix::fs::openat(CWD, root.writable.join(&root.upper), directory, Mode::empty())?;
    let etc = match open_beneath(upper.as_fd(), "etc", directory, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        etc => etc?,
    };
    for (name, was, is) in [
        ("hostname", self::hostname(before), self::hostname(hostname)),
        ("hosts", hosts(before), hosts(hostname)),
    ] {
        if was != is && content(etc.as_fd(), name)?.is_some_and(|content| content == was.as_bytes()) {
            replace(etc.as_fd(), name, &is, root.stored_uid_base, 0o644)?;
        }
    }
    if inherited == Inherited::Anothers && content(etc.as_fd(), MACHINE_ID)?.is_some() {
        replace(etc.as_fd(), MACHINE_ID, &machine_id()?, root.stored_uid_base, 0o444)?;
    }
    Ok(())
}

fn open_beneath(at: BorrowedFd<'_>, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::io::retry_on_intr(|| rustix::fs::openat2(at, path, flags, mode, resolve))
}

/// The content of a small regular file; `None` for anything else of that name.
fn content(etc: BorrowedFd<'_>, name: &str) -> io::Result<Option<Vec<u8>>> {
    const SMALL: u64 = 4096;
    // Do not block on a pipe.
    let file = match open_beneath(etc, name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
        Ok(file) => fs::File::from(file),
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ACCESS | Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > SMALL {
        return Ok(None);
    }
    let mut content = Vec::new();
    file.take(SMALL).read_to_end(&mut content)?;
    Ok(Some(content))
}

/// Replaces a file by a new one, because the old one may have other hard links.
fn replace(
    etc: BorrowedFd<'_>,
    name: &str,
    content: &str,
    stored_uid_base: u32,
    mode: u32,
) -> io::Result<()> {
    rustix::fs::unlinkat(etc, name, AtFlags::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mut file = fs::File::from(open_beneath(etc, name, flags, Mode::RUSR)?);
    file.write_all(content.as_bytes())?;
    let (uid, gid) = (Uid::from_raw(stored_uid_base), Gid::from_raw(stored_uid_base));
    rustix::fs::fchown(&file, Some(uid), Some(gid))?;
    file.set_permissions(fs::Permissions::from_mode(mode))
}

const MACHINE_ID: &str = "machine-id";

/// A new `/etc/machine-id`.
fn machine_id() -> io::Result<String> {
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    Ok(format!("{}\n", uuid.trim().replace('-', "")))
}

/// `/etc/hostname`.
pub(crate) fn hostname(hostname: &str) -> String {
    format!("{hostname}\n")
}

/// `/etc/hosts`.
pub(crate) fn hosts(hostname: &str) -> String {
    format!("127.0.0.1\tlocalhost\n127.0.1.1\t{hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n")
}

/// `/etc/resolv.conf`. Without search domains, of which the host name would otherwise be one, and with a
/// short timeout: the name server is local.
fn resolv_conf() -> String {
    format!("nameserver {NAME_SERVER}\nsearch .\noptions timeout:2 attempts:2\n")
}

fn give(path: &Path, uid_base: u32, mode: u32) -> io::Result<()> {
    chown(path, Some(uid_base), Some(uid_base))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_changed_is_inherited_and_no_link_is_followed() {
        use std::os::unix::fs::symlink;
        let home = tempfile::tempdir().unwrap();
        let etc = home.path().join("u0/etc");
        fs::create_dir_all(&etc).unwrap();
        let outside = home.path().join("outside");
        fs::write(&outside, hosts("old")).unwrap();
        let uid = fs::metadata(&etc).unwrap().uid();
        let target = OverlaySpec { target: "/".into(), layers: Vec::new() };
        let mounts = overlay_mounts(&[target], home.path(), uid);
        let read = |name: &str| fs::read_to_string(etc.join(name)).unwrap();

        fs::write(etc.join("hostname"), hostname("old")).unwrap();
        fs::write(etc.join("hosts"), "1.2.3.4 mine\n").unwrap();
        fs::write(etc.join(MACHINE_ID), "same\n").unwrap();
        own_again(&mounts, "old", "old", Inherited::OwnPast).unwrap();
        assert_eq!((read("hostname"), read(MACHINE_ID)), ("old\n".into(), "same\n".into()));
        own_again(&mounts, "old", "new", Inherited::Anothers).unwrap();
        assert_eq!((read("hostname"), read("hosts")), ("new\n".into(), "1.2.3.4 mine\n".into()));
        assert_eq!(read(MACHINE_ID).len(), 33);

        fs::remove_file(etc.join("hosts")).unwrap();
        symlink(&outside, etc.join("hosts")).unwrap();
        own_again(&mounts, "old", "new", Inherited::Anothers).unwrap();
        assert_eq!(fs::read_to_string(&outside).unwrap(), hosts("old"));
        fs::rename(&etc, home.path().join("elsewhere")).unwrap();
        symlink(home.path().join("elsewhere"), &etc).unwrap();
        fs::write(etc.join("hostname"), hostname("old")).unwrap();
        own_again(&mounts, "old", "new", Inherited::Anothers).unwrap();
        assert_eq!(read("hostname"), "old\n");
        fs::remove_file(&etc).unwrap();
        own_again(&mounts, "old", "new", Inherited::Anothers).unwrap();
        assert!(!etc.exists());
    }

    #[test]
    fn processors_are_cut_to_size() {
        let host = "processor\t: 0\nmodel\t: x\n\nprocessor\t: 1\nmodel\t: x\n\n";
        assert_eq!(first_processors(host, 1), "processor\t: 0\nmodel\t: x\n\n");
        assert_eq!(first_processors(host, 2), host);
        assert_eq!(first_processors(host, 9), host);
    }

    #[test]
    fn memory_figures_keep_their_length() {
        let gib = 1024 * 1024 * 1024;
        let empty = meminfo(2 * gib, 0, 0);
        let busy = meminfo(2 * gib, 3 * gib, gib);
        assert_eq!(empty.len(), busy.len());
        assert!(empty.contains("MemTotal:           2097152 kB\n"), "{empty}");
        assert!(busy.contains("MemFree:                  0 kB\n"), "{busy}");
        assert!(busy.contains("MemAvailable:       1048576 kB\n"), "{busy}");
    }
}

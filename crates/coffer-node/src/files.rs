//! The small files that make a sandbox look like a machine of its own.
//!
//! Some the node keeps on the host and shows read-only over `/proc` and `/sys` ([`Shown`]); others
//! belong to the sandbox and are written into its files once, when it is made ([`write_own`]).

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use coffer_core::Limits;

use crate::network::NAME_SERVER;
use crate::spawner::request::Layer;
use crate::spawner::request::{FileBind, OverlayMount};
use crate::template::OverlaySpec;

/// Host files that one sandbox sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    directory: PathBuf,
}

const BOOT_ID: &str = "boot_id";
const CPUINFO: &str = "cpuinfo";
const MEMINFO: &str = "meminfo";
const CPUS: &str = "cpus";

/// What is shown where.
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

    /// Writes all files anew, with a boot id that was never seen before.
    pub(crate) fn write(&self, limits: &Limits, uid_base: u32) -> io::Result<()> {
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
            chown(&path, Some(uid_base), Some(uid_base))?;
        }
        Ok(())
    }

    pub(crate) fn binds(&self) -> Vec<FileBind> {
        let bind = |&(name, target): &(&str, &str)| FileBind {
            source: self.directory.join(name),
            target: target.into(),
        };
        PLACES.iter().map(bind).collect()
    }

    /// Shows what is used now. In place, because the sandbox sees this very file.
    pub(crate) fn refresh_memory(&self, limit: u64, used: u64, cache: u64) -> io::Result<()> {
        use std::os::unix::fs::FileExt as _;
        let file = fs::OpenOptions::new().write(true).open(self.directory.join(MEMINFO))?;
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

/// Processors that a sandbox sees: what it may use, and no more than there are.
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
pub(crate) fn overlay_mounts(overlays: &[OverlaySpec], upper: &Path) -> Vec<OverlayMount> {
    let mount = |(number, overlay): (usize, &OverlaySpec)| OverlayMount {
        target: overlay.target.clone(),
        layers: overlay
            .layers
            .iter()
            .map(|layer| Layer { path: layer.path.clone(), uid_base: layer.uid_base })
            .collect(),
        writable: upper.to_path_buf(),
        upper: format!("u{number}"),
        work: format!("w{number}"),
    };
    overlays.iter().enumerate().map(mount).collect()
}

/// Takes away the mark by which an overlay refuses files that may not have reached the disk: they have,
/// the node saw to it when it stopped the sandbox.
pub(crate) fn clear_marks(mounts: &[OverlayMount]) -> io::Result<()> {
    for mount in mounts {
        match fs::remove_dir_all(mount.writable.join(&mount.work).join("work/incompat")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Lays out a new sandbox's writable files and puts in what is its own: names and addresses, which
/// its users may change like any other file.
pub(crate) fn write_own(mounts: &[OverlayMount], uid_base: u32, hostname: &str) -> io::Result<()> {
    for mount in mounts {
        let upper = mount.writable.join(&mount.upper);
        fs::DirBuilder::new().mode(0o700).create(&upper)?;
        fs::DirBuilder::new().mode(0o700).create(mount.writable.join(&mount.work))?;
        // The upper's root is the root that is seen: it looks as the topmost layer's does.
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
    let machine_id = fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().replace('-', "");
    for (name, content, mode) in [
        ("hostname", self::hostname(hostname), 0o644),
        ("hosts", hosts(hostname), 0o644),
        ("resolv.conf", resolv_conf(), 0o644),
        ("machine-id", format!("{machine_id}\n"), 0o444),
    ] {
        let path = etc.join(name);
        fs::write(&path, content)?;
        give(&path, uid_base, mode)?;
    }
    Ok(())
}

/// `/etc/hostname`.
pub(crate) fn hostname(hostname: &str) -> String {
    format!("{hostname}\n")
}

/// `/etc/hosts`.
pub(crate) fn hosts(hostname: &str) -> String {
    format!("127.0.0.1\tlocalhost\n127.0.1.1\t{hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n")
}

/// `/etc/resolv.conf`. Without search domains, of which the host name would otherwise be one, and with
/// little patience: whoever answers is near.
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

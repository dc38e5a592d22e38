//! What dead installations left on this machine: cgroups, loop devices, and files of sandboxes in a pool.
//!
//! A thing is an orphan only if nothing could still want it: no process is in the cgroup, the image behind the
//! device is deleted or mounted nowhere, the journal has no entry for the files. Everything else is left alone, because
//! sandboxes outlive a `coffer up` on purpose.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::finding::Finding;
use crate::config::Settings;
use crate::leftovers::{self, CGROUPS, IMAGE};

const SECOND_LOOK: Duration = Duration::from_millis(300);

/// Looks, and with `fix` removes what it found.
pub(super) fn check(settings: &Settings, fix: bool) -> Vec<Finding> {
    let owned: BTreeSet<String> = running_nodes().iter().map(|dir| coffer_node::cgroup_name(dir)).collect();
    let mut found = Vec::new();
    found.extend(cgroups(Path::new(CGROUPS), &owned).into_iter().map(Orphan::Cgroup));
    found.extend(
        loop_devices(Path::new("/sys/block"), &mounted_devices()).into_iter().map(Orphan::LoopDevice),
    );
    found.extend(files(&settings.data_dir.join("node")).into_iter().map(Orphan::Files));
    if found.is_empty() {
        return vec![Finding::ok("orphans", "no cgroup, loop device or files without an owner")];
    }
    found.iter().map(|orphan| orphan.finding(fix)).collect()
}

#[derive(Debug, PartialEq, Eq)]
enum Orphan {
    Cgroup(PathBuf),
    LoopDevice(PathBuf),
    Files(PathBuf),
}

impl Orphan {
    fn finding(&self, fix: bool) -> Finding {
        let (check, found, matters) = match self {
            Self::Cgroup(path) => (
                "orphans.cgroup",
                format!("`{}` has no process and no node", path.display()),
                "it holds kernel memory",
            ),
            Self::LoopDevice(path) => (
                "orphans.loop_device",
                format!("`{}` has the pool of an installation that is gone", path.display()),
                "the deleted image keeps its disk space",
            ),
            Self::Files(path) => (
                "orphans.files",
                format!("`{}` belongs to no sandbox", path.display()),
                "it takes space in the pool",
            ),
        };
        if !fix {
            return Finding::warn(check, found).matters(matters).fix("coffer doctor --fix");
        }
        match self.remove() {
            Ok(()) => Finding::ok(check, format!("{found}: removed")),
            Err(error) => Finding::fail(check, format!("{found}, and could not be removed: {error}")),
        }
    }

    fn remove(&self) -> std::io::Result<()> {
        match self {
            Self::Cgroup(path) => leftovers::remove_cgroup(path),
            Self::LoopDevice(path) => leftovers::detach(path),
            Self::Files(path) => {
                leftovers::run("btrfs", &["subvolume".as_ref(), "delete".as_ref(), path.as_ref()])
            }
        }
    }
}

/// Data directories of the nodes that run on this machine.
fn running_nodes() -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let node = |process: fs::DirEntry| {
        let line = fs::read(process.path().join("cmdline")).ok()?;
        let words: Vec<_> = line.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
        let is_node = words.get(1).is_some_and(|word| word == "node");
        is_node.then(|| words.iter().find_map(|word| word.strip_prefix("--data-dir=")).map(PathBuf::from))?
    };
    processes.filter_map(node).collect()
}

/// Directories of nodes in every hierarchy that have no process in them and whose node does not run.
fn cgroups(root: &Path, owned: &BTreeSet<String>) -> Vec<PathBuf> {
    let is_ours = |name: &str| {
        let Some(hash) = name.strip_prefix("coffer-") else { return false };
        let hash = hash.strip_suffix("-git").unwrap_or(hash);
        let is_hash = hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash && !owned.contains(&format!("coffer-{hash}"))
    };
    let mut found = leftovers::cgroups(root, is_ours);
    found.retain(|path| leftovers::processes(path).is_empty());
    found
}

/// Devices that some mount of this namespace uses.
fn mounted_devices() -> BTreeSet<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let source = |line: &str| line.split_once(" - ")?.1.split(' ').nth(1).map(str::to_string);
    mounts.lines().filter_map(source).collect()
}

/// Loop devices on a pool whose image is deleted, and that nothing has mounted.
fn loop_devices(blocks: &Path, mounted: &BTreeSet<String>) -> Vec<PathBuf> {
    let is_orphan = |(device, backing): &(PathBuf, String)| {
        let image = backing.strip_suffix(" (deleted)");
        image.is_some_and(|image| image.ends_with(IMAGE))
            && device.to_str().is_some_and(|device| !mounted.contains(device))
    };
    let found = leftovers::loop_devices(blocks).into_iter().filter(is_orphan);
    found.map(|(device, _)| device).collect()
}

/// Files of sandboxes that the journal does not know. An entry is written before its files exist and removed after
/// them, so files without one have no owner, also while the node runs.
#[expect(clippy::disallowed_methods, reason = "runs on a thread that may block")]
fn files(node_dir: &Path) -> Vec<PathBuf> {
    let look = || -> BTreeSet<PathBuf> {
        let entries = fs::read_dir(node_dir.join("pool/s")).into_iter().flatten().flatten();
        let there: Vec<_> = entries.map(|entry| entry.path()).collect();
        let Ok(known) = coffer_node::files_in_journal(node_dir) else { return BTreeSet::new() };
        let is_known =
            |path: &PathBuf| path.file_name().is_some_and(|name| known.contains(&*name.to_string_lossy()));
        there.into_iter().filter(|path| !is_known(path)).collect()
    };
    let first = look();
    if first.is_empty() {
        return Vec::new();
    }
    // A sandbox that took other files (a rollback) has them under a new name for a moment.
    std::thread::sleep(SECOND_LOOK);
    look().intersection(&first).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_is_an_orphan_without_processes_and_without_its_node() {
        let temp = tempfile::tempdir().unwrap();
        for (name, pids) in [
            ("coffer-00000001", ""),
            ("coffer-00000002/sandbox", "17\n"),
            ("coffer-00000003", ""),
            ("memory/coffer-00000004-git", ""),
            ("coffer-else", ""),
            ("system.slice", ""),
        ] {
            fs::create_dir_all(temp.path().join(name)).unwrap();
            fs::write(temp.path().join(name).join("cgroup.procs"), pids).unwrap();
        }
        let owned = BTreeSet::from(["coffer-00000003".to_string()]);
        let expected = ["coffer-00000001", "memory/coffer-00000004-git"].map(|name| temp.path().join(name));
        assert_eq!(cgroups(temp.path(), &owned), expected);
    }

    #[test]
    fn a_loop_device_is_an_orphan_if_its_image_is_deleted_and_nothing_has_it_mounted() {
        let temp = tempfile::tempdir().unwrap();
        for (name, backing) in [
            ("loop0", "/a/node/pool.img\n"),
            ("loop1", "/b/node/pool.img (deleted)\n"),
            ("loop2", "/c/node/pool.img (deleted)\n"),
            ("loop3", "/other.img (deleted)\n"),
        ] {
            fs::create_dir_all(temp.path().join(name).join("loop")).unwrap();
            fs::write(temp.path().join(name).join("loop/backing_file"), backing).unwrap();
        }
        let mounted = BTreeSet::from(["/dev/loop2".to_string()]);
        assert_eq!(loop_devices(temp.path(), &mounted), [PathBuf::from("/dev/loop1")]);
    }
}

//! What a node leaves on the machine when it stops: control groups with sandboxes, mounts, loop devices.
//!
//! `doctor` looks for those that nothing owns any more, `halt` takes away those of one installation.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where hierarchies of control groups are mounted.
pub(crate) const CGROUPS: &str = "/sys/fs/cgroup";
/// The pool's image, below a data directory.
pub(crate) const IMAGE: &str = "/node/pool.img";

/// Directories in every hierarchy whose name `is_ours`. Version 2 is mounted at the root, or beside the hierarchies of
/// version 1, one below.
pub(crate) fn cgroups(root: &Path, is_ours: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let is_ours = |path: &PathBuf| is_ours(&path.file_name().unwrap_or_default().to_string_lossy());
    let (mut found, others): (Vec<_>, Vec<_>) = directories(root).into_iter().partition(&is_ours);
    found.extend(others.iter().flat_map(|path| directories(path)).filter(is_ours));
    found.sort();
    found
}

pub(crate) fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// All processes in the directory and below it.
pub(crate) fn processes(cgroup: &Path) -> Vec<i32> {
    let own = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let own = own.lines().filter_map(|line| line.trim().parse().ok());
    own.chain(directories(cgroup).iter().flat_map(|child| processes(child))).collect()
}

/// Children first: the kernel removes empty ones only.
pub(crate) fn remove_cgroup(path: &Path) -> io::Result<()> {
    for child in directories(path) {
        remove_cgroup(&child)?;
    }
    fs::remove_dir(path)
}

/// Loop devices with the image of a pool behind them, and what the kernel says of that image.
pub(crate) fn loop_devices(blocks: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(blocks).into_iter().flatten().flatten();
    let backed = entries.filter_map(|block| {
        let backing = fs::read_to_string(block.path().join("loop/backing_file")).ok()?;
        Some((Path::new("/dev").join(block.file_name()), backing.trim_end().to_string()))
    });
    let mut found: Vec<_> = backed.collect();
    found.sort();
    found
}

pub(crate) fn detach(device: &Path) -> io::Result<()> {
    run("losetup", &["-d".as_ref(), device.as_ref()])
}

pub(crate) fn run(program: &str, arguments: &[&std::ffi::OsStr]) -> io::Result<()> {
    let output = Command::new(program).args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_string()))
}

//! `coffer halt`: takes a stopped installation off this machine, as a reboot would.
//!
//! Sandboxes outlive `coffer up` on purpose, so that an upgrade does not end them. Whoever removes the program for good
//! has to end them first: that is what the package does with this verb. The data directory stays, and the next
//! `coffer up` finds in it what it would find after a reboot: paused sandboxes with memory on disk, snapshots,
//! volumes, and the files of the rest.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::mount::{UnmountFlags, unmount};

use crate::config::{self, Flags, Sources};
use crate::data_dir::DataDir;
use crate::leftovers::{self, CGROUPS};
use crate::printer;

/// A process that was killed is gone when the kernel has released its memory.
const GONE_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(crate) struct Halt {
    #[command(flatten)]
    flags: Flags,
}

impl Halt {
    /// Does nothing, and says so, if there is nothing to end.
    pub(crate) fn run(self, sources: &Sources) -> anyhow::Result<()> {
        let settings = config::resolve(sources, &self.flags)?.settings;
        if !settings.data_dir.is_dir() {
            printer::line(format!("nothing to end: `{}` does not exist", settings.data_dir.display()));
            return Ok(());
        }
        let dir = DataDir::open(&settings.data_dir)?;
        // Held to the end: a `coffer up` that starts now would adopt what is being ended.
        let _held = dir.hold()?;
        let name = coffer_node::cgroup_name(&dir.node());
        let beside = format!("{name}-git");
        let groups = leftovers::cgroups(Path::new(CGROUPS), |found| found == name || found == beside);
        let ended = end_processes(&groups)?;
        for group in &groups {
            remove_when_empty(group)?;
        }
        let unmounted = unmount_below(&[dir.node(), dir.run_dir()])?;
        let image = dir.node().join("pool.img");
        for (device, backing) in leftovers::loop_devices(Path::new("/sys/block")) {
            // The kernel detaches it by itself after the last unmount, which may be a moment ago.
            if Path::new(&backing) == image
                && leftovers::detach(&device).is_err()
                && still_backs(&device, &image)
            {
                anyhow::bail!("could not detach `{}` from `{}`", device.display(), image.display());
            }
        }
        match fs::remove_dir_all(dir.run_dir()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("could not remove `{}`", dir.run_dir().display()));
            }
            _ => {}
        }
        forget_shared(&dir.run_dir());
        printer::line(format!(
            "ended {ended} processes, unmounted {unmounted} file systems; the data is in `{}`",
            dir.root().display()
        ));
        Ok(())
    }
}

/// The claims on ranges of uids are in one directory for all installations of this machine, which goes with the last.
fn forget_shared(run_dir: &Path) {
    let Some(shared) = run_dir.parent() else { return };
    let others = fs::read_dir(shared).into_iter().flatten().flatten();
    if others.map(|entry| entry.file_name()).all(|name| name == "uids") {
        let _ = fs::remove_dir_all(shared);
    }
}

/// Kills all that is in the groups and waits until it is gone. Returns how many processes there were.
fn end_processes(groups: &[PathBuf]) -> anyhow::Result<usize> {
    let there = |groups: &[PathBuf]| {
        let mut pids: Vec<i32> = groups.iter().flat_map(|group| leftovers::processes(group)).collect();
        pids.sort_unstable();
        pids.dedup(); // one hierarchy for each controller on hosts with version 1
        pids
    };
    let first = there(groups).len();
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        let left = there(groups);
        if left.is_empty() {
            return Ok(first);
        }
        anyhow::ensure!(Instant::now() < deadline, "processes {left:?} do not end");
        groups.iter().for_each(|group| thaw(group));
        for &pid in &left {
            // Gone already is as good.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        pause();
    }
}

/// Version 1 does not end what is frozen.
fn thaw(group: &Path) {
    for child in leftovers::directories(group) {
        thaw(&child);
    }
    let state = group.join("freezer.state");
    if state.exists() {
        let _ = fs::write(state, "THAWED");
    }
}

/// The kernel refuses a group for a moment after its last process.
fn remove_when_empty(group: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        match leftovers::remove_cgroup(group) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if Instant::now() >= deadline => {
                return Err(error).with_context(|| format!("could not remove `{}`", group.display()));
            }
            Err(_) => pause(),
        }
    }
}

/// The last mounted first.
fn unmount_below(roots: &[PathBuf]) -> anyhow::Result<usize> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("could not read the mounts")?;
    let mut count = 0;
    for point in mounts_below(&table, roots).iter().rev() {
        let deadline = Instant::now() + GONE_WITHIN;
        while let Err(error) = unmount(point, UnmountFlags::empty()) {
            if Instant::now() >= deadline {
                return Err(error).with_context(|| format!("could not unmount `{}`", point.display()));
            }
            pause();
        }
        count += 1;
    }
    Ok(count)
}

/// Mount points at or below the directories, in the order of the table.
fn mounts_below(table: &str, roots: &[PathBuf]) -> Vec<PathBuf> {
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    // The kernel writes space, tab, newline and backslash as octal numbers.
    let points = points.map(|point| {
        let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
        PathBuf::from(plain.iter().fold(point.to_string(), |text, (code, plain)| text.replace(code, plain)))
    });
    points.filter(|point| roots.iter().any(|root| point.starts_with(root))).collect()
}

fn still_backs(device: &Path, image: &Path) -> bool {
    leftovers::loop_devices(Path::new("/sys/block"))
        .iter()
        .any(|(other, backing)| other == device && Path::new(backing) == image)
}

#[expect(clippy::disallowed_methods, reason = "this program does nothing else meanwhile")]
fn pause() {
    std::thread::sleep(LOOK_EVERY);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounts_of_the_installation_are_found_and_in_order() {
        let table = "\
            30 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            31 30 7:0 / /var/lib/coffer/node/pool rw - btrfs /dev/loop0 rw\n\
            32 31 0:9 / /var/lib/coffer/node/pool/a\\040b rw - tmpfs none rw\n\
            33 30 7:1 / /var/lib/coffer-other/node/pool rw - btrfs /dev/loop1 rw\n";
        let found = mounts_below(table, &["/var/lib/coffer/node".into(), "/run/coffer/0".into()]);
        assert_eq!(found, ["/var/lib/coffer/node/pool", "/var/lib/coffer/node/pool/a b"].map(PathBuf::from));
    }
}

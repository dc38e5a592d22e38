//! The pool of a running node: its room, its filesystem, its quotas, and its ready sandboxes.

use std::path::{Path, PathBuf};

use coffer_core::settings::ByteSize;
use coffer_engine::NodeInfo;

use super::finding::Finding;

/// Below this the node creates no sandbox.
const FLOOR: u64 = 256 << 20;

/// What is known of a pool.
#[derive(Debug, Clone, Default)]
pub(super) struct Pool {
    /// `None` if it is not bounded.
    size: Option<u64>,
    free: Option<u64>,
    has_quota: bool,
    ready: u64,
    most_ready: u64,
    filesystem: Option<Filesystem>,
}

/// The btrfs on the pool's image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Filesystem {
    /// The kernel makes it so when it found damage.
    is_read_only: bool,
    /// Failed reads and writes, and damaged blocks, since it was made.
    errors: u64,
    /// Whether the kernel says that its count of used space is wrong.
    has_wrong_quotas: bool,
}

impl Pool {
    pub(super) fn of(info: &NodeInfo, node_dir: &Path, most_ready: usize) -> Self {
        Self {
            size: info.pool_bytes,
            free: info.pool_free_bytes,
            has_quota: info.capabilities.disk_quota,
            ready: info.warm_ready,
            most_ready: most_ready as u64,
            filesystem: Filesystem::mounted_at(&node_dir.join("pool")),
        }
    }
}

impl Filesystem {
    fn mounted_at(path: &Path) -> Option<Self> {
        let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let path = path.canonicalize().ok()?;
        let (is_read_only, device) = mount(&table, &path)?;
        let name = device.strip_prefix("/dev/").ok()?;
        let mut about = std::fs::read_dir("/sys/fs/btrfs").ok()?.flatten().map(|entry| entry.path());
        let about = about.find(|about| about.join("devices").join(name).exists());
        Some(Self {
            is_read_only,
            errors: about.as_deref().map_or(0, errors),
            has_wrong_quotas: about.is_some_and(|about| {
                std::fs::read_to_string(about.join("qgroups/inconsistent"))
                    .is_ok_and(|text| text.trim() == "1")
            }),
        })
    }
}

/// Whether the filesystem at a place is read-only, and its device; from the text of `/proc/self/mountinfo`.
fn mount(table: &str, path: &Path) -> Option<(bool, PathBuf)> {
    table.lines().rev().find_map(|line| {
        let (place, filesystem) = line.split_once(" - ")?;
        let at = place.split(' ').nth(4)?;
        let mut filesystem = filesystem.split(' ');
        let kind = filesystem.next()?;
        let device = filesystem.next()?;
        // Of the filesystem, not of the mount: the kernel changes the first when it finds damage.
        let is_read_only = filesystem.next()?.split(',').any(|option| option == "ro");
        (Path::new(at) == path && kind == "btrfs").then(|| (is_read_only, PathBuf::from(device)))
    })
}

/// The sum of the error counters of the devices of a btrfs.
fn errors(about: &Path) -> u64 {
    let devices = std::fs::read_dir(about.join("devinfo")).into_iter().flatten().flatten();
    let counters =
        devices.filter_map(|device| std::fs::read_to_string(device.path().join("error_stats")).ok());
    counters
        .map(|text| text.split_whitespace().filter_map(|word| word.parse::<u64>().ok()).sum::<u64>())
        .sum()
}

pub(super) fn judge(pool: &Pool) -> Vec<Finding> {
    let mut findings = vec![room(pool)];
    findings.extend(pool.filesystem.as_ref().map(filesystem));
    findings.push(quota(pool));
    findings.push(ready(pool));
    findings
}

fn room(pool: &Pool) -> Finding {
    let (Some(size), Some(free)) = (pool.size, pool.free) else {
        return Finding::skipped("pool.room", "sandboxes are in plain directories; `disk` has the room");
    };
    let mib = |bytes: u64| ByteSize::mib(bytes >> 20);
    let found = format!("{} of {} are free", mib(free), mib(size));
    let fix =
        "`coffer ls` and `coffer snapshot ls` show what uses it: remove some, or raise `node.pool_size`";
    if free < FLOOR {
        return Finding::fail("pool.room", found).matters("the node creates no more sandboxes").fix(fix);
    }
    if free < size / 10 {
        return Finding::warn("pool.room", found).matters("sandboxes will soon fail to write").fix(fix);
    }
    Finding::ok("pool.room", found)
}

fn filesystem(filesystem: &Filesystem) -> Finding {
    let check = "pool.filesystem";
    let fix =
        "look at `dmesg` and at the disk below; `coffer up` with a new data directory starts a new pool";
    if filesystem.is_read_only {
        return Finding::fail(check, "the kernel has made it read-only")
            .matters("sandboxes cannot write, and none can be created")
            .fix(fix);
    }
    if filesystem.errors > 0 {
        return Finding::warn(check, format!("{} errors of reading or writing so far", filesystem.errors))
            .matters("the disk below may be failing: files of sandboxes can be lost")
            .fix(fix);
    }
    Finding::ok(check, "writable and without errors")
}

fn quota(pool: &Pool) -> Finding {
    let wrong = pool.filesystem.as_ref().is_some_and(|filesystem| filesystem.has_wrong_quotas);
    if !pool.has_quota {
        return Finding::warn("pool.quota", "disk limits of sandboxes are not enforced here")
            .matters("one sandbox can fill the pool for all")
            .fix("install btrfs-progs and use a kernel with btrfs: docs/kernels.md");
    }
    if wrong {
        return Finding::warn("pool.quota", "the kernel says that its count of used space is wrong")
            .matters("sandboxes can use more or less than their limit")
            .fix("btrfs quota rescan on the pool (DATA/node/pool)");
    }
    Finding::ok("pool.quota", "disk limits of sandboxes are enforced")
}

fn ready(pool: &Pool) -> Finding {
    let found = format!("{} of at most {} sandboxes are ready", pool.ready, pool.most_ready);
    match (pool.ready, pool.most_ready) {
        (_, 0) => Finding::skipped("pool.ready", "`node.warm_slots` is 0: sandboxes are made when asked for"),
        (0, _) => Finding::warn("pool.ready", found)
            .matters("creating a sandbox takes longer until there are some")
            .fix(
                "the node refills them within seconds; if not, its log says why, and `pool.room` may be low",
            ),
        _ => Finding::ok("pool.ready", found),
    }
}

/// What the metrics of the server say about its circuit breakers.
pub(super) fn breakers(metrics: &str) -> Finding {
    let not_closed: Vec<&str> = metrics
        .lines()
        .filter_map(|line| {
            let (labels, value) = line.strip_prefix("coffer_circuit_breaker_state{")?.split_once("} ")?;
            let name = labels.split("dependency=\"").nth(1)?.split('"').next()?;
            value.split(' ').next()?.parse::<f64>().ok().filter(|&state| state > 0.0).map(|_| name)
        })
        .collect();
    if not_closed.is_empty() {
        return Finding::ok("breakers", "the server uses the node and all forges");
    }
    Finding::fail("breakers", format!("the server has stopped asking: {}", not_closed.join(", ")))
        .matters("they failed several times in a row; requests that need them are refused until one succeeds")
        .fix("the server's log says why they failed; it tries again by itself")
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    fn healthy() -> Pool {
        Pool {
            size: Some(10 << 30),
            free: Some(9 << 30),
            has_quota: true,
            ready: 3,
            most_ready: 8,
            filesystem: Some(Filesystem::default()),
        }
    }

    fn status(pool: &Pool, check: &str) -> Status {
        judge(pool).into_iter().find(|finding| finding.check == check).unwrap().status
    }

    #[test]
    fn a_healthy_pool_is_ok_in_all_and_each_fault_is_named() {
        assert!(judge(&healthy()).iter().all(|finding| finding.status == Status::Ok));
        assert_eq!(status(&Pool { free: Some(100 << 20), ..healthy() }, "pool.room"), Status::Fail);
        assert_eq!(status(&Pool { free: Some(900 << 20), ..healthy() }, "pool.room"), Status::Warn);
        assert_eq!(status(&Pool { size: None, ..healthy() }, "pool.room"), Status::Skipped);
        let damaged = |filesystem| Pool { filesystem: Some(filesystem), ..healthy() };
        let read_only = damaged(Filesystem { is_read_only: true, ..Filesystem::default() });
        assert_eq!(status(&read_only, "pool.filesystem"), Status::Fail);
        let failing = damaged(Filesystem { errors: 2, ..Filesystem::default() });
        assert_eq!(status(&failing, "pool.filesystem"), Status::Warn);
        let counting = damaged(Filesystem { has_wrong_quotas: true, ..Filesystem::default() });
        assert_eq!(status(&counting, "pool.quota"), Status::Warn);
        assert_eq!(status(&Pool { has_quota: false, ..healthy() }, "pool.quota"), Status::Warn);
        assert_eq!(status(&Pool { ready: 0, ..healthy() }, "pool.ready"), Status::Warn);
        assert_eq!(status(&Pool { ready: 0, most_ready: 0, ..healthy() }, "pool.ready"), Status::Skipped);
    }

    #[test]
    fn the_pools_own_mount_is_found() {
        let table = "27 1 254:0 / / rw,noatime - ext4 /dev/vda rw\n\
                     44 27 0:41 / /data/node/pool rw,nosuid - btrfs /dev/loop0 ro,commit=10\n\
                     45 27 0:42 / /data/node/pool2 rw,nosuid - btrfs /dev/loop1 rw\n";
        let found = |path| mount(table, Path::new(path));
        assert_eq!(found("/data/node/pool"), Some((true, "/dev/loop0".into())));
        assert_eq!(found("/data/node/pool2"), Some((false, "/dev/loop1".into())));
        assert_eq!(found("/"), None);
    }

    #[test]
    fn errors_of_all_devices_are_added() {
        let temp = tempfile::tempdir().unwrap();
        for (device, text) in [("1", "write_errs 1\nread_errs 2\n"), ("2", "corruption_errs 4\n")] {
            let device = temp.path().join("devinfo").join(device);
            std::fs::create_dir_all(&device).unwrap();
            std::fs::write(device.join("error_stats"), text).unwrap();
        }
        assert_eq!(errors(temp.path()), 7);
        assert_eq!(errors(Path::new("/nonexistent")), 0);
    }

    #[test]
    fn an_open_breaker_fails_with_its_name() {
        let text = |node: u8| {
            format!(
                "# HELP x\ncoffer_circuit_breaker_state{{dependency=\"node\"}} {node}.0\n\
                     coffer_circuit_breaker_state{{dependency=\"forge:github.com\"}} 0.0\n"
            )
        };
        assert_eq!(breakers(&text(0)).status, Status::Ok);
        assert_eq!(breakers(&text(2)).found, "the server has stopped asking: node");
    }
}

//! Limits for all sandboxes together: each has its own, but they add up, and the host and this node must keep
//! working when all sandboxes are at theirs.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::controller::Controller;

const MIB: u64 = 1024 * 1024;
/// With fewer process ids than this for all, a few sandboxes at their limit leave none for the others.
const ENOUGH_PROCESSES: u64 = 65_536;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Together {
    /// Memory that stays the host's.
    pub(super) reserve_bytes: u64,
    /// Memory of all sandboxes together.
    pub(super) memory_bytes: u64,
    processes: u64,
}

impl Together {
    /// Reserves an eighth of the host's memory, from 256 MiB to 2 GiB, or the configured amount.
    pub(super) fn on_this_host(reserve_bytes: Option<u64>) -> io::Result<Self> {
        let ids: u64 = number(&fs::read_to_string("/proc/sys/kernel/pid_max")?)?;
        let threads: u64 = number(&fs::read_to_string("/proc/sys/kernel/threads-max")?)?;
        Self::of(&fs::read_to_string("/proc/meminfo")?, ids.min(threads), reserve_bytes)
    }

    fn of(meminfo: &str, ids: u64, reserve_bytes: Option<u64>) -> io::Result<Self> {
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.strip_suffix("kB"));
        let total = number(total.unwrap_or_default())?.saturating_mul(1024);
        let reserve_bytes = reserve_bytes.unwrap_or((total / 8).clamp(256 * MIB, 2048 * MIB));
        Ok(Self {
            reserve_bytes,
            memory_bytes: total.saturating_sub(reserve_bytes).max(64 * MIB),
            processes: ids.saturating_sub(ids / 4),
        })
    }

    /// Limits the directory that holds all sandboxes, in one hierarchy.
    pub(super) fn limit(&self, parent: &Path, controller: Controller, v2: bool) -> io::Result<()> {
        let write = |file: &str, value: u64| fs::write(parent.join(file), value.to_string());
        match controller {
            Controller::Memory if v2 => write("memory.max", self.memory_bytes),
            Controller::Memory => write("memory.limit_in_bytes", self.memory_bytes),
            Controller::Pids => write("pids.max", self.processes),
            Controller::Cpu | Controller::Io | Controller::CpuAccount | Controller::Freezer => Ok(()),
        }
    }

    /// All that the host has.
    pub(super) const fn machine_bytes(&self) -> u64 {
        self.memory_bytes.saturating_add(self.reserve_bytes)
    }

    pub(super) fn warning(&self) -> Option<String> {
        (self.processes < ENOUGH_PROCESSES).then(|| {
            format!(
                "all sandboxes together may have {} processes, because the host has few process ids: \
                 `sysctl kernel.pid_max=4194304` gives more",
                self.processes
            )
        })
    }
}

fn number(text: &str) -> io::Result<u64> {
    text.trim().parse().map_err(|_| ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_keeps_its_part() {
        let of = |gib: u64, ids| {
            Together::of(&format!("MemTotal:  {} kB\nMemFree: 1 kB\n", gib << 20), ids, None).unwrap()
        };
        let gib = |count: u64| count << 30;
        let small =
            Together { reserve_bytes: 256 * MIB, memory_bytes: gib(1) - 256 * MIB, processes: 24_576 };
        assert_eq!(of(1, 32_768), small);
        assert_eq!(of(8, 4_194_304).memory_bytes, gib(7));
        assert_eq!(of(256, 4_194_304).memory_bytes, gib(254));
        assert!(of(1, 32_768).warning().is_some());
        assert!(of(1, 4_194_304).warning().is_none());
        assert!(Together::of("nothing", 1, None).is_err());
    }
}

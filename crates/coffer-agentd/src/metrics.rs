//! `GET /metrics`: the sandbox's resource usage, as seen from inside.
//!
//! `/proc/cpuinfo` and `/proc/meminfo` are the sandbox's own and show its limits, not its use. Use is summed
//! over its processes: the host's counters are not visible inside.

use std::fs;
use std::time::Instant;

use coffer_core::sync::Mutex;
use coffer_wire::agentd::Init;
use serde::Serialize;

use crate::clock::since_epoch;

const MIB: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Metrics {
    ts: u64,
    cpu_count: u32,
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    mem_total_mib: u64,
    mem_used_mib: u64,
    disk_used: u64,
    disk_total: u64,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    taken: Instant,
    ticks: u64,
    percent: f64,
}

/// Remembers the last sample, to compute the usage since.
#[derive(Debug)]
pub(crate) struct Meter {
    last: Mutex<Sample>,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self { last: Mutex::new(Sample { taken: Instant::now(), ticks: 0, percent: 0.0 }) }
    }

    pub(crate) fn read(&self, init: &Init) -> Metrics {
        let usage = usage();
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let cpus = cpu_count();
        let mem_total = field(&memory, "MemTotal:");
        let mem_used = usage.resident.min(mem_total);
        let (disk_used, disk_total) = disk(init.disk_total);
        Metrics {
            ts: since_epoch().as_secs(),
            cpu_count: cpus,
            cpu_used_pct: self.percent(usage.ticks),
            mem_total,
            mem_used,
            mem_cache: field(&memory, "Cached:"),
            mem_total_mib: mem_total / MIB,
            mem_used_mib: mem_used / MIB,
            disk_used,
            disk_total,
        }
    }

    /// In percent of one processor, since the last sample.
    fn percent(&self, ticks: u64) -> f64 {
        let mut last = self.last.lock();
        let elapsed = last.taken.elapsed().as_secs_f64();
        // Ticks are hundredths of a second: over shorter times the numbers would jump.
        if elapsed < 0.1 {
            return last.percent;
        }
        let used = ticks.saturating_sub(last.ticks) as f64 / ticks_per_second();
        let percent = (used / elapsed * 10_000.0).round() / 100.0;
        *last = Sample { taken: Instant::now(), ticks, percent };
        percent
    }
}

struct Usage {
    /// Processor time of all running processes, and of ended children of running ones.
    ticks: u64,
    /// Memory that only one process uses.
    resident: u64,
}

fn usage() -> Usage {
    let mut usage = Usage { ticks: 0, resident: 0 };
    let Ok(entries) = fs::read_dir("/proc") else {
        return usage;
    };
    let page = rustix::param::page_size() as u64;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else {
            continue;
        };
        if let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) {
            usage.ticks += ticks(&stat).unwrap_or_default();
        }
        if let Ok(statm) = fs::read_to_string(format!("/proc/{pid}/statm")) {
            let mut pages = statm.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
            if let (Some(Ok(resident)), Some(Ok(shared))) = (pages.next(), pages.next()) {
                usage.resident += resident.saturating_sub(shared) * page;
            }
        }
    }
    usage
}

/// utime, stime, cutime and cstime: the 14th to 17th field, counted after the name, which may contain
/// anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let times: Vec<u64> =
        rest.split_ascii_whitespace().skip(11).take(4).filter_map(|field| field.parse().ok()).collect();
    (times.len() == 4).then(|| times.iter().sum())
}

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

fn cpu_count() -> u32 {
    let listed = fs::read_to_string("/proc/cpuinfo")
        .unwrap_or_default()
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    match u32::try_from(listed) {
        Ok(count) if count > 0 => count,
        _ => std::thread::available_parallelism()
            .ok()
            .and_then(|count| u32::try_from(count.get()).ok())
            .unwrap_or(1),
    }
}

/// A line of `/proc/meminfo`, in bytes.
fn field(meminfo: &str, name: &str) -> u64 {
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or_default()
        .saturating_mul(1024)
}

/// Used and total. The file system may be larger than this sandbox's limit.
fn disk(limit: Option<u64>) -> (u64, u64) {
    let Ok(root) = rustix::fs::statvfs("/") else {
        return (0, limit.unwrap_or_default());
    };
    let total = root.f_blocks.saturating_mul(root.f_frsize);
    let used = root.f_blocks.saturating_sub(root.f_bfree).saturating_mul(root.f_frsize);
    match limit {
        Some(limit) => (used.min(limit), limit),
        None => (used, total),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_where_the_kernel_puts_them() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0";
        assert_eq!(ticks(stat), Some(100));
        assert_eq!(ticks("7 (a) S 1"), None);
        let meminfo = "MemTotal:  512 kB\nMemFree: 1 kB\nCached:  8 kB\n";
        assert_eq!(field(meminfo, "MemTotal:"), 512 << 10);
        assert_eq!(field(meminfo, "Cached:"), 8 << 10);
        assert_eq!(field(meminfo, "Swap:"), 0);
    }

    #[test]
    fn the_disk_is_no_larger_than_the_sandbox_may_use() {
        let (used, total) = disk(Some(1000));
        assert_eq!((used, total), (1000, 1000));
    }
}

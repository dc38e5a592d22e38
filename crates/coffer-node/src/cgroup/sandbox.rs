//! The control groups of one sandbox.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use coffer_core::Limits;
use rustix::process::{Pid, Signal};

use super::controller::{Controller, Powers};

/// The period of the processor limit.
const CPU_PERIOD_US: u64 = 100_000;

/// Minimum for socket buffers, where the kernel counts them separately from other memory.
const SOCKET_BUFFERS: u64 = 16 * 1024 * 1024;

/// Freezing waits for processes in uninterruptible calls; longer than this is a failure.
const FREEZE_PATIENCE: Duration = Duration::from_secs(10);

/// How often to search for processes and kill them, if they cannot be killed together.
const KILL_ROUNDS: usize = 64;

/// Current usage of a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) cpu_us: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) cache_bytes: u64,
    pub(crate) processes: u64,
}

/// One sandbox's directories; they need not exist.
#[derive(Debug, Clone)]
pub(crate) struct SandboxCgroup {
    v2: Option<V2Directory>,
    v1: Vec<(PathBuf, BTreeSet<Controller>)>,
}

#[derive(Debug, Clone)]
pub(super) struct V2Directory {
    pub(super) path: PathBuf,
    pub(super) controllers: BTreeSet<Controller>,
    pub(super) powers: Powers,
}

impl SandboxCgroup {
    pub(super) const fn new(v2: Option<V2Directory>, v1: Vec<(PathBuf, BTreeSet<Controller>)>) -> Self {
        Self { v2, v1 }
    }

    /// Creates the directories and sets the limits.
    pub(crate) fn create(&self, limits: &Limits) -> io::Result<()> {
        if let Some(V2Directory { path, controllers, .. }) = &self.v2 {
            make_anew(path)?;
            for controller in controllers {
                limit_v2(path, *controller, limits)?;
            }
        }
        for (path, controllers) in &self.v1 {
            make_anew(path)?;
            for controller in controllers {
                limit_v1(path, *controller, limits)?;
            }
        }
        Ok(())
    }

    fn v2_path(&self) -> Option<&Path> {
        self.v2.as_ref().map(|v2| v2.path.as_path())
    }

    /// The v2 directory that a process can be cloned into.
    pub(crate) fn birthplace(&self) -> Option<&Path> {
        self.v2.as_ref().filter(|v2| v2.powers.birth).map(|v2| v2.path.as_path())
    }

    /// The directories that a new process has to be moved into.
    fn to_join(&self) -> impl Iterator<Item = &Path> {
        let v2 = self.v2.iter().filter(|v2| !v2.powers.birth).map(|v2| v2.path.as_path());
        v2.chain(self.v1.iter().map(|(path, _)| path.as_path()))
    }

    /// Whether a new process must [`join`](Self::join) to be under all limits.
    pub(crate) fn needs_join(&self) -> bool {
        self.to_join().next().is_some()
    }

    /// Moves a process under the limits that it was not started under. The first move waits for the kernel,
    /// later ones do not, so do them one after the other.
    pub(crate) fn join(&self, pid: i32) -> io::Result<()> {
        let pid = pid.to_string();
        for path in self.to_join() {
            fs::write(path.join("cgroup.procs"), &pid)?;
        }
        Ok(())
    }

    /// Freezes every process and waits until they are.
    pub(crate) async fn freeze(&self) -> io::Result<()> {
        self.set_frozen(true)?;
        // Freezing is asynchronous: a process in the kernel stops only when it leaves it.
        let deadline = tokio::time::Instant::now() + FREEZE_PATIENCE;
        let mut pause = Duration::from_micros(100);
        while !self.is_frozen()? {
            if tokio::time::Instant::now() > deadline {
                self.set_frozen(false)?;
                return Err(io::Error::new(ErrorKind::TimedOut, "a process would not freeze"));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        Ok(())
    }

    pub(crate) fn thaw(&self) -> io::Result<()> {
        self.set_frozen(false)
    }

    fn set_frozen(&self, frozen: bool) -> io::Result<()> {
        if let Some(v2) = self.freezing_v2() {
            return fs::write(v2.join("cgroup.freeze"), if frozen { "1" } else { "0" });
        }
        let v1 = self.v1_of(Controller::Freezer).ok_or(ErrorKind::Unsupported)?;
        fs::write(v1.join("freezer.state"), if frozen { "FROZEN" } else { "THAWED" })
    }

    pub(crate) fn is_frozen(&self) -> io::Result<bool> {
        if let Some(v2) = self.freezing_v2() {
            let events = fs::read_to_string(v2.join("cgroup.events"))?;
            return Ok(field(&events, "frozen") == Some(1));
        }
        let Some(v1) = self.v1_of(Controller::Freezer) else { return Ok(false) };
        Ok(fs::read_to_string(v1.join("freezer.state"))?.trim() == "FROZEN")
    }

    fn freezing_v2(&self) -> Option<&Path> {
        self.v2.as_ref().filter(|v2| v2.powers.freeze).map(|v2| v2.path.as_path())
    }

    /// Sends SIGKILL to every process. They may take a moment to exit.
    pub(crate) fn kill(&self) {
        // In one write where the kernel can: no process can fork its way past that, as it can past a list.
        let killable = self.v2.as_ref().filter(|v2| v2.powers.kill);
        let killed = killable.is_some_and(|v2| fs::write(v2.path.join("cgroup.kill"), "1").is_ok());
        if !killed {
            self.kill_one_by_one();
        }
        // Under v1 a frozen process dies only once it is thawed.
        if self.freezing_v2().is_none() {
            let _ = self.set_frozen(false);
        }
    }

    /// Kills until no process is left that could fork, as a fork bomb does. Bounded: a process in the kernel
    /// dies when it leaves it, and callers that need an empty directory try again.
    fn kill_one_by_one(&self) {
        for _ in 0..KILL_ROUNDS {
            let processes = self.processes();
            let mut live = 0;
            for pid in processes {
                live += usize::from(rustix::process::kill_process(pid, Signal::KILL).is_ok());
            }
            if live == 0 {
                return;
            }
        }
    }

    /// Every process in any of the directories.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let paths = self.v2_path().into_iter().chain(self.v1.iter().map(|(path, _)| path.as_path()));
        let mut processes: Vec<_> = paths
            .filter_map(|path| fs::read_to_string(path.join("cgroup.procs")).ok())
            .flat_map(|text| {
                text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect::<Vec<_>>()
            })
            .collect();
        processes.sort_unstable_by_key(|pid| pid.as_raw_nonzero());
        processes.dedup();
        processes
    }

    /// Removes the directories. Fails while a process is left; then may be tried again.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let mut failure = Ok(());
        for path in self.v2_path().into_iter().chain(self.v1.iter().map(|(path, _)| path.as_path())) {
            match fs::remove_dir(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => failure = Err(error),
                _ => {}
            }
        }
        failure
    }

    /// How many processes the kernel has killed for lack of memory.
    pub(crate) fn out_of_memory_kills(&self) -> u64 {
        let Some((path, version)) = self.of(Controller::Memory) else { return 0 };
        let file = match version {
            Version::Two => "memory.events",
            Version::One => "memory.oom_control",
        };
        fs::read_to_string(path.join(file)).ok().and_then(|text| field(&text, "oom_kill")).unwrap_or(0)
    }

    /// A sample; figures that the host does not count are zero.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        if let Some(path) = self.v2_path() {
            let text = fs::read_to_string(path.join("cpu.stat")).unwrap_or_default();
            usage.cpu_us = field(&text, "usage_usec").unwrap_or(0);
        } else if let Some(path) = self.v1_of(Controller::CpuAccount) {
            usage.cpu_us = number(&path.join("cpuacct.usage")) / 1000;
        }
        if let Some((path, version)) = self.of(Controller::Memory) {
            let (current, cache) = match version {
                Version::Two => ("memory.current", "file"),
                Version::One => ("memory.usage_in_bytes", "total_cache"),
            };
            usage.memory_bytes = number(&path.join(current));
            let text = fs::read_to_string(path.join("memory.stat")).unwrap_or_default();
            usage.cache_bytes = field(&text, cache).unwrap_or(0);
        }
        if let Some((path, _)) = self.of(Controller::Pids) {
            usage.processes = number(&path.join("pids.current"));
        }
        usage
    }

    fn v1_of(&self, controller: Controller) -> Option<&Path> {
        let found = self.v1.iter().find(|(_, controllers)| controllers.contains(&controller));
        found.map(|(path, _)| path.as_path())
    }

    fn of(&self, controller: Controller) -> Option<(&Path, Version)> {
        match &self.v2 {
            Some(v2) if v2.controllers.contains(&controller) => Some((&v2.path, Version::Two)),
            _ => self.v1_of(controller).map(|path| (path, Version::One)),
        }
    }
}

/// Replaces a directory that an earlier run left because its last process still held it.
fn make_anew(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_dir(path).and_then(|()| fs::create_dir(path))
        }
        made => made,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

fn limit_v2(path: &Path, controller: Controller, limits: &Limits) -> io::Result<()> {
    match controller {
        Controller::Memory => {
            fs::write(path.join("memory.max"), limits.memory_bytes().to_string())?;
            // `memory.high` stays open: without swap it would only stall a sandbox on its way to the limit. And the
            // kernel kills the one process that is too large, not the whole sandbox with agentd in it.
            optional(fs::write(path.join("memory.oom.group"), "0"))?;
            optional(fs::write(path.join("memory.swap.max"), "0"))
        }
        Controller::Pids => fs::write(path.join("pids.max"), limits.max_processes.to_string()),
        Controller::Cpu => {
            let quota = u64::from(limits.cpu_count) * CPU_PERIOD_US;
            fs::write(path.join("cpu.max"), format!("{quota} {CPU_PERIOD_US}"))?;
            fs::write(path.join("cpu.weight"), weight(limits).to_string())
        }
        // Absent unless the disk's scheduler divides by weight (BFQ, or the kernel's cost model).
        Controller::Io => optional(fs::write(path.join("io.weight"), weight(limits).to_string())),
        Controller::CpuAccount | Controller::Freezer => Ok(()),
    }
}

/// The share of a busy host: as many times the usual 100 as a sandbox may use processors.
fn weight(limits: &Limits) -> u64 {
    (u64::from(limits.cpu_count) * 100).clamp(1, 10_000)
}

fn limit_v1(path: &Path, controller: Controller, limits: &Limits) -> io::Result<()> {
    match controller {
        Controller::Memory => {
            let bytes = limits.memory_bytes().to_string();
            fs::write(path.join("memory.limit_in_bytes"), &bytes)?;
            // Memory and swap together, so no swap; absent where the kernel does not count swap.
            optional(fs::write(path.join("memory.memsw.limit_in_bytes"), &bytes))?;
            // v1 counts TCP and UDP buffers separately, and without this limit not at all: one sandbox could
            // take all the memory that the kernel has for them.
            let buffers = (limits.memory_bytes() / 8).max(SOCKET_BUFFERS).to_string();
            optional(fs::write(path.join("memory.kmem.tcp.limit_in_bytes"), buffers))?;
            optional(fs::write(path.join("memory.swappiness"), "0"))
        }
        Controller::Pids => fs::write(path.join("pids.max"), limits.max_processes.to_string()),
        Controller::Cpu => {
            fs::write(path.join("cpu.cfs_period_us"), CPU_PERIOD_US.to_string())?;
            let quota = u64::from(limits.cpu_count) * CPU_PERIOD_US;
            fs::write(path.join("cpu.cfs_quota_us"), quota.to_string())?;
            // cpu.shares counts in 1024ths, cpu.weight in 100ths.
            optional(fs::write(path.join("cpu.shares"), (weight(limits) * 1024 / 100).to_string()))
        }
        Controller::Io | Controller::CpuAccount | Controller::Freezer => Ok(()),
    }
}

/// A file that some kernels do not have.
fn optional(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
                || error.raw_os_error() == Some(libc::EOPNOTSUPP) =>
        {
            Ok(())
        }
        result => result,
    }
}

fn number(path: &Path) -> u64 {
    fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The value of `name` in lines of `name value`.
fn field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_v2_wants_them() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("sandbox");
        let controllers = BTreeSet::from([Controller::Memory, Controller::Pids, Controller::Cpu]);
        let powers = Powers { birth: true, freeze: true, kill: true };
        let v2 = V2Directory { path: path.clone(), controllers, powers };
        let cgroup = SandboxCgroup::new(Some(v2.clone()), Vec::new());
        let limits = Limits { cpu_count: 3, memory_mib: 64, disk_mib: 1, max_processes: 9 };
        // Left by an earlier run; it must not keep this one from starting.
        fs::create_dir(&path).unwrap();
        cgroup.create(&limits).unwrap();
        assert!(!cgroup.needs_join());
        let unborn = V2Directory { powers: Powers { birth: false, ..powers }, ..v2 };
        let unborn = SandboxCgroup::new(Some(unborn), Vec::new());
        assert!(unborn.needs_join() && unborn.birthplace().is_none());
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
        let names =
            ["memory.max", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max", "cpu.weight"];
        assert_eq!(names.map(read), ["67108864", "0", "0", "9", "300000 100000", "300"]);
        fs::write(path.join("memory.events"), "low 0\noom_kill 4\n").unwrap();
        fs::write(path.join("memory.current"), "4096\n").unwrap();
        fs::write(path.join("memory.stat"), "anon 1\nfile 1024\n").unwrap();
        fs::write(path.join("cpu.stat"), "usage_usec 77\n").unwrap();
        fs::write(path.join("pids.current"), "5\n").unwrap();
        assert_eq!(cgroup.out_of_memory_kills(), 4);
        let expected = Usage { cpu_us: 77, memory_bytes: 4096, cache_bytes: 1024, processes: 5 };
        assert_eq!(cgroup.usage(), expected);
    }

    /// Covers hosts without v2, on any host.
    #[tokio::test]
    async fn the_v1_freezer_freezes_and_lets_frozen_processes_die() {
        let parent = Path::new("/sys/fs/cgroup/freezer");
        if !rustix::process::geteuid().is_root() || !parent.join("cgroup.procs").exists() {
            println!("SKIPPED: needs root and a v1 freezer at `{}`", parent.display());
            return;
        }
        let path = parent.join(format!("coffer-test-{}", std::process::id()));
        let cgroup = SandboxCgroup::new(None, vec![(path, BTreeSet::from([Controller::Freezer]))]);
        cgroup.create(&Limits::default()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        cgroup.join(child.id().cast_signed()).unwrap();
        cgroup.freeze().await.unwrap();
        assert!(cgroup.is_frozen().unwrap());
        cgroup.thaw().unwrap();
        assert!(!cgroup.is_frozen().unwrap());
        cgroup.freeze().await.unwrap();
        cgroup.kill();
        assert!(!child.wait().unwrap().success());
        cgroup.remove().unwrap();
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "oom 2\noom_kill 1\noom_kill_disable 0\n";
        assert_eq!(field(text, "oom_kill"), Some(1));
        assert_eq!(field(text, "oom"), Some(2));
        assert_eq!(field(text, "kill"), None);
    }
}

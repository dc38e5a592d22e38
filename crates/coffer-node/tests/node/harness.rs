//! A real node of the test's own, with everything in its own directory.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use coffer_core::{Limits, Memory, SandboxId, SnapshotId};
use coffer_engine::{Engine as _, EngineNotice, NodeEngine, Placement};
use coffer_node::features::{KNOWN_HOSTS, Lacking};
use coffer_node::{NodeConfig, NodeFailure, PoolChoice, Spawner, WarmChoice};
use coffer_wire::node::{CreateSandbox, SnapshotInfo};
use tempfile::TempDir;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Enough for a few sandboxes and the test's own binary.
const POOL_BYTES: u64 = 1024 * 1024 * 1024;

/// Where a test's node keeps its things; outlives the node, so that another can be started there.
pub(crate) struct Home {
    directory: TempDir,
    run: TempDir,
    pub(crate) pool: PoolChoice,
    pub(crate) ephemeral: bool,
    /// Off unless a test is about it: others count resources.
    pub(crate) warm: WarmChoice,
    /// Kernel features that its nodes do without.
    pub(crate) lacking: Lacking,
    pub(crate) encrypt_memory: bool,
}

/// Runs every test as on a host of this name, as `make kernels` does.
const HOST: &str = "COFFER_KERNEL_HOST";
/// Runs a node in a separate process without these kernel features.
const LACKS: &str = "COFFER_KERNEL_LACKS";

fn lacking() -> Lacking {
    if let Ok(lacks) = std::env::var(LACKS) {
        return lacks.parse().unwrap();
    }
    let Ok(name) = std::env::var(HOST) else { return Lacking::default() };
    let host = KNOWN_HOSTS.iter().find(|host| host.name == name);
    let host = host.unwrap_or_else(|| panic!("{HOST}={name} is not one of {KNOWN_HOSTS:?}"));
    host.lacks.iter().copied().collect()
}

impl Home {
    pub(crate) fn new() -> Self {
        fs::create_dir_all("/run/coffer").unwrap();
        let run = tempfile::Builder::new().prefix("t-").tempdir_in("/run/coffer").unwrap();
        Self {
            directory: tempfile::Builder::new().prefix("coffer-node-").tempdir().unwrap(),
            run,
            pool: PoolChoice::Auto { size_bytes: Some(POOL_BYTES) },
            ephemeral: true,
            warm: WarmChoice::OFF,
            lacking: lacking(),
            // To compare the two.
            encrypt_memory: std::env::var_os("COFFER_PLAIN_MEMORY").is_none(),
        }
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join("data")
    }

    pub(crate) fn run_dir(&self) -> &Path {
        self.run.path()
    }

    fn config(&self) -> NodeConfig {
        let config = config(self.data_dir(), self.run.path().into(), self.template_dir());
        NodeConfig {
            pool: self.pool.clone(),
            ephemeral: self.ephemeral,
            warm: self.warm,
            lacking: self.lacking.clone(),
            encrypt_memory: self.encrypt_memory,
            ..config
        }
    }

    pub(crate) fn template_dir(&self) -> PathBuf {
        self.directory.path().join("templates")
    }

    /// Starts a node in a separate process, and a client to it that ends with the token.
    pub(crate) async fn start_process(&self) -> (std::process::Child, NodeEngine, CancellationToken) {
        self.start_process_with(&[]).await
    }

    /// The same with extra environment variables.
    pub(crate) async fn start_process_with(
        &self,
        variables: &[(&str, &str)],
    ) -> (std::process::Child, NodeEngine, CancellationToken) {
        let process = self.process().envs(variables.iter().copied()).spawn().unwrap();
        let stop = CancellationToken::new();
        let engine = NodeEngine::start(self.run.path().join("node.sock"), stop.clone());
        engine.info().await.unwrap();
        (process, engine, stop)
    }

    /// Starts a node in a separate process.
    pub(crate) fn spawn_process(&self) -> std::process::Child {
        self.process().spawn().unwrap()
    }

    fn process(&self) -> std::process::Command {
        // Sandboxes that such a node leaves behind become our children.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let mut command = std::process::Command::new("/proc/self/exe");
        command
            .arg("node")
            .args([self.data_dir(), self.run.path().to_path_buf(), self.template_dir()])
            .arg(self.warm.max.to_string())
            .env(LACKS, self.lacking.to_string());
        command
    }

    /// Starts a node and waits until it answers.
    pub(crate) async fn start(&self) -> TestNode {
        self.start_with(own_binary()).await
    }

    pub(crate) async fn start_with(&self, agentd: &'static [u8]) -> TestNode {
        let spawner = Spawner::start().unwrap();
        let spawner_pid = spawner.pid();
        let stop = CancellationToken::new();
        let config = NodeConfig { agentd, ..self.config() };
        let running = tokio::spawn(coffer_node::run(config, spawner, stop.clone()));
        let client_stop = CancellationToken::new();
        let engine = NodeEngine::start(self.run.path().join("node.sock"), client_stop.clone());
        let notices = engine.notices();
        let node = TestNode { engine, notices, stop, client_stop, running, spawner_pid };
        if let Err(error) = node.engine.info().await {
            panic!("the node does not answer: {error}; it ended with {:?}", node.running.await);
        }
        node
    }

    /// How a node ends that cannot start.
    pub(crate) async fn try_start(&self) -> Result<(), NodeFailure> {
        coffer_node::run(self.config(), Spawner::start().unwrap(), CancellationToken::new()).await
    }

    /// Changes a journal entry while no node runs; gives it as it is then.
    pub(crate) fn edit_entry(
        &self,
        sandbox: SandboxId,
        edit: impl FnOnce(&mut serde_json::Value),
    ) -> serde_json::Value {
        let path = self.data_dir().join(format!("sandboxes/{sandbox}.json"));
        let mut entry = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut entry);
        fs::write(&path, serde_json::to_vec(&entry).unwrap()).unwrap();
        entry
    }

    /// The name of the node's cgroup directories.
    pub(crate) fn cgroup(&self) -> String {
        use sha2::{Digest as _, Sha256};
        let hash = Sha256::digest(self.data_dir().as_os_str().as_encoded_bytes());
        format!("coffer-{:02x}{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2], hash[3])
    }

    /// Processes of this node's sandboxes that still run.
    pub(crate) fn live_processes(&self) -> usize {
        let live = |process: &fs::DirEntry| {
            let read = |name: &str| fs::read_to_string(process.path().join(name)).unwrap_or_default();
            read("cgroup").contains(&self.cgroup()) && !read("status").contains("State:\tZ")
        };
        fs::read_dir("/proc").unwrap().flatten().filter(live).count()
    }

    /// Reaps the children that a killed node left us, as the host's init would.
    pub(crate) fn reap_orphans(&self) {
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let ours =
                fs::read_to_string(process.path().join("cgroup")).is_ok_and(|c| c.contains(&self.cgroup()));
            let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
            if let (true, Some(pid)) = (ours, pid.and_then(rustix::process::Pid::from_raw)) {
                let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
            }
        }
    }

    /// Ends the processes of everything that is not one of `sandboxes`, by the names of their cgroups.
    pub(crate) fn kill_slots(&self, sandboxes: &[PathBuf]) {
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let cgroup = fs::read_to_string(process.path().join("cgroup")).unwrap_or_default();
            let named = |socket: &PathBuf| cgroup.contains(socket.file_stem().unwrap().to_str().unwrap());
            let pid = process.file_name().to_str().and_then(|name| name.parse().ok());
            if let (true, false, Some(pid)) = (
                cgroup.contains(&self.cgroup()),
                sandboxes.iter().any(named),
                pid.and_then(rustix::process::Pid::from_raw),
            ) {
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            }
        }
    }

    /// Counts all resources of this node on the host.
    pub(crate) fn belongings(&self) -> Belongings {
        let mut counts = BTreeMap::new();
        let cgroup = self.cgroup();
        let mut namespaces = std::collections::BTreeSet::new();
        let mut processes = 0;
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let read = fs::read_to_string(entry.path().join("cgroup"));
            if read.is_ok_and(|text| text.contains(&cgroup)) {
                processes += 1;
                namespaces.extend(fs::read_link(entry.path().join("ns/net")).ok());
            }
        }
        counts.insert("processes", processes);
        counts.insert("network namespaces", namespaces.len());
        let data = self.data_dir().display().to_string();
        let lines = |path: &str, part: &str| {
            fs::read_to_string(path).unwrap().lines().filter(|line| line.contains(part)).count()
        };
        counts.insert("mounts", lines("/proc/self/mountinfo", &data));
        let loops = fs::read_dir("/sys/block").unwrap().flatten().filter(|entry| {
            let backing = fs::read_to_string(entry.path().join("loop/backing_file"));
            backing.is_ok_and(|path| path.starts_with(&data))
        });
        // A process that creates a mount namespace while the pool is mounted holds a copy of the mount.
        let held_by_others = counts["mounts"] == 0 && processes == 0 && is_mounted_elsewhere(&data);
        counts.insert("loop devices", if held_by_others { 0 } else { loops.count() });
        let mut cgroups = 0;
        for line in fs::read_to_string("/proc/self/mountinfo").unwrap().lines() {
            if line.contains(" - cgroup") {
                let ours = Path::new(line.split(' ').nth(4).unwrap()).join(&cgroup);
                cgroups += directories(&ours) + usize::from(ours.exists());
            }
        }
        counts.insert("cgroups", cgroups);
        let files = |path: PathBuf| fs::read_dir(path).map_or(0, Iterator::count);
        counts.insert("uppers", files(self.data_dir().join("pool/s")));
        counts.insert("snapshots", files(self.data_dir().join("pool/snapshots")));
        counts.insert("manifests", files(self.data_dir().join("snapshots")));
        counts.insert("volumes", files(self.data_dir().join("pool/v")));
        counts.insert("drafts", files(self.data_dir().join("pool/d")));
        counts.insert("marks", files(self.data_dir().join("pool/z")));
        counts.insert("journal entries", files(self.data_dir().join("sandboxes")));
        counts.insert("sockets", files(self.run_dir().join("s")));
        counts.insert("small files", files(self.data_dir().join("pool/f")));
        let leases = fs::read_dir("/run/coffer/uids").map_or(0, |blocks| {
            blocks.flatten().filter(|block| fs::read_to_string(block.path()).is_ok_and(|o| o == data)).count()
        });
        counts.insert("uid blocks", leases);
        Belongings(counts)
    }
}

impl Drop for Home {
    /// Cleans up behind a test that failed half-way.
    fn drop(&mut self) {
        if self.belongings().nothing() {
            return;
        }
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let hierarchies: Vec<_> = mountinfo
            .lines()
            .filter(|line| line.contains(" - cgroup"))
            .filter_map(|line| Some(Path::new(line.split(' ').nth(4)?).join(self.cgroup())))
            .collect();
        for _ in 0..100 {
            for ours in &hierarchies {
                let _ = fs::write(ours.join("cgroup.kill"), "1");
                for sandbox in fs::read_dir(ours).into_iter().flatten().flatten() {
                    let _ = fs::remove_dir(sandbox.path());
                }
                let _ = fs::remove_dir(ours);
            }
            if !hierarchies.iter().any(|ours| ours.exists()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let pool = self.data_dir().join("pool");
        let _ = rustix::mount::unmount(&pool, rustix::mount::UnmountFlags::DETACH);
        for block in fs::read_dir("/run/coffer/uids").into_iter().flatten().flatten() {
            if fs::read_to_string(block.path()).is_ok_and(|owner| Path::new(&owner) == self.data_dir()) {
                let _ = fs::remove_file(block.path());
            }
        }
    }
}

fn config(data_dir: PathBuf, run_dir: PathBuf, template_dir: PathBuf) -> NodeConfig {
    NodeConfig {
        data_dir,
        run_dir,
        template_dir,
        agentd: own_binary(),
        pool: PoolChoice::Auto { size_bytes: Some(POOL_BYTES) },
        warm: WarmChoice::OFF,
        memory_reserve: None,
        git_memory: None,
        authority: None,
        mirrors: Default::default(),
        server_gid: 0,
        network: true,
        encrypt_memory: true,
        lacking: lacking(),
        ephemeral: false,
    }
}

/// The part of a node that runs until it is killed.
pub(crate) fn run_node(arguments: &[String]) -> std::process::ExitCode {
    let [data_dir, run_dir, template_dir, warm] = arguments else { return std::process::ExitCode::FAILURE };
    let spawner = Spawner::start().unwrap();
    let config = NodeConfig {
        warm: WarmChoice::up_to(warm.parse().unwrap()),
        ..config(data_dir.into(), run_dir.into(), template_dir.into())
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match runtime.block_on(coffer_node::run(config, spawner, CancellationToken::new())) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(failure) => panic!("{failure}"),
    }
}

fn is_mounted_elsewhere(data: &str) -> bool {
    fs::read_dir("/proc").unwrap().flatten().any(|process| {
        let mounts = fs::read_to_string(process.path().join("mountinfo"));
        let held = mounts.is_ok_and(|mounts| mounts.contains(data));
        if held {
            println!("process {} holds a copy of the mounts below {data}", process.file_name().display());
        }
        held
    })
}

fn directories(path: &Path) -> usize {
    fs::read_dir(path).map_or(0, |entries| entries.flatten().filter(|entry| entry.path().is_dir()).count())
}

/// Resources of a node on the host, by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Belongings(pub(crate) BTreeMap<&'static str, usize>);

impl Belongings {
    /// Blocks of ids stay with a node until it ends.
    pub(crate) fn without(mut self, kind: &str) -> Self {
        self.0.remove(kind).unwrap();
        self
    }

    pub(crate) fn nothing(&self) -> bool {
        self.0.values().all(|&count| count == 0)
    }
}

pub(crate) struct TestNode {
    pub(crate) engine: NodeEngine,
    pub(crate) notices: broadcast::Receiver<EngineNotice>,
    stop: CancellationToken,
    client_stop: CancellationToken,
    running: JoinHandle<Result<(), NodeFailure>>,
    pub(crate) spawner_pid: u32,
}

impl TestNode {
    pub(crate) async fn stop(self) {
        self.client_stop.cancel();
        self.stop.cancel();
        tokio::time::timeout(Duration::from_secs(60), self.running).await.unwrap().unwrap().unwrap();
    }

    pub(crate) async fn create(&self, limits: Limits) -> Sandbox {
        let spec = spec(limits);
        let placement = self.engine.create(&spec).await.unwrap();
        Sandbox { id: spec.sandbox, placement }
    }

    pub(crate) async fn snapshot(&self, sandbox: &Sandbox) -> SnapshotInfo {
        self.engine.snapshot(sandbox.id, SnapshotId::generate(), Memory::Without).await.unwrap()
    }

    /// Makes a sandbox from a snapshot.
    pub(crate) async fn child(&self, snapshot: &SnapshotInfo) -> Sandbox {
        let spec = CreateSandbox { snapshot: Some(snapshot.snapshot), ..spec(snapshot.limits) };
        let placement = self.engine.create(&spec).await.unwrap();
        Sandbox { id: spec.sandbox, placement }
    }

    /// Waits for the next notice of a death.
    pub(crate) async fn death(&mut self, limit: Duration) -> (SandboxId, coffer_wire::node::DeathCause) {
        let next = async {
            loop {
                if let EngineNotice::Died { sandbox, cause } = self.notices.recv().await.unwrap() {
                    return (sandbox, cause);
                }
            }
        };
        tokio::time::timeout(limit, next).await.expect("a death is told in time")
    }
}

pub(crate) fn spec(limits: Limits) -> CreateSandbox {
    CreateSandbox {
        sandbox: SandboxId::generate(),
        template: "base".into(),
        hostname: "e2b.local".into(),
        limits,
        network: coffer_core::network::Policy::default(),
        snapshot: None,
        from_template: false,
        template_owner: None,
        memory: false,
        volumes: Vec::new(),
    }
}

pub(crate) fn small() -> Limits {
    Limits { cpu_count: 1, memory_mib: 256, disk_mib: 64, max_processes: 64 }
}

pub(crate) struct Sandbox {
    pub(crate) id: SandboxId,
    pub(crate) placement: Placement,
}

impl Sandbox {
    /// Runs a script inside; gives its exit code and output.
    pub(crate) async fn script(&self, script: &str) -> (i32, String) {
        let (socket, script) = (self.placement.socket.clone(), script.to_string());
        tokio::task::spawn_blocking(move || converse(&socket, &script).unwrap()).await.unwrap()
    }

    /// The output of a script that succeeds.
    pub(crate) async fn output(&self, script: &str) -> String {
        let (code, output) = self.script(script).await;
        assert_eq!(code, 0, "{script}: {output}");
        output.trim_end().to_string()
    }

    /// Sends an order without waiting for an answer, because none will come.
    pub(crate) fn order(&self, order: &str) {
        let mut stream = UnixStream::connect(&self.placement.socket).unwrap();
        stream.write_all(order.as_bytes()).unwrap();
    }
}

fn converse(socket: &Path, script: &str) -> std::io::Result<(i32, String)> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.write_all(script.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (code, output) = answer.split_once('\n').ok_or(std::io::ErrorKind::UnexpectedEof)?;
    Ok((code.parse().map_err(|_| std::io::ErrorKind::InvalidData)?, output.to_string()))
}

/// This very program, which is also process 1 of the sandboxes.
fn own_binary() -> &'static [u8] {
    static BINARY: OnceLock<Vec<u8>> = OnceLock::new();
    BINARY.get_or_init(|| fs::read("/proc/self/exe").unwrap())
}

//! One node from start to stop: takes its directories, adopts what lives, serves, lets go.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use coffer_core::{SandboxId, SnapshotId};
use coffer_wire::node::{
    Capabilities, CreateSandbox, NodeError, NodeErrorCode, NodeInfo, Notice, Orphan, PROTOCOL, Reply, Request,
};
use landlock::{ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _};
use rustix::fs::FlockOperation;
use sha2::{Digest as _, Sha256};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cgroup::{self, Cgroups, Controller};
use crate::features::{Feature, Features, Need, Row, Unusable};
use crate::journal::Journal;
use crate::memory::Images;
use crate::network::{self, Network};
use crate::pool::{Fate, Pool};
use crate::processors::Processors;
use crate::reaper::Reaper;
use crate::sandbox::{Handle, Want, process};
use crate::snapshots::Snapshots;
use crate::spawner::{OverlayRecipe, Prober, Spawner, SpawnerClient};
use crate::template::{BASE, TemplateStore};
use crate::trust::Trust;
use crate::uids::{self, UidRanges};
use crate::warm::{self, Warm};
use crate::{NodeConfig, adopt, memory, rpc, scarcity, strays};

/// Requests that are under way when the node stops get this long.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// A node that was killed with its `up` may need a moment to be gone when the next one starts.
const PREDECESSOR: Duration = Duration::from_secs(5);

/// Changes whenever the host starts.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// What `sun_path` holds, without the zero at its end.
const LONGEST_SOCKET_PATH: usize = 107;
const ID_LENGTH: usize = 26;
/// Where egress listens for us, in the runtime directory.
const EGRESS_SOCKET: &str = "egress.sock";

/// Why a node could not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeFailure {
    #[error("another node uses the data directory `{}`", .0.display())]
    InUse(PathBuf),
    #[error("could not {doing} `{}`", .path.display())]
    Directory { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("the runtime directory `{}` is too long for the paths of sockets in it", .0.display())]
    RunDirTooLong(PathBuf),
    #[error("could not open the pool")]
    Pool(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("could not share out uid ranges")]
    Uids(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("could not look at the host's processors and control groups")]
    Host(#[source] io::Error),
    #[error(transparent)]
    Unusable(Unusable),
}

fn doing(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NodeFailure {
    move |source| NodeFailure::Directory { doing, path: path.to_path_buf(), source }
}

/// Everything that the tasks of a node share.
#[derive(Debug)]
pub(crate) struct Node {
    data_dir: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) server_gid: u32,
    pub(crate) agentd: PathBuf,
    pub(crate) templates: TemplateStore,
    pub(crate) journal: Journal,
    pub(crate) snapshots: Snapshots,
    pub(crate) pool: Pool,
    pub(crate) images: Images,
    pub(crate) cgroups: Cgroups,
    pub(crate) uids: UidRanges,
    pub(crate) processors: Processors,
    pub(crate) spawner: SpawnerClient,
    pub(crate) reaper: Reaper,
    pub(crate) warm: Warm,
    pub(crate) network: Network,
    pub(crate) trust: Option<Trust>,
    pub(crate) host_boot_id: String,
    pub(crate) notices: broadcast::Sender<Notice>,
    /// Connections and requests under way.
    pub(crate) requests: TaskTracker,
    /// Owners of sandboxes.
    pub(crate) owners: TaskTracker,
    /// Heard by the owners: they let go of their sandboxes as they are.
    pub(crate) letting_go: CancellationToken,
    sandboxes: Mutex<HashMap<SandboxId, Handle>>,
    /// What this kernel can do.
    features: Features,
    pub(crate) recipe: OverlayRecipe,
    warnings: Vec<String>,
    /// What nobody owned when this node started.
    orphans: OnceLock<Vec<Orphan>>,
}

/// Serves `run_dir/node.sock` until `stop`. Then leaves sandboxes running for the next node or, when
/// the configuration says ephemeral, destroys everything that it made.
pub async fn run(config: NodeConfig, spawner: Spawner, stop: CancellationToken) -> Result<(), NodeFailure> {
    // Sandboxes whose spawner ended become our children, and we learn how they end.
    if let Err(errno) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        tracing::warn!("could not become the parent of orphaned sandboxes: {errno}");
    }
    let prober = spawner.prober();
    let (client, serve_spawner) = SpawnerClient::new(spawner);
    let spawner_task = tokio::spawn(serve_spawner);
    let ephemeral = config.ephemeral;
    let opened = tokio::task::spawn_blocking(move || open(&config, client, &prober))
        .await
        .expect("opening does not panic");
    let (node, lock, egress) = opened?;
    let strays = tokio::spawn(strays::clear_away());
    memory::watch_leftovers(&node.data_dir).await;
    let adopted = tokio::task::spawn_blocking({
        let node = node.clone();
        move || adopt::adopt(&node)
    });
    let adopted = adopted.await.expect("adopting does not panic");
    let orphans = adopted.map_err(doing("read the journal in", &node.run_dir))?;
    node.orphans.set(orphans).expect("adoption happens once");
    let egress = tokio::spawn(egress.run());
    node.owners.spawn(keep_room(node.clone()));
    node.owners.spawn(scarcity::watch(node.clone()));
    let keeper = (!node.warm.is_off()).then(|| tokio::spawn(warm::keep(node.clone())));
    let served = rpc::serve(&node, &stop).await;

    node.requests.close();
    if tokio::time::timeout(STOP_PATIENCE, node.requests.wait()).await.is_err() {
        tracing::warn!("some requests did not end in time");
    }
    // Slots are not left to the next node: it may have another agentd.
    node.warm.stop();
    if let Some(keeper) = keeper {
        let _ = keeper.await;
    }
    if ephemeral {
        node.destroy_all().await;
    }
    node.letting_go.cancel();
    node.owners.close();
    if tokio::time::timeout(STOP_PATIENCE, node.owners.wait()).await.is_err() {
        tracing::warn!("some sandboxes could not be let go of in time");
    }
    node.reaper.finish().await;
    if let Some(node) = Arc::into_inner(node) {
        let Node {
            spawner,
            pool,
            images,
            cgroups,
            uids,
            sandboxes,
            run_dir,
            templates,
            data_dir,
            snapshots,
            ..
        } = node;
        // The last of its clients: the spawner ends.
        drop(spawner);
        let empty = sandboxes.into_inner().expect("no holder panics").values().all(Handle::holds_nothing);
        if empty && snapshots.is_empty() {
            templates.unregister(&data_dir);
        }
        let closing = tokio::task::spawn_blocking(move || {
            images.close();
            close(pool, &cgroups, &uids, &run_dir, empty, ephemeral);
        });
        closing.await.expect("closing does not panic");
    } else {
        tracing::warn!("leaving the pool mounted");
    }
    let _ = spawner_task.await;
    if tokio::time::timeout(STOP_PATIENCE, egress).await.is_err() {
        tracing::warn!("egress could not be told of everything");
    }
    strays.abort();
    drop(lock);
    served.map_err(|error| NodeFailure::Directory { doing: "serve", path: "node.sock".into(), source: error })
}

/// Watches over the pool until sandboxes are let go of.
async fn keep_room(node: Arc<Node>) {
    loop {
        let looking = node.clone();
        let looked = tokio::task::spawn_blocking(move || looking.pool.relieve()).await;
        let pause = looked.expect("looking at the pool does not panic").unwrap_or_else(|error| {
            tracing::warn!("could not look after the pool: {error}");
            Duration::from_secs(10)
        });
        tokio::select! {
            () = node.letting_go.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn close(pool: Pool, cgroups: &Cgroups, uids: &UidRanges, run_dir: &Path, empty: bool, ephemeral: bool) {
    uids.close();
    if empty {
        cgroups.remove();
        pool.close(if ephemeral { Fate::Remove } else { Fate::Keep });
        let _ = fs::remove_dir(run_dir.join("s"));
    }
    let _ = fs::remove_file(run_dir.join("node.sock"));
}

/// Takes the node's directories; the file holds the lock on them.
fn open(
    config: &NodeConfig,
    spawner: SpawnerClient,
    prober: &Prober,
) -> Result<(Arc<Node>, fs::File, network::Client), NodeFailure> {
    let private = |path: &Path| {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(doing("make", path))
    };
    private(&config.data_dir)?;
    let data_dir = config.data_dir.canonicalize().map_err(doing("find", &config.data_dir))?;
    let lock = lock(&data_dir)?;

    let longest = config.run_dir.as_os_str().len() + "/s/.sock".len() + ID_LENGTH;
    if longest > LONGEST_SOCKET_PATH {
        return Err(NodeFailure::RunDirTooLong(config.run_dir.clone()));
    }
    // The server's group may enter, and knows the names of sockets.
    let run_dir = &config.run_dir;
    for path in [run_dir.clone(), run_dir.join("s")] {
        private(&path)?;
        let opened = fs::set_permissions(&path, fs::Permissions::from_mode(0o750))
            .and_then(|()| chown(&path, None, Some(config.server_gid)));
        opened.map_err(doing("open to the server", &path))?;
    }
    let templates = TemplateStore::open(&config.template_dir)
        .and_then(|templates| templates.register(&data_dir).map(|()| templates))
        .map_err(doing("open templates in", &config.template_dir))?;
    let journal = Journal::open(&data_dir).map_err(doing("open the journal in", &data_dir))?;
    let snapshots = Snapshots::open(&data_dir).map_err(doing("open the snapshots in", &data_dir))?;
    let uids = UidRanges::open(Path::new(uids::DIRECTORY), &data_dir)
        .map_err(|error| NodeFailure::Uids(error.into()))?;
    let processors = Processors::of_this_process().map_err(NodeFailure::Host)?;
    let host_boot_id = fs::read_to_string(BOOT_ID).map_err(NodeFailure::Host)?;
    let name = cgroup::name_of(&data_dir);
    let mut features = Features::all_but(&config.lacking);
    let (cgroups, mut warnings) =
        Cgroups::open(&name, config.memory_reserve, config.git_memory, &mut features)
            .map_err(NodeFailure::Host)?;
    // Whatever fails from here on gives these back; with sandboxes in them they stay.
    let opened = Pool::open(&data_dir, &config.pool, &mut features).inspect_err(|_| cgroups.remove());
    let pool = opened.map_err(|error| NodeFailure::Pool(error.into()))?;
    if let Err(failure) = probe(prober, &pool, &config.template_dir, &mut features) {
        pool.close(Fate::Keep);
        cgroups.remove();
        return Err(failure);
    }
    // At once, so that whoever lists templates finds it; it costs a moment at the first start only.
    match templates.ensure_host() {
        Ok(host) if templates.get(BASE).is_none() => {
            for note in host.notes {
                tracing::info!("template `host`, in place of `base`: {note}");
            }
        }
        Ok(_) => {}
        Err(error) => warnings.push(format!("the template `host` cannot be made: {error}")),
    }
    let agentd = match install_agentd(&pool, config.agentd) {
        Ok(agentd) => agentd,
        Err(error) => {
            let failure = doing("install agentd in", &pool.binaries())(error);
            pool.close(Fate::Keep);
            cgroups.remove();
            return Err(failure);
        }
    };
    let images = match Images::open(&data_dir, &pool, config.encrypt_memory) {
        Ok(images) => images,
        Err(error) => {
            let failure = doing("make room for images in", &data_dir)(error);
            pool.close(Fate::Keep);
            cgroups.remove();
            return Err(failure);
        }
    };
    match memory::lacks() {
        None => tracing::info!("the memory of sandboxes can be saved, by CRIU"),
        Some(why) => features.lack(Feature::Criu, why),
    }
    let (network, egress) = Network::open(run_dir.join(EGRESS_SOCKET), config.network, &mut features);
    let trust = config.authority.as_deref().and_then(|authority| {
        let opened = Trust::open(&data_dir, authority);
        let lacking = |error| format!("sandboxes do not trust this installation's authority: {error}");
        opened.map_err(|error| warnings.push(lacking(error))).ok()
    });
    warnings.extend(log_missing(&features));
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    let recipe = OverlayRecipe::for_kernel(&features);
    let node = Node {
        warm: Warm::open(&data_dir, config.warm),
        data_dir,
        run_dir: run_dir.clone(),
        server_gid: config.server_gid,
        agentd,
        templates,
        journal,
        snapshots,
        pool,
        images,
        cgroups,
        uids,
        processors,
        spawner,
        reaper: Reaper::new(),
        network,
        trust,
        host_boot_id,
        notices: broadcast::channel(1024).0,
        requests: TaskTracker::new(),
        owners: TaskTracker::new(),
        letting_go: CancellationToken::new(),
        sandboxes: Mutex::new(HashMap::new()),
        features,
        recipe,
        warnings,
        orphans: OnceLock::new(),
    };
    Ok((Arc::new(node), lock, egress))
}

/// Tries what sandboxes are created by; an error where none can be.
fn probe(
    prober: &Prober,
    pool: &Pool,
    template_dir: &Path,
    features: &mut Features,
) -> Result<(), NodeFailure> {
    let scratch = pool.scratch().map_err(|error| format!("could not make a scratch directory: {error}"));
    match scratch.and_then(|scratch| prober.probe(&scratch, template_dir)) {
        Ok(missing) => missing.into_iter().for_each(|(feature, why)| features.lack(feature, why)),
        // A full pool, say: sandboxes that exist must be taken up all the same, and what the oldest kernels know
        // works on all.
        Err(why) => {
            tracing::warn!("could not try out kernel features, so fallbacks are used: {why}");
            for feature in OverlayRecipe::NEWER {
                features.lack(feature, "it could not be tried out");
            }
        }
    }
    if let Err(error) = pool.clear_scratch() {
        tracing::warn!("could not remove the scratch directory of the pool: {error}");
    }
    if !process::kernel_tells_exit() {
        features.lack(Feature::PidfdInfo, "the kernel does not know PIDFD_GET_INFO");
    }
    if !has_landlock() {
        features.lack(Feature::Landlock, "the kernel was built or booted without it, or is older");
    }
    Unusable::of(features).map_or(Ok(()), |unusable| Err(NodeFailure::Unusable(unusable)))
}

/// Whether git can work under Landlock, which must let it move files between directories.
fn has_landlock() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_all(ABI::V2)).and_then(Ruleset::create).is_ok()
}

/// Logs what this kernel lacks; gives what users will notice.
fn log_missing(features: &Features) -> Vec<String> {
    let mut noticed = Vec::new();
    for (Row { name, need, without, .. }, why) in features.missing() {
        match need {
            Need::Optional => noticed.push(format!("{without}: no {name} ({why})")),
            Need::Fallback | Need::Required => {
                tracing::info!(
                    feature = name,
                    "kernel feature missing, using the fallback: {without} ({why})"
                );
            }
        }
    }
    noticed
}

fn lock(data_dir: &Path) -> Result<fs::File, NodeFailure> {
    let path = data_dir.join("node.lock");
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).open(&path).map_err(doing("open", &path))?;
    let deadline = Instant::now() + PREDECESSOR;
    while rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() > deadline {
            return Err(NodeFailure::InUse(data_dir.to_path_buf()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(file)
}

/// Written once for each version of it; sandboxes hold the one that they started with.
fn install_agentd(pool: &Pool, binary: &[u8]) -> io::Result<PathBuf> {
    let name = format!("agentd-{}", &hex(&Sha256::digest(binary))[..16]);
    let path = pool.binaries().join(&name);
    if !path.exists() {
        let draft = pool.binaries().join(".draft");
        fs::write(&draft, binary)?;
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o555))?;
        fs::File::open(&draft)?.sync_all()?;
        fs::rename(&draft, &path)?;
    }
    // Older ones stay as long as a process has them, even without a name.
    for entry in fs::read_dir(pool.binaries())?.flatten() {
        if entry.file_name() != name.as_str() {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(path)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Node {
    /// Answers one request of a server.
    pub(crate) async fn answer(self: &Arc<Self>, request: Request) -> Result<Reply, NodeError> {
        match request {
            Request::Hello { protocol } => self.hello(protocol),
            Request::Create(spec) => self.create(spec).await,
            Request::Destroy { sandbox } => match self.ask(sandbox, Want::Destroy).await {
                Err(error) if error.code == NodeErrorCode::UnknownSandbox => Ok(Reply::Done),
                answer => answer,
            },
            Request::Freeze { sandbox } => self.ask(sandbox, Want::Freeze).await,
            Request::Thaw { sandbox } => self.ask(sandbox, Want::Thaw).await,
            Request::Stop { sandbox } => self.ask(sandbox, Want::Stop).await,
            Request::Start { sandbox, cold } => self.ask(sandbox, Want::Start { cold }).await,
            Request::Hibernate { sandbox } => self.ask(sandbox, Want::Hibernate).await,
            Request::Snapshot { sandbox, snapshot, memory } => self.snapshot(sandbox, snapshot, memory).await,
            Request::Rollback { sandbox, snapshot, memory } => {
                self.ask(sandbox, Want::Rollback { snapshot, memory }).await
            }
            Request::DeleteSnapshot { snapshot } => {
                let node = self.clone();
                blocking(move || match node.snapshots.delete(snapshot, &node.pool, &node.images) {
                    Ok(()) => Ok(Reply::Done),
                    Err(error) => {
                        let message = format!("could not delete snapshot {snapshot}: {error}");
                        Err(NodeError::new(NodeErrorCode::Internal, message))
                    }
                })
                .await
            }
            Request::Snapshots => Ok(Reply::Snapshots { snapshots: self.snapshots.list() }),
            Request::SetNetwork { sandbox, policy } => {
                self.ask(sandbox, Want::SetNetwork(Box::new(policy))).await
            }
            Request::Refusals { sandbox, after } => self.refusals(sandbox, after).await,
            Request::List => {
                Ok(Reply::Sandboxes { sandboxes: self.handles().iter().filter_map(Handle::status).collect() })
            }
            Request::Stats => Ok(Reply::Stats { samples: crate::sandbox::sample_all(self).await }),
            Request::Templates => {
                let node = self.clone();
                blocking(move || {
                    let templates = node.templates.list().into_iter().map(|template| template.info).collect();
                    Ok(Reply::Templates { templates })
                })
                .await
            }
        }
    }

    fn hello(&self, protocol: u32) -> Result<Reply, NodeError> {
        if protocol != PROTOCOL {
            let message = format!("the node speaks protocol {PROTOCOL}, not {protocol}");
            return Err(NodeError::new(NodeErrorCode::ProtocolMismatch, message));
        }
        let lacks = memory::lacks();
        let capabilities = Capabilities {
            disk_quota: self.pool.has_quota(),
            memory_limit: self.cgroups.has(Controller::Memory),
            cpu_limit: self.cgroups.has(Controller::Cpu),
            process_limit: self.cgroups.has(Controller::Pids),
            freeze: self.cgroups.can_freeze(),
            memory_snapshot: lacks.is_none(),
            network: self.network.families().is_some(),
        };
        let warnings = self.warnings.clone();
        let pool_bytes = self.pool.size_bytes();
        Ok(Reply::Hello(NodeInfo {
            protocol: PROTOCOL,
            engine: "linux".into(),
            capabilities,
            memory_snapshot_lacks: lacks,
            pool_bytes,
            pool_free_bytes: self.pool.free_bytes(),
            warm_ready: self.warm.ready(),
            warnings,
            pressure: self.cgroups.pressure(),
            kernel: self.features.report(),
            orphans: self.orphans.get().cloned().unwrap_or_default(),
        }))
    }

    async fn create(self: &Arc<Self>, spec: CreateSandbox) -> Result<Reply, NodeError> {
        let handle = {
            let mut sandboxes = self.sandboxes.lock().expect("no holder panics");
            let entry = sandboxes.entry(spec.sandbox);
            entry.or_insert_with(|| crate::sandbox::create(self, spec.clone())).clone()
        };
        handle.ask(Want::Create(Box::new(spec))).await
    }

    async fn snapshot(
        &self,
        sandbox: SandboxId,
        snapshot: SnapshotId,
        memory: bool,
    ) -> Result<Reply, NodeError> {
        match self.snapshots.get(snapshot) {
            // Asked again, perhaps because a node died before it answered; the source may be gone since.
            Ok(made) if made.info.sandbox == sandbox => Ok(Reply::Snapshot(made.info.clone())),
            _ => self.ask(sandbox, Want::Snapshot { snapshot, memory }).await,
        }
    }

    async fn refusals(&self, sandbox: SandboxId, after: u64) -> Result<Reply, NodeError> {
        if !self.sandboxes.lock().expect("no holder panics").contains_key(&sandbox) {
            return Err(crate::sandbox::unknown(sandbox));
        }
        self.network.refusals(sandbox, after).await.map(Reply::Refusals)
    }

    async fn ask(&self, sandbox: SandboxId, want: Want) -> Result<Reply, NodeError> {
        let handle = self.sandboxes.lock().expect("no holder panics").get(&sandbox).cloned();
        match handle {
            Some(handle) => handle.ask(want).await,
            None => Err(crate::sandbox::unknown(sandbox)),
        }
    }

    async fn destroy_all(self: &Arc<Self>) {
        let all: Vec<_> = self.sandboxes.lock().expect("no holder panics").keys().copied().collect();
        let destroyed = all.into_iter().map(|sandbox| async move {
            if let Err(error) = self.ask(sandbox, Want::Destroy).await {
                tracing::error!(sandbox.id = %sandbox, "could not destroy sandbox {sandbox}: {error}");
            }
        });
        futures_util::future::join_all(destroyed).await;
        let node = self.clone();
        let deleted =
            tokio::task::spawn_blocking(move || node.snapshots.delete_all(&node.pool, &node.images));
        deleted.await.expect("deleting snapshots does not panic");
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.features.has(feature)
    }

    /// Puts an adopted sandbox among the others.
    pub(crate) fn insert(&self, sandbox: SandboxId, handle: Handle) {
        self.sandboxes.lock().expect("no holder panics").insert(sandbox, handle);
    }

    /// Forgets a sandbox that is gone.
    pub(crate) fn forget(&self, sandbox: SandboxId) {
        self.sandboxes.lock().expect("no holder panics").remove(&sandbox);
    }

    pub(crate) fn handles(&self) -> Vec<Handle> {
        self.sandboxes.lock().expect("no holder panics").values().cloned().collect()
    }

    pub(crate) fn socket_of(&self, name: SandboxId) -> PathBuf {
        self.run_dir.join("s").join(format!("{name}.sock"))
    }

    pub(crate) fn files_of(&self, name: SandboxId) -> crate::files::Shown {
        crate::files::Shown::at(self.pool.small_files().join(name.to_string()))
    }
}

/// Runs what may wait for the disk on a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
) -> Result<T, NodeError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(NodeError::new(NodeErrorCode::Internal, format!("a task of the node failed: {error}")))
    })
}

//! Keepers: sandboxes of the server's own that serve the content of volumes.
//!
//! A keeper mounts one volume and runs agentd alone, without a network. It has no row: it is no sandbox of
//! the project and counts in none of its lists and quotas. Keepers are bounded instead, and end when they are
//! not used. After a crash of the server they are sandboxes without a record, which reconciliation destroys.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use coffer_core::network::Policy;
use coffer_core::sync::Mutex;
use coffer_core::{Limits, ProjectId, SandboxId, VolumeId};
use coffer_engine::{CreateSandbox, EngineError, NodeMount};
use coffer_guest::{Activity, Guest, Spare, Target};
use coffer_store::VolumeRow;
use coffer_wire::agentd::{Init, VOLUME_ROOT};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::create::INIT_PATIENCE;
use super::{DEFAULT_TEMPLATE, Fleet, FleetError};

/// Keepers in all, and of one project.
const MOST: usize = 32;
const MOST_OF_PROJECT: usize = 4;
/// A keeper without requests ends after this.
const IDLE_MS: i64 = 60_000;
const SWEEP: Duration = Duration::from_secs(10);
/// How long a keeper may take to say that it is there.
const HEALTH_PATIENCE: Duration = Duration::from_secs(5);
/// One that has died is replaced once.
const TRIES: u32 = 2;
/// agentd and its page cache; its threads count as processes.
const LIMITS: Limits = Limits { cpu_count: 1, memory_mib: 128, disk_mib: 16, max_processes: 128 };

#[derive(Debug, Default)]
pub(super) struct Keepers(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    open: HashMap<VolumeId, Arc<Keeper>>,
    /// Also those that are being ended.
    sandboxes: HashSet<SandboxId>,
}

#[derive(Debug)]
struct Keeper {
    sandbox: SandboxId,
    project: ProjectId,
    /// Its socket, once it is there.
    socket: OnceCell<PathBuf>,
    activity: Activity,
    gone: CancellationToken,
    users: AtomicUsize,
}

/// The content of a volume, for one request.
#[derive(Debug)]
pub struct OpenVolume {
    pub guest: Guest,
    _user: User,
}

/// Keeps a keeper from ending.
#[derive(Debug)]
struct User(Arc<Keeper>);

impl User {
    fn of(keeper: &Arc<Keeper>) -> Self {
        keeper.users.fetch_add(1, Ordering::Relaxed);
        Self(keeper.clone())
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.activity.note();
        self.0.users.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Keepers {
    /// Whether this sandbox is a keeper.
    pub(super) fn has(&self, sandbox: SandboxId) -> bool {
        self.0.lock().sandboxes.contains(&sandbox)
    }

    /// The keeper of a volume, and one that had to make room for it. `None` if there is no room.
    fn enter(&self, row: &VolumeRow) -> Option<(User, Option<Arc<Keeper>>)> {
        let mut all = self.0.lock();
        if let Some(keeper) = all.open.get(&row.id) {
            return Some((User::of(keeper), None));
        }
        let of_project = all.open.values().filter(|keeper| keeper.project == row.project).count();
        let evicted = if of_project >= MOST_OF_PROJECT {
            Some(all.take_idle(|keeper| keeper.project == row.project)?)
        } else if all.open.len() >= MOST {
            Some(all.take_idle(|_| true)?)
        } else {
            None
        };
        let keeper = Arc::new(Keeper {
            sandbox: SandboxId::generate(),
            project: row.project,
            socket: OnceCell::new(),
            activity: Activity::default(),
            gone: CancellationToken::new(),
            users: AtomicUsize::new(0),
        });
        all.sandboxes.insert(keeper.sandbox);
        all.open.insert(row.id, keeper.clone());
        Some((User::of(&keeper), evicted))
    }

    fn take(&self, volume: VolumeId) -> Option<Arc<Keeper>> {
        self.0.lock().open.remove(&volume)
    }

    /// Takes this keeper, unless another is in its place.
    fn take_this(&self, volume: VolumeId, keeper: &Arc<Keeper>) -> Option<Arc<Keeper>> {
        let mut all = self.0.lock();
        let is_this = all.open.get(&volume).is_some_and(|open| Arc::ptr_eq(open, keeper));
        if is_this { all.open.remove(&volume) } else { None }
    }

    /// Takes all that nobody has used for this long.
    fn take_unused(&self, idle_ms: i64) -> Vec<Arc<Keeper>> {
        let mut all = self.0.lock();
        let unused = |keeper: &Keeper| keeper.is_unused() && keeper.activity.idle_ms() >= idle_ms;
        let volumes: Vec<_> =
            all.open.iter().filter(|(_, keeper)| unused(keeper)).map(|(volume, _)| *volume).collect();
        volumes.iter().filter_map(|volume| all.open.remove(volume)).collect()
    }

    fn forget(&self, sandbox: SandboxId) {
        self.0.lock().sandboxes.remove(&sandbox);
    }
}

impl All {
    /// Takes the one that was used least recently, if any has no user now.
    fn take_idle(&mut self, fits: impl Fn(&Keeper) -> bool) -> Option<Arc<Keeper>> {
        let idle = self.open.iter().filter(|(_, keeper)| keeper.is_unused() && fits(keeper));
        let volume = idle.max_by_key(|(_, keeper)| keeper.activity.idle_ms()).map(|(volume, _)| *volume)?;
        self.open.remove(&volume)
    }
}

impl Keeper {
    fn is_unused(&self) -> bool {
        self.users.load(Ordering::Relaxed) == 0
    }
}

impl Fleet {
    /// Opens the content of a volume.
    pub async fn open_volume(self: &Arc<Self>, row: &VolumeRow) -> Result<OpenVolume, FleetError> {
        self.volume_here(row)?;
        for _ in 0..TRIES {
            let (user, evicted) = self.keepers.enter(row).ok_or(FleetError::KeepersBusy)?;
            if let Some(evicted) = evicted {
                self.end_keeper(evicted);
            }
            let keeper = user.0.clone();
            let started = keeper.socket.get_or_try_init(|| self.start_keeper(row, &keeper)).await;
            let socket = match started {
                Ok(socket) => socket.clone(),
                Err(error) => {
                    self.discard(row.id, &keeper);
                    return Err(error);
                }
            };
            if coffer_guest::health(&socket, HEALTH_PATIENCE).await.is_ok() {
                let target = Target {
                    sandbox: keeper.sandbox,
                    project: row.project,
                    socket,
                    spare: Spare::default(),
                    traffic_token: None,
                    mask_host: None,
                    https_ports: Vec::new(),
                    activity: keeper.activity.clone(),
                    gone: keeper.gone.clone(),
                };
                return Ok(OpenVolume { guest: Guest::new(target, None), _user: user });
            }
            self.discard(row.id, &keeper);
        }
        Err(EngineError::Unavailable("the sandbox that serves the volume died".into()).into())
    }

    async fn start_keeper(&self, row: &VolumeRow, keeper: &Keeper) -> Result<PathBuf, FleetError> {
        let path = VOLUME_ROOT.parse().map_err(|_| FleetError::Broken)?;
        // As any create: who opens many volumes in turn has a new keeper for each.
        let _place = self.host_calls.take(row.project).await?;
        let order = CreateSandbox {
            sandbox: keeper.sandbox,
            template: DEFAULT_TEMPLATE.to_string(),
            hostname: "volume".to_string(),
            limits: LIMITS,
            network: Policy::default(),
            snapshot: None,
            from_template: false,
            template_owner: None,
            memory: false,
            volumes: vec![NodeMount { volume: row.id, path, read_only: false }],
        };
        let placement = self.engine.create(&order).await.map_err(|error| match error {
            EngineError::UnknownVolume => FleetError::NoVolume(row.id.to_string()),
            error => error.into(),
        })?;
        let ready = coffer_guest::init(&placement.socket, &Init::default(), INIT_PATIENCE).await;
        ready.map_err(FleetError::NotReady)?;
        Ok(placement.socket)
    }

    fn discard(self: &Arc<Self>, volume: VolumeId, keeper: &Arc<Keeper>) {
        if let Some(keeper) = self.keepers.take_this(volume, keeper) {
            self.end_keeper(keeper);
        }
    }

    /// Ends a keeper that was taken out of the list.
    fn end_keeper(self: &Arc<Self>, keeper: Arc<Keeper>) {
        let fleet = self.clone();
        self.steps.spawn(async move { fleet.end_keeper_now(&keeper).await });
    }

    async fn end_keeper_now(&self, keeper: &Keeper) {
        keeper.gone.cancel();
        self.destroy_quietly(keeper.sandbox).await;
        // One that the engine could not destroy is a sandbox without a record from here on.
        self.keepers.forget(keeper.sandbox);
    }

    /// Ends the keeper of a volume that is being deleted.
    pub(super) async fn close_keeper(&self, volume: VolumeId) {
        if let Some(keeper) = self.keepers.take(volume) {
            self.end_keeper_now(&keeper).await;
        }
    }

    /// Ends keepers that are not used, and all of them at the end.
    pub(super) async fn keep_keepers(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let stopping = tokio::select! {
                () = stop.cancelled() => true,
                () = tokio::time::sleep(SWEEP) => false,
            };
            let idle_ms = if stopping { 0 } else { IDLE_MS };
            for keeper in self.keepers.take_unused(idle_ms) {
                self.end_keeper_now(&keeper).await;
            }
            if stopping {
                return;
            }
        }
    }
}

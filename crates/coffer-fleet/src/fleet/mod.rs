//! Every live sandbox: its state, and the steps that change it.
//!
//! The fleet is the only caller of the engine and the only writer of sandbox rows. A step (create, pause,
//! resume, end) runs in its own task under the sandbox's [`Claim`](record::Claim), so a client that
//! disconnects leaves no step half done. A step changes the engine first, then the store by compare-and-set,
//! then memory: a crash in between leaves the earlier state in the store, and [`reconcile`] makes the engine
//! agree with it again.

mod accounts;
mod create;
mod deadlines;
mod end;
mod error;
mod fork;
mod gate;
mod health;
mod keepers;
mod ledger;
mod metrics;
mod orphans;
mod pause;
mod quota;
mod reconcile;
mod record;
mod refusals;
mod rollback;
mod route;
mod samples;
mod secrets;
mod settings;
mod snapshots;
mod volumes;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use coffer_core::sync::{Mutex, RwLock};

pub use coffer_core::Boot;
use coffer_core::{LifetimePolicy, Limits, ProjectId, SandboxId};
use coffer_engine::{Engine, NodeInfo, TemplateInfo};
use coffer_shares::{Shares, pool};
use coffer_store::{ProjectScope, Store};
pub use create::CreateSpec;
pub use end::describe;
pub use error::FleetError;
pub use fork::{ForkSpec, Forked};
pub use keepers::OpenVolume;
pub use pause::{Connected, IfSilent};
pub use record::{Busy, Record, Step};
pub use secrets::{SecretUse, variables as secret_variables};
use secrets::{explain_missing, patterns_of};
pub use snapshots::{DEFAULT_TAG, MemoryWish, SnapshotSpec};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;
pub use volumes::MountWish;

use crate::audit::AuditLog;
use crate::output::Output;
use crate::usage::{Stop, Usage};
use coffer_core::clock::now_ms;
use coffer_shares::PoolSettings;
use coffer_telemetry as telemetry;
use coffer_telemetry::Telemetry;

/// The default template.
pub const DEFAULT_TEMPLATE: &str = "base";

/// How long a list of templates is cached.
const TEMPLATES_FRESH: Duration = Duration::from_secs(2);

/// Every live sandbox of the server.
pub struct Fleet {
    store: Store,
    engine: Arc<dyn Engine>,
    policy: LifetimePolicy,
    limits: Limits,
    /// Variables of every sandbox, unless its template or its creator sets them.
    environment: BTreeMap<String, String>,
    records: RwLock<HashMap<SandboxId, Arc<Record>>>,
    /// Steps in progress; a stop waits for them.
    steps: TaskTracker,
    /// Pool of steps that no client waits for; those without a record belong to no project.
    background: Shares<Option<ProjectId>>,
    /// Health checks wait for sandboxes, which may be slow on purpose, so they have their own pool.
    checks: Shares<ProjectId>,
    host_calls: Shares<ProjectId>,
    ends: Shares<ProjectId>,
    /// Held for reading while a sandbox runs and the store has not recorded it yet.
    recording: Arc<tokio::sync::RwLock<()>>,
    /// A run began and has no sample yet.
    sample_soon: Notify,
    templates: Mutex<Option<(Instant, Arc<[TemplateInfo]>)>>,
    /// Templates that every project may use.
    shared: std::sync::OnceLock<SharedTemplates>,
    /// Allows one reconciliation at a time.
    comparing: tokio::sync::Mutex<()>,
    telemetry: Arc<Telemetry>,
    pub usage: Arc<Usage>,
    output: Arc<Output>,
    audit: AuditLog,
    /// A secret has changed, and the engine does not have it yet.
    tell_secrets: Notify,
    /// The records of a sandbox may have repositories that its gate does not.
    gates: Notify,
    /// Projects that were over quota a moment ago.
    full: quota::Full,
    /// Snapshots that are being created, used or deleted.
    at_work: snapshots::AtWork,
    /// Volumes that are being created or deleted.
    volumes_changing: volumes::Changing,
    keepers: keepers::Keepers,
    /// Why the host cannot save memory, as it last reported.
    lacks_memory: Mutex<Option<String>>,
    pub found: Found,
}

/// Templates of a hidden project that every project may use and none may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedTemplates {
    pub project: ProjectId,
    pub names: Vec<String>,
}

/// Counters of findings and repairs since the start, for metrics.
#[derive(Debug, Default)]
pub struct Found {
    /// Sandboxes, or remains of them, without a record.
    pub orphans: AtomicU64,
    /// Sandboxes on record that the engine did not have.
    pub lost: AtomicU64,
    /// Sandboxes in a wrong state.
    pub repaired: AtomicU64,
    /// Requests over a project's quota.
    pub over_quota: AtomicU64,
    /// Sandboxes whose lease expired.
    pub expired_leases: AtomicU64,
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("sandboxes", &self.everyone().len()).finish_non_exhaustive()
    }
}

/// The fleet's telemetry, output log and usage, in addition to the store.
#[derive(Debug)]
pub struct Books {
    pub telemetry: Arc<Telemetry>,
    pub usage: Arc<Usage>,
    pub output: Arc<Output>,
    pub audit: AuditLog,
    pub pools: PoolSettings,
    /// Variables of every sandbox, unless its template or its creator sets them.
    pub environment: BTreeMap<String, String>,
}

impl Fleet {
    /// Loads the store's live sandboxes, makes the engine agree with them, and starts the background tasks.
    pub async fn start(
        store: Store,
        engine: Arc<dyn Engine>,
        policy: LifetimePolicy,
        limits: Limits,
        Books { telemetry, usage, output, audit, pools, environment }: Books,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, FleetError> {
        let fleet = Arc::new(Self {
            store,
            engine,
            policy,
            limits,
            environment,
            records: RwLock::default(),
            steps: TaskTracker::new(),
            background: pools.shares(pool::BACKGROUND_STEPS),
            checks: pools.shares(pool::HEALTH_CHECKS),
            host_calls: pools.shares(pool::HOST_CALLS),
            ends: pools.shares(pool::ENDS),
            recording: Arc::default(),
            sample_soon: Notify::new(),
            templates: Mutex::default(),
            shared: std::sync::OnceLock::new(),
            comparing: tokio::sync::Mutex::default(),
            telemetry,
            usage,
            output,
            audit,
            tell_secrets: Notify::new(),
            gates: Notify::new(),
            full: quota::Full::default(),
            at_work: snapshots::AtWork::default(),
            volumes_changing: volumes::Changing::default(),
            keepers: keepers::Keepers::default(),
            lacks_memory: Mutex::default(),
            found: Found::default(),
        });
        // Subscribe before the first list, so that no later notice is missed.
        let notices = fleet.engine.notices();
        explain_missing(&fleet.store).await;
        fleet.load().await?;
        fleet.read_secrets().await;
        fleet.output.look_for(patterns_of(fleet.store.clone()));
        fleet.reconcile().await?;
        // Sandboxes that kept running meanwhile may have new output.
        for record in fleet.everyone() {
            fleet.output.wake(&record);
        }
        fleet.usage.confirm();
        fleet.usage.look_at_budgets(now_ms()).await?;
        fleet.steps.spawn(fleet.clone().keep_accounts(stop.clone()));
        fleet.steps.spawn(fleet.clone().keep_told(fleet.engine.notices(), stop.clone()));
        fleet.steps.spawn(fleet.clone().heed(notices, stop.clone()));
        fleet.steps.spawn(fleet.clone().keep_deadlines(stop.clone()));
        fleet.steps.spawn(fleet.clone().keep_checking(stop.clone()));
        fleet.steps.spawn(fleet.clone().keep_keepers(stop.clone()));
        fleet.steps.spawn(fleet.clone().keep_sampling(stop));
        Ok(fleet)
    }

    /// Waits for steps in progress, after `stop` was cancelled. Sandboxes stay as they are.
    pub async fn finish(&self, patience: Duration) {
        self.steps.close();
        if tokio::time::timeout(patience, self.steps.wait()).await.is_err() {
            tracing::warn!("gave up waiting for {} steps in progress", self.steps.len());
        }
    }

    /// A live sandbox of a project; another project's is not found.
    pub fn find(&self, scope: &ProjectScope, id: SandboxId) -> Option<Arc<Record>> {
        let is_seen = |record: &Arc<Record>| {
            record.project == scope.project() && scope.agent().is_none_or(|agent| record.agent == Some(agent))
        };
        self.any(id).filter(is_seen)
    }

    /// A live sandbox of any project: for the proxy, whose clients authenticate to agentd.
    pub fn any(&self, id: SandboxId) -> Option<Arc<Record>> {
        self.records.read().get(&id).cloned()
    }

    fn everyone(&self) -> Vec<Arc<Record>> {
        self.records.read().values().cloned().collect()
    }

    fn enrol(&self, record: Arc<Record>) {
        self.records.write().insert(record.id, record);
    }

    fn forget(&self, id: SandboxId) {
        self.usage.stop(id, Stop::Ended);
        self.records.write().remove(&id);
    }

    /// Runs a step to its end even if its caller no longer waits.
    async fn carry_through<T: Send + 'static>(
        &self,
        step: impl Future<Output = Result<T, FleetError>> + Send + 'static,
    ) -> Result<T, FleetError> {
        // With the request's span, so that log lines and spans name the request.
        let step = telemetry::within(telemetry::current(), step.in_current_span());
        let step = coffer_engine::on_behalf_of(coffer_engine::on_behalf(), step);
        self.steps.spawn(step).await.unwrap_or(Err(FleetError::Broken))
    }

    /// Runs work on sandboxes that must reach its end even if its caller stops waiting; a stop waits for it.
    pub fn spawn_step<F>(&self, step: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.steps.spawn(step)
    }

    /// Runs a step that no client waits for, a bounded number at a time.
    fn in_background(
        self: &Arc<Self>,
        whose: Option<ProjectId>,
        step: impl Future<Output = ()> + Send + 'static,
    ) {
        let room = self.background.clone();
        self.steps.spawn(async move {
            let _place = room.take(whose).await;
            step.await;
        });
    }

    /// Whether the engine answers.
    pub async fn engine_answers(&self) -> Result<(), FleetError> {
        Ok(self.engine.info().await.map(drop)?)
    }

    /// The engine's description of its host.
    pub async fn host(&self) -> Result<NodeInfo, FleetError> {
        Ok(self.engine.info().await?)
    }

    /// The limits of a sandbox whose creator and template have no wish.
    pub fn usual_limits(&self) -> Limits {
        self.limits
    }

    /// Lets every project use these templates. Only the first call counts.
    pub fn share_templates(&self, shared: SharedTemplates) {
        if self.shared.set(shared).is_err() {
            tracing::error!("templates were shared before");
        }
    }

    /// Whether a name is that of a template which every project may use, built or not.
    pub fn is_shared(&self, name: &str) -> bool {
        self.shared.get().is_some_and(|shared| shared.names.iter().any(|shared| shared == name))
    }

    /// Whether a project's templates may be used by all.
    pub fn shares_project(&self, project: ProjectId) -> bool {
        self.shared.get().is_some_and(|shared| shared.project == project)
    }

    /// The templates. The default template is always available: an engine that has not built it uses another
    /// in its place.
    pub async fn templates(&self) -> Result<Arc<[TemplateInfo]>, FleetError> {
        let known = self.templates.lock().clone();
        if let Some((at, templates)) = known
            && at.elapsed() < TEMPLATES_FRESH
        {
            return Ok(templates);
        }
        let mut templates = self.engine.templates().await?;
        if !templates.iter().any(|template| template.name == DEFAULT_TEMPLATE)
            && let Some(stand_in) = templates.first().cloned()
        {
            templates.insert(0, TemplateInfo { name: DEFAULT_TEMPLATE.to_string(), ..stand_in });
        }
        let templates: Arc<[TemplateInfo]> = templates.into();
        *self.templates.lock() = Some((Instant::now(), templates.clone()));
        Ok(templates)
    }
}

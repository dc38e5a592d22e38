//! Every live sandbox: what is known of it, what is done to it, and when.
//!
//! The fleet is the only caller of the engine and the only writer of sandbox rows. A step (create,
//! pause, resume, end) runs in a task of its own under the sandbox's [`Claim`](record::Claim), so a
//! client that hangs up leaves no step half done. A step changes the engine first, then the store by
//! compare-and-set, then memory: a crash in between leaves the earlier state on record, and
//! [`reconcile`] makes the engine agree with it again.

mod accounts;
mod create;
mod deadlines;
pub(crate) mod end;
mod fork;
pub(crate) mod health;
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

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use coffer_core::{LifetimePolicy, Limits, ProjectId, Refused, SandboxId, SnapshotId};
use coffer_engine::{Engine, EngineError, NodeInfo, TemplateInfo};
use coffer_shares::{Shares, pool};
use coffer_store::{ChangeError, OverQuota, ProjectScope, Store, StoreError};
pub(crate) use create::{CreateSpec, chain};
pub(crate) use end::describe;
pub(crate) use fork::{ForkSpec, Forked};
pub(crate) use pause::{Boot, Connected};
pub(crate) use record::{Busy, Record, Step};
pub(crate) use secrets::{SecretUse, variables as secret_variables};
use secrets::{explain_missing, patterns_of};
pub(crate) use settings::network_of;
pub(crate) use snapshots::{DEFAULT_TAG, MemoryWish, SnapshotSpec};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::agent::AgentError;
use crate::audit::AuditLog;
use crate::clock::now_ms;
use crate::limits::PoolSettings;
use crate::output::Output;
use crate::telemetry::{self, Telemetry};
use crate::usage::{Exhausted, Usage};

/// The template of requests that name none of their own.
const DEFAULT_TEMPLATE: &str = "base";

/// How long a list of templates is believed.
const TEMPLATES_FRESH: Duration = Duration::from_secs(2);

/// Every live sandbox of the server.
pub(crate) struct Fleet {
    store: Store,
    engine: Arc<dyn Engine>,
    policy: LifetimePolicy,
    limits: Limits,
    records: RwLock<HashMap<SandboxId, Arc<Record>>>,
    /// Steps under way; a stop waits for them.
    steps: TaskTracker,
    /// Steps that no client waits for; what is on no record is nobody's.
    background: Shares<Option<ProjectId>>,
    /// Health checks wait for sandboxes, which may be slow on purpose, so they have room of their own.
    checks: Shares<ProjectId>,
    host_calls: Shares<ProjectId>,
    ends: Shares<ProjectId>,
    /// Held for reading while a sandbox runs and the store does not say so yet.
    recording: Arc<tokio::sync::RwLock<()>>,
    /// A sandbox began to run and has no sample yet.
    sample_soon: Notify,
    templates: Mutex<Option<(Instant, Arc<[TemplateInfo]>)>>,
    /// One comparison with the engine's list at a time.
    comparing: tokio::sync::Mutex<()>,
    telemetry: Arc<Telemetry>,
    pub(crate) usage: Arc<Usage>,
    output: Arc<Output>,
    audit: AuditLog,
    /// A secret has changed, and the engine has not heard of it.
    tell_secrets: Notify,
    /// A sandbox has repositories on record that its gate may not lead to.
    gates: Notify,
    /// Projects that were over quota a moment ago.
    full: quota::Full,
    /// Snapshots that are being made, used up or deleted.
    at_work: snapshots::AtWork,
    /// Why the host cannot save memory, as it last said.
    lacks_memory: Mutex<Option<String>>,
    pub(crate) found: Found,
}

/// What was found and put right since the start, for whoever shows it.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Sandboxes, or what was left of them, that should not have been there.
    pub(crate) orphans: AtomicU64,
    /// Sandboxes that were to be there and were not.
    pub(crate) lost: AtomicU64,
    /// Sandboxes in another state than they should have been.
    pub(crate) repaired: AtomicU64,
    /// Requests for more than a project may have.
    pub(crate) over_quota: AtomicU64,
    /// Sandboxes whose owners were no longer there.
    pub(crate) expired_leases: AtomicU64,
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("sandboxes", &self.everyone().len()).finish_non_exhaustive()
    }
}

/// Where the fleet writes down what happens, beside the store.
#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) usage: Arc<Usage>,
    pub(crate) output: Arc<Output>,
    pub(crate) audit: AuditLog,
    pub(crate) pools: PoolSettings,
}

/// Why a sandbox was not made, changed or found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FleetError {
    #[error("there is no such sandbox")]
    NotFound,
    #[error(transparent)]
    Busy(#[from] Busy),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("there is no template `{0}`")]
    UnknownTemplate(String),
    #[error("the sandbox was destroyed while it was being made")]
    EndedEarly,
    #[error("the sandbox died while it was being made")]
    DiedEarly,
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    #[error("the idempotency key was used for a different request")]
    KeyReused,
    #[error("the first request with this idempotency key failed")]
    FirstFailed,
    #[error("the first request with this idempotency key is still under way")]
    FirstUnderWay,
    #[error("the sandbox's agent does not answer")]
    GuestUnresponsive(#[source] AgentError),
    #[error("the sandbox did not become ready")]
    NotReady(#[source] AgentError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    OverQuota(OverQuota),
    #[error("there is no snapshot `{0}`")]
    NoSnapshot(String),
    #[error("snapshot {0} is on the host of installation '{1}', not on this one")]
    SnapshotElsewhere(SnapshotId, String),
    #[error("its memory cannot be kept: {0}")]
    NoMemory(String),
    #[error("its processes hold the secrets {0}, which were not granted to what comes from it")]
    HoldsSecrets(String),
    #[error(transparent)]
    Secret(#[from] SecretUse),
    #[error("the record of the sandbox was changed by somebody else")]
    Raced,
    #[error(transparent)]
    Full(#[from] coffer_shares::Full),
    #[error("a step of the server's own broke")]
    Broken,
}

impl From<ChangeError> for FleetError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::NotFound => Self::NotFound,
            ChangeError::Raced { .. } => Self::Raced,
            ChangeError::OverQuota(over) => Self::OverQuota(over),
            ChangeError::Store(error) => Self::Store(error),
        }
    }
}

impl Fleet {
    /// Takes up what the store has, makes the engine agree with it, and starts to keep watch.
    pub(crate) async fn start(
        store: Store,
        engine: Arc<dyn Engine>,
        policy: LifetimePolicy,
        limits: Limits,
        Books { telemetry, usage, output, audit, pools }: Books,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, FleetError> {
        let fleet = Arc::new(Self {
            store,
            engine,
            policy,
            limits,
            records: RwLock::default(),
            steps: TaskTracker::new(),
            background: pools.shares(pool::BACKGROUND_STEPS),
            checks: pools.shares(pool::HEALTH_CHECKS),
            host_calls: pools.shares(pool::HOST_CALLS),
            ends: pools.shares(pool::ENDS),
            recording: Arc::default(),
            sample_soon: Notify::new(),
            templates: Mutex::default(),
            comparing: tokio::sync::Mutex::default(),
            telemetry,
            usage,
            output,
            audit,
            tell_secrets: Notify::new(),
            gates: Notify::new(),
            full: quota::Full::default(),
            at_work: snapshots::AtWork::default(),
            lacks_memory: Mutex::default(),
            found: Found::default(),
        });
        // Before the first list, so that nothing that happens after it is missed.
        let notices = fleet.engine.notices();
        explain_missing(&fleet.store).await;
        fleet.load().await?;
        fleet.read_secrets().await;
        fleet.output.look_for(patterns_of(fleet.store.clone()));
        fleet.reconcile().await?;
        // What ran meanwhile has something to tell.
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
        fleet.steps.spawn(fleet.clone().keep_sampling(stop));
        Ok(fleet)
    }

    /// Waits for steps under way, after `stop` was cancelled. Sandboxes stay as they are.
    pub(crate) async fn finish(&self, patience: Duration) {
        self.steps.close();
        if tokio::time::timeout(patience, self.steps.wait()).await.is_err() {
            tracing::warn!("gave up waiting for {} steps under way", self.steps.len());
        }
    }

    /// A live sandbox of a project; another project's is not found.
    pub(crate) fn find(&self, scope: &ProjectScope, id: SandboxId) -> Option<Arc<Record>> {
        let is_seen = |record: &Arc<Record>| {
            record.project == scope.project() && scope.agent().is_none_or(|agent| record.agent == Some(agent))
        };
        self.any(id).filter(is_seen)
    }

    /// A live sandbox, whoever owns it: for the proxy, whose callers prove themselves to agentd.
    pub(crate) fn any(&self, id: SandboxId) -> Option<Arc<Record>> {
        self.records.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn everyone(&self) -> Vec<Arc<Record>> {
        self.records.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn enrol(&self, record: Arc<Record>) {
        self.records.write().unwrap_or_else(PoisonError::into_inner).insert(record.id, record);
    }

    fn forget(&self, id: SandboxId) {
        self.usage.stop(id, true);
        self.records.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// Runs a step to its end even when nobody waits for it any more.
    async fn carry_through<T: Send + 'static>(
        &self,
        step: impl Future<Output = Result<T, FleetError>> + Send + 'static,
    ) -> Result<T, FleetError> {
        // With the request's span, so that lines of the log and spans say whose step it is.
        let step = telemetry::within(telemetry::current(), step.in_current_span());
        let step = coffer_engine::on_behalf_of(coffer_engine::on_behalf(), step);
        self.steps.spawn(step).await.unwrap_or(Err(FleetError::Broken))
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

    /// Whether whatever runs the sandboxes answers.
    pub(crate) async fn engine_answers(&self) -> Result<(), FleetError> {
        Ok(self.engine.info().await.map(drop)?)
    }

    /// What whatever runs the sandboxes tells of itself.
    pub(crate) async fn host(&self) -> Result<NodeInfo, FleetError> {
        Ok(self.engine.info().await?)
    }

    /// What sandboxes can be made from. The default template is always there: an engine that has
    /// not built it uses another in its place.
    pub(crate) async fn templates(&self) -> Result<Arc<[TemplateInfo]>, FleetError> {
        let known = self.templates.lock().unwrap_or_else(PoisonError::into_inner).clone();
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
        *self.templates.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Instant::now(), templates.clone()));
        Ok(templates)
    }
}

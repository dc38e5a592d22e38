//! The sandbox of an attempt: created once, kept while it is used, then destroyed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use coffer_core::network::{Base, NetworkSettings, Policy};
use coffer_core::{
    AgentId, DestroyReason, Millis, OnTimeout, ProjectId, SandboxId, SandboxPurpose, SizeWish, StateName,
    StepCode, TaskId, TemplateRef,
};
use coffer_flow::StepError;
use coffer_store::{Bounds, Idempotency, Inserted, ProjectScope};
use coffer_wire::e2b::Network;
use tracing::Instrument as _;

use super::{Station, Workbench};
use coffer_fleet::{CreateSpec, FleetError};

/// How far ahead a sandbox's deadline is kept while it is used, and how long a failed one stays for a person
/// to look at.
const AHEAD_MS: Millis = 3_600_000;
/// How long to wait for a sandbox if the host or the project has no room.
pub(super) const ROOM_WITHIN: Duration = Duration::from_secs(900);
pub(super) const ROOM_PAUSE: Duration = Duration::from_secs(3);
/// All requests with one key are alike.
const FINGERPRINT: &str = "workshop";

/// A sandbox to create.
#[derive(Debug)]
pub struct SandboxOrder<'a> {
    /// Identifies this sandbox. Users' own keys have no colon, so they never collide.
    pub key: &'a str,
    /// Its owner, if any.
    pub agent: Option<AgentId>,
    /// The task that it is for, if any.
    pub task: Option<TaskId>,
    /// The server's default if `None`.
    pub template: Option<&'a str>,
    /// Variables that get a secret's value, by the secret's name.
    pub secrets: &'a BTreeMap<String, String>,
    /// Plain variables of everything that runs in it.
    pub env: BTreeMap<String, String>,
    pub metadata: BTreeMap<String, String>,
    pub size: SizeWish,
}

impl Workbench {
    /// Finds or creates the sandbox of a key. Waits for room.
    pub async fn ensure_sandbox(
        &self,
        scope: ProjectScope,
        order: SandboxOrder<'_>,
    ) -> Result<SandboxId, StepError> {
        let since = Instant::now();
        loop {
            let spec = self.spec(&scope, &order)?;
            let fleet = self.fleet.clone();
            // Finish it even if the caller no longer waits; a later lookup waits for it.
            let making = self.making.begin(order.key).await;
            let made = async move {
                let made = fleet.create(scope, spec).await;
                drop(making);
                made
            };
            let error = match self
                .fleet
                .spawn_step(made.in_current_span())
                .await
                .unwrap_or(Err(FleetError::Broken))
            {
                Ok(row) if row.state.name() == StateName::Terminated => {
                    let message = format!("sandbox {} was ended before the work in it was done", row.id);
                    return Err(StepError::fatal(StepCode::SandboxLost, message));
                }
                Ok(row) => return Ok(row.id),
                Err(error) => error,
            };
            self.await_room(scope.project(), error, since).await?;
        }
    }

    /// Waits a while if there may be room soon; fails if there will not be, or was not for too long.
    pub(super) async fn await_room(
        &self,
        project: ProjectId,
        error: FleetError,
        since: Instant,
    ) -> Result<(), StepError> {
        let hopeless = matches!(&error, FleetError::OverQuota(over) if over.is_hopeless());
        let waits = error.is_transient() || matches!(error, FleetError::OverQuota(_));
        if hopeless || !waits || since.elapsed() > ROOM_WITHIN {
            return Err(self.trouble(project, error));
        }
        tokio::time::sleep(ROOM_PAUSE).await;
        Ok(())
    }

    fn spec(&self, scope: &ProjectScope, order: &SandboxOrder<'_>) -> Result<CreateSpec, StepError> {
        let template = order.template.unwrap_or(&self.default_template).parse::<TemplateRef>();
        let template = template.map_err(|error| StepError::fatal(StepCode::Template, error.to_string()))?;
        let network = Network { policy: Some(Policy::of(Base::Web)), ..Network::default() };
        let network = NetworkSettings::from_e2b(Some(network), None)
            .map_err(|error| StepError::fatal(StepCode::Network, error.to_string()))?;
        Ok(CreateSpec {
            agent: order.agent,
            task: order.task,
            template,
            metadata: order.metadata.clone(),
            env_vars: order.env.clone(),
            secrets: order.secrets.clone(),
            timeout_ms: self.ahead_ms(),
            on_timeout: OnTimeout::Destroy,
            auto_resume: false,
            secure: true,
            network,
            allow_internet_access: None,
            // An agent that thinks for an hour is not idle.
            bounds: Bounds {
                idle_s: Some(0),
                max_lifetime_s: self.limiter.of(scope.project()).max_lifetime_s,
                lease_s: None,
            },
            size: order.size,
            base: None,
            volumes: Vec::new(),
            // Processes of a snapshot rely on their size; an agent starts from scratch in any case.
            memory: (!order.size.is_none()).then_some(false),
            purpose: SandboxPurpose::Use,
            idempotency: Some((order.key.to_string(), FINGERPRINT.to_string())),
        })
    }

    pub(super) fn ahead_ms(&self) -> Millis {
        AHEAD_MS.min(self.policy.longest_timeout_ms)
    }

    /// The sandbox of a key, live or ended.
    pub async fn find_sandbox(
        &self,
        scope: &ProjectScope,
        key: &str,
    ) -> Result<Option<SandboxId>, StepError> {
        // A sandbox that is being created for a caller that no longer waits is not recorded yet.
        self.making.done(key).await;
        let idempotency = Idempotency { key, fingerprint: FINGERPRINT };
        Ok(match self.store.earlier_sandbox(scope, idempotency).await? {
            Inserted::Existing(row) => Some(row.id),
            Inserted::New
            | Inserted::KeyReusedDifferently
            | Inserted::OverQuota(_)
            | Inserted::VolumeGone => None,
        })
    }

    /// Extends the deadline of a sandbox in use.
    pub async fn keep(&self, at: &Station) -> Result<(), StepError> {
        let record = self.record(at).await?;
        if let Err(error) = self.fleet.refresh(record, self.ahead_ms()).await {
            // It has most of an hour left: the next try suffices.
            tracing::debug!(sandbox.id = %at.sandbox, "could not extend the deadline of sandbox {}: {error}", at.sandbox);
        }
        Ok(())
    }

    /// Destroys a sandbox; succeeds if it has ended, and fails if it lives on another host.
    pub async fn end_sandbox(&self, at: &Station) -> Result<(), StepError> {
        let record = match self.record(at).await {
            Ok(record) => record,
            Err(error) if error.code == StepCode::SandboxLost => return Ok(()),
            Err(error) => return Err(error),
        };
        let ended = self.fleet.destroy(record, DestroyReason::Requested).await;
        ended.map_err(|error| self.trouble_at(at, error))
    }

    /// Leaves a sandbox until its deadline, for a person to look at; ends the programs that this server
    /// started in it.
    pub async fn leave_sandbox(&self, at: &Station) -> Result<(), StepError> {
        let Some(record) = self.fleet.find(&at.scope, at.sandbox) else { return Ok(()) };
        self.models.close_all(at.sandbox).await;
        let trouble = |error| self.trouble_at(at, error);
        for execution in self.exec.running(&record).await.unwrap_or_default() {
            let row = self.store.execution(&at.scope, execution).await?;
            if row.is_some_and(|row| row.sandbox == at.sandbox && row.actor.is_none()) {
                self.exec.kill(&record, execution).await.map_err(trouble)?;
            }
        }
        self.keep(at).await
    }

    /// The cost of a sandbox, in billionths.
    pub async fn cost_of(&self, scope: &ProjectScope, sandbox: SandboxId) -> Result<i64, StepError> {
        Ok(self.fleet.usage.cost_of(scope, sandbox).await?)
    }
}

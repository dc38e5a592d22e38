//! Making a sandbox.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::network::Policy;
use coffer_core::{
    AgentId, Cause, Fault, Lifetime, Millis, OnTimeout, ProjectId, SandboxId, SandboxState, StateName,
    TemplateRef,
};
use coffer_engine::{CreateSandbox, EngineError};
use coffer_store::{Changes, Idempotency, Inserted, NewSandbox, Placement, ProjectScope, SandboxRow, Secret};
use coffer_wire::agentd::ENVD_VERSION;
use coffer_wire::e2b::Network;

use super::ledger::stored;
use super::record::{Claim, Ending};
use super::{Fleet, FleetError, Record, Step};
use crate::agent::{self, AgentError};
use crate::clock::now_ms;

/// How long a new agentd may take to answer for the first time.
pub(super) const INIT_PATIENCE: Duration = Duration::from_secs(20);

/// How long a repeated request waits for the first one.
const TWIN_PATIENCE: Duration = Duration::from_secs(60);

/// A sandbox to be made; everything in it has been checked.
#[derive(Debug, Clone)]
pub(crate) struct CreateSpec {
    /// The agent that is to own it, one of the caller's project.
    pub(crate) agent: Option<AgentId>,
    pub(crate) template: TemplateRef,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) env_vars: BTreeMap<String, String>,
    pub(crate) timeout_ms: Millis,
    pub(crate) on_timeout: OnTimeout,
    pub(crate) auto_resume: bool,
    pub(crate) secure: bool,
    /// The settings as they were asked for.
    pub(crate) network: Option<Network>,
    /// What they mean.
    pub(crate) reach: Policy,
    pub(crate) allow_internet_access: Option<bool>,
    /// The request's idempotency key and a digest of what it asks for.
    pub(crate) idempotency: Option<(String, String)>,
}

impl Fleet {
    /// Makes a sandbox and returns once it answers. A failure leaves nothing behind but its record.
    pub(crate) async fn create(
        self: &Arc<Self>,
        scope: ProjectScope,
        spec: CreateSpec,
    ) -> Result<SandboxRow, FleetError> {
        // A key stands for its first sandbox, so whoever sent one has to ask again.
        let again = spec.idempotency.is_none().then(|| spec.clone());
        match (self.create_once(scope, spec).await, again) {
            // A sandbox that was kept ready may be at its end when it is handed out: a second one helps.
            (Err(FleetError::DiedEarly), Some(spec)) => self.create_once(scope, spec).await,
            (made, _) => made,
        }
    }

    async fn create_once(
        self: &Arc<Self>,
        scope: ProjectScope,
        spec: CreateSpec,
    ) -> Result<SandboxRow, FleetError> {
        let template = self.resolve(&spec.template).await?;
        let new = self.plan(&spec, &template);
        let record = Arc::new(Record::new(creating(&new, scope.project())));
        let claim = record.claim(Step::Create).await?;
        // From here on a list of the engine's that has this id is no surprise.
        self.enrol(record.clone());
        let fleet = self.clone();
        self.carry_through(async move {
            let id = new.id;
            let made = fleet.make(scope, new, template, spec.reach, spec.idempotency, claim).await;
            match &made {
                Ok(row) if row.id == id => {
                    fleet.sample_soon.notify_one();
                    tracing::info!(sandbox.id = %id, "sandbox {id} is ready");
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(sandbox.id = %id, "could not make sandbox {id}: {}", chain(error))
                }
            }
            made
        })
        .await
    }

    /// The engine's name for a template; unknown ones are refused before anything is made.
    async fn resolve(&self, template: &TemplateRef) -> Result<String, FleetError> {
        let unknown = || FleetError::UnknownTemplate(template.to_string());
        if template.namespace.is_some() || template.tag.as_deref().is_some_and(|tag| tag != "default") {
            return Err(unknown());
        }
        let known = self.templates().await?;
        let found = known.iter().any(|known| known.name == template.name);
        if found { Ok(template.name.clone()) } else { Err(unknown()) }
    }

    fn plan(&self, spec: &CreateSpec, template: &str) -> NewSandbox {
        let now = now_ms();
        let open = spec.network.as_ref().and_then(|network| network.allow_public_traffic).unwrap_or(true);
        NewSandbox {
            id: SandboxId::generate(),
            agent: spec.agent,
            template: spec.template.to_string(),
            template_id: template.to_string(),
            alias: Some(template.to_string()),
            metadata: spec.metadata.clone(),
            env_vars: spec.env_vars.clone(),
            limits: self.limits,
            lifetime: Lifetime {
                started_ms: now,
                deadline_ms: self.policy.deadline(now, now, spec.timeout_ms),
                on_timeout: spec.on_timeout,
            },
            timeout_s: spec.timeout_ms / 1000,
            auto_resume: spec.auto_resume,
            secure: spec.secure,
            access_token: spec.secure.then(token),
            traffic_token: (!open).then(token),
            network: spec.network.as_ref().map(|network| serde_json::to_value(network).expect("plain data")),
            allow_internet_access: spec.allow_internet_access,
            envd_version: ENVD_VERSION.to_string(),
            created_ms: now,
        }
    }

    async fn make(
        self: &Arc<Self>,
        scope: ProjectScope,
        new: NewSandbox,
        template: String,
        reach: Policy,
        idempotency: Option<(String, String)>,
        claim: Claim,
    ) -> Result<SandboxRow, FleetError> {
        let timeout_ms = new.timeout_s * 1000;
        let order = CreateSandbox {
            sandbox: new.id,
            template,
            hostname: new.id.to_string(),
            limits: new.limits,
            network: reach,
        };
        let (inserted, up) = match &idempotency {
            // Only the row tells whether this request is the first: the engine waits for it.
            Some((key, fingerprint)) => {
                let key = Idempotency { key, fingerprint };
                let inserted = self.store.insert_sandbox(&scope, new.clone(), Some(key)).await;
                match inserted {
                    Ok(Inserted::New) => (inserted, Some(self.bring_up(&claim.record, &order).await)),
                    other => (other, None),
                }
            }
            None => {
                let (inserted, up) = tokio::join!(
                    self.store.insert_sandbox(&scope, new.clone(), None),
                    self.bring_up(&claim.record, &order)
                );
                (inserted, Some(up))
            }
        };
        let up = match inserted {
            Ok(Inserted::New) => up.expect("the engine was asked for a new sandbox"),
            Ok(Inserted::Existing(first)) => {
                self.forget(new.id);
                drop(claim);
                return self.await_twin(*first).await;
            }
            Ok(Inserted::KeyReusedDifferently) => {
                self.forget(new.id);
                return Err(FleetError::KeyReused);
            }
            Err(error) => {
                if up.is_some() {
                    self.destroy_quietly(new.id).await;
                }
                self.forget(new.id);
                return Err(error.into());
            }
        };
        let running = match up {
            Ok(placement) => self.begin(&claim, placement, timeout_ms).await,
            Err(error) => Err(error),
        };
        match running {
            Ok(row) => Ok(row),
            Err(error) => {
                let message = chain(&error);
                let ended_by_others = claim.record.live().ending.clone();
                claim.record.live().ending.get_or_insert(Ending::Failed(Fault::CreateFailed { message }));
                if matches!(error, FleetError::Engine(EngineError::Unavailable(_))) {
                    // It would not answer this either for a while; the client need not wait for it.
                    let fleet = self.clone();
                    self.steps.spawn(async move { fleet.end(claim).await });
                } else {
                    self.end(claim).await;
                }
                Err(match (ended_by_others, error) {
                    (Some(Ending::Failed(_)), _)
                    | (None, FleetError::NotReady(AgentError::Refused(_) | AgentError::Cut(_))) => {
                        FleetError::DiedEarly
                    }
                    (Some(Ending::Destroyed(_)), _) => FleetError::EndedEarly,
                    (None, error) => error,
                })
            }
        }
    }

    /// Has the engine make it, and names its agentd.
    async fn bring_up(&self, record: &Record, order: &CreateSandbox) -> Result<Placement, FleetError> {
        let placement = self.engine.create(order).await.map_err(|error| match error {
            EngineError::UnknownTemplate(_) => FleetError::UnknownTemplate(record.row().template),
            // An engine that died over the first attempt made it, and it has died since.
            EngineError::WrongState(_) => FleetError::DiedEarly,
            other => other.into(),
        })?;
        let asked = record.row().template_id;
        if placement.template.name != asked {
            let (id, used) = (record.id, &placement.template.name);
            tracing::warn!(sandbox.id = %id, "sandbox {id} asked for template {asked} and got {used}");
        }
        let placement = stored(placement);
        record.live().row.placement = Some(placement.clone());
        let init = record.init();
        tokio::select! {
            ready = agent::init(&placement.socket, &init, INIT_PATIENCE) => ready.map_err(FleetError::NotReady)?,
            () = record.doomed.cancelled() => return Err(FleetError::EndedEarly),
        }
        Ok(placement)
    }

    /// Puts a sandbox that answers on record as running.
    async fn begin(
        &self,
        claim: &Claim,
        placement: Placement,
        timeout_ms: Millis,
    ) -> Result<SandboxRow, FleetError> {
        let record = &claim.record;
        let now = now_ms();
        let changes = Changes {
            started_ms: Some(now),
            deadline_ms: Some(self.policy.deadline(now, now, timeout_ms)),
            placement: Some(placement),
            ..Changes::default()
        };
        self.advance(claim, Cause::Ready, changes).await?;
        record.activity.note();
        let mut live = record.live();
        // Whoever asked for its end meanwhile has cancelled the run that begins here.
        if live.ending.is_none() {
            live.begin_run();
        }
        Ok(live.row.clone())
    }

    /// The outcome of an earlier, equal request.
    async fn await_twin(&self, first: SandboxRow) -> Result<SandboxRow, FleetError> {
        let row = match self.any(first.id) {
            Some(record) => {
                let waited = tokio::time::timeout(TWIN_PATIENCE, record.settled()).await;
                waited.map_err(|_| FleetError::FirstUnderWay)?;
                record.row()
            }
            None => first,
        };
        match row.state.name() {
            StateName::Running | StateName::Paused | StateName::Terminated => Ok(row),
            StateName::Creating | StateName::Error => Err(FleetError::FirstFailed),
        }
    }
}

/// The row as the store will have it.
fn creating(new: &NewSandbox, project: ProjectId) -> SandboxRow {
    let new = new.clone();
    SandboxRow {
        id: new.id,
        project,
        agent: new.agent,
        state: SandboxState::Creating,
        placement: None,
        template: new.template,
        template_id: new.template_id,
        alias: new.alias,
        metadata: new.metadata,
        env_vars: new.env_vars,
        limits: new.limits,
        lifetime: new.lifetime,
        timeout_s: new.timeout_s,
        auto_resume: new.auto_resume,
        secure: new.secure,
        access_token: new.access_token,
        traffic_token: new.traffic_token,
        network: new.network,
        allow_internet_access: new.allow_internet_access,
        envd_version: new.envd_version,
        created_ms: new.created_ms,
        ended_ms: None,
    }
}

/// 48 letters and digits, about 285 random bits.
fn token() -> Secret {
    use rand::distr::{Alphanumeric, SampleString};
    Secret::new(Alphanumeric.sample_string(&mut rand::rng(), 48))
}

/// An error with all its causes, for a log or a record.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text.chars().take(1000).collect()
}

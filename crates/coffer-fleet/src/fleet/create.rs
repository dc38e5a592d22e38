//! Creates sandboxes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use coffer_core::network::NetworkSettings;
use coffer_core::{
    AgentId, Cause, Fault, Lifetime, Limits, Millis, OnTimeout, ProjectId, SandboxId, SandboxPurpose,
    SandboxState, SizeWish, StateName, TaskId, TemplateId, TemplateRef, chain,
};
use coffer_engine::{CreateSandbox, EngineError, NodeMount};
use coffer_store::{
    Asking, Bounds, Changes, Idempotency, Inserted, NewSandbox, Origin, Placement, ProjectScope, SandboxRow,
    Secret, VolumeMount,
};
use coffer_wire::agentd::ENVD_VERSION;

use super::ledger::{self, stored};
use super::record::{Claim, Ending};
use super::volumes::MountWish;
use super::{Fleet, FleetError, Record, Step};
use coffer_core::clock::now_ms;
use coffer_guest as agent;
use coffer_guest::AgentError;

/// How long a new agentd may take for its first answer.
pub(super) const INIT_PATIENCE: Duration = Duration::from_secs(20);

/// How long a repeated request waits for the first one.
const TWIN_PATIENCE: Duration = Duration::from_secs(60);

/// Pauses before retries, so a create is tried three times in all. The first retry does not wait: a warm
/// sandbox that died says nothing about a new one.
const CREATE_AGAIN: [Duration; 2] = [Duration::ZERO, Duration::from_secs(1)];

/// A sandbox to create; everything in it has been checked.
#[derive(Debug, Clone)]
pub struct CreateSpec {
    /// The agent that will own it, one of the caller's project.
    pub agent: Option<AgentId>,
    /// The task that it is for, one of the caller's project.
    pub task: Option<TaskId>,
    pub template: TemplateRef,
    pub metadata: BTreeMap<String, String>,
    pub env_vars: BTreeMap<String, String>,
    /// Variables with a secret's value, by the secret's name.
    pub secrets: BTreeMap<String, String>,
    pub timeout_ms: Millis,
    pub on_timeout: OnTimeout,
    pub auto_resume: bool,
    pub secure: bool,
    pub network: NetworkSettings,
    /// As E2B's request had it, for answers; `network` has its meaning.
    pub allow_internet_access: Option<bool>,
    pub bounds: Bounds,
    /// Its size, instead of the default or the snapshot's.
    pub size: SizeWish,
    /// The snapshot it starts from, if that is already known; the template may also name one.
    pub base: Option<Base>,
    /// Whether to continue a snapshot's processes; by default if it has them.
    pub memory: Option<bool>,
    pub purpose: SandboxPurpose,
    /// Volumes to mount.
    pub volumes: Vec<MountWish>,
    /// The request's idempotency key and a digest of the request.
    pub idempotency: Option<(String, String)>,
}

/// The snapshot that a sandbox starts from.
#[derive(Debug, Clone)]
pub struct Base {
    pub origin: Origin,
    /// Whether to continue its processes.
    pub memory: bool,
    /// The engine's name for the template at the bottom.
    pub template: String,
    /// The template's id in answers.
    pub template_id: String,
    pub alias: Option<String>,
    pub limits: Limits,
    /// Variables that its processes got from secrets.
    pub secrets: BTreeMap<String, String>,
    /// The template whose use this is.
    pub spawns: Option<TemplateId>,
    /// The project of that template; nothing for a template of all projects.
    pub template_owner: Option<ProjectId>,
}

impl Fleet {
    /// Creates a sandbox and returns once it answers. A failure leaves only its record.
    pub async fn create(
        self: &Arc<Self>,
        scope: ProjectScope,
        spec: CreateSpec,
    ) -> Result<SandboxRow, FleetError> {
        // An idempotency key stands for its first sandbox, so the client has to retry.
        if spec.idempotency.is_some() {
            return self.create_once(scope, spec).await;
        }
        for pause in CREATE_AGAIN {
            match self.create_once(scope, spec.clone()).await {
                // A warm sandbox may have died by the time it is handed out: try another one.
                Err(FleetError::DiedEarly) => tokio::time::sleep(pause).await,
                made => return made,
            }
        }
        self.create_once(scope, spec).await
    }

    async fn create_once(
        self: &Arc<Self>,
        scope: ProjectScope,
        mut spec: CreateSpec,
    ) -> Result<SandboxRow, FleetError> {
        self.usage.admits(scope.project(), None)?;
        let place = self.host_calls.take(scope.project()).await?;
        let template = self.settle(&scope, &mut spec).await?;
        let volumes = self.find_volumes(&scope, &spec.volumes).await?;
        boot_with_volumes(&mut spec)?;
        let limits = self.limits_for(&spec)?;
        self.expect_room(scope.project(), &limits, Asking::ToBegin).await?;
        self.check_secrets(scope.project(), &spec.secrets).await?;
        let (reach, told) = self.reach_of(scope.project(), spec.network.policy.clone()).await?;
        let new = NewSandbox { volumes, ..self.plan(&spec, &template, limits) };
        let record = Arc::new(Record::new(creating(&new, scope.project(), self.store.installation())));
        record.told.store(told, Ordering::Relaxed);
        self.lead_as_source(&record);
        let reach = record.git.opens(reach).map_err(|_| FleetError::Broken)?;
        let claim = record.claim(Step::Create).await?;
        // Register first, so reconciliation does not take the new sandbox for an orphan.
        self.enrol(record.clone());
        let fleet = self.clone();
        self.carry_through(async move {
            let _place = place;
            let (id, begun) = (new.id, std::time::Instant::now());
            let mut span = fleet.span("sandbox.create", &record);
            span.set("sandbox.template", || template.clone().into());
            let metrics = &fleet.telemetry.metrics;
            metrics.spawned(&template);
            let name = template.clone();
            let spawns = spec.base.as_ref().and_then(|base| base.spawns);
            let template_owner = spec.base.as_ref().and_then(|base| base.template_owner);
            let order = CreateSandbox {
                sandbox: id,
                template,
                hostname: id.to_string(),
                limits: new.limits,
                network: reach,
                snapshot: new.origin.map(|origin| origin.snapshot),
                from_template: spawns.is_some(),
                template_owner,
                memory: spec.base.is_some_and(|base| base.memory),
                volumes: new.volumes.iter().map(node_mount).collect(),
            };
            let made = fleet.make(scope, new, order, spec.idempotency, claim).await;
            match &made {
                Ok(row) if row.id == id => {
                    metrics.created(&name, begun.elapsed());
                    fleet.sample_soon.notify_one();
                    tracing::info!(sandbox.id = %id, "sandbox {id} created");
                    if let Some(template) = spawns {
                        fleet.count_spawn(template);
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    span.fail(|| chain(error));
                    tracing::warn!(sandbox.id = %id, "could not create sandbox {id}: {}", chain(error))
                }
            }
            made
        })
        .await
    }

    /// Resolves the template or snapshot of the request, and returns the engine's name for the template.
    /// Templates of the host are known here; other names are looked up among the project's templates, then
    /// among its snapshots, then among the templates of all projects.
    async fn settle(&self, scope: &ProjectScope, spec: &mut CreateSpec) -> Result<String, FleetError> {
        if spec.base.is_none() {
            match self.resolve(&spec.template).await {
                Err(FleetError::UnknownTemplate(name)) => {
                    let found = self.base_called(scope, &spec.template, spec.memory).await?;
                    let missing = || match self.is_shared(&name) {
                        true => FleetError::TemplateNotBuilt(name),
                        false => FleetError::UnknownTemplate(name),
                    };
                    spec.base = Some(found.ok_or_else(missing)?);
                }
                known => return known,
            }
        }
        let base = spec.base.as_ref().ok_or(FleetError::Broken)?;
        let own = std::mem::take(&mut spec.secrets);
        spec.secrets = base.secrets.clone();
        spec.secrets.extend(own);
        Ok(base.template.clone())
    }

    /// What a name means that is not a template of the host.
    pub async fn base_called(
        &self,
        scope: &ProjectScope,
        reference: &TemplateRef,
        memory: Option<bool>,
    ) -> Result<Option<Base>, FleetError> {
        if let Some(template) = self.template_called(scope, reference, memory).await? {
            return Ok(Some(template));
        }
        match self.snapshot_called(scope, reference).await? {
            Some(row) => Ok(Some(self.base_of(&row, memory)?)),
            None => self.shared_called(reference, memory).await,
        }
    }

    /// The engine's name for a template; unknown ones are refused before anything is created.
    async fn resolve(&self, template: &TemplateRef) -> Result<String, FleetError> {
        let unknown = || FleetError::UnknownTemplate(template.to_string());
        if template.namespace.is_some() || template.tag.as_deref().is_some_and(|tag| tag != "default") {
            return Err(unknown());
        }
        let known = self.templates().await?;
        let found = known.iter().any(|known| known.name == template.name);
        if found { Ok(template.name.clone()) } else { Err(unknown()) }
    }

    fn plan(&self, spec: &CreateSpec, template: &str, limits: Limits) -> NewSandbox {
        let base = spec.base.as_ref();
        let now = now_ms();
        NewSandbox {
            id: SandboxId::generate(),
            agent: spec.agent,
            task: spec.task,
            template: spec.template.to_string(),
            template_id: base.map_or_else(|| template.to_string(), |base| base.template_id.clone()),
            alias: base.map_or_else(|| Some(template.to_string()), |base| base.alias.clone()),
            metadata: spec.metadata.clone(),
            env_vars: spec.env_vars.clone(),
            secrets: spec.secrets.clone(),
            limits,
            lifetime: Lifetime {
                started_ms: now,
                deadline_ms: self.policy_for(&spec.bounds).deadline(now, now, spec.timeout_ms),
                on_timeout: spec.on_timeout,
            },
            timeout_s: spec.timeout_ms / 1000,
            auto_resume: spec.auto_resume,
            secure: spec.secure,
            access_token: spec.secure.then(token),
            traffic_token: (!spec.network.inbound.public).then(token),
            network: spec.network.clone(),
            allow_internet_access: spec.allow_internet_access,
            envd_version: ENVD_VERSION.to_string(),
            created_ms: now,
            bounds: spec.bounds,
            origin: base.map(|base| base.origin),
            purpose: spec.purpose,
            volumes: Vec::new(),
        }
    }

    /// Counts a use of a template, without delaying the answer.
    fn count_spawn(&self, template: TemplateId) {
        let store = self.store.clone();
        self.steps.spawn(async move {
            if let Err(error) = store.count_spawn(template).await {
                tracing::warn!("could not count a use of template {template}: {error}");
            }
        });
    }

    /// Gives a fork access to its source's repositories from the start.
    fn lead_as_source(&self, child: &Record) {
        let fork = child.live().row.origin.filter(|origin| origin.fork_position.is_some());
        let source = fork.and_then(|origin| self.any(origin.parent));
        if let Some(source) = source.filter(|source| source.project == child.project) {
            child.git.begin_as(&source.git);
        }
    }

    async fn make(
        self: &Arc<Self>,
        scope: ProjectScope,
        new: NewSandbox,
        order: CreateSandbox,
        idempotency: Option<(String, String)>,
        claim: Claim,
    ) -> Result<SandboxRow, FleetError> {
        let timeout_ms = new.timeout_s * 1000;
        let (inserted, up) = match &idempotency {
            // Only the row shows whether this request is the first, so the engine waits for it.
            Some((key, fingerprint)) => {
                let key = Idempotency { key, fingerprint };
                let inserted = self.store.insert_sandbox(&scope, new.clone(), Some(key)).await;
                match inserted {
                    Ok(Inserted::New) => (inserted, Some(self.bring_up(&claim.record, &order).await)),
                    other => (other, None),
                }
            }
            None => {
                let insert = async {
                    let inserted = self.store.insert_sandbox(&scope, new.clone(), None).await;
                    if !matches!(inserted, Ok(Inserted::New)) {
                        // Cancel anything that waits for its agentd.
                        claim.record.doomed.cancel();
                    }
                    inserted
                };
                let (up, inserted) = tokio::join!(self.bring_up(&claim.record, &order), insert);
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
            Ok(Inserted::OverQuota(over)) => {
                if up.is_some() {
                    // The answer does not wait for this. Until the sandbox is destroyed, its id stays
                    // registered.
                    let (fleet, id) = (self.clone(), new.id);
                    self.steps.spawn(async move {
                        fleet.destroy_quietly(id).await;
                        fleet.forget(id);
                        drop(claim);
                    });
                } else {
                    self.forget(new.id);
                }
                return Err(self.over_quota(scope.project(), over));
            }
            Ok(Inserted::VolumeGone) => {
                if up.is_some() {
                    self.destroy_quietly(new.id).await;
                }
                self.forget(new.id);
                let names: Vec<_> = new.volumes.iter().map(|mount| mount.name.to_string()).collect();
                return Err(FleetError::NoVolume(names.join(", ")));
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
        let placement = match up {
            Ok(placement) => placement,
            Err(error) => return Err(self.give_up(claim, error).await),
        };
        match self.begin(&claim, placement, timeout_ms) {
            Ok(begun) => {
                let row = begun.row.clone();
                let promise = self.recording.clone().read_owned().await;
                let fleet = self.clone();
                self.steps.spawn(async move {
                    fleet.put_on_record(claim, begun).await;
                    drop(promise);
                });
                Ok(row)
            }
            Err(error) => Err(self.give_up(claim, error).await),
        }
    }

    /// Destroys a sandbox whose create failed, and returns the error.
    async fn give_up(self: &Arc<Self>, claim: Claim, error: FleetError) -> FleetError {
        let message = chain(&error);
        let ended_by_others = claim.record.live().ending.clone();
        claim.record.live().ending.get_or_insert(Ending::Failed(Fault::CreateFailed { message }));
        if matches!(&error, FleetError::Engine(error) if error.is_away()) {
            // The engine would not answer the destroy either for a while; do not make the client wait for it.
            let fleet = self.clone();
            self.steps.spawn(async move { fleet.end(claim).await });
        } else {
            self.end(claim).await;
        }
        match (ended_by_others, error) {
            (Some(Ending::Failed(_)), _)
            | (None, FleetError::NotReady(AgentError::Refused(_) | AgentError::Cut(_))) => {
                FleetError::DiedEarly
            }
            (Some(Ending::Destroyed(_)), _) => FleetError::EndedEarly,
            (None, error) => error,
        }
    }

    /// Asks the engine to create it, and initialises its agentd.
    async fn bring_up(&self, record: &Record, order: &CreateSandbox) -> Result<Placement, FleetError> {
        let placement = self.engine.create(order).await.map_err(|error| match error {
            EngineError::UnknownTemplate(_) | EngineError::UnknownSnapshot => {
                FleetError::UnknownTemplate(record.row().template)
            }
            EngineError::UnknownVolume => {
                let names: Vec<_> = record.row().volumes.iter().map(|mount| mount.name.to_string()).collect();
                FleetError::NoVolume(names.join(", "))
            }
            // An engine that died during the first attempt had created it, and the sandbox has died since.
            EngineError::WrongState(_) => FleetError::DiedEarly,
            other => other.into(),
        })?;
        let asked = &order.template;
        if placement.template.name != *asked {
            let (id, used) = (record.id, &placement.template.name);
            tracing::warn!(sandbox.id = %id, "sandbox {id} asked for template {asked} and got {used}");
        }
        let placement = stored(placement);
        record.live().row.placement = Some(placement.clone());
        let init = self.init_of(record).await?;
        tokio::select! {
            ready = agent::init(&placement.socket, &init, INIT_PATIENCE) => {
                record.spare.put(ready.map_err(FleetError::NotReady)?);
            }
            () = record.doomed.cancelled() => return Err(FleetError::EndedEarly),
        }
        Ok(placement)
    }

    /// Marks a sandbox that answers as running. The client need not wait until the store has recorded it: the
    /// row in state `creating` is durable, and after a crash the sandbox's agentd knows that it was
    /// initialised (see [`super::reconcile`]). Until it is recorded, other steps wait, as for an update.
    fn begin(&self, claim: &Claim, placement: Placement, timeout_ms: Millis) -> Result<Begun, FleetError> {
        let now = now_ms();
        let record = &claim.record;
        let mut live = record.live();
        let mut row = live.row.clone();
        row.state = row.state.after(Cause::Ready)?;
        row.lifetime.started_ms = now;
        row.lifetime.deadline_ms = self.policy_for(&row.bounds).deadline(now, now, timeout_ms);
        row.lease_until_ms = row.bounds.lease_s.map(|lease_s| now.saturating_add(lease_s * 1000));
        row.placement = Some(placement.clone());
        let changes = Changes {
            started_ms: Some(row.lifetime.started_ms),
            deadline_ms: Some(row.lifetime.deadline_ms),
            placement: Some(placement),
            ..Changes::default()
        };
        live.adopt(row.clone());
        live.under_way = Some(Step::Update);
        self.account(&row);
        // A destroy request meanwhile has cancelled the run that begins here.
        if live.ending.is_none() {
            live.begin_run();
        }
        record.activity.note();
        Ok(Begun { row, changes })
    }

    /// Records what [`Fleet::begin`] began. If that fails, the sandbox must end.
    async fn put_on_record(&self, claim: Claim, begun: Begun) {
        let Begun { row, changes } = begun;
        let (operator, reason) = (self.store.operator(), ledger::reason(&Cause::Ready));
        let written =
            self.store.transition(&operator, row.id, StateName::Creating, row.state, &reason, changes).await;
        if let Err(error) = written {
            let id = row.id;
            tracing::error!(sandbox.id = %id, "could not record that sandbox {id} runs: {}", chain(&error));
            let fault = Fault::CreateFailed { message: chain(&error) };
            {
                let mut live = claim.record.live();
                live.row.state = SandboxState::Creating;
                live.ending.get_or_insert(Ending::Failed(fault));
            }
            self.end(claim).await;
        } else if row.origin.is_some() {
            self.gates.notify_one();
        }
    }

    /// Waits until every answered change is recorded, so that a list includes it.
    pub async fn recorded(&self) {
        drop(self.recording.write().await);
    }

    /// The outcome of an earlier, equal request.
    pub(super) async fn await_twin(&self, first: SandboxRow) -> Result<SandboxRow, FleetError> {
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

/// A running sandbox whose state is not recorded yet.
struct Begun {
    row: SandboxRow,
    changes: Changes,
}

/// The row as the store will have it.
pub(super) fn creating(new: &NewSandbox, project: ProjectId, installation: Option<String>) -> SandboxRow {
    let new = new.clone();
    SandboxRow {
        id: new.id,
        project,
        agent: new.agent,
        task: new.task,
        state: SandboxState::Creating,
        placement: None,
        template: new.template,
        template_id: new.template_id,
        alias: new.alias,
        metadata: new.metadata,
        sealed: false,
        env_vars: new.env_vars,
        secrets: new.secrets,
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
        last_used_ms: None,
        bounds: new.bounds,
        lease_until_ms: None,
        installation,
        origin: new.origin,
        purpose: new.purpose,
        volumes: new.volumes,
    }
}

/// Processes that were saved without a volume cannot continue with one: the sandbox boots, unless its request
/// asks for the processes.
fn boot_with_volumes(spec: &mut CreateSpec) -> Result<(), FleetError> {
    if spec.volumes.is_empty() {
        return Ok(());
    }
    if spec.memory == Some(true) {
        let why = "a sandbox with volumes does not continue saved processes".to_string();
        return Err(FleetError::NoMemory(why));
    }
    if let Some(base) = &mut spec.base {
        base.memory = false;
    }
    Ok(())
}

fn node_mount(mount: &VolumeMount) -> NodeMount {
    NodeMount { volume: mount.volume, path: mount.path.clone(), read_only: mount.read_only }
}

/// 48 letters and digits, about 285 random bits.
pub(super) fn token() -> Secret {
    use rand::distr::{Alphanumeric, SampleString};
    Secret::new(Alphanumeric.sample_string(&mut rand::rng(), 48))
}

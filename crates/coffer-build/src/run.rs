//! Runs one build to its end.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::network::NetworkSettings;
use coffer_core::{
    BuildLogLevel, OnTimeout, SandboxPurpose, SizeWish, SnapshotId, SnapshotPurpose, StartCommand,
    TemplateDefaults, TemplateRef, chain,
};
use coffer_fleet::{CreateSpec, DEFAULT_TEMPLATE};
use coffer_store::{Bounds, BuildFailure, Layer, ProjectScope, StartedBuild, StoreError};
use coffer_wire::agentd::Unpack;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Builds;
use crate::key::Key;
use crate::log::BuildLog;
use crate::secrets::{BuildSecrets, NoSecrets};
use crate::source::{Base, Begin, Found, NoBase};
use crate::step::{self, Step, expand};
use crate::workplace::{Extras, Leash, StepError, Workplace};

/// How often a build begins, over all servers, if its failures are not its own; and how often with this server.
const TRIES: i64 = 5;
const TRIES_HERE: i64 = 3;
const AGAIN: Duration = Duration::from_secs(2);
/// How long a build waits for room in its project's quota.
const ROOM_PAUSE: Duration = Duration::from_secs(2);
/// How long the ready command may take to succeed.
const READY_WITHIN: Duration = Duration::from_secs(300);
const READY_PAUSE: Duration = Duration::from_millis(200);
/// How long a start command without a ready command gets.
const SETTLE: Duration = Duration::from_millis(500);

/// How long a build that is out of time gets to end by itself, at most: its step knows better what took so long.
const GRACE: Duration = Duration::from_secs(30);

/// The names of the phases before and after the steps.
const BASE: &str = "base";
const FINALIZE: &str = "finalize";
const SMOKE: &str = "smoke";

/// Why a build did not reach its end.
pub(crate) enum Unfinished {
    /// The client has to change something.
    Failed(BuildFailure),
    /// It may work when tried again.
    Transient(BuildFailure),
}

impl From<StoreError> for Unfinished {
    fn from(error: StoreError) -> Self {
        transient(chain(&error))
    }
}

impl From<NoSecrets> for Unfinished {
    fn from(error: NoSecrets) -> Self {
        match error {
            NoSecrets::Refused { step, message } => Self::Failed(BuildFailure { message, step: Some(step) }),
            NoSecrets::Store(error) => error.into(),
        }
    }
}

/// A failure of no step.
pub(crate) fn transient(message: String) -> Unfinished {
    Unfinished::Transient(BuildFailure { message, step: None })
}

/// Names the step of an error.
fn at(step: &str) -> impl Fn(StepError) -> Unfinished {
    move |error| match error {
        StepError::Failed(message) => {
            Unfinished::Failed(BuildFailure { message, step: Some(step.to_string()) })
        }
        StepError::Transient(message) => {
            Unfinished::Transient(BuildFailure { message, step: Some(step.to_string()) })
        }
        StepError::NoRoom(over) => Unfinished::Failed(BuildFailure {
            message: format!("{over}; hint: delete snapshots or templates, or ask an operator for more"),
            step: Some(step.to_string()),
        }),
    }
}

/// The error of the phase before the steps.
pub(crate) fn at_base(error: StepError) -> Unfinished {
    at(BASE)(error)
}

/// The error of the phase after everything.
pub(crate) fn at_smoke(error: StepError) -> Unfinished {
    at(SMOKE)(error)
}

impl Builds {
    /// Runs a build until it is ready or has failed. Dropped when the server stops or the build is cancelled.
    pub(crate) async fn run(
        self: &Arc<Self>,
        build: StartedBuild,
        news: watch::Sender<()>,
        cancel: &CancellationToken,
    ) {
        let builds = self;
        let mut log = BuildLog::new(builds.store.clone(), build.row.id, news, &builds.tasks);
        // What an earlier server left.
        builds.destroy_sandbox(&build.row).await;
        let mut begun_here = 0;
        let limit = Duration::from_secs(builds.settings.timeout.as_secs());
        let (deadline, grace) = (Instant::now() + limit, GRACE.min(limit / 10));
        let ended = loop {
            begun_here += 1;
            let attempt = Attempt {
                builds,
                build: &build,
                scope: builds.store.operator().acting_for(build.row.project, None),
                deadline,
            };
            // All of it: a registry may send a byte a minute, and an agentd may never answer.
            let work = async {
                let (snapshot, defaults) = attempt.run(&mut log).await?;
                attempt.try_out(snapshot, &mut log).await?;
                Ok((snapshot, defaults))
            };
            let ran = tokio::time::timeout_at(deadline + grace, work).await;
            match ran.unwrap_or_else(|_| Err(attempt.out_of_time())) {
                // The server stops, or the build was cancelled: that is not the build's failure.
                Err(Unfinished::Transient(_)) if cancel.is_cancelled() => return,
                Err(Unfinished::Transient(failure)) => {
                    let now = builds.store.build(&builds.store.operator(), None, build.row.id).await;
                    let tries = now.ok().flatten().map_or(TRIES, |row| row.tries);
                    if tries >= TRIES || begun_here >= TRIES_HERE {
                        break Err(failure);
                    }
                    log.add(
                        BuildLogLevel::Warn,
                        format!("beginning again from the last finished step: {}", failure.message),
                    )
                    .await;
                    tokio::time::sleep(AGAIN).await;
                }
                Err(Unfinished::Failed(failure)) => break Err(failure),
                Ok(done) => break Ok(done),
            }
        };
        let operator = builds.store.operator();
        if Instant::now() >= deadline {
            // Out of time, it did not destroy its sandbox itself.
            match builds.store.build(&operator, None, build.row.id).await {
                Ok(Some(row)) => builds.destroy_sandbox(&row).await,
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!("could not find the sandbox of build {}: {}", build.row.id, chain(&error))
                }
            }
        }
        let recorded = match ended {
            Ok((snapshot, defaults)) => {
                log.info("the template is ready").await;
                log.finish().await;
                builds.store.finish_build(&operator, build.row.id, snapshot, Some(defaults)).await
            }
            Err(failure) => {
                log.add(BuildLogLevel::Error, failure.message.clone()).await;
                log.finish().await;
                builds.store.fail_build(&operator, build.row.id, failure).await
            }
        };
        match recorded {
            Ok(Some(row)) => {
                tracing::info!(
                    "build {} of template {} ended: {}",
                    row.id,
                    row.template_name,
                    row.state.as_str()
                )
            }
            // It was cancelled, or its template deleted.
            Ok(None) => {}
            Err(error) => {
                tracing::error!("could not record the end of build {}: {}", build.row.id, chain(&error));
            }
        }
    }
}

/// One attempt at a build.
pub(crate) struct Attempt<'a> {
    pub(crate) builds: &'a Arc<Builds>,
    pub(crate) build: &'a StartedBuild,
    scope: ProjectScope,
    deadline: Instant,
}

impl Attempt<'_> {
    fn out_of_time(&self) -> Unfinished {
        let limit = self.builds.settings.timeout;
        Unfinished::Failed(BuildFailure {
            message: format!("the build took longer than {limit}"),
            step: None,
        })
    }

    async fn run(&self, log: &mut BuildLog) -> Result<(SnapshotId, TemplateDefaults), Unfinished> {
        let plan = &self.build.plan;
        let refused = |bad: step::BadPlan| BuildFailure { message: bad.message, step: Some(bad.step) };
        let steps = step::check(plan).map_err(|bad| Unfinished::Failed(refused(bad)))?;
        log.set_step(BASE);
        let found = self.builds.find_base(&self.scope, &plan.source).await.map_err(|error| match error {
            NoBase::Unknown(message) => at_base(StepError::Failed(message)),
            error => transient(chain(&error)),
        })?;
        let base = match found {
            Found::Here(base) => base,
            Found::InRegistry(name) => self.image_base(&name, log).await?,
            Found::Archive(files) => self.archive_base(&files, log).await?,
        };
        log.info(format!("[base] {}", base.note)).await;
        let secrets = BuildSecrets::of(&self.builds.store, &self.scope, &steps).await?;
        let keys = self.keys(&base, &steps, &secrets).await?;
        let cached = self.cached(&keys).await?;
        let done = cached.as_ref().map_or(0, |(done, _)| (*done).min(steps.len()));
        for (index, step) in steps.iter().enumerate().take(done) {
            log.set_step(&(index + 1).to_string());
            log.info(format!("{} CACHED {}", prefix(index, steps.len()), describe(step))).await;
        }
        if let Some((done, layer)) = &cached
            && *done + 1 == keys.len()
        {
            return Ok((layer.snapshot, layer.defaults.clone()));
        }
        let mut place = self.open(&base, cached.map(|(_, layer)| layer)).await?;
        let result = self.work(&mut place, (&steps, &secrets), &keys, done, log).await;
        let defaults = place.defaults.clone();
        place.destroy().await;
        Ok((result?, defaults))
    }

    /// The key of the base, of every step, and of the started service if there is one.
    async fn keys(
        &self,
        base: &Base,
        steps: &[Step],
        secrets: &BuildSecrets,
    ) -> Result<Vec<Key>, Unfinished> {
        let plan = &self.build.plan;
        let mut keys = vec![Key::of_base(&base.identity)];
        for (index, (step, asked)) in steps.iter().zip(&plan.steps).enumerate() {
            let mut parts = vec![asked.kind.as_str().to_string()];
            parts.extend(asked.args.iter().cloned());
            if let Step::Copy { hash, .. } = step {
                let files = self.builds.store.template_files(self.build.row.project, hash).await?;
                let missing = || {
                    let message = format!("the files of '{}' were not uploaded", asked.args.join(" "));
                    Unfinished::Failed(BuildFailure { message, step: Some((index + 1).to_string()) })
                };
                parts.push(files.ok_or_else(missing)?.sha256);
            }
            for (name, value) in &asked.env {
                parts.extend(["env".to_string(), name.clone(), value.clone()]);
            }
            for (name, secret) in &asked.secrets {
                parts.extend(["secret".to_string(), name.clone(), secrets.mark(secret).to_string()]);
            }
            let last = keys.last().expect("it begins with the base");
            let mut key = last.after(parts.iter().map(String::as_str));
            if asked.force || plan.force {
                key = key.forced(self.build.row.id);
            }
            keys.push(key);
        }
        if let Some(StartCommand { command, ready }) = &plan.start {
            let parts =
                ["start", command.as_deref().unwrap_or_default(), ready.as_deref().unwrap_or_default()];
            let mut key = keys.last().expect("it begins with the base").after(parts);
            if plan.force {
                key = key.forced(self.build.row.id);
            }
            keys.push(key);
        }
        Ok(keys)
    }

    /// The longest prefix of steps that is cached, and its result.
    pub(crate) async fn cached(&self, keys: &[Key]) -> Result<Option<(usize, Layer)>, Unfinished> {
        let texts: Vec<String> = keys.iter().skip(1).map(|key| key.as_str().to_string()).collect();
        let found = self.builds.store.layers(self.build.row.project, &texts).await?;
        let last = texts.iter().enumerate().rev().find_map(|(index, key)| {
            let layer = found.iter().find(|layer| layer.key == *key)?;
            Some((index + 1, layer.clone()))
        });
        Ok(last)
    }

    /// Creates the sandbox of the build; waits while the project's quota is used up.
    pub(crate) async fn open(&self, base: &Base, cached: Option<Layer>) -> Result<Workplace, Unfinished> {
        let begin = cached.as_ref().map_or(base.begin.clone(), |layer| Begin::Snapshot(layer.snapshot));
        let defaults = cached.map(|layer| layer.defaults);
        let place = loop {
            let spec = self.spec(&begin).await.map_err(at(BASE))?;
            match self.create(spec, defaults.clone()).await {
                Ok(place) => break place,
                Err(StepError::NoRoom(over)) if !over.is_hopeless() && Instant::now() < self.deadline => {
                    if !self.builds.made_room(self.build.row.project, &over).await {
                        tokio::time::sleep(ROOM_PAUSE).await;
                    }
                }
                Err(error) => return Err(at(BASE)(error)),
            }
        };
        let operator = self.builds.store.operator();
        let sandbox = place.record.id;
        let noted = self.builds.store.note_build_sandbox(&operator, self.build.row.id, Some(sandbox)).await;
        match noted {
            Ok(true) => Ok(place),
            other => {
                place.destroy().await;
                other?;
                Err(Unfinished::Failed(BuildFailure {
                    message: "the build was cancelled".into(),
                    step: None,
                }))
            }
        }
    }

    /// Creates a sandbox in a task of its own: a build that is cancelled meanwhile is dropped, but its sandbox
    /// would be there, and named by nothing. What the task hands over to nobody ends.
    async fn create(
        &self,
        spec: CreateSpec,
        defaults: Option<TemplateDefaults>,
    ) -> Result<Workplace, StepError> {
        let (exec, scope) = (self.builds.exec.clone(), self.scope);
        let leash = Leash { tasks: self.builds.tasks.clone(), stop: self.builds.stop.clone() };
        let creating = self.builds.tasks.spawn(async move {
            let row = exec.fleet.create(scope, spec).await?;
            let ended = || StepError::Transient(format!("sandbox {} ended at once", row.id));
            let record = exec.fleet.any(row.id).ok_or_else(ended)?;
            Ok(Workplace::new(exec, scope, record, defaults, leash))
        });
        creating.await.unwrap_or_else(|error| Err(StepError::Transient(error.to_string())))
    }

    async fn spec(&self, begin: &Begin) -> Result<CreateSpec, StepError> {
        let fleet = &self.builds.fleet;
        let (memory, purpose) = match begin {
            Begin::Template(_) | Begin::Snapshot(_) => (Some(false), SandboxPurpose::Build),
            Begin::Finished(_) => (None, SandboxPurpose::Use),
        };
        let base = match begin {
            Begin::Template(_) => None,
            Begin::Snapshot(snapshot) | Begin::Finished(snapshot) => {
                let row = self.builds.store.snapshot(&self.builds.store.operator(), *snapshot).await;
                let row = row.map_err(|error| StepError::Transient(chain(&error)))?;
                let row = row
                    .filter(|row| row.project == self.scope.project() || fleet.shares_project(row.project));
                let row =
                    row.ok_or_else(|| StepError::Transient(format!("snapshot {snapshot} no longer exists")))?;
                Some(fleet.base_of(&row, memory)?)
            }
        };
        let template = match begin {
            Begin::Template(name) => name.as_str(),
            Begin::Snapshot(_) | Begin::Finished(_) => DEFAULT_TEMPLATE,
        };
        let template: TemplateRef = template.parse().expect("names of templates are references");
        let network = NetworkSettings::from_e2b(None, None);
        let network = network.map_err(|error| StepError::Failed(error.to_string()))?;
        let left = self.deadline.saturating_duration_since(Instant::now()) + Duration::from_secs(60);
        let size = self.build.row.size;
        Ok(CreateSpec {
            agent: None,
            task: None,
            template,
            metadata: [("template_build".to_string(), self.build.row.id.to_uuid().to_string())].into(),
            env_vars: Default::default(),
            secrets: Default::default(),
            timeout_ms: i64::try_from(left.as_millis()).unwrap_or(i64::MAX),
            on_timeout: OnTimeout::Destroy,
            auto_resume: false,
            secure: true,
            network,
            allow_internet_access: None,
            bounds: Bounds { idle_s: Some(0), ..Bounds::default() },
            size: SizeWish {
                cpu_count: size.cpu_count,
                memory_mib: size.memory_mib,
                disk_mib: size.disk_mib,
            },
            base,
            memory,
            purpose,
            volumes: Vec::new(),
            idempotency: None,
        })
    }

    /// Runs the steps that are not cached, and keeps the result of each.
    async fn work(
        &self,
        place: &mut Workplace,
        (steps, secrets): (&[Step], &BuildSecrets),
        keys: &[Key],
        done: usize,
        log: &mut BuildLog,
    ) -> Result<SnapshotId, Unfinished> {
        let mut last = None;
        for (index, step) in steps.iter().enumerate().skip(done) {
            let number = (index + 1).to_string();
            log.set_step(&number);
            log.info(format!("{} {}", prefix(index, steps.len()), describe(step))).await;
            self.builds
                .at_step(&self.build.row, || format!("step {number} of {}: {}", steps.len(), describe(step)));
            self.carry_out(place, step, secrets, log).await.map_err(at(&number))?;
            let row = self.save(place, SnapshotPurpose::Layer, Some(false)).await;
            let row = row.map_err(at(&number))?;
            self.keep(&keys[index + 1], row.id, place).await?;
            last = Some(row.id);
        }
        log.set_step(FINALIZE);
        match (&self.build.plan.start, last) {
            (None, Some(last)) => Ok(last),
            // Nothing to do but to give the base another name.
            (None, None) => {
                let row = self.save(place, SnapshotPurpose::Template, Some(false)).await;
                Ok(row.map_err(at(FINALIZE))?.id)
            }
            (Some(start), _) => {
                let snapshot = self.finalize(place, start, log).await.map_err(at(FINALIZE))?;
                self.keep(&keys[keys.len() - 1], snapshot, place).await?;
                Ok(snapshot)
            }
        }
    }

    /// Caches a result.
    pub(crate) async fn keep(
        &self,
        key: &Key,
        snapshot: SnapshotId,
        place: &Workplace,
    ) -> Result<(), Unfinished> {
        let layer = Layer { key: key.as_str().to_string(), snapshot, defaults: place.defaults.clone() };
        let before = self.builds.store.keep_layer(self.build.row.project, layer).await?;
        self.builds.drop_snapshots(self.build.row.project, before.into_iter().collect()).await;
        Ok(())
    }

    async fn carry_out(
        &self,
        place: &mut Workplace,
        step: &Step,
        known: &BuildSecrets,
        log: &BuildLog,
    ) -> Result<(), StepError> {
        match step {
            Step::Run { command, user, env, secrets } => {
                let values = known.variables(secrets).map_err(StepError::Failed)?;
                place.exec.fleet.note_secrets(&place.record, secrets.values().cloned().collect());
                let extras = Extras { user: user.clone(), env: env.clone(), secrets: values };
                place.run(command, extras, self.left(), log).await
            }
            Step::Env(pairs) => place.set_env(pairs),
            Step::Workdir(path) => place.set_workdir(path).await,
            Step::User(name) => place.set_user(name).await,
            Step::Copy { source, dest, owner, mode, hash } => {
                let project = self.build.row.project;
                let files = self.builds.store.template_files(project, hash).await;
                let files = files.map_err(|error| StepError::Transient(chain(&error)))?;
                let files =
                    files.ok_or_else(|| StepError::Failed("its files were not uploaded".to_string()))?;
                let archive = self.builds.files.open(project, &files.sha256).await;
                let archive = archive
                    .map_err(|error| StepError::Failed(format!("its files cannot be read: {error}")))?;
                let dest = expand(dest, &place.defaults.env)?;
                let how = Unpack::Copy {
                    source: source.clone(),
                    into_directory: dest.ends_with('/') || dest == "." || dest.ends_with("/."),
                    dest: place.absolute(&dest).await?,
                    owner: Some(owner.clone().unwrap_or_else(|| place.defaults.user.clone())),
                    mode: *mode,
                };
                let unpacked = place.unpack(&how, archive).await?;
                log.add(
                    BuildLogLevel::Debug,
                    format!("copied {} entries, {} bytes", unpacked.entries, unpacked.bytes),
                )
                .await;
                Ok(())
            }
        }
    }

    /// Starts the service, waits until it is ready, and takes the template's snapshot.
    async fn finalize(
        &self,
        place: &mut Workplace,
        start: &StartCommand,
        log: &BuildLog,
    ) -> Result<SnapshotId, StepError> {
        let mut service = None;
        if let Some(command) = &start.command {
            log.info(format!("[finalize] starting: {command}")).await;
            service = Some(place.launch(command).await?);
        }
        match &start.ready {
            Some(ready) => self.await_ready(place, ready, service, log).await?,
            None => tokio::time::sleep(SETTLE).await,
        }
        place.defaults = TemplateDefaults { start: Some(start.clone()), ..place.defaults.clone() };
        // With its processes if the host can save them; otherwise agentd starts the service in each sandbox. A process
        // that a step left behind may still have the step's secrets.
        let has_secrets = self.build.plan.steps.iter().any(|step| !step.secrets.is_empty());
        let row = self.save(place, SnapshotPurpose::Template, has_secrets.then_some(false)).await?;
        log.info(match (&row.note, row.memory) {
            (_, true) => "[finalize] sandboxes start with the service running".to_string(),
            (why, false) => format!(
                "[finalize] the service is started in each sandbox{}",
                why.as_ref().map_or(String::new(), |why| format!(": {why}"))
            ),
        })
        .await;
        Ok(row.id)
    }

    pub(crate) async fn await_ready(
        &self,
        place: &Workplace,
        ready: &str,
        service: Option<coffer_core::ExecutionId>,
        log: &BuildLog,
    ) -> Result<(), StepError> {
        log.info(format!("[finalize] waiting for: {ready}")).await;
        let until = Instant::now() + READY_WITHIN.min(self.left());
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match place.succeeds(ready, left).await? {
                true => return Ok(()),
                false if Instant::now() >= until => {
                    let message = format!("the ready command did not succeed in time: {ready}");
                    return Err(StepError::Failed(message));
                }
                false => {}
            }
            if let Some(service) = service
                && let Some(code) = place.ended_badly(&self.builds.store, service).await?
            {
                return Err(StepError::Failed(format!("the start command failed: exit status {code}")));
            }
            tokio::time::sleep(READY_PAUSE).await;
        }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

fn prefix(index: usize, count: usize) -> String {
    format!("[{}/{count}]", index + 1)
}

/// A step in one line.
fn describe(step: &Step) -> String {
    let line = match step {
        Step::Run { command, .. } => format!("RUN {command}"),
        Step::Copy { source, dest, .. } => format!("COPY {source} {dest}"),
        Step::Env(pairs) => {
            let names: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
            format!("ENV {}", names.join(" "))
        }
        Step::Workdir(path) => format!("WORKDIR {path}"),
        Step::User(name) => format!("USER {name}"),
    };
    line.replace('\n', " ").chars().take(500).collect()
}

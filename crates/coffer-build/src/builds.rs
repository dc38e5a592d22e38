//! The service: requests, uploads, and the builds that run.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coffer_core::clock::now_ms;
use coffer_core::settings::{ByteSize, Period};
use coffer_core::sync::Mutex;
use coffer_core::{
    BuildId, BuildLogLevel, BuildPlan, BuildSource, ProjectId, TemplateId, TemplateRef, chain,
};
use coffer_fleet::exec::Exec;
use coffer_fleet::{Fleet, FleetError};
use coffer_http::PrivateHosts;
use coffer_image::{Blobs, Registry};
use coffer_shares::{PoolSettings, Shares, pool};
use coffer_store::{
    BuildFailure, BuildFilter, BuildLogLine, BuildRow, NewBuild, ProjectScope, StartedBuild, Store,
    StoreError, TemplateFiles, TemplateRow, UploadGrant,
};
use futures_util::Stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::BuildError;
use crate::catalogue::{Catalogue, CatalogueSettings, EmbeddedFile};
use crate::files::{DiskRoom, Files, over};
use crate::names::ImageNames;
use crate::step;

/// How long an upload link works.
const LINK_LIFE: Duration = Duration::from_secs(3600);

/// The letters of its token.
const TOKEN_LENGTH: usize = 48;

/// Between two tries to get into the line for a place.
const QUEUE_PAUSE: Duration = Duration::from_secs(1);

/// Builds of one project that run or wait for a place: their plans are held in memory.
const MOST_BEGUN: usize = 100;

/// Builds of one template that a deletion ends at once, the newest first; older ones end at their next write.
const MOST_ABANDONED: u32 = 1000;

/// `[builds]`: builds of templates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BuildSettings {
    /// How long a build may take.
    pub timeout: Period,
    /// How long results of steps are kept after their last use, and builds that no tag names.
    pub keep_layers: Period,
    /// How long uploaded files are kept after their last use.
    pub keep_files: Period,
    /// The largest upload of a `COPY` step.
    pub largest_upload: ByteSize,
}

impl Default for BuildSettings {
    fn default() -> Self {
        Self {
            timeout: Period::hours(1),
            keep_layers: Period::days(7),
            keep_files: Period::days(1),
            largest_upload: ByteSize::mib(4096),
        }
    }
}

/// `[registries]`: where images are pulled from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RegistrySettings {
    /// For a registry such as `docker.io`, the hosts to try before it, in order. They get no credentials, and may be
    /// at private addresses.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// Registries, blob stores and token servers that may be at private addresses: `host` or `host:port`.
    pub private_hosts: Vec<String>,
    /// Hosts that are asked over plain HTTP.
    pub plain_http: Vec<String>,
}

impl RegistrySettings {
    /// The client that these settings describe; the error names the setting.
    fn registry(&self, extra_roots: Option<String>) -> Result<Registry, String> {
        let hosts = |name: &str, hosts: &[String]| {
            let parsed = PrivateHosts::parse(hosts.iter().map(String::as_str));
            parsed.map_err(|text| format!("registries.{name}: `{text}` is neither `host` nor `host:port`"))
        };
        let settings = coffer_image::RegistrySettings {
            mirrors: self.mirrors.clone(),
            private_hosts: hosts("private_hosts", &self.private_hosts)?,
            plain_http: hosts("plain_http", &self.plain_http)?,
            extra_roots,
        };
        Registry::new(settings).map_err(|error| format!("registries.mirrors: {error}"))
    }

    /// Checks the settings without using them.
    pub fn check(&self) -> Result<(), String> {
        self.registry(None).map(drop)
    }
}

/// Where images come from.
#[derive(Debug)]
pub struct Images {
    pub(crate) names: ImageNames,
    pub(crate) registry: Registry,
    pub(crate) blobs: Blobs,
}

impl Images {
    /// Keeps downloaded layers in `dir` until they are unpacked.
    pub fn open(
        names: ImageNames,
        settings: &RegistrySettings,
        extra_roots: Option<String>,
        dir: PathBuf,
    ) -> Result<Self, String> {
        let registry = settings.registry(extra_roots)?;
        let blobs = Blobs::open(dir).map_err(|error| chain(&error))?;
        Ok(Self { names, registry, blobs })
    }
}

/// What a server builds with.
#[derive(Debug)]
pub struct BuildOptions {
    pub settings: BuildSettings,
    pub images: Images,
    /// Whether the server's disk has room for uploads and layers.
    pub room: DiskRoom,
    pub catalogue: CatalogueSettings,
    /// Files for definitions of the catalogue, in addition to this crate's own.
    pub files: &'static [EmbeddedFile],
}

/// Whether files have to be uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    /// Whether the server has them.
    pub present: bool,
    /// Allows one upload. Also if they are present, because a client may replace them.
    pub token: String,
}

/// A build that runs or waits for a place.
#[derive(Debug)]
struct Running {
    project: ProjectId,
    /// Ends it.
    cancel: CancellationToken,
    /// Changes with its log.
    news: watch::Sender<()>,
}

/// Everything about a build whose steps are known at once.
#[derive(Debug)]
pub struct Submission {
    pub new: NewBuild,
    pub plan: BuildPlan,
    /// JSON of the credentials for its image.
    pub registry: Option<String>,
    /// What its log begins with.
    pub warnings: Vec<String>,
}

/// Builds templates.
#[derive(Debug)]
pub struct Builds {
    pub(crate) store: Store,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) exec: Exec,
    pub(crate) files: Files,
    pub(crate) settings: BuildSettings,
    pub(crate) images: ImageNames,
    pub(crate) registry: Registry,
    pub(crate) blobs: Blobs,
    pub(crate) catalogue: Catalogue,
    places: Shares<ProjectId>,
    uploads: Shares<ProjectId>,
    /// Builds that run or wait for a place.
    running: Mutex<HashMap<BuildId, Running>>,
    /// One import of an archive at a time for each project.
    pub(crate) imports: Mutex<HashMap<ProjectId, Arc<tokio::sync::Mutex<()>>>>,
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

impl Builds {
    /// Takes up the builds that an earlier server began, and starts the sweep.
    pub async fn start(
        exec: Exec,
        store: Store,
        dir: PathBuf,
        options: BuildOptions,
        pools: &PoolSettings,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, StoreError> {
        let BuildOptions { settings, images, room, catalogue, files } = options;
        let catalogue = Catalogue::open(&store, catalogue, files).await?;
        exec.fleet.share_templates(catalogue.shared());
        let builds = Arc::new(Self {
            catalogue,
            fleet: exec.fleet.clone(),
            files: Files::new(dir, room),
            store,
            exec,
            settings,
            images: images.names,
            registry: images.registry,
            blobs: images.blobs,
            places: pools.shares(pool::BUILDS),
            uploads: pools.shares(pool::TEMPLATE_UPLOADS),
            running: Mutex::default(),
            imports: Mutex::default(),
            tasks: TaskTracker::new(),
            stop,
        });
        let operator = builds.store.operator();
        let known = |project| builds.store.known_template_files(&operator, project);
        if let Err(error) = builds.files.clear_strays(known).await {
            tracing::warn!("could not remove interrupted uploads: {}", chain(&error));
        }
        if let Err(error) = builds.end_outdated().await {
            tracing::warn!("could not end builds of older definitions: {}", chain(&error));
        }
        for build in builds.store.unfinished_builds(&builds.store.operator()).await? {
            tracing::info!("continuing build {} of template {}", build.row.id, build.row.template_name);
            builds.launch(build);
        }
        builds.tasks.spawn(builds.clone().keep_sweeping());
        builds.tasks.spawn(builds.clone().keep_catalogue());
        Ok(builds)
    }

    /// Waits until builds have stopped, after `stop` was cancelled. They continue with the next server.
    pub async fn finish(&self, patience: Duration) {
        self.tasks.close();
        if tokio::time::timeout(patience, self.tasks.wait()).await.is_err() {
            tracing::warn!("gave up waiting for {} builds", self.tasks.len());
        }
    }

    /// Records a build whose steps follow.
    pub async fn request(&self, scope: &ProjectScope, new: NewBuild) -> Result<BuildRow, BuildError> {
        if let Some(name) = &new.name
            && (self.is_of_the_host(name).await? || self.is_of_the_catalogue(scope, name).await?)
        {
            return Err(BuildError::NameTaken(name.clone()));
        }
        Ok(self.store.request_build(scope, new).await?)
    }

    /// Records a build and starts it. What can be known to be wrong is refused before anything is recorded.
    pub async fn submit(
        self: &Arc<Self>,
        scope: &ProjectScope,
        submission: Submission,
    ) -> Result<BuildRow, BuildError> {
        let Submission { new, plan, registry, warnings } = submission;
        step::check(&plan)?;
        let uploads = plan.steps.iter().filter_map(|step| step.files_hash.as_deref());
        let archive = match &plan.source {
            BuildSource::Archive(hash) => Some(hash.as_str()),
            BuildSource::Image(_) | BuildSource::Template(_) => None,
        };
        for hash in uploads.chain(archive).collect::<BTreeSet<_>>() {
            let known = self.store.template_files(scope.project(), hash).await?;
            known.ok_or_else(|| BuildError::NoFiles(hash.to_string()))?;
        }
        let secrets: BTreeMap<String, String> = plan
            .steps
            .iter()
            .flat_map(|step| &step.secrets)
            .map(|(_, name)| (name.clone(), name.clone()))
            .collect();
        if !secrets.is_empty() {
            let values = self.store.read_secrets(scope.project()).await?;
            coffer_fleet::secret_variables(&secrets, &values).map_err(FleetError::from)?;
        }
        // Before there is a row, which would wait for ever.
        self.check_begun(scope.project())?;
        let row = self.request(scope, new).await?;
        let line =
            |message| BuildLogLine { at_ms: now_ms(), level: BuildLogLevel::Warn, step: None, message };
        let lines = warnings.into_iter().map(line).collect();
        self.store.append_build_log(&self.store.operator(), row.id, lines).await?;
        self.begin(scope, row.template, row.id, plan, registry).await?;
        let begun = self.store.build(scope, Some(row.template), row.id).await?;
        Ok(begun.unwrap_or(row))
    }

    /// Changes when the log of a build does, if this server runs it.
    pub fn news(&self, build: BuildId) -> Option<watch::Receiver<()>> {
        self.running.lock().get(&build).map(|running| running.news.subscribe())
    }

    /// Starts a requested build.
    pub async fn begin(
        self: &Arc<Self>,
        scope: &ProjectScope,
        template: TemplateId,
        build: BuildId,
        plan: BuildPlan,
        registry: Option<String>,
    ) -> Result<(), BuildError> {
        step::check(&plan)?;
        self.check_begun(scope.project())?;
        let known = self.store.build(scope, Some(template), build).await?;
        known.ok_or_else(|| BuildError::NotFound(template.to_string()))?;
        let started = self.store.start_build(scope, template, build, plan, registry).await?;
        started.ok_or(BuildError::AlreadyStarted)?;
        if let Some(started) = self.store.started_build(&self.store.operator(), build).await? {
            self.launch(started);
        }
        Ok(())
    }

    fn check_begun(&self, project: ProjectId) -> Result<(), BuildError> {
        let begun = self.running.lock().values().filter(|one| one.project == project).count();
        if begun < MOST_BEGUN { Ok(()) } else { Err(BuildError::TooManyBegun(MOST_BEGUN)) }
    }

    /// Runs a build as soon as its project has a place.
    fn launch(self: &Arc<Self>, mut build: StartedBuild) {
        let id = build.row.id;
        // A second copy of what may be long.
        build.row.plan = None;
        let (cancel, news) = (self.stop.child_token(), watch::Sender::new(()));
        let running = Running { project: build.row.project, cancel: cancel.clone(), news: news.clone() };
        self.running.lock().insert(id, running);
        let builds = self.clone();
        self.tasks.spawn(async move {
            let ran = async {
                let _one = match build.row.project == builds.catalogue.project {
                    true => Some(builds.catalogue.one.lock().await),
                    false => None,
                };
                let _place = loop {
                    match builds.places.take(build.row.project).await {
                        Ok(place) => break place,
                        // Too many wait in line already; this one waits behind them.
                        Err(_full) => tokio::time::sleep(QUEUE_PAUSE).await,
                    }
                };
                builds.run(build, news, &cancel).await;
            };
            cancel.run_until_cancelled(ran).await;
            builds.running.lock().remove(&id);
            builds.catalogue.steps.lock().remove(&id);
        });
    }

    /// Ends a build that has not ended.
    pub async fn cancel(&self, scope: &ProjectScope, build: BuildId) -> Result<BuildRow, BuildError> {
        let missing = || BuildError::NotFound(build.to_uuid().to_string());
        let row = self.store.build(scope, None, build).await?.ok_or_else(missing)?;
        let failure = BuildFailure { message: "the build was cancelled".to_string(), step: None };
        let ended = self.store.fail_build(&self.store.operator(), build, failure).await?;
        self.abandon(&row).await;
        Ok(ended.unwrap_or(row))
    }

    /// Stops the task of a build and destroys its sandbox.
    async fn abandon(&self, row: &BuildRow) {
        let token = self.running.lock().get(&row.id).map(|running| running.cancel.clone());
        if let Some(token) = token {
            token.cancel();
        }
        self.destroy_sandbox(row).await;
    }

    /// Destroys the sandbox that a row names, if it runs.
    pub(crate) async fn destroy_sandbox(&self, row: &BuildRow) {
        let record = row.sandbox.and_then(|sandbox| self.fleet.any(sandbox));
        let Some(record) = record.filter(|record| record.project == row.project) else { return };
        let destroyed = self.fleet.destroy(record, coffer_core::DestroyReason::Requested).await;
        if let Err(error) = destroyed {
            tracing::warn!("could not destroy the sandbox of build {}: {}", row.id, chain(&error));
        }
    }

    /// Deletes a template: its builds end, its name is free, its snapshots go. Sandboxes from it run on.
    pub async fn delete(&self, scope: &ProjectScope, id_or_name: &str) -> Result<(), BuildError> {
        if self.is_of_the_host(id_or_name).await? || self.is_of_the_catalogue(scope, id_or_name).await? {
            return Err(BuildError::HostTemplate(id_or_name.to_string()));
        }
        let missing = || BuildError::NotFound(id_or_name.to_string());
        let template = self.known(scope, id_or_name).await?.ok_or_else(missing)?;
        // Before they are gone: the rows name the sandboxes of builds in progress.
        let filter =
            BuildFilter { template: Some(template), limit: MOST_ABANDONED, ..BuildFilter::default() };
        let builds = self.store.builds(scope, &filter).await?;
        let gone = self.store.delete_template(scope, template).await?.ok_or_else(missing)?;
        for row in &builds {
            self.abandon(row).await;
        }
        self.drop_snapshots(scope.project(), gone.snapshots).await;
        Ok(())
    }

    /// The id of a template, also of one that is being built for the first time.
    async fn known(&self, scope: &ProjectScope, id_or_name: &str) -> Result<Option<TemplateId>, BuildError> {
        if let Some(TemplateRow { id, .. }) = self.store.template(scope, id_or_name).await? {
            return Ok(Some(id));
        }
        Ok(id_or_name.parse().ok())
    }

    /// Whether a name is that of a template of the host.
    pub async fn is_of_the_host(&self, name: &str) -> Result<bool, BuildError> {
        let Ok(reference) = name.parse::<TemplateRef>() else { return Ok(false) };
        Ok(self.fleet.templates().await?.iter().any(|template| template.name == reference.name))
    }

    /// Whether a name is the catalogue's for this project: one that had a template of that name before the catalogue did
    /// keeps it.
    async fn is_of_the_catalogue(&self, scope: &ProjectScope, name: &str) -> Result<bool, BuildError> {
        Ok(self.fleet.is_shared(name) && self.store.template(scope, name).await?.is_none())
    }

    /// Whether files are here, and a token to upload them.
    pub async fn upload_link(&self, project: ProjectId, hash: &str) -> Result<Upload, BuildError> {
        let present = self.store.template_files(project, hash).await?.is_some();
        let token = hex::encode(rand::random::<[u8; TOKEN_LENGTH / 2]>());
        let grant = UploadGrant { project, hash: hash.to_string() };
        let expires_ms = now_ms() + i64::try_from(LINK_LIFE.as_millis()).unwrap_or(i64::MAX);
        self.store.allow_upload(&token, grant, expires_ms).await?;
        Ok(Upload { present, token })
    }

    /// What the holder of a token may upload, once.
    pub async fn take_upload(&self, token: &str) -> Result<UploadGrant, BuildError> {
        // Anyone can ask: what cannot be a token is not worth a write to the database.
        if token.len() != TOKEN_LENGTH || !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(BuildError::NoGrant);
        }
        self.store.take_upload(token).await?.ok_or(BuildError::NoGrant)
    }

    /// Stores uploaded files, within the project's quota.
    pub async fn upload(
        &self,
        grant: UploadGrant,
        length: Option<u64>,
        contents: impl Stream<Item = Result<Bytes, String>> + Send + Unpin,
    ) -> Result<(), BuildError> {
        self.store_files(grant.project, Some(grant.hash), length, contents).await.map(drop)
    }

    /// Stores files of a project, within its quota: under the client's name for them, or by their digest.
    pub async fn store_files(
        &self,
        project: ProjectId,
        hash: Option<String>,
        length: Option<u64>,
        contents: impl Stream<Item = Result<Bytes, String>> + Send + Unpin,
    ) -> Result<TemplateFiles, BuildError> {
        let _place = self.uploads.take(project).await?;
        let largest = self.settings.largest_upload.as_bytes();
        if length.is_some_and(|length| length > largest) {
            return Err(BuildError::TooLarge(largest));
        }
        let reservation = self.store.reserve_storage(project, length.unwrap_or(1)).await.map_err(over)?;
        self.files.room.check(length.unwrap_or(0))?;
        let written = self.files.write(project, largest, &reservation, contents).await?;
        let files = TemplateFiles {
            project,
            hash: hash.unwrap_or_else(|| written.sha256.clone()),
            sha256: written.sha256.clone(),
            size_bytes: written.size_bytes,
        };
        let before = self.store.keep_template_files(files.clone()).await?;
        if let Some(before) = before.filter(|before| before.sha256 != written.sha256) {
            self.remove_unnamed(before.project, &before.sha256).await?;
        }
        Ok(files)
    }

    /// Removes files that no name of the project refers to.
    pub(crate) async fn remove_unnamed(&self, project: ProjectId, sha256: &str) -> Result<(), BuildError> {
        let known = self.store.known_template_files(&self.store.operator(), project).await?;
        if known.iter().any(|known| known == sha256) {
            return Ok(());
        }
        self.files.remove(project, sha256).await.map_err(BuildError::Disk)
    }
}

//! What of the catalogue is built on this installation, and building it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use coffer_core::{BuildLogLevel, BuildState, chain};
use coffer_store::{
    BuildFailure, BuildFilter, BuildLogLine, BuildLogPage, BuildRow, NewBuild, ProjectScope, TemplateFiles,
    TemplateSize,
};

use crate::catalogue::{Definition, definitions};
use crate::files::over;
use crate::{BuildError, Builds};

/// Builds of the catalogue that are looked at, the newest first. Older ones are pruned after a while.
const MOST_BUILDS: u32 = 1000;

/// While something waits for the template that it starts from.
const SOON: Duration = Duration::from_secs(5);

/// The state of a template of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatalogueState {
    NotBuilt,
    Building,
    Ready,
    Failed,
}

/// A template of the catalogue on this installation.
#[derive(Debug, Clone)]
pub struct CatalogueEntry {
    pub definition: &'static Definition,
    pub state: CatalogueState,
    /// The build that sandboxes start from.
    pub ready: Option<BuildRow>,
    /// Whether that is of the present definition.
    pub is_current: bool,
    /// The newest build, ready or not.
    pub newest: Option<BuildRow>,
}

/// The failure of a build whose definition is not this program's.
fn outdated() -> BuildFailure {
    BuildFailure {
        message: "its definition changed with a new version of the server".to_string(),
        step: None,
    }
}

impl Builds {
    fn catalogue_scope(&self) -> ProjectScope {
        self.store.operator().acting_for(self.catalogue.project, None)
    }

    /// The catalogue, by name.
    pub async fn catalogue(&self) -> Result<Vec<CatalogueEntry>, BuildError> {
        let filter = BuildFilter { template: None, state: None, before: None, limit: MOST_BUILDS };
        let rows = self.store.builds(&self.catalogue_scope(), &filter).await?;
        let entries = definitions().iter().map(|definition| {
            let of_it = || rows.iter().filter(|row| row.template_name == definition.name);
            let ready = of_it().find(|row| row.state == BuildState::Ready).cloned();
            let newest = of_it().next().cloned();
            let state = match (&ready, newest.as_ref().map(|row| row.state)) {
                (Some(_), _) => CatalogueState::Ready,
                (None, Some(BuildState::Waiting | BuildState::Building)) => CatalogueState::Building,
                (None, Some(BuildState::Error | BuildState::Ready)) => CatalogueState::Failed,
                (None, None) => CatalogueState::NotBuilt,
            };
            let is_current = ready.as_ref().is_some_and(|row| !self.catalogue.is_outdated(row));
            CatalogueEntry { definition, state, ready, is_current, newest }
        });
        Ok(entries.collect())
    }

    /// One template of the catalogue.
    pub async fn catalogue_entry(&self, name: &str) -> Result<CatalogueEntry, BuildError> {
        let found = self.catalogue().await?.into_iter().find(|entry| entry.definition.name == name);
        found.ok_or_else(|| BuildError::NotInCatalogue(name.chars().take(64).collect()))
    }

    /// The log of a build of the catalogue.
    pub async fn catalogue_log(
        &self,
        row: &BuildRow,
        offset: i64,
        limit: u32,
    ) -> Result<Vec<BuildLogLine>, BuildError> {
        let page = BuildLogPage { offset, limit, level: BuildLogLevel::Info };
        Ok(self.store.build_log(&self.catalogue_scope(), row.id, page).await?)
    }

    /// Builds a template of the catalogue, unless it is current or being built. With `force` it is built again, and no
    /// cached step is used.
    pub async fn build_of_catalogue(
        self: &Arc<Self>,
        name: &str,
        force: bool,
    ) -> Result<CatalogueEntry, BuildError> {
        let _one = self.catalogue.starting.lock().await;
        let entry = self.catalogue_entry(name).await?;
        let under_way = entry.newest.as_ref().is_some_and(|row| {
            matches!(row.state, BuildState::Waiting | BuildState::Building)
                && !self.catalogue.is_outdated(row)
        });
        if under_way || (entry.is_current && !force) {
            return Ok(entry);
        }
        self.check_source(entry.definition).await?;
        self.start_of_catalogue(entry.definition, force).await?;
        self.catalogue_entry(name).await
    }

    /// Whether what a definition starts from is here. `host` stands in for `base` until that is built, and would make a
    /// template of this machine's own files.
    async fn check_source(&self, definition: &Definition) -> Result<(), BuildError> {
        let source = definition.source();
        let missing = || BuildError::NoSource { name: definition.name.clone(), from: source.to_string() };
        if self.fleet.is_shared(source) {
            let ready = self.catalogue_entry(source).await?.ready;
            return ready.map(drop).ok_or_else(missing);
        }
        let templates = self.fleet.templates().await?;
        let found = templates.iter().find(|template| template.name == source).ok_or_else(missing)?;
        let stands_in = templates.iter().any(|other| other.name != source && other.build == found.build);
        if stands_in { Err(missing()) } else { Ok(()) }
    }

    async fn start_of_catalogue(
        self: &Arc<Self>,
        definition: &'static Definition,
        force: bool,
    ) -> Result<(), BuildError> {
        let scope = self.catalogue_scope();
        let context = match definition.context(self.catalogue.files)? {
            Some(archive) => Some(self.keep_context(archive).await?),
            None => None,
        };
        let plan = definition.plan(context.as_deref(), force)?;
        let new = NewBuild {
            name: Some(definition.name.clone()),
            tags: Vec::new(),
            size: TemplateSize {
                cpu_count: definition.cpus,
                memory_mib: definition.memory_mib,
                disk_mib: None,
            },
            summary: Some(definition.summary.clone()),
            created_by: Some(self.catalogue.mark(definition)),
        };
        let row = self.store.request_build(&scope, new).await?;
        tracing::info!("building template {} of the catalogue", definition.name);
        self.begin(&scope, row.template, row.id, plan, None).await
    }

    /// Stores the files of a definition as if they had been uploaded, and returns their hash.
    async fn keep_context(&self, archive: Vec<u8>) -> Result<String, BuildError> {
        let project = self.catalogue.project;
        let size = archive.len() as u64;
        let reservation = self.store.reserve_storage(project, size).await.map_err(over)?;
        let contents = futures_util::stream::iter([Ok(Bytes::from(archive))]);
        let written = self.files.write(project, size, &reservation, contents).await?;
        let hash = written.sha256.clone();
        let files = TemplateFiles {
            project,
            hash: hash.clone(),
            sha256: written.sha256,
            size_bytes: written.size_bytes,
        };
        self.store.keep_template_files(files).await?;
        Ok(hash)
    }
}

impl Builds {
    /// Builds what is due and what was asked for, until the server stops.
    pub(crate) async fn keep_catalogue(self: Arc<Self>) {
        let mut renews = true;
        loop {
            if renews {
                renews = match self.renew_catalogue().await {
                    Ok(waits) => waits,
                    Err(error) => {
                        tracing::warn!("could not build templates of the catalogue: {}", chain(&error));
                        true
                    }
                };
            }
            let waits = self.build_what_was_asked().await || renews;
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.catalogue.news.notified() => {}
                () = tokio::time::sleep(SOON), if waits => {}
            }
        }
    }

    /// Starts what can be started. Returns whether something still waits.
    pub(crate) async fn renew_catalogue(self: &Arc<Self>) -> Result<bool, BuildError> {
        let mut waits = false;
        for entry in self.catalogue().await? {
            if !self.is_due(&entry) {
                continue;
            }
            let name = &entry.definition.name;
            match self.build_of_catalogue(name, false).await {
                Ok(_) => {
                    self.catalogue.tried.lock().insert(name.clone());
                }
                // It is being built, or an operator has to do that.
                Err(BuildError::NoSource { .. }) => waits = true,
                Err(error @ (BuildError::Store(_) | BuildError::Fleet(_))) => return Err(error),
                Err(error) => {
                    tracing::warn!("could not build template {name} of the catalogue: {}", chain(&error));
                    self.catalogue.tried.lock().insert(name.clone());
                }
            }
        }
        Ok(waits)
    }

    fn is_due(&self, entry: &CatalogueEntry) -> bool {
        let name = &entry.definition.name;
        let wanted = self.catalogue.wanted.contains(name) || entry.ready.is_some();
        wanted && !entry.is_current && !self.catalogue.tried.lock().contains(name)
    }

    /// Ends builds of the catalogue that an earlier program began from another definition.
    pub(crate) async fn end_outdated(&self) -> Result<(), BuildError> {
        for entry in self.catalogue().await? {
            let Some(row) = entry.newest else { continue };
            if matches!(row.state, BuildState::Waiting | BuildState::Building)
                && self.catalogue.is_outdated(&row)
            {
                self.store.fail_build(&self.store.operator(), row.id, outdated()).await?;
                self.destroy_sandbox(&row).await;
            }
        }
        Ok(())
    }
}

//! The catalogue: templates that come with the program as definitions, and are built like any other.
//!
//! A hidden project of the installation owns them ([`Store::ensure_catalogue_project`]): no key opens it, so nobody
//! can change them, and they count in no project's quota. Every project may use them by name.
//!
//! The record of a build says by which definition it was requested. So a program with another definition builds it
//! again, and the previous build serves until the new one is ready.

mod definition;
mod keep;
mod smoke;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use coffer_core::sync::Mutex;
use coffer_core::{BuildState, ProjectId};
use coffer_fleet::SharedTemplates;
use coffer_store::{
    BuildFailure, BuildFilter, BuildRow, NewBuild, ProjectScope, Store, StoreError, TemplateFiles,
    TemplateSize,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use definition::{Definition, EmbeddedFile, definition, definitions};

use crate::files::over;
use crate::{BuildError, Builds};

/// Builds of the catalogue that are looked at, the newest first. Older ones are pruned after a while.
const MOST_BUILDS: u32 = 1000;

/// `[catalogue]`: templates that come with the program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CatalogueSettings {
    /// Names of templates to build when the server starts, if they are missing or their definition has changed:
    /// `agent-sandbox-dev-node22`, `minimal`, `node`, `python`. `coffer template build NAME` builds others later.
    pub build: Vec<String>,
}

impl CatalogueSettings {
    /// Checks the names; the error says which is unknown.
    pub fn check(&self) -> Result<(), String> {
        let unknown = self.build.iter().find(|name| definition(name).is_none());
        unknown.map_or(Ok(()), |name| {
            let known: Vec<&str> = definitions().iter().map(|definition| definition.name.as_str()).collect();
            Err(format!("has `{name}`, which is not in the catalogue: {}", known.join(", ")))
        })
    }

    /// Templates of the host that those to build start from.
    pub fn sources(&self) -> BTreeSet<String> {
        let named = self.build.iter().filter_map(|name| definition(name));
        named.map(|definition| definition.source().to_string()).collect()
    }
}

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

/// What the service knows about the catalogue.
#[derive(Debug)]
pub(crate) struct Catalogue {
    pub(crate) project: ProjectId,
    wanted: BTreeSet<String>,
    files: &'static [EmbeddedFile],
    /// Marks of definitions that this server tried to build on its own. Once is enough: what failed needs an operator.
    tried: Mutex<HashSet<String>>,
    /// Held while a build is looked for and started.
    starting: tokio::sync::Mutex<()>,
}

impl Catalogue {
    pub(crate) async fn open(
        store: &Store,
        settings: CatalogueSettings,
        files: &'static [EmbeddedFile],
    ) -> Result<Self, StoreError> {
        Ok(Self {
            project: store.ensure_catalogue_project(&store.operator()).await?,
            wanted: settings.build.into_iter().collect(),
            files,
            tried: Mutex::default(),
            starting: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) fn shared(&self) -> SharedTemplates {
        let names = definitions().iter().map(|definition| definition.name.clone()).collect();
        SharedTemplates { project: self.project, names }
    }

    /// The definition that requested a build; `None` if the build is not of the catalogue.
    fn asked_by(&self, row: &BuildRow) -> Option<&'static Definition> {
        if row.project != self.project { None } else { definition(&row.template_name) }
    }

    /// Whether a build of the catalogue was requested by another definition than this program's.
    pub(crate) fn is_outdated(&self, row: &BuildRow) -> bool {
        row.project == self.project
            && self.asked_by(row).is_none_or(|definition| row.created_by != Some(self.mark(definition)))
    }

    /// What the record of a build says about its definition.
    fn mark(&self, definition: &Definition) -> String {
        format!("catalogue {}", definition.digest(self.files))
    }
}

/// The failure of a build whose definition is not this program's.
pub(crate) fn outdated() -> BuildFailure {
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
    ) -> Result<Vec<coffer_store::BuildLogLine>, BuildError> {
        let page = coffer_store::BuildLogPage { offset, limit, level: coffer_core::BuildLogLevel::Info };
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

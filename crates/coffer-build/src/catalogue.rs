//! The catalogue: templates that come with the program as definitions, and are built like any other.
//!
//! A hidden project of the installation owns them ([`Store::ensure_catalogue_project`]): no key opens it, so nobody
//! can change them, and they count in no project's quota. Every project may use them by name.
//!
//! The record of a build says by which definition it was requested. So a program with another definition builds it
//! again, and the previous build serves until the new one is ready.

mod agents;
mod definition;

use std::collections::{BTreeSet, HashMap, HashSet};

use coffer_core::sync::Mutex;
use coffer_core::{BuildId, ProjectId};
use coffer_fleet::SharedTemplates;
use coffer_store::{BuildRow, Store, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use definition::{Definition, EmbeddedFile, definition, definitions};

/// `[catalogue]`: templates that come with the program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CatalogueSettings {
    /// Names of templates to build when the server starts, if they are missing or their definition has changed:
    /// `agent-sandbox-dev-node22`, `code-interpreter-v1`, `minimal`, `node`, `python`, and those of agents, such as
    /// `agent-claude-code`. `coffer template build NAME` builds others later, and so does the first agent that needs one.
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

/// What the service knows about the catalogue.
#[derive(Debug)]
pub(crate) struct Catalogue {
    pub(crate) project: ProjectId,
    pub(crate) wanted: BTreeSet<String>,
    pub(crate) files: &'static [EmbeddedFile],
    /// Names that this server tried to build on its own. Once is enough: what failed needs an operator.
    pub(crate) tried: Mutex<HashSet<String>>,
    /// Names that agents need and that wait for the template which they start from.
    pub(crate) asked: Mutex<BTreeSet<String>>,
    /// Tells the keeper of the catalogue that something was asked for.
    pub(crate) news: tokio::sync::Notify,
    /// The step of each build that runs on this server.
    pub(crate) steps: Mutex<HashMap<BuildId, String>>,
    /// Held by the one build that runs: projects can have them built, and must not take the machine with them.
    pub(crate) one: tokio::sync::Mutex<()>,
    /// Held while a build is looked for and started.
    pub(crate) starting: tokio::sync::Mutex<()>,
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
            asked: Mutex::default(),
            news: tokio::sync::Notify::new(),
            steps: Mutex::default(),
            one: tokio::sync::Mutex::default(),
            starting: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) fn shared(&self) -> SharedTemplates {
        let names = definitions().iter().map(|definition| definition.name.clone()).collect();
        SharedTemplates { project: self.project, names }
    }

    /// The definition that requested a build; `None` if the build is not of the catalogue.
    pub(crate) fn asked_by(&self, row: &BuildRow) -> Option<&'static Definition> {
        if row.project != self.project { None } else { definition(&row.template_name) }
    }

    /// Whether a build of the catalogue was requested by another definition than this program's.
    pub(crate) fn is_outdated(&self, row: &BuildRow) -> bool {
        row.project == self.project
            && self.asked_by(row).is_none_or(|definition| row.created_by != Some(self.mark(definition)))
    }

    /// What the record of a build says about its definition.
    pub(crate) fn mark(&self, definition: &Definition) -> String {
        format!("catalogue {}", definition.digest(self.files))
    }
}

//! Templates of sandboxes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    pub name: String,
    /// Changes with every build.
    pub build: String,
    /// Whether it is the default template.
    pub is_default: bool,
    /// The default user of commands.
    pub user: String,
    /// The default working directory of commands; null means the user's home.
    pub workdir: Option<String>,
    /// Whose it is.
    pub origin: TemplateOrigin,
    /// Whether sandboxes can start from it.
    pub state: TemplateState,
    /// What it is, for templates of the catalogue.
    pub summary: Option<String>,
}

/// Whose a template is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TemplateOrigin {
    /// Bootstrapped on the host.
    Host,
    /// Comes with the program as a definition, which an operator builds.
    Catalogue,
}

/// The state of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TemplateState {
    NotBuilt,
    Building,
    Ready,
    Failed,
}

/// A template of the catalogue, for operators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CatalogueTemplate {
    pub name: String,
    pub summary: String,
    /// The template that it starts from.
    pub from: String,
    pub state: TemplateState,
    /// Whether the build that sandboxes use is of this program's definition.
    pub is_current: bool,
    /// The newest build, which may still run while an older one is used.
    pub build: Option<CatalogueBuild>,
}

/// A build of a template of the catalogue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CatalogueBuild {
    pub id: String,
    /// `waiting`, `building`, `ready` or `error`.
    pub state: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    /// Why it failed.
    pub failure: Option<String>,
    /// The step that failed: a number from 1, `base`, `finalize` or `smoke`.
    pub step: Option<String>,
    /// Lines of its log, from the requested offset.
    pub log: Vec<String>,
}

/// How a template of the catalogue is built.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CatalogueBuildRequest {
    /// Builds it even if it is current, and uses no cached step.
    pub force: bool,
}

/// Which part of a log to return.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CatalogueLogQuery {
    /// How many lines of the newest build's log to skip.
    pub log_offset: Option<u32>,
}

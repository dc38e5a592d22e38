//! Templates of sandboxes, and their builds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A template: what a sandbox starts from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    /// For a template of the server, its name.
    pub id: String,
    pub name: String,
    /// `server` for those that were bootstrapped on the host, `catalogue` for those that come with the program as
    /// definitions, both for all projects; `project` for those that this project built.
    #[schema(example = "project")]
    pub kind: String,
    /// `ready` if sandboxes can start from it, `building` if its first build is in progress, `error` if no build
    /// succeeded, `not_built` if it is one of the catalogue's that nobody has built yet.
    #[schema(example = "ready")]
    pub state: String,
    /// What it is for.
    pub summary: Option<String>,
    /// The build that sandboxes start from; changes with every build. Null until one is ready.
    pub build: Option<String>,
    /// Whether it is the default template.
    pub is_default: bool,
    /// The default user of commands; null until a build is ready.
    pub user: Option<String>,
    /// The default working directory of commands; null means the user's home.
    pub workdir: Option<String>,
    pub tags: Vec<String>,
    /// The size of its sandboxes, unless a create asks for another.
    pub cpu_count: u32,
    pub memory_mib: u64,
    pub disk_mib: u64,
    /// Bytes that its last step added to those before it; null where nobody counted.
    pub added_bytes: Option<u64>,
    /// How many builds are ready.
    pub build_count: u64,
    /// How many sandboxes started from it.
    pub spawn_count: u64,
    pub last_spawned_at: Option<String>,
    /// The key that requested its first build.
    pub created_by: Option<String>,
    pub created_at: Option<String>,
    pub updated_at: Option<String>,
    /// The newest build, whatever its state.
    pub last_build: Option<TemplateBuild>,
}

/// Selects templates.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TemplateQuery {
    /// Only `server`, `catalogue` or `project`.
    pub kind: Option<String>,
    /// Only in this state: `ready`, `building`, `error` or `not_built`.
    pub state: Option<String>,
    /// Only with this text in the name or the summary.
    pub search: Option<String>,
}

/// A new build of a template: from a Dockerfile, or from a base and steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewTemplateBuild {
    /// `name` or `name:tag`. A new name makes a new template; without one the template is named by its id.
    #[schema(example = "my-app:v2")]
    pub name: Option<String>,
    /// Tags that the build gets when it is ready, besides that of `name`; `default` if there is none.
    pub tags: Vec<String>,
    /// What the template is for.
    #[schema(max_length = 500)]
    pub summary: Option<String>,
    /// A Dockerfile of one stage. Its `FROM` names an image, or with `template://` a template and with `archive://` an
    /// uploaded archive.
    #[schema(example = "FROM debian:12\nRUN apt-get update && apt-get install -y jq")]
    pub dockerfile: Option<String>,
    /// Values for the `ARG`s of the Dockerfile.
    pub args: BTreeMap<String, String>,
    /// Without a Dockerfile: an image, `template://NAME`, or `archive://HASH` with the `hash` of an upload.
    #[schema(example = "template://base")]
    pub from: Option<String>,
    /// Without a Dockerfile: what to do, in order.
    pub steps: Vec<NewTemplateStep>,
    /// The `hash` of the uploaded build context, from which `COPY` copies.
    pub context: Option<String>,
    /// A service that runs in every sandbox, instead of that of the Dockerfile.
    pub start_command: Option<String>,
    /// A command that succeeds once the service is ready.
    pub ready_command: Option<String>,
    #[schema(minimum = 1, maximum = 1024)]
    pub cpu_count: Option<u32>,
    #[schema(minimum = 128)]
    pub memory_mib: Option<u64>,
    #[schema(minimum = 64)]
    pub disk_mib: Option<u64>,
    /// Runs every step, also those whose results are cached.
    pub force: bool,
    /// Names of secrets of the project. Every `RUN` has them as variables of the same name, with `_` for `-` and `.`,
    /// only while it runs.
    pub secrets: Vec<String>,
    /// The platform of an image that has several; that of the host by default.
    #[schema(example = "linux/amd64")]
    pub platform: Option<String>,
    /// How to sign in to the registry of the image.
    pub registry: Option<RegistryLogin>,
}

/// A step of a build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTemplateStep {
    /// `RUN`, `COPY`, `ENV`, `WORKDIR` or `USER`.
    #[schema(example = "RUN")]
    pub kind: String,
    /// `RUN`: a shell line, and optionally a user. `COPY`: source, destination, and optionally owner and mode. `ENV`:
    /// names and values in turn. `WORKDIR`: a path. `USER`: a name.
    #[schema(example = json!(["apt-get update"]))]
    pub args: Vec<String>,
    /// `COPY`: the `hash` of its own upload, instead of the build's `context`.
    #[serde(default)]
    pub files: Option<String>,
    /// Runs even if its result is cached.
    #[serde(default)]
    pub force: bool,
    /// `RUN`: secrets of the project by the variables that get them, only while it runs.
    #[serde(default)]
    pub secrets: BTreeMap<String, String>,
}

/// Credentials for a registry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegistryLogin {
    pub username: String,
    /// The name of the project's secret that is the password.
    pub secret: String,
}

/// A build of a template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateBuild {
    pub id: String,
    pub template_id: String,
    /// The template's name.
    pub template: String,
    /// `waiting` for its steps, `building`, `ready` or `error`.
    #[schema(example = "building")]
    pub state: String,
    pub tags: Vec<String>,
    /// What it starts from, as the request named it; null until its steps are known.
    pub from: Option<String>,
    pub step_count: Option<u64>,
    pub cpu_count: u32,
    pub memory_mib: u64,
    pub disk_mib: u64,
    /// Why it failed.
    pub failure: Option<TemplateBuildFailure>,
    pub log_lines: u64,
    /// The key that requested it.
    pub created_by: Option<String>,
    pub created_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
}

/// Why a build failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateBuildFailure {
    pub message: String,
    /// `base`, `finalize` or the number of the step, from 1; null if it was none.
    pub step: Option<String>,
    /// The line of the Dockerfile, if it is one's.
    pub line: Option<u32>,
}

/// A build that was requested.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestedTemplateBuild {
    #[serde(flatten)]
    pub build: TemplateBuild,
    /// What in the Dockerfile has no effect here. The log has them too.
    pub warnings: Vec<String>,
}

/// Selects builds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TemplateBuildQuery {
    /// Only of this template, by its id or name.
    pub template: Option<String>,
    /// Only in this state: `waiting`, `building`, `ready` or `error`.
    pub state: Option<String>,
}

/// A line of a build's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateBuildLine {
    /// Its position, from 0.
    pub number: u64,
    pub at: String,
    /// `debug`, `info`, `warn` or `error`.
    #[schema(example = "info")]
    pub level: String,
    /// `base`, `finalize` or the number of the step, from 1.
    pub step: Option<String>,
    pub message: String,
}

/// Selects lines of a build's log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TemplateBuildLogQuery {
    /// Lines of this level or above: `debug`, `info`, `warn` or `error`; `info` by default.
    pub level: Option<String>,
}

/// Uploaded files: a build context or an archive of an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateFiles {
    /// Names them in builds: the SHA-256 of the upload.
    pub hash: String,
    pub size_bytes: u64,
}

/// A template of the catalogue, for operators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CatalogueTemplate {
    pub name: String,
    pub summary: String,
    /// The template that it starts from.
    pub from: String,
    /// `ready`, `building`, `error` or `not_built`, as in the list of templates.
    #[schema(example = "ready")]
    pub state: String,
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CatalogueLogQuery {
    /// How many lines of the newest build's log to skip.
    pub log_offset: Option<u32>,
}

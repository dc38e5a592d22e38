//! Repositories.

use coffer_core::forge::ProtectionRules;
pub use coffer_core::forge::records::{Branch, Protection, RemoteRepository, RepositoryInfo};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A new repository.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRepository {
    /// 1 to 64 letters, digits, `_`, `-` and `.`; unique in the project. With `url` the name there by default.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(example = "app")]
    pub name: String,
    /// For a local one, `main` by default. The first push may change it.
    pub default_branch: Option<String>,
    /// The connection to the forge that stores it, if it is not local.
    pub connection_id: Option<String>,
    /// Its name on that forge: `owner/name`.
    #[schema(example = "octocat/hello-world")]
    pub remote: Option<String>,
    /// Instead of both: its address, from which the connection is found. If the project has it, that one is returned (200).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "https://github.com/octocat/hello-world")]
    pub url: Option<String>,
}

/// Changes to a repository.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangedRepository {
    /// An existing branch.
    pub default_branch: String,
}

/// A repository of the project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Repository {
    pub id: String,
    pub name: String,
    /// `local` if this server stores it, else the kind of forge.
    pub kind: String,
    pub connection_id: Option<String>,
    /// Its name on the forge of its connection.
    pub remote: Option<String>,
    pub default_branch: String,
    /// For `git clone`, only of a local one. The password is an API key.
    pub clone_url: Option<String>,
    pub created_at: String,
}

/// A repository, with details from its forge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RepositoryDetail {
    #[serde(flatten)]
    pub repository: Repository,
    pub info: RepositoryInfo,
}

/// The protection of a branch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewProtection {
    /// Whether it changes only by merged pull requests; true by default.
    pub require_pull: bool,
    /// How many approvals of its head by others than its author a pull request needs.
    #[schema(maximum = 100)]
    pub approvals: u32,
    /// Whether all statuses of its head must be successes, with at least one.
    pub require_statuses: bool,
}

impl Default for NewProtection {
    fn default() -> Self {
        let ProtectionRules { require_pull, approvals, require_statuses } = ProtectionRules::default();
        Self { require_pull, approvals, require_statuses }
    }
}

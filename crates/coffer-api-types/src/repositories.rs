//! Repositories.

use coffer_core::forge::ProtectionRules;
pub use coffer_core::forge::records::{Branch, Protection, RepositoryInfo};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A repository to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRepository {
    /// 1 to 64 letters, digits, `_`, `-` and `.`; of no other repository of the project.
    #[schema(example = "app")]
    pub name: String,
    /// Of a local one, `main` unless said otherwise. The first push may change it.
    pub default_branch: Option<String>,
    /// The way to another forge, where the repository is there.
    pub connection_id: Option<String>,
    /// Its name there: `owner/name`.
    #[schema(example = "octocat/hello-world")]
    pub remote: Option<String>,
}

/// What is to change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangedRepository {
    /// A branch that there is.
    pub default_branch: String,
}

/// A repository of the project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Repository {
    pub id: String,
    pub name: String,
    /// `local` where this server keeps it, else the kind of forge.
    pub kind: String,
    pub connection_id: Option<String>,
    /// Its name on the forge of its connection.
    pub remote: Option<String>,
    pub default_branch: String,
    /// For `git clone`, of a local one. The password is an API key.
    pub clone_url: Option<String>,
    pub created_at: String,
}

/// A repository, and what its forge knows of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RepositoryDetail {
    #[serde(flatten)]
    pub repository: Repository,
    pub info: RepositoryInfo,
}

/// What protects a branch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewProtection {
    /// It moves by merged pull requests alone; true unless said otherwise.
    pub require_pull: bool,
    /// Approvals of its head that a pull request needs, by others than its author.
    #[schema(maximum = 100)]
    pub approvals: u32,
    /// The statuses of its head must be successes, and there must be one.
    pub require_statuses: bool,
}

impl Default for NewProtection {
    fn default() -> Self {
        let ProtectionRules { require_pull, approvals, require_statuses } = ProtectionRules::default();
        Self { require_pull, approvals, require_statuses }
    }
}

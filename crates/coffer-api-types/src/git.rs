//! Git in sandboxes.

pub use coffer_core::git::{
    Branched, Cloned, Committed, PathChange, PullRequest, Pushed, WorkTree, WorkTreeDiff,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A repository to be in the sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewClone {
    /// The name or id of a repository of this project.
    pub repository: String,
    /// Where it goes; below the user's home, by its name, unless said otherwise.
    pub path: Option<String>,
    /// What is checked out at first; the default branch unless said otherwise.
    pub branch: Option<String>,
    /// How many commits of each branch; all unless said otherwise.
    #[schema(minimum = 1, maximum = 1000000)]
    pub depth: Option<u32>,
    #[serde(default)]
    pub submodules: bool,
    /// Whose it is inside; the template's user by default.
    pub user: Option<String>,
}

/// A branch to be checked out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBranch {
    /// Of the sandbox's; needed where it has several.
    pub repository: Option<String>,
    /// Taken up where it exists, in the sandbox or on the forge.
    #[schema(example = "task-42")]
    pub name: String,
    /// What it begins from where it does not; the default branch unless said otherwise.
    pub base: Option<String>,
}

/// A commit to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCommit {
    pub repository: Option<String>,
    /// A conventional commit, unless the project's settings say otherwise.
    #[schema(example = "fix(api): answer 404 for unknown ids")]
    pub message: String,
    /// What goes in; everything that was changed by default.
    #[serde(default)]
    pub paths: Vec<String>,
}

/// A push to be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewPush {
    pub repository: Option<String>,
    /// The one that is checked out, unless said otherwise.
    pub branch: Option<String>,
    /// Replaces what the forge has, where that is what the sandbox last saw there.
    pub force: bool,
}

/// A pull request to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPullRequest {
    pub repository: Option<String>,
    /// 1 to 256 characters on one line.
    pub title: String,
    #[serde(default)]
    pub body: String,
    /// The branch that is checked out, unless said otherwise.
    pub head: Option<String>,
    /// The default branch, unless said otherwise.
    pub base: Option<String>,
    #[serde(default)]
    pub draft: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RepositoryQuery {
    /// Which of the sandbox's repositories; needed where it has several.
    pub repository: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DiffQuery {
    /// Which of the sandbox's repositories; needed where it has several.
    pub repository: Option<String>,
    /// The branch to compare with, from where the two parted; the last commit by default.
    pub base: Option<String>,
}

/// Something that was done with git.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GitOperation {
    pub id: String,
    /// `clone`, `branch`, `commit`, `push` or `pr`.
    pub kind: String,
    pub repository: String,
    /// `running`, `succeeded` or `failed`.
    pub state: String,
    pub actor: String,
    /// What came of it.
    pub result: Option<serde_json::Value>,
    pub error_code: Option<String>,
    pub error: Option<String>,
    pub started_at: String,
    pub ended_at: Option<String>,
}

//! Git in sandboxes.

pub use coffer_core::git::{
    Branched, Cloned, Committed, PathChange, PullRequest, Pushed, WorkTree, WorkTreeDiff,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A repository to clone into the sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewClone {
    /// The name or id of a repository of this project.
    pub repository: String,
    /// Its path; below the user's home, by its name, by default.
    pub path: Option<String>,
    /// The branch to check out; the default branch by default.
    pub branch: Option<String>,
    /// How many commits of each branch; all by default.
    #[schema(minimum = 1, maximum = 1000000)]
    pub depth: Option<u32>,
    #[serde(default)]
    pub submodules: bool,
    /// Its owner inside the sandbox; the template's user by default.
    pub user: Option<String>,
}

/// A branch to check out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBranch {
    /// Which of the sandbox's repositories; required if it has several.
    pub repository: Option<String>,
    /// An existing branch, in the sandbox or on the forge, is checked out.
    #[schema(example = "task-42")]
    pub name: String,
    /// The start of a new branch; the default branch by default.
    pub base: Option<String>,
}

/// A new commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCommit {
    pub repository: Option<String>,
    /// A conventional commit, unless the project's settings say otherwise.
    #[schema(example = "fix(api): answer 404 for unknown ids")]
    pub message: String,
    /// The files to commit; all changes by default.
    #[serde(default)]
    pub paths: Vec<String>,
}

/// A push request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewPush {
    pub repository: Option<String>,
    /// The branch to push; the checked-out one by default.
    pub branch: Option<String>,
    /// Replaces the forge's branch if it is still at the commit that the sandbox last fetched.
    pub force: bool,
}

/// A new pull request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPullRequest {
    pub repository: Option<String>,
    /// 1 to 256 characters on one line.
    pub title: String,
    #[serde(default)]
    pub body: String,
    /// The branch with the changes; the checked-out one by default.
    pub head: Option<String>,
    /// The target branch; the default branch by default.
    pub base: Option<String>,
    #[serde(default)]
    pub draft: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RepositoryQuery {
    /// Which of the sandbox's repositories; required if it has several.
    pub repository: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DiffQuery {
    /// Which of the sandbox's repositories; required if it has several.
    pub repository: Option<String>,
    /// The branch to compare with, from the merge base; the last commit by default.
    pub base: Option<String>,
}

/// A recorded git operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GitOperation {
    pub id: String,
    /// `clone`, `branch`, `commit`, `push` or `pr`.
    pub kind: String,
    pub repository: String,
    /// `running`, `succeeded` or `failed`.
    pub state: String,
    pub actor: String,
    /// Its result.
    pub result: Option<serde_json::Value>,
    pub error_code: Option<String>,
    pub error: Option<String>,
    pub started_at: String,
    pub ended_at: Option<String>,
}

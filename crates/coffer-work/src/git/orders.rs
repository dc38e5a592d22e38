//! What is asked for, and what is answered.

use coffer_core::forge::BranchName;
use coffer_forge::Pull;
use serde::Serialize;
use utoipa::ToSchema;

use super::Submodules;

/// A repository to be in a sandbox.
#[derive(Debug)]
pub struct CloneOrder {
    pub repository: String,
    pub path: Option<String>,
    pub branch: Option<BranchName>,
    pub depth: Option<u32>,
    pub submodules: Submodules,
    pub user: Option<String>,
}

/// A repository that is in a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub struct Cloned {
    pub repository: String,
    pub path: String,
    /// Whether it was there already and is up to date now. A clean work tree is fast-forwarded.
    pub updated: bool,
    /// How many commits of its upstream the branch lacks: changes or commits of its own were in the way. Null where it
    /// has no upstream.
    pub behind: Option<u64>,
    pub branch: Option<String>,
    pub commit: Option<String>,
    /// What of it is not there, and why: files of Git LFS, submodules.
    pub notes: Vec<String>,
}

#[derive(Debug)]
pub struct BranchOrder {
    pub repository: Option<String>,
    pub name: BranchName,
    pub base: Option<BranchName>,
}

/// A branch that is checked out.
#[derive(Debug, Serialize, ToSchema)]
pub struct Branched {
    pub repository: String,
    pub branch: String,
    /// What it was made from; null where it existed.
    pub base: Option<String>,
    pub created: bool,
    pub commit: Option<String>,
    /// What of it is not there, and why: files of Git LFS.
    pub notes: Vec<String>,
}

#[derive(Debug)]
pub struct DiffOrder {
    pub repository: Option<String>,
    /// The branch of the forge to compare with; otherwise the last commit.
    pub base: Option<BranchName>,
}

/// What differs.
#[derive(Debug, Serialize, ToSchema)]
pub struct WorkTreeDiff {
    pub repository: String,
    pub patch: String,
    /// There is more than this.
    pub truncated: bool,
}

#[derive(Debug)]
pub struct CommitOrder {
    pub repository: Option<String>,
    pub message: String,
    /// What goes in; everything that was changed, where it is empty.
    pub paths: Vec<String>,
}

/// A commit that was made.
#[derive(Debug, Serialize, ToSchema)]
pub struct Committed {
    pub repository: String,
    pub commit: Option<String>,
    pub branch: Option<String>,
    /// As the message reads, where the project wants conventional commits.
    pub kind: Option<String>,
    pub scope: Option<String>,
    pub breaking: bool,
}

#[derive(Debug)]
pub struct PushOrder {
    pub repository: Option<String>,
    /// The one that is checked out, unless said otherwise.
    pub branch: Option<BranchName>,
    /// Replaces what the forge has, where that is what the sandbox last saw there.
    pub force: bool,
}

/// A branch as the forge has it now.
#[derive(Debug, Serialize, ToSchema)]
pub struct Pushed {
    pub repository: String,
    pub branch: String,
    pub commit: String,
    /// Where it was before; null where it is new.
    pub previous: Option<String>,
    pub attempts: u32,
}

#[derive(Debug)]
pub struct PullOrder {
    pub repository: Option<String>,
    pub title: String,
    pub body: String,
    pub head: Option<BranchName>,
    pub base: Option<BranchName>,
    pub draft: bool,
}

/// The pull request of a branch.
#[derive(Debug, Serialize, ToSchema)]
pub struct PullRequest {
    pub repository: String,
    /// Whether it was opened now, or found.
    pub created: bool,
    pub pull: Pull,
}

//! What is asked for, and what is answered.

use coffer_core::forge::BranchName;
use coffer_forge::Pull;
use serde::Serialize;
use utoipa::ToSchema;

use super::Submodules;

/// A repository to be in a sandbox.
#[derive(Debug)]
pub(crate) struct CloneOrder {
    pub(crate) repository: String,
    pub(crate) path: Option<String>,
    pub(crate) branch: Option<BranchName>,
    pub(crate) depth: Option<u32>,
    pub(crate) submodules: Submodules,
    pub(crate) user: Option<String>,
}

/// A repository that is in a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Cloned {
    pub(crate) repository: String,
    pub(crate) path: String,
    /// Whether it was there already, and was brought up to date.
    pub(crate) updated: bool,
    pub(crate) branch: Option<String>,
    pub(crate) commit: Option<String>,
    /// What of it is not there, and why: files of Git LFS, submodules.
    pub(crate) notes: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct BranchOrder {
    pub(crate) repository: Option<String>,
    pub(crate) name: BranchName,
    pub(crate) base: Option<BranchName>,
}

/// A branch that is checked out.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Branched {
    pub(crate) repository: String,
    pub(crate) branch: String,
    /// What it was made from; null where it existed.
    pub(crate) base: Option<String>,
    pub(crate) created: bool,
    pub(crate) commit: Option<String>,
    /// What of it is not there, and why: files of Git LFS.
    pub(crate) notes: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct DiffOrder {
    pub(crate) repository: Option<String>,
    /// The branch of the forge to compare with; otherwise the last commit.
    pub(crate) base: Option<BranchName>,
}

/// What differs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkTreeDiff {
    pub(crate) repository: String,
    pub(crate) patch: String,
    /// There is more than this.
    pub(crate) truncated: bool,
}

#[derive(Debug)]
pub(crate) struct CommitOrder {
    pub(crate) repository: Option<String>,
    pub(crate) message: String,
    /// What goes in; everything that was changed, where it is empty.
    pub(crate) paths: Vec<String>,
}

/// A commit that was made.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Committed {
    pub(crate) repository: String,
    pub(crate) commit: Option<String>,
    pub(crate) branch: Option<String>,
    /// As the message reads, where the project wants conventional commits.
    pub(crate) kind: Option<String>,
    pub(crate) scope: Option<String>,
    pub(crate) breaking: bool,
}

#[derive(Debug)]
pub(crate) struct PushOrder {
    pub(crate) repository: Option<String>,
    /// The one that is checked out, unless said otherwise.
    pub(crate) branch: Option<BranchName>,
    /// Replaces what the forge has, where that is what the sandbox last saw there.
    pub(crate) force: bool,
}

/// A branch as the forge has it now.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Pushed {
    pub(crate) repository: String,
    pub(crate) branch: String,
    pub(crate) commit: String,
    /// Where it was before; null where it is new.
    pub(crate) previous: Option<String>,
    pub(crate) attempts: u32,
}

#[derive(Debug)]
pub(crate) struct PullOrder {
    pub(crate) repository: Option<String>,
    pub(crate) title: String,
    pub(crate) body: String,
    pub(crate) head: Option<BranchName>,
    pub(crate) base: Option<BranchName>,
    pub(crate) draft: bool,
}

/// The pull request of a branch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PullRequest {
    pub(crate) repository: String,
    /// Whether it was opened now, or found.
    pub(crate) created: bool,
    pub(crate) pull: Pull,
}

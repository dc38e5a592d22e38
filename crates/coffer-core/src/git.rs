//! What git did in a sandbox.

use serde::{Deserialize, Serialize};

use crate::forge::records::Pull;

/// Where a work tree stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkTree {
    /// The commit that is checked out; none where there is none yet.
    pub commit: Option<String>,
    /// None where no branch is checked out.
    pub branch: Option<String>,
    pub upstream: Option<String>,
    /// Commits that the upstream has not, and that it has beyond.
    pub ahead: Option<u64>,
    pub behind: Option<u64>,
    pub changes: Vec<PathChange>,
    /// There are more changes than these.
    pub truncated: bool,
}

/// One path that is not as committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PathChange {
    pub path: String,
    /// What it was called before.
    pub from: Option<String>,
    /// What is staged: `M`, `A`, `D`, `R`, `C`, `T`, or `.` for nothing.
    pub staged: char,
    /// What is not: the same, or `?` for a file that git does not know, `U` for a conflict.
    pub unstaged: char,
}

/// A repository that is in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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

/// A branch that is checked out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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

/// What differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkTreeDiff {
    pub repository: String,
    pub patch: String,
    /// There is more than this.
    pub truncated: bool,
}

/// A commit that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Committed {
    pub repository: String,
    pub commit: Option<String>,
    pub branch: Option<String>,
    /// As the message reads, where the project wants conventional commits.
    pub kind: Option<String>,
    pub scope: Option<String>,
    pub breaking: bool,
}

/// A branch as the forge has it now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Pushed {
    pub repository: String,
    pub branch: String,
    pub commit: String,
    /// Where it was before; null where it is new.
    pub previous: Option<String>,
    pub attempts: u32,
}

/// The pull request of a branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PullRequest {
    pub repository: String,
    /// Whether it was opened now, or found.
    pub created: bool,
    pub pull: Pull,
}

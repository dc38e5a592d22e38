//! Results of git operations in a sandbox.

use serde::{Deserialize, Serialize};

use crate::forge::records::Pull;

/// What the git gate tells git, which prints it: text is all that git passes on. The server finds these phrases in git's
/// output to know why a command failed, so both take them from here.
pub mod gate {
    /// The forge does not answer, or not as a forge.
    pub const FORGE_UNUSABLE: &str = "the forge cannot be used";
    pub const CREDENTIAL_REFUSED: &str =
        "it does not accept the credential: it expired, was revoked or is wrong";
    /// Egress has started again and was not told the credential yet.
    pub const CREDENTIAL_UNKNOWN: &str =
        "this repository's credential is not known yet; try again in a moment";
    pub const NO_REPOSITORY: &str = "this sandbox has no such repository; clone it through the API first";
}

/// The state of a work tree.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkTree {
    /// The checked-out commit; null before the first.
    pub commit: Option<String>,
    /// Null if no branch is checked out.
    pub branch: Option<String>,
    pub upstream: Option<String>,
    /// Commits that the upstream lacks, and commits that it has in addition.
    pub ahead: Option<u64>,
    pub behind: Option<u64>,
    pub changes: Vec<PathChange>,
    /// Whether there are more changes than these.
    pub truncated: bool,
}

/// A changed path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PathChange {
    pub path: String,
    /// Its earlier name.
    pub from: Option<String>,
    /// The staged change: `M`, `A`, `D`, `R`, `C`, `T`, or `.` for none.
    pub staged: char,
    /// The unstaged change: the same, or `?` for an untracked file, `U` for a conflict.
    pub unstaged: char,
}

/// A repository in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Cloned {
    pub repository: String,
    pub path: String,
    /// Whether it already existed and is up to date now. A clean work tree is fast-forwarded.
    pub updated: bool,
    /// How many commits of its upstream the branch lacks, if changes or own commits prevented a fast-forward.
    /// Null without an upstream.
    pub behind: Option<u64>,
    pub branch: Option<String>,
    pub commit: Option<String>,
    /// What is missing, and why: files of Git LFS, submodules.
    pub notes: Vec<String>,
}

/// A checked-out branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Branched {
    pub repository: String,
    pub branch: String,
    /// The branch it was created from; null if it existed.
    pub base: Option<String>,
    pub created: bool,
    pub commit: Option<String>,
    /// What is missing, and why: files of Git LFS.
    pub notes: Vec<String>,
}

/// A diff of the work tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct WorkTreeDiff {
    pub repository: String,
    pub patch: String,
    /// Whether the diff is longer than this.
    pub truncated: bool,
}

/// A new commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Committed {
    pub repository: String,
    pub commit: Option<String>,
    pub branch: Option<String>,
    /// From the message, if the project uses conventional commits.
    pub kind: Option<String>,
    pub scope: Option<String>,
    pub breaking: bool,
}

/// A branch on the forge after a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Pushed {
    pub repository: String,
    pub branch: String,
    pub commit: String,
    /// Its commit before; null if it is new.
    pub previous: Option<String>,
    pub attempts: u32,
}

/// The pull request of a branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PullRequest {
    pub repository: String,
    /// Whether it was opened now, or existed.
    pub created: bool,
    pub pull: Pull,
}

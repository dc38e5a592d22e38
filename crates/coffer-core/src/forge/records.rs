//! Repositories, pull requests and issues, as forges and our API show them.

use serde::{Deserialize, Serialize};

use super::{
    BranchName, CommitId, DiffSide, ForgeKind, IssueState, MergeState, ProtectionRules, PullState,
    StatusState, Verdict,
};

/// A repository as its forge describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RepositoryInfo {
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "local"))]
    pub forge: ForgeKind,
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "main"))]
    pub default_branch: BranchName,
    /// Whether nothing was pushed to it yet.
    pub empty: bool,
    pub private: bool,
    pub archived: bool,
    pub description: Option<String>,
    /// For people, if the forge has web pages.
    pub web_url: Option<String>,
    pub size_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Branch {
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub name: BranchName,
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub commit: CommitId,
    pub protected: bool,
}

/// The protection of a branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Protection {
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub branch: BranchName,
    /// Whether it changes only by merged pull requests.
    pub require_pull: bool,
    /// How many approvals a pull request needs.
    pub approvals: u32,
    /// Whether statuses must be successes.
    pub require_statuses: bool,
    /// The required contexts, if the forge names them.
    pub contexts: Vec<String>,
}

impl Protection {
    pub fn of(branch: BranchName, rules: ProtectionRules) -> Self {
        Self {
            branch,
            require_pull: rules.require_pull,
            approvals: rules.approvals,
            require_statuses: rules.require_statuses,
            contexts: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Pull {
    pub number: i64,
    pub title: String,
    pub body: String,
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "open"))]
    pub state: PullState,
    pub draft: bool,
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub head: BranchName,
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub base: BranchName,
    /// The head's commit as last seen.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub head_commit: CommitId,
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub base_commit: CommitId,
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub merge_commit: Option<CommitId>,
    pub author: String,
    pub web_url: Option<String>,
    pub created_at: String,
    pub updated_at: String,
    /// When it was closed or merged.
    pub closed_at: Option<String>,
}

/// The changes of a pull request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Diff {
    /// The merge base of head and base.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub merge_base: Option<CommitId>,
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub head_commit: CommitId,
    pub files: Vec<DiffFile>,
    pub additions: u64,
    pub deletions: u64,
    /// The patch as git writes it.
    pub patch: String,
    /// Whether the patch is longer than this.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DiffFile {
    pub path: String,
    /// Its earlier name, if it was renamed or copied.
    pub previous_path: Option<String>,
    /// `added`, `modified`, `deleted`, `renamed`, `copied` or `changed`.
    pub change: String,
    pub additions: u64,
    pub deletions: u64,
    /// Whether it is not text, so that lines are not counted.
    pub binary: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Issue {
    pub number: i64,
    pub title: String,
    pub body: String,
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "open"))]
    pub state: IssueState,
    pub author: String,
    /// Empty on the local forge, which has none.
    #[serde(default)]
    pub labels: Vec<String>,
    #[serde(default)]
    pub assignees: Vec<String>,
    pub web_url: Option<String>,
    pub created_at: String,
    pub updated_at: String,
    pub closed_at: Option<String>,
}

/// A repository of a forge that a connection can reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RemoteRepository {
    /// `owner/name`, as `remote` of a new repository.
    pub remote: String,
    pub description: Option<String>,
    pub private: bool,
    pub archived: bool,
    /// Whether the credential may push to it.
    pub can_push: bool,
    pub default_branch: Option<String>,
    pub web_url: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = ForgeComment))]
pub struct Comment {
    pub id: String,
    pub body: String,
    pub author: String,
    pub created_at: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Review {
    pub id: String,
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "approve"))]
    pub verdict: Verdict,
    pub body: String,
    pub author: String,
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub commit: Option<CommitId>,
    pub created_at: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct InlineComment {
    pub id: String,
    pub body: String,
    pub author: String,
    pub path: String,
    /// Null if the line is no longer part of the diff.
    pub line: Option<i64>,
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, example = "right"))]
    pub side: Option<DiffSide>,
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub commit: Option<CommitId>,
    /// The first comment of its thread, if it is not that itself.
    pub in_reply_to: Option<String>,
    pub created_at: String,
    /// When its text was changed.
    #[serde(default)]
    pub updated_at: Option<String>,
    /// Who resolved the thread that it begins; null on GitHub, whose REST API does not tell.
    #[serde(default)]
    pub resolved_by: Option<String>,
    #[serde(default)]
    pub resolved_at: Option<String>,
}

/// Whether a pull request can be merged now, and what is in the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Mergeability {
    /// `clean`, `conflict`, `blocked` (by the protection of the base, or as a draft), `closed`, or `unknown` while the
    /// forge has not tried yet.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "clean"))]
    pub state: MergeState,
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub head_commit: CommitId,
    /// The commit of the base with which it was tried.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub base_commit: CommitId,
    /// How many commits of the base the head lacks, at most 1000; null if the forge does not tell.
    pub behind: Option<u64>,
    /// The files in conflict, at most 100; empty on GitHub, which does not name them.
    pub paths: Vec<String>,
    /// What is in the way, in words.
    pub why: Option<String>,
    /// The combined result of the checks of the head; null without any.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, example = "success"))]
    pub checks: Option<StatusState>,
}

/// A file as it is in a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CommittedFile {
    pub path: String,
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub commit: CommitId,
    /// At most 2 MiB; empty if it is binary.
    pub text: String,
    pub binary: bool,
    /// Whether the file is longer than this.
    pub truncated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Status {
    pub context: String,
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "success"))]
    pub state: StatusState,
    pub description: String,
    pub target_url: Option<String>,
    pub changed_at: Option<String>,
}

/// All results for a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Statuses {
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub commit: CommitId,
    /// `failure` if one failed, else `pending` if one is pending or there is none, else `success`.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub state: StatusState,
    pub statuses: Vec<Status>,
}

impl Statuses {
    pub fn of(commit: CommitId, statuses: Vec<Status>) -> Self {
        let any = |wanted: &[StatusState]| statuses.iter().any(|status| wanted.contains(&status.state));
        let state = if any(&[StatusState::Failure, StatusState::Error]) {
            StatusState::Failure
        } else if statuses.is_empty() || any(&[StatusState::Pending]) {
            StatusState::Pending
        } else {
            StatusState::Success
        };
        Self { commit, state, statuses }
    }
}

/// Whether a credential suffices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Permissions {
    /// Whether nothing is missing.
    pub sufficient: bool,
    pub granted: Vec<String>,
    pub missing: Vec<MissingPermission>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MissingPermission {
    /// The missing permission, by the forge's name for it.
    pub scope: String,
    /// What cannot be done without it.
    pub needed_to: String,
}

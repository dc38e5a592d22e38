//! Payloads of events about repositories, here and on GitHub.

use serde::{Deserialize, Serialize};

use crate::CommentId;
use crate::forge::{
    BranchName, CommitId, ForgeKind, IssueState, ProtectionRules, PullState, RepositoryName, StatusContext,
    StatusState, Verdict,
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositoryCreated {
    pub name: RepositoryName,
    pub kind: ForgeKind,
    /// Its name on its forge: `owner/name`.
    pub remote: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositoryChanged {
    pub default_branch: BranchName,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositoryRemoved {
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositoryPushed {
    /// The pusher.
    pub by: String,
    /// The first of the changed refs.
    pub refs: Vec<MovedRef>,
    /// How many there were.
    pub count: usize,
}

/// A ref that was changed, created (`before` is all zeros) or deleted (`after` is).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedRef {
    #[serde(rename = "ref")]
    pub name: String,
    pub before: CommitId,
    pub after: CommitId,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepositoryImported {
    pub by: String,
    pub branches: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protected {
    pub branch: BranchName,
    /// `None` if it is no longer protected.
    pub rules: Option<ProtectionRules>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionCreated {
    pub name: String,
    pub kind: ForgeKind,
    pub base_url: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullNote {
    pub number: i64,
    pub head: BranchName,
    pub base: BranchName,
    pub state: PullState,
    pub head_commit: CommitId,
    pub merge_commit: Option<CommitId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullHeadMoved {
    #[serde(flatten)]
    pub pull: PullNote,
    /// The previous head.
    pub before: CommitId,
}

/// A comment; its text is in the repository's comments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommentMade {
    /// Of the pull request or issue.
    pub number: i64,
    pub comment_id: CommentId,
    /// The verdict of a review.
    pub verdict: Option<Verdict>,
    pub path: Option<String>,
    pub line: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssueNote {
    pub number: i64,
    pub state: IssueState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitStatus {
    pub commit: CommitId,
    pub context: StatusContext,
    pub state: StatusState,
}

/// Fields from GitHub's payload. They are stored as they come, so each may be missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GithubBy {
    pub action: Option<String>,
    pub sender: Option<String>,
    /// `User` or `Bot`.
    pub sender_type: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GithubPull {
    #[serde(flatten)]
    pub by: GithubBy,
    pub number: Option<i64>,
    pub state: Option<String>,
    pub merged: Option<bool>,
    pub head: Option<String>,
    pub head_commit: Option<String>,
    pub base: Option<String>,
    pub merge_commit: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GithubReview {
    #[serde(flatten)]
    pub by: GithubBy,
    pub number: Option<i64>,
    pub review_id: Option<i64>,
    pub verdict: Option<String>,
    pub commit: Option<String>,
    pub body: Option<String>,
    /// The author's association with the repository: `OWNER`, `MEMBER`, `NONE` and the like.
    pub association: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GithubLineComment {
    #[serde(flatten)]
    pub by: GithubBy,
    pub number: Option<i64>,
    pub comment_id: Option<i64>,
    pub path: Option<String>,
    pub line: Option<i64>,
    pub body: Option<String>,
    pub association: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GithubIssueComment {
    #[serde(flatten)]
    pub by: GithubBy,
    pub number: Option<i64>,
    pub comment_id: Option<i64>,
    /// Whether it is on a pull request.
    #[serde(default)]
    pub on_pull: bool,
    pub body: Option<String>,
    pub association: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GithubIssue {
    #[serde(flatten)]
    pub by: GithubBy,
    pub number: Option<i64>,
    pub state: Option<String>,
    /// The label that was added or removed.
    #[serde(default)]
    pub label: Option<String>,
    /// The person who was assigned or unassigned.
    #[serde(default)]
    pub assignee: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GithubStatus {
    #[serde(flatten)]
    pub by: GithubBy,
    pub commit: Option<String>,
    pub context: Option<String>,
    pub state: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GithubCheck {
    #[serde(flatten)]
    pub by: GithubBy,
    pub commit: Option<String>,
    pub name: Option<String>,
    pub status: Option<String>,
    pub conclusion: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GithubPush {
    #[serde(flatten)]
    pub by: GithubBy,
    #[serde(rename = "ref")]
    pub name: Option<String>,
    pub before: Option<String>,
    pub after: Option<String>,
}

//! Requests about pull requests and issues.

pub use coffer_core::forge::records::{
    Comment, CommittedFile, Diff, DiffFile, InlineComment, Issue, Mergeability, Pull, Review, Status,
    Statuses,
};
use coffer_core::forge::{DiffSide, IssueState, MergeMethod, StatusState, Verdict};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::fields::flag;

/// A new pull request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenPull {
    /// 1 to 256 characters on one line.
    pub title: String,
    #[serde(default)]
    pub body: String,
    /// The branch with the changes.
    pub head: String,
    /// The target branch; the default branch by default.
    pub base: Option<String>,
    #[serde(default)]
    pub draft: bool,
}

/// Changes to a pull request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangePull {
    pub title: Option<String>,
    pub body: Option<String>,
    pub base: Option<String>,
    pub draft: Option<bool>,
    /// `closed`, or `open` to reopen it.
    #[schema(value_type = Option<String>, example = "closed")]
    pub state: Option<IssueState>,
}

/// How to merge.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Merge {
    /// `merge` (a commit with two parents), `squash` or `rebase`; `merge` by default.
    #[schema(value_type = Option<String>, example = "squash")]
    pub method: Option<MergeMethod>,
    /// Refuses to merge if the head is no longer at this commit.
    pub expected_head: Option<String>,
    /// The title of the commit.
    pub title: Option<String>,
    pub message: Option<String>,
}

/// A comment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Say {
    /// 1 to 65536 bytes.
    pub body: String,
}

/// A review of a pull request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GiveReview {
    /// `approve`, `request_changes` or `comment`.
    #[schema(value_type = String, example = "approve")]
    pub verdict: Verdict,
    #[serde(default)]
    pub body: String,
    /// The reviewed commit; the head by default.
    pub commit: Option<String>,
    #[serde(default)]
    pub comments: Vec<LineComment>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LineComment {
    pub path: String,
    #[schema(minimum = 1)]
    pub line: u32,
    /// `right` (the new version, the default) or `left` (the old one).
    #[schema(value_type = Option<String>, example = "right")]
    pub side: Option<DiffSide>,
    pub body: String,
}

/// The result of a check for a commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetStatus {
    #[schema(example = "ci/test")]
    pub context: String,
    /// `pending`, `success`, `failure` or `error`.
    #[schema(value_type = String, example = "success")]
    pub state: StatusState,
    #[serde(default)]
    pub description: String,
    pub target_url: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenIssue {
    pub title: String,
    #[serde(default)]
    pub body: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeIssue {
    pub title: Option<String>,
    pub body: Option<String>,
    /// `closed`, or `open` to reopen it.
    #[schema(value_type = Option<String>, example = "closed")]
    pub state: Option<IssueState>,
}

/// Selects pull requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct PullQuery {
    /// `open`, `closed` or `merged`.
    pub state: Option<String>,
    pub head: Option<String>,
    pub base: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DiffQuery {
    /// Return the counts of lines alone, with an empty patch.
    #[serde(default, deserialize_with = "flag")]
    pub stat: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct IssueQuery {
    /// `open` or `closed`.
    pub state: Option<String>,
}

/// A change of a comment on a line: its text, or whether its thread is resolved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChangeLineComment {
    /// Only its author can change it.
    pub body: Option<String>,
    pub resolved: Option<bool>,
}

/// Two commits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct CompareQuery {
    /// The commit before.
    pub from: String,
    /// The commit after.
    pub to: String,
}

/// A file in a commit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FileQuery {
    pub commit: String,
    /// From the top of the repository.
    pub path: String,
}

//! The trait of forges: operations on one repository.

use std::time::Duration;

use async_trait::async_trait;
pub use coffer_core::forge::records::{
    Branch, Comment, CommittedFile, Diff, DiffFile, InlineComment, Issue, Mergeability, MissingPermission,
    Permissions, Protection, Pull, RemoteRepository, RepositoryInfo, Review, Status, Statuses,
};
use coffer_core::forge::{
    BranchName, CommitId, DiffSide, IssueState, MergeMethod, StatusContext, StatusState, Verdict,
};
pub use coffer_core::forge::{PullChange, PullFilter};
use coffer_store::Secret;

use crate::ForgeError;

type Answer<T> = Result<T, ForgeError>;

/// One repository on a forge, as one caller sees it.
#[async_trait]
pub trait Forge: Send + Sync + std::fmt::Debug {
    /// Details of the repository.
    async fn repository(&self) -> Answer<RepositoryInfo>;
    async fn branches(&self, part: Part) -> Answer<Listed<Branch>>;
    async fn branch(&self, name: &BranchName) -> Answer<Branch>;
    /// The protection of a branch, if any.
    async fn protection(&self, name: &BranchName) -> Answer<Option<Protection>>;

    /// Opens a pull request; [`ForgeError::PullExists`] names an existing open one.
    async fn create_pull(&self, new: NewPull) -> Answer<Pull>;
    async fn pull(&self, number: i64) -> Answer<Pull>;
    async fn update_pull(&self, number: i64, change: PullChange) -> Answer<Pull>;
    async fn pulls(&self, filter: PullFilter, part: Part) -> Answer<Listed<Pull>>;
    /// The open pull request of a head branch, by which a repeated run finds its own.
    async fn pull_of_head(&self, head: &BranchName, base: Option<&BranchName>) -> Answer<Option<Pull>>;
    async fn diff(&self, number: i64) -> Answer<Diff>;
    /// Whether it could be merged now; nothing is changed.
    async fn mergeability(&self, number: i64) -> Answer<Mergeability>;
    async fn merge(&self, number: i64, order: MergeOrder) -> Answer<Pull>;
    /// The difference between two commits.
    async fn compare(&self, from: &CommitId, to: &CommitId) -> Answer<Diff>;
    /// A file as it is in a commit.
    async fn file(&self, commit: &CommitId, path: &FilePath) -> Answer<CommittedFile>;

    async fn create_issue(&self, title: &str, body: &str) -> Answer<Issue>;
    async fn issue(&self, number: i64) -> Answer<Issue>;
    async fn update_issue(&self, number: i64, change: IssueChange) -> Answer<Issue>;
    async fn issues(&self, state: Option<IssueState>, part: Part) -> Answer<Listed<Issue>>;

    /// Comments on a pull request or an issue as a whole.
    async fn comment(&self, number: i64, body: &str) -> Answer<Comment>;
    async fn comments(&self, number: i64, part: Part) -> Answer<Listed<Comment>>;
    /// Reviews a pull request, with comments on lines.
    async fn review(&self, number: i64, new: NewReview) -> Answer<Review>;
    async fn reviews(&self, number: i64, part: Part) -> Answer<Listed<Review>>;
    async fn inline_comments(&self, number: i64, part: Part) -> Answer<Listed<InlineComment>>;
    /// Adds to the thread of a comment on a line.
    async fn reply(&self, number: i64, to: &str, body: &str) -> Answer<InlineComment>;
    /// Changes a comment on a line: its text by its author alone, whether its thread is resolved by anybody.
    async fn change_line_comment(&self, number: i64, id: &str, change: LineChange) -> Answer<InlineComment>;
    /// Deletes a comment on a line, by its author alone.
    async fn delete_line_comment(&self, number: i64, id: &str) -> Answer<()>;

    async fn set_status(&self, commit: &CommitId, new: NewStatus) -> Answer<Status>;
    /// The combined result of checks and statuses for a commit.
    async fn statuses(&self, commit: &CommitId) -> Answer<Statuses>;

    /// Whether the credential suffices for all steps of a task, and what is missing.
    async fn permissions(&self) -> Answer<Permissions>;
    /// The URL for git, and its authorization header; never for a sandbox.
    async fn upstream(&self, access: GitAccess, lifetime: Duration) -> Answer<Upstream>;
}

/// Selects a part of a list: `after` is the `next` of the previous part.
#[derive(Debug, Clone, Default)]
pub struct Part {
    pub after: Option<String>,
    pub limit: u32,
}

/// A part of a list.
#[derive(Debug, Clone)]
pub struct Listed<T> {
    pub items: Vec<T>,
    pub next: Option<String>,
}

/// A new pull request.
#[derive(Debug, Clone)]
pub struct NewPull {
    pub title: String,
    pub body: String,
    pub head: BranchName,
    /// The target branch; the default branch by default.
    pub base: Option<BranchName>,
    pub draft: bool,
}

/// A merge request.
#[derive(Debug, Clone)]
pub struct MergeOrder {
    pub method: MergeMethod,
    /// Refuses to merge if the head is no longer at this commit.
    pub expected_head: Option<CommitId>,
    /// The title of the commit, for `merge` and `squash`.
    pub title: Option<String>,
    pub message: Option<String>,
}

/// Changes to an issue.
#[derive(Debug, Clone, Default)]
pub struct IssueChange {
    pub title: Option<String>,
    pub body: Option<String>,
    pub state: Option<IssueState>,
}

/// A new review.
#[derive(Debug, Clone)]
pub struct NewReview {
    pub verdict: Verdict,
    pub body: String,
    /// The reviewed commit; the head by default.
    pub commit: Option<CommitId>,
    pub comments: Vec<NewInlineComment>,
}

#[derive(Debug, Clone)]
pub struct NewInlineComment {
    pub path: String,
    pub line: u32,
    pub side: DiffSide,
    pub body: String,
}

/// A change of a comment on a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineChange {
    Body(String),
    Resolved(bool),
}

/// The path of a file in a repository: relative, without `.` and `..`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePath(String);

impl FilePath {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for FilePath {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let is_bad = |part: &str| matches!(part, "" | "." | "..");
        if text.len() > 4096 || text.contains('\0') || text.split('/').any(is_bad) {
            return Err("must be a relative path of at most 4096 bytes, without `.` and `..`");
        }
        Ok(Self(text.to_string()))
    }
}

/// A new result of a check.
#[derive(Debug, Clone)]
pub struct NewStatus {
    pub context: StatusContext,
    pub state: StatusState,
    pub description: String,
    pub target_url: Option<String>,
}

/// The allowed git access of an [`Upstream`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GitAccess {
    Fetch,
    /// Fetch, and push only to this branch.
    Push(BranchName),
    /// Fetch, and push only to these branches.
    PushAny(Vec<BranchName>),
}

/// The forge's URL and credential for git. For the git gate: the header must never be inside a sandbox.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// Without user and password.
    pub url: String,
    /// The value of the `Authorization` header.
    pub authorization: Secret,
    /// How long the header is valid, if known; ask again before.
    pub expires_in: Option<Duration>,
    /// Whether the forge itself allows only the branch of [`GitAccess::Push`]; if not, the gate has to check
    /// it.
    pub enforces_branch: bool,
    /// Whether its host is one that the operator allows at a private address.
    pub on_site: bool,
}

#[cfg(test)]
mod tests {
    use super::FilePath;

    #[test]
    fn paths_stay_in_the_repository() {
        for good in ["a", "src/lib.rs", "with space/ü", "-rf", ".github/x", "a..b", ":(top)a"] {
            assert_eq!(good.parse::<FilePath>().unwrap().as_str(), good);
        }
        for bad in ["", "/etc/passwd", "../x", "a/../x", "a//b", "a/", "./a", "a\0b", &"x".repeat(4097)] {
            assert!(bad.parse::<FilePath>().is_err(), "{bad}");
        }
    }
}

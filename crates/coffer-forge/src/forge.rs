//! The seam: what a forge can do with one repository, whichever forge it is.

use std::time::Duration;

use async_trait::async_trait;
pub use coffer_core::forge::records::{
    Branch, Comment, Diff, DiffFile, InlineComment, Issue, MissingPermission, Permissions, Protection, Pull,
    RepositoryInfo, Review, Status, Statuses,
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
    /// What there is to know of the repository.
    async fn repository(&self) -> Answer<RepositoryInfo>;
    async fn branches(&self, part: Part) -> Answer<Listed<Branch>>;
    async fn branch(&self, name: &BranchName) -> Answer<Branch>;
    /// What protects a branch, if anything does.
    async fn protection(&self, name: &BranchName) -> Answer<Option<Protection>>;

    /// Opens a pull request; [`ForgeError::PullExists`] names the one that is open for these branches.
    async fn create_pull(&self, new: NewPull) -> Answer<Pull>;
    async fn pull(&self, number: i64) -> Answer<Pull>;
    async fn update_pull(&self, number: i64, change: PullChange) -> Answer<Pull>;
    async fn pulls(&self, filter: PullFilter, part: Part) -> Answer<Listed<Pull>>;
    /// The open pull request of a head branch, by which a repeated run finds what it has made.
    async fn pull_of_head(&self, head: &BranchName, base: Option<&BranchName>) -> Answer<Option<Pull>>;
    async fn diff(&self, number: i64) -> Answer<Diff>;
    async fn merge(&self, number: i64, order: MergeOrder) -> Answer<Pull>;

    async fn create_issue(&self, title: &str, body: &str) -> Answer<Issue>;
    async fn issue(&self, number: i64) -> Answer<Issue>;
    async fn update_issue(&self, number: i64, change: IssueChange) -> Answer<Issue>;
    async fn issues(&self, state: Option<IssueState>, part: Part) -> Answer<Listed<Issue>>;

    /// Comments on a pull request or an issue as a whole.
    async fn comment(&self, number: i64, body: &str) -> Answer<Comment>;
    async fn comments(&self, number: i64, part: Part) -> Answer<Listed<Comment>>;
    /// A verdict on a pull request, with comments on lines.
    async fn review(&self, number: i64, new: NewReview) -> Answer<Review>;
    async fn reviews(&self, number: i64, part: Part) -> Answer<Listed<Review>>;
    async fn inline_comments(&self, number: i64, part: Part) -> Answer<Listed<InlineComment>>;

    async fn set_status(&self, commit: &CommitId, new: NewStatus) -> Answer<Status>;
    /// What checks and statuses say of a commit, together.
    async fn statuses(&self, commit: &CommitId) -> Answer<Statuses>;

    /// Whether the credential suffices for a task's whole way, and what is missing.
    async fn permissions(&self) -> Answer<Permissions>;
    /// Where git talks to, and by what header it is let in; never for a sandbox's eyes.
    async fn upstream(&self, access: GitAccess, lifetime: Duration) -> Answer<Upstream>;
}

/// Which part of a list: `after` is the `next` of the part before.
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

/// A pull request to be.
#[derive(Debug, Clone)]
pub struct NewPull {
    pub title: String,
    pub body: String,
    pub head: BranchName,
    /// The default branch, unless another is named.
    pub base: Option<BranchName>,
    pub draft: bool,
}

/// How a pull request is to be merged.
#[derive(Debug, Clone)]
pub struct MergeOrder {
    pub method: MergeMethod,
    /// Refuses where the head has moved on from this.
    pub expected_head: Option<CommitId>,
    /// The title of the commit, for `merge` and `squash`.
    pub title: Option<String>,
    pub message: Option<String>,
}

/// What of an issue is to change.
#[derive(Debug, Clone, Default)]
pub struct IssueChange {
    pub title: Option<String>,
    pub body: Option<String>,
    pub state: Option<IssueState>,
}

/// A verdict to be.
#[derive(Debug, Clone)]
pub struct NewReview {
    pub verdict: Verdict,
    pub body: String,
    /// What was looked at; the head unless said otherwise.
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

/// What a check says now.
#[derive(Debug, Clone)]
pub struct NewStatus {
    pub context: StatusContext,
    pub state: StatusState,
    pub description: String,
    pub target_url: Option<String>,
}

/// What git may do by an [`Upstream`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GitAccess {
    Fetch,
    /// Fetch, and push to this branch alone.
    Push(BranchName),
    /// Fetch, and push to these branches alone.
    PushAny(Vec<BranchName>),
}

/// Where git talks to. For the gate that stands between sandboxes and forges: the header must never be inside.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// Without a name or password in it.
    pub url: String,
    /// The value of the `Authorization` header.
    pub authorization: Secret,
    /// For how long the header is good, where that is known; ask again before.
    pub expires_in: Option<Duration>,
    /// Whether the far side itself lets nothing through but the branch of [`GitAccess::Push`]; where not, the
    /// gate has to.
    pub enforces_branch: bool,
    /// Whether it is at a host that the operator vouches for as the site's own.
    pub on_site: bool,
}

//! The parameters of git operations.

use coffer_core::forge::BranchName;

use super::Submodules;

/// The author of commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    pub name: String,
    pub email: String,
}

/// A repository to clone into a sandbox.
#[derive(Debug, Clone)]
pub struct CloneOrder {
    pub repository: String,
    pub path: Option<String>,
    pub branch: Option<BranchName>,
    pub depth: Option<u32>,
    pub submodules: Submodules,
    pub user: Option<String>,
    /// The author of commits inside, if the project has none.
    pub signature: Option<Signature>,
}

#[derive(Debug, Clone)]
pub struct BranchOrder {
    pub repository: Option<String>,
    pub name: BranchName,
    pub base: Option<BranchName>,
}

#[derive(Debug, Clone)]
pub struct DiffOrder {
    pub repository: Option<String>,
    /// The branch of the forge to compare with; the last commit by default.
    pub base: Option<BranchName>,
}

#[derive(Debug, Clone)]
pub struct CommitOrder {
    pub repository: Option<String>,
    pub message: CommitMessage,
    /// The files to commit; all changes if empty.
    pub paths: Vec<String>,
    /// The author, if the project has none.
    pub signature: Option<Signature>,
}

/// The message of a commit.
#[derive(Debug, Clone)]
pub enum CommitMessage {
    /// This text.
    Whole(String),
    /// Composed from a title and footers by the project's rules.
    Composed { title: String, footers: Vec<(String, String)> },
}

#[derive(Debug, Clone)]
pub struct PushOrder {
    pub repository: Option<String>,
    /// The branch to push; the checked-out one by default.
    pub branch: Option<BranchName>,
    /// Replaces the forge's branch if it is still at the commit that the sandbox last fetched.
    pub force: bool,
}

#[derive(Debug, Clone)]
pub struct PullOrder {
    pub repository: Option<String>,
    pub title: String,
    pub body: String,
    pub head: Option<BranchName>,
    pub base: Option<BranchName>,
    pub draft: bool,
}

//! What is asked for.

use coffer_core::forge::BranchName;

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

#[derive(Debug)]
pub struct BranchOrder {
    pub repository: Option<String>,
    pub name: BranchName,
    pub base: Option<BranchName>,
}

#[derive(Debug)]
pub struct DiffOrder {
    pub repository: Option<String>,
    /// The branch of the forge to compare with; otherwise the last commit.
    pub base: Option<BranchName>,
}

#[derive(Debug)]
pub struct CommitOrder {
    pub repository: Option<String>,
    pub message: String,
    /// What goes in; everything that was changed, where it is empty.
    pub paths: Vec<String>,
}

#[derive(Debug)]
pub struct PushOrder {
    pub repository: Option<String>,
    /// The one that is checked out, unless said otherwise.
    pub branch: Option<BranchName>,
    /// Replaces what the forge has, where that is what the sandbox last saw there.
    pub force: bool,
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

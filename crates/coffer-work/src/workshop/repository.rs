//! The repository of an attempt: builds git operations from a run's data, and converts their results for the
//! run.

use coffer_core::StepCode;
use coffer_core::forge::{BranchName, CommitId};
use coffer_flow::StepError;
use coffer_flow::task::Pull;

use super::{PullText, Station, Workbench};
use crate::git::{BranchOrder, CloneOrder, CommitMessage, CommitOrder, PullOrder, PushOrder, Submodules};
use coffer_core::git::Pushed;

/// The name of a repository without the optional prefix `local/`.
pub(super) fn plain(repository: &str) -> String {
    repository.strip_prefix("local/").unwrap_or(repository).to_string()
}

pub(super) fn branch_name(text: &str, code: StepCode) -> Result<BranchName, StepError> {
    text.parse().map_err(|why| {
        StepError::fatal(code, format!("`{}` is not a valid branch: {why}", text.escape_debug()))
    })
}

fn base_name(base: Option<&str>) -> Result<Option<BranchName>, StepError> {
    base.map(|base| branch_name(base, StepCode::UnknownBase)).transpose()
}

pub(super) fn commit_id(text: &str) -> Result<CommitId, StepError> {
    text.parse().map_err(|why| {
        StepError::fatal(StepCode::Commit, format!("the stored base commit is invalid: {why}"))
    })
}

/// Checks out a branch: an existing one, here or on the forge, or a new one from `base`.
pub(super) fn branch_order(
    repository: &str,
    name: &str,
    base: Option<&str>,
) -> Result<BranchOrder, StepError> {
    let (name, base) = (branch_name(name, StepCode::Branch)?, base_name(base)?);
    Ok(BranchOrder { repository: Some(plain(repository)), name, base })
}

pub(super) fn push_order(repository: &str, branch: &str) -> Result<PushOrder, StepError> {
    let branch = Some(branch_name(branch, StepCode::Branch)?);
    Ok(PushOrder { repository: Some(plain(repository)), branch, force: false })
}

/// Fails if the forge has another commit than the run created: the run's report would be wrong.
pub(super) fn expect(pushed: &Pushed, commit: &str) -> Result<(), StepError> {
    if pushed.commit == commit {
        return Ok(());
    }
    let message = format!(
        "branch `{}` moved from {commit} to {}: a process in the sandbox still changes it",
        pushed.branch, pushed.commit
    );
    Err(StepError::fatal(StepCode::BranchMoved, message))
}

/// A pull request, as a run stores it.
pub(super) fn kept_pull(repository: &str, pull: coffer_forge::Pull) -> Pull {
    let path = || format!("/api/v1/repositories/{}/pulls/{}", plain(repository), pull.number);
    let url = pull.web_url.unwrap_or_else(path);
    Pull { url, number: Some(pull.number) }
}

impl Workbench {
    /// Clones a repository into the sandbox, at its base branch.
    pub(super) fn clone_order(&self, repository: &str, base: Option<&str>) -> Result<CloneOrder, StepError> {
        Ok(CloneOrder {
            repository: plain(repository),
            path: None,
            branch: base_name(base)?,
            depth: None,
            // Missing submodules are listed in the operation's event, and do not fail the step.
            submodules: Submodules::Reachable,
            user: None,
            signature: Some(self.signature.clone()),
        })
    }

    /// Commits all changes. Texts of people are redacted.
    pub(super) fn commit_order(
        &self,
        at: &Station,
        repository: &str,
        title: &str,
        footers: [(&str, String); 2],
    ) -> CommitOrder {
        let patterns = self.patterns_at(at);
        let footer = |(token, value): (&str, String)| (token.to_string(), patterns.redact(&value));
        CommitOrder {
            repository: Some(plain(repository)),
            message: CommitMessage::Composed {
                title: patterns.redact(title),
                footers: footers.map(footer).to_vec(),
            },
            paths: Vec::new(),
            signature: Some(self.signature.clone()),
        }
    }

    /// Opens a pull request for a branch. Texts of people are redacted.
    pub(super) fn pull_order(
        &self,
        at: &Station,
        repository: &str,
        text: &PullText,
        head: &str,
        base: Option<&str>,
        draft: bool,
    ) -> Result<PullOrder, StepError> {
        let patterns = self.patterns_at(at);
        Ok(PullOrder {
            repository: Some(plain(repository)),
            title: patterns.redact(&text.title),
            body: patterns.redact(&text.body),
            head: Some(branch_name(head, StepCode::Branch)?),
            base: base_name(base)?,
            draft,
        })
    }

    /// The default base branch.
    pub(super) async fn default_branch(&self, at: &Station, repository: &str) -> Result<String, StepError> {
        let found = self.store.repository(&at.scope, &plain(repository)).await?;
        let gone = || StepError::fatal(StepCode::UnknownRepository, "the repository was removed");
        Ok(found.ok_or_else(gone)?.default_branch.to_string())
    }
}

//! Helpers for work on a task: the base branch, the author of commits, and the size of the change.

use coffer_core::forge::{BranchName, CommitId};
use coffer_forge::{ForgeError, Pull, PullChange};
use coffer_store::GitRemote;
use serde::{Deserialize, Serialize};

use super::GitError;
use super::{CloneOrder, CommitOrder, Git, PullOrder, Run, Session};
use coffer_core::{Code, Refusal};

/// The size of a difference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffStat {
    pub files: u64,
    /// Lines; binary files have none.
    pub added: u64,
    pub removed: u64,
}

impl DiffStat {
    /// Parses the output of `git diff --numstat`; malformed lines are skipped.
    pub(super) fn read(output: &[u8]) -> Self {
        let mut stat = Self::default();
        for line in String::from_utf8_lossy(output).lines() {
            let mut words = line.splitn(3, '\t');
            let (Some(added), Some(removed), Some(_)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            stat.files += 1;
            stat.added = stat.added.saturating_add(added.parse().unwrap_or(0));
            stat.removed = stat.removed.saturating_add(removed.parse().unwrap_or(0));
        }
        stat
    }
}

impl Git {
    /// Clones a repository to work from the order's branch, or the repository's own. Returns that branch, and the commit
    /// that it is at on the forge.
    pub async fn clone_to_work(
        &self,
        session: &Session,
        order: CloneOrder,
    ) -> Result<(BranchName, CommitId), GitError> {
        let (branch, commit) = self.beginning(session, &order.repository, order.branch.as_ref()).await?;
        // Use the submodules of the base branch.
        let order = CloneOrder { branch: Some(branch.clone()), ..order };
        self.clone_repository(session, order).await?;
        Ok((branch, commit))
    }

    /// Commits all changes and moves the branch to that commit, with commits that were made inside. Returns
    /// the branch's commit, or `None` if its base on the forge already has everything.
    pub async fn commit_work(
        &self,
        session: &Session,
        order: CommitOrder,
        branch: &BranchName,
        base: &BranchName,
    ) -> Result<Option<CommitId>, GitError> {
        let repository = order.repository.clone();
        let repository = repository.as_deref();
        if !self.status(session, repository).await?.changes.is_empty() {
            match self.commit(session, order).await {
                Ok(_) | Err(GitError::NothingToCommit) => {}
                Err(error) => return Err(error),
            }
        }
        let commit = self.bring_onto(session, repository, branch).await?;
        let remote = self.place(session, repository).await?.remote;
        let base = format!("refs/remotes/origin/{base}");
        let adds_nothing = self.holds(session, &remote, &base, &branch.full()).await?;
        Ok((!adds_nothing).then_some(commit))
    }

    /// The pull request of a branch, with the order's description: the one that is open, or a new one.
    pub async fn propose(&self, session: &Session, order: PullOrder) -> Result<Pull, GitError> {
        let (repository, body) = (order.repository.clone(), order.body.clone());
        let found = self.pull(session, order).await?;
        if !found.created && found.pull.body != body {
            let place = self.place(session, repository.as_deref()).await?;
            let change = PullChange { body: Some(body), ..PullChange::default() };
            place.forge.update_pull(found.pull.number, change).await?;
        }
        Ok(found.pull)
    }

    /// The base branch, and its commit on the forge.
    async fn beginning(
        &self,
        session: &Session,
        repository: &str,
        base: Option<&BranchName>,
    ) -> Result<(BranchName, CommitId), GitError> {
        let row = self.row(session, repository).await?;
        let forge = self.forges.open(&session.scope, &row, &session.actor).await?;
        let name = base.unwrap_or(&row.default_branch);
        match forge.branch(name).await {
            Ok(found) => Ok((name.clone(), found.commit)),
            Err(ForgeError::NotFound { .. }) => {
                Err(GitError::NoBase { repository: row.name.to_string(), branch: name.to_string() })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The path of a repository inside the sandbox.
    pub async fn path_of(&self, session: &Session, repository: &str) -> Result<String, GitError> {
        Ok(self.place(session, Some(repository)).await?.remote.path)
    }

    /// Moves the branch to the checked-out commit, if that is based on it: the program inside may have
    /// switched to another branch. Returns the commit.
    pub async fn bring_onto(
        &self,
        session: &Session,
        repository: Option<&str>,
        branch: &BranchName,
    ) -> Result<CommitId, GitError> {
        let place = self.place(session, repository).await?;
        let remote = &place.remote;
        let there = self.status_of(session, remote).await?.branch;
        if there.as_deref() != Some(branch.as_str()) {
            let full = branch.full();
            let exists = self.has(session, remote, &full).await?;
            if !exists || self.holds(session, remote, "HEAD", &full).await? {
                self.switch(session, remote, &["switch", "--quiet", "--force-create", branch.as_str()])
                    .await?;
            } else if self.holds(session, remote, &full, "HEAD").await? {
                self.switch(session, remote, &["switch", "--quiet", branch.as_str()]).await?;
            } else {
                let there = there.map_or_else(|| "a commit".to_string(), |other| format!("branch `{other}`"));
                let message =
                    format!("{there} is checked out, which is not based on the task's branch `{branch}`");
                return Err(Refusal::new(Code::GitFailed, message).into());
            }
        }
        self.tip(session, remote, branch).await
    }

    /// Whether `whole` contains all of `part`.
    async fn holds(
        &self,
        session: &Session,
        remote: &GitRemote,
        whole: &str,
        part: &str,
    ) -> Result<bool, GitError> {
        let words = ["merge-base", "--is-ancestor", part, whole];
        Ok(self.git_at(session, remote, &words, Run::default()).await?.succeeded())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_and_nonsense_is_passed_over() {
        let stat = DiffStat::read(b"3\t1\ta.rs\n-\t-\tpicture.png\nrubbish\n2\t\xff\tb\tc\n");
        assert_eq!(stat, DiffStat { files: 3, added: 5, removed: 1 });
    }
}

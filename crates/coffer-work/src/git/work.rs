//! What work on a task needs beside: where it begins, whose name it bears, and what it comes to.

use coffer_core::commit::CommitPolicy;
use coffer_core::forge::{BranchName, CommitId};
use coffer_forge::{ForgeError, PullChange};
use coffer_store::GitRemote;
use serde::{Deserialize, Serialize};

use super::GitError;
use super::{Git, Run, Session};
use coffer_core::{Code, Refusal};

/// Under whose name something is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    pub name: String,
    pub email: String,
}

/// How much differs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffStat {
    pub files: u64,
    /// Lines; those of binary files are none.
    pub added: u64,
    pub removed: u64,
}

impl DiffStat {
    /// What `git diff --numstat` says; what is not as git writes it is passed over.
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
    /// The branch that work begins from, and the commit that it is at on the forge.
    pub async fn beginning(
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

    /// Where a repository is inside.
    pub async fn path_of(&self, session: &Session, repository: &str) -> Result<String, GitError> {
        Ok(self.place(session, Some(repository)).await?.remote.path)
    }

    /// What the project asks of messages.
    pub async fn commit_policy(&self, session: &Session) -> Result<CommitPolicy, GitError> {
        Ok(self.settings(session).await?.commits)
    }

    /// Has whoever commits inside do so under that name, where the project has none.
    pub async fn sign_otherwise(
        &self,
        session: &Session,
        repository: &str,
        signature: &Signature,
    ) -> Result<(), GitError> {
        let (place, settings) = (self.place(session, Some(repository)).await?, self.settings(session).await?);
        let wanted = [
            ("user.name", &settings.name, &signature.name),
            ("user.email", &settings.email, &signature.email),
        ];
        for (key, own, otherwise) in wanted {
            if own.is_none() {
                let words = ["config", "--local", key, otherwise.as_str()];
                self.git_well(session, &place.remote, "be set up", &words, Run::default()).await?;
            }
        }
        Ok(())
    }

    /// Has the branch at what is checked out, where that builds on it: whoever worked inside may have gone to another
    /// branch. Returns its commit.
    pub async fn bring_onto(
        &self,
        session: &Session,
        repository: &str,
        branch: &BranchName,
    ) -> Result<CommitId, GitError> {
        let place = self.place(session, Some(repository)).await?;
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
                    format!("{there} is checked out, which does not build on branch `{branch}` of the task");
                return Err(Refusal::new(Code::GitFailed, message).into());
            }
        }
        self.tip(session, remote, branch).await
    }

    /// Whether all of `part` is in `whole`.
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

    /// Whether a branch has nothing of its own beyond another of the forge's.
    pub async fn adds_nothing(
        &self,
        session: &Session,
        repository: &str,
        branch: &BranchName,
        base: &BranchName,
    ) -> Result<bool, GitError> {
        let place = self.place(session, Some(repository)).await?;
        let base = format!("refs/remotes/origin/{base}");
        self.holds(session, &place.remote, &base, &branch.full()).await
    }

    /// Gives a pull request another description.
    pub async fn redescribe(
        &self,
        session: &Session,
        repository: &str,
        number: i64,
        body: String,
    ) -> Result<(), GitError> {
        let place = self.place(session, Some(repository)).await?;
        let change = PullChange { body: Some(body), ..PullChange::default() };
        place.forge.update_pull(number, change).await?;
        Ok(())
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

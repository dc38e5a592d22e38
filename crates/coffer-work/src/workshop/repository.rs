//! The repository of an attempt: in the sandbox, on a branch, and at last at its forge.

use coffer_core::StepCode;
use coffer_core::forge::{BranchName, CommitId};
use coffer_flow::StepError;
use coffer_flow::task::Pull;

use super::{PullText, Station, Workbench};
use crate::git::{BranchOrder, CloneOrder, CommitOrder, GitError, PullOrder, PushOrder, Submodules};

/// Where work begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    pub branch: String,
    pub commit: String,
}

/// What a commit's message is made from.
#[derive(Debug, Clone)]
pub struct CommitText {
    pub title: String,
    pub footers: Vec<(String, String)>,
}

/// The name of a repository without where it is kept, which is in front where people want to be clear.
pub(super) fn plain(repository: &str) -> String {
    repository.strip_prefix("local/").unwrap_or(repository).to_string()
}

fn branch_name(text: &str, code: StepCode) -> Result<BranchName, StepError> {
    text.parse()
        .map_err(|why| StepError::fatal(code, format!("`{}` is no branch: {why}", text.escape_debug())))
}

pub(super) fn commit_id(text: &str) -> Result<CommitId, StepError> {
    text.parse()
        .map_err(|why| StepError::fatal(StepCode::Commit, format!("it is not known where work began: {why}")))
}

impl Workbench {
    /// Has a repository in the sandbox; returns where its base branch is at the forge.
    pub async fn clone_repository(
        &self,
        at: &Station,
        repository: &str,
        base: Option<&str>,
    ) -> Result<Base, StepError> {
        let base = base.map(|base| branch_name(base, StepCode::UnknownBase)).transpose()?;
        let name = plain(repository);
        let (signature, wanted) = (self.signature.clone(), name.clone());
        let found = self.with_git(at, move |git, session| {
            let (repository, base) = (wanted.clone(), base.clone());
            async move { git.beginning(&session, &repository, base.as_ref()).await }
        });
        let (branch, commit) = found.await?;
        let begin = branch.clone();
        self.with_git(at, move |git, session| {
            let order = CloneOrder {
                repository: name.clone(),
                path: None,
                // Its submodules are those that work begins with.
                branch: Some(begin.clone()),
                depth: None,
                // What cannot be had is told in the operation's event, and is no reason to give up.
                submodules: Submodules::Reachable,
                user: None,
            };
            let (repository, signature) = (name.clone(), signature.clone());
            async move {
                git.clone_repository(&session, order).await?;
                git.sign_otherwise(&session, &repository, &signature).await
            }
        })
        .await?;
        Ok(Base { branch: branch.to_string(), commit: commit.to_string() })
    }

    /// What work begins from where nothing else is said.
    pub async fn default_branch(&self, at: &Station, repository: &str) -> Result<String, StepError> {
        let found = self.store.repository(&at.scope, &plain(repository)).await?;
        let gone = || StepError::fatal(StepCode::UnknownRepository, "the repository was removed");
        Ok(found.ok_or_else(gone)?.default_branch.to_string())
    }

    /// Has a branch checked out: taken up where it exists, here or at the forge, and from `base` otherwise.
    pub async fn branch(
        &self,
        at: &Station,
        repository: &str,
        name: &str,
        base: Option<&str>,
    ) -> Result<String, StepError> {
        let (repository, name) = (plain(repository), branch_name(name, StepCode::Branch)?);
        let base = base.map(|base| branch_name(base, StepCode::UnknownBase)).transpose()?;
        let branched = self.with_git(at, move |git, session| {
            let order =
                BranchOrder { repository: Some(repository.clone()), name: name.clone(), base: base.clone() };
            async move { git.branch(&session, order).await }
        });
        Ok(branched.await?.branch)
    }

    /// Commits what was changed, on the branch; what the agent committed itself comes along. Returns the branch's
    /// commit, or none where it has nothing that its base has not.
    pub async fn commit(
        &self,
        at: &Station,
        repository: &str,
        branch: &str,
        base: &Base,
        text: &CommitText,
    ) -> Result<Option<String>, StepError> {
        let (repository, branch) = (plain(repository), branch_name(branch, StepCode::Branch)?);
        let base_branch = branch_name(&base.branch, StepCode::UnknownBase)?;
        let patterns = self.patterns_at(at);
        let footer = |(token, value): &(String, String)| (token.clone(), patterns.redact(value));
        let title = patterns.redact(&text.title);
        let text = CommitText { title, footers: text.footers.iter().map(footer).collect() };
        let signature = self.signature.clone();
        let committed = self.with_git(at, move |git, session| {
            let (repository, branch, base_branch) = (repository.clone(), branch.clone(), base_branch.clone());
            let (text, signature) = (text.clone(), signature.clone());
            async move {
                if !git.status(&session, Some(&repository)).await?.changes.is_empty() {
                    let policy = git.commit_policy(&session).await?;
                    let message = policy.compose(&text.title, &text.footers);
                    let order =
                        CommitOrder { repository: Some(repository.clone()), message, paths: Vec::new() };
                    match git.commit_as(&session, order, Some(&signature)).await {
                        Ok(_) | Err(GitError::NothingToCommit) => {}
                        Err(error) => return Err(error),
                    }
                }
                let commit = git.bring_onto(&session, &repository, &branch).await?;
                let nothing = git.adds_nothing(&session, &repository, &branch, &base_branch).await?;
                Ok((!nothing).then(|| commit.to_string()))
            }
        });
        Ok(committed.await?.filter(|commit| *commit != base.commit))
    }

    /// Has what is checked out be that branch, which may be new.
    pub async fn bring_onto(&self, at: &Station, repository: &str, branch: &str) -> Result<(), StepError> {
        let (repository, name) = (plain(repository), branch_name(branch, StepCode::Branch)?);
        let brought = self.with_git(at, move |git, session| {
            let (repository, name) = (repository.clone(), name.clone());
            async move { git.bring_onto(&session, &repository, &name).await }
        });
        brought.await.map(drop)
    }

    /// Has the branch at that commit on the forge.
    pub async fn push(
        &self,
        at: &Station,
        repository: &str,
        branch: &str,
        commit: &str,
    ) -> Result<(), StepError> {
        let (repository, name) = (plain(repository), branch_name(branch, StepCode::Branch)?);
        let pushed = self.with_git(at, move |git, session| {
            let order =
                PushOrder { repository: Some(repository.clone()), branch: Some(name.clone()), force: false };
            async move { git.push(&session, order).await }
        });
        let pushed = pushed.await?;
        if pushed.commit == commit {
            return Ok(());
        }
        let message = format!(
            "branch `{branch}` was at {commit} and is at {}: something still changes it",
            pushed.commit
        );
        Err(StepError::fatal(StepCode::BranchMoved, message))
    }

    /// The pull request of a branch: the one that is open, with this description, or a new one.
    pub async fn ensure_pull(
        &self,
        at: &Station,
        repository: &str,
        text: &PullText,
        head: &str,
        base: Option<&str>,
    ) -> Result<Pull, StepError> {
        let (repository, head) = (plain(repository), branch_name(head, StepCode::Branch)?);
        let base = base.map(|base| branch_name(base, StepCode::UnknownBase)).transpose()?;
        let patterns = self.patterns_at(at);
        let text = PullText { title: patterns.redact(&text.title), body: patterns.redact(&text.body) };
        let name = repository.clone();
        let found = self.with_git(at, move |git, session| {
            let (repository, text) = (repository.clone(), text.clone());
            let order = PullOrder {
                repository: Some(repository.clone()),
                title: text.title,
                body: text.body.clone(),
                head: Some(head.clone()),
                base: base.clone(),
                draft: false,
            };
            async move {
                let found = git.pull(&session, order).await?;
                if !found.created && found.pull.body != text.body {
                    git.redescribe(&session, &repository, found.pull.number, text.body).await?;
                }
                Ok(found.pull)
            }
        });
        let pull = found.await?;
        let url =
            pull.web_url.unwrap_or_else(|| format!("/api/v1/repositories/{name}/pulls/{}", pull.number));
        Ok(Pull { url, number: Some(pull.number) })
    }
}

//! The operations: clone, branch, status, diff, commit, push, pull request.

use std::time::Duration;

use coffer_core::forge::{BranchName, CommitId, ForgeKind};
use coffer_core::git::{Branched, Cloned, Committed, PullRequest, Pushed, WorkTree, WorkTreeDiff};
use coffer_core::network::{GitObject, PushWindow};
use coffer_forge::{ForgeError, NewPull};
use coffer_store::{GitRemote, GitSettings};

use super::GitError;
use super::orders::{BranchOrder, CloneOrder, CommitMessage, CommitOrder, DiffOrder, PullOrder, PushOrder};
use super::routes::Opening;
use super::status::read_status;
use super::{Branches, Git, Large, Place, Run, Session, Signature, Submodules, explain, gate_url};
use coffer_core::clock::now_ms;
use coffer_core::{Code, Refusal};

const CLONE_WITHIN: Duration = Duration::from_secs(900);
const FETCH_WITHIN: Duration = Duration::from_secs(600);
/// A push also uploads the objects of Git LFS.
const PUSH_WITHIN: Duration = Duration::from_secs(900);
const MOST_PUSHES: u32 = 3;
const BETWEEN_PUSHES: Duration = Duration::from_secs(1);
/// How much longer than its pushes a window may stay open, if nothing closes it.
const WINDOW_SLACK: Duration = Duration::from_secs(120);
const MOST_DIFF: usize = 1024 * 1024;

impl Git {
    /// Clones a repository into the sandbox, or updates an existing clone.
    pub async fn clone_repository(&self, session: &Session, order: CloneOrder) -> Result<Cloned, GitError> {
        let row = self.row(session, &order.repository).await?;
        let slug = row.name.to_string();
        let remote = GitRemote {
            sandbox: session.record.id,
            project: row.project,
            slug: slug.clone(),
            repository: row.id,
            path: order.path.clone().unwrap_or_else(|| slug.clone()),
            user: order.user.clone(),
        };
        self.recorded(session, &slug, "clone", async {
            let put = self.store.put_git_remote(&session.scope, remote.clone()).await;
            put?;
            {
                // Wait for a push with an open window, which this would close.
                let _turn = session.record.git.turn.lock().await;
                self.open_gate(session, &slug, None).await?;
            }
            self.rewrite(session, &remote, row.kind, row.remote.as_deref()).await?;
            let url = gate_url(&slug);
            let origin =
                self.git_at(session, &remote, &["config", "--get", "remote.origin.url"], Run::default());
            let origin = origin.await?;
            let exists = origin.succeeded() && String::from_utf8_lossy(&origin.stdout).trim() == url;
            if exists {
                self.fetch(session, &remote).await?;
                self.fast_forward(session, &remote).await?;
            } else {
                self.clone_anew(session, &remote, &order, &url).await?;
            }
            let mut notes = Vec::new();
            // After the first clone, the program inside controls its submodules.
            match order.submodules {
                Submodules::Leave => {}
                Submodules::All if exists => {}
                which => notes = self.bring_submodules(session, &remote, &row, which).await?,
            }
            notes.extend(self.bring_large(session, &remote).await?);
            self.sign(session, &remote, order.signature.as_ref()).await?;
            let status = self.status_of(session, &remote).await?;
            Ok(Cloned {
                repository: slug.clone(),
                path: remote.path.clone(),
                updated: exists && status.behind.unwrap_or(0) == 0,
                behind: status.behind,
                branch: status.branch,
                commit: status.commit,
                notes,
            })
        })
        .await
    }

    /// Redirects the repository's other addresses to the gate, including those of submodules.
    async fn rewrite(
        &self,
        session: &Session,
        remote: &GitRemote,
        kind: ForgeKind,
        name: Option<&str>,
    ) -> Result<(), GitError> {
        let (ForgeKind::GitHub | ForgeKind::Git, Some(name)) = (kind, name) else { return Ok(()) };
        let name = name.strip_suffix(".git").unwrap_or(name);
        let row = self.row(session, &remote.repository.to_string()).await?;
        let forge = self.forges.open(&session.scope, &row, &session.actor).await?;
        let upstream = forge.upstream(coffer_forge::GitAccess::Fetch, PUSH_WITHIN).await;
        let url = upstream?.url;
        let host = url.split('/').nth(2).unwrap_or_default().to_string();
        let key = format!("url.{}.insteadOf", gate_url(&remote.slug));
        for known in [url, format!("git@{host}:{name}.git"), format!("ssh://git@{host}/{name}.git")] {
            let words = ["config", "--global", "--fixed-value", "--replace-all", &key, &known, &known];
            let set = self.git(session, remote.user.as_deref(), &words, Run::default()).await?;
            if !set.succeeded() {
                return Err(explain::failure("be set up", &set));
            }
        }
        Ok(())
    }

    /// Sets under which name git commits inside: the project's, or that of `otherwise`.
    async fn sign(
        &self,
        session: &Session,
        remote: &GitRemote,
        otherwise: Option<&Signature>,
    ) -> Result<(), GitError> {
        let settings = self.settings(session).await?;
        let name = settings.name.as_ref().or(otherwise.map(|signature| &signature.name));
        let email = settings.email.as_ref().or(otherwise.map(|signature| &signature.email));
        for (key, value) in [("user.name", name), ("user.email", email)] {
            let Some(value) = value else { continue };
            let words = ["config", "--local", key, value];
            self.git_well(session, remote, "be set up", &words, Run::default()).await?;
        }
        Ok(())
    }

    async fn fetch(&self, session: &Session, remote: &GitRemote) -> Result<(), GitError> {
        let run = Run::within(FETCH_WITHIN);
        self.git_well(session, remote, "fetch", &["fetch", "--quiet", "--prune", "origin"], run)
            .await
            .map(drop)
    }

    /// Fast-forwards a branch to its upstream if that loses nothing: no changes, no own commits. If git still
    /// refuses, for example because of an untracked file, the branch stays as it is.
    async fn fast_forward(&self, session: &Session, remote: &GitRemote) -> Result<(), GitError> {
        let status = self.status_of(session, remote).await?;
        let is_clean = !status.truncated && status.changes.iter().all(|change| change.unstaged == '?');
        if !is_clean || status.ahead != Some(0) || status.behind.unwrap_or(0) == 0 {
            return Ok(());
        }
        let words = ["merge", "--quiet", "--ff-only", "@{upstream}"];
        let run = Run { large: self.large_of(session, remote).await?, ..Run::default() };
        let merged = self.git_at(session, remote, &words, run).await?;
        if !merged.succeeded() {
            let why = explain::failure("fast-forward", &merged);
            tracing::debug!(sandbox.id = %session.record.id, "could not fast-forward a clone: {}", why);
        }
        Ok(())
    }

    /// Whether files of Git LFS are fetched in a separate step.
    async fn large_of(&self, session: &Session, remote: &GitRemote) -> Result<Large, GitError> {
        let set_up = ["config", "--local", "--get", "filter.lfs.process"];
        let set_up = self.git_at(session, remote, &set_up, Run::default()).await?.succeeded();
        Ok(if set_up { Large::Leave } else { Large::Unknown })
    }

    async fn clone_anew(
        &self,
        session: &Session,
        remote: &GitRemote,
        order: &CloneOrder,
        url: &str,
    ) -> Result<(), GitError> {
        let depth = order.depth.map(|depth| format!("--depth={depth}"));
        let branch = order.branch.as_ref().map(|branch| format!("--branch={branch}"));
        let mut words = vec!["clone", "--quiet", "--no-single-branch"];
        words.extend(depth.as_deref());
        words.extend(branch.as_deref());
        words.extend(["--", url, remote.path.as_str()]);
        let run = Run { large: Large::Unknown, ..Run::within(CLONE_WITHIN) };
        let cloned = self.git(session, remote.user.as_deref(), &words, run).await?;
        if cloned.succeeded() { Ok(()) } else { Err(explain::failure("clone", &cloned)) }
    }

    /// Checks out a branch: an existing one, here or on the forge, or a new one.
    pub async fn branch(&self, session: &Session, order: BranchOrder) -> Result<Branched, GitError> {
        let place = self.place(session, order.repository.as_deref()).await?;
        let Place { remote, row, .. } = &place;
        self.recorded(session, &remote.slug, "branch", async {
            self.ensure_gate(session, &remote.slug).await?;
            self.fetch(session, remote).await?;
            let name = order.name.as_str();
            let (mut base, mut created) = (None, false);
            let far = format!("refs/remotes/origin/{name}");
            if self.has(session, remote, &order.name.full()).await? {
                self.switch(session, remote, &["switch", "--quiet", name]).await?;
            } else if self.has(session, remote, &far).await? {
                let words = ["switch", "--quiet", "--track", "--create", name, &far];
                self.switch(session, remote, &words).await?;
            } else {
                let from = order.base.as_ref().unwrap_or(&row.default_branch);
                let near = format!("refs/remotes/origin/{from}");
                if !self.has(session, remote, &near).await? {
                    let (repository, branch) = (row.name.to_string(), from.to_string());
                    return Err(GitError::NoBase { repository, branch });
                }
                let words = ["switch", "--quiet", "--no-track", "--create", name, &near];
                self.switch(session, remote, &words).await?;
                (base, created) = (Some(from.to_string()), true);
            }
            let commit = self.status_of(session, remote).await?.commit;
            let repository = remote.slug.clone();
            let notes = self.bring_large(session, remote).await?.into_iter().collect();
            Ok(Branched { repository, branch: name.to_string(), base, created, commit, notes })
        })
        .await
    }

    pub(super) async fn has(
        &self,
        session: &Session,
        remote: &GitRemote,
        reference: &str,
    ) -> Result<bool, GitError> {
        let words = ["show-ref", "--verify", "--quiet", "--", reference];
        Ok(self.git_at(session, remote, &words, Run::default()).await?.succeeded())
    }

    pub(super) async fn switch(
        &self,
        session: &Session,
        remote: &GitRemote,
        words: &[&str],
    ) -> Result<(), GitError> {
        let run = Run { large: self.large_of(session, remote).await?, ..Run::default() };
        self.git_well(session, remote, "switch branches", words, run).await.map(drop)
    }

    /// The state of the work tree.
    pub async fn status(&self, session: &Session, repository: Option<&str>) -> Result<WorkTree, GitError> {
        let place = self.place(session, repository).await?;
        self.status_of(session, &place.remote).await
    }

    pub(super) async fn status_of(
        &self,
        session: &Session,
        remote: &GitRemote,
    ) -> Result<WorkTree, GitError> {
        let words = ["status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all"];
        let run = Run { most: 2 * MOST_DIFF, ..Run::default() };
        let returned = self.git_well(session, remote, "read the status", &words, run).await?;
        let whole = if returned.is_cut {
            // Up to the last complete entry.
            let end = returned.stdout.iter().rposition(|&byte| byte == 0).unwrap_or(0);
            &returned.stdout[..end]
        } else {
            &returned.stdout[..]
        };
        let mut status = read_status(whole)
            .map_err(|_| Refusal::new(Code::GitFailed, "could not parse the output of git status"))?;
        status.truncated |= returned.is_cut;
        Ok(status)
    }

    /// The difference from the last commit, or from the merge base with a branch.
    pub async fn diff(&self, session: &Session, order: DiffOrder) -> Result<WorkTreeDiff, GitError> {
        let place = self.place(session, order.repository.as_deref()).await?;
        let against = match &order.base {
            Some(base) => {
                let near = format!("refs/remotes/origin/{base}");
                if !self.has(session, &place.remote, &near).await? {
                    return Err(Refusal::nothing("branch", base).into());
                }
                format!("{near}...HEAD")
            }
            None => "HEAD".to_string(),
        };
        let words = ["diff", "--no-color", "--no-ext-diff", "--no-textconv", &against, "--"];
        let run = Run { most: MOST_DIFF, ..Run::default() };
        let returned = self.git_well(session, &place.remote, "compare", &words, run).await?;
        let patch = String::from_utf8_lossy(&returned.stdout).into_owned();
        Ok(WorkTreeDiff { repository: place.remote.slug, patch, truncated: returned.is_cut })
    }

    pub(super) async fn settings(&self, session: &Session) -> Result<GitSettings, GitError> {
        let found = self.store.project_settings(&session.scope, session.record.project).await;
        let found = found?;
        Ok(found.map(|found| found.settings.git).unwrap_or_default())
    }

    /// Commits changes, under the project's name and by its rules for messages.
    pub async fn commit(&self, session: &Session, order: CommitOrder) -> Result<Committed, GitError> {
        let place = self.place(session, order.repository.as_deref()).await?;
        let remote = &place.remote;
        self.recorded(session, &remote.slug, "commit", async {
            let settings = self.settings(session).await?;
            let message = match &order.message {
                CommitMessage::Whole(text) => text.clone(),
                CommitMessage::Composed { title, footers } => settings.commits.compose(title, footers),
            };
            let judged = settings.commits.judge(&message);
            let read = judged.map_err(|why| Refusal::new(Code::CommitMessage, why.to_string()))?;
            let otherwise = order.signature.as_ref();
            let name = settings.name.as_ref().or(otherwise.map(|signature| &signature.name));
            let email = settings.email.as_ref().or(otherwise.map(|signature| &signature.email));
            let (Some(name), Some(email)) = (name, email) else {
                let message = "this project has no name and e-mail address for commits";
                return Err(Refusal::new(Code::IdentityMissing, message)
                    .hint("set git.name and git.email with PUT /api/v1/project/settings")
                    .into());
            };
            let all = [".".to_string()];
            let paths = if order.paths.is_empty() { &all[..] } else { &order.paths[..] };
            let mut words = vec!["add", "--all", "--"];
            words.extend(paths.iter().map(String::as_str));
            self.git_well(session, remote, "stage changes", &words, Run::default()).await?;
            let staged =
                self.git_at(session, remote, &["diff", "--cached", "--quiet"], Run::default()).await?;
            if staged.succeeded() {
                return Err(GitError::NothingToCommit);
            }
            let (name, email) = (format!("user.name={name}"), format!("user.email={email}"));
            let words = ["-c", &name, "-c", &email, "commit", "--quiet", "--cleanup=whitespace", "--file=-"];
            let run = Run { stdin: Some(&message), ..Run::default() };
            self.git_well(session, remote, "commit", &words, run).await?;
            let status = self.status_of(session, remote).await?;
            Ok(Committed {
                repository: remote.slug.clone(),
                commit: status.commit,
                branch: status.branch,
                breaking: read.as_ref().is_some_and(|read| read.breaking),
                scope: read.as_ref().and_then(|read| read.scope.clone()),
                kind: read.map(|read| read.kind),
            })
        })
        .await
    }

    /// Pushes one branch: opens the gate for it, pushes, and closes the gate.
    pub async fn push(&self, session: &Session, order: PushOrder) -> Result<Pushed, GitError> {
        let place = self.place(session, order.repository.as_deref()).await?;
        let slug = place.remote.slug.clone();
        self.recorded(session, &slug, "push", async {
            let _turn = session.record.git.turn.lock().await;
            let branch = match order.branch.clone() {
                Some(branch) => branch,
                None => self.checked_out(session, &place.remote).await?,
            };
            self.check_branch(session, &place, &branch).await?;
            let commit = self.tip(session, &place.remote, &branch).await?;
            let protection = match place.forge.protection(&branch).await {
                // A token that may push need not be allowed to read the rules. The forge enforces them.
                Err(ForgeError::PermissionMissing { .. }) => None,
                protection => protection?,
            };
            if protection.is_some_and(|protection| protection.require_pull) {
                let message = format!("branch `{branch}` is protected: only merged pull requests change it");
                return Err(Refusal::new(Code::BranchProtected, message)
                    .hint("push to another branch and open a pull request")
                    .into());
            }
            let previous = on_forge(&place, &branch).await?;
            let none = "0".repeat(commit.as_str().len());
            let expects = previous.as_ref().map_or(none.as_str(), CommitId::as_str);
            let open_for = (PUSH_WITHIN + BETWEEN_PUSHES) * MOST_PUSHES + WINDOW_SLACK;
            let bad = |_| GitError::Broken;
            let window = PushWindow {
                reference: branch
                    .full()
                    .parse()
                    .map_err(|_| Refusal::invalid("branch", "is not a name that the git gate can check"))?,
                expects: Some(expects.parse::<GitObject>().map_err(bad)?),
                until_ms: now_ms() + i64::try_from(open_for.as_millis()).unwrap_or(i64::MAX),
            };
            self.open_gate(session, &slug, Some(Opening { slug: &slug, branch: &branch, window })).await?;
            let aim =
                Aim { branch: &branch, commit: &commit, previous: previous.as_ref(), force: order.force };
            let pushed = self.push_through(session, &place, aim).await;
            if let Err(error) = self.open_gate(session, &slug, None).await {
                // The window closes by itself later; log that it is still open.
                tracing::warn!(sandbox.id = %session.record.id, "could not close a push window: {}", error);
            }
            let attempts = pushed?;
            let previous = previous.map(|commit| commit.to_string());
            Ok(Pushed {
                repository: slug.clone(),
                branch: branch.to_string(),
                commit: commit.to_string(),
                previous,
                attempts,
            })
        })
        .await
    }

    /// Whether the caller may push to this branch. A run of the server has no key, and chooses its branch
    /// itself.
    async fn check_branch(
        &self,
        session: &Session,
        place: &Place,
        branch: &BranchName,
    ) -> Result<(), GitError> {
        if session.key.is_none() {
            return Ok(());
        }
        Ok(Branches::of(&self.store, &session.scope, &place.row).await?.check(branch)?)
    }

    /// Pushes, and retries if that may help. After each try it asks the forge for the branch, which decides,
    /// not git's output. Returns the number of tries.
    async fn push_through(&self, session: &Session, place: &Place, aim: Aim<'_>) -> Result<u32, GitError> {
        let Aim { branch, commit, previous, force } = aim;
        let refspec = format!("{0}:{0}", branch.full());
        let lease = format!("--force-with-lease={}", branch.full());
        let mut words = vec!["push", "--porcelain"];
        if force {
            words.push(&lease);
        }
        words.extend(["--", "origin", &refspec]);
        for attempt in 1.. {
            let returned = self.git_at(session, &place.remote, &words, Run::within(PUSH_WITHIN)).await?;
            let found = match on_forge(place, branch).await {
                Err(error) if error.is_transient() => {
                    tokio::time::sleep(BETWEEN_PUSHES * attempt).await;
                    on_forge(place, branch).await
                }
                found => found,
            };
            let found = found?;
            if found.as_ref() == Some(commit) {
                if !returned.succeeded() {
                    self.catch_up(session, &place.remote, branch).await;
                }
                return Ok(attempt);
            }
            // If another client pushed first, a retry would be refused or do harm.
            let is_as_before = found.as_ref() == previous;
            let is_over = attempt == MOST_PUSHES || returned.succeeded() || !explain::is_transient(&returned);
            if is_over || !is_as_before {
                return Err(explain::rejection(branch.as_str(), &returned));
            }
            tokio::time::sleep(BETWEEN_PUSHES * attempt).await;
        }
        Err(GitError::Broken)
    }

    /// The forge accepted a push but git did not learn of it: fetches the branch, for later pushes. If that
    /// fails, they fetch first, so this is not an error.
    async fn catch_up(&self, session: &Session, remote: &GitRemote, branch: &BranchName) {
        let refspec = format!("+{}:refs/remotes/origin/{branch}", branch.full());
        let words = ["fetch", "--quiet", "origin", &refspec];
        if let Err(error) = self.git_well(session, remote, "fetch", &words, Run::within(FETCH_WITHIN)).await {
            tracing::debug!(sandbox.id = %session.record.id, "could not fetch a branch after its push: {}", error);
        }
    }

    async fn checked_out(&self, session: &Session, remote: &GitRemote) -> Result<BranchName, GitError> {
        let branch = self.status_of(session, remote).await?.branch;
        let branch = branch.ok_or_else(|| Refusal::conflict("no branch is checked out; name one"))?;
        let branch =
            branch.parse().map_err(|why| Refusal::invalid("branch", format!("is invalid: {why}")))?;
        Ok(branch)
    }

    /// The commit of a branch of the sandbox.
    pub(super) async fn tip(
        &self,
        session: &Session,
        remote: &GitRemote,
        branch: &BranchName,
    ) -> Result<CommitId, GitError> {
        let words = ["rev-parse", "--verify", "--quiet", "--end-of-options", &branch.full()];
        let returned = self.git_at(session, remote, &words, Run::default()).await?;
        let tip = String::from_utf8_lossy(&returned.stdout).trim().parse().ok();
        tip.filter(|_| returned.succeeded()).ok_or_else(|| {
            Refusal::new(Code::NotFound, format!("the sandbox has no commit on a branch `{branch}`")).into()
        })
    }

    /// The pull request of a branch: the existing one, or a new one.
    pub async fn pull(&self, session: &Session, order: PullOrder) -> Result<PullRequest, GitError> {
        let place = self.place(session, order.repository.as_deref()).await?;
        let slug = place.remote.slug.clone();
        self.recorded(session, &slug, "pr", async {
            let head = match order.head.clone() {
                Some(head) => head,
                None => self.checked_out(session, &place.remote).await?,
            };
            self.check_branch(session, &place, &head).await?;
            let repository = slug.clone();
            let found = place.forge.pull_of_head(&head, order.base.as_ref()).await?;
            if let Some(pull) = found {
                return Ok(PullRequest { repository, created: false, pull });
            }
            let new = NewPull {
                title: order.title.clone(),
                body: order.body.clone(),
                head,
                base: order.base.clone(),
                draft: order.draft,
            };
            match place.forge.create_pull(new).await {
                Ok(pull) => Ok(PullRequest { repository, created: true, pull }),
                // Another client opened it first.
                Err(ForgeError::PullExists { number }) => {
                    let pull = place.forge.pull(number).await?;
                    Ok(PullRequest { repository, created: false, pull })
                }
                Err(error) => Err(error.into()),
            }
        })
        .await
    }
}

/// The goal of a push.
#[derive(Debug, Clone, Copy)]
struct Aim<'a> {
    branch: &'a BranchName,
    commit: &'a CommitId,
    /// The branch's commit on the forge before.
    previous: Option<&'a CommitId>,
    force: bool,
}

async fn on_forge(place: &Place, branch: &BranchName) -> Result<Option<CommitId>, ForgeError> {
    match place.forge.branch(branch).await {
        Ok(found) => Ok(Some(found.commit)),
        Err(ForgeError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

//! Git in sandboxes: the git program runs inside, the credentials stay outside. docs/design/0010-git.md has
//! the whole picture.
//!
//! [`Git`] runs operations and records them; [`routes`] keeps the gate of each sandbox up to date.

mod changes;
mod error;
mod explain;
mod large;
mod operations;
mod orders;
mod routes;
mod settings;
mod status;
mod submodules;
mod work;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::forge::BranchName;
use coffer_core::network::GATE_NAME;
use coffer_core::{Code, KeyId, Refusal};
use coffer_forge::{Forge, Forges};
use coffer_store::{GitOutcome, GitRemote, ProjectScope, RepositoryRow, Store, StoreError};
use serde::Serialize;

pub use error::{Cause, GitError};
pub use orders::{
    BranchOrder, CloneOrder, CommitMessage, CommitOrder, DiffOrder, PullOrder, PushOrder, Signature,
};
pub use settings::ForgeSettings;
pub use submodules::Submodules;
pub use work::DiffStat;

use coffer_fleet::exec::{Command, CommandResult, Exec};
use coffer_fleet::{Fleet, Record};
use coffer_telemetry::Telemetry;

/// Most output of a git command.
const MOST_PRINTED: usize = 256 * 1024;
const SHORT: Duration = Duration::from_secs(60);

/// Checks out pointers of Git LFS as they are, even if git is configured to use a missing git-lfs.
const WITHOUT_LFS: [&str; 6] =
    ["-c", "filter.lfs.smudge=", "-c", "filter.lfs.process=", "-c", "filter.lfs.required=false"];

/// Runs git operations in sandboxes.
#[derive(Debug)]
pub struct Git {
    store: Store,
    fleet: Arc<Fleet>,
    forges: Arc<Forges>,
    exec: Exec,
    telemetry: Arc<Telemetry>,
}

/// The caller and the sandbox of an operation.
#[derive(Debug, Clone)]
pub struct Session {
    pub scope: ProjectScope,
    pub record: Arc<Record>,
    /// The caller, for records.
    pub actor: String,
    pub key: Option<KeyId>,
}

/// A repository in a sandbox, and its forge.
struct Place {
    remote: GitRemote,
    row: RepositoryRow,
    forge: Arc<dyn Forge>,
}

/// The branches that a caller may push to and open pull requests from.
#[derive(Debug)]
pub enum Branches {
    Any,
    /// The branches of the agent's own tasks.
    OfTasks(Vec<BranchName>),
}

impl Branches {
    /// The branches of a key: an agent's key has those of its tasks.
    pub async fn of(store: &Store, scope: &ProjectScope, row: &RepositoryRow) -> Result<Self, StoreError> {
        let Some(agent) = scope.agent() else { return Ok(Self::Any) };
        let names = store.task_branches(scope, agent, row.name.as_str()).await?;
        Ok(Self::OfTasks(names.iter().filter_map(|name| name.parse().ok()).collect()))
    }

    pub fn check(&self, branch: &BranchName) -> Result<(), Refusal> {
        match self {
            Self::OfTasks(names) if !names.contains(branch) => {
                let message = format!("branch `{branch}` is not of a task of this agent");
                Err(Refusal::new(Code::Forbidden, message)
                    .hint("an agent's key can push only to the branches of its own tasks"))
            }
            Self::Any | Self::OfTasks(_) => Ok(()),
        }
    }
}

impl Git {
    pub fn new(
        store: Store,
        fleet: Arc<Fleet>,
        forges: Arc<Forges>,
        exec: Exec,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        Self { store, fleet, forges, exec, telemetry }
    }

    /// The forges that it works with.
    pub fn forges(&self) -> &Forges {
        &self.forges
    }

    /// Runs an operation and records it, with an event when it begins and one when it ends.
    async fn recorded<T: Serialize>(
        &self,
        session: &Session,
        repository: &str,
        kind: &'static str,
        work: impl Future<Output = Result<T, GitError>>,
    ) -> Result<T, GitError> {
        let (scope, sandbox) = (&session.scope, session.record.id);
        let begun = self.store.begin_git_operation(scope, sandbox, repository, kind, &session.actor).await;
        let operation = begun?;
        let done = work.await;
        let outcome = match &done {
            Ok(done) => GitOutcome::Done(serde_json::to_value(done).unwrap_or_default()),
            Err(error) => {
                let patterns = self.exec.output.patterns_in(&session.record);
                let refusal = error.explain(&sandbox.to_string());
                let message = patterns.redact(&refusal.message);
                GitOutcome::Failed { code: refusal.code.as_str().to_string(), message }
            }
        };
        self.telemetry.metrics.git(kind, done.is_ok());
        if let Err(error) = self.store.end_git_operation(scope, operation, outcome).await {
            tracing::error!(sandbox.id = %sandbox, "could not record the end of git operation {operation}: {error}");
        }
        done
    }

    /// Finds the repository: by name, or the only one of the sandbox.
    async fn place(&self, session: &Session, repository: Option<&str>) -> Result<Place, GitError> {
        let remotes = self.store.git_remotes(&session.scope, session.record.id).await;
        let mut remotes = remotes?;
        let remote = match repository {
            Some(wanted) => {
                let is_wanted =
                    |remote: &GitRemote| remote.slug == wanted || remote.repository.to_string() == wanted;
                remotes.into_iter().find(is_wanted)
            }
            None if remotes.len() > 1 => {
                return Err(Refusal::invalid("repository", "is required: this sandbox has several").into());
            }
            None => remotes.pop(),
        };
        let remote = remote.ok_or_else(|| {
            let message = match repository {
                Some(name) => {
                    let shown: String = name.chars().take(64).collect();
                    format!("repository '{shown}' is not cloned in this sandbox")
                }
                None => "this sandbox has no repository".to_string(),
            };
            Refusal::new(Code::NotFound, message).hint("clone one with POST /api/v1/sandboxes/{id}/clone")
        })?;
        let row = self.row(session, &remote.repository.to_string()).await?;
        let forge = self.forges.open(&session.scope, &row, &session.actor).await?;
        Ok(Place { remote, row, forge })
    }

    async fn row(&self, session: &Session, repository: &str) -> Result<RepositoryRow, GitError> {
        let shown: String = repository.chars().take(64).collect();
        let row = self.store.repository(&session.scope, repository).await?;
        let row = row.ok_or_else(|| GitError::NoRepository(shown.clone()))?;
        match self.store.repository_elsewhere(&row) {
            None => Ok(row),
            Some(holder) => {
                let message =
                    format!("repository '{shown}' is kept by installation '{holder}', not by this one");
                Err(Refusal::new(Code::OtherInstallation, message).into())
            }
        }
    }

    /// Runs git in the sandbox with a list of arguments, never through a shell.
    async fn git(
        &self,
        session: &Session,
        user: Option<&str>,
        words: &[&str],
        run: Run<'_>,
    ) -> Result<CommandResult, GitError> {
        let mut env = vec![("GIT_TERMINAL_PROMPT", "0"), ("GIT_ASKPASS", "/bin/false"), ("LC_ALL", "C")];
        let mut settings: &[&str] = &[];
        if run.large != Large::Bring {
            // Also for submodules, whose git does not get these settings.
            env.push(("GIT_LFS_SKIP_SMUDGE", "1"));
        }
        if run.large == Large::Unknown {
            settings = &WITHOUT_LFS;
        }
        let words = std::iter::once("git").chain(settings.iter().copied()).chain(words.iter().copied());
        let command = Command {
            words: words.map(str::to_string).collect(),
            env: env.into_iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
            user: user.map(str::to_string),
            stdin: run.stdin.map(|text| text.to_string().into()),
            timeout: Some(run.timeout),
            most: run.most,
            ..Command::default()
        };
        Ok(self.exec.run(&session.record, command, session.key).await?)
    }

    /// The same in a repository of the sandbox.
    async fn git_at(
        &self,
        session: &Session,
        remote: &GitRemote,
        words: &[&str],
        run: Run<'_>,
    ) -> Result<CommandResult, GitError> {
        let words = [&["-C", remote.path.as_str()], words].concat();
        self.git(session, remote.user.as_deref(), &words, run).await
    }

    /// The same, where anything but success is an error.
    async fn git_well(
        &self,
        session: &Session,
        remote: &GitRemote,
        doing: &str,
        words: &[&str],
        run: Run<'_>,
    ) -> Result<CommandResult, GitError> {
        let returned = self.git_at(session, remote, words, run).await?;
        if returned.succeeded() { Ok(returned) } else { Err(explain::failure(doing, &returned)) }
    }
}

/// Options of a git command.
#[derive(Debug, Clone, Copy)]
struct Run<'a> {
    stdin: Option<&'a str>,
    timeout: Duration,
    most: usize,
    large: Large,
}

/// How to check out files of Git LFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Large {
    /// As git is configured.
    Bring,
    /// As pointers. Git LFS is installed, and decides whether files have changed.
    Leave,
    /// As pointers, and git does not use Git LFS, which need not be installed. Files in place of pointers may
    /// seem changed.
    Unknown,
}

impl Default for Run<'_> {
    fn default() -> Self {
        Self { stdin: None, timeout: SHORT, most: MOST_PRINTED, large: Large::Bring }
    }
}

impl Run<'_> {
    fn within(timeout: Duration) -> Self {
        Self { timeout, ..Self::default() }
    }
}

/// The URL of a repository for the sandbox.
fn gate_url(slug: &str) -> String {
    format!("http://{GATE_NAME}/{slug}.git")
}

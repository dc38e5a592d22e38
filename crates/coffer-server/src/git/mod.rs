//! Git in sandboxes: the git program inside, the credentials outside. docs/design/0010-git.md has the whole picture.
//!
//! [`Git`] does what is asked for and puts it on record; [`routes`] keeps the gate of each sandbox up to date.

mod changes;
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

use coffer_core::KeyId;
use coffer_core::forge::BranchName;
use coffer_core::network::GATE_NAME;
use coffer_forge::{Forge, Forges};
use coffer_store::{GitOutcome, GitRemote, ProjectScope, RepositoryRow, Store};
use serde::Serialize;

pub(crate) use orders::{
    BranchOrder, Branched, CloneOrder, Cloned, CommitOrder, Committed, DiffOrder, PullOrder, PullRequest,
    PushOrder, Pushed, WorkTreeDiff,
};
pub(crate) use routes::AtGate;
pub use settings::ForgeSettings;
pub(crate) use status::WorkTree;
pub(crate) use submodules::Submodules;
pub(crate) use work::{DiffStat, Signature};

use crate::api::{ApiError, Code, Errand, Errands, Returned};
use crate::fleet::{Fleet, Record};
use crate::telemetry::Telemetry;

/// Of what a program of git's prints.
const MOST_PRINTED: usize = 256 * 1024;
const SHORT: Duration = Duration::from_secs(60);

/// Checks pointers of Git LFS out as they are, also where git is told to use a git-lfs that is not there.
const WITHOUT_LFS: [&str; 6] =
    ["-c", "filter.lfs.smudge=", "-c", "filter.lfs.process=", "-c", "filter.lfs.required=false"];

/// Does git's work in sandboxes.
#[derive(Debug)]
pub(crate) struct Git {
    store: Store,
    fleet: Arc<Fleet>,
    forges: Arc<Forges>,
    errands: Errands,
    telemetry: Arc<Telemetry>,
}

/// Who asks, and of which sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) scope: ProjectScope,
    pub(crate) record: Arc<Record>,
    /// For records.
    pub(crate) actor: String,
    pub(crate) key: Option<KeyId>,
}

/// A repository in a sandbox, and its forge.
struct Place {
    remote: GitRemote,
    row: RepositoryRow,
    forge: Arc<dyn Forge>,
}

/// Which branches a caller may push to, and open pull requests from.
#[derive(Debug)]
pub(crate) enum Branches {
    Any,
    /// Those of the agent's own tasks.
    OfTasks(Vec<BranchName>),
}

impl Branches {
    /// Those of a key's: an agent's reaches the branches of its tasks.
    pub(crate) async fn of(
        store: &Store,
        scope: &ProjectScope,
        row: &RepositoryRow,
    ) -> Result<Self, ApiError> {
        let Some(agent) = scope.agent() else { return Ok(Self::Any) };
        let names = store.task_branches(scope, agent, row.name.as_str()).await.map_err(ApiError::store)?;
        Ok(Self::OfTasks(names.iter().filter_map(|name| name.parse().ok()).collect()))
    }

    pub(crate) fn check(&self, branch: &BranchName) -> Result<(), ApiError> {
        match self {
            Self::OfTasks(names) if !names.contains(branch) => {
                let message = format!("branch `{branch}` is not of a task of this agent");
                Err(ApiError::of(Code::Forbidden, message)
                    .hint("an agent's key pushes to the branches of its own tasks"))
            }
            Self::Any | Self::OfTasks(_) => Ok(()),
        }
    }
}

impl Git {
    pub(crate) fn new(
        store: Store,
        fleet: Arc<Fleet>,
        forges: Arc<Forges>,
        errands: Errands,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        Self { store, fleet, forges, errands, telemetry }
    }

    /// Does something and puts it on record, with an event when it begins and one when it ends.
    async fn recorded<T: Serialize>(
        &self,
        session: &Session,
        repository: &str,
        kind: &'static str,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let (scope, sandbox) = (&session.scope, session.record.id);
        let begun = self.store.begin_git_operation(scope, sandbox, repository, kind, &session.actor).await;
        let operation = begun.map_err(|error| ApiError::fleet(error.into(), &sandbox.to_string()))?;
        let done = work.await;
        let outcome = match &done {
            Ok(done) => GitOutcome::Done(serde_json::to_value(done).unwrap_or_default()),
            Err(error) => {
                let patterns = self.errands.output.patterns_in(&session.record);
                let message = patterns.redact(error.message());
                GitOutcome::Failed { code: error.code().as_str().to_string(), message }
            }
        };
        self.telemetry.metrics.git(kind, done.is_ok());
        if let Err(error) = self.store.end_git_operation(scope, operation, outcome).await {
            tracing::error!(sandbox.id = %sandbox, "operation {operation} of git stays on record as running: {error}");
        }
        done
    }

    /// The repository that is meant: the one of that name, or the only one of the sandbox.
    async fn place(&self, session: &Session, repository: Option<&str>) -> Result<Place, ApiError> {
        let remotes = self.store.git_remotes(&session.scope, session.record.id).await;
        let mut remotes = remotes.map_err(ApiError::store)?;
        let remote = match repository {
            Some(wanted) => {
                let is_wanted =
                    |remote: &GitRemote| remote.slug == wanted || remote.repository.to_string() == wanted;
                remotes.into_iter().find(is_wanted)
            }
            None if remotes.len() > 1 => {
                return Err(ApiError::invalid("repository", "is needed: this sandbox has several"));
            }
            None => remotes.pop(),
        };
        let remote = remote.ok_or_else(|| {
            let shown: String = repository.unwrap_or("of its own").chars().take(64).collect();
            ApiError::of(Code::NotFound, format!("this sandbox has no repository {shown}"))
                .hint("POST /api/v1/sandboxes/{id}/clone puts one there")
        })?;
        let row = self.row(session, &remote.repository.to_string()).await?;
        let forge = self.forges.open(&session.scope, &row, &session.actor).await.map_err(ApiError::forge)?;
        Ok(Place { remote, row, forge })
    }

    async fn row(&self, session: &Session, repository: &str) -> Result<RepositoryRow, ApiError> {
        let shown: String = repository.chars().take(64).collect();
        let row = self.store.repository(&session.scope, repository).await.map_err(ApiError::store)?;
        let row = row.ok_or_else(|| ApiError::nothing("repository", &shown))?;
        match self.store.repository_elsewhere(&row) {
            None => Ok(row),
            Some(holder) => {
                let message =
                    format!("repository '{shown}' is kept by installation '{holder}', not by this one");
                Err(ApiError::of(Code::OtherInstallation, message))
            }
        }
    }

    /// Runs git in the sandbox, by words and never by a shell.
    async fn git(
        &self,
        session: &Session,
        user: Option<&str>,
        words: &[&str],
        run: Run<'_>,
    ) -> Result<Returned, ApiError> {
        let mut env = vec![("GIT_TERMINAL_PROMPT", "0"), ("GIT_ASKPASS", "/bin/false"), ("LC_ALL", "C")];
        let mut settings: &[&str] = &[];
        if run.large != Large::Bring {
            // Also for submodules, whose git does not hear of these settings.
            env.push(("GIT_LFS_SKIP_SMUDGE", "1"));
        }
        if run.large == Large::Unknown {
            settings = &WITHOUT_LFS;
        }
        let words = std::iter::once("git").chain(settings.iter().copied()).chain(words.iter().copied());
        let errand = Errand {
            words: words.map(str::to_string).collect(),
            cwd: None,
            env: env.into_iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
            user: user.map(str::to_string),
            stdin: run.stdin.map(str::to_string),
            timeout: run.timeout,
            most: run.most,
        };
        self.errands.run(&session.record, errand, session.key).await
    }

    /// The same in a repository of the sandbox's.
    async fn git_at(
        &self,
        session: &Session,
        remote: &GitRemote,
        words: &[&str],
        run: Run<'_>,
    ) -> Result<Returned, ApiError> {
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
    ) -> Result<Returned, ApiError> {
        let returned = self.git_at(session, remote, words, run).await?;
        if returned.is_good() { Ok(returned) } else { Err(explain::failure(doing, &returned)) }
    }
}

/// How a program of git's is run.
#[derive(Debug, Clone, Copy)]
struct Run<'a> {
    stdin: Option<&'a str>,
    timeout: Duration,
    most: usize,
    large: Large,
}

/// What becomes of files of Git LFS that are checked out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Large {
    /// What git is set up to do.
    Bring,
    /// They are pointers. Git LFS is there, and asked whether files were changed.
    Leave,
    /// They are pointers, and git knows nothing of Git LFS, which need not be there. Files in the place of pointers may seem
    /// to be changed.
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

/// Where a sandbox finds a repository.
fn gate_url(slug: &str) -> String {
    format!("http://{GATE_NAME}/{slug}.git")
}

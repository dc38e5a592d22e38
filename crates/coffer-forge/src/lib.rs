//! Forges: repositories and reviews, local or on GitHub. See docs/design/0007-forges.md.
//!
//! [`Forge`] is the trait: one repository on some forge, as one caller sees it. [`Forges`] opens it for a
//! record of the store. The local forge has git data in bare repositories and everything else in the store;
//! [`Forges`] also serves its repositories to git by smart HTTP, and their large files to Git LFS. GitHub is
//! a client of its REST API, with a connection whose credential is a secret of the project.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod connect;
mod error;
mod forge;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod git;
mod github;
mod lfs;
mod local;
mod locate;
mod passes;
mod place;
mod plain;
mod poll;
mod refusal;
mod serve;
mod storage;
mod token;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::forge::{BranchName, ForgeKind, ProtectionRules};
use coffer_core::sync::Mutex;
use coffer_core::{Millis, RepositoryId};
use coffer_store::{ProjectScope, RepositoryRow, Store};
use tokio_util::task::TaskTracker;

pub use coffer_http::{PrivateHosts, class_of, is_own};
use connect::Clients;
pub use connect::{Delivery, GITHUB, WebhookDoor, WebhookError};
pub use error::ForgeError;
pub use forge::{
    Branch, Comment, CommittedFile, Diff, DiffFile, FilePath, Forge, GitAccess, InlineComment, Issue,
    IssueChange, LineChange, Listed, MergeOrder, Mergeability, MissingPermission, NewInlineComment, NewPull,
    NewReview, NewStatus, Part, Permissions, Protection, Pull, PullChange, PullFilter, RemoteRepository,
    RepositoryInfo, Review, Status, Statuses, Upstream,
};
use git::{Git, Shelf};
pub use git::{GitLimits, GitProcesses, GitRunner, has_landlock};
pub use github::GitHubFigures;
use lfs::LfsUse;
pub use lfs::{LfsFound, LfsOid};
use local::{Bare, LocalForge};
pub use passes::Pass;
use passes::Passes;
use plain::Mirror;
pub use serve::{GitFigures, Incoming, Outgoing, Service};
pub use storage::{DiskFloor, DiskLow};
pub use token::{TokenError, connect_by_token};

/// The author of the server's own commits: merges.
#[derive(Debug, Clone)]
pub struct Identity {
    pub name: String,
    pub email: String,
}

/// The configuration of forges.
#[derive(Debug, Clone)]
pub struct ForgeConfig {
    /// The directory of local repositories.
    pub repositories: PathBuf,
    /// This server's address as the host itself reaches it: `http://127.0.0.1:3000`.
    pub here: String,
    pub identity: Identity,
    pub git: GitLimits,
    pub git_processes: GitProcesses,
    /// With less free space on the disk of repositories nothing is written; 0 turns this off.
    pub min_free_disk: u64,
    /// Whether a forge may be reached without TLS: for tests.
    pub plain_http: bool,
    /// Forges that may be at private addresses.
    pub private_hosts: PrivateHosts,
    /// Trusted roots in addition to the machine's own, as PEM.
    pub extra_roots: Option<String>,
}

/// All forges of this server.
#[derive(Debug)]
pub struct Forges {
    store: Store,
    git: Git,
    floor: DiskFloor,
    shelf: Shelf,
    identity: Identity,
    here: Arc<str>,
    turns: Turns,
    /// Updates of copies of remote repositories.
    syncs: Turns,
    lfs: Arc<LfsUse>,
    passes: Arc<Passes>,
    clients: Clients,
    plain_http: bool,
    private_hosts: PrivateHosts,
    extra_roots: Option<String>,
    figures: Arc<GitFigures>,
    /// Fetches, pushes and imports that continue when their client disconnects.
    transfers: TaskTracker,
}

impl Forges {
    /// Waits for transfers in progress, after the last client has disconnected.
    pub async fn finish(&self, patience: Duration) {
        self.transfers.close();
        if tokio::time::timeout(patience, self.transfers.wait()).await.is_err() {
            tracing::warn!("gave up waiting for {} git transfers", self.transfers.len());
        }
    }

    /// Creates the directory of repositories, and removes what a crash left incomplete there.
    pub async fn start(config: ForgeConfig, store: Store) -> std::io::Result<Self> {
        let forges = Self {
            store,
            git: Git::new(config.git, config.git_processes)?,
            floor: DiskFloor::new(config.repositories.clone(), config.min_free_disk),
            shelf: Shelf::new(config.repositories),
            identity: config.identity,
            here: config.here.into(),
            turns: Turns::default(),
            syncs: Turns::default(),
            lfs: Arc::default(),
            passes: Arc::default(),
            clients: Clients::default(),
            plain_http: config.plain_http,
            private_hosts: config.private_hosts,
            extra_roots: config.extra_roots,
            figures: Arc::default(),
            transfers: TaskTracker::new(),
        };
        forges.tidy().await?;
        Ok(forges)
    }

    /// The forge of a repository, for a caller that acts as `actor`.
    pub async fn open(
        &self,
        scope: &ProjectScope,
        row: &RepositoryRow,
        actor: &str,
    ) -> Result<Arc<dyn Forge>, ForgeError> {
        match row.kind {
            ForgeKind::Local => Ok(Arc::new(self.local(scope, row, actor)?)),
            ForgeKind::GitHub => Ok(Arc::new(self.github(scope, row).await?)),
            ForgeKind::Git => Ok(Arc::new(self.mirrored(scope, row, actor).await?)),
        }
    }

    fn local(
        &self,
        scope: &ProjectScope,
        row: &RepositoryRow,
        actor: &str,
    ) -> Result<LocalForge, ForgeError> {
        if row.kind != ForgeKind::Local {
            return Err(ForgeError::invalid("repository", "is not a local repository"));
        }
        Ok(self.here(scope, row, actor))
    }

    /// A repository on another git server, with its pull requests here.
    async fn mirrored(
        &self,
        scope: &ProjectScope,
        row: &RepositoryRow,
        actor: &str,
    ) -> Result<LocalForge, ForgeError> {
        let (Some(connection), Some(path)) = (row.connection, &row.remote) else {
            return Err(ForgeError::not_found("connection of repository", &row.name));
        };
        let remote = self.plain(&self.connection(scope, connection).await?, path)?;
        let mirror = Mirror {
            remote,
            syncing: self.syncs.of(row.id),
            shelf: self.shelf.clone(),
            floor: self.floor.clone(),
            transfers: self.transfers.clone(),
        };
        Ok(LocalForge { mirror: Some(mirror), ..self.here(scope, row, actor) })
    }

    fn here(&self, scope: &ProjectScope, row: &RepositoryRow, actor: &str) -> LocalForge {
        LocalForge {
            store: self.store.clone(),
            scope: *scope,
            row: row.clone(),
            actor: actor.to_string(),
            identity: self.identity.clone(),
            bare: Bare { git: self.git.clone(), directory: self.shelf.path(row.project, row.id) },
            turn: self.turns.of(row.id),
            lfs: self.lfs.clone(),
            passes: self.passes.clone(),
            here: self.here.clone(),
            mirror: None,
        }
    }

    /// Changes the default branch of a local repository to an existing one.
    pub async fn set_default_branch(
        &self,
        scope: &ProjectScope,
        row: &RepositoryRow,
        branch: BranchName,
    ) -> Result<RepositoryRow, ForgeError> {
        let forge = self.local(scope, row, "")?;
        forge.branch(&branch).await?;
        forge.bare.set_head(&branch).await?;
        if !self.store.set_default_branch(scope, row.id, branch.clone()).await? {
            return Err(ForgeError::not_found("repository", &row.name));
        }
        Ok(RepositoryRow { default_branch: branch, ..row.clone() })
    }

    /// The protected branches of a local repository.
    pub async fn protections(
        &self,
        scope: &ProjectScope,
        row: &RepositoryRow,
    ) -> Result<Vec<Protection>, ForgeError> {
        self.local(scope, row, "")?;
        let all = self.store.protections(scope, row.id).await?.into_iter();
        Ok(all.map(|(branch, rules)| Protection::of(branch, rules)).collect())
    }

    /// Protects a branch of a local repository by these rules, or removes its protection.
    pub async fn protect(
        &self,
        scope: &ProjectScope,
        row: &RepositoryRow,
        branch: BranchName,
        rules: Option<ProtectionRules>,
    ) -> Result<Option<Protection>, ForgeError> {
        self.local(scope, row, "")?;
        let set = self.store.protect_branch(scope, row.id, branch.clone(), rules).await;
        set.map_err(|error| ForgeError::record(error, "protection of branch", &branch))?;
        Ok(rules.map(|rules| Protection::of(branch, rules)))
    }

    /// Counters of fetches and pushes.
    pub fn git_figures(&self) -> &GitFigures {
        &self.figures
    }

    /// The hosts that may be at private addresses, as given.
    pub fn private_hosts(&self) -> Vec<String> {
        self.private_hosts.names().collect()
    }

    /// The pass of a password that is not a key.
    pub fn pass(&self, password: &str) -> Option<Pass> {
        self.passes.find(password)
    }
}

/// The path of a local repository, below the server's address.
pub fn git_path(row: &RepositoryRow) -> String {
    format!("/git/{}/{}.git", row.project, row.name)
}

/// A lock for each repository that was merged in.
#[derive(Debug, Default)]
struct Turns(Mutex<HashMap<RepositoryId, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    fn of(&self, repository: RepositoryId) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.0.lock();
        all.entry(repository).or_default().clone()
    }

    fn forget(&self, repository: RepositoryId) {
        self.0.lock().remove(&repository);
    }
}

/// RFC 3339 in UTC with milliseconds, as everywhere in the API.
fn time_text(ms: Millis) -> String {
    let time = jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    format!("{time:.3}")
}

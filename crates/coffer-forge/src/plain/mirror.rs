//! A copy of some branches of a remote repository, in which pull requests are compared and merged.
//!
//! It is a cache: it can be deleted, and every server has its own. The remote decides where a branch is. A merge is made
//! here and lands there by a push that names the commit it expects, so of two merges one wins, wherever they were made.

use std::sync::Arc;

use coffer_core::RepositoryId;
use coffer_core::forge::{BranchName, CommitId};
use coffer_store::PullRow;
use tokio_util::task::TaskTracker;

use super::client::{Pushed, Remote};
use super::wire::Advertised;
use crate::ForgeError;
use crate::git::{Call, GitError, Shelf};
use crate::local::bare::Moved;
use crate::local::bundle::Upload;
use crate::local::{Bare, COMING, LocalForge};
use crate::serve::Service;
use crate::storage::DiskFloor;

type Answer<T> = Result<T, ForgeError>;

/// Most of our commits that a server is told of, so that it sends less.
const MOST_HAVES: usize = 256;
/// The largest pack of a merge: what a merge adds is small.
const LARGEST_MERGE: usize = 64 << 20;

/// Where a repository really is.
#[derive(Debug, Clone)]
pub(crate) struct Mirror {
    pub(crate) remote: Remote,
    /// One update of the copy at a time.
    pub(crate) syncing: Arc<tokio::sync::Mutex<()>>,
    pub(crate) shelf: Shelf,
    pub(crate) floor: DiskFloor,
    pub(crate) transfers: TaskTracker,
}

impl LocalForge {
    /// What the remote has, if the repository is elsewhere.
    pub(crate) async fn remote_refs(&self) -> Answer<Option<Advertised>> {
        match &self.mirror {
            Some(mirror) => mirror.remote.refs(Service::UploadPack).await.map(Some),
            None => Ok(None),
        }
    }

    /// Brings these branches to where the remote has them. Nothing to do for a repository that is stored here.
    pub(crate) async fn sync(&self, branches: &[&BranchName]) -> Answer<()> {
        let Some(mirror) = self.mirror.clone() else { return Ok(()) };
        let turn = mirror.syncing.clone().lock_owned().await;
        self.prepare(&mirror).await?;
        let told = mirror.remote.refs(Service::UploadPack).await?;
        let here = self.bare.tips(branches).await?;
        let moved: Vec<(BranchName, Option<CommitId>)> = branches
            .iter()
            .filter(|branch| told.branches.get(**branch) != here.get(**branch))
            .map(|branch| ((*branch).clone(), told.branches.get(*branch).cloned()))
            .collect();
        let mut wants = Vec::new();
        for commit in moved.iter().filter_map(|(_, commit)| commit.as_ref()) {
            if !wants.contains(commit) && !self.bare.has(commit).await? {
                wants.push(commit.clone());
            }
        }
        if !wants.is_empty() {
            let forge = self.clone();
            // In its own task: it cleans up even if the client disconnects.
            let fetched = mirror.transfers.clone().spawn(async move {
                let done = forge.fetch(&mirror, &wants, &told).await;
                (done, turn)
            });
            let ended = || ForgeError::Git("the fetch ended early".into());
            let (done, _turn) = fetched.await.map_err(|_| ended())?;
            done?;
            return self.point(&moved).await;
        }
        self.point(&moved).await
    }

    /// Creates the copy, empty, where there is none yet.
    async fn prepare(&self, mirror: &Mirror) -> Answer<()> {
        if self.bare.directory.is_dir() {
            return Ok(());
        }
        let coming = mirror.shelf.root().join(format!("{COMING}{}", RepositoryId::generate()));
        let shelf = self.bare.directory.parent().unwrap_or(mirror.shelf.root());
        tokio::fs::create_dir_all(shelf).await.map_err(ForgeError::disk)?;
        Bare::init(&self.bare.git, &coming, &self.row.default_branch, self.row.project).await?;
        tokio::fs::rename(&coming, &self.bare.directory).await.map_err(ForgeError::disk)
    }

    async fn fetch(&self, mirror: &Mirror, wants: &[CommitId], told: &Advertised) -> Answer<()> {
        mirror.floor.check()?;
        let limits = self.bare.git.limits.clone();
        let _room = self.bare.git.transfer(self.row.project).await?;
        let reserved = crate::storage::reserve(&self.store, self.row.project, 1).await?;
        let size = self.bare.size().await?;
        let most = limits.push.min(limits.repository.saturating_sub(size));
        let quarantine = mirror.shelf.root().join(format!("{COMING}{}", RepositoryId::generate()));
        let haves = self.bare.some_commits(MOST_HAVES).await?;
        let fill = async {
            let pack = mirror.remote.fetch(wants, &haves, told, limits.silence).await?;
            let pack = crate::storage::metered(pack, reserved.clone(), 0);
            let mut upload = Upload::of_remote(pack, most, limits.silence);
            self.bare.take_pack(&quarantine, &mut upload, wants).await
        };
        let done = tokio::time::timeout(limits.transfer_time, fill).await;
        if let Err(error) = tokio::fs::remove_dir_all(&quarantine).await
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!("could not remove `{}`: {error}", quarantine.display());
        }
        if let Some(over) = reserved.refusal() {
            return Err(ForgeError::OverQuota(over));
        }
        done.unwrap_or_else(|_| Err(GitError::TimedOut.into()))?;
        self.count_size().await
    }

    /// Points branches of the copy to where they are, or removes them. Removals first: `a` may be in the way of `a/b`.
    async fn point(&self, moved: &[(BranchName, Option<CommitId>)]) -> Answer<()> {
        let gone = moved.iter().filter(|(_, commit)| commit.is_none());
        let gone: String = gone.map(|(branch, _)| format!("delete {}\n", branch.full())).collect();
        let set = moved
            .iter()
            .filter_map(|(branch, commit)| Some(format!("update {} {}\n", branch.full(), commit.as_ref()?)));
        let set: String = set.collect();
        for lines in [gone, set].into_iter().filter(|lines| !lines.is_empty()) {
            let call = Call { stdin: lines.into(), ..Call::within(&self.bare.directory) };
            self.bare.git.run(call, &["update-ref", "--stdin"]).await?.good()?;
        }
        Ok(())
    }

    /// Moves the base of a merge to its new commit: here, or where the repository really is.
    pub(crate) async fn land(
        &self,
        pull: &PullRow,
        commit: &CommitId,
        base: &CommitId,
    ) -> Answer<Result<(), Moved>> {
        let Some(mirror) = &self.mirror else {
            return Ok(self.bare.move_ref(&pull.base.full(), commit, Some(base)).await?);
        };
        let pack = self.bare.pack_of(commit, &[base, &pull.head_commit], LARGEST_MERGE).await?;
        match mirror.remote.push(&pull.base, (base, commit), &pack).await? {
            Pushed::Late => Ok(Err(Moved)),
            Pushed::Refused(why) => {
                let why = format!("its server refused the merge: {why}");
                Err(ForgeError::Protected { branch: pull.base.to_string(), why })
            }
            Pushed::Moved => {
                // The next look at the remote would do it too.
                let _ = self.bare.move_ref(&pull.base.full(), commit, Some(base)).await?;
                Ok(Ok(()))
            }
        }
    }
}

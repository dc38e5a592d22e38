//! Creates and deletes local repositories.

use std::path::Path;

use bytes::Bytes;
use coffer_core::RepositoryId;
use coffer_core::event::{Event, RepositoryImported};
use coffer_core::forge::{BranchName, RepositoryName};
use coffer_store::{NewRepository, ProjectScope, RepositoryRow};
use futures_util::{Stream, StreamExt};

use super::Bare;
use super::bundle::Upload;
use crate::git::GitError;
use crate::{ForgeError, Forges};

type Answer<T> = Result<T, ForgeError>;

/// Prefixes of incomplete directories; a start removes them.
pub(crate) const COMING: &str = ".coming-";
const GOING: &str = ".going-";

impl Forges {
    /// Creates an empty local repository: first the directory, then its record, so that every recorded one
    /// exists.
    pub async fn create_local(
        &self,
        scope: &ProjectScope,
        name: RepositoryName,
        default_branch: BranchName,
    ) -> Answer<RepositoryRow> {
        let id = RepositoryId::generate();
        let place = self.shelf.path(scope.project(), id);
        let coming = self.shelf.root().join(format!("{COMING}{id}"));
        let shelf = place.parent().unwrap_or(Path::new("/")).to_path_buf();
        tokio::fs::create_dir_all(&shelf).await.map_err(ForgeError::disk)?;
        Bare::init(&self.git, &coming, &default_branch, scope.project()).await?;
        tokio::fs::rename(&coming, &place).await.map_err(ForgeError::disk)?;
        let new = NewRepository { id, name: name.clone(), elsewhere: None, default_branch };
        match self.store.create_repository(scope, new).await {
            Ok(row) => Ok(row),
            Err(error) => {
                self.clear(&place, id).await;
                Err(ForgeError::record(error, "repository", name))
            }
        }
    }

    /// Deletes a repository; a local one with its files.
    pub async fn delete(&self, scope: &ProjectScope, row: &RepositoryRow) -> Answer<()> {
        if !self.store.remove_repository(scope, row.id).await? {
            return Err(ForgeError::not_found("repository", &row.name));
        }
        self.turns.forget(row.id);
        self.lfs.forget(row.id);
        self.syncs.forget(row.id);
        let place = self.shelf.path(row.project, row.id);
        // One of another forge may have a copy here.
        if row.connection.is_none() || place.is_dir() {
            self.clear(&place, row.id).await;
        }
        Ok(())
    }

    /// Renames a directory, so that it is not found, and deletes it. The next start deletes the rest.
    async fn clear(&self, place: &Path, id: RepositoryId) {
        let going = self.shelf.root().join(format!("{GOING}{id}"));
        let gone = match tokio::fs::rename(place, &going).await {
            Ok(()) => tokio::fs::remove_dir_all(&going).await,
            Err(error) => Err(error),
        };
        if let Err(error) = gone {
            tracing::warn!(repository.id = %id, "could not remove the files of repository {id}: {error}");
        }
    }

    /// Deletes what a crash left incomplete. Repositories without a record stay: the database may be an older
    /// backup.
    pub(crate) async fn tidy(&self) -> std::io::Result<()> {
        tokio::fs::create_dir_all(self.shelf.root()).await?;
        let mut entries = tokio::fs::read_dir(self.shelf.root()).await?;
        while let Some(entry) = entries.next_entry().await? {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(COMING) || name.starts_with(GOING) {
                let path = entry.path();
                let removed = if entry.file_type().await?.is_dir() {
                    tokio::fs::remove_dir_all(&path).await
                } else {
                    tokio::fs::remove_file(&path).await
                };
                if let Err(error) = removed {
                    tracing::warn!("could not remove `{}`: {error}", path.display());
                }
            }
        }
        Ok(())
    }

    /// Fills an empty local repository from a bundle (`git bundle create x.bundle --all`).
    pub async fn import<E: std::fmt::Display>(
        &self,
        scope: &ProjectScope,
        row: &RepositoryRow,
        actor: &str,
        bundle: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    ) -> Answer<RepositoryRow> {
        let forge = self.local(scope, row, actor)?;
        self.floor.check()?;
        let room = self.git.transfer(row.project).await?;
        let limits = self.git.limits.clone();
        let bundle = bundle.map(|piece| piece.map_err(|error| error.to_string())).boxed();
        let reserved = crate::storage::reserve(&self.store, row.project, 1).await?;
        let bundle = crate::storage::metered(bundle, reserved.clone(), 0);
        let mut upload = Upload::new(bundle, limits.push.min(limits.repository), limits.silence);
        let quarantine = self.shelf.root().join(format!("{COMING}{}", RepositoryId::generate()));
        // In its own task: it cleans up even if the client disconnects.
        let done = self.transfers.spawn(async move {
            let _room = room;
            let fill = forge.fill(&quarantine, &mut upload);
            let done = tokio::time::timeout(limits.transfer_time, fill).await;
            if let Err(error) = tokio::fs::remove_dir_all(&quarantine).await
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!("could not remove `{}`: {error}", quarantine.display());
            }
            let mut done = done.unwrap_or_else(|_| Err(GitError::TimedOut.into()));
            if let (Err(_), Some(over)) = (&done, reserved.refusal()) {
                done = Err(ForgeError::OverQuota(over));
            }
            if matches!(done, Err(ForgeError::Invalid { .. } | ForgeError::Conflict { .. })) {
                upload.drain().await;
            }
            done
        });
        done.await.unwrap_or_else(|_| Err(ForgeError::Git("the import ended early".into())))?;
        let found = self.store.repository(scope, &row.id.to_string()).await?;
        found.ok_or_else(|| ForgeError::not_found("repository", &row.name))
    }
}

impl super::LocalForge {
    async fn fill(&self, quarantine: &Path, upload: &mut Upload) -> Answer<()> {
        if !self.bare.tips(&[]).await?.is_empty() {
            return Err(ForgeError::conflict("the repository is not empty; push to it instead"));
        }
        self.bare.unbundle(quarantine, upload).await?;
        self.count_size().await?;
        let tips = self.bare.tips(&[]).await?;
        let imported = RepositoryImported { by: self.actor.clone(), branches: tips.len() };
        let event = Event::RepositoryImported(imported);
        self.store.record_repository_event(&self.scope, self.row.id, event).await?;
        self.settle_head(tips.keys()).await
    }
}

impl super::LocalForge {
    /// Sets HEAD to an existing branch, once there is one.
    pub(crate) async fn settle_head<'a>(&self, branches: impl Iterator<Item = &'a BranchName>) -> Answer<()> {
        let branches: Vec<_> = branches.collect();
        if branches.contains(&&self.row.default_branch) || branches.is_empty() {
            return Ok(());
        }
        if self.bare.tip(&self.row.default_branch).await?.is_some() {
            return Ok(());
        }
        let usual = ["main", "master"];
        let named = |name: &&str| branches.iter().find(|branch| branch.as_str() == *name).copied();
        let Some(head) = usual.iter().find_map(named).or(branches.first().copied()) else { return Ok(()) };
        self.bare.set_head(head).await?;
        self.store.set_default_branch(&self.scope, self.row.id, head.clone()).await?;
        Ok(())
    }
}

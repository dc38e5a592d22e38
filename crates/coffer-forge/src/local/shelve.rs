//! Local repositories come and go.

use std::path::Path;

use bytes::Bytes;
use coffer_core::RepositoryId;
use coffer_core::forge::{BranchName, RepositoryName};
use coffer_store::{NewRepository, ProjectScope, RepositoryRow};
use futures_util::{Stream, StreamExt};
use tokio::io::AsyncWriteExt;

use super::Bare;
use crate::git::Call;
use crate::{ForgeError, Forges};

type Answer<T> = Result<T, ForgeError>;

/// Directories on their way in or out begin with these; a start removes them.
pub(crate) const COMING: &str = ".coming-";
const GOING: &str = ".going-";

impl Forges {
    /// Makes an empty local repository: first the directory, then its record, so that what is on record is there.
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
        tokio::fs::create_dir_all(&shelf).await.map_err(disk)?;
        Bare::init(&self.git, &coming, &default_branch).await?;
        tokio::fs::rename(&coming, &place).await.map_err(disk)?;
        let new = NewRepository { id, name: name.clone(), elsewhere: None, default_branch };
        match self.store.create_repository(scope, new).await {
            Ok(row) => Ok(row),
            Err(error) => {
                self.clear(&place, id).await;
                Err(ForgeError::record(error, "repository", name))
            }
        }
    }

    /// Forgets a repository; a local one's files go too.
    pub async fn delete(&self, scope: &ProjectScope, row: &RepositoryRow) -> Answer<()> {
        if !self.store.remove_repository(scope, row.id).await? {
            return Err(ForgeError::not_found("repository", &row.name));
        }
        self.turns.forget(row.id);
        self.lfs.forget(row.id);
        if row.connection.is_none() {
            self.clear(&self.shelf.path(row.project, row.id), row.id).await;
        }
        Ok(())
    }

    /// Moves a directory aside, where nobody finds it, and removes it. What is left is removed at the next start.
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

    /// Removes what a crash left half made or half removed. Repositories without a record stay: the records may
    /// be an older copy.
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
        bundle: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Answer<RepositoryRow> {
        let forge = self.local(scope, row, actor)?;
        let _room = self.git.transfer(row.project).await?;
        if !forge.bare.tips(&[]).await?.is_empty() {
            return Err(ForgeError::conflict("the repository is not empty; push to it instead"));
        }
        let file = self.shelf.root().join(format!("{COMING}{}.bundle", RepositoryId::generate()));
        let done = async {
            self.receive_file(&file, bundle).await?;
            let call = Call {
                config: crate::serve::strictness("fetch")
                    .chain(["protocol.file.allow=always".into(), "transfer.fsckObjects=true".into()])
                    .collect(),
                time: Some(self.git.limits.transfer_time),
                ..Call::within(&forge.bare.directory)
            };
            let path = file.to_string_lossy();
            let fetch = ["fetch", "--quiet", "--no-write-fetch-head", "--no-auto-maintenance", "--no-tags"];
            let refs = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"];
            let done = self.git.run(call, &[&fetch[..], &[&*path], &refs].concat()).await?;
            if done.code != Some(0) {
                return Err(ForgeError::invalid("bundle", format!("cannot be read: {}", done.complaint())));
            }
            Ok(())
        };
        let done = done.await;
        let _ = tokio::fs::remove_file(&file).await;
        done?;
        let tips = forge.bare.tips(&[]).await?;
        if tips.is_empty() {
            return Err(ForgeError::invalid("bundle", "has no branches"));
        }
        let payload = serde_json::json!({ "by": actor, "branches": tips.len() });
        self.store.record_repository_event(scope, row.id, "repository.imported", payload).await?;
        forge.settle_head(tips.keys()).await?;
        let found = self.store.repository(scope, &row.id.to_string()).await?;
        found.ok_or_else(|| ForgeError::not_found("repository", &row.name))
    }

    async fn receive_file<E: std::fmt::Display>(
        &self,
        path: &Path,
        mut body: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Answer<()> {
        let mut file = tokio::fs::File::create_new(path).await.map_err(disk)?;
        let (most, mut length) = (self.git.limits.push, 0);
        loop {
            let piece = tokio::time::timeout(self.git.limits.silence, body.next()).await;
            let piece = piece.map_err(|_| ForgeError::invalid("bundle", "did not come in time"))?;
            let Some(piece) = piece else { break };
            let piece = piece.map_err(|_| ForgeError::invalid("bundle", "broke off"))?;
            length += piece.len() as u64;
            if length > most {
                return Err(ForgeError::TooLarge { what: "the bundle", most });
            }
            file.write_all(&piece).await.map_err(disk)?;
        }
        file.flush().await.map_err(disk)
    }
}

impl super::LocalForge {
    /// Makes HEAD name a branch that exists, once there is one.
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

pub(crate) fn disk(error: std::io::Error) -> ForgeError {
    ForgeError::Git(format!("the repositories' directory cannot be written: {error}"))
}

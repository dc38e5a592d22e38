//! Disk space: the project's quota, and a minimum of free space.

use std::path::PathBuf;

use bytes::Bytes;
use coffer_core::ProjectId;
use coffer_store::{ChangeError, Reservation, Store};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};

use crate::local::LocalForge;
use crate::{ForgeError, Forges};

/// The server's disk has too little free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server's disk has {} MiB free, and writes need {} MiB", free >> 20, least >> 20)]
pub struct DiskLow {
    pub free: u64,
    pub least: u64,
}

/// The minimum of free bytes: the server itself needs them.
#[derive(Debug, Clone)]
pub struct DiskFloor {
    directory: PathBuf,
    least: u64,
}

impl DiskFloor {
    /// For the disk of `directory`; 0 turns it off.
    pub fn new(directory: PathBuf, least: u64) -> Self {
        Self { directory, least }
    }

    /// Asks the kernel, which answers from memory.
    pub fn check(&self) -> Result<(), DiskLow> {
        self.check_for(0)
    }

    /// Whether the minimum is still free once `more` bytes are written.
    pub fn check_for(&self, more: u64) -> Result<(), DiskLow> {
        if self.least == 0 {
            return Ok(());
        }
        match rustix::fs::statvfs(&self.directory) {
            Ok(told) => {
                let free = told.f_bavail.saturating_mul(told.f_frsize);
                let least = self.least.saturating_add(more);
                if free < least { Err(DiskLow { free, least }) } else { Ok(()) }
            }
            Err(error) => {
                // The next write will show.
                tracing::warn!("could not get the free space of `{}`: {error}", self.directory.display());
                Ok(())
            }
        }
    }
}

impl From<ChangeError> for ForgeError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::OverQuota(over) => Self::OverQuota(over),
            ChangeError::Store(error) => Self::Store(error),
            ChangeError::NotFound | ChangeError::Raced { .. } => Self::not_found("project", "of this key"),
        }
    }
}

/// Reserves initial room for an upload.
pub(crate) async fn reserve(
    store: &Store,
    project: ProjectId,
    bytes: u64,
) -> Result<Reservation, ForgeError> {
    Ok(store.reserve_storage(project, bytes).await?)
}

/// Reserves room for each piece before it is passed on. If there is none, drains the rest, so that the client
/// reads the reason, and fails.
pub(crate) fn metered<'a, S>(
    body: S,
    reservation: Reservation,
    already: u64,
) -> BoxStream<'a, Result<Bytes, String>>
where
    S: Stream<Item = Result<Bytes, String>> + Send + Unpin + 'a,
{
    let state = (body, reservation, already);
    let metered = futures_util::stream::unfold(state, |(mut body, reservation, came)| async move {
        let piece = match body.next().await? {
            Ok(piece) => piece,
            broken => return Some((broken, (body, reservation, came))),
        };
        let came = came.saturating_add(piece.len() as u64);
        let Err(error) = reservation.cover(came).await else {
            return Some((Ok(piece), (body, reservation, came)));
        };
        while let Some(Ok(_)) = body.next().await {}
        Some((Err(error.to_string()), (body, reservation, came)))
    });
    // Some callers read on after the end.
    metered.fuse().boxed()
}

impl Forges {
    /// Whether a project may write now.
    pub(crate) async fn admit_writes(&self, project: ProjectId) -> Result<(), ForgeError> {
        self.floor.check()?;
        self.store.storage_refusal(project).await?.map_or(Ok(()), |over| Err(ForgeError::OverQuota(over)))
    }

    /// Counts repositories that have no recorded size.
    pub async fn count_repositories(&self) -> Result<(), ForgeError> {
        for (project, id) in self.store.uncounted_repositories(&self.store.operator()).await? {
            let directory = self.shelf.path(project, id);
            // Another server's, or deleted.
            if !directory.is_dir() {
                continue;
            }
            let bare = crate::local::Bare { git: self.git.clone(), directory };
            match bare.size().await {
                Ok(size) => {
                    let objects = bare.directory.join("lfs/objects");
                    let large = tokio::task::spawn_blocking(move || crate::lfs::count(&objects)).await;
                    let large = large.map_err(std::io::Error::other).flatten().unwrap_or_default();
                    self.store.set_repository_size(id, size.saturating_add(large)).await?;
                }
                Err(error) => tracing::warn!(repository.id = %id, "could not count a repository: {error}"),
            }
        }
        Ok(())
    }
}

impl LocalForge {
    /// Records the current size of the repository.
    pub(crate) async fn count_size(&self) -> Result<(), ForgeError> {
        let size = self.bare.size().await?.saturating_add(self.lfs_size().await?);
        Ok(self.store.set_repository_size(self.row.id, size).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_below_its_floor_is_told_of() {
        let here = std::env::temp_dir();
        assert_eq!(DiskFloor::new(here.clone(), 0).check(), Ok(()));
        assert_eq!(DiskFloor::new(here.clone(), 1).check(), Ok(()));
        let low = DiskFloor::new(here, u64::MAX).check().unwrap_err();
        assert!(low.free > 0 && low.least == u64::MAX);
        assert_eq!(
            DiskFloor::new("/nonexistent".into(), u64::MAX).check(),
            Ok(()),
            "the write itself will tell"
        );
    }
}

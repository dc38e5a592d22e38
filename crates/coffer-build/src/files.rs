//! Uploaded files of `COPY` steps: `<dir>/<project>/<sha256>`. No client's text is part of a path.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use coffer_core::{ProjectId, Refusal};
use coffer_store::{ChangeError, Reservation, StoreError};
use futures_util::{Stream, StreamExt as _};
use sha2::{Digest as _, Sha256};
use tokio::fs::{File, OpenOptions};
use tokio::io::AsyncWriteExt as _;

use crate::BuildError;

/// An upload that stalls for this long is aborted.
const STALLED: Duration = Duration::from_secs(120);
const DRAFT_PREFIX: &str = ".upload-";

/// Whether the server's disk has room for so many more bytes. The server itself needs some, for its records.
pub struct DiskRoom(pub Box<dyn Fn(u64) -> Result<(), Refusal> + Send + Sync>);

impl std::fmt::Debug for DiskRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DiskRoom")
    }
}

impl DiskRoom {
    pub(crate) fn check(&self, more: u64) -> Result<(), BuildError> {
        (self.0)(more).map_err(BuildError::DiskLow)
    }
}

/// Files on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) size_bytes: i64,
    pub(crate) sha256: String,
}

#[derive(Debug)]
pub(crate) struct Files {
    dir: PathBuf,
    pub(crate) room: DiskRoom,
}

impl Files {
    pub(crate) fn new(dir: PathBuf, room: DiskRoom) -> Self {
        Self { dir, room }
    }

    fn home(&self, project: ProjectId) -> PathBuf {
        self.dir.join(project.to_string())
    }

    /// Writes an upload, within its reservation and `largest`. It is on disk under its final name afterwards.
    pub(crate) async fn write(
        &self,
        project: ProjectId,
        largest: u64,
        reservation: &Reservation,
        contents: impl Stream<Item = Result<Bytes, String>> + Send + Unpin,
    ) -> Result<Written, BuildError> {
        let home = self.home(project);
        DirBuilder::new().recursive(true).mode(0o700).create(&home).map_err(BuildError::Disk)?;
        let draft = home.join(format!("{DRAFT_PREFIX}{}", hex::encode(rand::random::<[u8; 8]>())));
        let written = write_draft(&draft, largest, (reservation, &self.room), contents).await;
        let finished = match written {
            Ok(written) => match rename(&draft, &home.join(&written.sha256)).await {
                Ok(()) => return Ok(written),
                Err(error) => Err(BuildError::Disk(error)),
            },
            Err(error) => Err(error),
        };
        let _ = tokio::fs::remove_file(&draft).await;
        finished
    }

    /// Where files are that were written. `sha256` is ours, never a client's text.
    pub(crate) fn path(&self, project: ProjectId, sha256: &str) -> PathBuf {
        self.home(project).join(sha256)
    }

    pub(crate) async fn open(&self, project: ProjectId, sha256: &str) -> io::Result<File> {
        File::open(self.path(project, sha256)).await
    }

    pub(crate) async fn remove(&self, project: ProjectId, sha256: &str) -> io::Result<()> {
        match tokio::fs::remove_file(self.home(project).join(sha256)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes what killed uploads left: drafts, and files that got their name and no record. `known` says which of a
    /// project's are on record. Only at the start, when there are no uploads.
    pub(crate) async fn clear_strays<Known>(
        &self,
        known: impl Fn(ProjectId) -> Known,
    ) -> Result<(), BuildError>
    where
        Known: Future<Output = Result<Vec<String>, StoreError>>,
    {
        for project in names(&self.dir).map_err(BuildError::Disk)? {
            let Ok(project) = project.parse::<ProjectId>() else { continue };
            let known = known(project).await?;
            let home = self.home(project);
            for name in names(&home).map_err(BuildError::Disk)? {
                if !known.contains(&name) {
                    std::fs::remove_file(home.join(name)).map_err(BuildError::Disk)?;
                }
            }
        }
        Ok(())
    }
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
    }
}

async fn write_draft(
    draft: &Path,
    largest: u64,
    (reservation, room): (&Reservation, &DiskRoom),
    mut contents: impl Stream<Item = Result<Bytes, String>> + Send + Unpin,
) -> Result<Written, BuildError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft).await;
    let mut file = file.map_err(BuildError::Disk)?;
    let (mut digest, mut size) = (Sha256::new(), 0u64);
    while let Some(piece) =
        tokio::time::timeout(STALLED, contents.next()).await.map_err(|_| BuildError::TooSlow)?
    {
        let piece = piece.map_err(BuildError::Broken)?;
        size += piece.len() as u64;
        if size > largest {
            return Err(BuildError::TooLarge(largest));
        }
        reservation.cover(size).await.map_err(over)?;
        room.check(piece.len() as u64)?;
        digest.update(&piece);
        file.write_all(&piece).await.map_err(BuildError::Disk)?;
    }
    file.flush().await.map_err(BuildError::Disk)?;
    file.sync_all().await.map_err(BuildError::Disk)?;
    let size_bytes = i64::try_from(size).map_err(|_| BuildError::TooLarge(largest))?;
    Ok(Written { size_bytes, sha256: hex::encode(digest.finalize()) })
}

async fn rename(draft: &Path, path: &Path) -> io::Result<()> {
    tokio::fs::rename(draft, path).await?;
    // The name itself is durable only after its directory is synced.
    match path.parent() {
        Some(dir) => File::open(dir).await?.sync_all().await,
        None => Ok(()),
    }
}

/// The error of a reservation.
pub(crate) fn over(error: ChangeError) -> BuildError {
    match error {
        ChangeError::OverQuota(over) => BuildError::OverQuota(over),
        ChangeError::Store(error) => error.into(),
        ChangeError::NotFound | ChangeError::Raced { .. } => BuildError::NoGrant,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_start_removes_what_killed_uploads_left() {
        let dir = tempfile::tempdir().unwrap();
        let room = DiskRoom(Box::new(|_| Ok(())));
        let files = Files::new(dir.path().join("template-files"), room);
        files.clear_strays(|_| async { Ok(Vec::new()) }).await.unwrap();
        let (mine, other) = (ProjectId::generate(), ProjectId::generate());
        for project in [mine, other] {
            std::fs::create_dir_all(files.home(project)).unwrap();
            for name in [".upload-1", "on-record", "renamed-only"] {
                std::fs::write(files.home(project).join(name), name).unwrap();
            }
        }
        let known = |project| async move {
            Ok(if project == mine { vec!["on-record".to_string()] } else { Vec::new() })
        };
        files.clear_strays(known).await.unwrap();
        assert_eq!(names(&files.home(mine)).unwrap(), ["on-record"]);
        assert!(names(&files.home(other)).unwrap().is_empty());
    }
}

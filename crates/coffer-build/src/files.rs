//! Uploaded files of `COPY` steps: `<dir>/<project>/<sha256>`. No client's text is part of a path.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use coffer_core::ProjectId;
use coffer_store::{ChangeError, Reservation};
use futures_util::{Stream, StreamExt as _};
use sha2::{Digest as _, Sha256};
use tokio::fs::{File, OpenOptions};
use tokio::io::AsyncWriteExt as _;

use crate::BuildError;

/// An upload that stalls for this long is aborted.
const STALLED: Duration = Duration::from_secs(120);
const DRAFT_PREFIX: &str = ".upload-";

/// Files on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) size_bytes: i64,
    pub(crate) sha256: String,
}

#[derive(Debug)]
pub(crate) struct Files {
    dir: PathBuf,
}

impl Files {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
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
        let written = write_draft(&draft, largest, reservation, contents).await;
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

    /// Removes what killed uploads left. Only at the start, when there are no uploads.
    pub(crate) fn clear_drafts(&self) -> io::Result<()> {
        let projects = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            projects => projects?,
        };
        for project in projects {
            for file in std::fs::read_dir(project?.path())? {
                let file = file?;
                if file.file_name().to_string_lossy().starts_with(DRAFT_PREFIX) {
                    std::fs::remove_file(file.path())?;
                }
            }
        }
        Ok(())
    }
}

async fn write_draft(
    draft: &Path,
    largest: u64,
    reservation: &Reservation,
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

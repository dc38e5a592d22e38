//! The files of artifacts' contents.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use coffer_core::{ArtifactId, ProjectId};
use futures_util::{Stream, StreamExt as _};
use sha2::{Digest, Sha256};
use tokio::fs::{File, OpenOptions};
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use super::error::KeepError;

/// The suffix of files that are being written.
const DRAFT: &str = "draft";
/// An upload that stalls for this long is aborted.
const STALLED: Duration = Duration::from_secs(120);
/// An upload has this long at first, and must then average this many bytes a second.
const GRACE: Duration = Duration::from_secs(60);
const LEAST_RATE: u64 = 32 << 10;

/// How long an upload may take.
#[derive(Debug, Clone, Copy)]
struct Pace {
    grace: Duration,
    least_rate: u64,
}

impl Pace {
    /// The time within which more than `size` bytes must have arrived, or all.
    fn time_for(self, size: u64) -> Duration {
        self.grace + Duration::from_secs(size / self.least_rate)
    }
}

/// Contents on disk.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) size_bytes: i64,
    pub(super) sha256: String,
}

/// A file below a project's directory.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) name: String,
    /// `None` if it is not a complete artifact.
    pub(super) artifact: Option<ArtifactId>,
}

#[derive(Debug)]
pub(super) struct Files {
    dir: Arc<Path>,
    pace: Pace,
}

impl Files {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.into(), pace: Pace { grace: GRACE, least_rate: LEAST_RATE } }
    }

    fn path(&self, project: ProjectId, artifact: ArtifactId) -> PathBuf {
        self.dir.join(project.to_string()).join(artifact.to_string())
    }

    /// Writes contents atomically: to a temporary name, synced, then renamed.
    pub(super) async fn write(
        &self,
        project: ProjectId,
        artifact: ArtifactId,
        largest: u64,
        contents: impl Stream<Item = Result<Bytes, String>> + Send + Unpin,
    ) -> Result<Written, KeepError> {
        let path = self.path(project, artifact);
        let draft = path.with_extension(DRAFT);
        let written = self.write_draft(&draft, largest, contents).await;
        let finished = match written {
            Ok(written) => rename(&draft, &path).await.map(|()| written).map_err(KeepError::Disk),
            Err(error) => Err(error),
        };
        if finished.is_err() {
            let _ = tokio::fs::remove_file(&draft).await;
        }
        finished
    }

    async fn write_draft(
        &self,
        draft: &Path,
        largest: u64,
        mut contents: impl Stream<Item = Result<Bytes, String>> + Send + Unpin,
    ) -> Result<Written, KeepError> {
        if let Some(dir) = draft.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(KeepError::Disk)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft).await;
        let mut file = file.map_err(KeepError::Disk)?;
        let (mut digest, mut size) = (Sha256::new(), 0u64);
        let began = Instant::now();
        loop {
            let by = (began + self.pace.time_for(size)).min(Instant::now() + STALLED);
            let next = tokio::time::timeout_at(by, contents.next()).await;
            let Some(piece) = next.map_err(|_| KeepError::TooSlow)? else { break };
            let piece = piece.map_err(KeepError::Broken)?;
            size += piece.len() as u64;
            if size > largest {
                return Err(KeepError::TooLarge(largest));
            }
            digest.update(&piece);
            file.write_all(&piece).await.map_err(KeepError::Disk)?;
        }
        file.flush().await.map_err(KeepError::Disk)?;
        file.sync_all().await.map_err(KeepError::Disk)?;
        let size_bytes = i64::try_from(size).map_err(|_| KeepError::TooLarge(largest))?;
        Ok(Written { size_bytes, sha256: hex::encode(digest.finalize()) })
    }

    /// The contents and their length.
    pub(super) async fn open(&self, project: ProjectId, artifact: ArtifactId) -> io::Result<(File, u64)> {
        let file = File::open(self.path(project, artifact)).await?;
        let length = file.metadata().await?.len();
        Ok((file, length))
    }

    /// Deletes contents, if there are any.
    pub(super) async fn remove(&self, project: ProjectId, artifact: ArtifactId) -> io::Result<()> {
        match tokio::fs::remove_file(self.path(project, artifact)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) async fn remove_file(&self, project: &str, name: &str) -> io::Result<()> {
        tokio::fs::remove_file(self.dir.join(project).join(name)).await
    }

    /// Every file of at least this age, by the name of its project's directory.
    pub(super) async fn older_than(&self, age: Duration) -> io::Result<Vec<(String, Vec<Found>)>> {
        let dir = self.dir.clone();
        let look = tokio::task::spawn_blocking(move || older_than(&dir, age));
        look.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
    }
}

async fn rename(draft: &Path, path: &Path) -> io::Result<()> {
    tokio::fs::rename(draft, path).await?;
    // The name itself is durable only after its directory is synced.
    match path.parent() {
        Some(dir) => File::open(dir).await?.sync_all().await,
        None => Ok(()),
    }
}

fn older_than(dir: &Path, age: Duration) -> io::Result<Vec<(String, Vec<Found>)>> {
    #[expect(clippy::disallowed_methods, reason = "compared with times of files, which are of the same type")]
    let before = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
    let projects = match fs::read_dir(dir) {
        Ok(projects) => projects,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut all = Vec::new();
    for project in projects {
        let project = project?;
        // Skip files that are not ours.
        let Some(name) = project.file_name().to_str().map(str::to_string) else { continue };
        if name.parse::<ProjectId>().is_err() {
            continue;
        }
        let mut found = Vec::new();
        for file in fs::read_dir(project.path())? {
            let file = file?;
            let Some(name) = file.file_name().to_str().map(str::to_string) else { continue };
            let is_old = file.metadata().and_then(|data| data.modified()).is_ok_and(|at| at <= before);
            let artifact = name.parse::<ArtifactId>().ok();
            let is_ours = artifact.is_some() || name.ends_with(&format!(".{DRAFT}"));
            if is_old && is_ours {
                found.push(Found { artifact, name });
            }
        }
        all.push((name, found));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    fn pieces(texts: &[&'static str]) -> impl Stream<Item = Result<Bytes, String>> + Send + Unpin {
        stream::iter(texts.iter().map(|text| Ok(Bytes::from_static(text.as_bytes()))).collect::<Vec<_>>())
    }

    #[tokio::test]
    async fn contents_are_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path());
        let (project, artifact) = (ProjectId::generate(), ArtifactId::generate());
        let written = files.write(project, artifact, 6, pieces(&["abc", "def"])).await.unwrap();
        let sha256 = "bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721".to_string();
        assert_eq!(written, Written { size_bytes: 6, sha256 });
        assert_eq!(files.open(project, artifact).await.unwrap().1, 6);

        let other = ArtifactId::generate();
        let refused = files.write(project, other, 5, pieces(&["abc", "def"])).await;
        assert!(matches!(refused, Err(KeepError::TooLarge(5))));
        let broken = stream::iter([Ok(Bytes::from_static(b"a")), Err("away".to_string())]);
        let refused = files.write(project, other, 5, broken).await;
        assert!(matches!(refused, Err(KeepError::Broken(_))));
        let left = fs::read_dir(dir.path().join(project.to_string())).unwrap().count();
        assert_eq!(left, 1, "nothing is left of what was not kept");
        files.remove(project, artifact).await.unwrap();
        files.remove(project, artifact).await.unwrap();
        assert!(files.open(project, artifact).await.is_err());
    }

    #[tokio::test]
    async fn contents_that_trickle_are_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let pace = Pace { grace: Duration::from_millis(50), least_rate: 1 << 20 };
        let files = Files { pace, ..Files::new(dir.path()) };
        let (project, artifact) = (ProjectId::generate(), ArtifactId::generate());
        let trickle = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Some((Ok(Bytes::from_static(b"x")), ()))
        });
        let refused = files.write(project, artifact, 1 << 20, Box::pin(trickle)).await;
        assert!(matches!(refused, Err(KeepError::TooSlow)), "{refused:?}");
        let left = fs::read_dir(dir.path().join(project.to_string())).unwrap().count();
        assert_eq!(left, 0, "nothing is left of what was not kept");
        files.write(project, artifact, 9, pieces(&["whole"])).await.unwrap();
    }

    #[test]
    fn long_contents_have_long() {
        let pace = Files::new(Path::new("/")).pace;
        assert_eq!(pace.time_for(0), GRACE);
        assert_eq!(pace.time_for(LEAST_RATE * 10 + 1), GRACE + Duration::from_secs(10));
    }

    #[tokio::test]
    async fn old_files_are_found_and_foreign_ones_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path());
        assert!(files.older_than(Duration::ZERO).await.unwrap().is_empty());
        let (project, artifact) = (ProjectId::generate(), ArtifactId::generate());
        files.write(project, artifact, 9, pieces(&["a"])).await.unwrap();
        let of_project = dir.path().join(project.to_string());
        fs::write(of_project.join(format!("{}.draft", ArtifactId::generate())), "x").unwrap();
        fs::write(of_project.join("README"), "a person's").unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        let found = files.older_than(Duration::ZERO).await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1.len(), 2, "{found:?}");
        assert!(files.older_than(Duration::from_secs(60)).await.unwrap()[0].1.is_empty());
    }
}

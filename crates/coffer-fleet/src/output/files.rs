//! The files of the output log: `<dir>/<sandbox>/<number>.log`, or `.zst` once compressed.
//!
//! No file stays open between two calls, so a thousand sandboxes cost no descriptor. The index in the database
//! says how much of a file counts; the next write truncates what a crash left beyond that.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use coffer_core::{ProjectId, SandboxId};
use coffer_shares::Shares;
use coffer_store::{SegmentRow, SegmentState};

/// No segment is longer, compressed or not.
const LONGEST: i64 = 4 << 20;

const LEVEL: i32 = 3;

/// Bytes for the end of a segment.
#[derive(Debug)]
pub(super) struct Addition {
    pub sandbox: SandboxId,
    pub number: i64,
    /// The offset in the file: the length that the index has.
    pub at: u64,
    pub bytes: Vec<u8>,
}

/// The contents of a segment.
#[derive(Debug)]
pub(super) enum Contents {
    Here(Bytes),
    /// The index has it, but the file is missing.
    Missing,
}

#[derive(Debug, Clone)]
pub(super) struct Files {
    dir: Arc<Path>,
    /// Each call has at most two files open.
    room: Shares<ProjectId>,
}

impl Files {
    pub(super) fn new(dir: &Path, room: Shares<ProjectId>) -> Self {
        Self { dir: dir.into(), room }
    }

    async fn call<T: Send + 'static>(
        &self,
        whose: ProjectId,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let _place = self.room.take(whose).await.map_err(io::Error::other)?;
        let dir = self.dir.clone();
        tokio::task::spawn_blocking(move || work(&dir))
            .await
            .unwrap_or_else(|panic| Err(io::Error::other(panic)))
    }

    /// Writes and syncs the additions.
    pub(super) async fn append(&self, whose: ProjectId, additions: Vec<Addition>) -> io::Result<()> {
        self.call(whose, move |dir| additions.iter().try_for_each(|addition| append(dir, addition))).await
    }

    /// Whether the file of a segment is as long as the index says.
    pub(super) async fn is_whole(&self, segment: &SegmentRow) -> bool {
        let path = plain(&self.dir, segment.sandbox, segment.number);
        let bytes = segment.bytes;
        let found = self.call(segment.project, move |_| fs::metadata(path)).await;
        segment.state == SegmentState::Plain
            && found.is_ok_and(|found| i64::try_from(found.len()).is_ok_and(|length| length >= bytes))
    }

    pub(super) async fn read(&self, segment: &SegmentRow) -> io::Result<Contents> {
        let (sandbox, number, bytes) = (segment.sandbox, segment.number, segment.bytes);
        if !(0..=LONGEST).contains(&bytes) {
            return Ok(Contents::Missing);
        }
        self.call(segment.project, move |dir| {
            // Try both forms: it may have been compressed since the index was read.
            let contents = match read_plain(&plain(dir, sandbox, number), bytes) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    read_compressed(&compressed(dir, sandbox, number), bytes)
                }
                read => read,
            };
            match contents {
                Ok(contents) if i64::try_from(contents.len()).is_ok_and(|length| length == bytes) => {
                    Ok(Contents::Here(contents.into()))
                }
                Ok(_) => Ok(Contents::Missing),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Contents::Missing),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Writes the compressed form next to the plain one, and returns its length.
    pub(super) async fn compress(&self, segment: &SegmentRow) -> io::Result<i64> {
        let (sandbox, number, bytes) = (segment.sandbox, segment.number, segment.bytes);
        self.call(segment.project, move |dir| {
            let contents = read_plain(&plain(dir, sandbox, number), bytes)?;
            let target = compressed(dir, sandbox, number);
            let draft = target.with_extension("draft");
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
            let packed = zstd::encode_all(&contents[..], LEVEL)?;
            file.write_all(&packed)?;
            file.sync_all()?;
            fs::rename(&draft, &target)?;
            sync_dir(&target)?;
            i64::try_from(packed.len()).map_err(io::Error::other)
        })
        .await
    }

    /// Deletes the plain form, after the compressed one was recorded.
    pub(super) async fn delete_plain(&self, segment: &SegmentRow) -> io::Result<()> {
        let (sandbox, number) = (segment.sandbox, segment.number);
        self.call(segment.project, move |dir| gone(fs::remove_file(plain(dir, sandbox, number)))).await
    }

    /// Deletes a segment, and the sandbox's directory with the last one.
    pub(super) async fn delete(&self, segment: &SegmentRow) -> io::Result<()> {
        let (sandbox, number) = (segment.sandbox, segment.number);
        self.call(segment.project, move |dir| {
            gone(fs::remove_file(plain(dir, sandbox, number)))?;
            gone(fs::remove_file(compressed(dir, sandbox, number)))?;
            // Fails while the directory is not empty.
            let _ = fs::remove_dir(dir.join(sandbox.to_string()));
            Ok(())
        })
        .await
    }
}

fn plain(dir: &Path, sandbox: SandboxId, number: i64) -> PathBuf {
    dir.join(sandbox.to_string()).join(format!("{number:08}.log"))
}

fn compressed(dir: &Path, sandbox: SandboxId, number: i64) -> PathBuf {
    dir.join(sandbox.to_string()).join(format!("{number:08}.zst"))
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn append(dir: &Path, addition: &Addition) -> io::Result<()> {
    let path = plain(dir, addition.sandbox, addition.number);
    let mut options = OpenOptions::new();
    options.write(true).create(addition.at == 0).mode(0o600);
    let file = match options.open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && addition.at == 0 => {
            let parent = path.parent().expect("it is in a directory");
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            sync_dir(parent)?;
            options.open(&path)?
        }
        opened => opened?,
    };
    let length = file.metadata()?.len();
    if length < addition.at {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a segment of the output log is too short"));
    }
    // agentd still has what an earlier server wrote without recording it.
    if length > addition.at {
        file.set_len(addition.at)?;
    }
    file.write_all_at(&addition.bytes, addition.at)?;
    file.sync_data()?;
    if addition.at == 0 { sync_dir(&path) } else { Ok(()) }
}

/// Makes the name of a file durable.
fn sync_dir(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

fn read_plain(path: &Path, bytes: i64) -> io::Result<Vec<u8>> {
    take(File::open(path)?, bytes)
}

fn read_compressed(path: &Path, bytes: i64) -> io::Result<Vec<u8>> {
    take(zstd::Decoder::new(File::open(path)?)?, bytes)
}

fn take(from: impl Read, bytes: i64) -> io::Result<Vec<u8>> {
    let bytes = u64::try_from(bytes).map_err(io::Error::other)?;
    let mut contents = Vec::with_capacity(usize::try_from(bytes).map_err(io::Error::other)?);
    from.take(bytes).read_to_end(&mut contents)?;
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use coffer_core::ProjectId;

    use super::*;

    fn segment(sandbox: SandboxId, bytes: i64) -> SegmentRow {
        SegmentRow {
            sandbox,
            project: ProjectId::generate(),
            number: 0,
            state: SegmentState::Plain,
            first_position: 0,
            bytes,
            file_bytes: bytes,
            first_ms: 0,
            last_ms: 0,
        }
    }

    async fn contents(files: &Files, segment: &SegmentRow) -> Option<Bytes> {
        match files.read(segment).await.unwrap() {
            Contents::Here(bytes) => Some(bytes),
            Contents::Missing => None,
        }
    }

    #[tokio::test]
    async fn what_a_crash_left_is_cut_and_what_is_missing_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let room = Shares::new(coffer_shares::pool::LOG_FILES);
        let files = Files::new(&dir.path().join("output"), room);
        let sandbox = SandboxId::generate();
        let add = |at, bytes: &[u8]| {
            files.append(
                ProjectId::generate(),
                vec![Addition { sandbox, number: 0, at, bytes: bytes.to_vec() }],
            )
        };
        add(0, b"first").await.unwrap();
        add(5, b" torn, as the server died here").await.unwrap();
        // The index has only the first five bytes.
        assert_eq!(contents(&files, &segment(sandbox, 5)).await.unwrap(), "first"[..]);
        add(5, b" second").await.unwrap();
        let whole = segment(sandbox, 12);
        assert_eq!(contents(&files, &whole).await.unwrap(), "first second"[..]);
        assert!(files.is_whole(&whole).await && !files.is_whole(&segment(sandbox, 13)).await);
        assert!(contents(&files, &segment(sandbox, 13)).await.is_none());
        add(14, b"beyond the end").await.unwrap_err();

        let length = files.compress(&whole).await.unwrap();
        files.delete_plain(&whole).await.unwrap();
        assert!(length > 0 && !files.is_whole(&whole).await);
        assert_eq!(contents(&files, &whole).await.unwrap(), "first second"[..]);
        files.delete(&whole).await.unwrap();
        assert!(contents(&files, &whole).await.is_none());
        assert_eq!(fs::read_dir(dir.path().join("output")).unwrap().count(), 0);
    }
}

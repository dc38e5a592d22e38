//! The directory of one project.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use coffer_core::clock;

use super::partial::Partial;
use crate::digest::{Digest, Hasher};
use crate::error::ImageError;

const PIECE: usize = 1 << 20;

#[derive(Debug, Clone)]
pub(crate) struct Home(Arc<Path>);

/// A blob that was copied into the store.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) digest: Digest,
    /// Its first bytes, which tell how it is compressed.
    pub(crate) magic: [u8; 4],
}

/// Why a blob was not copied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotStored {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("has the digest {0}")]
    Digest(Digest),
}

impl Home {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self(dir.into())
    }

    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.hex())
    }

    fn blobs(&self) -> PathBuf {
        self.0.join("sha256")
    }

    fn partials(&self) -> PathBuf {
        self.0.join("partial")
    }

    fn create(&self) -> io::Result<()> {
        create(&self.blobs())?;
        create(&self.partials())
    }

    /// The length of a blob that is there, which counts as used from now on.
    pub(super) fn touch(&self, digest: &Digest) -> io::Result<Option<u64>> {
        let file = match File::open(self.blob(digest)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        file.set_modified(now())?;
        Ok(Some(file.metadata()?.len()))
    }

    /// Whether a blob is there, which counts as used from now on.
    pub(crate) fn has(&self, digest: &Digest) -> bool {
        self.touch(digest).is_ok_and(|length| length.is_some())
    }

    /// Opens what there is of a download, or begins one.
    pub(super) fn partial(&self, digest: &Digest, size: u64) -> io::Result<Partial> {
        self.create()?;
        Partial::open(self.partials().join(digest.hex()), size)
    }

    /// Copies a blob into the store, checks it, and syncs it before it gets its name. `tick` gets the bytes
    /// copied so far, and can stop it.
    pub(crate) fn store(
        &self,
        from: &mut dyn Read,
        expected: Option<Digest>,
        tick: &dyn Fn(u64) -> io::Result<()>,
    ) -> Result<Stored, NotStored> {
        self.create()?;
        let mut draft = tempfile::Builder::new().prefix("import-").tempfile_in(self.partials())?;
        let (mut hasher, mut magic, mut done) = (Hasher::new(), [0; 4], 0);
        let mut piece = vec![0; PIECE];
        loop {
            let read = match from.read(&mut piece) {
                Ok(0) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            for (byte, slot) in
                piece[..read].iter().zip(magic.iter_mut().skip(usize::try_from(done).unwrap_or(4)))
            {
                *slot = *byte;
            }
            hasher.update(&piece[..read]);
            draft.write_all(&piece[..read])?;
            done += read as u64;
            tick(done)?;
        }
        let digest = hasher.finish();
        if expected.is_some_and(|expected| expected != digest) {
            return Err(NotStored::Digest(digest));
        }
        draft.as_file().sync_all()?;
        draft.persist(self.blob(&digest)).map_err(|error| error.error)?;
        File::open(self.blobs())?.sync_all()?;
        Ok(Stored { digest, magic })
    }

    /// The blobs that are there.
    pub(super) fn list(&self) -> io::Result<Vec<Digest>> {
        let names = names(&self.blobs())?;
        Ok(names.iter().filter_map(|name| Digest::parse_hex(name).ok()).collect())
    }

    /// Bytes of everything that is there.
    pub(super) fn bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for dir in [self.blobs(), self.partials()] {
            for name in names(&dir)? {
                match fs::metadata(dir.join(name)) {
                    Ok(about) => bytes += about.len(),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(bytes)
    }

    pub(super) fn remove(&self, digest: &Digest) -> io::Result<bool> {
        unlink(&self.partials().join(digest.hex()))?;
        unlink(&self.blob(digest))
    }

    /// Deletes a blob that was not used for `age`; returns its length.
    pub(super) fn remove_older(&self, digest: &Digest, age: Duration) -> io::Result<Option<u64>> {
        let path = self.blob(digest);
        let about = fs::metadata(&path)?;
        if !is_older(about.modified()?, age) {
            return Ok(None);
        }
        Ok(unlink(&path)?.then_some(about.len()))
    }

    /// Deletes partial files that did not change for `age`; returns how many.
    pub(super) fn remove_abandoned(&self, age: Duration) -> io::Result<u64> {
        let mut removed = 0;
        for name in names(&self.partials())? {
            let path = self.partials().join(name);
            let Ok(file) = File::open(&path) else { continue };
            // A download in progress holds the lock.
            if file.try_lock().is_ok() && is_older(file.metadata()?.modified()?, age) {
                removed += u64::from(unlink(&path)?);
            }
        }
        Ok(removed)
    }

    pub(super) fn remove_all(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

/// Creates a directory that only this user can enter.
pub(super) fn create(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(names)
}

fn unlink(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(clock::now_ms().unsigned_abs())
}

fn is_older(time: SystemTime, age: Duration) -> bool {
    now().duration_since(time).is_ok_and(|passed| passed > age)
}

/// Runs file work off the runtime.
pub(crate) async fn blocking<T: Send + 'static>(
    doing: &'static str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, ImageError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(ImageError::disk(doing))
}

//! Git LFS for local repositories: objects by their SHA-256, in the directory of the repository.
//!
//! An object is visible once it is complete: it is received into a temporary file, which the next start would
//! remove, checked against its id and length, synced, and only then gets its name. Objects count in a
//! repository's size.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use coffer_core::RepositoryId;
use coffer_core::sync::Mutex;
use coffer_store::{ProjectScope, RepositoryRow};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use ring::digest::{Context, SHA256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{OnceCell, mpsc};

use crate::local::{COMING, LocalForge};
use crate::serve::Outgoing;
use crate::{ForgeError, Forges};

const PIECE: usize = 64 * 1024;
const PIECES: usize = 4;
/// The least that a file counts: many small ones fill a disk too.
const LEAST_COUNTED: u64 = 4096;

/// The id of an object: its SHA-256 in 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LfsOid(Box<str>);

impl FromStr for LfsOid {
    type Err = ForgeError;

    fn from_str(text: &str) -> Result<Self, ForgeError> {
        let hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == 64 && text.bytes().all(hex) {
            Ok(Self(text.into()))
        } else {
            Err(ForgeError::invalid("oid", "is not 64 hexadecimal digits"))
        }
    }
}

impl fmt::Display for LfsOid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl LfsOid {
    fn path(&self, objects: &Path) -> PathBuf {
        objects.join(&self.0[..2]).join(&self.0[2..4]).join(&*self.0)
    }
}

/// The result of looking up an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LfsFound {
    Here,
    Absent,
    /// It exists with another length.
    OtherLength,
    /// It does not exist, and is too large to be accepted.
    TooLarge,
}

/// The total size of a repository's objects, once it was computed.
type Used = Arc<OnceCell<Mutex<u64>>>;

/// The totals of all repositories.
#[derive(Debug, Default)]
pub(crate) struct LfsUse(Mutex<HashMap<RepositoryId, Used>>);

impl LfsUse {
    fn of(&self, repository: RepositoryId) -> Used {
        let mut all = self.0.lock();
        all.entry(repository).or_default().clone()
    }

    pub(crate) fn forget(&self, repository: RepositoryId) {
        self.0.lock().remove(&repository);
    }
}

/// Room for an object, released unless the object is stored.
struct Reserved {
    used: Used,
    bytes: u64,
}

impl Reserved {
    fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(used) = self.used.get() {
            let mut used = used.lock();
            *used = used.saturating_sub(self.bytes);
        }
    }
}

/// A temporary file, removed on drop.
struct Coming(PathBuf);

impl Drop for Coming {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("could not remove `{}`: {error}", self.0.display());
        }
    }
}

impl LocalForge {
    fn lfs_objects(&self) -> PathBuf {
        self.bare.directory.join("lfs/objects")
    }

    async fn lfs_cell(&self) -> Result<Used, ForgeError> {
        let cell = self.lfs.of(self.row.id);
        let objects = self.lfs_objects();
        let look = || async move {
            let counted = tokio::task::spawn_blocking(move || count(&objects)).await;
            counted.map_err(io::Error::other).flatten().map(Mutex::new).map_err(ForgeError::disk)
        };
        cell.get_or_try_init(look).await?;
        Ok(cell)
    }

    /// The total size of its Git LFS objects.
    pub(crate) async fn lfs_size(&self) -> Result<u64, ForgeError> {
        let cell = self.lfs_cell().await?;
        let used = cell.get().map(|used| *used.lock());
        Ok(used.unwrap_or(0))
    }

    async fn lfs_reserve(&self, length: u64) -> Result<Reserved, ForgeError> {
        let most = self.bare.git.limits.repository;
        let left = most.saturating_sub(self.bare.size().await?);
        let (cell, bytes) = (self.lfs_cell().await?, length.max(LEAST_COUNTED));
        if let Some(used) = cell.get() {
            let mut used = used.lock();
            if used.saturating_add(bytes) > left {
                return Err(ForgeError::TooLarge { what: "the repository with this object", most });
            }
            *used += bytes;
        }
        Ok(Reserved { used: cell, bytes })
    }

    async fn lfs_found(&self, oid: &LfsOid) -> Result<Option<u64>, ForgeError> {
        match tokio::fs::metadata(oid.path(&self.lfs_objects())).await {
            Ok(file) => Ok(Some(file.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ForgeError::disk(error)),
        }
    }
}

/// The total size of a directory of objects, in bytes.
pub(crate) fn count(objects: &Path) -> io::Result<u64> {
    let (mut total, mut directories) = (0, vec![(objects.to_path_buf(), 0)]);
    while let Some((directory, depth)) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                if depth < 2 {
                    directories.push((entry.path(), depth + 1));
                }
            } else {
                total += entry.metadata()?.len().max(LEAST_COUNTED);
            }
        }
    }
    Ok(total)
}

impl Forges {
    /// Whether objects exist, and would be accepted if they do not.
    pub async fn lfs_look(
        &self,
        scope: &ProjectScope,
        row: &RepositoryRow,
        objects: &[(LfsOid, u64)],
    ) -> Result<Vec<LfsFound>, ForgeError> {
        let forge = self.local(scope, row, "")?;
        let mut found = Vec::with_capacity(objects.len());
        for (oid, size) in objects {
            found.push(match forge.lfs_found(oid).await? {
                Some(length) if length == *size => LfsFound::Here,
                Some(_) => LfsFound::OtherLength,
                None if *size > self.git.limits.push => LfsFound::TooLarge,
                None => LfsFound::Absent,
            });
        }
        Ok(found)
    }

    /// An object and its length.
    pub async fn lfs_get(
        &self,
        scope: &ProjectScope,
        row: &RepositoryRow,
        oid: &LfsOid,
    ) -> Result<(u64, Outgoing), ForgeError> {
        let forge = self.local(scope, row, "")?;
        let room = self.git.transfer_of_file(row.project).await?;
        let mut file = match tokio::fs::File::open(oid.path(&forge.lfs_objects())).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ForgeError::not_found("object of Git LFS", oid));
            }
            file => file.map_err(ForgeError::disk)?,
        };
        let length = file.metadata().await.map_err(ForgeError::disk)?.len();
        let (limits, (send, pieces)) = (self.git.limits.clone(), mpsc::channel(PIECES));
        // In its own task, so that its place is released when a client stops reading.
        self.transfers.spawn(async move {
            let _room = room;
            let pump = async {
                loop {
                    let mut piece = BytesMut::with_capacity(PIECE);
                    let read = file.read_buf(&mut piece).await;
                    if matches!(read, Ok(0)) {
                        return;
                    }
                    let is_broken = read.is_err();
                    let passing = send.send(read.map(|_| piece.freeze()));
                    let passed = tokio::time::timeout(limits.silence, passing).await;
                    if is_broken || !matches!(passed, Ok(Ok(()))) {
                        return;
                    }
                }
            };
            let _ = tokio::time::timeout(limits.transfer_time, pump).await;
        });
        let stream = futures_util::stream::unfold(pieces, |mut pieces| async move {
            pieces.recv().await.map(|piece| (piece, pieces))
        });
        Ok((length, stream.boxed()))
    }

    /// Stores an object that has the announced length and matches its id.
    pub async fn lfs_put(
        &self,
        scope: &ProjectScope,
        row: &RepositoryRow,
        oid: &LfsOid,
        length: u64,
        body: BoxStream<'static, Result<Bytes, String>>,
    ) -> Result<(), ForgeError> {
        let forge = self.local(scope, row, "")?;
        let limits = &self.git.limits;
        if length > limits.push {
            return Err(ForgeError::TooLarge { what: "the object", most: limits.push });
        }
        let _room = self.git.transfer_of_file(row.project).await?;
        let late = |_| ForgeError::invalid("object", "did not arrive in time");
        if forge.lfs_found(oid).await?.is_some() {
            // Another client stored it.
            let _ =
                tokio::time::timeout(limits.transfer_time, crate::serve::drain(body, limits.silence)).await;
            return Ok(());
        }
        self.floor.check()?;
        let room = crate::storage::reserve(&self.store, row.project, length.max(LEAST_COUNTED)).await?;
        let reserved = forge.lfs_reserve(length).await?;
        let coming = Coming(self.shelf.root().join(format!("{COMING}{}.lfs", RepositoryId::generate())));
        let receive = receive(&coming.0, oid, length, body, limits.silence);
        tokio::time::timeout(limits.transfer_time, receive).await.map_err(late)??;
        let (directory, oid) = (forge.bare.directory.clone(), oid.clone());
        // Finish it even if the client disconnects: the reservation and the stored bytes must agree.
        let placed = tokio::task::spawn_blocking(move || {
            let is_new = place(&directory, &oid, &coming.0)?;
            if is_new {
                reserved.keep();
            }
            Ok::<_, io::Error>(is_new)
        });
        if placed.await.map_err(io::Error::other).flatten().map_err(ForgeError::disk)? {
            self.store.add_repository_size(row.id, length.max(LEAST_COUNTED)).await?;
        }
        drop(room);
        Ok(())
    }
}

/// Writes the body to a file, and syncs it once it was checked.
async fn receive(
    path: &Path,
    oid: &LfsOid,
    length: u64,
    mut body: impl Stream<Item = Result<Bytes, String>> + Unpin,
    silence: std::time::Duration,
) -> Result<(), ForgeError> {
    let mut file = tokio::fs::File::create_new(path).await.map_err(ForgeError::disk)?;
    let (mut digest, mut came) = (Context::new(&SHA256), 0_u64);
    loop {
        let piece = tokio::time::timeout(silence, body.next()).await;
        let piece = piece.map_err(|_| ForgeError::invalid("object", "did not arrive in time"))?;
        let Some(piece) = piece else { break };
        let piece = piece.map_err(|_| ForgeError::invalid("object", "ended too early"))?;
        came = came.saturating_add(piece.len() as u64);
        if came > length {
            break;
        }
        digest.update(&piece);
        file.write_all(&piece).await.map_err(ForgeError::disk)?;
    }
    if came != length {
        return Err(ForgeError::invalid(
            "object",
            format!("does not have the announced length of {length} bytes"),
        ));
    }
    if hex::encode(digest.finish().as_ref()) != *oid.0 {
        return Err(ForgeError::invalid("object", format!("has another SHA-256 than {oid}")));
    }
    file.flush().await.map_err(ForgeError::disk)?;
    file.sync_all().await.map_err(ForgeError::disk)
}

/// Gives a file its name; returns whether it is new. Directories are created one by one, so that a deleted
/// repository does not come back.
fn place(bare: &Path, oid: &LfsOid, coming: &Path) -> io::Result<bool> {
    let mut directory = bare.to_path_buf();
    for part in ["lfs", "objects", &oid.0[..2], &oid.0[2..4]] {
        let above = directory.clone();
        directory.push(part);
        match fs::create_dir(&directory) {
            Ok(()) => sync(&above)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    // Unlike a rename, a link shows which client was first.
    match fs::hard_link(coming, directory.join(&*oid.0)) {
        Ok(()) => sync(&directory).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

fn sync(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oid(text: &str) -> LfsOid {
        hex::encode(ring::digest::digest(&SHA256, text.as_bytes()).as_ref()).parse().unwrap()
    }

    #[test]
    fn names_are_digests() {
        assert_eq!(
            oid("foo").to_string(),
            "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
        );
        for bad in ["", "../../../../etc/passwd", &"A".repeat(64), &"a".repeat(63), &"é".repeat(32)] {
            assert!(bad.parse::<LfsOid>().is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn only_what_is_as_it_should_be_is_received() {
        let dir = tempfile::TempDir::new().unwrap();
        let second = std::time::Duration::from_secs(1);
        let body = |parts: &[&'static str]| {
            let parts: Vec<_> = parts.iter().map(|part| Ok(Bytes::from_static(part.as_bytes()))).collect();
            futures_util::stream::iter(parts)
        };
        let at = |name: &str| dir.path().join(name);
        assert!(receive(&at("good"), &oid("foobar"), 6, body(&["foo", "bar"]), second).await.is_ok());
        assert_eq!(fs::read(at("good")).unwrap(), b"foobar");
        for (name, length, parts) in [
            ("long", 6, &["foo", "barx"][..]),
            ("short", 6, &["foo"][..]),
            ("other", 6, &["foo", "bax"][..]),
            ("less", 3, &["foobar"][..]),
        ] {
            let refused = receive(&at(name), &oid("foobar"), length, body(parts), second).await;
            assert!(matches!(refused, Err(ForgeError::Invalid { .. })), "{name}");
        }
        let broken = futures_util::stream::iter([Ok(Bytes::from_static(b"foo")), Err("gone".to_string())]);
        assert!(receive(&at("broken"), &oid("foobar"), 6, broken, second).await.is_err());
    }

    #[test]
    fn an_object_is_placed_once_and_not_where_no_repository_is() {
        let dir = tempfile::TempDir::new().unwrap();
        let (coming, bare) = (dir.path().join("coming"), dir.path().join("bare.git"));
        fs::write(&coming, "foo").unwrap();
        assert!(place(&bare, &oid("foo"), &coming).is_err());
        assert!(!bare.exists());
        fs::create_dir(&bare).unwrap();
        assert!(place(&bare, &oid("foo"), &coming).unwrap());
        assert!(!place(&bare, &oid("foo"), &coming).unwrap(), "it is there already");
        assert_eq!(count(&bare.join("lfs/objects")).unwrap(), LEAST_COUNTED);
        assert_eq!(count(&dir.path().join("none")).unwrap(), 0);
        assert_eq!(fs::read(oid("foo").path(&bare.join("lfs/objects"))).unwrap(), b"foo");
        drop(Coming(coming.clone()));
        assert!(!coming.exists());
    }
}

//! A file that grows: one download, over connections and crashes.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::digest::{Digest, Hasher};

const PIECE: usize = 1 << 20;

/// The file and the digest of what is in it. Locked, so that a write that its caller no longer waits for ends before the
/// next download begins.
#[derive(Debug)]
pub(super) struct Partial {
    path: PathBuf,
    file: File,
    hasher: Hasher,
    length: u64,
}

impl Partial {
    /// Opens a file and reads what is in it; one that is longer than `size` starts over.
    pub(super) fn open(path: PathBuf, size: u64) -> io::Result<Self> {
        let file = loop {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
            file.lock()?;
            // Deleted or renamed while we waited for the lock?
            let is_same = |there: &fs::Metadata, here: &fs::Metadata| {
                (there.dev(), there.ino()) == (here.dev(), here.ino())
            };
            match fs::metadata(&path) {
                Ok(there) if is_same(&there, &file.metadata()?) => break file,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        };
        let mut partial = Self { path, file, hasher: Hasher::new(), length: 0 };
        let mut piece = vec![0; PIECE];
        loop {
            match partial.file.read(&mut piece)? {
                0 => break,
                read => partial.count(&piece[..read]),
            }
        }
        if partial.length > size {
            partial.restart()?;
        }
        Ok(partial)
    }

    fn count(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn digest(&self) -> Digest {
        self.hasher.clone().finish()
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.length))?;
        self.file.write_all(bytes)?;
        self.count(bytes);
        Ok(())
    }

    pub(super) fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.hasher = Hasher::new();
        self.length = 0;
        Ok(())
    }

    pub(super) fn delete(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }

    /// Gives the file its final name, when its bytes are on disk.
    pub(super) fn finish(&self, to: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.path, to)?;
        match to.parent() {
            Some(dir) => File::open(dir)?.sync_all(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_continued() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let mut partial = Partial::open(path.clone(), 11).unwrap();
        partial.append(b"hello").unwrap();
        drop(partial);
        let mut partial = Partial::open(path.clone(), 11).unwrap();
        assert_eq!((partial.length(), partial.digest()), (5, Digest::of(b"hello")));
        partial.append(b" world").unwrap();
        assert_eq!(partial.digest(), Digest::of(b"hello world"));
        partial.finish(&dir.path().join("done")).unwrap();
        drop(partial);
        assert!(!path.exists());
        assert_eq!(fs::read(dir.path().join("done")).unwrap(), b"hello world");
        fs::write(&path, "too long").unwrap();
        assert_eq!(Partial::open(path, 3).unwrap().length(), 0);
    }

    #[test]
    fn a_second_writer_waits_for_the_first_and_does_not_use_a_file_that_went() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let mut first = Partial::open(path.clone(), 10).unwrap();
        let second = std::thread::spawn({
            let path = path.clone();
            move || Partial::open(path, 10).unwrap().length()
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        first.append(b"bytes").unwrap();
        first.delete().unwrap();
        drop(first);
        assert_eq!(second.join().unwrap(), 0, "the deleted file is not continued");
        assert!(path.exists());
    }
}

//! Writes files of a template: with exact modes whatever the umask, and always as a new inode, so that an
//! existing link is replaced and never followed out of the tree.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use super::BuildError;

/// The directory that becomes a sandbox's `/` or `/usr`.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(super) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// `path` is relative; a leading slash would replace the root.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        debug_assert!(!path.starts_with('/'), "`{path}` must be relative");
        self.root.join(path)
    }

    pub(super) fn directory(&self, path: &str, mode: u32) -> Result<(), BuildError> {
        let path = self.path(path);
        DirBuilder::new()
            .recursive(true)
            .create(&path)
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(mode)))
            .map_err(BuildError::file("make", &path))
    }

    pub(super) fn file(&self, path: &str, mode: u32, text: impl AsRef<[u8]>) -> Result<(), BuildError> {
        let path = self.path(path);
        let write = || {
            remove(&path)?;
            let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
            file.write_all(text.as_ref())?;
            file.set_permissions(Permissions::from_mode(mode))
        };
        write().map_err(BuildError::file("write", &path))
    }

    /// Makes missing directories of a path.
    pub(super) fn directories(&self, path: &str, mode: u32) -> Result<(), BuildError> {
        let mut made = String::new();
        for part in path.split('/') {
            made = if made.is_empty() { part.to_string() } else { format!("{made}/{part}") };
            if !self.path(&made).is_dir() {
                self.directory(&made, mode)?;
            }
        }
        Ok(())
    }

    /// Writes a file from a stream.
    pub(super) fn stream(&self, path: &str, mode: u32, from: &mut impl io::Read) -> Result<(), BuildError> {
        let path = self.path(path);
        let mut write = || {
            remove(&path)?;
            let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
            io::copy(from, &mut file)?;
            file.set_permissions(Permissions::from_mode(mode))
        };
        write().map_err(BuildError::file("write", &path))
    }

    pub(super) fn link(&self, path: &str, target: impl AsRef<Path>) -> Result<(), BuildError> {
        let path = self.path(path);
        remove(&path).and_then(|()| symlink(target, &path)).map_err(BuildError::file("link", &path))
    }

    pub(super) fn own(&self, path: &str, uid: u32, gid: u32) -> Result<(), BuildError> {
        let path = self.path(path);
        chown(&path, Some(uid), Some(gid)).map_err(BuildError::file("give away", &path))
    }

    pub(super) fn remove(&self, path: &str) -> Result<(), BuildError> {
        let path = self.path(path);
        remove(&path).map_err(BuildError::file("remove", &path))
    }

    /// Removes the contents of a directory. Succeeds if it does not exist.
    pub(super) fn empty(&self, path: &str) -> Result<(), BuildError> {
        let path = self.path(path);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(BuildError::file("read", &path)(error)),
        };
        for entry in entries.flatten() {
            remove(&entry.path()).map_err(BuildError::file("remove", entry.path()))?;
        }
        Ok(())
    }
}

/// Removes a file, link or directory with its contents; succeeds if it does not exist.
fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_link_in_the_way_is_replaced_and_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        fs::write(&outside, "mine").unwrap();
        let tree = Tree::at(directory.path().join("root"));
        tree.directory("etc", 0o755).unwrap();
        tree.link("etc/resolv.conf", &outside).unwrap();
        tree.file("etc/resolv.conf", 0o640, "theirs").unwrap();
        assert_eq!(fs::read_to_string(&outside).unwrap(), "mine");
        let metadata = fs::symlink_metadata(tree.path("etc/resolv.conf")).unwrap();
        assert_eq!((metadata.is_file(), metadata.mode() & 0o7777), (true, 0o640));
    }

    #[test]
    fn emptying_does_not_follow_links() {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        let tree = Tree::at(directory.path().join("root"));
        tree.directory("run/lock", 0o1777).unwrap();
        tree.link("run/away", &outside).unwrap();
        tree.empty("run").unwrap();
        tree.empty("missing").unwrap();
        assert!(outside.join("kept").exists());
        assert_eq!(fs::read_dir(tree.path("run")).unwrap().count(), 0);
    }
}

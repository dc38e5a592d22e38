//! Deleting a tree that a sandbox wrote: any names, any depth, links to anywhere.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Deletes `name` in `parent`, never following a link. Directories inside are moved up next to it and deleted
/// one after the other: so neither the stack nor the number of descriptors grows with the depth, and no path
/// gets too long.
pub(super) fn delete_tree(parent: &File, name: &str) -> io::Result<()> {
    let mut pending = vec![name.to_string()];
    let mut made = 0u64;
    while let Some(directory) = pending.pop() {
        match rustix::fs::unlinkat(parent, directory.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(parent, directory.as_str(), flags, Mode::empty())?;
        // The sandbox may have removed its own write permission; root does not need it locally, but does on
        // NFS.
        let _ = rustix::fs::fchmod(&opened, Mode::RWXU);
        empty(parent, &opened, &mut || {
            made += 1;
            let fresh = format!("{name}.deleting-{made}");
            pending.push(fresh.clone());
            fresh
        })?;
        rustix::fs::unlinkat(parent, directory.as_str(), AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

fn empty(parent: &File, directory: &OwnedFd, fresh: &mut dyn FnMut() -> String) -> io::Result<()> {
    // Removing while reading may skip entries on some file systems: read again until nothing is left.
    loop {
        let mut found = false;
        for entry in Dir::read_from(directory.as_fd())? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            found = true;
            if entry.file_type() != FileType::Directory {
                match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => continue,
                    Err(Errno::ISDIR | Errno::PERM) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            rustix::fs::renameat(directory, name, parent, fresh())?;
        }
        if !found {
            return Ok(());
        }
    }
}

/// Opens a directory to use as a parent of others.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;

    #[test]
    fn a_deep_and_hostile_tree_goes_and_nothing_beside_it() {
        let home = tempfile::tempdir().unwrap();
        let outside = home.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        let pool = home.path().join("pool");
        fs::create_dir_all(pool.join("victim")).unwrap();

        let mut at: OwnedFd = open(&pool.join("victim")).unwrap().into();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "deeper", Mode::RWXU).unwrap();
            rustix::fs::symlinkat(&outside, &at, "link").unwrap();
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            at = rustix::fs::openat(&at, "deeper", flags, Mode::empty()).unwrap();
        }
        let odd = std::ffi::OsStr::from_bytes(b"\xff\n \x01");
        fs::write(pool.join("victim").join(odd), "").unwrap();

        delete_tree(&open(&pool).unwrap(), "victim").unwrap();
        assert_eq!(fs::read_dir(&pool).unwrap().count(), 0);
        assert!(outside.join("kept").exists());
        delete_tree(&open(&pool).unwrap(), "victim").unwrap();
    }
}

//! Removes anything at a path: any names, any depth, links never followed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// Most nested directories that are descended into. Deeper ones are first moved up, so that neither the stack
/// nor the number of descriptors grows with a depth that a program inside chose.
const DEEPEST: u32 = 64;

/// A program may write while we remove; one that never stops is not waited for.
const PASSES: u32 = 64;

/// Removes `path` with its contents; succeeds if it does not exist.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    remove_at(CWD, path, ResolveFlags::empty())
}

/// The same for a name in a directory. Fails at a mount, before anything on it is removed.
pub(crate) fn remove_within_mount(directory: &OwnedFd, name: &[u8]) -> io::Result<()> {
    remove_at(directory.as_fd(), name, ResolveFlags::NO_XDEV)
}

fn remove_at(at: BorrowedFd<'_>, path: impl Arg + Copy, within: ResolveFlags) -> io::Result<()> {
    match rustix::fs::unlinkat(at, path, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let top = open(at, path, within)?;
    let mut moved = 0;
    loop {
        let before = moved;
        empty(&top, &top, 0, &mut moved, within)?;
        // Moved directories are part of the next round.
        if moved == before {
            break;
        }
    }
    match rustix::fs::unlinkat(at, path, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn empty(
    top: &OwnedFd,
    directory: &OwnedFd,
    depth: u32,
    moved: &mut u64,
    within: ResolveFlags,
) -> io::Result<()> {
    for entry in Dir::read_from(directory.as_fd())? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if depth == DEEPEST {
            *moved += 1;
            let aside = format!(".removing-{}-{moved}", std::process::id());
            rustix::fs::renameat(directory, name, top, aside)?;
            continue;
        }
        for pass in 1..=PASSES {
            match rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => break,
                Err(Errno::NOTEMPTY) if pass < PASSES => {}
                Err(errno) => return Err(errno.into()),
            }
            empty(top, &open(directory, name, within)?, depth + 1, moved, within)?;
        }
    }
    Ok(())
}

fn open(at: impl AsFd, path: impl Arg, within: ResolveFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat2(at, path, flags, Mode::empty(), within)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Deep enough to exhaust the stack or the descriptors, if either were used per level.
    #[test]
    fn a_tree_of_any_depth_goes_and_links_are_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let kept = home.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "").unwrap();
        let top = home.path().join("top");
        fs::create_dir(&top).unwrap();
        let mut at = open(CWD, &top, ResolveFlags::empty()).unwrap();
        for level in 0..20_000 {
            if level % 1000 == 0 {
                rustix::fs::symlinkat(&kept, &at, "link").unwrap();
            }
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open(&at, "d", ResolveFlags::empty()).unwrap();
        }
        drop(at);
        for wide in 0..300 {
            fs::create_dir(top.join(format!("w{wide}"))).unwrap();
            fs::write(top.join(format!("w{wide}/file")), "").unwrap();
        }
        remove(&top).unwrap();
        assert!(!top.exists());
        assert!(kept.join("file").exists());
    }

    #[test]
    fn a_missing_path_is_fine_and_a_link_goes_alone() {
        let home = tempfile::tempdir().unwrap();
        remove(&home.path().join("missing")).unwrap();
        remove(&home.path().join("missing/below")).unwrap();
        fs::create_dir(home.path().join("real")).unwrap();
        symlink("real", home.path().join("link")).unwrap();
        remove(&home.path().join("link")).unwrap();
        assert!(home.path().join("real").is_dir());
        assert!(home.path().join("link").symlink_metadata().is_err());
    }
}

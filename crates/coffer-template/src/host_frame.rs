//! The frame of the `host` template's `/usr`: what of it belongs to root inside.
//!
//! The host's files belong to nobody inside, so that only the rights of others count for them. Two kinds are needed as
//! root's: directories, in which root inside installs and removes, and programs that change their user. Directories
//! deep in the tree are left out: a host has ten thousands of them, and to make them would take seconds. Nothing of
//! what other users of the host cannot read is looked into or copied.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use super::BuildError;
use super::tree::Tree;

/// Where programs are that change their user: `sudo`, `su`, `passwd`.
const PROGRAMS: [&str; 4] = ["bin", "sbin", "local/bin", "local/sbin"];
/// sudo loads nothing that is not root's.
const SUDO: [&str; 2] = ["libexec/sudo", "lib/sudo"];
/// How deep directories are made, by where they are; the first that fits counts.
const DEPTHS: [(&str, usize); 4] = [("local", 5), ("lib", 3), ("share/man", 3), ("", 2)];
/// Directories in all.
const MOST: usize = 4096;
/// Larger ones are no such programs.
const LONGEST: u64 = 16 * 1024 * 1024;

/// Writes the frame of `usr` into `tree`, whose own directories stay as they are.
pub(super) fn write(tree: &Tree, usr: &Path) -> Result<(), BuildError> {
    directories(tree.root(), usr)?;
    for directory in PROGRAMS {
        copy(tree, usr, directory, |metadata| metadata.mode() & 0o6000 != 0)?;
    }
    for directory in SUDO {
        copy(tree, usr, directory, |_| true)?;
    }
    Ok(())
}

/// Makes directories that others can look into, on this file system, from the top down.
fn directories(root: &Path, usr: &Path) -> Result<(), BuildError> {
    let device = fs::metadata(usr).map_err(BuildError::file("look at", usr))?.dev();
    let mut pending = VecDeque::from([PathBuf::new()]);
    let mut made = 0;
    while let Some(relative) = pending.pop_front() {
        // Gone since, or unreadable: then it is not in the frame.
        for entry in fs::read_dir(usr.join(&relative)).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let Ok(metadata) = entry.metadata() else { continue };
            let path = relative.join(entry.file_name());
            let is_deep = DEPTHS
                .iter()
                .find(|(top, _)| path.starts_with(top))
                .is_some_and(|(_, depth)| path.components().count() > *depth);
            if metadata.mode() & 0o005 != 0o005 || metadata.dev() != device || is_deep || made == MOST {
                continue;
            }
            made += 1;
            if make(&root.join(&path), &metadata).map_err(BuildError::file("make", root.join(&path)))? {
                pending.push_back(path);
            }
        }
    }
    Ok(())
}

/// Whether every directory of a frame is still one that others can look into. A frame opens a directory by itself: one
/// that the host has closed since would show what is in it.
pub(super) fn is_open(frame: &Path, usr: &Path) -> bool {
    let mut pending = vec![PathBuf::new()];
    while let Some(relative) = pending.pop() {
        for entry in fs::read_dir(frame.join(&relative)).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let path = relative.join(entry.file_name());
            match fs::symlink_metadata(usr.join(&path)) {
                Ok(metadata) if !metadata.is_dir() || metadata.mode() & 0o005 == 0o005 => pending.push(path),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ if is_opaque(&frame.join(&path)) => {}
                _ => return false,
            }
        }
    }
    true
}

/// Makes a directory as the host has it; says whether what is in it is wanted too.
fn make(path: &Path, metadata: &Metadata) -> io::Result<bool> {
    match DirBuilder::new().mode(0o700).create(path) {
        // One of ours, which hides the host's.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Ok(!path.symlink_metadata()?.is_dir() || !is_opaque(path));
        }
        made => made?,
    }
    if metadata.uid() != 0 || metadata.gid() != 0 {
        chown(path, Some(metadata.uid()), Some(metadata.gid()))?;
    }
    fs::set_permissions(path, Permissions::from_mode(metadata.mode() & 0o7777))?;
    Ok(true)
}

fn is_opaque(path: &Path) -> bool {
    rustix::fs::lgetxattr(path, "trusted.overlay.opaque", &mut [0u8; 1]).is_ok()
}

/// Copies public files of a directory that are `wanted`, owner and mode included.
fn copy(
    tree: &Tree,
    usr: &Path,
    directory: &str,
    wanted: impl Fn(&Metadata) -> bool,
) -> Result<(), BuildError> {
    // Not in the frame, so closed or not there.
    if !tree.path(directory).is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(usr.join(directory)).into_iter().flatten().flatten() {
        let (Ok(metadata), Ok(name)) = (entry.metadata(), entry.file_name().into_string()) else { continue };
        let public = metadata.is_file() && metadata.mode() & 0o004 != 0 && metadata.len() <= LONGEST;
        if !public || !wanted(&metadata) {
            continue;
        }
        let content = fs::read(entry.path()).map_err(BuildError::file("read", entry.path()))?;
        let path = format!("{directory}/{name}");
        tree.file(&path, 0o700, content)?;
        // The owner first: a new one takes the set-user-id bit away.
        tree.own(&path, metadata.uid(), metadata.gid())?;
        let path = tree.path(&path);
        fs::set_permissions(&path, Permissions::from_mode(metadata.mode() & 0o7777))
            .map_err(BuildError::file("set the mode of", &path))?;
    }
    Ok(())
}

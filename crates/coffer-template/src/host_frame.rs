//! The frame of the `host` template's `/usr`: the part that belongs to root inside.
//!
//! The owners of the host's files do not exist inside, so only the permissions for others apply. Two kinds
//! must belong to root: directories, in which root inside installs and removes files, and programs that
//! change their user. Deep directories are left out: a host has ten thousands of them, and creating them
//! would take seconds. Files that other users of the host cannot read are neither examined nor copied.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use super::BuildError;
use super::tree::Tree;

/// Directories of programs that change their user: `sudo`, `su`, `passwd`.
const PROGRAMS: [&str; 4] = ["bin", "sbin", "local/bin", "local/sbin"];
/// sudo loads only files of root.
const SUDO: [&str; 2] = ["libexec/sudo", "lib/sudo"];
/// How deep directories are created, by their path; the first match counts.
const DEPTHS: [(&str, usize); 4] = [("local", 5), ("lib", 3), ("share/man", 3), ("", 2)];
/// Most directories in all.
const MOST: usize = 4096;
/// Larger files are not such programs.
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

/// Creates directories that others can list, on this file system, from the top down.
fn directories(root: &Path, usr: &Path) -> Result<(), BuildError> {
    let device = fs::metadata(usr).map_err(BuildError::file("look at", usr))?.dev();
    let mut pending = VecDeque::from([PathBuf::new()]);
    let mut made = 0;
    while let Some(relative) = pending.pop_front() {
        // It is gone or unreadable: then it is not in the frame.
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

/// Whether every directory of a frame is still listable by others. A frame makes a directory accessible: one
/// that the host has made private since would show its contents.
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

/// Creates a directory as the host has it; returns whether its contents are wanted too.
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
    // Not in the frame, so it is private or missing.
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
        // Set the owner first: changing it clears the set-user-id bit.
        tree.own(&path, metadata.uid(), metadata.gid())?;
        let path = tree.path(&path);
        fs::set_permissions(&path, Permissions::from_mode(metadata.mode() & 0o7777))
            .map_err(BuildError::file("set the mode of", &path))?;
    }
    Ok(())
}

//! Snapshots of the files that sandboxes wrote, and places created from them.
//!
//! A snapshot is a read-only subvolume `snapshots/<id>/files`; a sandbox created from it starts on a writable
//! copy. Nothing is copied: the file system shares unchanged data, and frees it when its last user is
//! deleted, so neither side has to know the other.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use super::btrfs::{self, Access};
use super::{DRAFTS, FROZEN, Kind, Pool, SNAPSHOTS, UPPERS, Upper, directory};

const FILES: &str = "files";

/// A prepared snapshot; one more call completes it.
#[derive(Debug)]
pub(crate) struct Sealing {
    source: File,
    place: File,
    path: PathBuf,
}

impl Sealing {
    /// Creates the snapshot. Everything the sandbox has written so far is in it and on disk.
    pub(crate) fn seal(&self) -> io::Result<()> {
        btrfs::snapshot(&self.source, &self.place, OsStr::new(FILES), Access::ReadOnly)
    }

    /// Removes a snapshot that was not completed.
    pub(crate) fn give_up(self) {
        let _ = fs::remove_dir(&self.path);
    }
}

impl Pool {
    /// Why this pool has no snapshots, as a message; `None` if it can have them.
    pub(crate) fn snapshots_lack(&self) -> Option<String> {
        if !self.has_quota() {
            return Some("the files of sandboxes are in plain directories, not on btrfs".into());
        }
        None
    }

    /// Gets ready for a snapshot of the files called `name`, so that little is left to do.
    pub(crate) fn prepare_seal(&self, name: &str, snapshot: &str) -> io::Result<Sealing> {
        let source = directory::open(&self.root.join(UPPERS).join(name))?;
        // Left by an attempt that was never reported.
        self.delete_snapshot(snapshot)?;
        let path = self.snapshot(snapshot);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Sealing { source, place: directory::open(&path)?, path })
    }

    /// The directory of a snapshot.
    pub(crate) fn snapshot(&self, snapshot: &str) -> PathBuf {
        self.snapshots_directory().join(snapshot)
    }

    /// The parent directory of all snapshots.
    pub(crate) fn snapshots_directory(&self) -> PathBuf {
        self.root.join(SNAPSHOTS)
    }

    pub(crate) fn has_snapshot(&self, snapshot: &str) -> bool {
        self.snapshot(snapshot).join(FILES).is_dir()
    }

    /// Creates a place with the content of a snapshot. It appears complete or not at all.
    pub(crate) fn create_from(&self, snapshot: &str, name: &str, limit_bytes: u64) -> io::Result<Upper> {
        self.copy(&directory::open(&self.snapshot(snapshot).join(FILES))?, name, limit_bytes)
    }

    /// Creates a place with the content of the files called `of`, while nothing writes to them.
    pub(crate) fn create_copy(&self, of: &str, name: &str, limit_bytes: u64) -> io::Result<Upper> {
        self.copy(&directory::open(&self.root.join(UPPERS).join(of))?, name, limit_bytes)
    }

    fn copy(&self, from: &File, name: &str, limit_bytes: u64) -> io::Result<Upper> {
        // Create it in another directory and rename it: the parent is locked while btrfs takes the snapshot,
        // and other creates would wait.
        let drafts = directory::open(&self.root.join(DRAFTS))?;
        let name = OsStr::new(name);
        btrfs::snapshot(from, &drafts, name, Access::Writable)?;
        let draft = self.root.join(DRAFTS).join(name);
        let path = self.root.join(UPPERS).join(name);
        let made = directory::open(&draft).and_then(|inside| {
            btrfs::limit(&inside, limit_bytes)?;
            let quota = btrfs::subvolume_id(&inside)?;
            fs::rename(&draft, &path)?;
            Ok(quota)
        });
        let quota = made.inspect_err(|_| {
            let _ = btrfs::delete_subvolume(&drafts, name);
        })?;
        Ok(Upper { path, quota: Some(quota) })
    }

    /// Deletes a snapshot and everything in its directory; succeeds if it is gone.
    pub(crate) fn delete_snapshot(&self, snapshot: &str) -> io::Result<()> {
        let Kind::Btrfs { stale, .. } = &self.kind else { return Ok(()) };
        let path = self.snapshot(snapshot);
        let place = match directory::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            place => place?,
        };
        match directory::open(&path.join(FILES)) {
            Ok(inside) => {
                let quota = btrfs::subvolume_id(&inside)?;
                drop(inside);
                btrfs::delete_subvolume(&place, OsStr::new(FILES))?;
                self.drop_stale_groups(stale, Some(quota));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        directory::delete_tree(&directory::open(&self.root.join(SNAPSHOTS))?, snapshot)
    }

    /// Names of all snapshots, incomplete ones included.
    pub(crate) fn snapshot_names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.root.join(SNAPSHOTS))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// Bytes written to these files that are not on disk yet, if known.
    pub(crate) fn unwritten_bytes(&self, name: &str) -> Option<u64> {
        let quota = self.find(name).ok()?.quota?;
        btrfs::unwritten_bytes(self.quota_groups.as_deref()?, quota).ok()
    }

    /// Whether data that a sandbox wrote before a snapshot is charged to it for as long as any snapshot has
    /// it.
    pub(crate) fn charges_makers(&self) -> bool {
        self.quota_groups.as_deref().is_some_and(btrfs::charges_makers)
    }

    /// Records that the processes of a sandbox are frozen. To be followed by [`sync`](Self::sync).
    ///
    /// The mark is removed before they run on, in the same file system as their files: if the host crashes,
    /// files on disk with a mark are as they were when the processes were frozen. It is stored outside the
    /// sandbox's files, whose quota may leave no room for it.
    pub(crate) fn mark_frozen(&self, name: &str) -> io::Result<()> {
        if self.has_quota() {
            File::create(self.root.join(FROZEN).join(name))?;
        }
        Ok(())
    }

    /// Removes the mark, before they run.
    pub(crate) fn unmark_frozen(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.root.join(FROZEN).join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    pub(crate) fn is_marked_frozen(&self, name: &str) -> bool {
        self.root.join(FROZEN).join(name).exists()
    }

    /// Removes what a previous node left incomplete, and finds the quota groups that it did not drop.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        let drafts = directory::open(&self.root.join(DRAFTS))?;
        for draft in fs::read_dir(self.root.join(DRAFTS))?.flatten() {
            match &self.kind {
                Kind::Btrfs { .. } => btrfs::delete_subvolume(&drafts, &draft.file_name())?,
                Kind::Directory => directory::delete_tree(&drafts, &draft.file_name().to_string_lossy())?,
            }
        }
        let Kind::Btrfs { stale, .. } = &self.kind else { return Ok(()) };
        for mark in fs::read_dir(self.root.join(FROZEN))?.flatten() {
            if !self.root.join(UPPERS).join(mark.file_name()).is_dir() {
                fs::remove_file(mark.path())?;
            }
        }
        let Some(groups) = &self.quota_groups else { return Ok(()) };
        let uppers = self.names()?.into_iter().map(|name| self.root.join(UPPERS).join(name));
        let sealed = self.snapshot_names()?.into_iter().map(|name| self.snapshot(&name).join(FILES));
        let alive =
            |path: PathBuf| directory::open(&path).and_then(|inside| btrfs::subvolume_id(&inside)).ok();
        let volumes = self.volume_names()?.into_iter().map(|name| self.volume(&name));
        let alive: HashSet<u64> = uppers.chain(sealed).chain(volumes).filter_map(alive).collect();
        let gone = btrfs::group_ids(groups)?.into_iter().filter(|id| !alive.contains(id));
        stale.lock().extend(gone);
        Ok(())
    }
}

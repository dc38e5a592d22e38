//! Volumes in the pool.
//!
//! A volume exists exactly if its name is in `v`. It is created among the drafts and renamed when it is
//! complete, and renamed back before it is deleted: a crash in between leaves a draft, which the next start
//! sweeps.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::PathBuf;

use super::{DRAFTS, Kind, Pool, VOLUMES, btrfs, directory};

/// Any user inside may write to it: which users there are depends on the template.
const MODE: u32 = 0o777;

impl Pool {
    /// Creates a volume, or changes the limit of an existing one. It is on disk afterwards.
    pub(crate) fn create_volume(&self, name: &str, limit_bytes: u64) -> io::Result<()> {
        let path = self.volume(name);
        if path.is_dir() {
            return match self.kind {
                Kind::Directory => Ok(()),
                Kind::Btrfs { .. } => btrfs::limit(&directory::open(&path)?, limit_bytes),
            };
        }
        // Left by an attempt that failed.
        self.delete_draft(name)?;
        let draft = self.root.join(DRAFTS).join(name);
        let made = (|| {
            match self.kind {
                Kind::Directory => fs::DirBuilder::new().mode(0o700).create(&draft)?,
                Kind::Btrfs { .. } => {
                    let drafts = directory::open(&self.root.join(DRAFTS))?;
                    btrfs::create_subvolume(&drafts, OsStr::new(name))?;
                    btrfs::limit(&directory::open(&draft)?, limit_bytes)?;
                }
            }
            fs::set_permissions(&draft, fs::Permissions::from_mode(MODE))?;
            fs::rename(&draft, &path)?;
            self.sync()
        })();
        made.inspect_err(|_| {
            let _ = self.delete_draft(name);
        })
    }

    /// Takes a volume away from its place; false if there is none. [`delete_draft`](Self::delete_draft) does
    /// the rest, which may take long.
    pub(crate) fn retire_volume(&self, name: &str) -> io::Result<bool> {
        match fs::rename(self.volume(name), self.root.join(DRAFTS).join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            renamed => renamed.map(|()| true),
        }
    }

    /// Deletes a draft and everything in it; succeeds if there is none.
    pub(crate) fn delete_draft(&self, name: &str) -> io::Result<()> {
        let drafts = directory::open(&self.root.join(DRAFTS))?;
        let Kind::Btrfs { stale, .. } = &self.kind else { return directory::delete_tree(&drafts, name) };
        let quota = match directory::open(&self.root.join(DRAFTS).join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            inside => btrfs::subvolume_id(&inside?)?,
        };
        btrfs::delete_subvolume(&drafts, OsStr::new(name))?;
        self.drop_stale_groups(stale, Some(quota));
        Ok(())
    }

    /// Where a volume's files are.
    pub(crate) fn volume(&self, name: &str) -> PathBuf {
        self.root.join(VOLUMES).join(name)
    }

    pub(crate) fn has_volume(&self, name: &str) -> bool {
        self.volume(name).is_dir()
    }

    /// Names of all volumes.
    pub(crate) fn volume_names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.root.join(VOLUMES))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }

    /// Size of a volume's files; zero without quotas.
    pub(crate) fn volume_bytes(&self, name: &str) -> u64 {
        let Kind::Btrfs { .. } = self.kind else { return 0 };
        let inside = directory::open(&self.volume(name));
        self.used_bytes(inside.and_then(|inside| btrfs::subvolume_id(&inside)).ok())
    }
}

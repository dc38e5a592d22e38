//! Attributes of files: read from requests, applied, and written to answers.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid};

use super::fields::{Fields, Malformed};

const SIZE: u32 = 1;
const OWNER: u32 = 2;
const PERMISSIONS: u32 = 4;
const TIMES: u32 = 8;
const EXTENDED: u32 = 1 << 31;
/// The bits that chmod takes; the others say what a file is.
const MODE_BITS: u32 = 0o7777;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) size: Option<u64>,
    owner: Option<(u32, u32)>,
    pub(super) permissions: Option<u32>,
    /// Of the last access and change, in seconds.
    times: Option<(u32, u32)>,
}

impl Attributes {
    pub(super) fn of(found: &Metadata) -> Self {
        // The protocol has no room for times before 1970 and after 2106.
        let seconds = |time: i64| u32::try_from(time.max(0)).unwrap_or(u32::MAX);
        Self {
            size: Some(found.len()),
            owner: Some((found.uid(), found.gid())),
            permissions: Some(found.mode()),
            times: Some((seconds(found.atime()), seconds(found.mtime()))),
        }
    }

    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, Malformed> {
        let flags = fields.number()?;
        let has = |flag: u32| flags & flag != 0;
        let mut read = Self::default();
        if has(SIZE) {
            read.size = Some(fields.long()?);
        }
        if has(OWNER) {
            read.owner = Some((fields.number()?, fields.number()?));
        }
        if has(PERMISSIONS) {
            read.permissions = Some(fields.number()?);
        }
        if has(TIMES) {
            read.times = Some((fields.number()?, fields.number()?));
        }
        if has(EXTENDED) {
            for _ in 0..fields.number()? {
                fields.string()?;
                fields.string()?;
            }
        }
        Ok(read)
    }

    pub(super) fn write(&self, body: &mut Vec<u8>) {
        let flag = |has: bool, flag: u32| if has { flag } else { 0 };
        let flags = flag(self.size.is_some(), SIZE)
            | flag(self.owner.is_some(), OWNER)
            | flag(self.permissions.is_some(), PERMISSIONS)
            | flag(self.times.is_some(), TIMES);
        body.extend_from_slice(&flags.to_be_bytes());
        if let Some(size) = self.size {
            body.extend_from_slice(&size.to_be_bytes());
        }
        let pairs = [self.owner, self.permissions.map(|mode| (mode, 0)), self.times];
        for (index, pair) in pairs.into_iter().enumerate() {
            if let Some((first, second)) = pair {
                body.extend_from_slice(&first.to_be_bytes());
                if index != 1 {
                    body.extend_from_slice(&second.to_be_bytes());
                }
            }
        }
    }

    fn timestamps(&self) -> Option<Timestamps> {
        let (access, change) = self.times?;
        let at = |seconds: u32| Timespec { tv_sec: seconds.into(), tv_nsec: 0 };
        Some(Timestamps { last_access: at(access), last_modification: at(change) })
    }

    pub(super) fn apply_to(&self, path: &Path) -> io::Result<()> {
        if let Some(size) = self.size {
            let file =
                rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
            rustix::fs::ftruncate(file, size)?;
        }
        if let Some(mode) = self.permissions {
            fs::set_permissions(path, fs::Permissions::from_mode(mode & MODE_BITS))?;
        }
        if let Some(times) = self.timestamps() {
            rustix::fs::utimensat(CWD, path, &times, AtFlags::empty())?;
        }
        if let Some((user, group)) = self.owner {
            std::os::unix::fs::chown(path, Some(user), Some(group))?;
        }
        Ok(())
    }

    /// Links have neither a size nor permissions of their own.
    pub(super) fn apply_to_link(&self, path: &Path) -> io::Result<()> {
        if self.size.is_some() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        if let Some(mode) = self.permissions
            && !fs::symlink_metadata(path)?.is_symlink()
        {
            fs::set_permissions(path, fs::Permissions::from_mode(mode & MODE_BITS))?;
        }
        if let Some(times) = self.timestamps() {
            rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if let Some((user, group)) = self.owner {
            std::os::unix::fs::lchown(path, Some(user), Some(group))?;
        }
        Ok(())
    }

    pub(super) fn apply_to_open(&self, file: &File) -> io::Result<()> {
        if let Some(size) = self.size {
            file.set_len(size)?;
        }
        if let Some(mode) = self.permissions {
            file.set_permissions(fs::Permissions::from_mode(mode & MODE_BITS))?;
        }
        if let Some(times) = self.timestamps() {
            rustix::fs::futimens(file, &times)?;
        }
        if let Some((user, group)) = self.owner {
            rustix::fs::fchown(file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?;
        }
        Ok(())
    }
}

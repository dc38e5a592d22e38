//! Writes below one directory: the kernel resolves each path, and refuses those that lead out.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

/// The kernel asks to try again if anything on the host is moved or mounted while it resolves `..`.
const ATTEMPTS: u32 = 1000;

/// Modification times of directories are set at the end, as files in them change them. Beyond this many bytes
/// of names they are not.
const LONGEST_TIMES: usize = 32 << 20;

/// How many links to missing directories a path may have.
const MOST_LINKS: u32 = 8;

/// Where symbolic links may lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bounds {
    /// Below the directory; absolute links and those that climb out are refused with `EXDEV`.
    Beneath,
    /// Absolute ones start at the directory, as if it were the root. Mounts are refused with `EXDEV`.
    OneMount,
    /// The same, across mounts.
    Anywhere,
}

impl Bounds {
    fn flags(self) -> ResolveFlags {
        ResolveFlags::NO_MAGICLINKS
            | match self {
                Self::Beneath => ResolveFlags::BENEATH,
                Self::OneMount => ResolveFlags::IN_ROOT | ResolveFlags::NO_XDEV,
                Self::Anywhere => ResolveFlags::IN_ROOT,
            }
    }
}

/// Users and groups of a sandbox are below this number; others exist outside only.
pub(super) const IDS: u32 = 65_536;

/// An owner and a group of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Owner {
    pub(super) const ROOT: Self = Self { uid: 0, gid: 0 };

    fn ids(self) -> (Option<Uid>, Option<Gid>) {
        (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }
}

/// What a member gets besides its contents.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes<'a> {
    pub(super) owner: Owner,
    pub(super) mode: u32,
    pub(super) mtime: (i64, u32),
    /// Only those that may be set.
    pub(super) xattrs: &'a [(Vec<u8>, Vec<u8>)],
}

/// A directory below which members are written. Paths are relative, without `.` and `..`; empty is itself.
pub(super) struct Tree {
    root: OwnedFd,
    bounds: Bounds,
    /// The owner of directories that no member names.
    implied: Owner,
    /// The last parent. No member below it can replace it.
    parent: Option<(Vec<u8>, Rc<OwnedFd>)>,
    times: Vec<(Vec<u8>, (i64, u32))>,
    times_length: usize,
    /// Directories that were created without a member.
    pub(super) implied_directories: u64,
}

/// The place of a member: a name in an open directory.
#[derive(Debug, Clone)]
pub(super) struct Spot {
    pub(super) parent: Rc<OwnedFd>,
    pub(super) name: Vec<u8>,
}

impl Tree {
    pub(super) fn new(root: OwnedFd, bounds: Bounds, implied: Owner) -> Self {
        Self {
            root,
            bounds,
            implied,
            parent: None,
            times: Vec::new(),
            times_length: 0,
            implied_directories: 0,
        }
    }

    /// The directory at an absolute path of this process.
    pub(super) fn at(path: &std::path::Path, bounds: Bounds, implied: Owner) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self::new(rustix::fs::openat(CWD, path, flags, Mode::empty())?, bounds, implied))
    }

    /// Opens what a path leads to.
    pub(super) fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        for _ in 0..ATTEMPTS {
            let flags = flags | OFlags::CLOEXEC;
            match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), self.bounds.flags()) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }

    /// A directory, which is created with its missing parents.
    pub(super) fn directory(&mut self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.directory_through(path, MOST_LINKS)
    }

    /// The same; `links` bounds how many links to missing directories it follows.
    fn directory_through(&mut self, path: &[u8], links: u32) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.open(path, flags) {
            Err(Errno::NOENT) => {}
            result => return result,
        }
        let mut parent = self.open(b"", flags)?;
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            let prefix = &path[..end];
            parent = match self.open(prefix, flags) {
                Err(Errno::NOENT) => {
                    let name = last(prefix);
                    match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
                        // A link whose target comes later in the archive: clients pack a link to a directory before
                        // the directory itself.
                        Err(Errno::EXIST) if self.bounds == Bounds::Beneath && links > 0 => {
                            let link = rustix::fs::readlinkat(&parent, name, Vec::new())?;
                            let target = joined(parent_of(prefix), link.as_bytes()).ok_or(Errno::XDEV)?;
                            self.directory_through(&target, links - 1)?;
                        }
                        made => {
                            made?;
                            let (uid, gid) = self.implied.ids();
                            rustix::fs::chownat(&parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
                            self.implied_directories += 1;
                        }
                    }
                    // The kernel decides where the link leads, whatever was read from it.
                    self.open(prefix, flags)?
                }
                result => result?,
            };
        }
        Ok(parent)
    }

    /// The place of `path`, whose parents are created.
    pub(super) fn spot(&mut self, path: &[u8]) -> Result<Spot, Errno> {
        let above = parent_of(path);
        let parent = match &self.parent {
            Some((known, parent)) if known == above => Rc::clone(parent),
            _ => {
                let parent = Rc::new(self.directory(above)?);
                self.parent = Some((above.to_vec(), Rc::clone(&parent)));
                parent
            }
        };
        Ok(Spot { parent, name: last(path).to_vec() })
    }

    /// The place of `path` if its parent exists.
    pub(super) fn existing_spot(&self, path: &[u8]) -> Result<Spot, Errno> {
        let parent = self.open(parent_of(path), OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(Spot { parent: Rc::new(parent), name: last(path).to_vec() })
    }

    /// Sets the attributes of the directory at `path`; its time at the end. Returns the number of extended attributes
    /// that could not be set.
    pub(super) fn dress_directory(&mut self, path: &[u8], attributes: &Attributes<'_>) -> Result<u64, Errno> {
        let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK)?;
        if self.times_length + path.len() <= LONGEST_TIMES {
            self.times_length += path.len() + size_of::<(Vec<u8>, (i64, u32))>();
            self.times.push((path.to_vec(), attributes.mtime));
        }
        dress(&directory, attributes)
    }

    /// Sets the times of directories, after everything was written.
    pub(super) fn set_times(&mut self) {
        for (path, mtime) in std::mem::take(&mut self.times) {
            // A later member may have taken its place.
            if let Ok(directory) = self.open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK) {
                let _read_only = rustix::fs::futimens(&directory, &timestamps(mtime));
            }
        }
    }
}

impl Spot {
    /// What is there; `EXDEV` for a mount.
    pub(super) fn look(&self) -> Result<Option<FileType>, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::BENEATH;
        match rustix::fs::openat2(&*self.parent, &*self.name, flags, Mode::empty(), resolve) {
            Ok(found) => Ok(Some(FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn unlink(&self) -> Result<(), Errno> {
        match rustix::fs::unlinkat(&*self.parent, &*self.name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            result => result,
        }
    }

    pub(super) fn make_directory(&self) -> Result<(), Errno> {
        rustix::fs::mkdirat(&*self.parent, &*self.name, Mode::from_raw_mode(0o700))
    }

    /// A new file, for its owner alone until its attributes are set.
    pub(super) fn create(&self) -> Result<File, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&*self.parent, &*self.name, flags, Mode::from_raw_mode(0o600)).map(File::from)
    }

    pub(super) fn symlink(&self, target: &[u8], attributes: &Attributes<'_>) -> Result<(), Errno> {
        rustix::fs::symlinkat(target, &*self.parent, &*self.name)?;
        self.dress_unopened(attributes)
    }

    pub(super) fn fifo(&self, attributes: &Attributes<'_>) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(&*self.parent, &*self.name, FileType::Fifo, mode, 0)?;
        self.dress_unopened(attributes)?;
        // The owner comes first, as a change of it takes set-uid away. The time is not affected.
        let mode = Mode::from_raw_mode(attributes.mode);
        rustix::fs::chmodat(&*self.parent, &*self.name, mode, AtFlags::empty())
    }

    fn dress_unopened(&self, attributes: &Attributes<'_>) -> Result<(), Errno> {
        let (uid, gid) = attributes.owner.ids();
        rustix::fs::chownat(&*self.parent, &*self.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        let times = timestamps(attributes.mtime);
        rustix::fs::utimensat(&*self.parent, &*self.name, &times, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Gives `existing` this second name.
    pub(super) fn link(&self, existing: &Self) -> Result<(), Errno> {
        rustix::fs::linkat(&*existing.parent, &*existing.name, &*self.parent, &*self.name, AtFlags::empty())
    }

    /// Opens a file that is there, to read it.
    pub(super) fn open_file(&self) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(&*self.parent, &*self.name, flags, Mode::empty()).map(File::from)
    }
}

/// Sets the attributes of an open file or directory, in the order in which none undoes another. Returns the number of
/// extended attributes that could not be set.
pub(super) fn dress(file: impl std::os::fd::AsFd, attributes: &Attributes<'_>) -> Result<u64, Errno> {
    let file = file.as_fd();
    let (uid, gid) = attributes.owner.ids();
    rustix::fs::fchown(file, uid, gid)?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(attributes.mode))?;
    let mut refused = 0;
    for (name, value) in attributes.xattrs {
        match rustix::fs::fsetxattr(file, &**name, value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => return Err(errno),
            // The file system has none of this kind, or the value is malformed.
            Err(_) => refused += 1,
        }
    }
    rustix::fs::futimens(file, &timestamps(attributes.mtime))?;
    Ok(refused)
}

fn timestamps((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// Where a relative link in the directory `from` leads, by its text; `None` if that is outside.
fn joined(from: &[u8], link: &[u8]) -> Option<Vec<u8>> {
    if link.starts_with(b"/") {
        return None;
    }
    let mut parts: Vec<&[u8]> = from.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
    for part in link.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join(&b'/'))
}

pub(super) fn parent_of(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(b"", |slash| &path[..slash])
}

pub(super) fn last(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(path, |slash| &path[slash + 1..])
}

//! Copies members to a destination, as `COPY` of a Dockerfile.

use std::io::Read;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;

use super::archive::{Archive, Kind, Member};
use super::fault::{Fault, Writing as _, shown};
use super::names::{Absolute, clean};
use super::progress::Progress;
use super::source::{Place, Source};
use super::tree::{Attributes, Bounds, Owner, Spot, Tree, dress, last, parent_of};

/// Links that the destination may lead through, as in the kernel.
const MOST_LINKS: u32 = 40;

#[derive(Debug)]
pub(super) struct Order {
    pub(super) source: Source,
    /// Relative to the root, without `.` and `..`.
    pub(super) dest: Vec<u8>,
    pub(super) into_directory: bool,
    pub(super) owner: Owner,
    pub(super) mode: Option<u32>,
}

pub(super) fn unpack(
    archive: &mut Archive<impl Read>,
    order: &Order,
    root: &Path,
    progress: &mut Progress,
) -> Result<(), Fault> {
    let outer = Tree::at(root, Bounds::Anywhere, Owner::ROOT).writing(b"/")?;
    let mut copy = Copy { order, outer, destination: None, is_new: false, progress };
    // The source may be a link to a directory whose files follow. It is then copied like a directory.
    let mut link = None;
    let mut matched = false;
    while let Some(member) = archive.next()? {
        let name = clean(&member.name, Absolute::Refused)?;
        let is_directory = member.kind == Kind::Directory;
        copy.progress.names.admit(&name, is_directory)?;
        let Some(place) = order.source.place(&name, is_directory) else { continue };
        matched = true;
        match place {
            Place::Destination => copy.dress_destination(&member)?,
            Place::Below(path) => {
                link = None;
                copy.write(archive, &member, path, &name)?;
            }
            Place::Alone if matches!(member.kind, Kind::Symlink(_)) => link = Some((member, name)),
            Place::Alone => copy.write_alone(archive, &member, &name)?,
        }
        let implied = copy.destination.as_ref().map_or(0, |tree| tree.implied_directories);
        copy.progress.names.check(implied)?;
    }
    if let Some((member, name)) = link {
        copy.write_alone(archive, &member, &name)?;
    }
    if !matched {
        let source = shown(order.source.text().as_bytes());
        return Err(Fault::new(format!("nothing in the archive matches the source '{source}'")));
    }
    if let Some(tree) = &mut copy.destination {
        tree.set_times();
    }
    Ok(())
}

struct Copy<'a> {
    order: &'a Order,
    /// The root of the sandbox, through which the destination is found.
    outer: Tree,
    /// The destination as a directory, from the first member on that needs it.
    destination: Option<Tree>,
    is_new: bool,
    progress: &'a mut Progress,
}

impl Copy<'_> {
    fn attributes(&self, member: &Member) -> Attributes<'static> {
        Attributes {
            owner: self.order.owner,
            mode: self.order.mode.unwrap_or(member.mode),
            mtime: member.mtime,
            xattrs: &[],
        }
    }

    /// The destination, created if it is not there. It belongs to the owner of the copy, its new parents to root.
    fn destination(&mut self) -> Result<&mut Tree, Fault> {
        if self.destination.is_none() {
            let dest = &self.order.dest;
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let opened = match self.outer.open(dest, flags) {
                Err(Errno::NOENT) => {
                    self.is_new = true;
                    self.outer.directory(dest)
                }
                result => result,
            };
            let opened = opened.map_err(|errno| unusable(dest, errno))?;
            if self.is_new {
                let directory = self.outer.open(dest, OFlags::RDONLY | OFlags::DIRECTORY);
                let directory = directory.map_err(|errno| unusable(dest, errno))?;
                let Owner { uid, gid } = self.order.owner;
                let mode = rustix::fs::Mode::from_raw_mode(self.order.mode.unwrap_or(0o755));
                let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
                rustix::fs::fchown(&directory, Some(uid), Some(gid))
                    .map_err(|errno| unusable(dest, errno))?;
                rustix::fs::fchmod(&directory, mode).map_err(|errno| unusable(dest, errno))?;
            }
            self.destination = Some(Tree::new(opened, Bounds::Beneath, self.order.owner));
        }
        self.destination.as_mut().ok_or_else(|| Fault::new("the destination is not open"))
    }

    /// The source is a directory: a new destination gets its attributes.
    fn dress_destination(&mut self, member: &Member) -> Result<(), Fault> {
        let attributes = self.attributes(member);
        self.destination()?;
        if self.is_new {
            let tree = self.destination()?;
            tree.dress_directory(b"", &attributes).writing(&member.name)?;
        }
        self.progress.unpacked.entries += 1;
        Ok(())
    }

    /// The source is one file, and the destination its new name or a directory for it.
    fn write_alone(
        &mut self,
        archive: &mut Archive<impl Read>,
        member: &Member,
        name: &[u8],
    ) -> Result<(), Fault> {
        let dest = &self.order.dest;
        let is_directory =
            self.order.into_directory || self.outer.open(dest, OFlags::PATH | OFlags::DIRECTORY).is_ok();
        if is_directory {
            let path = last(name).to_vec();
            return self.write(archive, member, &path, name);
        }
        if let Kind::HardLink(target) = &member.kind {
            return Err(not_included(name, target));
        }
        let spot = self.renamed()?;
        self.fill(archive, member, &spot, name, None)
    }

    /// The place of the destination as a file. A link there is followed: it is what the client named.
    fn renamed(&mut self) -> Result<Spot, Fault> {
        let dest = &self.order.dest;
        let mut spot = self.outer.spot(dest).map_err(|errno| unusable(dest, errno))?;
        let mut above = parent_of(dest).to_vec();
        for _ in 0..MOST_LINKS {
            if kind_of(&spot).map_err(|errno| unusable(dest, errno))? != Some(FileType::Symlink) {
                return Ok(spot);
            }
            let target = rustix::fs::readlinkat(&*spot.parent, &*spot.name, Vec::new());
            let target = target.map_err(|errno| unusable(dest, errno))?;
            let target = target.to_bytes();
            let path = match target.starts_with(b"/") {
                true => target.to_vec(),
                false => [&*above, b"/", target].concat(),
            };
            if matches!(last(&path), b"" | b"." | b"..") {
                return Err(unusable(dest, Errno::NOENT));
            }
            spot = self.outer.existing_spot(&path).map_err(|errno| unusable(dest, errno))?;
            above = parent_of(&path).to_vec();
        }
        Err(unusable(dest, Errno::LOOP))
    }

    /// Writes a member to a path below the destination.
    fn write(
        &mut self,
        archive: &mut Archive<impl Read>,
        member: &Member,
        path: &[u8],
        name: &[u8],
    ) -> Result<(), Fault> {
        let attributes = self.attributes(member);
        let tree = self.destination()?;
        if member.kind == Kind::Directory {
            match tree.open(path, OFlags::PATH | OFlags::DIRECTORY) {
                Ok(_) => {}
                Err(Errno::NOENT) => {
                    let spot = tree.spot(path).map_err(|errno| unreachable_member(name, errno))?;
                    spot.make_directory().map_err(|errno| unreachable_member(name, errno))?;
                }
                Err(errno) => return Err(unreachable_member(name, errno)),
            }
            tree.dress_directory(path, &attributes).writing(name)?;
            self.progress.unpacked.entries += 1;
            return Ok(());
        }
        let spot = tree.spot(path).map_err(|errno| unreachable_member(name, errno))?;
        let linked = match &member.kind {
            Kind::HardLink(target) => match self.linked(name, target)? {
                // A pattern can put both names at one place.
                linked if linked == path => return Ok(()),
                linked => Some(linked),
            },
            _ => None,
        };
        self.fill(archive, member, &spot, name, linked.as_deref())
    }

    /// The path of a hard link's target below the destination.
    fn linked(&self, name: &[u8], target: &[u8]) -> Result<Vec<u8>, Fault> {
        let cleaned = clean(target, Absolute::Refused)?;
        match self.order.source.place(&cleaned, false) {
            Some(Place::Below(path)) if self.progress.names.has_file(&cleaned) => Ok(path.to_vec()),
            _ => Err(not_included(name, target)),
        }
    }

    /// Writes a file or link, instead of one that is there.
    fn fill(
        &mut self,
        archive: &mut Archive<impl Read>,
        member: &Member,
        spot: &Spot,
        name: &[u8],
        linked: Option<&[u8]>,
    ) -> Result<(), Fault> {
        let attributes = self.attributes(member);
        if member.kind == Kind::Device {
            self.progress.unpacked.skipped_devices += 1;
            return Ok(());
        }
        if kind_of(spot).writing(name)? == Some(FileType::Directory) {
            return Err(Fault::member(name, "is a file, but there is a directory at its destination"));
        }
        spot.unlink().writing(name)?;
        match (&member.kind, linked) {
            (_, Some(linked)) => self.link(spot, linked, name, &attributes)?,
            (Kind::Symlink(target), _) => spot.symlink(target, &attributes).writing(name)?,
            (Kind::Fifo, _) => spot.fifo(&attributes).writing(name)?,
            _ => self.progress.write_file(archive, spot, &attributes, name)?,
        }
        self.progress.unpacked.entries += 1;
        Ok(())
    }

    /// A second name of a file that was copied before; a second copy where the file system refuses that.
    fn link(
        &mut self,
        spot: &Spot,
        linked: &[u8],
        name: &[u8],
        attributes: &Attributes<'_>,
    ) -> Result<(), Fault> {
        let linked = self.destination()?.existing_spot(linked);
        let linked = linked.map_err(|errno| unreachable_member(name, errno))?;
        match spot.link(&linked) {
            Err(Errno::XDEV | Errno::MLINK | Errno::PERM) => {}
            result => return result.writing(name),
        }
        if kind_of(&linked).writing(name)? != Some(FileType::RegularFile) {
            return Err(Fault::member(name, "is a second name of something that is not a file"));
        }
        let mut from = linked.open_file().writing(name)?;
        let mut to = spot.create().writing(name)?;
        self.progress.unpacked.bytes += std::io::copy(&mut from, &mut to).writing(name)?;
        dress(&to, attributes).writing(name).map(drop)
    }
}

/// What is at a place, mounts included.
fn kind_of(spot: &Spot) -> Result<Option<FileType>, Errno> {
    match rustix::fs::statat(&*spot.parent, &*spot.name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn not_included(name: &[u8], target: &[u8]) -> Fault {
    Fault::member(name, format_args!("is a link to '{}', which is not among the copied files", shown(target)))
}

/// The destination itself cannot be used.
fn unusable(dest: &[u8], errno: Errno) -> Fault {
    let why = match errno {
        Errno::NOTDIR => "is not a directory, or below a file".to_owned(),
        Errno::EXIST | Errno::NOENT => "leads through a symbolic link that leads nowhere".to_owned(),
        Errno::LOOP => "leads through too many symbolic links".to_owned(),
        Errno::NOSPC | Errno::DQUOT => return Fault::writing(dest, &errno.into()),
        _ => format!("cannot be used: {}", std::io::Error::from(errno)),
    };
    Fault::new(format!("the destination '/{}' {why}", shown(dest)))
}

/// A path below the destination cannot be resolved.
fn unreachable_member(name: &[u8], errno: Errno) -> Fault {
    match errno {
        Errno::XDEV => Fault::member(name, "leaves the destination through a symbolic link"),
        Errno::NOTDIR => Fault::member(name, "needs a directory where a file is"),
        Errno::EXIST | Errno::LOOP => Fault::member(name, "is below a symbolic link that leads nowhere"),
        _ => Fault::writing(name, &errno.into()),
    }
}

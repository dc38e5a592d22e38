//! Applies a layer of an image to the root of the sandbox.

use std::io::Read;
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{Dir, FileType, OFlags};
use rustix::io::Errno;

use super::archive::{Archive, Kind, Member};
use super::fault::{Fault, Writing as _, shown};
use super::names::{Absolute, clean};
use super::progress::Progress;
use super::records::Xattrs;
use super::tree::{Attributes, Bounds, IDS, Owner, Spot, Tree, last, parent_of};
use crate::files::remove_within_mount;

/// Directories that every sandbox mounts at its start: what an image has there would never be seen.
const MOUNTS: [&[u8]; 4] = [b"dev", b"proc", b"run", b"sys"];

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Other files of the union file system that the format comes from.
const WHITEOUT_META: &[u8] = b".wh..wh.";

/// The id of nobody.
const OVERFLOW_ID: u32 = 65_534;

/// Why a member was not written.
enum Stop {
    /// It is on a mount.
    Mount,
    Fault(Fault),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

pub(super) fn unpack(
    archive: &mut Archive<impl Read>,
    root: &Path,
    progress: &mut Progress,
) -> Result<(), Fault> {
    let tree = Tree::at(root, Bounds::OneMount, Owner::ROOT).writing(b"/")?;
    let mut layer = Layer { tree, progress };
    while let Some(member) = archive.next()? {
        let name = clean(&member.name, Absolute::Relative)?;
        layer.progress.names.admit(&name, member.kind == Kind::Directory)?;
        match layer.apply(archive, &member, &name) {
            Ok(()) => {}
            Err(Stop::Mount) => layer.progress.unpacked.skipped_on_mounts += 1,
            Err(Stop::Fault(fault)) => return Err(fault),
        }
        layer.progress.names.check(layer.tree.implied_directories)?;
    }
    layer.tree.set_times();
    Ok(())
}

struct Layer<'a> {
    tree: Tree,
    progress: &'a mut Progress,
}

impl Layer<'_> {
    fn apply(&mut self, archive: &mut Archive<impl Read>, member: &Member, name: &[u8]) -> Result<(), Stop> {
        if is_on_mount(name) {
            return Err(Stop::Mount);
        }
        let base = last(name);
        if base.starts_with(WHITEOUT) {
            return self.white_out(name, base);
        }
        if member.kind == Kind::Device {
            self.progress.unpacked.skipped_devices += 1;
            return Ok(());
        }
        self.write(archive, member, name)?;
        self.progress.names.touch(name);
        self.progress.unpacked.entries += 1;
        Ok(())
    }

    fn write(&mut self, archive: &mut Archive<impl Read>, member: &Member, name: &[u8]) -> Result<(), Stop> {
        let (xattrs, filtered) = permitted(&member.xattrs);
        let attributes =
            Attributes { owner: self.owner(member), mode: member.mode, mtime: member.mtime, xattrs: &xattrs };
        self.progress.unpacked.skipped_xattrs += filtered;
        if member.kind == Kind::Directory {
            self.make_directory(name)?;
            let refused = self.tree.dress_directory(name, &attributes).writing(name)?;
            self.progress.unpacked.skipped_xattrs += refused;
            return Ok(());
        }
        if name.is_empty() {
            return Err(Fault::member(&member.name, "takes the place of the top directory").into());
        }
        let linked = match &member.kind {
            Kind::HardLink(target) => Some(self.linked(name, target)?),
            _ => None,
        };
        let spot = self.tree.spot(name).map_err(|errno| stop(name, errno))?;
        self.make_room(name, &spot)?;
        match (&member.kind, linked) {
            (_, Some(linked)) => spot.link(&linked).writing(name)?,
            (Kind::Symlink(target), _) => spot.symlink(target, &attributes).writing(name)?,
            (Kind::Fifo, _) => spot.fifo(&attributes).writing(name)?,
            _ => self.progress.write_file(archive, &spot, &attributes, name)?,
        }
        Ok(())
    }

    /// Ids of the member; those that a sandbox cannot have become nobody's.
    fn owner(&mut self, member: &Member) -> Owner {
        let id = |id: u64| u32::try_from(id).ok().filter(|id| *id < IDS);
        let (uid, gid) = (id(member.uid), id(member.gid));
        self.progress.unpacked.squashed_ids += u64::from(uid.is_none() || gid.is_none());
        Owner { uid: uid.unwrap_or(OVERFLOW_ID), gid: gid.unwrap_or(OVERFLOW_ID) }
    }

    fn make_directory(&mut self, name: &[u8]) -> Result<(), Stop> {
        if name.is_empty() {
            return Ok(());
        }
        let spot = self.tree.spot(name).map_err(|errno| stop(name, errno))?;
        match spot.look().map_err(|errno| stop(name, errno))? {
            Some(FileType::Directory) => return Ok(()),
            Some(_) if self.progress.names.has_file(name) => {
                return Err(Fault::member(name, "is there twice, as a file and as a directory").into());
            }
            Some(_) => spot.unlink().writing(name)?,
            None => {}
        }
        Ok(spot.make_directory().writing(name)?)
    }

    /// Removes what an earlier layer has at the place of a new file.
    fn make_room(&mut self, name: &[u8], spot: &Spot) -> Result<(), Stop> {
        match spot.look().map_err(|errno| stop(name, errno))? {
            None => Ok(()),
            Some(FileType::Directory) if self.progress.names.is_touched(name) => {
                Err(Fault::member(name, "is there twice, as a file and as a directory").into())
            }
            Some(FileType::Directory) => Ok(remove_within_mount(&spot.parent, &spot.name).writing(name)?),
            Some(_) => Ok(spot.unlink().writing(name)?),
        }
    }

    /// The file that a hard link names, of this layer or an earlier one.
    fn linked(&mut self, name: &[u8], target: &[u8]) -> Result<Spot, Stop> {
        let target = clean(target, Absolute::Relative)?;
        if is_on_mount(&target) {
            return Err(Stop::Mount);
        }
        let missing =
            || Fault::member(name, format_args!("is a link to '{}', which is not there", shown(&target)));
        if target.is_empty() || target == name {
            return Err(missing().into());
        }
        let spot = match self.tree.existing_spot(&target) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(missing().into()),
            result => result.map_err(|errno| stop(name, errno))?,
        };
        match spot.look().map_err(|errno| stop(name, errno))? {
            None => Err(missing().into()),
            Some(FileType::Directory) => {
                Err(Fault::member(name, format_args!("is a link to the directory '{}'", shown(&target)))
                    .into())
            }
            Some(_) => Ok(spot),
        }
    }

    /// Removes what earlier layers have, and nothing of this one.
    fn white_out(&mut self, name: &[u8], base: &[u8]) -> Result<(), Stop> {
        let directory = parent_of(name);
        if base == OPAQUE {
            return self.clear(name, directory);
        }
        if base.starts_with(WHITEOUT_META) {
            return Ok(());
        }
        let hidden = &base[WHITEOUT.len()..];
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(Fault::member(name, "is a whiteout of nothing").into());
        }
        let hidden = joined(directory, hidden);
        if is_on_mount(&hidden) {
            return Err(Stop::Mount);
        }
        let spot = match self.tree.existing_spot(&hidden) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            result => result.map_err(|errno| stop(name, errno))?,
        };
        self.remove(name, &spot, &hidden)
            .map(|below| below.map_or(Ok(()), |below| self.clear(name, &below)))?
    }

    /// Removes everything in a directory that this layer did not write.
    fn clear(&mut self, name: &[u8], directory: &[u8]) -> Result<(), Stop> {
        let mut waiting = vec![directory.to_vec()];
        while let Some(path) = waiting.pop() {
            let opened = match self.tree.open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK) {
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                result => Rc::new(result.map_err(|errno| stop(name, errno))?),
            };
            for entry in Dir::read_from(&*opened).writing(name)? {
                let entry = entry.writing(name)?;
                let entry = entry.file_name().to_bytes();
                let child = joined(&path, entry);
                if matches!(entry, b"." | b"..") || is_on_mount(&child) {
                    continue;
                }
                let spot = Spot { parent: Rc::clone(&opened), name: entry.to_vec() };
                match self.remove(name, &spot, &child) {
                    Ok(below) => waiting.extend(below),
                    Err(Stop::Mount) => {}
                    Err(fault) => return Err(fault),
                }
            }
        }
        Ok(())
    }

    /// Removes what is at `path` unless this layer wrote it. Returns `path` if it is a directory that this layer
    /// wrote to, and may hold more.
    fn remove(&mut self, name: &[u8], spot: &Spot, path: &[u8]) -> Result<Option<Vec<u8>>, Stop> {
        let found = spot.look().map_err(|errno| stop(name, errno))?;
        let touched = self.progress.names.is_touched(path);
        match found {
            None => return Ok(None),
            Some(FileType::Directory) if touched => return Ok(Some(path.to_vec())),
            Some(_) if touched => return Ok(None),
            Some(FileType::Directory) => remove_within_mount(&spot.parent, &spot.name).writing(path)?,
            Some(_) => spot.unlink().writing(path)?,
        }
        self.progress.unpacked.removed += 1;
        Ok(None)
    }
}

fn is_on_mount(name: &[u8]) -> bool {
    MOUNTS.contains(&name.split(|byte| *byte == b'/').next().unwrap_or_default())
}

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

/// A path that could not be resolved.
fn stop(name: &[u8], errno: Errno) -> Stop {
    Stop::Fault(match errno {
        Errno::XDEV => return Stop::Mount,
        Errno::NOTDIR => Fault::member(name, "is below a file"),
        Errno::EXIST => Fault::member(name, "is below a symbolic link that leads nowhere"),
        Errno::LOOP => Fault::member(name, "is below a symbolic link that leads to itself"),
        _ => Fault::writing(name, &errno.into()),
    })
}

/// Attributes that a sandbox may have, and the number of others: those of overlays would hide or redirect files.
fn permitted(xattrs: &Xattrs) -> (Xattrs, u64) {
    let permitted = |name: &[u8]| {
        name == b"security.capability"
            || (name.starts_with(b"user.") && !name.starts_with(b"user.overlay.") && !name.contains(&0))
    };
    let kept: Xattrs = xattrs.iter().filter(|(name, _)| permitted(name)).cloned().collect();
    let filtered = (xattrs.len() - kept.len()) as u64;
    (kept, filtered)
}

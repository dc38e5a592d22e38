//! btrfs ioctls: subvolumes, snapshots of them, and their quotas.
//!
//! Each sandbox's files are a subvolume, because btrfs counts and limits subvolumes, copies them in constant
//! time and deletes them in the background. Uses `ioctl` and not the `btrfs` program: a call instead of a
//! process for every sandbox, and errors as distinct numbers.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

/// The letter of btrfs in the kernel's list of `ioctl` numbers.
const MAGIC: u32 = 0x94;

/// The number of a file system's first subvolume, and of the first file in each.
const FIRST_FREE: u64 = 256;

/// `_IOC` of the kernel's headers: direction, size of the argument, letter and number in one word. The size is part of
/// the number, so a structure below that differs from the kernel's is refused with `ENOTTY` and never misread.
#[expect(clippy::cast_possible_truncation, reason = "sizes are at most 4096; musl's type has 32 bits too")]
const fn request(direction: u32, number: u32, size: usize) -> libc::Ioctl {
    ((direction << 30) | ((size as u32) << 16) | (MAGIC << 8) | number) as libc::Ioctl
}
const WRITE: u32 = 1;
const READ: u32 = 2;

const SUBVOL_CREATE: libc::Ioctl = request(WRITE, 14, size_of::<VolumeArgs>());
const SNAP_DESTROY: libc::Ioctl = request(WRITE, 15, size_of::<VolumeArgs>());
const TREE_SEARCH: libc::Ioctl = request(READ | WRITE, 17, size_of::<SearchArgs>());
const INO_LOOKUP: libc::Ioctl = request(READ | WRITE, 18, size_of::<LookupArgs>());
// The second version: the first has no flags, so a snapshot could not be created read-only.
const SNAP_CREATE_V2: libc::Ioctl = request(WRITE, 23, size_of::<SnapshotArgs>());
const FS_INFO: libc::Ioctl = request(READ, 31, size_of::<FsInfo>());
const QUOTA_CTL: libc::Ioctl = request(READ | WRITE, 40, size_of::<QuotaArgs>());
const QGROUP_CREATE: libc::Ioctl = request(WRITE, 42, size_of::<QgroupCreateArgs>());
// The header has `_IOR` here, though the kernel reads the argument and writes nothing.
const QGROUP_LIMIT: libc::Ioctl = request(READ, 43, size_of::<QgroupLimitArgs>());

#[repr(C)]
struct VolumeArgs {
    fd: i64,
    name: [u8; 4088],
}

#[repr(C)]
struct SnapshotArgs {
    fd: i64,
    transaction: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}

#[repr(C)]
struct QuotaArgs {
    command: u64,
    status: u64,
}

#[repr(C)]
struct QgroupCreateArgs {
    create: u64,
    id: u64,
}

#[repr(C)]
struct QgroupLimitArgs {
    id: u64,
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved_referenced: u64,
    reserved_exclusive: u64,
}

impl QgroupLimitArgs {
    const fn new(id: u64, flags: u64, bytes: u64) -> Self {
        Self {
            id,
            flags,
            max_referenced: bytes,
            max_exclusive: bytes,
            reserved_referenced: 0,
            reserved_exclusive: 0,
        }
    }
}

#[repr(C)]
struct FsInfo {
    max_id: u64,
    devices: u64,
    id: [u8; 16],
    rest: [u8; 992],
}

#[repr(C)]
struct LookupArgs {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

#[repr(C)]
struct SearchArgs {
    tree: u64,
    min_object: u64,
    max_object: u64,
    min_offset: u64,
    max_offset: u64,
    min_transaction: u64,
    max_transaction: u64,
    min_type: u32,
    max_type: u32,
    items: u32,
    unused: u32,
    unused_long: [u64; 4],
    buffer: [u8; 3992],
}

fn call<T>(file: &File, request: libc::Ioctl, argument: &mut T) -> io::Result<()> {
    // SAFETY: every request above is paired with the structure it was computed from, which has the kernel's
    // layout and lives through the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A name as the kernel takes it, with zeros after it.
fn padded<const LENGTH: usize>(name: &OsStr) -> io::Result<[u8; LENGTH]> {
    let bytes = name.as_encoded_bytes();
    if bytes.len() > 255 || bytes.is_empty() || bytes.contains(&b'/') || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut padded = [0; LENGTH];
    padded[..bytes.len()].copy_from_slice(bytes);
    Ok(padded)
}

fn named(name: &OsStr) -> io::Result<VolumeArgs> {
    Ok(VolumeArgs { fd: 0, name: padded(name)? })
}

/// Creates a subvolume in `parent`.
pub(super) fn create_subvolume(parent: &File, name: &OsStr) -> io::Result<()> {
    call(parent, SUBVOL_CREATE, &mut named(name)?)
}

/// Whether a snapshot can be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    ReadOnly,
    Writable,
}

/// Creates a subvolume in `parent` with the content of `source`, shared until one of them changes it. All of
/// it, including data that was not yet on disk, is on disk afterwards.
pub(super) fn snapshot(source: &File, parent: &File, name: &OsStr, access: Access) -> io::Result<()> {
    const READ_ONLY: u64 = 2;
    let flags = if access == Access::ReadOnly { READ_ONLY } else { 0 };
    let fd = i64::from(source.as_raw_fd());
    let mut args = SnapshotArgs { fd, transaction: 0, flags, unused: [0; 4], name: padded(name)? };
    call(parent, SNAP_CREATE_V2, &mut args)
}

/// Deletes a subvolume with all that is in it; the space follows in the background.
pub(super) fn delete_subvolume(parent: &File, name: &OsStr) -> io::Result<()> {
    call(parent, SNAP_DESTROY, &mut named(name)?)
}

/// The number of the subvolume that contains `inside`; its quota group has the same.
pub(super) fn subvolume_id(inside: &File) -> io::Result<u64> {
    let mut args = LookupArgs { tree: 0, object: FIRST_FREE, name: [0; 4080] };
    call(inside, INO_LOOKUP, &mut args)?;
    Ok(args.tree)
}

/// How a file system counts the bytes of each subvolume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quotas {
    /// Charge an extent to the subvolume that wrote it, and stay cheap with any number of them (Linux 6.7).
    Simple,
    /// Charge an extent to every subvolume that has it.
    Classic,
}

/// Turns quotas on, or keeps those that are on; returns the kernel's error for simple quotas if it has none.
pub(super) fn enable_quotas(root: &File, wanted: Quotas) -> io::Result<Option<io::Error>> {
    const ENABLE: u64 = 1;
    const ENABLE_SIMPLE: u64 = 4;
    let enable = |command| call(root, QUOTA_CTL, &mut QuotaArgs { command, status: 0 });
    let refusal = match wanted {
        Quotas::Simple => match enable(ENABLE_SIMPLE) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => error,
            result => return result.map(|()| None),
        },
        Quotas::Classic => io::ErrorKind::Unsupported.into(),
    };
    enable(ENABLE).map(|()| Some(refusal))
}

const MAX_REFERENCED: u64 = 1;
const MAX_EXCLUSIVE: u64 = 2;

/// Limits the size of the subvolume that contains `inside`.
pub(super) fn limit(inside: &File, bytes: u64) -> io::Result<()> {
    // Group 0 means that of the descriptor's subvolume.
    call(inside, QGROUP_LIMIT, &mut QgroupLimitArgs::new(0, MAX_REFERENCED, bytes))
}

/// Limits a quota group to `bytes` of exclusive data, whatever its own limit is.
pub(super) fn hold(root: &File, id: u64, bytes: u64) -> io::Result<()> {
    call(root, QGROUP_LIMIT, &mut QgroupLimitArgs::new(id, MAX_EXCLUSIVE, bytes))
}

/// Undoes [`hold`].
pub(super) fn let_go(root: &File, id: u64) -> io::Result<()> {
    const NONE: u64 = u64::MAX;
    call(root, QGROUP_LIMIT, &mut QgroupLimitArgs::new(id, MAX_EXCLUSIVE, NONE))
}

/// The kernel's figures for a quota group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) id: u64,
    pub(super) used: u64,
    /// Bytes that no other subvolume has. The same with simple quotas, which charge an extent only once.
    pub(super) exclusive: u64,
    /// By [`hold`].
    pub(super) held: bool,
}

/// The quota groups of sandboxes.
pub(super) fn groups(quota_groups: &Path) -> io::Result<impl Iterator<Item = Group>> {
    let at = quota_groups.to_path_buf();
    Ok(group_ids(quota_groups)?.into_iter().filter_map(move |id| {
        // A group that was removed meanwhile cannot be read.
        let flags = std::fs::read_to_string(at.join(format!("0_{id}/limit_flags"))).ok()?;
        let flags: u64 = flags.trim().parse().ok()?;
        let unwritten = unwritten_bytes(&at, id).ok()?;
        let counted = |name| Some(group_number(&at, id, name).ok()?.saturating_add(unwritten));
        let (used, exclusive) = (counted("referenced")?, counted("exclusive")?);
        Some(Group { id, used, exclusive, held: flags & MAX_EXCLUSIVE != 0 })
    }))
}

/// Drops the quota group of a deleted subvolume. `Ok(false)` while the deletion is not complete.
pub(super) fn drop_quota_group(root: &File, id: u64) -> io::Result<bool> {
    match call(root, QGROUP_CREATE, &mut QgroupCreateArgs { create: 0, id }) {
        Ok(()) => Ok(true),
        // Newer kernels drop it themselves.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTCONN)) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The sysfs directory of the file system that `root` is on.
fn told(root: &File) -> io::Result<PathBuf> {
    let mut info = FsInfo { max_id: 0, devices: 0, id: [0; 16], rest: [0; 992] };
    call(root, FS_INFO, &mut info)?;
    Ok(PathBuf::from(format!("/sys/fs/btrfs/{}", uuid::Uuid::from_bytes(info.id))))
}

/// Where the kernel shows the quota groups of the filesystem that `root` is on.
pub(super) fn quota_groups(root: &File) -> io::Result<PathBuf> {
    let path = told(root)?.join("qgroups");
    if path.is_dir() { Ok(path) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Whether an extent is charged to its creator alone, as long as any subvolume has it, and not to all that
/// have it.
pub(super) fn charges_makers(quota_groups: &Path) -> bool {
    std::fs::read_to_string(quota_groups.join("mode")).is_ok_and(|mode| mode.trim() == "squota")
}

/// The numbers of all quota groups of subvolumes, whether these still exist or not.
pub(super) fn group_ids(quota_groups: &Path) -> io::Result<Vec<u64>> {
    let id = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_prefix("0_")?.parse().ok();
    // Below are the file system's own trees.
    Ok(std::fs::read_dir(quota_groups)?.flatten().filter_map(id).filter(|&id| id >= FIRST_FREE).collect())
}

/// How much is set aside for metadata, used or not.
pub(super) fn metadata_bytes(root: &File) -> io::Result<u64> {
    let text = std::fs::read_to_string(told(root)?.join("allocation/metadata/total_bytes"))?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Size of a subvolume, including data that is not on disk yet: the quota tree itself counts that only when
/// it is written, up to half a minute later.
pub(super) fn used_bytes_now(quota_groups: &Path, id: u64) -> io::Result<u64> {
    let referenced = group_number(quota_groups, id, "referenced")?;
    Ok(referenced.saturating_add(unwritten_bytes(quota_groups, id)?))
}

/// Bytes written to a subvolume that are not on disk yet.
pub(super) fn unwritten_bytes(quota_groups: &Path, id: u64) -> io::Result<u64> {
    group_number(quota_groups, id, "rsv_data")
}

fn group_number(quota_groups: &Path, id: u64, name: &str) -> io::Result<u64> {
    let text = std::fs::read_to_string(quota_groups.join(format!("0_{id}")).join(name))?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Size of a subvolume, by the quota tree.
pub(super) fn used_bytes(root: &File, id: u64) -> io::Result<u64> {
    const QUOTA_TREE: u64 = 8;
    const QGROUP_INFO: u32 = 242;
    const HEADER: usize = 32;
    let mut args = SearchArgs {
        tree: QUOTA_TREE,
        min_object: 0,
        max_object: 0,
        min_offset: id,
        max_offset: id,
        min_transaction: 0,
        max_transaction: u64::MAX,
        min_type: QGROUP_INFO,
        max_type: QGROUP_INFO,
        items: 1,
        unused: 0,
        unused_long: [0; 4],
        buffer: [0; 3992],
    };
    call(root, TREE_SEARCH, &mut args)?;
    if args.items == 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    // The item: generation, then the referenced bytes.
    let referenced = &args.buffer[HEADER + 8..HEADER + 16];
    Ok(u64::from_le_bytes(referenced.try_into().expect("eight bytes were taken")))
}

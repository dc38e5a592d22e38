//! Loop devices: a file as a block device.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;

/// The kernel detaches the device with its last user, so none can leak.
const AUTOCLEAR: u32 = 4;
/// Past the page cache of the backing file, which would hold everything twice.
const DIRECT_IO: u32 = 16;
const BLOCK_SIZE: u32 = 4096;

#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl LoopInfo {
    const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// An attached device; held open until something has mounted it.
#[derive(Debug)]
pub(super) struct LoopDevice {
    pub(super) path: PathBuf,
    _held: File,
}

/// The device that already has this very file behind it, or a new one. A second device on the same
/// file would corrupt it.
pub(super) fn attach(image: &File) -> io::Result<LoopDevice> {
    if let Some(existing) = find(image)? {
        return Ok(existing);
    }
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    for _ in 0..16 {
        // SAFETY: this ioctl takes no argument and returns a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        match configure(&device, image, AUTOCLEAR | DIRECT_IO) {
            Ok(()) => return Ok(LoopDevice { path, _held: device }),
            // Another process took it in between.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            // The file system below cannot do direct I/O.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                configure(&device, image, AUTOCLEAR)?;
                return Ok(LoopDevice { path, _held: device });
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

fn configure(device: &File, image: &File, flags: u32) -> io::Result<()> {
    let config = LoopConfig {
        fd: image.as_raw_fd().cast_unsigned(),
        block_size: BLOCK_SIZE,
        info: LoopInfo { flags, ..LoopInfo::EMPTY },
        reserved: [0; 8],
    };
    // SAFETY: the structure has the kernel's layout and lives through the call, as does the image.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether a device has this very file behind it. Does not open the device: that would keep it attached.
pub(super) fn is_attached(image: &fs::Metadata) -> bool {
    devices().is_ok_and(|mut devices| devices.any(|device| device.may_have_behind_it(image)))
}

struct Attached {
    name: std::ffi::OsString,
    /// As reported by the kernel; the path may no longer lead to the file.
    backing_file: PathBuf,
}

impl Attached {
    fn may_have_behind_it(&self, image: &fs::Metadata) -> bool {
        fs::metadata(&self.backing_file)
            .is_ok_and(|behind| (behind.dev(), behind.ino()) == (image.dev(), image.ino()))
    }

    fn is_unknown(&self) -> bool {
        !self.backing_file.exists()
    }
}

fn devices() -> io::Result<impl Iterator<Item = Attached>> {
    Ok(fs::read_dir("/sys/block")?.flatten().filter_map(|entry| {
        let name = entry.file_name();
        let told = fs::read(entry.path().join("loop/backing_file")).ok()?;
        let told = told.strip_suffix(b"\n").unwrap_or(&told);
        let backing_file = PathBuf::from(std::ffi::OsStr::from_bytes(told));
        name.as_encoded_bytes().starts_with(b"loop").then_some(Attached { name, backing_file })
    }))
}

/// Opens only devices that may be ours: opening another node's device would keep it alive after its last
/// unmount.
fn find(image: &File) -> io::Result<Option<LoopDevice>> {
    let wanted = image.metadata()?;
    for device in devices()?.filter(|device| device.is_unknown() || device.may_have_behind_it(&wanted)) {
        let path = Path::new("/dev").join(&device.name);
        let Ok(device) = OpenOptions::new().read(true).write(true).open(&path) else { continue };
        let Some(info) = status(&device) else { continue };
        if info.inode == wanted.ino() && same_device(info.device, wanted.dev()) {
            return Ok(Some(LoopDevice { path, _held: device }));
        }
    }
    Ok(None)
}

fn status(device: &File) -> Option<LoopInfo> {
    let mut info = LoopInfo::EMPTY;
    // SAFETY: the structure has the kernel's layout and lives through the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
    (result == 0).then_some(info)
}

/// The kernel gives device numbers here in its short form: `minor` in 8 bits, `major` above, rest on top.
fn same_device(short: u64, full: u64) -> bool {
    let (major, minor) = (u64::from(libc::major(full)), u64::from(libc::minor(full)));
    short == (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

//! Where images are stored: encrypted in the pool, each under a key that is stored elsewhere; and in memory
//! while CRIU works on them, because CRIU neither encrypts nor decrypts.
//!
//! The pool is one file whose free blocks keep their old content. Destroying a key makes its image
//! unreadable, wherever blocks of it are left.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use coffer_core::SnapshotId;
use coffer_core::sync::Mutex;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::pool::Pool;
use crate::spawner::request::MountPoint;

use super::cipher;
use super::fork;
use super::image::{self, Image};

/// All images of a node.
#[derive(Debug)]
pub(crate) struct Images {
    sandboxes: PathBuf,
    snapshots: PathBuf,
    /// In memory.
    work: PathBuf,
    keys: PathBuf,
    encrypt: bool,
    /// Decrypted images that are being forked from.
    plain: Mutex<HashMap<SnapshotId, Shared>>,
    /// Each has its own directory: the previous one may still be in use.
    decrypted: AtomicU64,
}

type Shared = Arc<Mutex<Weak<Plain>>>;

/// A decrypted image that several forks share, for as long as one of them needs it.
#[derive(Debug)]
pub(crate) struct Plain {
    image: Image,
    directory: PathBuf,
}

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = image::remove(&self.directory);
    }
}

/// Where one image is stored.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    kept: PathBuf,
    work: PathBuf,
    key: PathBuf,
    encrypt: bool,
}

/// An image that CRIU can read.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) image: Image,
    pub(crate) directory: PathBuf,
    /// Keeps the shared decrypted copy alive.
    _shared: Option<Arc<Plain>>,
}

impl Images {
    pub(crate) fn open(data_dir: &Path, pool: &Pool, encrypt: bool) -> io::Result<Self> {
        let (work, keys) = (data_dir.join("work"), data_dir.join("keys"));
        let sandboxes = pool.binaries().with_file_name("m");
        for directory in [&work, &keys, &sandboxes] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        // Reuse the mount of a node that was killed.
        if fs::metadata(&work)?.dev() == fs::metadata(data_dir)?.dev() {
            mount_memory(&work)?;
        }
        let snapshots = pool.snapshots_directory();
        let (plain, decrypted) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self { sandboxes, snapshots, work, keys, encrypt, plain, decrypted })
    }

    /// The place of a hibernated sandbox's image, and of CRIU's files while it works on it.
    pub(crate) fn of_sandbox(&self, name: &str) -> Place {
        self.place(self.sandboxes.join(name), name)
    }

    pub(crate) fn of_snapshot(&self, snapshot: SnapshotId) -> Place {
        let name = snapshot.to_string();
        self.place(self.snapshots.join(&name).join("memory"), &name)
    }

    fn place(&self, kept: PathBuf, name: &str) -> Place {
        Place { kept, work: self.work.join(name), key: self.keys.join(name), encrypt: self.encrypt }
    }

    /// Whether an image takes memory as well as disk.
    pub(crate) const fn take_memory(&self) -> bool {
        self.encrypt
    }

    /// Where images of sandboxes are stored.
    pub(crate) fn directory(&self) -> &Path {
        &self.sandboxes
    }

    /// Checks the image of a snapshot and prepares it for a sandbox called `name` with the range at
    /// `uid_base`.
    pub(crate) fn open_for(&self, snapshot: SnapshotId, name: &str, uid_base: u32) -> io::Result<Opened> {
        let (from, to) = (self.of_snapshot(snapshot), self.of_sandbox(name));
        let image = Image::read(&from.kept)?;
        if !image.is_encrypted() {
            image.check(&from.kept)?;
            fork::lay_out(&image, &from.kept, &to.kept, uid_base)?;
            return Ok(Opened { image, directory: to.kept, _shared: None });
        }
        let plain = self.plain_of(snapshot, &from, image)?;
        fork::lay_out(&plain.image, &plain.directory, &to.work, uid_base)?;
        Ok(Opened { image: plain.image.clone(), directory: to.work, _shared: Some(plain) })
    }

    /// Concurrent forks of one snapshot share the decrypted image.
    fn plain_of(&self, snapshot: SnapshotId, from: &Place, image: Image) -> io::Result<Arc<Plain>> {
        let shared = {
            let mut all = self.plain.lock();
            all.retain(|_, shared| {
                Arc::strong_count(shared) > 1
                    || shared.try_lock().is_some_and(|plain| plain.strong_count() > 0)
            });
            all.entry(snapshot).or_default().clone()
        };
        // Concurrent callers wait here for the first one.
        let mut shared = shared.lock();
        if let Some(plain) = shared.upgrade() {
            return Ok(plain);
        }
        let number = self.decrypted.fetch_add(1, Ordering::Relaxed);
        let directory = from.work.with_extension(number.to_string());
        // Create the guard first: if decrypting fails, it removes what was written.
        let plain = Arc::new(Plain { image, directory });
        from.decrypt(&plain.image, &plain.directory)?;
        *shared = Arc::downgrade(&plain);
        Ok(plain)
    }

    /// Removes what a previous node left in memory, and keys without an image.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        for left in fs::read_dir(&self.work)?.flatten() {
            image::remove(&left.path())?;
        }
        for key in fs::read_dir(&self.keys)?.flatten() {
            let name = key.file_name();
            let images = [self.sandboxes.join(&name), self.snapshots.join(&name).join("memory")];
            if !images.iter().any(|kept| image::is_there(kept)) {
                cipher::destroy(&key.path())?;
            }
        }
        Ok(())
    }

    /// Destroys the key of a deleted snapshot.
    pub(crate) fn forget_snapshot(&self, snapshot: SnapshotId) -> io::Result<()> {
        cipher::destroy(&self.of_snapshot(snapshot).key)
    }

    /// Frees the memory.
    pub(crate) fn close(self) {
        match rustix::mount::unmount(&self.work, UnmountFlags::empty()) {
            Ok(()) | Err(Errno::INVAL) => {}
            Err(_) => {
                let _ = rustix::mount::unmount(&self.work, UnmountFlags::DETACH);
            }
        }
        let _ = fs::remove_dir(&self.work);
        // Only where no image is left.
        let _ = fs::remove_dir(&self.keys);
    }
}

/// Never written to swap, where the kernel can promise that (6.4).
fn mount_memory(at: &Path) -> io::Result<()> {
    let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
    let mount = |options| rustix::mount::mount("coffer", at, "tmpfs", flags, Some(options));
    match mount(c"mode=0700,size=100%,noswap") {
        Err(Errno::INVAL) => mount(c"mode=0700,size=100%")?,
        mounted => mounted?,
    }
    Ok(rustix::mount::mount_change(at, rustix::mount::MountPropagationFlags::PRIVATE)?)
}

impl Place {
    /// Creates the directory for an image, replacing whatever was there.
    pub(crate) fn make(&self) -> io::Result<()> {
        self.forget()?;
        image::make_directory(&self.kept)?;
        if self.encrypt { image::make_directory(&self.work) } else { Ok(()) }
    }

    /// Where CRIU writes.
    pub(crate) fn draft(&self) -> &Path {
        if self.encrypt { &self.work } else { &self.kept }
    }

    pub(crate) fn keep_program(&self, program: &Path, pid: i32) -> io::Result<()> {
        image::keep_program(program, pid, &self.kept)
    }

    /// The program of the sandbox's first process.
    pub(crate) fn program(&self) -> PathBuf {
        image::program(&self.kept)
    }

    /// Writes CRIU's files to disk with `sync`; the image exists from here on.
    pub(crate) fn seal(
        &self,
        uid_base: u32,
        mounts: Vec<MountPoint>,
        sync: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<Image> {
        let key = self.encrypt.then(|| cipher::Key::make(&self.key)).transpose()?;
        let encrypted = key.as_ref().map(|key| (key, self.work.as_path()));
        let image = Image::of(&self.kept, encrypted, uid_base, mounts)?;
        sync()?;
        image.write(&self.kept)?;
        Ok(image)
    }

    /// How much memory the processes of an image take, as far as the image shows.
    pub(crate) fn bytes(&self) -> io::Result<u64> {
        Ok(Image::read(&self.kept)?.bytes)
    }

    /// The memory that an image needs while CRIU works on it.
    pub(crate) fn memory_needed(&self) -> io::Result<u64> {
        let image = Image::read(&self.kept)?;
        Ok(if image.is_encrypted() { image.bytes } else { 0 })
    }

    /// Checks an image and makes it readable for CRIU.
    pub(crate) fn open(&self) -> io::Result<Opened> {
        let image = Image::read(&self.kept)?;
        let directory = if image.is_encrypted() {
            self.decrypt(&image, &self.work)?;
            self.work.clone()
        } else {
            image.check(&self.kept)?;
            self.kept.clone()
        };
        Ok(Opened { image, directory, _shared: None })
    }

    /// Prepares an image that was just sealed for another sandbox.
    pub(crate) fn share(&self, image: &Image, to: &Self, uid_base: u32) -> io::Result<Opened> {
        let directory = to.draft().to_path_buf();
        fork::lay_out(image, self.draft(), &directory, uid_base)?;
        Ok(Opened { image: image.clone(), directory, _shared: None })
    }

    fn decrypt(&self, image: &Image, to: &Path) -> io::Result<()> {
        image::make_directory(to)?;
        image.decrypt(&cipher::Key::read(&self.key)?, &self.kept, to)
    }

    /// Removes the decrypted image from memory.
    pub(crate) fn leave(&self) -> io::Result<()> {
        image::remove(&self.work)
    }

    /// Removes an image, its key first.
    pub(crate) fn forget(&self) -> io::Result<()> {
        cipher::destroy(&self.key)?;
        self.leave()?;
        image::remove(&self.kept)
    }
}

//! An image on disk: complete once its manifest exists, and checked before it is used.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::spawner::request::MountPoint;

use super::cipher::Key;

const MANIFEST: &str = "image.json";
/// The program of the sandbox's first process, as it was when its memory was saved.
const PROGRAM: &str = "agentd";
/// Other files that CRIU and the node write next to the image.
const BESIDE: [&str; 5] = [MANIFEST, "image.json.new", "hook", "dump.log", "restore.log"];

/// Manifest of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Image {
    /// The ids of the processes are stored relative to this.
    pub(crate) uid_base: u32,
    pub(crate) mounts: Vec<MountPoint>,
    pub(crate) bytes: u64,
    files: Vec<Sealed>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Sealed {
    name: String,
    bytes: u64,
    /// For a file that is stored unencrypted. An encrypted one has its tags.
    #[serde(default)]
    checksum: Option<u32>,
}

impl Image {
    /// The files in `kept`, together with those that are encrypted on the way there.
    pub(super) fn of(
        kept: &Path,
        encrypted: Option<(&Key, &Path)>,
        uid_base: u32,
        mounts: Vec<MountPoint>,
    ) -> io::Result<Self> {
        let mut files = Vec::new();
        for name in names_in(kept)? {
            let path = kept.join(&name);
            let (bytes, checksum) = measure(&path)?;
            let mode = if name == PROGRAM { 0o555 } else { 0o444 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            files.push(Sealed { name, bytes, checksum: Some(checksum) });
        }
        if let Some((key, draft)) = encrypted {
            for name in names_in(draft)? {
                let path = draft.join(&name);
                let bytes = key.encrypt(number(files.len())?, &path, &kept.join(&name))?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o444))?;
                files.push(Sealed { name, bytes, checksum: None });
            }
        }
        let bytes = files.iter().map(|file| file.bytes).sum();
        Ok(Self { uid_base, mounts, bytes, files })
    }

    /// Writes the manifest, once all files are on disk.
    pub(super) fn write(&self, kept: &Path) -> io::Result<()> {
        let draft = kept.join("image.json.new");
        fs::write(&draft, serde_json::to_vec(self)?)?;
        File::open(&draft)?.sync_all()?;
        fs::rename(&draft, kept.join(MANIFEST))?;
        File::open(kept)?.sync_all()
    }

    pub(super) fn read(kept: &Path) -> io::Result<Self> {
        let image: Self = serde_json::from_slice(&fs::read(kept.join(MANIFEST))?)?;
        // Names come from our own manifest; still, reject any that leads elsewhere.
        match image.files.iter().find(|file| file.name.contains('/')) {
            Some(strange) => Err(strange.damaged()),
            None => Ok(image),
        }
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.files.iter().any(|file| file.checksum.is_none())
    }

    /// Compares the unencrypted files with their checksums.
    pub(super) fn check(&self, kept: &Path) -> io::Result<()> {
        for file in &self.files {
            if let Some(checksum) = file.checksum
                && measure(&kept.join(&file.name))? != (file.bytes, checksum)
            {
                return Err(file.damaged());
            }
        }
        Ok(())
    }

    /// Checks all files, and decrypts the encrypted ones to `to`.
    pub(super) fn decrypt(&self, key: &Key, kept: &Path, to: &Path) -> io::Result<()> {
        self.check(kept)?;
        for (place, file) in self.files.iter().enumerate() {
            if file.checksum.is_none() {
                let (from, to) = (kept.join(&file.name), to.join(&file.name));
                key.decrypt(number(place)?, &from, &to, file.bytes).map_err(|error| match error.kind() {
                    io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => file.damaged(),
                    _ => error,
                })?;
            }
        }
        Ok(())
    }

    /// The names of the files that CRIU reads.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.name.as_str()).filter(|&name| name != PROGRAM)
    }
}

impl Sealed {
    fn damaged(&self) -> io::Error {
        io::Error::other(format!("`{}` of its image is damaged", self.name))
    }
}

/// The number of a file in its nonces.
fn number(place: usize) -> io::Result<u32> {
    u32::try_from(place).map_err(|_| io::Error::other("the image has too many files"))
}

fn names_in(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !BESIDE.contains(&name.as_str()) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Whether there is a complete image.
pub(super) fn is_there(kept: &Path) -> bool {
    kept.join(MANIFEST).is_file()
}

/// Creates an empty directory for an image, replacing whatever was there. Restored processes read the image
/// themselves, with the sandbox's rights, through a descriptor; the directory above keeps all others out.
pub(super) fn make_directory(directory: &Path) -> io::Result<()> {
    remove(directory)?;
    if let Some(above) = directory.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(above)?;
    }
    fs::DirBuilder::new().mode(0o755).create(directory)
}

pub(super) fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Saves the program that the first process runs: a later node may bring another version, and a fork has
/// none.
pub(super) fn keep_program(program: &Path, pid: i32, directory: &Path) -> io::Result<()> {
    let kept = directory.join(PROGRAM);
    if program.is_file() {
        return crate::files::link(program, &kept);
    }
    // An older node started it and kept no link to its program.
    let mut from = File::open(format!("/proc/{pid}/exe"))?;
    let mut to = File::options().write(true).create_new(true).mode(0o555).open(kept)?;
    io::copy(&mut from, &mut to).map(|_| ())
}

pub(super) fn program(directory: &Path) -> PathBuf {
    directory.join(PROGRAM)
}

fn measure(path: &Path) -> io::Result<(u64, u32)> {
    let mut file = File::open(path)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((bytes, hasher.finalize())),
            read => {
                hasher.update(&buffer[..read]);
                bytes += read as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_changed_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let key = Key::make(&home.path().join("key")).unwrap();
        for encrypted in [false, true] {
            let (kept, draft, back) =
                (home.path().join("kept"), home.path().join("draft"), home.path().join("back"));
            for directory in [&kept, &draft, &back] {
                make_directory(directory).unwrap();
            }
            let written = if encrypted { &draft } else { &kept };
            fs::write(written.join("pages-1.img"), vec![7; 3 << 20]).unwrap();
            fs::write(written.join("hook"), "#!").unwrap();
            fs::write(kept.join(PROGRAM), "agentd").unwrap();
            assert!(Image::read(&kept).is_err() && !is_there(&kept), "no manifest, no image");
            let mounts = vec![MountPoint { path: "/dev/null".into(), is_directory: false }];
            let under = encrypted.then_some((&key, draft.as_path()));
            Image::of(&kept, under, 1 << 16, mounts).unwrap().write(&kept).unwrap();
            let image = Image::read(&kept).unwrap();
            assert_eq!((image.bytes, image.is_encrypted()), ((3 << 20) + 6, encrypted));
            assert_eq!(image.names().collect::<Vec<_>>(), ["pages-1.img"]);
            let open = || {
                make_directory(&back).unwrap();
                image.decrypt(&key, &kept, &back)
            };
            open().unwrap();
            if encrypted {
                assert!(fs::read(back.join("pages-1.img")).unwrap() == vec![7; 3 << 20]);
                assert!(!kept.join("hook").exists());
            }
            let mut pages = fs::read(kept.join("pages-1.img")).unwrap();
            pages[1 << 20] ^= 1;
            fs::write(kept.join("pages-1.img"), &pages).unwrap();
            assert!(open().unwrap_err().to_string().contains("pages-1.img"));
            fs::write(kept.join("pages-1.img"), &pages[..pages.len() - 1]).unwrap();
            assert!(open().unwrap_err().to_string().contains("pages-1.img"));
            fs::remove_file(kept.join("pages-1.img")).unwrap();
            assert!(open().is_err());
            remove(&kept).unwrap();
            remove(&kept).unwrap();
        }
    }
}

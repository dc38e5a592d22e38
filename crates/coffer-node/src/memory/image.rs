//! An image on disk: complete once its manifest is there, and checked before it is used.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

const MANIFEST: &str = "image.json";
/// The program of the sandbox's first process, as it was when its memory was saved.
const PROGRAM: &str = "agentd";
/// What CRIU and we write beside the image.
const BESIDE: [&str; 5] = [MANIFEST, "image.json.new", "hook", "dump.log", "restore.log"];

/// A mount that is not in the image but put there again by the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountPoint {
    pub(crate) path: PathBuf,
    pub(crate) is_directory: bool,
}

impl MountPoint {
    /// What the image calls it.
    pub(crate) fn key(&self) -> String {
        self.path.to_string_lossy().replace('/', "_")
    }
}

/// What is to be known of an image.
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
    checksum: u32,
}

impl Image {
    /// The names of the files that it consists of.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.name.as_str())
    }
}

/// Makes an empty directory for an image, in place of whatever was there. Restored processes read the image
/// themselves, with the sandbox's rights, through a descriptor; nobody else gets past the directory above.
pub(crate) fn make_directory(directory: &Path) -> io::Result<()> {
    forget(directory)?;
    if let Some(above) = directory.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(above)?;
    }
    fs::DirBuilder::new().mode(0o755).create(directory)
}

pub(crate) fn forget(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Keeps the program that the first process runs: another node may bring another one, and a fork has none.
pub(crate) fn keep_program(program: &Path, pid: i32, directory: &Path) -> io::Result<()> {
    let kept = directory.join(PROGRAM);
    if program.is_file() {
        return crate::files::link(program, &kept);
    }
    // Of a node that kept no name for it.
    let mut from = File::open(format!("/proc/{pid}/exe"))?;
    let mut to = File::options().write(true).create_new(true).mode(0o555).open(kept)?;
    io::copy(&mut from, &mut to).map(|_| ())
}

pub(crate) fn program(directory: &Path) -> PathBuf {
    directory.join(PROGRAM)
}

/// Writes down what the image consists of. The caller has everything written out; only then does the image
/// exist, under its manifest's final name.
pub(crate) fn seal(directory: &Path, uid_base: u32, mounts: Vec<MountPoint>) -> io::Result<Image> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !BESIDE.contains(&name.as_str()) {
            let (bytes, checksum) = measure(&entry.path())?;
            let mode = if name == PROGRAM { 0o555 } else { 0o444 };
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(mode))?;
            files.push(Sealed { name, bytes, checksum });
        }
    }
    let bytes = files.iter().map(|file| file.bytes).sum();
    let image = Image { uid_base, mounts, bytes, files };
    let draft = directory.join("image.json.new");
    fs::write(&draft, serde_json::to_vec(&image)?)?;
    File::open(&draft)?.sync_all()?;
    fs::rename(&draft, directory.join(MANIFEST))?;
    File::open(directory)?.sync_all()?;
    Ok(image)
}

/// Reads an image's manifest and compares it with what is there.
pub(crate) fn check(directory: &Path) -> io::Result<Image> {
    let image: Image = serde_json::from_slice(&fs::read(directory.join(MANIFEST))?)?;
    for file in &image.files {
        let damaged = || io::Error::other(format!("`{}` of its image is damaged", file.name));
        // Names come from our own manifest; still, none leads elsewhere.
        if file.name.contains('/') || measure(&directory.join(&file.name))? != (file.bytes, file.checksum) {
            return Err(damaged());
        }
    }
    Ok(image)
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
        let directory = home.path().join("image");
        make_directory(&directory).unwrap();
        fs::write(directory.join("pages-1.img"), vec![7; 3 << 20]).unwrap();
        fs::write(directory.join("hook"), "#!").unwrap();
        assert!(check(&directory).is_err(), "no manifest, no image");
        let mounts = vec![MountPoint { path: "/dev/null".into(), is_directory: false }];
        let image = seal(&directory, 1 << 16, mounts).unwrap();
        assert_eq!(image.bytes, 3 << 20);
        assert_eq!(check(&directory).unwrap(), image);
        fs::write(directory.join("hook"), "another").unwrap();
        assert_eq!(check(&directory).unwrap(), image);
        let mut pages = vec![7; 3 << 20];
        pages[1 << 20] = 8;
        fs::write(directory.join("pages-1.img"), pages).unwrap();
        assert!(check(&directory).unwrap_err().to_string().contains("pages-1.img"));
        fs::remove_file(directory.join("pages-1.img")).unwrap();
        assert!(check(&directory).is_err());
        forget(&directory).unwrap();
        forget(&directory).unwrap();
    }
}

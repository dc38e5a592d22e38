//! The files of an archive or a directory, by name.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flate2::read::MultiGzDecoder;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use tar::{Entry, EntryType, PaxExtensions};

use crate::error::ImageError;
use crate::manifest::LONGEST_CONFIG;

const MOST_ENTRIES: usize = 20_000;
/// Bytes of an archive, after decompression.
const MOST_BYTES: u64 = 64 << 30;
const LONGEST_NAME: usize = 512;
const LONGEST_EXTENSION: u64 = 64 << 10;
/// JSON that is kept in memory.
const MOST_JSON: usize = 64 << 20;
const MOST_LINKS: usize = 8;

/// Where an image's files are.
pub(super) enum Contents {
    Tar(TarFile),
    Dir(OwnedFd),
}

pub(super) struct TarFile {
    file: File,
    entries: HashMap<String, Place>,
    json: HashMap<String, Vec<u8>>,
    stopped: Arc<AtomicBool>,
}

enum Place {
    File {
        size: u64,
    },
    /// The name that it stands for.
    Link(String),
}

impl Contents {
    /// Opens a directory, or an archive, which is read to its end.
    pub(super) fn open(path: &Path, stopped: Arc<AtomicBool>) -> io::Result<Self> {
        // Without waiting for the other end of a pipe.
        let file =
            rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
        let file = File::from(file);
        let kind = file.metadata()?.file_type();
        if kind.is_dir() {
            return Ok(Self::Dir(file.into()));
        }
        if !kind.is_file() {
            return Err(invalid("it is neither a file nor a directory"));
        }
        let mut tar = TarFile { file, entries: HashMap::new(), json: HashMap::new(), stopped };
        tar.index()?;
        Ok(Self::Tar(tar))
    }

    /// A JSON file, whole, if there is one of that name.
    pub(super) fn json(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Tar(tar) => Ok(tar.real_name(name).and_then(|name| tar.json.get(&name).cloned())),
            Self::Dir(dir) => {
                let Some(file) = open_beneath(dir, name)? else { return Ok(None) };
                let mut bytes = Vec::new();
                file.take(LONGEST_CONFIG as u64 + 1).read_to_end(&mut bytes)?;
                if bytes.len() > LONGEST_CONFIG {
                    return Err(invalid(&format!("`{name}` is longer than {LONGEST_CONFIG} bytes")));
                }
                Ok(Some(bytes))
            }
        }
    }

    /// The name of a file that a name stands for, and its size.
    pub(super) fn find(&self, name: &str) -> io::Result<Option<(String, u64)>> {
        match self {
            Self::Tar(tar) => Ok(tar.real_name(name).and_then(|name| match tar.entries.get(&name)? {
                Place::File { size } => Some((name, *size)),
                Place::Link(_) => None,
            })),
            Self::Dir(dir) => match open_beneath(dir, name)? {
                Some(file) => Ok(Some((name.to_string(), file.metadata()?.len()))),
                None => Ok(None),
            },
        }
    }

    /// Calls `visit` with each of the files, in any order.
    pub(super) fn visit(
        self,
        names: &BTreeSet<String>,
        mut visit: impl FnMut(&str, &mut dyn Read) -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        let failed =
            |error: io::Error| ImageError::invalid("the archive", format!("cannot be read: {error}"));
        match self {
            Self::Dir(dir) => names.iter().try_for_each(|name| {
                let file = open_beneath(&dir, name).map_err(failed)?;
                let mut file = file.ok_or_else(|| failed(invalid(&format!("`{name}` is gone"))))?;
                visit(name, &mut file)
            }),
            Self::Tar(tar) if names.is_empty() => {
                drop(tar);
                Ok(())
            }
            Self::Tar(mut tar) => {
                let mut result = Ok(());
                tar.walk(|name, place, bytes| {
                    if let Place::File { .. } = place
                        && names.contains(&name)
                    {
                        result = visit(&name, bytes);
                        // Read no further; which error it was, `result` knows.
                        return if result.is_ok() { Ok(()) } else { Err(invalid("stopped")) };
                    }
                    Ok(())
                })
                .or_else(|error| if result.is_err() { Ok(()) } else { Err(failed(error)) })?;
                result
            }
        }
    }
}

impl TarFile {
    fn index(&mut self) -> io::Result<()> {
        let (mut entries, mut json, mut kept) = (HashMap::new(), HashMap::new(), 0);
        self.walk(|name, place, bytes| {
            if let Place::File { size } = place
                && size <= LONGEST_CONFIG as u64
                && let Some(text) = read_json(bytes)?
            {
                kept += text.len();
                if kept > MOST_JSON {
                    return Err(invalid("it has too much JSON"));
                }
                json.insert(name.clone(), text);
            }
            match entries.insert(name.clone(), place) {
                Some(_) => Err(invalid(&format!("it has two files of the name `{name}`"))),
                None => Ok(()),
            }
        })?;
        (self.entries, self.json) = (entries, json);
        Ok(())
    }

    /// Follows links inside the archive to the name of a file.
    fn real_name(&self, name: &str) -> Option<String> {
        let mut name = normal(name, "")?;
        for _ in 0..MOST_LINKS {
            match self.entries.get(&name)? {
                Place::File { .. } => return Some(name),
                Place::Link(to) => name.clone_from(to),
            }
        }
        None
    }

    /// Reads the archive from its beginning and calls `visit` with each file and link.
    ///
    /// The `tar` crate reads headers; extensions are read here, because it would read those of any length into memory.
    fn walk(
        &mut self,
        mut visit: impl FnMut(String, Place, &mut dyn Read) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut archive = tar::Archive::new(self.reader()?);
        let mut extension = Extension::default();
        for (number, entry) in archive.entries()?.raw(true).enumerate() {
            if number >= MOST_ENTRIES {
                return Err(invalid(&format!("it has more than {MOST_ENTRIES} entries")));
            }
            let mut entry = entry?;
            let kind = entry.header().entry_type();
            if extension.read(kind, &mut entry)? {
                continue;
            }
            let Extension { name, link, size } = std::mem::take(&mut extension);
            if size.is_some_and(|size| size != entry.size()) {
                return Err(invalid("it has a file of more than 8 GiB, in a form that is not supported"));
            }
            let name = name.or_else(|| text(&entry.header().path_bytes()));
            let Some(name) = name.and_then(|name| normal(&name, "")) else { continue };
            let place = match kind {
                EntryType::Regular | EntryType::Continuous => Place::File { size: entry.size() },
                EntryType::Link | EntryType::Symlink => {
                    let to = link.or_else(|| entry.header().link_name_bytes().and_then(|bytes| text(&bytes)));
                    // A symbolic link starts at its own directory, a hard link at the archive's root.
                    let base = match kind {
                        EntryType::Symlink => name.rsplit_once('/').map_or("", |(dir, _)| dir),
                        _ => "",
                    };
                    match to.and_then(|to| normal(&to, base)) {
                        Some(to) => Place::Link(to),
                        None => continue,
                    }
                }
                _ => continue,
            };
            visit(name, place, &mut entry)?;
        }
        Ok(())
    }

    fn reader(&mut self) -> io::Result<Bounded<Box<dyn Read + '_>>> {
        let mut magic = [0; 2];
        self.file.seek(SeekFrom::Start(0))?;
        let is_gzip = self.file.read_exact(&mut magic).is_ok() && magic == [0x1f, 0x8b];
        self.file.seek(SeekFrom::Start(0))?;
        let plain = BufReader::with_capacity(256 << 10, &self.file);
        let inner: Box<dyn Read + '_> =
            if is_gzip { Box::new(MultiGzDecoder::new(plain)) } else { Box::new(plain) };
        Ok(Bounded { inner, left: MOST_BYTES, stopped: self.stopped.clone() })
    }
}

/// What an entry says about the one after it.
#[derive(Default)]
struct Extension {
    name: Option<String>,
    link: Option<String>,
    size: Option<u64>,
}

impl Extension {
    /// Reads an entry that is an extension; returns whether it was one.
    fn read<R: Read>(&mut self, kind: EntryType, entry: &mut Entry<'_, R>) -> io::Result<bool> {
        match kind {
            EntryType::GNULongName => self.name = text(&bounded(entry)?),
            EntryType::GNULongLink => self.link = text(&bounded(entry)?),
            EntryType::XHeader => {
                let bytes = bounded(entry)?;
                for record in PaxExtensions::new(&bytes) {
                    let record = record?;
                    match record.key_bytes() {
                        b"path" => self.name = text(record.value_bytes()),
                        b"linkpath" => self.link = text(record.value_bytes()),
                        b"size" => {
                            self.size = Some(
                                record.value().ok().and_then(|size| size.parse().ok()).unwrap_or(u64::MAX),
                            )
                        }
                        key if key.starts_with(b"GNU.sparse") => return Err(invalid("it has sparse files")),
                        _ => {}
                    }
                }
            }
            EntryType::XGlobalHeader => {}
            EntryType::GNUSparse => return Err(invalid("it has sparse files")),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn bounded<R: Read>(entry: &mut Entry<'_, R>) -> io::Result<Vec<u8>> {
    if entry.size() > LONGEST_EXTENSION {
        return Err(invalid("it has an extended header that is too long"));
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn text(bytes: &[u8]) -> Option<String> {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    (bytes.len() <= LONGEST_NAME).then(|| std::str::from_utf8(bytes).ok().map(str::to_string)).flatten()
}

/// The whole file, if it looks like JSON.
fn read_json(bytes: &mut dyn Read) -> io::Result<Option<Vec<u8>>> {
    let mut text = Vec::new();
    bytes.take(1).read_to_end(&mut text)?;
    if !matches!(text.first(), Some(b'{' | b'[')) {
        return Ok(None);
    }
    bytes.take(LONGEST_CONFIG as u64).read_to_end(&mut text)?;
    Ok(Some(text))
}

/// A name in its only form, from `base` on: no empty parts, no `.` and no `..`. `None` if it leads out of the archive.
fn normal(name: &str, base: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    let base = if name.starts_with('/') { "" } else { base };
    for part in base.split('/').chain(name.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    let name = parts.join("/");
    (1..=LONGEST_NAME).contains(&name.len()).then_some(name)
}

/// Opens a regular file below a directory, without following a link on the way.
fn open_beneath(dir: &OwnedFd, name: &str) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = match openat2(dir, name, flags, Mode::empty(), resolve) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match file.metadata()?.is_file() {
        true => Ok(Some(file)),
        false => Err(invalid(&format!("`{name}` is not a file"))),
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// A reader that ends with an error after this many bytes, or on `stop`.
struct Bounded<R> {
    inner: R,
    left: u64,
    stopped: Arc<AtomicBool>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(invalid("the caller stopped waiting"));
        }
        let read = self.inner.read(to)?;
        let left = self.left.checked_sub(read as u64);
        self.left = left.ok_or_else(|| invalid(&format!("it is longer than {MOST_BYTES} bytes")))?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_have_one_form_and_stay_inside() {
        for (name, base, to) in [
            ("a", "", Some("a")),
            ("./a//b/", "", Some("a/b")),
            ("/a", "x", Some("a")),
            ("../b/layer.tar", "a", Some("b/layer.tar")),
            ("../../b", "a", None),
            ("..", "", None),
            ("", "", None),
        ] {
            assert_eq!(normal(name, base).as_deref(), to, "{name} from {base}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_archive_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x");
            std::fs::write(&path, bytes).unwrap();
            let _ = Contents::open(&path, Arc::default());
        }

        #[test]
        fn a_damaged_archive_is_an_archive_or_an_error(at in 0usize..2048, byte in any::<u8>(), length in 0usize..2049) {
            let mut builder = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(5);
            builder.append_data(&mut header, "long/".repeat(30) + "x", &b"hello"[..]).unwrap();
            let mut bytes = builder.into_inner().unwrap();
            bytes[at] = byte;
            bytes.truncate(length);
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x");
            std::fs::write(&path, bytes).unwrap();
            let _ = Contents::open(&path, Arc::default());
        }
    }
}

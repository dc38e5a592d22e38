//! Archives made by the tests, unpacked to directories of their own.

mod copy;
mod hostile;
mod layer;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use coffer_wire::agentd::{Unpack, Unpacked};
use tar::Header;

use super::run;
use crate::reply::Refusal;

/// The time of every member.
pub(super) const MTIME: u64 = 1_000_000_000;

fn no_change(_: &mut Header) {}

/// An archive, written block by block so that it can hold what no tool writes.
#[derive(Default, Clone)]
pub(super) struct Tar(pub(super) Vec<u8>);

impl Tar {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn raw(
        mut self,
        name: &[u8],
        kind: u8,
        link: &[u8],
        content: &[u8],
        change: fn(&mut Header),
    ) -> Self {
        if name.len() > 100 {
            self = self.raw(b"././@LongLink", b'L', b"", &[name, b"\0"].concat(), no_change);
        }
        let mut header = Header::new_gnu();
        let length = name.len().min(100);
        header.as_old_mut().name[..length].copy_from_slice(&name[..length]);
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
        header.as_old_mut().linkflag = [kind];
        header.set_size(content.len() as u64);
        header.set_mode(if kind == b'5' { 0o750 } else { 0o640 });
        header.set_uid(1000);
        header.set_gid(1001);
        header.set_mtime(MTIME);
        change(&mut header);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(super) fn file(self, name: &str, content: &str) -> Self {
        self.raw(name.as_bytes(), b'0', b"", content.as_bytes(), |_| {})
    }

    pub(super) fn directory(self, name: &str) -> Self {
        self.raw(name.as_bytes(), b'5', b"", b"", |_| {})
    }

    pub(super) fn symlink(self, name: &str, target: &str) -> Self {
        self.raw(name.as_bytes(), b'2', target.as_bytes(), b"", |_| {})
    }

    pub(super) fn link(self, name: &str, target: &str) -> Self {
        self.raw(name.as_bytes(), b'1', target.as_bytes(), b"", |_| {})
    }

    pub(super) fn other(self, name: &str, kind: u8) -> Self {
        self.raw(name.as_bytes(), kind, b"", b"", |_| {})
    }

    /// Records for the next member.
    pub(super) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut text = Vec::new();
        for (key, value) in records {
            let rest = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
            let mut length = rest.len();
            while length != rest.len() + length.to_string().len() {
                length = rest.len() + length.to_string().len();
            }
            text.extend_from_slice(length.to_string().as_bytes());
            text.extend_from_slice(&rest);
        }
        self.raw(b"PaxHeaders/x", b'x', b"", &text, |_| {})
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

/// A root to unpack to, and a directory next to it that must stay as it is.
pub(super) struct Place {
    home: tempfile::TempDir,
}

impl Place {
    /// `None` without the right to change owners.
    pub(super) fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root can set owners");
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("root")).unwrap();
        fs::create_dir(home.path().join("outside")).unwrap();
        fs::write(home.path().join("outside/kept"), "kept").unwrap();
        Some(Self { home })
    }

    pub(super) fn root(&self) -> PathBuf {
        self.home.path().join("root")
    }

    pub(super) fn outside(&self) -> PathBuf {
        self.home.path().join("outside")
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    pub(super) fn unpack(&self, order: &Unpack, archive: &[u8]) -> Result<Unpacked, Refusal> {
        let unpacked = run(order, &self.root(), archive);
        assert_eq!(listing(&self.outside()), ["kept=kept"], "something was written outside");
        unpacked
    }

    pub(super) fn layer(&self, archive: Tar) -> Unpacked {
        self.unpack(&Unpack::Layer, &archive.end()).unwrap()
    }

    /// The message of a refusal.
    pub(super) fn refused(&self, order: &Unpack, archive: &[u8]) -> String {
        let refusal = self.unpack(order, archive).unwrap_err();
        assert_eq!(refusal.status.as_u16(), 422, "{refusal:?}");
        refusal.message
    }

    pub(super) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Owner, group and mode.
    pub(super) fn attributes(&self, path: &str) -> (u32, u32, u32) {
        let found = self.path(path).symlink_metadata().unwrap_or_else(|error| panic!("{path}: {error}"));
        (found.uid(), found.gid(), found.mode() & 0o7777)
    }

    pub(super) fn listing(&self) -> Vec<String> {
        listing(&self.root())
    }
}

/// Everything below a directory: `name=content`, `name->target`, `name/`, `name|`.
pub(super) fn listing(top: &Path) -> Vec<String> {
    fn walk(top: &Path, at: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(top).unwrap().display().to_string();
            let kind = path.symlink_metadata().unwrap().file_type();
            if kind.is_dir() {
                found.push(name + "/");
                walk(top, &path, found);
            } else if kind.is_symlink() {
                found.push(format!("{name}->{}", fs::read_link(&path).unwrap().display()));
            } else if kind.is_file() {
                found.push(format!("{name}={}", fs::read_to_string(&path).unwrap_or_default()));
            } else {
                found.push(name + "|");
            }
        }
    }
    let mut found = Vec::new();
    walk(top, top, &mut found);
    found.sort();
    found
}

pub(super) fn copy(source: &str, dest: &str) -> Unpack {
    Unpack::Copy {
        source: source.into(),
        dest: dest.trim_end_matches('/').to_owned() + if dest == "/" { "/" } else { "" },
        into_directory: dest.ends_with('/'),
        owner: Some("0:0".into()),
        mode: None,
    }
}

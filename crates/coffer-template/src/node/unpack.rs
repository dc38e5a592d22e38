//! Unpacks an archive of the npm registry into a tree: plain files below `package/`, and nothing else.
//!
//! Its checksum was compared before, so this guards against our own mistakes in choosing an archive.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Component, Path};

use flate2::read::GzDecoder;
use tar::EntryType;

use crate::BuildError;
use crate::tree::Tree;

/// All files together; Node has 185 MB.
const LARGEST: u64 = 1 << 30;

/// Why an archive was refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadArchive {
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("`{0}` is neither a plain file nor a directory below `package`")]
    Member(String),
    #[error("it has more than {LARGEST} bytes")]
    TooLarge,
    #[error("{}", coffer_core::chain(.0))]
    Write(BuildError),
}

/// Writes the members for which `place` has a place; it gets their path below `package/`.
pub(super) fn unpack(
    archive: &Path,
    tree: &Tree,
    place: impl Fn(&str) -> Option<String>,
) -> Result<(), BadArchive> {
    let mut archive = tar::Archive::new(GzDecoder::new(File::open(archive)?).take(LARGEST));
    let mut left = LARGEST;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if entry.header().entry_type() == EntryType::Directory {
            continue;
        }
        let member = member(&path).filter(|_| entry.header().entry_type() == EntryType::Regular);
        let Some(to) = place(member.ok_or_else(|| BadArchive::Member(path.clone()))?) else { continue };
        left = left.checked_sub(entry.size()).ok_or(BadArchive::TooLarge)?;
        let mode = if entry.header().mode()? & 0o111 == 0 { 0o644 } else { 0o755 };
        let (parent, _) = to.rsplit_once('/').ok_or_else(|| BadArchive::Member(path.clone()))?;
        tree.directories(parent, 0o755).map_err(BadArchive::Write)?;
        tree.stream(&to, mode, &mut entry).map_err(BadArchive::Write)?;
    }
    Ok(())
}

/// A path below `package/`, if it goes only down.
fn member(path: &str) -> Option<&str> {
    let inner = path.strip_prefix("package/")?;
    let down = Path::new(inner).components().all(|part| matches!(part, Component::Normal(_)));
    (down && !inner.is_empty()).then_some(inner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn archive(dir: &Path, members: &[(&str, EntryType, u32)]) -> std::path::PathBuf {
        let path = dir.join("a.tgz");
        let gz = GzEncoder::new(File::create(&path).unwrap(), Compression::fast());
        let mut builder = tar::Builder::new(gz);
        for (name, kind, mode) in members {
            let mut header = tar::Header::new_gnu();
            // `set_path` refuses what an attacker writes.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            header.set_size(if *kind == EntryType::Regular { 3 } else { 0 });
            if *kind == EntryType::Symlink {
                header.set_link_name("/etc").unwrap();
            }
            header.set_cksum();
            let content: &[u8] = if *kind == EntryType::Regular { b"abc" } else { b"" };
            builder.append(&header, content).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap();
        path
    }

    #[test]
    fn files_get_plain_modes_below_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::at(dir.path().join("root"));
        let members =
            [("package/bin/x", EntryType::Regular, 0o4711), ("package/doc/y", EntryType::Regular, 0o600)];
        let packed = archive(dir.path(), &members);
        unpack(&packed, &tree, |path| Some(format!("usr/local/{path}"))).unwrap();
        let mode = |path| std::fs::metadata(tree.path(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("usr/local/bin/x"), mode("usr/local/doc/y")), (0o755, 0o644));
        assert_eq!(mode("usr/local/doc"), 0o755);
        assert_eq!(std::fs::read(tree.path("usr/local/bin/x")).unwrap(), b"abc");
    }

    #[test]
    fn links_and_paths_that_leave_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::at(dir.path().join("root"));
        for (name, kind) in [
            ("package/../../x", EntryType::Regular),
            ("/etc/x", EntryType::Regular),
            ("other/x", EntryType::Regular),
            ("package/l", EntryType::Symlink),
            ("package/l", EntryType::Link),
            ("package/d", EntryType::Char),
        ] {
            let packed = archive(dir.path(), &[(name, kind, 0o644)]);
            let refused = unpack(&packed, &tree, |path| Some(format!("usr/{path}")));
            assert!(matches!(refused, Err(BadArchive::Member(_))), "{name}: {refused:?}");
        }
        assert!(!dir.path().join("x").exists() && !tree.path("usr").exists());
    }
}

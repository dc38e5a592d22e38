//! The names of an archive's members: cleaned, counted and remembered in little memory.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};

use super::archive::LONGEST_NAME;
use super::fault::Fault;

/// Most members of an archive, with the directories that they imply.
const MOST_ENTRIES: u64 = 1_000_000;

/// Whether names may start with a slash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Absolute {
    Refused,
    /// It starts at the root that the archive is unpacked to.
    Relative,
}

/// Drops `.`, empty components and final slashes. Empty is the top directory.
pub(super) fn clean(name: &[u8], absolute: Absolute) -> Result<Vec<u8>, Fault> {
    if name.contains(&0) {
        return Err(Fault::member(name, "has a NUL in its name"));
    }
    if name.starts_with(b"/") && absolute == Absolute::Refused {
        return Err(Fault::member(name, "has an absolute name"));
    }
    let mut cleaned = Vec::with_capacity(name.len().min(LONGEST_NAME));
    for component in name.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => continue,
            b".." => return Err(Fault::member(name, "has '..' in its name")),
            _ => {}
        }
        if !cleaned.is_empty() {
            cleaned.push(b'/');
        }
        cleaned.extend_from_slice(component);
    }
    Ok(cleaned)
}

/// What was seen so far, as keyed hashes: names of any length take eight bytes each.
#[derive(Default)]
pub(super) struct Names {
    key: RandomState,
    files: HashSet<u64>,
    /// Members of a layer and the directories above them.
    touched: HashSet<u64>,
    members: u64,
}

impl Names {
    /// Counts a member, and refuses the second one of a name unless both are directories.
    pub(super) fn admit(&mut self, name: &[u8], is_directory: bool) -> Result<(), Fault> {
        self.members += 1;
        self.check(0)?;
        if !is_directory && !self.files.insert(self.key.hash_one(name)) {
            return Err(Fault::member(name, "is there twice"));
        }
        Ok(())
    }

    /// Refuses an archive with too many members, `implied` directories included.
    pub(super) fn check(&self, implied: u64) -> Result<(), Fault> {
        if self.members + implied > MOST_ENTRIES {
            return Err(Fault::new(format!("the archive has more than {MOST_ENTRIES} entries")));
        }
        Ok(())
    }

    /// Whether a member that is not a directory had this name.
    pub(super) fn has_file(&self, name: &[u8]) -> bool {
        self.files.contains(&self.key.hash_one(name))
    }

    /// Remembers that this archive wrote `path`, and so something below each directory above it.
    pub(super) fn touch(&mut self, path: &[u8]) {
        let mut path = path;
        while self.touched.insert(self.key.hash_one(path)) && !path.is_empty() {
            path = super::tree::parent_of(path);
        }
    }

    pub(super) fn is_touched(&self, path: &[u8]) -> bool {
        self.touched.contains(&self.key.hash_one(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cleaned_and_never_climb() {
        let cases: [(&[u8], Option<&[u8]>); 9] = [
            (b"a/b", Some(b"a/b")),
            (b"./a//b/./", Some(b"a/b")),
            (b".", Some(b"")),
            (b"", Some(b"")),
            (b"a..b/...", Some(b"a..b/...")),
            (b"..", None),
            (b"a/../b", None),
            (b"/etc", None),
            (b"a\0b", None),
        ];
        for (name, expected) in cases {
            assert_eq!(clean(name, Absolute::Refused).ok().as_deref(), expected, "{}", name.escape_ascii());
        }
        assert_eq!(clean(b"//etc/x", Absolute::Relative).unwrap(), b"etc/x");
        assert!(clean(b"/../x", Absolute::Relative).is_err());
    }

    #[test]
    fn a_millionth_member_is_the_last() {
        let mut names = Names::default();
        for _ in 0..MOST_ENTRIES {
            names.admit(b"directory", true).unwrap();
        }
        names.check(0).unwrap();
        assert!(names.check(1).is_err());
        assert!(names.admit(b"directory", true).is_err());
    }
}

//! Names of volumes, and where sandboxes mount them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Most volumes in one sandbox.
pub const MOST_MOUNTS: usize = 16;

const LONGEST_NAME: usize = 128;
const LONGEST_PATH: usize = 1024;

/// Directories that the sandbox itself mounts; nothing is mounted on them or below.
const TAKEN: [&str; 4] = ["/proc", "/sys", "/dev", "/run"];

/// The name of a volume, unique in its project.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeName(String);

/// The text is not a name of a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a volume's name is 1 to {LONGEST_NAME} letters, digits, dashes and underscores")]
pub struct BadVolumeName;

impl FromStr for VolumeName {
    type Err = BadVolumeName;

    fn from_str(text: &str) -> Result<Self, BadVolumeName> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if text.is_empty() || text.len() > LONGEST_NAME || !text.bytes().all(fits) {
            return Err(BadVolumeName);
        }
        Ok(Self(text.to_string()))
    }
}

/// Where a volume is mounted: an absolute path without `.`, `..` and empty parts, outside of what the sandbox
/// mounts itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MountPath(String);

/// Why volumes cannot be mounted there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadMount {
    #[error("volume mount path '{0}' is not absolute and clean")]
    Unclean(String),
    #[error("volume mount path '{0}' belongs to the sandbox itself")]
    Taken(String),
    #[error("two volumes are mounted at '{0}'")]
    Twice(String),
    #[error("volume mount path '{inner}' is below '{outer}', where another volume is mounted")]
    Nested { outer: String, inner: String },
    #[error("a sandbox mounts at most {MOST_MOUNTS} volumes")]
    TooMany,
}

impl MountPath {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is `other` or below it.
    fn is_within(&self, other: &Self) -> bool {
        let rest = self.0.strip_prefix(other.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl FromStr for MountPath {
    type Err = BadMount;

    fn from_str(text: &str) -> Result<Self, BadMount> {
        let shown = || text.chars().take(200).collect::<String>();
        let parts = text.strip_prefix('/').unwrap_or_default().split('/');
        let is_clean = text.len() <= LONGEST_PATH
            && parts.into_iter().all(|part| !matches!(part, "" | "." | "..") && part.len() <= 255)
            && !text.contains(char::is_control);
        if !is_clean {
            return Err(BadMount::Unclean(shown()));
        }
        let path = Self(text.to_string());
        if TAKEN.iter().any(|taken| path.is_within(&Self((*taken).to_string()))) {
            return Err(BadMount::Taken(shown()));
        }
        Ok(path)
    }
}

/// Checks the mounts of one sandbox together. A mount in another volume would leave a directory there.
pub fn check_mounts(paths: &[&MountPath]) -> Result<(), BadMount> {
    if paths.len() > MOST_MOUNTS {
        return Err(BadMount::TooMany);
    }
    for (at, path) in paths.iter().enumerate() {
        for other in &paths[at + 1..] {
            if path == other {
                return Err(BadMount::Twice(path.to_string()));
            }
            let (inner, outer) = if path.is_within(other) { (path, other) } else { (other, path) };
            if inner.is_within(outer) {
                return Err(BadMount::Nested { outer: outer.to_string(), inner: inner.to_string() });
            }
        }
    }
    Ok(())
}

macro_rules! text {
    ($name:ident, $error:ty) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = $error;

            fn try_from(text: String) -> Result<Self, $error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(text: $name) -> Self {
                text.0
            }
        }
    };
}

text!(VolumeName, BadVolumeName);
text!(MountPath, BadMount);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_words() {
        for good in ["a", "my-volume_2", &"x".repeat(128)] {
            assert!(good.parse::<VolumeName>().is_ok(), "{good}");
        }
        for bad in ["", "a b", "../x", "a/b", "ä", "a.b\n", &"x".repeat(129)] {
            assert_eq!(bad.parse::<VolumeName>(), Err(BadVolumeName), "{bad}");
        }
    }

    #[test]
    fn paths_are_absolute_clean_and_outside_of_the_sandboxs_own() {
        for good in ["/data", "/home/user/a b", "/processes", "/devices/x", "/mnt/ä"] {
            assert!(good.parse::<MountPath>().is_ok(), "{good}");
        }
        let long = format!("/{}", "x".repeat(256));
        for bad in ["", "/", "data", "//data", "/data/", "/a/../b", "/a/./b", "/a\0b", "/a\nb", &long] {
            assert!(matches!(bad.parse::<MountPath>(), Err(BadMount::Unclean(_))), "{bad}");
        }
        for taken in ["/proc", "/proc/x", "/sys/fs", "/dev/shm", "/run", "/run/coffer/agentd"] {
            assert!(matches!(taken.parse::<MountPath>(), Err(BadMount::Taken(_))), "{taken}");
        }
    }

    #[test]
    fn mounts_do_not_overlap() {
        let paths =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<MountPath>>();
        let check = |texts: &[&str]| check_mounts(&paths(texts).iter().collect::<Vec<_>>());
        assert_eq!(check(&["/a", "/b/c", "/b/cd"]), Ok(()));
        assert_eq!(check(&["/a", "/b", "/a"]), Err(BadMount::Twice("/a".into())));
        let nested = BadMount::Nested { outer: "/a".into(), inner: "/a/b".into() };
        assert_eq!(check(&["/a", "/a/b"]), Err(nested.clone()));
        assert_eq!(check(&["/a/b", "/a"]), Err(nested));
        let many: Vec<_> = (0..17).map(|at| format!("/m{at}")).collect();
        assert_eq!(check(&many.iter().map(String::as_str).collect::<Vec<_>>()), Err(BadMount::TooMany));
    }
}

//! Keys of cached steps: a hash of everything that decides a result.

use coffer_core::BuildId;
use sha2::{Digest as _, Sha256};

/// Raised when the meaning of a step changes, so that older results are not used.
const REVISION: &str = "1";

/// The key of a result, which the key of the next one includes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key(String);

impl Key {
    /// The key of what a build starts from.
    pub(crate) fn of_base(identity: &str) -> Self {
        Self::hash(["base", REVISION, identity])
    }

    /// The key after a step.
    pub(crate) fn after<'a>(&'a self, parts: impl IntoIterator<Item = &'a str>) -> Self {
        Self::hash(std::iter::once(self.0.as_str()).chain(parts))
    }

    /// The key of a forced step: no other build has it, but this one finds it again after a crash.
    pub(crate) fn forced(&self, build: BuildId) -> Self {
        self.after(["forced", &build.to_string()])
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    fn hash<'a>(parts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            // With its length, so that no two lists of parts are the same bytes.
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hex::encode(hash.finalize()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_with_every_part_and_its_borders() {
        let base = Key::of_base("base/1");
        assert_ne!(base.after(["ab", "c"]), base.after(["a", "bc"]));
        assert_ne!(base.after(["a"]), Key::of_base("base/2").after(["a"]));
        assert_eq!(base.after(["a"]), base.after(["a"]));
        let build = BuildId::generate();
        assert_eq!(base.forced(build), base.forced(build));
        assert_ne!(base.forced(build), base.forced(BuildId::generate()));
    }
}

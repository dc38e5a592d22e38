//! Splits git patches by file, so that two can be compared.
//!
//! A patch comes from a sandbox: parsing it only ever returns slices of it.

use std::collections::BTreeMap;

/// A patch of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePatch<'a> {
    pub added: u64,
    pub removed: u64,
    /// From its `diff --git` line up to the next one.
    pub text: &'a str,
}

impl FilePatch<'_> {
    /// Whether both make the same change, apart from the `index` lines.
    pub fn does_as(&self, other: &FilePatch<'_>) -> bool {
        fn lines<'t>(patch: &FilePatch<'t>) -> impl Iterator<Item = &'t str> {
            patch.text.lines().filter(|line| !line.starts_with("index "))
        }
        lines(self).eq(lines(other))
    }
}

/// The files of a patch, by path.
pub fn files_of(patch: &str) -> BTreeMap<&str, FilePatch<'_>> {
    let mut files = BTreeMap::new();
    let mut begins: Vec<usize> = Vec::new();
    let mut at = 0;
    for line in patch.split_inclusive('\n') {
        if line.starts_with("diff --git ") {
            begins.push(at);
        }
        at += line.len();
    }
    let ends = begins.iter().skip(1).copied().chain([patch.len()]);
    for (begin, end) in begins.iter().zip(ends) {
        let text = &patch[*begin..end];
        if let Some((path, added, removed)) = read(text) {
            files.insert(path, FilePatch { added, removed, text });
        }
    }
    files
}

/// The path of one file's part, and its numbers of lines.
fn read(text: &str) -> Option<(&str, u64, u64)> {
    let mut lines = text.lines();
    let header = lines.next()?.strip_prefix("diff --git ")?;
    let (mut old, mut new, mut renamed) = (None, None, None);
    let (mut added, mut removed) = (0, 0);
    let mut in_hunk = false;
    for line in lines {
        // Within a hunk every line has a mark; what looks like a header there is a line of the file.
        if line.starts_with("@@ ") {
            in_hunk = true;
        } else if in_hunk {
            added += u64::from(line.starts_with('+'));
            removed += u64::from(line.starts_with('-'));
        } else if let Some(path) = line.strip_prefix("--- ") {
            old = path.strip_prefix("a/");
        } else if let Some(path) = line.strip_prefix("+++ ") {
            new = path.strip_prefix("b/");
        } else if let Some(path) = line.strip_prefix("rename to ") {
            renamed = Some(path);
        }
    }
    // A file without changed lines has its name twice in the header: `a/NAME b/NAME`.
    let twice = || {
        let half = header.len().checked_sub(1)? / 2;
        let (one, other) = (header.get(..half)?, header.get(half + 1..)?);
        (one.strip_prefix("a/")? == other.strip_prefix("b/")?).then(|| &one[2..])
    };
    // Names that git quoted stay quoted.
    let path = new.or(renamed).or(old).map(|path| path.trim_end_matches('\t')).or_else(twice);
    Some((path.unwrap_or(header), added, removed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATCH: &str = "\
diff --git a/src/a b.py b/src/a b.py
index 1111111..2222222 100644
--- a/src/a b.py\t
+++ b/src/a b.py\t
@@ -1,3 +1,3 @@ def add(a, b):
 first
-return a - b
--- a comment that looks like a head
+return a + b
diff --git a/gone b/gone
deleted file mode 100644
index 3333333..0000000
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-was here
diff --git a/run.sh b/run.sh
old mode 100644
new mode 100755
diff --git a/old name b/new name
similarity index 100%
rename from old name
rename to new name
diff --git a/picture.png b/picture.png
new file mode 100644
index 0000000..4444444
Binary files /dev/null and b/picture.png differ
";

    #[test]
    fn files_are_found_with_their_paths_and_lines() {
        let files = files_of(PATCH);
        let told: Vec<_> = files.iter().map(|(path, file)| (*path, file.added, file.removed)).collect();
        let wanted = [
            ("gone", 0, 1),
            ("new name", 0, 0),
            ("picture.png", 0, 0),
            ("run.sh", 0, 0),
            ("src/a b.py", 1, 2),
        ];
        assert_eq!(told, wanted);
        let whole: usize = files.values().map(|file| file.text.len()).sum();
        assert_eq!(whole, PATCH.len());
    }

    #[test]
    fn the_same_change_of_other_beginnings_is_the_same() {
        let other = PATCH.replace("2222222", "9999999");
        let (one, two) = (files_of(PATCH), files_of(&other));
        assert!(one["src/a b.py"].does_as(&two["src/a b.py"]));
        let third = PATCH.replace("a + b", "b + a");
        assert!(!one["src/a b.py"].does_as(&files_of(&third)["src/a b.py"]));
    }

    proptest! {
        #[test]
        fn no_text_panics_and_nothing_is_counted_twice(
            lines in proptest::collection::vec("(diff --git |--- |\\+\\+\\+ |@@ |\\+|-|rename to )?[ab/é\"\\t ]{0,6}", 0..30),
        ) {
            let text = lines.join("\n");
            let files = files_of(&text);
            let told: u64 = files.values().map(|file| file.added + file.removed).sum();
            prop_assert!(told <= lines.len() as u64);
            prop_assert!(files.values().all(|file| text.contains(file.text)));
        }
    }
}

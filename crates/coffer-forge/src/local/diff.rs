//! The changes of a pull request, bounded.

use std::collections::BTreeMap;

use coffer_core::forge::CommitId;

use super::bare::Bare;
use crate::ForgeError;
use crate::forge::{CommittedFile, Diff, DiffFile, FilePath};
use crate::git::Call;

const MOST_FILES: usize = 3000;
const LONGEST_PATCH: usize = 2 << 20;
const LONGEST_LIST: usize = 2 << 20;
const LONGEST_FILE: usize = 2 << 20;

const HOW: [&str; 7] = [
    "diff-tree",
    "-r",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--find-renames",
    "--ignore-submodules=none",
];

impl Bare {
    /// The difference between the merge base of `base` and `head`, and `head`.
    pub(crate) async fn diff(&self, base: &CommitId, head: &CommitId) -> Result<Diff, ForgeError> {
        let merge_base = self.merge_base(base, head).await?;
        // Without one, everything is new.
        let from = merge_base.clone().unwrap_or_else(|| base.clone());
        self.difference(&from, head, merge_base).await
    }

    /// The difference between two commits.
    pub(crate) async fn difference(
        &self,
        from: &CommitId,
        head: &CommitId,
        merge_base: Option<CommitId>,
    ) -> Result<Diff, ForgeError> {
        let call = Call { most: LONGEST_LIST, ..Call::within(&self.directory) };
        let between = [from.as_str(), head.as_str()];
        let list = [&HOW[..], &["--raw", "--numstat", "-z", "--no-abbrev"], &between].concat();
        let listed = self.git.run(call, &list).await?;
        let mut truncated = listed.cut;
        let mut files = files(&listed.good()?);
        truncated |= files.len() > MOST_FILES;
        files.truncate(MOST_FILES);
        let call = Call { most: LONGEST_PATCH, ..Call::within(&self.directory) };
        let patch = [&HOW[..], &["--patch", "--full-index"], &between].concat();
        let patch = self.git.run(call, &patch).await?;
        truncated |= patch.cut;
        let patch = String::from_utf8_lossy(&patch.good()?).into_owned();
        Ok(Diff {
            merge_base,
            head_commit: head.clone(),
            additions: files.iter().map(|file| file.additions).sum(),
            deletions: files.iter().map(|file| file.deletions).sum(),
            files,
            patch,
            truncated,
        })
    }

    /// A file as it is in a commit.
    pub(crate) async fn file(&self, commit: &CommitId, path: &FilePath) -> Result<CommittedFile, ForgeError> {
        // A name that begins with a hash can be neither an option nor a path beside the repository.
        let name = format!("{commit}:{}", path.as_str());
        let kind = self.git.run(Call::within(&self.directory), &["cat-file", "-t", &name]).await?;
        if kind.code != Some(0) || kind.stdout.trim_ascii() != b"blob" {
            return Err(ForgeError::not_found("file", path.as_str()));
        }
        let call = Call { most: LONGEST_FILE, ..Call::within(&self.directory) };
        let read = self.git.run(call, &["cat-file", "blob", &name]).await?;
        let truncated = read.cut;
        let bytes = read.good()?;
        let binary = bytes[..bytes.len().min(8000)].contains(&0);
        let text = if binary { String::new() } else { String::from_utf8_lossy(&bytes).into_owned() };
        let (path, commit) = (path.as_str().to_string(), commit.clone());
        Ok(CommittedFile { path, commit, text, binary, truncated })
    }
}

/// Parses `--raw --numstat -z`: first all files with their status, then all with their lines.
fn files(listed: &[u8]) -> Vec<DiffFile> {
    let mut parts = listed.split(|&byte| byte == 0).map(|part| String::from_utf8_lossy(part).into_owned());
    let mut files: Vec<DiffFile> = Vec::new();
    let mut places = BTreeMap::new();
    while let Some(part) = parts.next() {
        if let Some(raw) = part.strip_prefix(':') {
            let letter = raw.rsplit(' ').next().and_then(|status| status.chars().next()).unwrap_or('X');
            let Some(first) = parts.next() else { break };
            let (path, previous_path) = match letter {
                'R' | 'C' => match parts.next() {
                    Some(second) => (second, Some(first)),
                    None => break,
                },
                _ => (first, None),
            };
            places.insert(path.clone(), files.len());
            let change = match letter {
                'A' => "added",
                'D' => "deleted",
                'M' => "modified",
                'R' => "renamed",
                'C' => "copied",
                _ => "changed",
            };
            files.push(DiffFile {
                path,
                previous_path,
                change: change.to_string(),
                additions: 0,
                deletions: 0,
                binary: false,
            });
            continue;
        }
        let mut columns = part.splitn(3, '\t');
        let (Some(added), Some(deleted), Some(path)) = (columns.next(), columns.next(), columns.next())
        else {
            continue;
        };
        let path = if path.is_empty() {
            // Renamed: both names follow.
            match (parts.next(), parts.next()) {
                (Some(_), Some(path)) => path,
                _ => break,
            }
        } else {
            path.to_string()
        };
        if let Some(file) = places.get(&path).and_then(|&place| files.get_mut(place)) {
            file.binary = added == "-";
            file.additions = added.parse().unwrap_or(0);
            file.deletions = deleted.parse().unwrap_or(0);
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let listed =
            b":100644 100644 a b M\0x\0:100644 100644 a b R090\0old\0new\0:000000 100644 0 b A\0bin\0\
            1\t2\tx\x003\t0\t\0old\0new\0-\t-\tbin\0";
        let files = files(listed);
        let seen: Vec<_> =
            files.iter().map(|f| (&*f.path, &*f.change, f.additions, f.deletions, f.binary)).collect();
        assert_eq!(
            seen,
            [("x", "modified", 1, 2, false), ("new", "renamed", 3, 0, false), ("bin", "added", 0, 0, true)]
        );
        assert_eq!(files[1].previous_path.as_deref(), Some("old"));
    }

    #[test]
    fn cut_lists_do_not_panic() {
        let listed = b":100644 100644 a b R090\0old\0new\x003\t0\t\0old\0new\0";
        for end in 0..listed.len() {
            files(&listed[..end]);
        }
    }
}

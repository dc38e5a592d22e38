//! What `git status --porcelain=v2 --branch -z` says. The sandbox's word: bounded, and nothing that is not as git
//! writes it is believed.

use serde::Serialize;
use utoipa::ToSchema;

/// Changes that are told.
const MOST_ENTRIES: usize = 5000;

/// Where a work tree stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, ToSchema)]
pub struct WorkTree {
    /// The commit that is checked out; none where there is none yet.
    pub commit: Option<String>,
    /// None where no branch is checked out.
    pub branch: Option<String>,
    pub upstream: Option<String>,
    /// Commits that the upstream has not, and that it has beyond.
    pub ahead: Option<u64>,
    pub behind: Option<u64>,
    pub changes: Vec<PathChange>,
    /// There are more changes than these.
    pub truncated: bool,
}

/// One path that is not as committed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PathChange {
    pub path: String,
    /// What it was called before.
    pub from: Option<String>,
    /// What is staged: `M`, `A`, `D`, `R`, `C`, `T`, or `.` for nothing.
    pub staged: char,
    /// What is not: the same, or `?` for a file that git does not know, `U` for a conflict.
    pub unstaged: char,
}

/// The output is not git's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable;

impl WorkTree {
    pub fn read(output: &[u8]) -> Result<Self, Unreadable> {
        let mut status = Self::default();
        let mut fields = output.split(|&byte| byte == 0).filter(|field| !field.is_empty());
        while let Some(field) = fields.next() {
            let text = String::from_utf8_lossy(field);
            if let Some(header) = text.strip_prefix("# ") {
                status.header(header);
                continue;
            }
            if status.changes.len() == MOST_ENTRIES {
                status.truncated = true;
                break;
            }
            let (kind, rest) = text.split_once(' ').ok_or(Unreadable)?;
            let change = match kind {
                "?" => PathChange { path: rest.to_string(), from: None, staged: '.', unstaged: '?' },
                "1" => change(rest, 7, None)?,
                "2" => {
                    let from = fields.next().ok_or(Unreadable)?;
                    change(rest, 8, Some(String::from_utf8_lossy(from).into_owned()))?
                }
                "u" => PathChange { staged: 'U', unstaged: 'U', ..change(rest, 9, None)? },
                _ => return Err(Unreadable),
            };
            status.changes.push(change);
        }
        Ok(status)
    }

    fn header(&mut self, header: &str) {
        let (name, value) = header.split_once(' ').unwrap_or((header, ""));
        match name {
            "branch.oid" if value != "(initial)" => self.commit = Some(value.to_string()),
            "branch.head" if value != "(detached)" => self.branch = Some(value.to_string()),
            "branch.upstream" => self.upstream = Some(value.to_string()),
            "branch.ab" => {
                let (ahead, behind) = value.split_once(' ').unwrap_or_default();
                self.ahead = ahead.strip_prefix('+').and_then(|count| count.parse().ok());
                self.behind = behind.strip_prefix('-').and_then(|count| count.parse().ok());
            }
            _ => {}
        }
    }
}

/// A line of `skipped` words before its path, of which the first tells what is staged and what is not.
fn change(rest: &str, skipped: usize, from: Option<String>) -> Result<PathChange, Unreadable> {
    let mut words = rest.splitn(skipped + 1, ' ');
    let mut marks = words.next().ok_or(Unreadable)?.chars();
    let (Some(staged), Some(unstaged), None) = (marks.next(), marks.next(), marks.next()) else {
        return Err(Unreadable);
    };
    let path = words.nth(skipped - 1).ok_or(Unreadable)?.to_string();
    Ok(PathChange { path, from, staged, unstaged })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line_is_read() {
        let output = "# branch.oid 1111\0# branch.head task-1\0# branch.upstream origin/task-1\0# branch.ab +2 -1\0\
                      1 M. N... 100644 100644 100644 aaaa bbbb a b.txt\0\
                      2 R. N... 100644 100644 100644 aaaa bbbb R100 new name\0old name\0\
                      u UU N... 100644 100644 100644 100644 aaaa bbbb cccc torn\0? un known\0";
        let status = WorkTree::read(output.as_bytes()).unwrap();
        let change = |path: &str, from: Option<&str>, staged, unstaged| PathChange {
            path: path.to_string(),
            from: from.map(str::to_string),
            staged,
            unstaged,
        };
        assert_eq!(
            status,
            WorkTree {
                commit: Some("1111".into()),
                branch: Some("task-1".into()),
                upstream: Some("origin/task-1".into()),
                ahead: Some(2),
                behind: Some(1),
                changes: vec![
                    change("a b.txt", None, 'M', '.'),
                    change("new name", Some("old name"), 'R', '.'),
                    change("torn", None, 'U', 'U'),
                    change("un known", None, '.', '?'),
                ],
                truncated: false,
            }
        );
    }

    #[test]
    fn what_is_not_gits_is_refused_and_floods_are_cut() {
        for bad in ["hello\0", "1 M. short\0", "1 MMM N a b c d e p\0", "2 R. N a b c d R1 p\0", "9 x y\0"] {
            assert_eq!(WorkTree::read(bad.as_bytes()), Err(Unreadable), "{bad}");
        }
        let empty = WorkTree::read(b"# branch.oid (initial)\0# branch.head (detached)\0").unwrap();
        assert_eq!(empty, WorkTree::default());
        let many = WorkTree::read("? x\0".repeat(MOST_ENTRIES + 1).as_bytes()).unwrap();
        assert!(many.truncated && many.changes.len() == MOST_ENTRIES);
    }
}

//! Parses `git status --porcelain=v2 --branch -z`. The sandbox controls this text: the parser is bounded and
//! rejects everything that git would not write.

use coffer_core::git::{PathChange, WorkTree};

/// Most changes in an answer.
const MOST_ENTRIES: usize = 5000;

/// The output is not that of git.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unreadable;

pub(super) fn read_status(output: &[u8]) -> Result<WorkTree, Unreadable> {
    let mut status = WorkTree::default();
    let mut fields = output.split(|&byte| byte == 0).filter(|field| !field.is_empty());
    while let Some(field) = fields.next() {
        let text = String::from_utf8_lossy(field);
        if let Some(header) = text.strip_prefix("# ") {
            read_header(&mut status, header);
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

fn read_header(status: &mut WorkTree, header: &str) {
    let (name, value) = header.split_once(' ').unwrap_or((header, ""));
    match name {
        "branch.oid" if value != "(initial)" => status.commit = Some(value.to_string()),
        "branch.head" if value != "(detached)" => status.branch = Some(value.to_string()),
        "branch.upstream" => status.upstream = Some(value.to_string()),
        "branch.ab" => {
            let (ahead, behind) = value.split_once(' ').unwrap_or_default();
            status.ahead = ahead.strip_prefix('+').and_then(|count| count.parse().ok());
            status.behind = behind.strip_prefix('-').and_then(|count| count.parse().ok());
        }
        _ => {}
    }
}

/// A line with `skipped` words before its path; the first word has the staged and the unstaged change.
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
        let status = read_status(output.as_bytes()).unwrap();
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
            assert_eq!(read_status(bad.as_bytes()), Err(Unreadable), "{bad}");
        }
        let empty = read_status(b"# branch.oid (initial)\0# branch.head (detached)\0").unwrap();
        assert_eq!(empty, WorkTree::default());
        let many = read_status("? x\0".repeat(MOST_ENTRIES + 1).as_bytes()).unwrap();
        assert!(many.truncated && many.changes.len() == MOST_ENTRIES);
    }
}

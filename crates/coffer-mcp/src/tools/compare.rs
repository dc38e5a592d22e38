//! Compares forks: the entries of a competition, or sandboxes that hold the same repository.

use std::collections::BTreeMap;

use coffer_api_types::competitions::{Competition, Entry};
use coffer_api_types::git::DiffQuery;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::bounds::one_line;
use crate::tool::{Call, Effect, Failure, Outcome, Tool};

const MOST_SANDBOXES: usize = 10;
const MOST_FILES: usize = 200;

pub(super) fn tools() -> Vec<Tool> {
    vec![Tool::new(
        "compare_forks",
        "Compare forks",
        "Compare what forks changed in their repository: which files, how many lines, and which changes are the same. Takes \
         either sandbox_ids (for example of fork_sandbox), or the fork_id of a competition. git_diff shows the changes.",
        Effect::Reads,
        compare,
    )]
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Compare {
    /// 2 to 10 sandboxes that hold the same repository.
    #[serde(default)]
    #[schemars(length(max = 10))]
    sandbox_ids: Vec<String>,
    /// A competition.
    #[serde(default)]
    fork_id: Option<String>,
    /// With sandbox_ids, which repository; required if they have several.
    #[serde(default)]
    repository: Option<String>,
    /// With sandbox_ids, the branch to compare with, from the merge base; the last commit by default.
    #[serde(default)]
    base: Option<String>,
}

/// One fork.
#[derive(Debug, Serialize, JsonSchema)]
struct Side {
    /// The sandbox, or the number of an entry.
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    files: u64,
    /// Lines.
    added: u64,
    removed: u64,
    /// Whether the check passed; null if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    check_passed: Option<bool>,
    /// From 1, the best.
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
}

/// A file that at least one fork changed.
#[derive(Debug, Serialize, JsonSchema)]
struct File {
    path: String,
    /// The forks that changed it.
    changed_by: Vec<String>,
    /// Whether all of these made the same change.
    same: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Compared {
    sides: Vec<Side>,
    /// Only with sandbox_ids.
    files: Vec<File>,
    /// Whether a diff was longer than what was compared.
    cut: bool,
}

async fn compare(call: Call, input: Compare) -> Result<Outcome<Compared>, Failure> {
    let hint = "pass either fork_id, or sandbox_ids with 2 to 10 sandboxes";
    let compared = match (&input.fork_id, input.sandbox_ids.len()) {
        (Some(fork), 0) => of_competition(call.client.competition(fork).await?),
        (None, 2..=MOST_SANDBOXES) => of_sandboxes(&call, &input).await?,
        (_, count) => return Err(Failure::bad_request(format!("cannot compare {count} sandboxes"), hint)),
    };
    let side = |side: &Side| {
        let name = side.label.as_ref().map(|label| format!(" ({label})")).unwrap_or_default();
        let rank = side.rank.map(|rank| format!(", rank {rank}")).unwrap_or_default();
        let check = side.check_passed.map(|passed| if passed { ", check passed" } else { ", check failed" });
        let (files, added, removed) = (side.files, side.added, side.removed);
        format!("{}{name}: {files} files, +{added} -{removed}{}{rank}", side.id, check.unwrap_or_default())
    };
    let file = |file: &File| {
        let same = if file.same { "the same in" } else { "differs between" };
        let by = file.changed_by.join(", ");
        match file.changed_by.len() {
            1 => format!("{}: only in {by}", one_line(&file.path)),
            _ => format!("{}: {same} {by}", one_line(&file.path)),
        }
    };
    let lines: Vec<String> = compared.sides.iter().map(side).chain(compared.files.iter().map(file)).collect();
    Ok(Outcome::new(lines.join("\n"), compared))
}

fn of_competition(found: Competition) -> Compared {
    let side = |entry: Entry| Side {
        id: entry.number.to_string(),
        label: Some(entry.label),
        state: serde_json::to_value(entry.state).ok().and_then(|state| state.as_str().map(str::to_string)),
        files: entry.diff.as_ref().map_or(0, |size| size.files),
        added: entry.diff.as_ref().map_or(0, |size| size.added),
        removed: entry.diff.as_ref().map_or(0, |size| size.removed),
        check_passed: entry.check.map(|check| check.passed),
        rank: entry.rank,
        cost: entry.cost,
    };
    Compared { sides: found.entries.into_iter().map(side).collect(), files: Vec::new(), cut: false }
}

async fn of_sandboxes(call: &Call, input: &Compare) -> Result<Compared, Failure> {
    let (mut sides, mut cut) = (Vec::new(), false);
    let mut files: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for sandbox in &input.sandbox_ids {
        let query = DiffQuery { repository: input.repository.clone(), base: input.base.clone() };
        let found = call.client.git_diff(sandbox, &query).await?;
        cut |= found.truncated;
        let mut side = Side {
            id: sandbox.clone(),
            label: None,
            state: None,
            files: 0,
            added: 0,
            removed: 0,
            check_passed: None,
            rank: None,
            cost: None,
        };
        for (path, patch) in by_file(&found.patch) {
            side.files += 1;
            side.added += count(patch, '+');
            side.removed += count(patch, '-');
            files.entry(path).or_default().push((sandbox.clone(), patch.to_string()));
        }
        sides.push(side);
    }
    cut |= files.len() > MOST_FILES;
    let file = |(path, changes): (String, Vec<(String, String)>)| {
        let same = changes.windows(2).all(|pair| pair[0].1 == pair[1].1);
        File { path, changed_by: changes.into_iter().map(|(sandbox, _)| sandbox).collect(), same }
    };
    Ok(Compared { sides, files: files.into_iter().take(MOST_FILES).map(file).collect(), cut })
}

/// The parts of a diff, one for each file, by the file's path.
fn by_file(patch: &str) -> Vec<(String, &str)> {
    let mut begins: Vec<usize> = patch.match_indices("\ndiff --git ").map(|(at, _)| at + 1).collect();
    if patch.starts_with("diff --git ") {
        begins.insert(0, 0);
    }
    let ends = begins.iter().skip(1).copied().chain([patch.len()]);
    let parts = begins.iter().zip(ends).map(|(&begin, end)| &patch[begin..end]);
    let path = |part: &str| {
        let head = part.lines().next().unwrap_or_default().trim_start_matches("diff --git ");
        // `a/path b/path`: the same path twice, unless it was renamed.
        head.rsplit_once(" b/").map_or(head, |(_, path)| path).trim_matches('"').to_string()
    };
    parts.map(|part| (path(part), part)).collect()
}

/// How many lines a patch adds or removes.
fn count(patch: &str, sign: char) -> u64 {
    let body = patch.lines().skip_while(|line| !line.starts_with("@@"));
    body.filter(|line| line.starts_with(sign)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_is_taken_apart_by_file() {
        let patch = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-a\n+b\n+diff --git\ndiff --git a/y z b/y z\n@@ -0,0 +1 @@\n+c\n";
        let parts = by_file(patch);
        let paths: Vec<&str> = parts.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, ["x", "y z"]);
        assert_eq!((count(parts[0].1, '+'), count(parts[0].1, '-'), count(parts[1].1, '+')), (2, 1, 1));
        assert!(by_file("").is_empty());
    }
}

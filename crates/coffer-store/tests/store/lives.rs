//! What is on record comes from one state to the next by the tables of moves in coffer-core, and by nothing else.

use std::fs;
use std::path::{Path, PathBuf};

/// States that are not written by `moves` or `first` of `columns.rs`: the file, the assignment, and why it is right.
const OTHERWISE: &[(&str, &str, &str)] = &[
    ("competitions/pick.rs", "state = $1", "what `after` says, with the row held"),
    (
        "competitions/progress.rs",
        "state = COALESCE($1, state)",
        "what `after` says; entries have no table of moves",
    ),
    (
        "competitions/progress.rs",
        "state = $1",
        "what `after` says, with the row held; entries end as a whole",
    ),
    ("executions.rs", "INSERT 'running'", "an execution runs, then ends"),
    ("executions.rs", "state = $1", "an execution that runs ends, once"),
    ("executions.rs", "state = $6", "an execution that runs goes on, or ends once"),
    ("executions.rs", "state = 'lost'", "code that runs ends with its server, once"),
    ("forge/issues.rs", "INSERT 'open'", "issues are open or closed, as people say"),
    ("forge/issues.rs", "state = COALESCE($6, state)", "issues are open or closed, as people say"),
    ("forge/pulls.rs", "INSERT 'open'", "pull requests have no table of moves"),
    ("forge/pulls.rs", "state = $8", "pull requests have no table of moves"),
    ("forge/pulls.rs", "state = 'merged'", "pull requests have no table of moves"),
    ("forge/statuses.rs", "state = excluded.state", "a check's newest word holds"),
    ("git.rs", "INSERT 'running'", "an operation of git runs, then ends"),
    ("git.rs", "state = $1", "an operation of git that runs ends, once"),
    (
        "sandboxes/change.rs",
        "state = $1",
        "the fleet asks `SandboxState::after`, and the row is compared and set",
    ),
    ("segments.rs", "state = $1", "segments of output have no table of moves"),
    ("segments.rs", "state = $4", "segments of output have no table of moves"),
    (
        "tasks/attempts.rs",
        "state = $1",
        "what `after` says, with the row held; an attempt has its run's state",
    ),
    ("tasks/attempts.rs", "state = $6", "what `after` says, with the row held"),
    ("tasks/change.rs", "state = $3", "what `after` says, with the row held"),
    ("tasks/issues.rs", "state = 'closed'", "issues are open or closed; a merge closes"),
    ("tasks/review.rs", "state = COALESCE($1, state)", "what `after` says, with the row held"),
];

/// The sources of the store, with their names below `src`.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// What a source writes into columns named `state`, as far as it is not put in by `format!`.
fn writes(source: &str) -> Vec<String> {
    let text = source.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = Vec::new();
    for (at, _) in text.match_indices("state = ") {
        let before = &text[..at];
        let is_assigned = before.ends_with("SET ") || before.ends_with(", ");
        let (name, value) = text[at..].split_once(" = ").unwrap();
        if is_assigned && !value.starts_with('{') {
            let depth = |end: usize| value[..end].matches('(').count() - value[..end].matches(')').count();
            let ends = |(end, one): (usize, char)| " ,\"".contains(one) && depth(end) == 0;
            let end = value.char_indices().find(|at| ends(*at)).map_or(value.len(), |(end, _)| end);
            found.push(format!("{name} = {}", &value[..end]));
        }
    }
    for (at, _) in text.match_indices("INSERT INTO ") {
        let statement = text[at..].split('"').next().unwrap();
        let Some((columns, values)) = statement.split_once(')') else { continue };
        let has_state = columns.split(['(', ',', ' ']).any(|column| column == "state");
        let values = values.split(" ON CONFLICT ").next().unwrap();
        if let Some(literal) = values.split('\'').nth(1).filter(|_| has_state) {
            found.push(format!("INSERT '{literal}'"));
        }
    }
    found
}

#[test]
fn states_are_written_by_the_tables_of_moves() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    sources(&root, &mut paths);
    let mut unused: Vec<_> = OTHERWISE.to_vec();
    let mut unknown = Vec::new();
    for path in paths {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap().to_string();
        for write in writes(&fs::read_to_string(&path).unwrap()) {
            let is_this = |known: &&(&str, &str, &str)| known.0 == name && known.1 == write;
            match OTHERWISE.iter().find(is_this) {
                Some(known) => unused.retain(|other| other != known),
                None => unknown.push(format!("{name}: {write}")),
            }
        }
    }
    assert!(
        unknown.is_empty(),
        "write these by `moves` or `first` of columns.rs, or by what `Life::after` says, and then say so here: {unknown:#?}"
    );
    assert!(unused.is_empty(), "nothing writes this any more: {unused:#?}");
}

#[test]
fn a_state_that_is_written_by_hand_is_found() {
    let source = r#"
        "UPDATE runs SET owner = NULL,
             state = 'parked', fence = fence + 1 WHERE state = 'running'",
        "UPDATE tasks SET state = {}, wake_ms = CASE WHEN state = 'parked' THEN $1 ELSE wake_ms END",
        "INSERT INTO snapshots (id, state) VALUES ($1, 'ready') ON CONFLICT DO NOTHING",
        "INSERT INTO snapshots (id, name) VALUES ($1, 'ready')",
        "UPDATE pulls SET state = COALESCE($1, state), title = $2",
    "#;
    let found = ["state = 'parked'", "state = COALESCE($1, state)", "INSERT 'ready'"];
    assert_eq!(writes(source), found);
}

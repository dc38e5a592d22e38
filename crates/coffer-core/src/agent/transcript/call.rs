//! Tells tools apart: commands, edits and todo lists have entries of their own, whatever an agent calls them.

use serde_json::Value;

use super::entry::{CallState, EditKind, EntryBody, Todo, TodoState};
use super::json::{first, items};
use super::text::{Text, cut};

const ARGUMENTS: usize = 4 * 1024;
const RESULT_HEAD: usize = 2 * 1024;
const RESULT_TAIL: usize = 6 * 1024;
const DIFF: usize = 8 * 1024;
const LONGEST_PATH: usize = 1024;
const LONGEST_TODO: usize = 500;
const MOST_TODOS: usize = 100;

const PATHS: &[&str] = &["file_path", "filePath", "path", "absolute_path", "notebook_path"];
const CONTENTS: &[&str] = &["content", "file_text", "contents"];
const BEFORE: &[&str] = &["old_string", "oldString", "old_str", "before"];
const AFTER: &[&str] = &["new_string", "newString", "new_str", "after"];

/// The name of a tool without the prefix of its server, lower case, without underscores.
fn plain(tool: &str) -> String {
    let tool = tool.rsplit("__").next().unwrap_or(tool);
    tool.chars().filter(|letter| *letter != '_').flat_map(char::to_lowercase).take(100).collect()
}

/// The entry of a call that begins.
pub(super) fn call(tool: &str, input: &Value) -> EntryBody {
    let state = CallState::Running;
    let special = match &*plain(tool) {
        "bash" | "shell" | "shellcommand" | "runshellcommand" | "execcommand" | "localshell"
        | "shelltoolcall" | "runterminalcmd" | "commandexecution" => {
            command(input).map(|command| EntryBody::Command { command, state, exit_code: None, output: None })
        }
        "write" | "writefile" | "create" | "createfile" | "edit" | "multiedit" | "editfile" | "replace"
        | "strreplace" | "texteditor" | "strreplaceeditor" | "writetoolcall" | "edittoolcall"
        | "applypatch" => edit(input),
        "todowrite" | "writetodos" | "updateplan" | "updatetodo" | "updatetodos" | "todolist" => {
            Some(todos(input)).filter(|items| !items.is_empty()).map(|items| EntryBody::Todos { items })
        }
        _ => None,
    };
    special.unwrap_or_else(|| EntryBody::Tool {
        name: cut(if tool.is_empty() { "tool" } else { tool }, 200),
        arguments: arguments(input),
        state,
        result: None,
    })
}

fn arguments(input: &Value) -> Text {
    match input {
        Value::Null => Text::default(),
        Value::String(text) => Text::head(text, ARGUMENTS),
        other => Text::head(&other.to_string(), ARGUMENTS),
    }
}

/// The command line of a call of a shell.
fn command(input: &Value) -> Option<Text> {
    let words = |list: &[Value]| {
        let words: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
        match *words {
            [] => None,
            // The shell itself says nothing.
            ["bash" | "sh" | "/bin/bash" | "/bin/sh", "-c" | "-lc", line] => Some(line.to_string()),
            _ => Some(words.join(" ")),
        }
    };
    let line = match input {
        Value::String(line) => Some(line.clone()),
        _ => first(input, &["command", "cmd", "script"])
            .map(String::from)
            .or_else(|| words(items(&input["command"]))),
    };
    line.map(|line| Text::head(&line, ARGUMENTS))
}

fn edit(input: &Value) -> Option<EntryBody> {
    let state = CallState::Running;
    // A patch names its files itself.
    let patch = input.as_str().or_else(|| first(input, &["input", "patch"]));
    if let Some(patch) = patch.filter(|patch| patch.contains("*** ")) {
        let line = patch.lines().find_map(|line| line.strip_prefix("*** ")?.split_once(" File: "));
        let (what, path) = line.unwrap_or(("Update", ""));
        let edit = match what {
            "Add" => EditKind::Written,
            "Delete" => EditKind::Deleted,
            _ => EditKind::Changed,
        };
        let diff = Some(Text::head(patch, DIFF));
        return Some(EntryBody::Edit { path: cut(path, LONGEST_PATH), edit, state, diff, error: None });
    }
    let path = cut(first(input, PATHS)?, LONGEST_PATH);
    let pairs: Vec<(&str, &str)> = match items(&input["edits"]) {
        [] => vec![(first(input, BEFORE).unwrap_or_default(), first(input, AFTER).unwrap_or_default())],
        several => several
            .iter()
            .map(|pair| (first(pair, BEFORE).unwrap_or_default(), first(pair, AFTER).unwrap_or_default()))
            .collect(),
    };
    if pairs.iter().any(|(before, after)| !before.is_empty() || !after.is_empty()) {
        let parts: Vec<String> =
            pairs.iter().map(|(before, after)| lines('-', before) + &lines('+', after)).collect();
        let diff = Some(Text::head(&parts.join("@@\n"), DIFF));
        return Some(EntryBody::Edit { path, edit: EditKind::Changed, state, diff, error: None });
    }
    let content = first(input, CONTENTS)?;
    let diff = Some(Text::head(&lines('+', content), DIFF));
    Some(EntryBody::Edit { path, edit: EditKind::Written, state, diff, error: None })
}

fn lines(sign: char, text: &str) -> String {
    // What is cut anyway need not be built.
    let text = &text[..text.floor_char_boundary(2 * DIFF)];
    text.lines().map(|line| format!("{sign}{line}\n")).collect()
}

pub(in crate::agent) fn todos(input: &Value) -> Vec<Todo> {
    let list =
        ["todos", "plan", "items"].iter().map(|name| items(&input[*name])).find(|list| !list.is_empty());
    let todo = |item: &Value| {
        let text = first(item, &["content", "description", "step", "text", "task", "subject", "title"])?;
        let state = match item["status"].as_str().or_else(|| item["state"].as_str()) {
            Some("completed" | "done" | "TODO_STATUS_COMPLETED") => TodoState::Done,
            Some("in_progress" | "in-progress" | "TODO_STATUS_IN_PROGRESS") => TodoState::InProgress,
            Some("cancelled" | "canceled") => TodoState::Cancelled,
            _ if item["completed"] == Value::Bool(true) => TodoState::Done,
            _ => TodoState::Pending,
        };
        Some(Todo { text: cut(text, LONGEST_TODO), state })
    };
    list.unwrap_or_default().iter().filter_map(todo).take(MOST_TODOS).collect()
}

/// How a call ended.
#[derive(Debug, Default)]
pub(in crate::agent) struct Ended<'a> {
    pub(in crate::agent) failed: bool,
    pub(in crate::agent) text: &'a str,
    pub(in crate::agent) exit_code: Option<i64>,
    /// The changed lines, if the agent tells them.
    pub(in crate::agent) diff: Option<String>,
}

/// The entry of the call, with its end.
pub(super) fn ended(body: EntryBody, how: &Ended<'_>) -> EntryBody {
    let after = if how.failed { CallState::Failed } else { CallState::Done };
    let text = || {
        let text = how.text.trim_end();
        (!text.is_empty()).then(|| Text::folded(text, RESULT_HEAD, RESULT_TAIL))
    };
    match body {
        EntryBody::Tool { name, arguments, .. } => {
            EntryBody::Tool { name, arguments, state: after, result: text() }
        }
        EntryBody::Command { command, .. } => {
            let failed = how.exit_code.map_or(how.failed, |code| code != 0);
            let state = if failed { CallState::Failed } else { CallState::Done };
            EntryBody::Command { command, state, exit_code: how.exit_code, output: text() }
        }
        EntryBody::Edit { path, edit, diff, .. } => EntryBody::Edit {
            path,
            edit,
            state: after,
            diff: how.diff.as_ref().map(|diff| Text::head(diff, DIFF)).or(diff),
            error: if how.failed { text() } else { None },
        },
        other => other,
    }
}

/// The entry of a call whose end was not told.
pub(super) fn left_open(mut body: EntryBody) -> EntryBody {
    if let EntryBody::Tool { state, .. } | EntryBody::Command { state, .. } | EntryBody::Edit { state, .. } =
        &mut body
    {
        *state = CallState::Unknown;
    }
    body
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tools_of_all_agents_are_told_apart() {
        for (tool, input) in [
            ("Bash", json!({"command": "ls -l"})),
            ("run_shell_command", json!({"command": "ls -l"})),
            ("developer__shell", json!({"command": "ls -l"})),
            ("exec_command", json!({"cmd": "ls -l"})),
            ("shell", json!({"command": ["bash", "-lc", "ls -l"]})),
            ("shell", json!({"command": ["ls", "-l"]})),
        ] {
            let EntryBody::Command { command, .. } = call(tool, &input) else { panic!("{tool}") };
            assert_eq!(command.text, "ls -l");
        }
        for (tool, input, diff) in [
            ("Write", json!({"file_path": "a", "content": "1\n2\n"}), "+1\n+2\n"),
            ("create", json!({"path": "a", "file_text": "1"}), "+1\n"),
            ("edit", json!({"filePath": "a", "oldString": "1", "newString": "2"}), "-1\n+2\n"),
            ("replace", json!({"file_path": "a", "old_string": "1", "new_string": "2"}), "-1\n+2\n"),
            ("developer__edit", json!({"path": "a", "before": "1", "after": "2"}), "-1\n+2\n"),
            (
                "MultiEdit",
                json!({"file_path": "a", "edits": [{"old_string": "1", "new_string": ""}, {"old_string": "", "new_string": "3"}]}),
                "-1\n@@\n+3\n",
            ),
        ] {
            let EntryBody::Edit { path, diff: Some(told), .. } = call(tool, &input) else { panic!("{tool}") };
            assert_eq!((&*path, &*told.text), ("a", diff), "{tool}");
        }
        let patch = json!({"input": "*** Begin Patch\n*** Delete File: b\n*** End Patch"});
        let EntryBody::Edit { path, edit, .. } = call("apply_patch", &patch) else { panic!() };
        assert_eq!((&*path, edit), ("b", EditKind::Deleted));
        for (tool, input) in [
            (
                "TodoWrite",
                json!({"todos": [{"content": "a", "status": "completed"}, {"content": "b", "status": "in_progress"}]}),
            ),
            (
                "update_plan",
                json!({"plan": [{"step": "a", "status": "completed"}, {"step": "b", "status": "in_progress"}]}),
            ),
            (
                "write_todos",
                json!({"todos": [{"description": "a", "status": "completed"}, {"description": "b", "status": "in_progress"}]}),
            ),
        ] {
            let EntryBody::Todos { items } = call(tool, &input) else { panic!("{tool}") };
            assert_eq!(
                items.iter().map(|item| item.state).collect::<Vec<_>>(),
                [TodoState::Done, TodoState::InProgress]
            );
        }
        // What does not fit is a tool like any other.
        for (tool, input) in [
            ("Bash", json!({"command": 7})),
            ("Write", json!([])),
            ("TodoWrite", json!(null)),
            ("", json!("x")),
        ] {
            assert!(matches!(call(tool, &input), EntryBody::Tool { .. }), "{tool}");
        }
    }
}

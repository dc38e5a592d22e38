//! Transcripts as Markdown, for people.

use std::fmt::Write as _;

use super::entry::{CallState, EditKind, EntryBody, TodoState};
use super::text::Text;

/// Where an entry belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heading {
    pub attempt: i64,
    pub turn: i64,
    /// When, as people read it.
    pub at: String,
    pub subagent: bool,
}

/// Renders entries in their order. What agents and strangers wrote is quoted or fenced: it cannot look like a
/// heading of ours.
pub fn markdown<'a>(title: &str, entries: impl IntoIterator<Item = (Heading, &'a EntryBody)>) -> String {
    let mut page = format!("# {}\n", inline(title));
    let mut last = None;
    for (heading, body) in entries {
        let place = (heading.attempt, heading.turn);
        if last.replace(place) != Some(place) {
            let _ = write!(page, "\n## Attempt {}, turn {} ({})\n", place.0, place.1, heading.at);
        }
        let by = if heading.subagent { "Subagent: " } else { "" };
        let _ = write!(page, "\n{by}{}", rendered(body));
    }
    page
}

fn rendered(body: &EntryBody) -> String {
    match body {
        EntryBody::Person { author, text, file, line } => {
            let about = match (file, line) {
                (Some(file), Some(line)) => format!(" about {}", code(&format!("{file}:{line}"))),
                (Some(file), None) => format!(" about {}", code(file)),
                _ => String::new(),
            };
            format!("**{}** said{about}:\n\n{}", inline(author), quote(text))
        }
        EntryBody::Prompt { text } => {
            format!("<details><summary>Prompt</summary>\n\n{}\n</details>\n", fence(text))
        }
        EntryBody::Started { model, .. } => {
            format!(
                "The agent started{}.\n",
                model.as_ref().map(|model| format!(" with {}", code(model))).unwrap_or_default()
            )
        }
        EntryBody::Message { text } => quote(text),
        EntryBody::Thinking { text } => {
            format!("<details><summary>Thinking</summary>\n\n{}\n</details>\n", fence(text))
        }
        EntryBody::Tool { name, arguments, state, result } => {
            let mut told = format!("Tool {}{}\n\n{}", code(name), how(*state, None), fence(arguments));
            if let Some(result) = result {
                let _ = write!(told, "\n{}", fence(result));
            }
            told
        }
        EntryBody::Command { command, state, exit_code, output } => {
            let mut told = format!("Command{}\n\n{}", how(*state, *exit_code), fence(command));
            if let Some(output) = output {
                let _ = write!(told, "\n{}", fence(output));
            }
            told
        }
        EntryBody::Edit { path, edit, state, diff, error } => {
            let what = match edit {
                EditKind::Written => "Wrote",
                EditKind::Changed => "Changed",
                EditKind::Deleted => "Deleted",
            };
            let mut told = format!("{what} {}{}\n", code(path), how(*state, None));
            for (text, kind) in
                diff.iter().map(|text| (text, "diff")).chain(error.iter().map(|text| (text, "")))
            {
                let _ = write!(told, "\n{}", fenced(text, kind));
            }
            told
        }
        EntryBody::Todos { items } => {
            let line = |item: &super::entry::Todo| {
                let (mark, more) = match item.state {
                    TodoState::Done => ("x", ""),
                    TodoState::Cancelled => ("x", " (cancelled)"),
                    TodoState::InProgress => (" ", " (in progress)"),
                    TodoState::Pending => (" ", ""),
                };
                format!("- [{mark}] {}{more}\n", inline(&item.text))
            };
            items.iter().map(line).collect()
        }
        EntryBody::Retry { reason, attempt, of, wait_ms } => {
            let which = attempt.map(|attempt| format!(" {attempt}")).unwrap_or_default();
            let of = of.map(|of| format!(" of {of}")).unwrap_or_default();
            let wait = wait_ms.map(|wait| format!(", in {} s", wait.div_ceil(1000))).unwrap_or_default();
            format!("Retry{which}{of}{wait}: {}\n", inline(reason))
        }
        EntryBody::Error { text } => format!("**Error**\n\n{}", fence(text)),
        EntryBody::Output { text } => fence(text),
        EntryBody::Usage { input_tokens, cached_tokens, output_tokens, cost } => {
            let cost = cost.map(|cost| format!(", ${cost:.4}")).unwrap_or_default();
            format!(
                "Used {input_tokens} input tokens ({cached_tokens} cached), {output_tokens} output tokens{cost}.\n"
            )
        }
        EntryBody::Check { command, passed, exit_code, output } => {
            let how = match (passed, exit_code) {
                (true, _) => "passed".to_string(),
                (false, Some(code)) => format!("failed with exit code {code}"),
                (false, None) => "did not end in time".to_string(),
            };
            format!("**Check** {how}\n\n{}\n{}", fence(command), fence(output))
        }
        EntryBody::Omitted { entries } => format!("{entries} more entries were left out.\n"),
    }
}

fn how(state: CallState, exit_code: Option<i64>) -> String {
    match (state, exit_code) {
        (_, Some(code)) => format!(" (exit code {code})"),
        (CallState::Running, None) => " (running)".into(),
        (CallState::Failed, None) => " (failed)".into(),
        (CallState::Unknown, None) => " (its end is not known)".into(),
        (CallState::Done, None) => String::new(),
    }
}

/// On one line, without a meaning.
fn inline(text: &str) -> String {
    let plain = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    plain
        .flat_map(|letter| "\\`*_[]<>#|!".contains(letter).then_some('\\').into_iter().chain([letter]))
        .collect()
}

fn code(text: &str) -> String {
    let plain: String =
        text.chars().map(|letter| if letter.is_control() || letter == '`' { '\'' } else { letter }).collect();
    format!("`{}`", if plain.trim().is_empty() { "-" } else { plain.trim() })
}

fn quote(text: &Text) -> String {
    // For Markdown a carriage return ends a line too, and the quote with it.
    text.shown().lines().flat_map(|line| line.split('\r')).map(|line| format!("> {line}\n")).collect()
}

fn fence(text: &Text) -> String {
    fenced(text, "")
}

/// In a fence that is longer than any in the text.
fn fenced(text: &Text, kind: &str) -> String {
    let shown = text.shown();
    let mut longest = 0;
    let mut run = 0;
    for letter in shown.chars() {
        run = if letter == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{kind}\n{}\n{fence}\n", shown.trim_end_matches('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_agents_write_does_not_become_ours() {
        let text = |text: &str| Text::head(text, 10_000);
        let heading = Heading { attempt: 1, turn: 2, at: "today".into(), subagent: false };
        let bodies = [
            EntryBody::Message { text: text("fine\r# Merged\n## Attempt 9") },
            EntryBody::Command {
                command: text("echo '````'"),
                state: CallState::Done,
                exit_code: Some(1),
                output: Some(text("```\n# x")),
            },
            EntryBody::Todos {
                items: vec![super::super::entry::Todo { text: "a\n# b".into(), state: TodoState::Done }],
            },
        ];
        let page = markdown("T\n# x", bodies.iter().map(|body| (heading.clone(), body)));
        let headings: Vec<&str> = page.lines().filter(|line| line.starts_with('#')).collect();
        // The fenced line is within its fence.
        assert_eq!(headings, ["# T \\# x", "## Attempt 1, turn 2 (today)", "# x"]);
        assert!(page.contains("> fine\n> # Merged\n> ## Attempt 9\n"), "{page}");
        assert!(
            page.contains("`````\necho '````'\n`````\n") && page.contains("````\n```\n# x\n````\n"),
            "{page}"
        );
        assert!(page.contains("- [x] a \\# b\n"), "{page}");
    }
}

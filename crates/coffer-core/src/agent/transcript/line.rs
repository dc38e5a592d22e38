//! An entry on one line.

use super::entry::{CallState, EntryBody, TodoState};

const LONGEST: usize = 200;

fn first(text: &str) -> String {
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let end = line.floor_char_boundary(LONGEST);
    let more = if end < line.len() || text.trim().lines().count() > 1 { "…" } else { "" };
    format!("{}{more}", &line[..end])
}

const fn how(state: CallState) -> &'static str {
    match state {
        CallState::Running => " (running)",
        CallState::Failed => " (failed)",
        CallState::Unknown => " (its end is not known)",
        CallState::Done => "",
    }
}

impl EntryBody {
    /// What it says, on one line of bounded length.
    pub fn line(&self) -> String {
        match self {
            Self::Person { author, text, file, .. } => {
                let about = file.as_ref().map(|file| format!(" about {}", first(file))).unwrap_or_default();
                format!("{}{about}: {}", first(author), first(&text.text))
            }
            Self::Prompt { text } => format!("prompt: {}", first(&text.text)),
            Self::Started { model, .. } => {
                format!("started{}", model.as_ref().map(|model| format!(" with {model}")).unwrap_or_default())
            }
            Self::Message { text } => first(&text.text),
            Self::Thinking { text } => format!("thinking: {}", first(&text.text)),
            Self::Tool { name, arguments, state, .. } => {
                format!("{name} {}{}", first(&arguments.text), how(*state))
            }
            Self::Command { command, state, exit_code, .. } => {
                let how = match exit_code {
                    Some(0) => String::new(),
                    Some(code) => format!(" (exit code {code})"),
                    None => how(*state).to_string(),
                };
                format!("$ {}{how}", first(&command.text))
            }
            Self::Edit { path, state, .. } => format!("edit {}{}", first(path), how(*state)),
            Self::Todos { items } => {
                let done = items.iter().filter(|item| item.state == TodoState::Done).count();
                format!("todo list: {done} of {} done", items.len())
            }
            Self::Retry { reason, attempt, .. } => {
                let which = attempt.map(|attempt| format!(" {attempt}")).unwrap_or_default();
                format!("retry{which}: {}", first(reason))
            }
            Self::Error { text } => format!("error: {}", first(&text.text)),
            Self::Output { text } => first(&text.text),
            Self::Usage { input_tokens, output_tokens, cost, .. } => {
                let cost = cost.map(|cost| format!(", ${cost:.4}")).unwrap_or_default();
                format!("used {input_tokens} input and {output_tokens} output tokens{cost}")
            }
            Self::Check { command, passed, .. } => {
                format!("check `{}` {}", first(&command.text), if *passed { "passed" } else { "failed" })
            }
            Self::Omitted { entries } => format!("{entries} more entries were left out"),
        }
    }

    /// The text below that line, if there is more to show.
    pub fn details(&self) -> Option<String> {
        let text = match self {
            Self::Person { text, .. }
            | Self::Message { text }
            | Self::Output { text }
            | Self::Error { text } => text,
            Self::Tool { result: Some(text), .. }
            | Self::Command { output: Some(text), .. }
            | Self::Edit { error: Some(text), .. }
            | Self::Edit { diff: Some(text), .. } => text,
            Self::Check { output, passed: false, .. } => output,
            Self::Todos { items } => {
                let mark = |state| match state {
                    TodoState::Done => 'x',
                    TodoState::InProgress => '>',
                    TodoState::Pending => ' ',
                    TodoState::Cancelled => '-',
                };
                let lines = items.iter().map(|item| format!("[{}] {}", mark(item.state), first(&item.text)));
                return Some(lines.collect::<Vec<_>>().join("\n"));
            }
            _ => return None,
        };
        Some(text.shown()).filter(|text| !text.trim().is_empty())
    }
}

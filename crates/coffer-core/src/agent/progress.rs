//! A short form of an agent's progress.

use serde::{Deserialize, Serialize};

use super::transcript::EntryBody;

/// Longest texts.
const LONGEST_MESSAGE: usize = 500;
const LONGEST_ABOUT: usize = 200;

/// An agent's last action, as it reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentProgress {
    /// Its last message.
    pub message: Option<String>,
    /// Its last tool.
    pub tool: Option<String>,
    /// What it used the tool for.
    pub about: Option<String>,
}

impl AgentProgress {
    /// Applies an entry of the transcript; returns whether the progress changed.
    pub fn hear(&mut self, entry: &EntryBody) -> bool {
        let mut tool = |name: &str, about: &str| {
            self.tool = Some(name.to_string());
            self.about = Some(about.to_string()).filter(|about| !about.is_empty());
        };
        match entry {
            EntryBody::Tool { name, arguments, .. } => tool(name, &arguments.text),
            EntryBody::Command { command, .. } => tool("command", &command.text),
            EntryBody::Edit { path, .. } => tool("edit", path),
            EntryBody::Message { text } | EntryBody::Error { text } => self.message = Some(text.text.clone()),
            EntryBody::Output { text } => {
                let line = text.text.lines().rev().find(|line| !line.trim().is_empty());
                self.message = line.map(String::from);
            }
            EntryBody::Retry { reason, .. } => {
                self.message = Some(format!("waiting for its model: {reason}"))
            }
            _ => return false,
        }
        true
    }

    /// For publishing: each text is passed through `show`, and then cut. Cutting first could hide half of a
    /// secret from redaction.
    #[must_use]
    pub fn told(&self, show: impl Fn(&str) -> String) -> Self {
        let told = |text: &Option<String>, longest: usize| {
            let mut text = show(text.as_deref()?);
            text.truncate(text.floor_char_boundary(longest));
            Some(text)
        };
        Self {
            message: told(&self.message, LONGEST_MESSAGE),
            tool: told(&self.tool, LONGEST_ABOUT),
            about: told(&self.about, LONGEST_ABOUT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::transcript::{CallState, Text};

    #[test]
    fn the_last_of_each_kind_is_told_and_not_too_much_of_it() {
        let mut progress = AgentProgress::default();
        let message = |text: &str| EntryBody::Message { text: Text::head(text, 10_000) };
        let tool = |name: &str, about: &str| EntryBody::Tool {
            name: name.into(),
            arguments: Text::head(about, 1000),
            state: CallState::Running,
            result: None,
        };
        assert!(!progress.hear(&EntryBody::Started { session: None, model: None }));
        assert!(progress.hear(&message("first")));
        assert!(progress.hear(&tool("Bash", "ls hush")));
        assert!(progress.hear(&message(&format!("{}hush", "é".repeat(400)))));
        assert!(!progress.hear(&EntryBody::Omitted { entries: 1 }));
        let told = progress.told(|text| text.replace("hush", "[redacted]"));
        assert_eq!((told.tool.as_deref(), told.about.as_deref()), (Some("Bash"), Some("ls [redacted]")));
        assert_eq!(told.message, Some("é".repeat(250)));
        // A tool without details clears those of the previous tool.
        assert!(progress.hear(&tool("Think", "")));
        assert_eq!((progress.tool.as_deref(), progress.about), (Some("Think"), None));
    }
}

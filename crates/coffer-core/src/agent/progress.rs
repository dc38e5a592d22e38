//! A short form of an agent's progress.

use serde::{Deserialize, Serialize};

use super::AgentEvent;

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
    /// Applies an event; returns whether the progress changed.
    pub fn hear(&mut self, event: AgentEvent) -> bool {
        match event {
            AgentEvent::Text { text } | AgentEvent::Raw { line: text } => self.message = Some(text),
            AgentEvent::Error { message } => self.message = Some(message),
            AgentEvent::Tool { name, about } => {
                self.tool = Some(name);
                self.about = Some(about).filter(|about| !about.is_empty());
            }
            AgentEvent::Started { .. } | AgentEvent::Finished { .. } => return false,
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

    #[test]
    fn the_last_of_each_kind_is_told_and_not_too_much_of_it() {
        let mut progress = AgentProgress::default();
        assert!(!progress.hear(AgentEvent::Started { session: None, model: None }));
        assert!(progress.hear(AgentEvent::Text { text: "first".into() }));
        assert!(progress.hear(AgentEvent::Tool { name: "Bash".into(), about: "ls hush".into() }));
        assert!(progress.hear(AgentEvent::Text { text: format!("{}hush", "é".repeat(400)) }));
        assert!(!progress.hear(AgentEvent::Finished { ok: true }));
        let told = progress.told(|text| text.replace("hush", "[redacted]"));
        assert_eq!((told.tool.as_deref(), told.about.as_deref()), (Some("Bash"), Some("ls [redacted]")));
        assert_eq!(told.message, Some("é".repeat(250)));
        // A tool without details clears those of the previous tool.
        assert!(progress.hear(AgentEvent::Tool { name: "Think".into(), about: String::new() }));
        assert_eq!((progress.tool.as_deref(), progress.about), (Some("Think"), None));
    }
}

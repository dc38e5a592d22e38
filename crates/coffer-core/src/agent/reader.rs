//! Parses agents' output: a transcript, tokens and cost if it has them, plain text otherwise.
//!
//! The output comes from a sandbox, so it may be anything: endless lines, huge numbers, JSON of another
//! shape. Lines are bounded, unknown lines are text, and nothing is trusted beyond being shown. Each format has a
//! file below; what they have in common is in [`Scribe`].

mod aider;
mod claude;
mod codex;
mod error;
mod gemini;
mod goose;
mod opencode;
mod plain;

use serde_json::Value;

use super::OutputFormat;
use super::report::{AgentReport, Tokens};
use super::transcript::{Change, Room, Scribe};

/// Longer lines are skipped.
const LONGEST_LINE: usize = 1024 * 1024;
/// Longest line of plain text in a transcript.
const LONGEST_TEXT: usize = 2000;

/// What the lines of a format have to remember.
#[derive(Debug)]
enum Format {
    Text(plain::Plain),
    Claude(claude::Claude),
    Codex,
    Gemini,
    OpenCode,
    Goose,
    Aider(aider::Aider),
}

/// One stream of output, split into lines.
#[derive(Debug, Default)]
struct Lines {
    line: Vec<u8>,
    /// The line is too long: the rest of it is dropped.
    passing_over: bool,
}

impl Lines {
    fn take(&mut self, bytes: &[u8]) {
        if self.passing_over {
            return;
        }
        if self.line.len() + bytes.len() > LONGEST_LINE {
            self.passing_over = true;
            self.line = Vec::new();
        } else {
            self.line.extend_from_slice(bytes);
        }
    }

    /// The line that ends here; `None` if it was too long.
    fn end(&mut self) -> Option<Vec<u8>> {
        let line = std::mem::take(&mut self.line);
        (!std::mem::take(&mut self.passing_over)).then_some(line)
    }

    fn is_empty(&self) -> bool {
        self.line.is_empty() && !self.passing_over
    }
}

/// Parses an agent's output as it arrives, in any pieces.
#[derive(Debug)]
pub struct AgentReader {
    format: Format,
    main: Lines,
    error: Lines,
    scribe: Scribe,
}

impl AgentReader {
    pub fn new(format: OutputFormat) -> Self {
        Self::within(format, Room::WHOLE)
    }

    /// With less room for its transcript.
    pub fn within(format: OutputFormat, room: Room) -> Self {
        let format = match format {
            OutputFormat::Text => Format::Text(plain::Plain::default()),
            OutputFormat::ClaudeStream => Format::Claude(claude::Claude::default()),
            OutputFormat::CodexStream => Format::Codex,
            OutputFormat::GeminiStream => Format::Gemini,
            OutputFormat::OpenCodeStream => Format::OpenCode,
            OutputFormat::GooseStream => Format::Goose,
            OutputFormat::Aider => Format::Aider(aider::Aider::default()),
        };
        Self { format, main: Lines::default(), error: Lines::default(), scribe: Scribe::new(room) }
    }

    /// The turn continues a session that has used so much before. Some programs tell the total of the session.
    pub fn continues(&mut self, earlier: Tokens) {
        self.scribe.earlier = earlier;
    }

    /// Takes the next bytes; emits the changes of the transcript that they complete.
    pub fn push(&mut self, mut bytes: &[u8], tell: &mut dyn FnMut(Change)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.main.take(&bytes[..end]);
            self.end_line(tell);
            bytes = &bytes[end + 1..];
        }
        self.main.take(bytes);
    }

    /// The same for what it writes to stderr: noise, but for an agent whose format is text.
    pub fn push_error(&mut self, mut bytes: &[u8], tell: &mut dyn FnMut(Change)) {
        let Format::Text(_) = self.format else { return };
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.error.take(&bytes[..end]);
            self.end_error(tell);
            bytes = &bytes[end + 1..];
        }
        self.error.take(bytes);
    }

    /// The report so far.
    pub const fn report(&self) -> &AgentReport {
        self.scribe.report()
    }

    /// What the agent did last, in words.
    pub fn last(&self) -> Option<&str> {
        self.scribe.last()
    }

    /// The end of the output: the last line need not have an end.
    pub fn finish(&mut self, tell: &mut dyn FnMut(Change)) -> AgentReport {
        if !self.main.is_empty() {
            self.end_line(tell);
        }
        if !self.error.is_empty() {
            self.end_error(tell);
        }
        if let Format::Aider(aider) = &mut self.format {
            aider.end(&mut self.scribe);
        }
        self.scribe.close();
        self.scribe.take().for_each(tell);
        self.scribe.report().clone()
    }

    fn end_error(&mut self, tell: &mut dyn FnMut(Change)) {
        let Some(line) = self.error.end() else { return };
        if let Format::Text(plain) = &mut self.format {
            plain.error(&String::from_utf8_lossy(&line), &mut self.scribe);
        }
        self.scribe.take().for_each(tell);
    }

    fn end_line(&mut self, tell: &mut dyn FnMut(Change)) {
        self.scribe.report.lines = self.scribe.report.lines.saturating_add(1);
        let Some(line) = self.main.end() else {
            self.scribe.report.passed_over = self.scribe.report.passed_over.saturating_add(1);
            return;
        };
        let text = String::from_utf8_lossy(&line);
        self.read_line(text.trim_end_matches('\r'));
        self.scribe.take().for_each(tell);
    }

    fn read_line(&mut self, text: &str) {
        let scribe = &mut self.scribe;
        let event =
            |text: &str| serde_json::from_str::<Value>(text).ok().filter(|value| value["type"].is_string());
        match &mut self.format {
            Format::Text(plain) => return plain.line(text, scribe),
            Format::Aider(aider) => return aider.line(text, scribe),
            _ if text.trim().is_empty() => return,
            _ => {}
        }
        let Some(value) = event(text) else {
            let text = &text[..text.floor_char_boundary(LONGEST_TEXT)];
            return scribe.line(text);
        };
        match &mut self.format {
            Format::Claude(claude) => claude.read(&value, scribe),
            Format::Codex => codex::read(&value, scribe),
            Format::Gemini => gemini::read(&value, scribe),
            Format::OpenCode => opencode::read(&value, scribe),
            Format::Goose => goose::read(&value, scribe),
            Format::Text(_) | Format::Aider(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;

//! Writes a transcript: numbers the entries of a turn, bounds them, and keeps the agent's report.

use std::collections::BTreeMap;

use serde_json::Value;

use super::call::{self, Ended};
use super::entry::{Change, EntryBody, Todo};
use super::json::name;
use super::text::{Text, cut};
use crate::agent::report::{AgentReport, Tokens};

/// Longest texts.
const MESSAGE: usize = 16 * 1024;
const THINKING: usize = 8 * 1024;
const ERROR: usize = 2000;
const REASON: usize = 300;
/// Lines of one entry of plain output: a paragraph ends it from the first size on, anything from the second.
const PARAGRAPH: usize = 1024;
const GROUP: usize = 4 * 1024;
/// Calls whose end is not told yet; an agent that opens more loses the oldest.
const MOST_OPEN: usize = 256;
/// Errors and usage still have a place after the last of the others.
const RESERVE: u64 = 32;
const MOST_DOLLARS: f64 = 1e6;

/// How much a turn may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub entries: u64,
    pub bytes: usize,
}

impl Room {
    /// Of an attempt.
    pub const WHOLE: Self = Self { entries: 4000, bytes: 8 << 20 };

    /// What is left of it.
    #[must_use]
    pub const fn without(self, entries: u64, bytes: usize) -> Self {
        Self { entries: self.entries.saturating_sub(entries), bytes: self.bytes.saturating_sub(bytes) }
    }
}

/// The kind of text that is being continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Message,
    Thinking,
    Output,
}

impl Flow {
    const fn body(self, text: Text) -> EntryBody {
        match self {
            Self::Message => EntryBody::Message { text },
            Self::Thinking => EntryBody::Thinking { text },
            Self::Output => EntryBody::Output { text },
        }
    }
}

#[derive(Debug)]
struct Open {
    number: u64,
    body: EntryBody,
    subagent: bool,
}

/// Writes the transcript of one turn.
#[derive(Debug)]
pub struct Scribe {
    pub(in crate::agent) report: AgentReport,
    /// What the session used in earlier turns.
    pub(in crate::agent) earlier: Tokens,
    room: Room,
    bytes: usize,
    /// The last number and the last version.
    number: u64,
    version: u64,
    calls: BTreeMap<String, Open>,
    /// Text that the next piece continues: its kind, number and the text so far.
    flow: Option<(Flow, u64, String, u64)>,
    omitted: u64,
    omitted_at: Option<u64>,
    /// Whether the lines that are read now are about a subagent.
    pub(in crate::agent) subagent: bool,
    last: Option<String>,
    changes: Vec<Change>,
}

impl Scribe {
    pub fn new(room: Room) -> Self {
        Self {
            report: AgentReport::default(),
            earlier: Tokens::default(),
            room,
            bytes: 0,
            number: 0,
            version: 0,
            calls: BTreeMap::new(),
            flow: None,
            omitted: 0,
            omitted_at: None,
            subagent: false,
            last: None,
            changes: Vec::new(),
        }
    }

    /// The report so far.
    pub const fn report(&self) -> &AgentReport {
        &self.report
    }

    /// What it did last, in words: why an agent that ran out of time had not ended.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// The changes since the last call.
    pub(in crate::agent) fn take(&mut self) -> std::vec::Drain<'_, Change> {
        self.changes.drain(..)
    }

    fn emit(&mut self, number: u64, subagent: bool, body: EntryBody) {
        self.version += 1;
        self.changes.push(Change { number, version: self.version, subagent, body });
    }

    /// Adds an entry; returns its number unless there is no room.
    fn add(&mut self, body: EntryBody) -> Option<u64> {
        self.describe(&body);
        let size = body.size();
        let is_last_word = matches!(body, EntryBody::Error { .. } | EntryBody::Usage { .. });
        let fits = self.number < self.room.entries && self.bytes.saturating_add(size) <= self.room.bytes;
        let is_kept = fits || (is_last_word && self.number < self.room.entries.saturating_add(RESERVE));
        if !is_kept {
            self.omitted = self.omitted.saturating_add(1);
            if self.omitted.is_power_of_two() {
                self.tell_omitted();
            }
            return None;
        }
        self.bytes = self.bytes.saturating_add(size);
        self.number += 1;
        self.emit(self.number, self.subagent, body);
        Some(self.number)
    }

    fn tell_omitted(&mut self) {
        let number = match self.omitted_at {
            Some(number) => number,
            None => {
                self.number += 1;
                *self.omitted_at.insert(self.number)
            }
        };
        self.emit(number, false, EntryBody::Omitted { entries: self.omitted });
    }

    fn describe(&mut self, body: &EntryBody) {
        let quote = |text: &str| cut(text.lines().next().unwrap_or_default(), REASON);
        self.last = Some(match body {
            EntryBody::Message { text } => format!("it last said: {}", quote(&text.text)),
            EntryBody::Command { command, .. } => format!("it last ran `{}`", quote(&command.text)),
            EntryBody::Edit { path, .. } => format!("it last edited {}", quote(path)),
            EntryBody::Tool { name, .. } => format!("it last used {name}"),
            EntryBody::Error { text } => quote(&text.text),
            EntryBody::Output { text } => {
                let line = text.text.lines().rev().find(|line| !line.trim().is_empty());
                format!("it last wrote: {}", quote(line.unwrap_or_default()))
            }
            EntryBody::Retry { reason, attempt, of, .. } => {
                let which = match (attempt, of) {
                    (Some(attempt), Some(of)) => format!(" (retry {attempt} of {of})"),
                    (Some(attempt), None) => format!(" (retry {attempt})"),
                    _ => String::new(),
                };
                format!("its model did not answer: {reason}{which}")
            }
            _ => return,
        });
    }

    /// Ends text that later pieces would continue, and says how much of it was left out.
    fn end_flow(&mut self) {
        if let Some((kind, number, text, cut_bytes)) =
            self.flow.take().filter(|(.., cut_bytes)| *cut_bytes > 0)
        {
            self.emit(number, self.subagent, kind.body(Text { cut_bytes, ..Text::head(&text, text.len()) }));
        }
    }

    pub(in crate::agent) fn started(&mut self, session: &Value, model: &Value) {
        let (session, model) = (name(session), name(model));
        self.end_flow();
        self.report.session = session.clone().or(self.report.session.take());
        self.report.model = model.clone().or(self.report.model.take());
        self.add(EntryBody::Started { model, session });
    }

    /// A whole message.
    pub(in crate::agent) fn said(&mut self, text: &str) {
        self.end_flow();
        self.said_on(text);
        self.end_flow();
    }

    /// A piece of a message, which continues the piece before it.
    pub(in crate::agent) fn said_on(&mut self, text: &str) {
        if text.trim().is_empty() && !matches!(self.flow, Some((Flow::Message, ..))) {
            return;
        }
        let whole = self.flow_on(Flow::Message, text, MESSAGE);
        self.report.error = None;
        if !self.subagent {
            self.report.summary = Some(whole);
        }
    }

    pub(in crate::agent) fn thought(&mut self, text: &str) {
        self.end_flow();
        if !text.trim().is_empty() {
            self.flow_on(Flow::Thinking, text, THINKING);
        }
        self.end_flow();
    }

    /// A line that is not in the agent's format.
    pub(in crate::agent) fn line(&mut self, line: &str) {
        if let Some((Flow::Output, _, text, _)) = &self.flow
            && (text.len() > GROUP || (text.len() > PARAGRAPH && line.trim().is_empty()))
        {
            self.end_flow();
        }
        if line.trim().is_empty() && !matches!(self.flow, Some((Flow::Output, ..))) {
            return;
        }
        let line = match &self.flow {
            Some((Flow::Output, ..)) => format!("\n{line}"),
            _ => line.to_string(),
        };
        self.flow_on(Flow::Output, &line, MESSAGE);
    }

    /// Begins or continues text; returns all of it, cut.
    fn flow_on(&mut self, kind: Flow, piece: &str, most: usize) -> String {
        let (number, mut text, mut cut_bytes) = match self.flow.take() {
            Some((flow, number, text, cut_bytes)) if flow == kind => (Some(number), text, cut_bytes),
            _ => (None, String::new(), 0),
        };
        let fits = piece.floor_char_boundary(most.saturating_sub(text.len()));
        // Once something was left out, nothing may follow it as if it were the next word.
        let fits = if cut_bytes > 0 { 0 } else { fits };
        text.push_str(&piece[..fits]);
        cut_bytes = cut_bytes.saturating_add(u64::try_from(piece.len() - fits).unwrap_or(u64::MAX));
        let shown = Text { cut_bytes, ..Text::head(&text, most) };
        let body = kind.body(shown);
        let number = match number {
            // What is over after the cut changes a figure only, which is told at the end.
            Some(number) if fits == 0 => Some(number),
            Some(number) => {
                self.describe(&body);
                if self.bytes.saturating_add(fits) <= self.room.bytes {
                    self.bytes += fits;
                    self.emit(number, self.subagent, body);
                }
                Some(number)
            }
            None => self.add(body),
        };
        self.flow = number.map(|number| (kind, number, text.clone(), cut_bytes));
        text
    }

    /// A call of a tool begins.
    pub(in crate::agent) fn call(&mut self, id: &Value, tool: &str, input: &Value) {
        self.end_flow();
        self.report.tools = self.report.tools.saturating_add(1);
        self.report.error = None;
        let body = call::call(tool, input);
        let Some(number) = self.add(body.clone()) else { return };
        if let Some(id) = name(id) {
            while self.calls.len() >= MOST_OPEN {
                self.calls.pop_first();
            }
            self.calls.insert(id, Open { number, body, subagent: self.subagent });
        }
    }

    /// A call of a tool ended; one that never began is nothing.
    pub(in crate::agent) fn ended(&mut self, id: &Value, how: &Ended<'_>) {
        self.end_flow();
        let Some(Open { number, body, subagent }) = name(id).and_then(|id| self.calls.remove(&id)) else {
            return;
        };
        let before = body.size();
        let after = call::ended(body, how);
        let grown = after.size().saturating_sub(before);
        if self.bytes.saturating_add(grown) > self.room.bytes {
            self.omitted = self.omitted.saturating_add(1);
            return;
        }
        self.bytes += grown;
        self.emit(number, subagent, after);
    }

    /// A call that is told when it is over.
    pub(in crate::agent) fn called(&mut self, tool: &str, input: &Value, how: &Ended<'_>) {
        self.end_flow();
        self.report.tools = self.report.tools.saturating_add(1);
        self.report.error = None;
        self.add(call::ended(call::call(tool, input), how));
    }

    pub(in crate::agent) fn entry(&mut self, body: EntryBody) {
        self.end_flow();
        self.add(body);
    }

    pub(in crate::agent) fn todos(&mut self, items: Vec<Todo>) {
        if !items.is_empty() {
            self.entry(EntryBody::Todos { items });
        }
    }

    /// It reported an error. Unless it does something after it, it failed.
    pub(in crate::agent) fn complained(&mut self, message: &str) {
        let message = cut(message.trim(), ERROR);
        let message = if message.is_empty() { "it reported an error without a text".into() } else { message };
        // Many say it twice: when it happens, and as their result.
        if self.report.error.as_ref() != Some(&message) {
            self.entry(EntryBody::Error { text: Text::head(&message, ERROR) });
        }
        self.report.error = Some(message);
    }

    /// It reported an error and goes on.
    pub(in crate::agent) fn warned(&mut self, message: &str) {
        self.entry(EntryBody::Error { text: Text::head(message.trim(), ERROR) });
    }

    pub(in crate::agent) fn retries(
        &mut self,
        reason: &str,
        attempt: Option<u64>,
        of: Option<u64>,
        wait_ms: Option<u64>,
    ) {
        self.entry(EntryBody::Retry { reason: cut(reason, REASON), attempt, of, wait_ms });
    }

    /// It says itself that all went well.
    pub(in crate::agent) fn succeeded(&mut self) {
        self.report.error = None;
    }

    /// Adds to the tokens so far.
    pub(in crate::agent) fn used(&mut self, tokens: Tokens) {
        if !tokens.is_none() {
            self.report.tokens.get_or_insert_default().add(tokens);
        }
    }

    /// Replaces the tokens so far by a total.
    pub(in crate::agent) fn used_in_all(&mut self, tokens: Tokens) {
        if !tokens.is_none() {
            self.report.tokens = Some(Tokens::default());
            self.used(tokens);
        }
    }

    /// Replaces the tokens so far by the total of a session, which may have begun in an earlier turn.
    pub(in crate::agent) fn used_in_session(&mut self, tokens: Tokens) {
        let Tokens { input, cached, output } = self.earlier;
        let is_part = tokens.input >= input && tokens.cached >= cached && tokens.output >= output;
        self.used_in_all(if is_part {
            Tokens {
                input: tokens.input - input,
                cached: tokens.cached - cached,
                output: tokens.output - output,
            }
        } else {
            tokens
        });
    }

    /// Dollars in all, or in addition to those before.
    pub(in crate::agent) fn cost(&mut self, dollars: Option<f64>, is_more: bool) {
        let Some(nanos) = dollars.and_then(nanos) else { return };
        let before = self.report.cost_nanos.filter(|_| is_more).unwrap_or_default();
        self.report.cost_nanos = Some(before.saturating_add(nanos));
    }

    /// Ends the turn: says which calls never ended, what was used and what was left out.
    pub(in crate::agent) fn close(&mut self) {
        self.end_flow();
        let mut open: Vec<Open> = std::mem::take(&mut self.calls).into_values().collect();
        open.sort_by_key(|open| open.number);
        for Open { number, body, subagent } in open {
            if !matches!(body, EntryBody::Todos { .. }) {
                self.emit(number, subagent, call::left_open(body));
            }
        }
        self.subagent = false;
        if self.report.tokens.is_some() || self.report.cost_nanos.is_some() {
            let Tokens { input, cached, output } = self.report.tokens.unwrap_or_default();
            #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
            let cost = self.report.cost_nanos.map(|nanos| nanos as f64 / 1e9);
            self.add(EntryBody::Usage {
                input_tokens: input,
                cached_tokens: cached,
                output_tokens: output,
                cost,
            });
        }
        if self.omitted > 0 {
            self.tell_omitted();
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "it is within bounds by then")]
fn nanos(dollars: f64) -> Option<i64> {
    (dollars.is_finite() && (0.0..=MOST_DOLLARS).contains(&dollars)).then(|| (dollars * 1e9).round() as i64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bodies(scribe: &mut Scribe) -> Vec<(u64, EntryBody)> {
        scribe.take().map(|change| (change.number, change.body)).collect()
    }

    #[test]
    fn what_has_no_room_is_counted_and_last_words_still_fit() {
        let mut scribe = Scribe::new(Room { entries: 3, bytes: 1 << 20 });
        for at in 0..10 {
            scribe.said(&format!("message {at}"));
        }
        scribe.complained("the end");
        scribe.used(Tokens { input: 1, cached: 0, output: 1 });
        scribe.close();
        let told = bodies(&mut scribe);
        let mut omitted = told.iter().filter(|(_, body)| matches!(body, EntryBody::Omitted { .. }));
        assert_eq!(
            omitted.clone().map(|(number, _)| *number).collect::<std::collections::BTreeSet<_>>().len(),
            1
        );
        assert_eq!(omitted.next_back(), Some(&(4, EntryBody::Omitted { entries: 7 })));
        assert!(told.iter().any(|(_, body)| matches!(body, EntryBody::Error { .. })));
        assert!(told.iter().any(|(_, body)| matches!(body, EntryBody::Usage { .. })));
        let mut small = Scribe::new(Room { entries: 100, bytes: 300 });
        small.said("x");
        small.said(&"y".repeat(500));
        small.close();
        assert_eq!(bodies(&mut small).last(), Some(&(2, EntryBody::Omitted { entries: 1 })));
    }

    #[test]
    fn pieces_become_one_entry_and_calls_get_their_ends() {
        let mut scribe = Scribe::new(Room::WHOLE);
        scribe.said_on("All ");
        scribe.said_on("good");
        scribe.call(&json!("c1"), "Bash", &json!({"command": "ls"}));
        scribe.said_on("Then");
        scribe.ended(&json!("c1"), &Ended { text: "a\n", exit_code: Some(2), ..Ended::default() });
        scribe.ended(&json!("c1"), &Ended::default());
        scribe.ended(&json!("unknown"), &Ended::default());
        scribe.call(&json!("c2"), "Task", &json!({}));
        scribe.close();
        let mut last = BTreeMap::new();
        let mut versions = 0;
        for change in scribe.take() {
            versions += 1;
            assert_eq!(change.version, versions, "each change has the next version");
            last.insert(change.number, change.body);
        }
        assert_eq!(last.len(), 4);
        assert_eq!(last[&1], EntryBody::Message { text: Text::head("All good", 100) });
        assert!(
            matches!(&last[&2], EntryBody::Command { exit_code: Some(2), output: Some(text), .. } if text.text == "a")
        );
        assert!(matches!(
            &last[&4],
            EntryBody::Tool { state: crate::agent::transcript::CallState::Unknown, .. }
        ));
        assert_eq!(scribe.last(), Some("it last used Task"));
    }

    #[test]
    fn endless_text_is_cut_with_a_word_about_it() {
        let mut scribe = Scribe::new(Room::WHOLE);
        for _ in 0..100 {
            scribe.said_on(&"é".repeat(1000));
        }
        scribe.close();
        let (number, EntryBody::Message { text }) = bodies(&mut scribe).pop().unwrap() else { panic!() };
        assert_eq!((number, text.text.len()), (1, MESSAGE));
        assert!(text.cut_bytes > 100_000, "{}", text.cut_bytes);
        for at in 0..1000 {
            scribe.line(&format!("line {at} {}", "x".repeat(100)));
        }
        let groups = bodies(&mut scribe);
        let numbers: std::collections::BTreeSet<u64> = groups.iter().map(|(number, _)| *number).collect();
        assert!((10..60).contains(&numbers.len()), "{}", numbers.len());
    }
}

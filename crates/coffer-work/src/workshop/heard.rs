//! Reads a running program's output: its end, and an agent's reported progress.

use std::time::Duration;

use coffer_core::agent::transcript::{Change, EntryBody};
use coffer_core::agent::{AgentProgress, AgentReader, AgentReport};
use coffer_core::clock::now_ms;
use coffer_core::{ExecutionId, Millis};
use coffer_wire::agentd::OutputStream;

use super::script::Script;
use crate::models::FailedAnswer;
use coffer_fleet::output::{Kind, LogRecord};

/// Bytes kept of the end of each stream, and of both together.
const MOST_KEPT: usize = 4096;
const MOST_OF_BOTH: usize = 16 * 1024;
const LAST_LINES: usize = 5;
const LONGEST_QUOTE: usize = 600;
const SHORTEST_QUIET: Duration = Duration::from_secs(3);
const LONGEST_QUIET: Duration = Duration::from_secs(30);

/// An agent's progress: its current action, and its usage so far.
pub(super) type Progress = (AgentProgress, AgentReport);

/// The pause between progress events for an agent of this age: seconds at first, and not thousands of events
/// in a day.
pub(super) fn quiet_for(age: Duration) -> Duration {
    (age / 20).clamp(SHORTEST_QUIET, LONGEST_QUIET)
}

/// The state of reading a program's output.
pub(super) struct Heard {
    pub(super) reader: Option<AgentReader>,
    /// Where its transcript goes.
    pub(super) script: Option<Script>,
    /// An agent's last action, and whether it was published.
    doing: AgentProgress,
    is_told: bool,
    /// Failed answers of its provider that were told, and that the agent may tell too.
    answers: u32,
    main: Vec<u8>,
    error: Vec<u8>,
    /// Both streams in their order.
    both: Vec<u8>,
    /// The time of the last record.
    at_ms: Millis,
}

/// Adds to the end of what is kept.
fn keep(end: &mut Vec<u8>, data: &[u8], most: usize) {
    end.extend_from_slice(data);
    if end.len() > 2 * most {
        end.drain(..end.len() - most);
    }
}

impl Heard {
    pub(super) fn new(reader: Option<AgentReader>, script: Option<Script>) -> Self {
        let doing = AgentProgress::default();
        let (main, error, both) = Default::default();
        Self { reader, script, doing, is_told: true, answers: 0, main, error, both, at_ms: 0 }
    }

    fn take(&mut self, stream: OutputStream, data: &[u8], at_ms: Millis) {
        let is_error = stream == OutputStream::Stderr;
        keep(if is_error { &mut self.error } else { &mut self.main }, data, MOST_KEPT);
        keep(&mut self.both, data, MOST_OF_BOTH);
        self.at_ms = at_ms;
        let Some(reader) = &mut self.reader else { return };
        let (doing, is_told, script) = (&mut self.doing, &mut self.is_told, &mut self.script);
        let answers = &mut self.answers;
        let mut tell = |change: Change| {
            if *answers > 0 && matches!(change.body, EntryBody::Retry { .. }) {
                *answers -= 1;
                return;
            }
            *is_told &= !doing.hear(&change.body);
            if let Some(script) = script {
                script.add(change, at_ms);
            }
        };
        if is_error { reader.push_error(data, &mut tell) } else { reader.push(data, &mut tell) }
    }

    /// Failed answers of the agent's provider: few agents tell why they wait.
    pub(super) fn hear_answers(&mut self, failed: Vec<FailedAnswer>) {
        for answer in failed {
            let attempt = Some(u64::from(answer.streak.times));
            let body = EntryBody::Retry { reason: answer.reason(), attempt, of: None, wait_ms: None };
            self.answers += 1;
            self.is_told &= !self.doing.hear(&body);
            if let Some(script) = &mut self.script {
                script.add_own(body, now_ms());
            }
        }
    }

    /// The end of an agent's output.
    pub(super) fn end(&mut self) -> AgentReport {
        let (at_ms, script) = (self.at_ms, &mut self.script);
        let Some(reader) = &mut self.reader else { return AgentReport::default() };
        reader.finish(&mut |change| {
            if let Some(script) = script {
                script.add(change, at_ms);
            }
        })
    }

    /// What an agent did last, in words.
    pub(super) fn last(&self) -> Option<String> {
        self.reader.as_ref()?.last().map(String::from)
    }

    /// The end of both streams, as it was written.
    pub(super) fn tail(&self) -> String {
        let start = self.both.len().saturating_sub(MOST_OF_BOTH);
        String::from_utf8_lossy(&self.both[start..]).into_owned()
    }

    /// An agent's progress, if it was not published yet.
    pub(super) fn news(&mut self) -> Option<Progress> {
        let report = self.reader.as_ref()?.report().clone();
        (!std::mem::replace(&mut self.is_told, true)).then(|| (self.doing.clone(), report))
    }

    pub(super) fn cost(&self) -> i64 {
        self.reader.as_ref().and_then(|reader| reader.report().cost_nanos).unwrap_or(0)
    }

    /// The last lines of stderr, or without any the last of stdout that are for people.
    pub(super) fn last_words(&self) -> Option<String> {
        let lines = |bytes: &[u8]| {
            let text: String =
                String::from_utf8_lossy(bytes).chars().filter(|c| *c == '\n' || !c.is_control()).collect();
            let is_for_people = |line: &&str| !line.is_empty() && !line.starts_with('{');
            let lines: Vec<&str> = text.lines().map(str::trim).filter(is_for_people).collect();
            let told = lines[lines.len().saturating_sub(LAST_LINES)..].join("; ");
            let skipped = told.chars().count().saturating_sub(LONGEST_QUOTE);
            let told: String = told.chars().skip(skipped).collect();
            Some(told).filter(|told| !told.is_empty())
        };
        lines(&self.error).or_else(|| lines(&self.main))
    }
}

/// Processes a record of the log; returns whether it is the end.
pub(super) fn hear(record: &LogRecord, execution: ExecutionId, heard: &mut Heard) -> bool {
    if record.execution != execution {
        return false;
    }
    match record.kind {
        Kind::Output(stream) => heard.take(stream, &record.data, record.time_ms),
        Kind::Ended => return true,
        Kind::Started | Kind::Gap(_) | Kind::Truncated | Kind::Code | Kind::Shown => {}
    }
    false
}

#[cfg(test)]
mod tests {
    use coffer_core::agent::OutputFormat;
    use coffer_core::model::Provider;

    use super::*;
    use crate::models::Streak;

    #[test]
    fn what_an_agent_does_is_told_once() {
        let mut heard = Heard::new(Some(AgentReader::new(OutputFormat::CodexStream)), None);
        assert_eq!(heard.news(), None);
        heard.take(
            OutputStream::Stdout,
            br#"{"type":"item.completed","item":{"type":"agent_message","text":"Hm."}}"#,
            1,
        );
        assert_eq!(heard.news(), None, "the line goes on");
        let end = b"\n{\"type\":\"turn.completed\",\"usage\":{\"input_tokens\":7}}\n";
        heard.take(OutputStream::Stdout, end, 2);
        heard.take(OutputStream::Stderr, b"complaints\n", 1);
        let (doing, report) = heard.news().unwrap();
        assert_eq!((doing.message.as_deref(), doing.tool), (Some("Hm."), None));
        assert_eq!(report.tokens.map(|tokens| tokens.input), Some(7));
        assert_eq!(heard.news(), None);
    }

    #[test]
    fn a_failed_answer_is_told_once_whether_its_agent_tells_it_or_not() {
        let mut heard = Heard::new(Some(AgentReader::new(OutputFormat::CodexStream)), None);
        let streak = Streak { status: Some(529), times: 1 };
        heard.hear_answers(vec![FailedAnswer { provider: Provider::OpenAi, streak }]);
        let told = heard.news().unwrap().0.message.unwrap();
        assert_eq!(told, "waiting for its model: provider `openai` answered 529 (overloaded)");
        let retry =
            |n: u32| format!("{{\"type\":\"error\",\"message\":\"Reconnecting... {n}/5 (no answer)\"}}\n");
        heard.take(OutputStream::Stdout, retry(1).as_bytes(), 1);
        assert_eq!(heard.news(), None, "it was told already");
        heard.take(OutputStream::Stdout, retry(2).as_bytes(), 1);
        assert!(heard.news().is_some(), "another reason of its own");
    }

    #[test]
    fn the_longer_an_agent_works_the_less_often_it_is_told_of() {
        let quiet = |seconds| quiet_for(Duration::from_secs(seconds)).as_secs();
        assert_eq!([0, 60, 200, 600, 86_400].map(quiet), [3, 3, 10, 30, 30]);
    }

    #[test]
    fn the_last_complaint_is_quoted() {
        let mut heard = Heard::new(None, None);
        assert_eq!(heard.last_words(), None);
        heard.take(OutputStream::Stdout, b"one\ntwo\x1b[0m\n", 1);
        assert_eq!(heard.last_words().as_deref(), Some("one; two[0m"));
        heard.take(OutputStream::Stderr, &b"x".repeat(100_000), 1);
        heard.take(OutputStream::Stderr, b"\nno key\n", 1);
        let told = heard.last_words().unwrap();
        assert!(told.ends_with("; no key") && told.chars().count() == LONGEST_QUOTE, "{told}");
        assert!(heard.error.len() <= 2 * MOST_KEPT);
    }
}

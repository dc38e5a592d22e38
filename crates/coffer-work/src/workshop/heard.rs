//! Reads a running program's output: its end, and an agent's reported progress.

use std::time::Duration;

use coffer_core::ExecutionId;
use coffer_core::agent::{AgentProgress, AgentReader, AgentReport};
use coffer_wire::agentd::OutputStream;

use coffer_fleet::output::{Kind, LogRecord};

/// Bytes kept of the end of each stream.
const MOST_KEPT: usize = 4096;
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
    /// An agent's last action, and whether it was published.
    doing: AgentProgress,
    is_told: bool,
    main: Vec<u8>,
    error: Vec<u8>,
}

impl Heard {
    pub(super) fn new(reader: Option<AgentReader>) -> Self {
        let doing = AgentProgress::default();
        Self { reader, doing, is_told: true, main: Vec::new(), error: Vec::new() }
    }

    fn take(&mut self, stream: OutputStream, data: &[u8]) {
        let end = if stream == OutputStream::Stderr { &mut self.error } else { &mut self.main };
        end.extend_from_slice(data);
        if end.len() > 2 * MOST_KEPT {
            end.drain(..end.len() - MOST_KEPT);
        }
        if let Some(reader) = self.reader.as_mut().filter(|_| stream != OutputStream::Stderr) {
            let (doing, is_told) = (&mut self.doing, &mut self.is_told);
            reader.push(data, &mut |event| *is_told &= !doing.hear(event));
        }
    }

    /// An agent's progress, if it was not published yet.
    pub(super) fn news(&mut self) -> Option<Progress> {
        let report = self.reader.as_ref()?.report().clone();
        (!std::mem::replace(&mut self.is_told, true)).then(|| (self.doing.clone(), report))
    }

    pub(super) fn cost(&self) -> i64 {
        self.reader.as_ref().and_then(|reader| reader.report().cost_nanos).unwrap_or(0)
    }

    /// The last lines of output, from stderr if it has any.
    pub(super) fn last_words(&self) -> Option<String> {
        let bytes =
            if self.error.iter().any(|byte| !byte.is_ascii_whitespace()) { &self.error } else { &self.main };
        let text: String =
            String::from_utf8_lossy(bytes).chars().filter(|c| *c == '\n' || !c.is_control()).collect();
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let told = lines[lines.len().saturating_sub(LAST_LINES)..].join("; ");
        let skipped = told.chars().count().saturating_sub(LONGEST_QUOTE);
        let told: String = told.chars().skip(skipped).collect();
        Some(told).filter(|told| !told.is_empty())
    }
}

/// Processes a record of the log; returns whether it is the end.
pub(super) fn hear(record: &LogRecord, execution: ExecutionId, heard: &mut Heard) -> bool {
    if record.execution != execution {
        return false;
    }
    match record.kind {
        Kind::Output(stream) => heard.take(stream, &record.data),
        Kind::Ended => return true,
        Kind::Started | Kind::Gap(_) | Kind::Truncated | Kind::Code | Kind::Shown => {}
    }
    false
}

#[cfg(test)]
mod tests {
    use coffer_core::agent::OutputFormat;

    use super::*;

    #[test]
    fn what_an_agent_does_is_told_once() {
        let mut heard = Heard::new(Some(AgentReader::new(OutputFormat::CodexStream)));
        assert_eq!(heard.news(), None);
        heard.take(
            OutputStream::Stdout,
            br#"{"type":"item.completed","item":{"type":"agent_message","text":"Hm."}}"#,
        );
        assert_eq!(heard.news(), None, "the line goes on");
        heard.take(OutputStream::Stdout, b"\n{\"type\":\"turn.completed\",\"usage\":{\"input_tokens\":7}}\n");
        heard.take(OutputStream::Stderr, b"complaints\n");
        let (doing, report) = heard.news().unwrap();
        assert_eq!((doing.message.as_deref(), doing.tool), (Some("Hm."), None));
        assert_eq!(report.tokens.map(|tokens| tokens.input), Some(7));
        assert_eq!(heard.news(), None);
    }

    #[test]
    fn the_longer_an_agent_works_the_less_often_it_is_told_of() {
        let quiet = |seconds| quiet_for(Duration::from_secs(seconds)).as_secs();
        assert_eq!([0, 60, 200, 600, 86_400].map(quiet), [3, 3, 10, 30, 30]);
    }

    #[test]
    fn the_last_complaint_is_quoted() {
        let mut heard = Heard::new(None);
        assert_eq!(heard.last_words(), None);
        heard.take(OutputStream::Stdout, b"one\ntwo\x1b[0m\n");
        assert_eq!(heard.last_words().as_deref(), Some("one; two[0m"));
        heard.take(OutputStream::Stderr, &b"x".repeat(100_000));
        heard.take(OutputStream::Stderr, b"\nno key\n");
        let told = heard.last_words().unwrap();
        assert!(told.ends_with("; no key") && told.chars().count() == LONGEST_QUOTE, "{told}");
        assert!(heard.error.len() <= 2 * MOST_KEPT);
    }
}

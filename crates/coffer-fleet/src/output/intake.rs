//! Turns a page of a journal into log records: redacted and capped output, and ends of executions.

use coffer_core::settings::ByteSize;
use coffer_store::{ExecutionRow, ExecutionState};
use coffer_wire::agentd::OutputStream;
use serde_json::json;

use super::batch::Batch;
use super::ended::CodeEnd;
use super::follow::{Running, State, Stream};
use super::record::Kind;
use super::redact::Patterns;
use super::subject::Subject;
use coffer_core::clock::now_ms;

/// Silent reads after which held-back output is released: soon if it is a few characters, later if it may be
/// a good part of a secret.
const SHORT_SILENCE: u32 = 1;
const LONG_SILENCE: u32 = 15;
const FEW: usize = 6;

/// Most processes in one answer whose further output agentd need not keep.
const MOST_MUTED: usize = 1024;

/// How to treat held-back output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Hold back what may become a secret.
    Hold,
    /// Release everything: nothing more comes.
    LetGo,
}

/// A page on its way into the log.
pub(super) struct Intake<'a> {
    pub(super) batch: Batch,
    /// Executions that ended.
    pub(super) over: Vec<ExecutionRow>,
    /// Executions that changed and are not in the state of the journal.
    pub(super) changed: Vec<ExecutionRow>,
    pub(super) mute: Vec<u32>,
    pub(super) patterns: &'a Patterns,
    /// Most bytes stored per execution.
    pub(super) most: i64,
}

impl<'a> Intake<'a> {
    /// For what comes after the log's newest segment.
    pub(super) fn new(record: &impl Subject, state: &State, patterns: &'a Patterns, most: ByteSize) -> Self {
        Self {
            batch: Batch::new(record.id(), record.project(), state.segment.clone()),
            over: Vec::new(),
            changed: Vec::new(),
            mute: Vec::new(),
            patterns,
            most: i64::try_from(most.as_bytes()).unwrap_or(i64::MAX),
        }
    }
}

impl Intake<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.over.is_empty() && self.batch.is_empty()
    }

    pub(super) fn output(
        &mut self,
        running: &mut Running,
        kind: OutputStream,
        position: i64,
        mut data: &[u8],
        journal_offset: u64,
        time_ms: i64,
    ) {
        let stream = running.stream(kind);
        let known = usize::try_from(stream.taken.saturating_sub(position)).unwrap_or(0);
        if known > 0 {
            // Some or all of it was received before.
            data = data.get(known..).unwrap_or_default();
            if data.is_empty() {
                return;
            }
        } else if position > stream.taken {
            self.gap(running, kind, position, time_ms);
        }
        running.changed = true;
        let over = running.row.kept_bytes() >= self.most;
        let length = i64::try_from(data.len()).unwrap_or(0);
        let stream = running.stream(kind);
        stream.kind = kind;
        stream.taken += length;
        stream.last_ms = time_ms;
        if over {
            running.row.lost_bytes += length;
            self.truncate(running, time_ms);
            progress(running, kind);
            return;
        }
        let held_before = stream.redactor.held();
        let sure = stream.redactor.push(self.patterns, data);
        let held = stream.redactor.held();
        stream.held_since = match held {
            0 => None,
            _ if held_before == 0 || held <= data.len() => Some(journal_offset),
            _ => stream.held_since,
        };
        self.keep(running, kind, &sure, time_ms);
    }

    /// Writes released output, up to the limit.
    fn keep(&mut self, running: &mut Running, kind: OutputStream, sure: &[u8], time_ms: i64) {
        let room = usize::try_from(self.most - running.row.kept_bytes()).unwrap_or(0);
        let kept = &sure[..sure.len().min(room)];
        let main = !matches!(kind, OutputStream::Stderr);
        if !kept.is_empty() {
            let of = if main { &mut running.row.main } else { &mut running.row.error };
            self.batch.add(Kind::Output(kind), running.row.id, of.kept, time_ms, kept);
            of.kept += i64::try_from(kept.len()).unwrap_or(0);
            running.changed = true;
        }
        progress(running, kind);
        if kept.len() < sure.len() {
            running.row.lost_bytes += i64::try_from(sure.len() - kept.len()).unwrap_or(0);
            self.truncate(running, time_ms);
        }
    }

    /// From here on the execution's output is counted, but not stored.
    fn truncate(&mut self, running: &mut Running, time_ms: i64) {
        if !running.row.truncated {
            running.row.truncated = true;
            running.changed = true;
            self.batch.add(Kind::Truncated, running.row.id, running.row.kept_bytes(), time_ms, &[]);
        }
        if let Some(process) = running.row.process
            && self.mute.len() < MOST_MUTED
            && !self.mute.contains(&process.pid)
        {
            self.mute.push(process.pid);
        }
    }

    /// The stream's output up to `position` was dropped before it was read.
    fn gap(&mut self, running: &mut Running, kind: OutputStream, position: i64, time_ms: i64) {
        self.flush(running, kind, time_ms);
        let stream = running.stream(kind);
        let missed = position - stream.taken;
        stream.taken = position;
        running.changed = true;
        running.row.lost_bytes = running.row.lost_bytes.saturating_add(missed);
        let offset = match kind {
            OutputStream::Stderr => running.row.error.kept,
            OutputStream::Stdout | OutputStream::Pty => running.row.main.kept,
        };
        if !running.row.truncated {
            self.batch.add(Kind::Gap(kind), running.row.id, offset, time_ms, &missed.to_le_bytes());
        }
        progress(running, kind);
    }

    /// Writes the held-back output of a stream.
    fn flush(&mut self, running: &mut Running, kind: OutputStream, time_ms: i64) {
        let patterns = self.patterns;
        let stream = running.stream(kind);
        stream.held_since = None;
        if stream.redactor.held() > 0 {
            let sure = stream.redactor.flush(patterns);
            running.changed = true;
            self.keep(running, kind, &sure, time_ms);
        }
    }

    /// Writes output that was held back long enough.
    pub(super) fn let_go(&mut self, running: &mut Running, rest: Rest, silences: u32) {
        for kind in [running.main.kind, OutputStream::Stderr] {
            let Stream { redactor, last_ms, .. } = running.stream(kind);
            let enough = match redactor.held() {
                0 => false,
                _ if rest == Rest::LetGo => true,
                _ if redactor.is_in_a_block() => false,
                held if held < FEW => silences >= SHORT_SILENCE,
                _ => silences >= LONG_SILENCE,
            };
            if enough {
                let last_ms = *last_ms;
                self.flush(running, kind, last_ms);
            }
        }
    }

    pub(super) fn end(
        &mut self,
        mut running: Running,
        exit_code: i32,
        status: &str,
        untold: u64,
        time_ms: i64,
    ) {
        self.flush_all(&mut running, time_ms);
        let row = &mut running.row;
        let untold = i64::try_from(untold).unwrap_or(i64::MAX);
        row.lost_bytes = row.lost_bytes.saturating_add(untold);
        row.main.read = row.main.read.saturating_add(untold);
        row.state = ExecutionState::Exited;
        row.exit_code = Some(exit_code.into());
        let status = self.redacted_status(status);
        let pid = row.process.map(|process| process.pid);
        let data = json!({ "pid": pid, "exit_code": exit_code, "status": status }).to_string();
        row.status = Some(status);
        row.ended_ms = Some(time_ms);
        self.batch.add(Kind::Ended, row.id, row.kept_bytes(), time_ms, data.as_bytes());
        self.over.push(running.row);
    }

    /// How code ended. It has no process, and its kernel counts executions.
    pub(super) fn end_code(&mut self, mut running: Running, end: &CodeEnd, time_ms: i64) {
        self.flush_all(&mut running, time_ms);
        let row = &mut running.row;
        row.state = end.state;
        row.exit_code = end.exit_code;
        let status = self.redacted_status(&end.status);
        let data =
            json!({ "exit_code": end.exit_code, "status": status, "execution_count": end.execution_count });
        row.status = Some(status);
        row.ended_ms = Some(time_ms);
        self.batch.add(Kind::Ended, row.id, row.kept_bytes(), time_ms, data.to_string().as_bytes());
        self.over.push(running.row);
    }

    fn redacted_status(&self, status: &str) -> String {
        let status: String = status.chars().take(200).collect();
        self.patterns.redact(&status)
    }

    /// Records that the end of an execution is unknown.
    pub(super) fn lose(&mut self, mut running: Running) {
        let now = now_ms();
        self.flush_all(&mut running, now);
        let row = &mut running.row;
        row.state = ExecutionState::Lost;
        row.status = Some("its end is unknown".into());
        row.ended_ms = Some(now);
        self.over.push(running.row);
    }

    fn flush_all(&mut self, running: &mut Running, time_ms: i64) {
        let main = running.main.kind;
        self.flush(running, main, time_ms);
        self.flush(running, OutputStream::Stderr, time_ms);
    }
}

/// Updates how far a stream is stored: held-back output is not.
fn progress(running: &mut Running, kind: OutputStream) {
    let stream = running.stream(kind);
    let read = stream.taken - i64::try_from(stream.redactor.held()).unwrap_or(0);
    match kind {
        OutputStream::Stderr => running.row.error.read = read,
        OutputStream::Stdout | OutputStream::Pty => running.row.main.read = read,
    }
}

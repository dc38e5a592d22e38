//! Code that runs: followed to its end, recorded, and told to its caller.

use std::time::Duration;

use coffer_guest::GuestError;
use coffer_guest::interpreter::{Line, Lines};
use coffer_store::ExecutionState;
use coffer_wire::agentd::OutputStream;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::CodeError;
use crate::fleet::Record;
use crate::output::{CodeEnd, CodeLog};

/// What code does next.
#[derive(Debug)]
pub enum Step {
    Stdout(String),
    Stderr(String),
    /// A result, as the interpreter wrote it.
    Result(Box<RawValue>),
    /// An error of the code, as the interpreter wrote it.
    Error(Box<RawValue>),
    /// The last one.
    Ended(CodeEnded),
    /// The last one: how the code ended is unknown.
    Failed(CodeError),
}

/// How code ended.
#[derive(Debug, Clone, Default)]
pub struct CodeEnded {
    /// The number that its kernel gave it.
    pub execution_count: Option<u64>,
    /// Whether it raised an error.
    pub failed: bool,
    pub timed_out: bool,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// How many results the caller got.
    pub results: u64,
    /// Bytes of output and results that the caller did not get.
    pub dropped_bytes: u64,
    pub duration: Duration,
}

/// Why following ended.
enum Over {
    Ended,
    TimedOut,
    /// Nobody takes the steps any more.
    Left,
    Failed(GuestError),
}

pub(super) struct Following {
    lines: Lines,
    log: CodeLog<Record>,
    steps: Sender<Step>,
    /// How many bytes the caller still gets.
    left: usize,
    timeout: Duration,
    ended: CodeEnded,
    /// The name of the error.
    error: Option<String>,
}

impl Following {
    pub(super) fn new(
        lines: Lines,
        log: CodeLog<Record>,
        steps: Sender<Step>,
        most: usize,
        timeout: Duration,
    ) -> Self {
        Self { lines, log, steps, left: most, timeout, ended: CodeEnded::default(), error: None }
    }

    /// Follows the code to its end, and no longer than `until`.
    pub(super) async fn follow(mut self, started: Instant, until: Instant) {
        let over = self.lines_until_over(until).await;
        let Self { lines, log, steps, timeout, mut ended, error, .. } = self;
        // Interrupts what still runs.
        drop(lines);
        ended.duration = started.elapsed();
        let end = |state, exit_code, status| CodeEnd {
            state,
            exit_code,
            status,
            execution_count: ended.execution_count,
        };
        let (end, last) = match over {
            Over::Ended => {
                let status = error.map_or_else(|| "ok".to_string(), |name| format!("error: {name}"));
                (end(ExecutionState::Exited, Some(i64::from(ended.failed)), status), Ok(()))
            }
            Over::TimedOut => {
                ended.timed_out = true;
                let status = format!("interrupted after {} s, its timeout", timeout.as_secs());
                (end(ExecutionState::Exited, None, status), Ok(()))
            }
            Over::Left => {
                (end(ExecutionState::Exited, None, "interrupted: its client left".to_string()), Ok(()))
            }
            Over::Failed(error) => (end(ExecutionState::Lost, None, error.to_string()), Err(error)),
        };
        // On disk before the caller is told.
        log.end(end).await;
        let last = last.map_or_else(|error| Step::Failed(error.into()), |()| Step::Ended(ended));
        let _gone = steps.send(last).await;
    }

    async fn lines_until_over(&mut self, until: Instant) -> Over {
        loop {
            let due = self.log.due();
            let line = tokio::select! {
                biased;
                () = self.steps.closed() => return Over::Left,
                () = sleep_until(until) => return Over::TimedOut,
                () = sleep_until(due.unwrap_or(until)), if due.is_some() => {
                    self.log.flush().await;
                    continue;
                }
                line = self.lines.next() => line,
            };
            let step = match line {
                Ok(Line::End) => return Over::Ended,
                Ok(line) => self.take(line),
                Err(error) => return Over::Failed(error),
            };
            if let Some(step) = step {
                match timeout_at(until, self.steps.send(step)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Over::Left,
                    // A caller that reads nothing must not keep the code running.
                    Err(_) => return Over::TimedOut,
                }
            }
        }
    }

    /// Records a line; returns it if the caller gets it.
    fn take(&mut self, line: Line) -> Option<Step> {
        match line {
            Line::Stdout(text) => {
                self.ended.stdout_bytes += text.len() as u64;
                self.log.output(OutputStream::Stdout, text.clone());
                self.fitting(text).map(Step::Stdout)
            }
            Line::Stderr(text) => {
                self.ended.stderr_bytes += text.len() as u64;
                self.log.output(OutputStream::Stderr, text.clone());
                self.fitting(text).map(Step::Stderr)
            }
            Line::Result(json) => {
                self.log.shown(json.get());
                let fits = self.take_room(json.get().len());
                self.ended.results += u64::from(fits);
                fits.then_some(Step::Result(json))
            }
            Line::Error(json) => {
                self.log.shown(json.get());
                // Callers decide by the first, so they get it in any case.
                let is_first = !std::mem::replace(&mut self.ended.failed, true);
                self.error.get_or_insert_with(|| name_of(&json));
                (is_first || self.take_room(json.get().len())).then_some(Step::Error(json))
            }
            Line::Count(count) => {
                self.ended.execution_count = Some(count);
                None
            }
            Line::Skipped(bytes) => {
                self.ended.dropped_bytes += bytes;
                None
            }
            Line::Nothing | Line::End => None,
        }
    }

    fn take_room(&mut self, bytes: usize) -> bool {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                true
            }
            None => {
                self.ended.dropped_bytes += bytes as u64;
                false
            }
        }
    }

    /// The part of a text for which there is room.
    fn fitting(&mut self, mut text: String) -> Option<String> {
        let fits = text.floor_char_boundary(self.left.min(text.len()));
        self.ended.dropped_bytes += (text.len() - fits) as u64;
        self.left -= fits;
        text.truncate(fits);
        Some(text).filter(|text| !text.is_empty())
    }
}

/// The name and the value of an error, short, for people.
fn name_of(json: &RawValue) -> String {
    #[derive(Deserialize, Default)]
    struct Named {
        #[serde(default)]
        name: String,
        #[serde(default)]
        value: String,
    }
    let Named { name, value } = serde_json::from_str(json.get()).unwrap_or_default();
    let text: String =
        format!("{name}: {value}").chars().filter(|letter| !letter.is_control()).take(150).collect();
    text
}

//! Stores what code in a sandbox's code interpreter does: the code, its output, its results, its end.
//!
//! It comes from the task that follows the code, not from agentd's journal, and goes into the same log: so the log
//! has the order of a notebook, and all rules of the log apply.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::ExecutionId;
use coffer_core::clock::now_ms;
use coffer_store::{ExecutionRow, NewExecution, StoreError};
use coffer_wire::agentd::OutputStream;
use tokio::time::Instant;

use super::collector::CollectError;
use super::ended::CodeEnd;
use super::follow::Running;
use super::intake::Intake;
use super::record::Kind;
use super::redact_json::redact_json;
use super::{Output, Subject};

/// What waits is written when it is this much, or this old.
const MOST_WAITING: usize = 64 << 10;
const LONGEST_WAIT: Duration = Duration::from_millis(250);

/// The record of code that runs. [`end`](Self::end) must be called; if the server dies before, its successor ends it.
#[derive(Debug)]
pub struct CodeLog<S> {
    output: Arc<Output>,
    record: Arc<S>,
    running: Running,
    waiting: Vec<Piece>,
    waiting_bytes: usize,
    waits_since: Option<Instant>,
    /// How much code and how many results may still be stored.
    room: usize,
}

#[derive(Debug)]
enum Piece {
    Code(String),
    Output(OutputStream, String),
    Shown(String),
}

impl Output {
    /// Records code before it runs; `new.command` is all of it. Of the code and its results, `room` bytes are stored.
    pub(crate) async fn begin_code<S: Subject>(
        self: &Arc<Self>,
        record: &Arc<S>,
        mut new: NewExecution,
        room: usize,
    ) -> Result<CodeLog<S>, StoreError> {
        new.command = self.patterns_in(record).redact(&new.command);
        let code = new.command.clone();
        let row = ExecutionRow::new(new, record.project(), record.id(), record.agent(), now_ms());
        self.store.begin_execution(row.clone()).await?;
        let mut log = CodeLog {
            output: self.clone(),
            record: record.clone(),
            running: Running::new(row),
            waiting: Vec::new(),
            waiting_bytes: 0,
            waits_since: None,
            room,
        };
        if log.take_room(code.len()) {
            log.wait(code.len(), Piece::Code(code));
        }
        Ok(log)
    }

    /// Ends what earlier servers left running, once.
    pub(super) async fn lose_code(&self, before_ms: i64) -> Result<(), StoreError> {
        let lost = self.store.lose_code_executions(before_ms, now_ms()).await?;
        if lost > 0 {
            tracing::info!("ended {lost} executions of code that the server's last stop interrupted");
        }
        Ok(())
    }
}

impl<S: Subject> CodeLog<S> {
    pub fn id(&self) -> ExecutionId {
        self.running.row.id
    }

    /// Adds output.
    pub fn output(&mut self, stream: OutputStream, text: String) {
        self.wait(text.len(), Piece::Output(stream, text));
    }

    /// Adds a result or an error, as JSON; one that does not fit is left out and counted.
    pub fn shown(&mut self, json: &str) {
        if self.take_room(json.len()) {
            self.wait(json.len(), Piece::Shown(json.to_string()));
        }
    }

    fn take_room(&mut self, bytes: usize) -> bool {
        match self.room.checked_sub(bytes) {
            Some(left) => {
                self.room = left;
                true
            }
            None => {
                let row = &mut self.running.row;
                row.lost_bytes = row.lost_bytes.saturating_add(i64::try_from(bytes).unwrap_or(i64::MAX));
                row.truncated = true;
                false
            }
        }
    }

    fn wait(&mut self, bytes: usize, piece: Piece) {
        self.waiting_bytes += bytes;
        self.waits_since.get_or_insert_with(Instant::now);
        self.waiting.push(piece);
    }

    /// When what waits has to be written, if anything waits.
    pub fn due(&self) -> Option<Instant> {
        if self.waiting_bytes >= MOST_WAITING {
            return self.waits_since;
        }
        self.waits_since.map(|since| since + LONGEST_WAIT)
    }

    /// Writes what waits. A failure is logged: the code runs on, and its output still reaches its caller.
    pub async fn flush(&mut self) {
        if let Err(error) = self.write(None).await {
            tracing::warn!(sandbox.id = %self.record.id(), "could not store output of code: {}", coffer_core::chain(&error));
        }
    }

    /// Writes the rest and the end.
    pub async fn end(mut self, end: CodeEnd) {
        if let Err(error) = self.write(Some(&end)).await {
            tracing::warn!(sandbox.id = %self.record.id(), "could not store the end of code: {}", coffer_core::chain(&error));
            let (id, execution) = (self.record.id(), self.id());
            let status = self.output.patterns_in(&self.record).redact(&end.status);
            let ended =
                self.output.store.end_executions(id, Some(execution), end.state, &status, now_ms()).await;
            if let Err(error) = ended {
                tracing::warn!(sandbox.id = %id, "could not record that code ended: {error}");
            }
        }
    }

    async fn write(&mut self, end: Option<&CodeEnd>) -> Result<(), CollectError> {
        let (output, record) = (self.output.clone(), self.record.clone());
        let waiting = std::mem::take(&mut self.waiting);
        (self.waiting_bytes, self.waits_since) = (0, None);
        let _place = output.redaction.take(record.project()).await.map_err(std::io::Error::other)?;
        let mut guard = record.follow().state.clone().lock_owned().await;
        let mut state = match guard.take() {
            Some(state) => state,
            None => output.load(&record).await?,
        };
        let patterns = output.patterns_in(&record);
        let mut intake = Intake::new(&record, &state, &patterns, output.settings.most_per_execution);
        let (now, position) = (now_ms(), intake.batch.position());
        let running = &mut self.running;
        let id = running.row.id;
        running.row.positions.get_or_insert((position, position));
        for piece in waiting {
            tokio::task::consume_budget().await;
            match piece {
                Piece::Code(code) => intake.batch.add(Kind::Code, id, 0, now, code.as_bytes()),
                Piece::Shown(json) => {
                    let json = redact_json(&patterns, &json);
                    intake.batch.add(Kind::Shown, id, 0, now, json.as_bytes());
                }
                Piece::Output(stream, text) => {
                    let taken = running.stream(stream).taken;
                    intake.output(running, stream, taken, text.as_bytes(), 0, now);
                }
            }
        }
        match end {
            Some(end) => {
                let row = running.row.clone();
                let running = std::mem::replace(running, Running::new(row));
                intake.end_code(running, end, now);
            }
            None => intake.changed.push(running.row.clone()),
        }
        output.commit(&record, &mut state, intake, None).await?;
        *guard = Some(state);
        Ok(())
    }
}

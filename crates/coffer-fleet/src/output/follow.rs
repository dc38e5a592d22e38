//! The state of following one sandbox's journal.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use coffer_core::ExecutionId;
use coffer_core::sync::Mutex;
use coffer_store::{ExecutionRow, NewExecution, SegmentRow};
use coffer_wire::agentd::OutputStream;

use super::redact::Redactor;

/// Most announced executions without a process; far more than any client starts at once.
const MOST_ANNOUNCED: usize = 1024;

/// For a live sandbox: whether its journal is being followed, and up to where it was read.
#[derive(Debug, Default)]
pub struct Follow {
    /// Whether the sandbox was ever used.
    used: AtomicBool,
    active: AtomicBool,
    /// Locked while reading and writing; empty until the first read and after a failure.
    pub(super) state: Arc<tokio::sync::Mutex<Option<State>>>,
    announced: Mutex<HashMap<ExecutionId, NewExecution>>,
}

impl Follow {
    /// Returns whether a task has to be started for it.
    pub(super) fn begin(&self) -> bool {
        if self.active.load(Ordering::Relaxed) {
            return false;
        }
        self.used.store(true, Ordering::Relaxed);
        !self.active.swap(true, Ordering::AcqRel)
    }

    pub(super) fn end(&self) {
        self.active.store(false, Ordering::Release);
    }

    pub(super) fn was_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn announce(&self, new: NewExecution) {
        let mut announced = self.announced.lock();
        if announced.len() < MOST_ANNOUNCED {
            announced.insert(new.id, new);
        }
    }

    pub(super) fn has_announced(&self) -> bool {
        !self.announced.lock().is_empty()
    }

    pub(super) fn forget(&self, execution: ExecutionId) -> Option<NewExecution> {
        self.announced.lock().remove(&execution)
    }
}

/// How far a journal is stored, and its running processes.
#[derive(Debug)]
pub(super) struct State {
    /// The start of agentd; `None` before the first.
    pub(super) boot: Option<i64>,
    /// Every record before this is stored.
    pub(super) next: u64,
    /// Whether to read the journal from its beginning: it has what an earlier server held back.
    pub(super) is_fresh: bool,
    /// By pid.
    pub(super) running: HashMap<u32, Running>,
    /// The end of the log; `None` if nothing was ever written.
    pub(super) segment: Option<SegmentRow>,
    /// Bytes of the log on disk.
    pub(super) on_disk: i64,
    /// The number of executions so far.
    pub(super) seen: usize,
    /// Consecutive reads that found nothing.
    pub(super) silences: u32,
}

/// A process that has not ended.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) row: ExecutionRow,
    pub(super) main: Stream,
    pub(super) error: Stream,
    /// Whether it changed since it was recorded.
    pub(super) changed: bool,
}

/// One output stream of a process.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) kind: OutputStream,
    /// Bytes received so far.
    pub(super) taken: i64,
    pub(super) redactor: Redactor,
    /// The journal record that the oldest held-back byte came with.
    pub(super) held_since: Option<u64>,
    pub(super) last_ms: i64,
}

impl Running {
    pub(super) fn new(row: ExecutionRow) -> Self {
        let stream = |kind, taken| Stream {
            kind,
            taken,
            redactor: Redactor::default(),
            held_since: None,
            last_ms: row.started_ms,
        };
        let main = stream(OutputStream::Stdout, row.main.read);
        let error = stream(OutputStream::Stderr, row.error.read);
        Self { row, main, error, changed: true }
    }

    pub(super) const fn stream(&mut self, kind: OutputStream) -> &mut Stream {
        match kind {
            OutputStream::Stdout | OutputStream::Pty => &mut self.main,
            OutputStream::Stderr => &mut self.error,
        }
    }

    pub(super) const fn is_holding(&self) -> bool {
        self.main.redactor.held() + self.error.redactor.held() > 0
    }
}

impl State {
    /// The first record that agentd has to keep, if all before `next` were received.
    pub(super) fn needed_from(&self) -> u64 {
        let held =
            self.running.values().flat_map(|running| [running.main.held_since, running.error.held_since]);
        held.flatten().min().unwrap_or(self.next).min(self.next)
    }

    pub(super) fn is_holding(&self) -> bool {
        self.running.values().any(Running::is_holding)
    }
}

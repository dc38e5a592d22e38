//! Stores executions and the output of processes.
//!
//! ```text
//! agentd's journal ──> collector ──> redactor ──> segment files ──> index, executions, events ──> ack
//!                      (a task for each sandbox        synced            one transaction
//!                       that is in use)
//! ```
//!
//! A sandbox's log is one sequence of bytes over all its segments, and a position in it always identifies the
//! same record: streams resume by it. The index in the database decides what exists; a crash at any point
//! leaves either the record or the journal's copy of it.

mod archive;
mod batch;
mod code;
mod collector;
mod ended;
mod files;
mod follow;
mod hidden;
mod intake;
mod record;
mod redact;
mod redact_json;
mod subject;
mod tail;
mod tails;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use code::CodeLog;
use coffer_core::settings::{ByteSize, Period};
use coffer_core::sync::{Mutex, RwLock};
use coffer_core::{ExecutionId, Millis, ProjectId, SandboxId};
use coffer_shares::{Shares, pool};
use coffer_store::{
    ExecutionRow, ExecutionState, NewExecution, Scope, SegmentRow, SegmentState, Store, StoreError,
};
pub use ended::CodeEnd;
pub use follow::Follow;
pub use hidden::Hidden;
pub use record::{Kind, LogRecord};
pub use redact::{Patterns, Redactor};
use serde::{Deserialize, Serialize};
pub use subject::Subject;
pub use tail::Reader;
use tails::Tails;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::limits::Limiter;
use coffer_core::clock::now_ms;
use coffer_shares::PoolSettings;
use coffer_telemetry::Telemetry;
use files::{Contents, Files};
use record::Records;

/// Most segments of an index that are read, and most that are scanned for one answer.
const MOST_SEGMENTS: u32 = 4096;
const MOST_SCANNED: usize = 64;

/// `[output]`: how much output of processes is stored, and for how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OutputSettings {
    /// Stored output of one execution; the rest is only counted.
    pub most_per_execution: ByteSize,
    /// Stored output of one sandbox; the oldest is deleted first.
    pub most_per_sandbox: ByteSize,
    /// When the log of a sandbox is compressed, counted from its last record.
    pub archive_after: Period,
    /// When the log is deleted, unless the project's retention says otherwise.
    pub prune_after: Period,
}

impl Default for OutputSettings {
    fn default() -> Self {
        Self {
            most_per_execution: ByteSize::mib(16),
            most_per_sandbox: ByteSize::mib(256),
            archive_after: Period::secs(86_400),
            prune_after: Period::secs(30 * 86_400),
        }
    }
}

/// The redaction patterns of each project.
pub type Values = Arc<dyn Fn(ProjectId) -> Arc<Patterns> + Send + Sync>;

/// The output log of every sandbox.
pub struct Output {
    store: Store,
    files: Files,
    /// Pages being redacted and written.
    redaction: Shares<ProjectId>,
    settings: OutputSettings,
    values: RwLock<Values>,
    tails: Mutex<Tails>,
    telemetry: Arc<Telemetry>,
    limiter: Arc<Limiter>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The direction in which a log is read.
#[derive(Debug, Clone, Copy)]
pub enum Way {
    Forward { from_ms: Millis },
    Backward { from_ms: Millis },
}

impl Way {
    /// Whether the segment may have matching records.
    const fn crosses(self, segment: &SegmentRow) -> bool {
        match self {
            Self::Forward { from_ms } => segment.last_ms >= from_ms,
            Self::Backward { from_ms } => segment.first_ms <= from_ms,
        }
    }
}

/// Part of a sandbox's log.
#[derive(Debug, Default)]
pub struct LogPage {
    pub records: Vec<LogRecord>,
    /// The position to continue from.
    pub next: i64,
    /// Whether the log ends there now.
    pub at_end: bool,
    /// Bytes of the log before the first record that were deleted or damaged.
    pub missing: i64,
}

impl Output {
    /// Stores its files in `dir`; all work ends with `stop`.
    pub fn new(
        store: Store,
        dir: &Path,
        settings: OutputSettings,
        pools: &PoolSettings,
        telemetry: Arc<Telemetry>,
        limiter: Arc<Limiter>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let known = Arc::new(Patterns::default());
        let output = Arc::new(Self {
            store,
            files: Files::new(dir, pools.shares(pool::LOG_FILES)),
            redaction: pools.shares(pool::REDACTION),
            settings,
            values: RwLock::new(Arc::new(move |_| known.clone())),
            tails: Mutex::default(),
            telemetry,
            limiter,
            tasks: TaskTracker::new(),
            stop,
        });
        output.tasks.spawn(output.clone().keep_house(now_ms()));
        output
    }

    /// Runs a background task that belongs to the output of a command. A stop cuts it short: it may wait for
    /// the command.
    pub(crate) fn spawn_until_stop(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move { stop.run_until_cancelled(work).await });
    }

    /// Waits for writes in progress, after `stop` was cancelled.
    pub async fn finish(&self, patience: Duration) {
        self.tasks.close();
        if tokio::time::timeout(patience, self.tasks.wait()).await.is_err() {
            tracing::warn!("gave up waiting for output to be written");
        }
    }

    /// Sets the source of redaction patterns.
    pub fn look_for(&self, values: Values) {
        *self.values.write() = values;
    }

    /// The redaction patterns of a project.
    pub fn patterns(&self, project: ProjectId) -> Arc<Patterns> {
        let values = self.values.read().clone();
        values(project)
    }

    /// The redaction patterns of a sandbox.
    pub fn patterns_in(&self, record: &impl Subject) -> Arc<Patterns> {
        record.hidden().beside(self.patterns(record.project()))
    }

    /// Records an execution that our own API is about to start. Its id must be the tag of the process in
    /// agentd.
    pub async fn announce(
        self: &Arc<Self>,
        record: &Arc<impl Subject>,
        mut new: NewExecution,
    ) -> Result<(), StoreError> {
        let patterns = self.patterns_in(record);
        new.command = patterns.redact(&new.command);
        new.cwd = new.cwd.map(|cwd| patterns.redact(&cwd));
        record.follow().announce(new.clone());
        self.wake(record);
        let row = ExecutionRow::new(new, record.project(), record.id(), record.agent(), now_ms());
        self.store.begin_execution(row).await
    }

    /// Records that an announced execution did not start.
    pub async fn abandon(
        &self,
        record: &impl Subject,
        execution: ExecutionId,
        why: &str,
    ) -> Result<(), StoreError> {
        record.follow().forget(execution);
        let why = self.patterns_in(record).redact(why);
        let ended =
            self.store.end_executions(record.id(), Some(execution), ExecutionState::Failed, &why, now_ms());
        ended.await.map(drop)
    }

    /// Passes the log's records to `visit` until it breaks, from a time on, forwards or backwards.
    pub async fn scan(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
        way: Way,
        mut visit: impl FnMut(LogRecord) -> ControlFlow<()> + Send,
    ) -> Result<(), StoreError> {
        let mut segments = self.store.segments(scope, sandbox, 0, MOST_SEGMENTS).await?;
        segments.retain(|segment| segment.state != SegmentState::Pruned && way.crosses(segment));
        if matches!(way, Way::Backward { .. }) {
            segments.reverse();
        }
        segments.truncate(MOST_SCANNED);
        for segment in segments {
            let Ok(Contents::Here(bytes)) = self.files.read(&segment).await else { continue };
            let mut records: Vec<LogRecord> =
                Records::new(&bytes, segment.first_position, 0).map_while(Result::ok).collect();
            if matches!(way, Way::Backward { .. }) {
                records.reverse();
            }
            if records.into_iter().try_for_each(&mut visit).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Reads up to about `most` bytes of a sandbox's log from a position on.
    pub async fn read(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
        from: i64,
        most: usize,
    ) -> Result<LogPage, StoreError> {
        let mut page = LogPage { next: from, ..LogPage::default() };
        let mut size = 0;
        let segments = self.store.segments(scope, sandbox, from, 8).await?;
        page.at_end = segments.len() < 8;
        for segment in segments {
            if size >= most {
                page.at_end = false;
                break;
            }
            let contents = match segment.state {
                SegmentState::Pruned => Contents::Missing,
                SegmentState::Plain | SegmentState::Archived => {
                    self.files.read(&segment).await.unwrap_or_else(|error| {
                        tracing::warn!(sandbox.id = %sandbox, "could not read the output log: {error}");
                        Contents::Missing
                    })
                }
            };
            let Contents::Here(bytes) = contents else {
                if page.records.is_empty() {
                    page.missing += segment.end() - page.next.max(segment.first_position);
                    page.next = segment.end();
                    continue;
                }
                // The page that begins there reports it.
                page.at_end = false;
                break;
            };
            for record in Records::new(&bytes, segment.first_position, from) {
                let Ok(record) = record else {
                    tracing::warn!(sandbox.id = %sandbox, "segment {} is damaged", segment.number);
                    break;
                };
                if size >= most {
                    page.at_end = false;
                    return Ok(page);
                }
                size += LogRecord::size(record.data.len());
                page.next = record.next;
                page.records.push(record);
            }
            // Also if the rest of the segment is damaged.
            page.next = segment.end();
        }
        Ok(page)
    }
}

//! Records on their way into the log, for one sync and one transaction.

use bytes::Bytes;
use coffer_core::{ExecutionId, Millis, ProjectId, SandboxId};
use coffer_store::{SegmentRow, SegmentState};

use super::files::Addition;
use super::record::{Kind, LogRecord, MOST_DATA};

/// The size at which a new segment begins.
const SEGMENT: i64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Batch {
    sandbox: SandboxId,
    project: ProjectId,
    segment: Option<SegmentRow>,
    /// The record that may still grow.
    open: Option<Open>,
    pub(super) additions: Vec<Addition>,
    /// The changed segments, including the additions.
    pub(super) segments: Vec<SegmentRow>,
    pub(super) records: Vec<LogRecord>,
}

#[derive(Debug)]
struct Open {
    kind: Kind,
    execution: ExecutionId,
    offset: i64,
    time_ms: Millis,
    data: Vec<u8>,
}

impl Batch {
    /// Continues after `segment`.
    pub(super) const fn new(sandbox: SandboxId, project: ProjectId, segment: Option<SegmentRow>) -> Self {
        Self {
            sandbox,
            project,
            segment,
            open: None,
            additions: Vec::new(),
            segments: Vec::new(),
            records: Vec::new(),
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.open.is_none() && self.records.is_empty()
    }

    /// The position of the next record; an open record may move it further.
    pub(super) fn position(&self) -> i64 {
        self.segment.as_ref().map_or(0, SegmentRow::end)
    }

    /// Appends output; output that continues the last record is merged into it.
    pub(super) fn add(
        &mut self,
        kind: Kind,
        execution: ExecutionId,
        offset: i64,
        time_ms: Millis,
        mut data: &[u8],
    ) {
        let mut offset = offset;
        loop {
            let goes_on = self.open.as_ref().is_some_and(|open| {
                matches!(kind, Kind::Output(_))
                    && (open.kind, open.execution) == (kind, execution)
                    && open.data.len() < MOST_DATA
                    && open.offset + length(open.data.len()) == offset
            });
            if !goes_on {
                self.close();
            }
            let open =
                self.open.get_or_insert_with(|| Open { kind, execution, offset, time_ms, data: Vec::new() });
            let (now, later) = data.split_at(data.len().min(MOST_DATA - open.data.len()));
            open.data.extend_from_slice(now);
            offset += length(now.len());
            data = later;
            if data.is_empty() {
                return;
            }
        }
    }

    /// Ends the last record and completes the additions.
    pub(super) fn close(&mut self) {
        let Some(Open { kind, execution, offset, time_ms, data }) = self.open.take() else { return };
        let segment = match self.segment.take() {
            Some(segment) if segment.bytes < SEGMENT && segment.state == SegmentState::Plain => segment,
            full => SegmentRow {
                sandbox: self.sandbox,
                project: self.project,
                number: full.as_ref().map_or(0, |full| full.number + 1),
                state: SegmentState::Plain,
                first_position: full.as_ref().map_or(0, SegmentRow::end),
                bytes: 0,
                file_bytes: 0,
                first_ms: time_ms,
                last_ms: time_ms,
            },
        };
        let segment = self.segment.insert(segment);
        let position = segment.end();
        let size = length(LogRecord::size(data.len()));
        let record = LogRecord {
            position,
            next: position + size,
            kind,
            execution,
            offset,
            time_ms,
            data: Bytes::from(data),
        };
        let (number, at) = (segment.number, u64::try_from(segment.bytes).unwrap_or(0));
        if self.additions.last().is_none_or(|last| last.number != number) {
            self.additions.push(Addition { sandbox: self.sandbox, number, at, bytes: Vec::new() });
        }
        if let Some(last) = self.additions.last_mut() {
            record.write(&mut last.bytes);
        }
        segment.bytes += size;
        segment.file_bytes = segment.bytes;
        segment.last_ms = segment.last_ms.max(time_ms);
        match self.segments.last_mut() {
            Some(last) if last.number == number => *last = segment.clone(),
            _ => self.segments.push(segment.clone()),
        }
        self.records.push(record);
    }

    /// The last segment, including all additions.
    pub(super) fn into_segment(self) -> Option<SegmentRow> {
        self.segment
    }
}

/// Lengths in memory are far below the range of a position.
fn length(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

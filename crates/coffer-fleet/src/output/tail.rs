//! Readers that follow a sandbox's log.
//!
//! The newest records are kept in memory while there are readers, once for all of them. A reader has only its
//! position: one that is behind reads from the files, and one that is too slow loses only its connection.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use coffer_core::SandboxId;
use coffer_core::sync::RwLock;
use coffer_store::{ProjectScope, StoreError};
use tokio::sync::watch;

use super::record::LogRecord;
use super::tails::Tail;
use super::{LogPage, Output};

/// Bytes in memory for each log with readers.
const KEPT: usize = 1 << 20;
/// Bytes read from files at a time.
const PAGE: usize = 256 << 10;
/// Another server may write the log.
const LOOK: Duration = Duration::from_secs(30);

impl Output {
    /// Hands new records to the readers.
    pub(super) fn tell(&self, sandbox: SandboxId, records: Vec<LogRecord>) {
        let tail = {
            let mut tails = self.tails.lock();
            let Some(tail) = tails.get(&sandbox).and_then(Weak::upgrade) else {
                tails.remove(&sandbox);
                return;
            };
            tail
        };
        let Some(end) = records.last().map(|last| last.next) else { return };
        {
            let mut kept = tail.kept.write();
            for record in records {
                kept.size += LogRecord::size(record.data.len());
                kept.records.push_back(Arc::new(record));
            }
            while kept.size > KEPT
                && let Some(oldest) = kept.records.pop_front()
            {
                kept.size -= LogRecord::size(oldest.data.len());
            }
        }
        tail.end.send_replace(end);
    }

    /// Creates a reader of a sandbox's log from `from`, or from its end.
    pub async fn reader(
        self: &Arc<Self>,
        scope: ProjectScope,
        sandbox: SandboxId,
        from: Option<i64>,
    ) -> Result<Reader, StoreError> {
        let tail = {
            let mut tails = self.tails.lock();
            match tails.get(&sandbox).and_then(Weak::upgrade) {
                Some(tail) => tail,
                None => {
                    tails.retain(|_, tail| tail.strong_count() > 0);
                    let tail = Arc::new(Tail { kept: RwLock::default(), end: watch::Sender::new(0) });
                    tails.insert(sandbox, Arc::downgrade(&tail));
                    tail
                }
            }
        };
        // Subscribe before asking for the end, so that no record is missed.
        let ends = tail.end.subscribe();
        let position = match from {
            Some(from) => from,
            None => self.store.newest_segment(sandbox).await?.map_or(0, |newest| newest.end()),
        };
        let (output, page) = (self.clone(), VecDeque::new());
        Ok(Reader { output, scope, sandbox, position, page, tail, ends, read_to_end: None })
    }
}

/// A reader that follows a log.
#[derive(Debug)]
pub struct Reader {
    output: Arc<Output>,
    scope: ProjectScope,
    sandbox: SandboxId,
    position: i64,
    page: VecDeque<Arc<LogRecord>>,
    tail: Arc<Tail>,
    ends: watch::Receiver<i64>,
    /// The end of the log, from `ends`, when the files had nothing more.
    read_to_end: Option<i64>,
}

impl Reader {
    /// The position of the next record.
    pub const fn position(&self) -> i64 {
        self.position
    }

    /// The next record. Cancel-safe.
    pub async fn next(&mut self) -> Option<Arc<LogRecord>> {
        loop {
            if let Some(record) = self.on_record().await {
                return Some(record);
            }
            tokio::select! {
                () = self.output.stop.cancelled() => return None,
                changed = self.ends.changed() => changed.ok()?,
                () = tokio::time::sleep(LOOK) => self.read_to_end = None,
            }
        }
    }

    /// The next record among those already stored; `None` if all were read.
    pub async fn on_record(&mut self) -> Option<Arc<LogRecord>> {
        loop {
            if let Some(record) = self.page.pop_front() {
                self.position = record.next;
                return Some(record);
            }
            let end = *self.ends.borrow_and_update();
            if self.read_to_end == Some(end) {
                return None;
            }
            if end > self.position && self.read_kept() {
                continue;
            }
            let read = self.output.read(&self.scope, self.sandbox, self.position, PAGE).await;
            match read {
                Ok(LogPage { records, next, .. }) if next > self.position => {
                    // Skip missing parts: positions show that they existed.
                    if records.is_empty() {
                        self.position = next;
                    }
                    self.page.extend(records.into_iter().map(Arc::new));
                    continue;
                }
                Ok(_) => {}
                Err(StoreError::Closed) => {}
                Err(error) => tracing::warn!("could not read output, trying again: {error}"),
            }
            self.read_to_end = Some(end);
            return None;
        }
    }

    /// Reads from memory, unless the next record is no longer there.
    fn read_kept(&mut self) -> bool {
        let kept = self.tail.kept.read();
        let Some(first) = kept.records.front().filter(|first| first.position <= self.position) else {
            return false;
        };
        debug_assert!(first.position <= self.position);
        let from = kept.records.partition_point(|record| record.next <= self.position);
        let mut size = 0;
        let fresh = kept.records.iter().skip(from).take_while(|record| {
            size += LogRecord::size(record.data.len());
            size <= PAGE
        });
        self.page.extend(fresh.cloned());
        !self.page.is_empty()
    }
}

//! Writes the audit log next to the requests, many records in one commit.
//!
//! Changes are never left out: a request waits until there is room. Reads are far more frequent, so they get
//! half of the room and never wait; reads that do not fit are counted, and the count is a record of its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::sync::Mutex;
use coffer_core::{AuditId, Code, ProjectId};
use coffer_store::{AuditRecord, Store};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use coffer_core::clock::now_ms;

/// Requests wait once this many records are unwritten.
const MOST_WAITING: usize = 4096;
const MOST_AT_ONCE: usize = 256;
const TRIES: u32 = 5;
/// The action of the record that says how many reads are missing in the log.
pub const DROPPED: &str = "audit.dropped";

/// The queue for audit records of requests.
#[derive(Debug, Clone)]
pub struct AuditLog {
    records: mpsc::Sender<AuditRecord>,
    dropped: Arc<Dropped>,
}

/// How many reads were dropped since the last record of them, by project.
#[derive(Debug, Default)]
struct Dropped(Mutex<HashMap<Option<ProjectId>, u64>>);

impl Dropped {
    fn add(&self, project: Option<ProjectId>) {
        *self.0.lock().entry(project).or_default() += 1;
    }

    fn take(&self) -> Vec<AuditRecord> {
        let counts = std::mem::take(&mut *self.0.lock());
        let record = |(project, count): (Option<ProjectId>, u64)| {
            let id = AuditId::generate();
            AuditRecord {
                id,
                project,
                actor: "server".to_string(),
                action: DROPPED.to_string(),
                subject: Some(count.to_string()),
                status: 503,
                code: Some(Code::Unavailable.to_string()),
                request_id: id.to_string(),
                at_ms: now_ms(),
            }
        };
        counts.into_iter().map(record).collect()
    }
}

impl AuditLog {
    /// Starts the writer, which ends after `stop` once everything is written. After `stop` it accepts no more
    /// records.
    pub fn start(store: Store, stop: CancellationToken) -> (Self, JoinHandle<()>) {
        let (log, inbox) = Self::with_room(MOST_WAITING);
        #[expect(clippy::disallowed_methods, reason = "the caller awaits the handle")]
        let writer = tokio::spawn(write_all(store, inbox, log.dropped.clone(), stop));
        (log, writer)
    }

    fn with_room(most: usize) -> (Self, mpsc::Receiver<AuditRecord>) {
        let (records, inbox) = mpsc::channel(most);
        (Self { records, dropped: Arc::default() }, inbox)
    }

    /// Records a read, or counts it as dropped if changes need the room.
    pub fn write_read(&self, record: AuditRecord) {
        let project = record.project;
        let is_tight = self.records.capacity() <= self.records.max_capacity() / 2;
        if is_tight || self.records.try_send(record).is_err() {
            self.dropped.add(project);
        }
    }

    pub async fn write(&self, record: AuditRecord) {
        if self.records.send(record).await.is_err() {
            tracing::error!("the audit log has stopped and takes no more records");
        }
    }
}

async fn write_all(
    store: Store,
    mut inbox: mpsc::Receiver<AuditRecord>,
    dropped: Arc<Dropped>,
    stop: CancellationToken,
) {
    let mut records = Vec::new();
    loop {
        tokio::select! {
            biased;
            received = inbox.recv_many(&mut records, MOST_AT_ONCE) => if received == 0 {
                return;
            },
            // Records already in the queue are still read.
            () = stop.cancelled(), if !inbox.is_closed() => {
                inbox.close();
                continue;
            }
        }
        let mut batch = std::mem::take(&mut records);
        // Reads are dropped only while records wait here, so a count always has a batch to go with.
        batch.extend(dropped.take());
        for attempt in 1..=TRIES {
            match store.record_audit(batch.clone()).await {
                Ok(()) => break,
                Err(error) if attempt == TRIES => {
                    tracing::error!("{} audit records are lost: {}", batch.len(), coffer_core::chain(&error));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100) * attempt).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(project: Option<ProjectId>, action: &str) -> AuditRecord {
        let id = AuditId::generate();
        AuditRecord {
            id,
            project,
            actor: "key:1".into(),
            action: action.into(),
            subject: None,
            status: 200,
            code: None,
            request_id: id.to_string(),
            at_ms: 0,
        }
    }

    #[tokio::test]
    async fn reads_leave_room_for_changes_and_are_counted_where_they_do_not_fit() {
        let (log, mut inbox) = AuditLog::with_room(8);
        let (one, two) = (Some(ProjectId::generate()), Some(ProjectId::generate()));
        for _ in 0..10 {
            log.write_read(record(one, "read"));
        }
        log.write_read(record(two, "read"));
        for _ in 0..4 {
            // Without waiting: half of the room is reserved for changes.
            tokio::time::timeout(Duration::from_secs(5), log.write(record(one, "change"))).await.unwrap();
        }
        let mut written = Vec::new();
        inbox.recv_many(&mut written, 100).await;
        let count = |action: &str| written.iter().filter(|record| record.action == action).count();
        assert_eq!((count("read"), count("change")), (4, 4));
        let mut dropped: Vec<_> =
            log.dropped.take().into_iter().map(|record| (record.project, record.subject.unwrap())).collect();
        dropped.sort_by_key(|(_, count)| count.len() + count.parse::<usize>().unwrap());
        assert_eq!(dropped, [(two, "1".to_string()), (one, "6".to_string())]);
        assert!(log.dropped.take().is_empty(), "told once");
    }
}

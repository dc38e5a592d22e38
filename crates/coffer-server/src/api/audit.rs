//! Writes the audit log beside the requests, many records in one commit.

use std::time::Duration;

use coffer_store::{AuditRecord, Store};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Requests wait once so many records are not written yet.
const MOST_WAITING: usize = 4096;
const MOST_AT_ONCE: usize = 256;
const TRIES: u32 = 5;

/// Where requests leave their records.
#[derive(Debug, Clone)]
pub(crate) struct AuditLog {
    records: mpsc::Sender<AuditRecord>,
}

impl AuditLog {
    /// Starts the writer, which ends once it was stopped and everything is written.
    /// After `stop` it takes no more.
    pub(crate) fn start(store: Store, stop: CancellationToken) -> (Self, JoinHandle<()>) {
        let (records, inbox) = mpsc::channel(MOST_WAITING);
        (Self { records }, tokio::spawn(write_all(store, inbox, stop)))
    }

    pub(crate) async fn write(&self, record: AuditRecord) {
        if self.records.send(record).await.is_err() {
            tracing::error!("the audit log takes no more records");
        }
    }
}

async fn write_all(store: Store, mut inbox: mpsc::Receiver<AuditRecord>, stop: CancellationToken) {
    let mut records = Vec::new();
    loop {
        tokio::select! {
            biased;
            received = inbox.recv_many(&mut records, MOST_AT_ONCE) => if received == 0 {
                return;
            },
            // What is in it still comes out.
            () = stop.cancelled(), if !inbox.is_closed() => {
                inbox.close();
                continue;
            }
        }
        let batch = std::mem::take(&mut records);
        for attempt in 1..=TRIES {
            match store.record_audit(batch.clone()).await {
                Ok(()) => break,
                Err(error) if attempt == TRIES => {
                    tracing::error!(
                        "{} audit records are lost: {}",
                        batch.len(),
                        crate::fleet::chain(&error)
                    );
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100) * attempt).await,
            }
        }
    }
}

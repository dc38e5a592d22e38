//! What sandboxes were refused, put on record before egress forgets it.

use std::time::Duration;

use coffer_core::StateName;
use coffer_core::event::{Event, EventKind, NetworkRefused};
use coffer_core::network::{Refusals, Traffic};
use coffer_engine::EngineError;

use super::{Fleet, Record};
use coffer_core::chain;

/// A sandbox can be refused as often as it likes; each event keeps so many of the latest, and counts all.
const MOST_KEPT: usize = 50;
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// What is known of a sandbox's network.
#[derive(Debug, Default)]
pub struct Reported {
    pub traffic: Traffic,
    /// The last refusal that is on record; `None` until the store was asked.
    recorded: Option<u64>,
}

impl Fleet {
    /// What was refused after that sequence. One that egress has not come to is of an egress before it.
    pub async fn refusals(&self, record: &Record, after: u64) -> Result<Refusals, EngineError> {
        let mut refusals = self.engine.refusals(record.id, after).await?;
        if refusals.total < after {
            refusals = self.engine.refusals(record.id, 0).await?;
        }
        // What a name stands for inside the operator's network is not the tenant's to know.
        for refusal in &mut refusals.refusals {
            if refusal.name.is_some() && refusal.rule.starts_with("never:") {
                refusal.address = None;
            }
        }
        Ok(refusals)
    }

    /// Takes down what a sandbox has sent and received, and what it was refused since the last time.
    pub(super) async fn take_down(&self, record: &Record, traffic: Traffic) {
        let recorded = {
            let mut reported = record.reported();
            let before = std::mem::replace(&mut reported.traffic, traffic);
            // Smaller than before means counted anew.
            let more = |now: u64, before: u64| if now >= before { now - before } else { now };
            self.telemetry.metrics.passed(
                more(traffic.sent_bytes, before.sent_bytes),
                more(traffic.received_bytes, before.received_bytes),
                more(traffic.refused, before.refused),
            );
            reported.recorded
        };
        if traffic.refused != recorded.unwrap_or(0)
            && let Err(error) = self.record_refusals(record, recorded).await
        {
            tracing::warn!(sandbox.id = %record.id, "refusals are not on record: {}", chain(&*error));
        }
    }

    /// The same for the last time, before the sandbox is gone. Its end does not wait long for it.
    pub(super) async fn take_down_the_last(&self, record: &Record) {
        if record.live().row.state.name() != StateName::Running {
            return;
        }
        let recorded = record.reported().recorded;
        let recording = self.record_refusals(record, recorded);
        match tokio::time::timeout(LAST_PATIENCE, recording).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(sandbox.id = %record.id, "no last refusals: {}", chain(&*error))
            }
            Err(_) => tracing::debug!(sandbox.id = %record.id, "no last refusals in time"),
        }
    }

    async fn record_refusals(
        &self,
        record: &Record,
        recorded: Option<u64>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let operator = self.store.operator();
        let recorded = match recorded {
            Some(sequence) => sequence,
            // An earlier server may have done so.
            None => {
                let last =
                    self.store.last_event_of(&operator, record.id, EventKind::SandboxNetworkRefused).await?;
                match last.and_then(|row| row.event()) {
                    Some(Event::SandboxNetworkRefused(last)) => last.sequence,
                    _ => 0,
                }
            }
        };
        let Refusals { refusals, total, forgotten } = self.refusals(record, recorded).await?;
        if let Some(last) = refusals.last() {
            let event = Event::SandboxNetworkRefused(NetworkRefused {
                refusals: refusals[refusals.len().saturating_sub(MOST_KEPT)..].to_vec(),
                refused: refusals.len() as u64 + forgotten,
                sequence: total,
            });
            self.store.record_event_of(&operator, record.id, event, last.at_ms).await?;
        }
        record.reported().recorded = Some(total);
        Ok(())
    }
}

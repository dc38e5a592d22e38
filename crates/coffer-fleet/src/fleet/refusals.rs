//! Records sandboxes' network refusals before egress drops them.

use std::time::Duration;

use coffer_core::StateName;
use coffer_core::event::{Event, EventKind, NetworkRefused};
use coffer_core::network::{Refusals, Traffic};
use coffer_engine::EngineError;

use super::{Fleet, Record};
use coffer_core::chain;

/// A sandbox can cause any number of refusals; each event has the latest of them, and the total.
const MOST_KEPT: usize = 50;
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// Known network figures of a sandbox.
#[derive(Debug, Default)]
pub struct Reported {
    pub traffic: Traffic,
    /// The last recorded refusal; `None` until the store was asked.
    recorded: Option<u64>,
}

impl Fleet {
    /// The refusals after this sequence. A sequence higher than egress has reached is from an earlier egress.
    pub async fn refusals(&self, record: &Record, after: u64) -> Result<Refusals, EngineError> {
        let mut refusals = self.engine.refusals(record.id, after).await?;
        if refusals.total < after {
            refusals = self.engine.refusals(record.id, 0).await?;
        }
        // Tenants must not learn addresses inside the operator's network.
        for refusal in &mut refusals.refusals {
            if refusal.name.is_some() && refusal.rule.starts_with("never:") {
                refusal.address = None;
            }
        }
        Ok(refusals)
    }

    /// Records a sandbox's traffic, and its refusals since the last time.
    pub(super) async fn take_down(&self, record: &Record, traffic: Traffic) {
        let recorded = {
            let mut reported = record.reported();
            let before = std::mem::replace(&mut reported.traffic, traffic);
            // A smaller value means that egress has restarted its count.
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
            tracing::warn!(sandbox.id = %record.id, "could not record network refusals: {}", chain(&*error));
        }
    }

    /// The same for the last time, before the sandbox ends. The end does not wait long for it.
    pub(super) async fn take_down_the_last(&self, record: &Record) {
        if record.live().row.state.name() != StateName::Running {
            return;
        }
        let recorded = record.reported().recorded;
        let recording = self.record_refusals(record, recorded);
        match tokio::time::timeout(LAST_PATIENCE, recording).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(sandbox.id = %record.id, "could not get the last network refusals: {}", chain(&*error))
            }
            Err(_) => {
                tracing::debug!(sandbox.id = %record.id, "could not get the last network refusals in time")
            }
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
            // An earlier server may have recorded some.
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

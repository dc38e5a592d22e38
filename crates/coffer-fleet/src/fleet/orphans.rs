//! What was found without an owner and removed, on record.

use coffer_core::SandboxId;
use coffer_core::event::{Event, EventKind, OrphanRemoved};
use coffer_engine::Orphan;
use coffer_store::ChangeError;

use super::Fleet;
use coffer_core::chain;
use coffer_core::clock::now_ms;

impl Fleet {
    /// Takes down what the engine tells of itself: what it can do, and what it removed when it started. It tells
    /// so as long as it runs; each is recorded once.
    pub(super) async fn hear_of_engine(&self) {
        let orphans = match self.engine.info().await {
            Ok(info) => {
                let lacks = (!info.capabilities.memory_snapshot).then(|| {
                    info.memory_snapshot_lacks.unwrap_or_else(|| "this host cannot save memory".to_string())
                });
                *self.lacks_memory.lock() = lacks;
                info.orphans
            }
            Err(error) => return tracing::warn!("could not ask the engine for orphans: {error}"),
        };
        let operator = self.store.operator();
        for Orphan { name, had } in orphans {
            // Others are in the engine's log alone: there is no project that they could belong to.
            let Ok(id) = name.parse() else { continue };
            match self.store.last_event_of(&operator, id, EventKind::SandboxOrphanRemoved).await {
                Ok(None) => self.record_orphan(id, &had).await,
                Ok(Some(_)) => {}
                Err(error) => tracing::warn!("orphans are not on record: {}", chain(&error)),
            }
        }
    }

    /// Takes down that something was removed which should not have been there.
    pub(super) async fn record_orphan(&self, id: SandboxId, had: &[String]) {
        self.telemetry.metrics.found_orphan();
        self.found.orphans.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let event = Event::SandboxOrphanRemoved(OrphanRemoved { had: had.to_vec() });
        match self.store.record_event_of(&self.store.operator(), id, event, now_ms()).await {
            // Without a row it was never anybody's.
            Ok(()) | Err(ChangeError::NotFound) => {}
            Err(error) => tracing::warn!(sandbox.id = %id, "orphan {id} is not on record: {}", chain(&error)),
        }
    }
}

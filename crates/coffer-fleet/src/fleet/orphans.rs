//! Records orphans that were removed.

use coffer_core::SandboxId;
use coffer_core::event::{Event, EventKind, OrphanRemoved};
use coffer_engine::Orphan;
use coffer_store::ChangeError;

use super::Fleet;
use coffer_core::chain;
use coffer_core::clock::now_ms;

impl Fleet {
    /// Records what the engine reports of itself: its features, and orphans that it removed at its start. It
    /// reports them as long as it runs; each is recorded once.
    pub(super) async fn hear_of_engine(&self) {
        let orphans = match self.engine.info().await {
            Ok(info) => {
                let lacks = (!info.capabilities.memory_snapshot).then(|| {
                    info.memory_snapshot_lacks.unwrap_or_else(|| "this host cannot save memory".to_string())
                });
                *self.lacks_memory.lock() = lacks;
                info.orphans
            }
            Err(error) => return tracing::warn!("could not get orphans from the engine: {error}"),
        };
        let operator = self.store.operator();
        for Orphan { name, had } in orphans {
            // Others are only in the engine's log: they belong to no project.
            let Ok(id) = name.parse() else { continue };
            match self.store.last_event_of(&operator, id, EventKind::SandboxOrphanRemoved).await {
                Ok(None) => self.record_orphan(id, &had).await,
                Ok(Some(_)) => {}
                Err(error) => tracing::warn!("could not record orphans: {}", chain(&error)),
            }
        }
    }

    /// Records that an orphan was removed.
    pub(super) async fn record_orphan(&self, id: SandboxId, had: &[String]) {
        self.telemetry.metrics.found_orphan();
        self.found.orphans.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let event = Event::SandboxOrphanRemoved(OrphanRemoved { had: had.to_vec() });
        match self.store.record_event_of(&self.store.operator(), id, event, now_ms()).await {
            // Without a row it never belonged to a project.
            Ok(()) | Err(ChangeError::NotFound) => {}
            Err(error) => tracing::warn!(sandbox.id = %id, "could not record orphan {id}: {}", chain(&error)),
        }
    }
}

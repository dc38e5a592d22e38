//! Deletes files and layers that no build needs.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::clock::now_ms;
use coffer_core::settings::Period;
use coffer_core::{ProjectId, SnapshotId, chain};

use crate::{BuildError, Builds};

const EVERY: Duration = Duration::from_secs(600);
/// A snapshot that nothing names is a crash's after this long; a build records its own within seconds.
const STRAY_AFTER: Period = Period::hours(1);
/// Most layers forgotten at once.
const BATCH: u32 = 500;

impl Builds {
    pub(crate) async fn keep_sweeping(self: Arc<Self>) {
        loop {
            if let Err(error) = self.sweep().await {
                tracing::warn!("could not delete unused parts of templates: {}", chain(&error));
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    /// Deletes unused layers, builds without a tag, uploaded files, downloads, and what crashes left.
    pub async fn sweep(&self) -> Result<(), BuildError> {
        let (operator, now) = (self.store.operator(), now_ms());
        let keep = now - self.settings.keep_layers.as_millis();
        let pruned = self.store.prune_builds(&operator, keep).await?;
        let layers = self.store.forget_layers(&operator, None, keep, BATCH).await?;
        let strays = self.store.stray_build_snapshots(&operator, now - STRAY_AFTER.as_millis()).await?;
        for gone in layers.into_iter().chain(strays) {
            self.drop_snapshots(gone.project, vec![gone.snapshot]).await;
        }
        // Their projects are found with them.
        for snapshot in pruned {
            if let Some(row) = self.store.snapshot(&operator, snapshot).await? {
                self.drop_snapshots(row.project, vec![snapshot]).await;
            }
        }
        // A layer is unpacked within its build; what is older was left by a build that failed or a server that died.
        if let Err(error) = self.blobs.sweep(&|_, _| false).await {
            tracing::warn!("could not delete downloaded layers: {}", chain(&error));
        }
        for files in
            self.store.forget_template_files(&operator, now - self.settings.keep_files.as_millis()).await?
        {
            self.remove_unnamed(files.project, &files.sha256).await?;
        }
        // A build removes the layers that it unpacked; these are of builds that failed or whose server died.
        match self.blobs.sweep(&|_, _| false).await {
            Ok(swept) if swept.blobs + swept.partials > 0 => {
                tracing::info!("deleted {} downloaded layers that no build unpacked", swept.blobs);
            }
            Ok(_) => {}
            Err(error) => tracing::warn!("could not delete downloaded layers: {}", chain(&error)),
        }
        Ok(())
    }

    /// Deletes snapshots of builds that neither a layer nor a build names.
    pub(crate) async fn drop_snapshots(&self, project: ProjectId, snapshots: Vec<SnapshotId>) {
        let scope = self.store.operator().acting_for(project, None);
        for snapshot in snapshots {
            match self.store.is_build_snapshot_used(snapshot).await {
                Ok(true) => {}
                Ok(false) => {
                    if let Err(error) = self.fleet.delete_snapshot(scope, snapshot).await {
                        tracing::warn!("could not delete snapshot {snapshot} of a build: {}", chain(&error));
                    }
                }
                Err(error) => tracing::warn!("could not look up snapshot {snapshot}: {}", chain(&error)),
            }
        }
    }
}

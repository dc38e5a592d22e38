//! Room in a project's quota: the results of steps that were not used for longest give way to new ones.

use coffer_core::clock::now_ms;
use coffer_core::{ProjectId, SnapshotPurpose, chain};
use coffer_store::{OverQuota, Quota, SnapshotRow};

use crate::run::Attempt;
use crate::workplace::{StepError, Workplace};
use crate::{BuildError, Builds};

/// Results deleted at once. Each may free little, because others share its files.
const BATCH: u32 = 16;

impl Builds {
    /// Deletes results of steps that no running build uses, the least recently used first. Returns how many.
    pub(crate) async fn make_room(&self, project: ProjectId) -> Result<usize, BuildError> {
        // A running build has marked what it uses since it began.
        let before = self.store.oldest_running_build(project).await?.unwrap_or_else(now_ms);
        let snapshots = self.store.forget_idle_layers(project, before, BATCH).await?;
        let count = snapshots.len();
        if count > 0 {
            tracing::info!("deleting {count} cached results of builds of project {project} to make room");
            self.drop_snapshots(project, snapshots).await;
        }
        Ok(count)
    }

    /// Whether deleting cached results made some room for what a quota refused.
    pub(crate) async fn made_room(&self, project: ProjectId, over: &OverQuota) -> bool {
        let helps = matches!(over.quota, Quota::DiskMib | Quota::Snapshots);
        if !helps || over.is_hopeless() {
            return false;
        }
        match self.make_room(project).await {
            Ok(count) => count > 0,
            Err(error) => {
                tracing::warn!("could not delete cached results of builds: {}", chain(&error));
                false
            }
        }
    }
}

impl Attempt<'_> {
    /// Takes a snapshot; if the quota is used up, older results give way.
    pub(crate) async fn save(
        &self,
        place: &mut Workplace,
        purpose: SnapshotPurpose,
        memory: Option<bool>,
    ) -> Result<SnapshotRow, StepError> {
        loop {
            match place.snapshot(purpose, memory, self.build.row.created_by.clone()).await {
                Err(StepError::NoRoom(over))
                    if self.builds.made_room(self.build.row.project, &over).await => {}
                saved => return saved,
            }
        }
    }
}
